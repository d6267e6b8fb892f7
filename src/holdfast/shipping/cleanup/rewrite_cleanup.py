"""What compaction of the store has left behind, removed by the owner: replaced files, and what compactors gave up.

A compaction removes that, too; but it may run once and never again. So the owner looks about once an hour in which it
settled something: two requests for each partition that was settled. `root.rewrite_sweep` says what may go, and when:
`delete_after_ms` behind the rewrite, unless a reader's lease needs the segments. Nothing is removed before the fence
was checked.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.clock import Clock
from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.root.leased_segments import needed
from holdfast.root.rewrite_sweep import Grace, sweep
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.shipping_marks import shipment_of
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store.port import Store

_INTERVAL_S = 3600.0

logger = logging.getLogger("holdfast.shipping")


class RewriteCleanup:
    """Sweeps the partitions of one root."""

    def __init__(self, journal: Journal, store: Store, fence: Fence, settings: ShippingSettings, clock: Clock) -> None:
        self._journal, self._store, self._fence, self._clock = journal, store, fence, clock
        self._grace = Grace(int(settings.delete_after_ms * 1000), int(settings.lease_delay_max_ms * 1000))
        self._due = clock.monotonic() + _INTERVAL_S
        self._done: dict[Partition, int] = {}
        """How many rewrites of each partition have nothing left."""

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self._clock.monotonic() >= self._due

    async def run(self) -> None:
        """Remove what may go."""
        self._due = self._clock.monotonic() + _INTERVAL_S
        loop = asyncio.get_running_loop()
        leases = await loop.run_in_executor(None, needed, self._store, self._journal.trusted_time.now_us())
        for partition in list(self._journal.partitions.values()):
            if shipment_of(partition).settled_segments:
                await self._fence.check()
                await loop.run_in_executor(None, self._sweep, partition, leases)

    def _sweep(self, partition: Partition, leases: dict[tuple[str, int], int]) -> None:
        log, place = self._journal.log_id.hex(), (partition.topic, partition.number)
        try:
            done = self._done.get(partition, 0)
            now_us = self._journal.trusted_time.now_us()
            swept = sweep(self._store, log, *place, now_us, self._grace, leases, done=done)
        except Corrupt as damage:  # reconciliation finds it
            logger.error("nothing is removed: %s", damage.message, extra={"action": "rewrite_damaged"})
            return
        self._done[partition] = swept.rewrites
        if swept.files:
            logger.info(
                "removed %d files that were compacted",
                swept.files,
                extra={"action": "rewrites_swept", "files": swept.files, "bytes": swept.bytes},
            )
