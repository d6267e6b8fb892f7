"""Putting back what the store has lost of partitions, from what is here: manifest objects, segments, retirements.

It is written under our own claim, create-only, and each object is tried until it is there. Files come before manifest
objects, so that no reader meets an object without its file. Then the marks fall to where the objects end, and the lanes
go on from there: nothing more is acknowledged before all of it is there again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from holdfast.errors import Corrupt
from holdfast.journal.state.partition import Partition
from holdfast.root.objects import documents
from holdfast.segments.manifest.manifest_documents import expired_document
from holdfast.shipping.ownership.fence import RepeatedRequests
from holdfast.shipping.refill.partition_gaps import PartitionGaps, examine, is_newest, newest_file, newest_key
from holdfast.shipping.refill.store_loss import REBUILD, LostSpan, StoreForgot
from holdfast.shipping.remote_store import Remote
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.shipping.shipping_marks import shipped_partitions
from holdfast.store import layout
from holdfast.store.port import Body

_AT_ONCE = 16

logger = logging.getLogger("holdfast.shipping")


class StoreRefill:
    """Compares the partitions of one log with its store, and puts back what is missing."""

    def __init__(
        self,
        context: ShippingContext,
        asking: RepeatedRequests,
        remote: Remote,
        put: Callable[[str, Body], Awaitable[None]],
    ) -> None:
        self._journal = context.journal
        self._manifest = context.manifest
        self._store = context.store
        self._asking = asking
        self._remote = remote
        self._put = put

    async def find(self, *, thorough: bool = False, strict: bool = False, anew: bool = False) -> list[PartitionGaps]:
        """The partitions of which the store has lost something: those whose newest objects are gone, or (`thorough`)
        any. With `anew` the store may be an old copy, and is not compared with the marks. Damage is logged and left to
        reconciliation, or (`strict`) raised.
        """
        partitions = shipped_partitions(self._journal)
        room = asyncio.Semaphore(_AT_ONCE)
        if not thorough:
            whole = await asyncio.gather(*(self._seems_whole(partition, room) for partition in partitions))
            partitions = [partition for partition, is_whole in zip(partitions, whole, strict=True) if not is_whole]
        found = [await self._examined(partition, strict, anew) for partition in partitions]
        return [gap for gap in found if gap is not None and not gap.is_whole]

    async def _seems_whole(self, partition: Partition, room: asyncio.Semaphore) -> bool:
        """Whether the newest manifest object, and the newest segment, are what they were."""
        key, log = newest_key(partition), self._journal.log_id.hex()
        if key is None:
            return True
        async with room:
            try:
                data = await self._asking.until_answered(f"look for {key}", lambda: self._remote.read(key))
            except Corrupt:
                return False  # not signed by this log: a closer look finds out
            if not is_newest(data, log, partition):
                return False
            file = newest_file(self._manifest, partition)
            if file is None:
                return True
            return await self._asking.until_answered(f"look for {file}", lambda: self._remote.head(file)) is not None

    async def _examined(self, partition: Partition, strict: bool, anew: bool) -> PartitionGaps | None:
        loop, log = asyncio.get_running_loop(), self._journal.log_id.hex()
        try:
            return await self._asking.until_answered(
                f"compare {partition.topic}/{partition.number} with the store",
                lambda: loop.run_in_executor(
                    None, lambda: examine(self._store, self._manifest, log, partition, anew=anew)
                ),
            )
        except Corrupt as damage:
            if strict:
                raise
            # A damaged object is not a lost one: shipping goes on, and reconciliation repairs it.
            logger.error("the store is damaged: %s", damage.message, extra={"action": "store_damaged"})
            return None

    def require_no_loss(self, gaps: Iterable[PartitionGaps]) -> None:
        """Raise StoreForgot where something is lost everywhere."""
        lost = lost_spans(gaps)
        if lost:
            records, places = sum(span.records for span in lost), ", ".join(map(_words, lost[:5]))
            raise StoreForgot(
                f"the store has lost {records} records that were there alone store={self._store.url}: {places}"
                f"{' …' if len(lost) > 5 else ''}",
                hint=f"if no copy of the store can be found: {REBUILD} --accept-loss retires them",
            )

    async def refill(self, gaps: Iterable[PartitionGaps]) -> None:
        """Put back what can be; what is lost is retired."""
        loop = asyncio.get_running_loop()
        for gap in gaps:
            outdated = gap.checkpoints
            if outdated:
                await self._asking.until_answered(
                    "remove outdated checkpoints",
                    lambda keys=outdated: loop.run_in_executor(None, self._store.delete, keys),  # type: ignore[misc]
                )
            await self._retire(gap)
            for row in gap.files:
                path = self._manifest.path(gap.partition, row)
                key = layout.segment_key(gap.partition.topic, gap.partition.number, row.number, row.sha256)
                await self._put(key, Body.file(path, row.size, row.sha256))
            for slot, body in sorted(gap.objects.items()):
                key = layout.manifest_key(gap.partition.topic, gap.partition.number, slot)
                await self._put(key, Body.of(body))
            for rewrite in gap.rewrites:
                key = layout.rewrite_key(gap.partition.topic, gap.partition.number, rewrite.number)
                await self._put(key, Body.of(documents.encode(rewrite)))
            self._tell(gap)

    async def _retire(self, gap: PartitionGaps) -> None:
        if not gap.lost:
            return
        partition, last = gap.partition, gap.lost[-1]
        key = layout.expired_key(partition.topic, partition.number, last.number + 1)
        if await self._asking.until_answered(f"look for {key}", lambda: self._remote.head(key)) is None:
            document = expired_document(
                self._journal, partition, last.number + 1, last.end, self._journal.trusted_time.range_us()[1]
            )
            await self._put(key, Body.of(documents.encode(document)))

    def _tell(self, gap: PartitionGaps) -> None:
        partition, lost = gap.partition, sum(row.rows for row in gap.lost)
        segments = len(gap.files) + gap.behind
        logger.warning(
            "the store had lost %d manifest objects and %d segments of %s/%d; they are sent again, %d records are lost",
            len(gap.objects),
            segments,
            partition.topic,
            partition.number,
            lost,
            extra={
                "action": "store_refilled",
                "topic": partition.topic,
                "partition": partition.number,
                "objects": len(gap.objects),
                "segments": segments,
                "records_lost": lost,
            },
        )


def lost_spans(gaps: Iterable[PartitionGaps]) -> tuple[LostSpan, ...]:
    """What is lost everywhere."""
    return tuple(span for gap in gaps if (span := gap.span) is not None)


def _words(span: LostSpan) -> str:
    return f"{span.topic}/{span.partition} offsets {span.first} to {span.first + span.records - 1}"
