"""Sealed segments: their files as they are, then their manifest objects, in order per partition.

    file (several ahead) → idempotency keys → manifest object (one after the other) → fence → mark

A file's bytes and name were fixed when it was sealed, and a manifest object says only what its row says: a restart
sends the same again, and *already exists* with the same bytes is an answer like any other. Segments that retention
removed here before they could be shipped (the store came later) get their manifest objects without a file, and an
`expired` object first, so that nobody looks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.root.objects import documents
from holdfast.segments.manifest.manifest_documents import gone_document, segment_document
from holdfast.shipping.lanes.uploading import FileGone
from holdfast.shipping.ownership.fence import Asking, Fence
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.shipping.shipping_marks import ShippedMarks, shipment_of, shipped_partitions
from holdfast.store import layout
from holdfast.store.port import Body, StoreRefused
from holdfast.telemetry import spans

logger = logging.getLogger("holdfast.shipping")

_IDLE_S = 3600.0

Put = Callable[[str, Body], Awaitable[None]]


class _Acknowledged(NamedTuple):
    """A segment whose manifest object the store has."""

    partition: Partition
    row: SegmentRow
    slot: int


class SegmentLane:
    """The way of sealed segments to the store."""

    def __init__(
        self,
        context: ShippingContext,
        put: Put,
        describe: Callable[[str], Awaitable[None]],
        fence: Fence,
        marks: ShippedMarks,
        asking: Asking,
        head: Callable[[str], Awaitable[object | None]],
    ) -> None:
        self._journal = context.journal
        self._manifest = context.manifest
        self._put = put
        self._describe = describe
        self._fence = fence
        self._marks = marks
        self._window = context.settings.segments_in_flight
        self._room = asyncio.Semaphore(self._window)
        self._counters = context.counters
        self._asking = asking
        self._head = head
        self._workers: dict[Partition, asyncio.Task[None]] = {}
        self._behind: dict[Partition, int] = {}
        """Behind the last segment whose manifest object was sent."""
        self._acknowledged: deque[_Acknowledged] = deque()
        self._news = asyncio.Event()
        self._stopping = False
        self._waiting: asyncio.Future[None] | None = None
        self.on_settled: Callable[[Partition, int], None] = lambda partition, slot: None
        self.before_settling: Callable[[Partition, int], Awaitable[None]] = _nothing
        """Awaited before a manifest object is written: what must be on the store before records up to an offset."""

    async def run(self) -> None:
        """Ship until told to stop; then what is sealed, and return."""
        loop = asyncio.get_running_loop()
        seals = self._journal.commits.seals
        async with asyncio.TaskGroup() as tasks:
            settling = tasks.create_task(self._settle())
            try:
                while True:
                    # Registered before looking: a seal in between is not missed.
                    self._waiting = future = seals.future(loop, _IDLE_S)
                    for partition in shipped_partitions(self._journal):
                        if self._next(partition) < partition.sealed.segments and partition not in self._workers:
                            self._workers[partition] = tasks.create_task(self._work(partition))
                    if self._stopping and not self._workers and not self._acknowledged:
                        return
                    await future
            finally:
                settling.cancel()

    def stop(self) -> None:
        """Ship what is sealed now, and end."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- one partition ------------------------------------------------------------------------------------

    async def _work(self, partition: Partition) -> None:
        """Bring all segments of a partition to the store: files ahead, manifest objects in order."""
        shipment = shipment_of(partition)
        starts = shipment.slots - shipment.settled_segments
        number = self._next(partition)
        ahead: deque[tuple[SegmentRow, asyncio.Task[None]]] = deque()
        try:
            await self._describe(partition.topic)
            while True:
                while number < partition.sealed.segments and len(ahead) < self._window:
                    row = self._manifest.row(partition, number)
                    ahead.append((row, asyncio.create_task(self._upload(partition, row))))
                    number += 1
                if not ahead:
                    return
                row, upload = ahead[0]
                await upload
                ahead.popleft()
                # Once more: a new version of the schema may have begun while this was at work.
                await self._describe(partition.topic)
                slot = row.number + starts
                body = documents.encode(segment_document(self._manifest, partition, row, slot))
                await self.before_settling(partition, row.end)
                await self._put(layout.manifest_key(partition.topic, partition.number, slot), Body.of(body))
                self._behind[partition] = row.number + 1
                self._acknowledged.append(_Acknowledged(partition, row, slot))
                self._news.set()
        finally:
            for _, upload in ahead:
                upload.cancel()
            await asyncio.gather(*(upload for _, upload in ahead), return_exceptions=True)
            del self._workers[partition]
            self._wake()

    def _next(self, partition: Partition) -> int:
        """The first segment whose manifest object was not sent."""
        return max(self._behind.get(partition, 0), shipment_of(partition).settled_segments)

    async def _upload(self, partition: Partition, row: SegmentRow) -> None:
        path = self._manifest.path(partition, row)
        key = layout.segment_key(partition.topic, partition.number, row.number, row.sha256)
        while row.state == LIVE and row.number >= partition.sealed.first_segment:
            await self._until_there(partition, row, path)
            try:
                async with self._room:
                    with spans.span(spans.SETTLE, _about(partition, row)):
                        await self._put(key, Body.file(path, row.size, row.sha256))
            except FileGone:
                continue  # retention took it (`allow_unsettled`), or somebody moved it away
            return
        if not row.size or not await self._is_there(key):  # it may have come here before retention took it
            await self._expire(partition)

    async def _until_there(self, partition: Partition, row: SegmentRow, path: Path) -> None:
        """A file that is not where it should be holds up its partition alone, with an alarm, until it is back."""

        async def look() -> None:
            if not path.exists() and row.number >= partition.sealed.first_segment:
                raise StoreRefused(
                    f"a segment's file is missing and cannot be shipped path={path}", cause="disk",
                    hint="put it back (holdfast reconcile looks for it); shipping of its partition goes on then",
                )  # fmt: skip

        await self._asking.until_answered(f"open {path.name}", look)

    async def _expire(self, partition: Partition) -> None:
        """Say that the partition begins later on the store, too."""
        document = gone_document(self._journal, partition)
        key = layout.expired_key(partition.topic, partition.number, document.upto)
        if not await self._is_there(key):
            await self._put(key, Body.of(documents.encode(document)))

    async def _is_there(self, key: str) -> bool:
        return await self._asking.until_answered(f"look for {key}", lambda: self._head(key)) is not None

    # -- in order -----------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Let segments count: one question to the fence for as many as the store has acknowledged."""
        while True:
            await self._news.wait()
            self._news.clear()
            count = len(self._acknowledged)
            if not count:
                continue
            await self._fence.check()
            for _ in range(count):
                partition, row, slot = self._acknowledged[0]
                self._marks.settle(partition, slot + 1, row.number + 1, row.end)
                self._counters.segments += 1
                logger.debug(
                    "settled a segment topic=%s partition=%d segment=%d", partition.topic, partition.number, row.number,
                    extra={"action": "settled", "topic": partition.topic, "partition": partition.number,
                           "segment": row.number, "records": row.rows, "bytes": row.size},
                )  # fmt: skip
                self._acknowledged.popleft()
                self.on_settled(partition, slot)
            self._wake()


def _about(partition: Partition, row: SegmentRow) -> dict[str, str | int]:
    return {
        "holdfast.topic": partition.topic, "holdfast.partition": partition.number, "holdfast.segment": row.number,
        "holdfast.bytes": row.size,
    }  # fmt: skip


async def _nothing(_partition: Partition, _end: int) -> None:
    pass
