"""Retention on the store: what is retired, and when its files go.

    _expired/<number>.json says that segments below a number are retired → `delete_after_ms` later their files are
    removed, but never one that a reader's lease names

Readers begin behind the newest `expired` object. A reader in the middle of older segments has `delete_after_ms` to
finish, and longer while it renews its lease. Times of leases are compared with this machine's clock, as far as it is
believed (`trusted_time`): readers and owner should agree within minutes. Leases are not signed, since readers may have
no key. A forged one can keep retired files for `lease_delay_max_ms` longer, and do nothing else; one that makes no
sense is ignored.

Which files those are is said by `retired_files`.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.clock import Clock
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.root.leased_segments import needed
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.root.retired_files import newest_expired, removable_below, retired_files
from holdfast.root.rewrite_sweep import Grace
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import expired_document
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.shipping_marks import shipment_of, shipped_partitions
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store

_INTERVAL_S = 600.0
_AT_ONCE = 500

logger = logging.getLogger("holdfast.shipping")


class StoreRetention:
    """Applies `store_bytes_max` and `store_age_max_ms` to one root."""

    def __init__(
        self, journal: Journal, manifest: Manifest, store: Store, fence: Fence, settings: ShippingSettings, clock: Clock
    ) -> None:
        self._journal = journal
        self._manifest = manifest
        self._store = store
        self._fence = fence
        self._settings = settings
        self._clock = clock
        self._due = 0.0
        self._removed: dict[Partition, int] = {}
        """Below this number files are known to be gone."""

    def is_due(self) -> bool:
        """Whether there is a policy, and it is time to apply it."""
        return self._has_policy and self._clock.monotonic() >= self._due

    def due_in(self) -> float | None:
        """Seconds until it is to be applied again; None without a policy."""
        return max(1.0, self._due - self._clock.monotonic()) if self._has_policy else None

    @property
    def _has_policy(self) -> bool:
        return bool(self._settings.store_bytes_max or self._settings.store_age_max_ms)

    async def run(self) -> None:
        """Retire what the policy says, then remove what was retired long enough ago."""
        # Twice in `delete_after_ms`, where that is short: files should not stay much longer than it says.
        self._due = self._clock.monotonic() + min(_INTERVAL_S, max(1.0, self._settings.delete_after_ms / 2000))
        loop = asyncio.get_running_loop()
        partitions = shipped_partitions(self._journal)
        planned = await loop.run_in_executor(None, lambda: [self._planned(partition) for partition in partitions])
        await self._fence.check()
        for document in planned:
            if document is not None:
                await loop.run_in_executor(None, self._retire, document)
        leases = await loop.run_in_executor(None, lambda: needed(self._store, self._journal.trusted_time.now_us()))
        await self._fence.check()
        for partition in partitions:
            await loop.run_in_executor(None, self._remove, partition, leases)

    def _planned(self, partition: Partition) -> ExpiredDocument | None:
        """What is to be retired by the policy, beyond what is; the newest settled segment always stays."""
        known = newest_expired(self._store, partition.topic, partition.number)
        retired = 0 if known is None else known.upto
        rows = list(self._manifest.rows(partition, retired, shipment_of(partition).settled_segments))
        size = sum(row.size for row in rows)
        now_us, stamp_us = self._journal.trusted_time.range_us()
        oldest_us = now_us - int(self._settings.store_age_max_ms * 1000)
        upto = first = 0
        for row in rows[:-1]:
            too_much = self._settings.store_bytes_max and size - row.size >= self._settings.store_bytes_max
            too_old = self._settings.store_age_max_ms and row.sealed_us < oldest_us
            if not too_much and not too_old:
                break
            size -= row.size
            upto, first = row.number + 1, row.end
        return expired_document(self._journal, partition, upto, first, stamp_us) if upto else None

    def _retire(self, document: ExpiredDocument) -> None:
        try:
            key = layout.expired_key(document.topic, document.partition, document.upto)
            self._store.create(key, Body.of(documents.encode(document)))
        except AlreadyExists:
            pass
        logger.info(
            "retired segments on the store below %d",
            document.upto,
            extra={"action": "store_expired", "topic": document.topic, "partition": document.partition},
        )

    def _remove(self, partition: Partition, leases: dict[tuple[str, int], int]) -> None:
        place, log = (partition.topic, partition.number), self._journal.log_id.hex()
        grace = Grace(int(self._settings.delete_after_ms * 1000), int(self._settings.lease_delay_max_ms * 1000))
        now_us = self._journal.trusted_time.now_us()
        upto = removable_below(self._store, *place, now_us, grace, leases.get(place))
        if upto <= self._removed.get(partition, 0):
            return

        def own(number: int) -> str:
            return layout.segment_key(*place, number, self._manifest.row(partition, number).sha256)

        keys = retired_files(self._store, log, *place, upto, own)
        if keys is None:
            return
        for start in range(0, len(keys), _AT_ONCE):
            self._store.delete(keys[start : start + _AT_ONCE])
        self._removed[partition] = upto
