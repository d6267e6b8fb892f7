"""Sealed segments: their files as they are, then their manifest objects, in order per partition.

    file (several at once) → its commits are shipped? → idempotency keys → manifest object → fence → mark

A segment does not get ahead of its commits: its manifest object is written when all of them are on the store, in whole
(`tail_lane`). Until then nobody sees more than its file. What has no commits that are still to come is `free` of that.
And readers do not wait forever: where very many segments would have to wait, because commits cannot be sent, or are
made faster than they are sent, the oldest settle all the same (docs/decisions/0035-whole-commits.md).

A file's bytes and name were fixed when it was sealed, and a manifest object says only what its row says: a restart
sends the same again, and *already exists* with the same bytes is an answer like any other. Segments that retention
removed here before they could be shipped (the store came later) get their manifest objects without a file, and an
`expired` object first, so that nobody looks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument
from holdfast.segments.manifest.manifest_documents import gone_document, segment_document
from holdfast.shipping.lanes.uploading import FileGone
from holdfast.shipping.ownership.fence import Fence, RepeatedRequests
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.shipping.shipping_marks import ShippedMarks, shipment_of, shipped_partitions
from holdfast.signals import until
from holdfast.store import layout
from holdfast.store.port import Body, StoreRefused
from holdfast.telemetry import spans

logger = logging.getLogger("holdfast.shipping")

_SEGMENTS_IN_FLIGHT = 4
_IDLE_S = 3600.0

Put = Callable[[str, Body], Awaitable[None]]


WAITING_MAX = 1024
"""So many segments of all partitions may wait for their commits. A batch can name them all."""


class _ShippedManifest(NamedTuple):
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
        asking: RepeatedRequests,
        head: Callable[[str], Awaitable[object | None]],
    ) -> None:
        self._journal = context.journal
        self._manifest = context.manifest
        self._put = put
        self._describe = describe
        self._fence = fence
        self._marks = marks
        self._window = _SEGMENTS_IN_FLIGHT
        self._room = asyncio.Semaphore(self._window)
        self._counters = context.counters
        self._asking = asking
        self._head = head
        self._uploading: dict[Partition, asyncio.Task[None]] = {}
        self._listing: dict[Partition, asyncio.Task[None]] = {}
        self._files: dict[Partition, int] = {}
        """Behind the last segment whose file is there, with those before it."""
        self._arrived = asyncio.Event()
        self.shipped = asyncio.Event()
        """Set by the other lane when something was shipped."""
        self.settled = asyncio.Event()
        self._has_batches = context.settings.commit_batches
        self._missing: set[Partition] = set()
        """Partitions that lack a file: nothing can name them, and they hold up nobody else."""
        self.free: dict[Partition, int] = {}
        """Up to where segments wait for no commits."""
        self.is_overdue = False
        """More segments are not settled than may wait for their commits."""
        self._behind: dict[Partition, int] = {}
        """Behind the last segment whose manifest object was sent."""
        self._acknowledged: deque[_ShippedManifest] = deque()
        self._news = asyncio.Event()
        self._stopping = False
        self._waiting: asyncio.Future[None] | None = None
        self.on_settled: Callable[[Partition, int], None] = lambda partition, slot: None
        self.before_settling: Callable[[Partition, int], Awaitable[None]] = _nothing
        """Awaited before a manifest object is written: what must be on the store before records up to an offset."""

    async def run(self) -> None:
        """Ship until stopped; then what is sealed, and return."""
        loop = asyncio.get_running_loop()
        seals = self._journal.commits.seals
        async with asyncio.TaskGroup() as tasks:
            settling = tasks.create_task(self._settle())
            try:
                while True:
                    # Registered before looking: a seal in between is not missed.
                    self._waiting = future = seals.future(loop, _IDLE_S)
                    unsettled = 0
                    for partition in shipped_partitions(self._journal):
                        unsettled += partition.sealed.segments - self._next(partition)
                        if self._next_file(partition) < partition.sealed.segments and partition not in self._uploading:
                            self._uploading[partition] = tasks.create_task(self._upload_all(partition))
                        if self._next(partition) < self._next_file(partition) and partition not in self._listing:
                            self._listing[partition] = tasks.create_task(self._list(partition))
                    self._note_overdue(unsettled > WAITING_MAX)
                    if self._stopping and not (self._uploading or self._listing or self._acknowledged):
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

    def _note_overdue(self, is_overdue: bool) -> None:
        self.is_overdue = is_overdue
        if is_overdue:
            self._arrived.set()
            self.shipped.set()

    async def named(self, needs: Mapping[Partition, int]) -> tuple[SegmentDocument, ...]:
        """What the manifest objects of segments up to these offsets will say, once their files are there."""
        are_there = partial(self._are_there, needs)
        await until(self._arrived, lambda: self.is_overdue or are_there())
        if self.is_overdue or not are_there():  # they settle one by one; a restore meanwhile gets them like that
            self.free = {**self.free, **needs}
            self.shipped.set()
            await until(self.settled, lambda: all(p.settled >= end for p, end in needs.items()))
        return tuple(document for partition, end in needs.items() for document in self._documents(partition, end))

    def _are_there(self, needs: Mapping[Partition, int]) -> bool:
        """Whether the files of all segments up to these offsets are on the store."""
        files = ((self._next_file(partition), partition, end) for partition, end in needs.items())
        return all(count > 0 and self._manifest.row(partition, count - 1).end >= end for count, partition, end in files)

    def _documents(self, partition: Partition, end: int) -> Iterator[SegmentDocument]:
        """Of the segments up to an offset that are not settled."""
        for number in range(shipment_of(partition).settled_segments, self._next_file(partition)):
            row = self._manifest.row(partition, number)
            if row.end <= end:
                slot = number + _starts(partition)
                yield documents.checked(segment_document(self._manifest, partition, row, slot))

    # -- one partition ------------------------------------------------------------------------------------

    async def _upload_all(self, partition: Partition) -> None:
        """Bring the files of all segments of a partition to the store."""
        number = self._next_file(partition)
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
                self._files[partition] = row.number + 1
                self._arrived.set()
                self._wake()
        finally:
            for _, upload in ahead:
                upload.cancel()
            await asyncio.gather(*(upload for _, upload in ahead), return_exceptions=True)
            del self._uploading[partition]
            self._wake()

    async def _list(self, partition: Partition) -> None:
        """Write the manifest objects of segments whose files and commits are there, in order."""
        try:
            while self._next(partition) < self._next_file(partition):
                row = self._manifest.row(partition, self._next(partition))
                await until(self.shipped, partial(self._is_whole, partition, row.end))
                # Each time: a new version of the schema may have begun while this was at work.
                await self._describe(partition.topic)
                slot = row.number + _starts(partition)
                body = documents.encode(segment_document(self._manifest, partition, row, slot))
                await self.before_settling(partition, row.end)
                await self._put(layout.manifest_key(partition.topic, partition.number, slot), Body.of(body))
                self._behind[partition] = row.number + 1
                self._acknowledged.append(_ShippedManifest(partition, row, slot))
                self._news.set()
        finally:
            del self._listing[partition]
            self._wake()

    def _is_whole(self, partition: Partition, end: int) -> bool:
        """Whether all commits of records below an offset are on the store."""
        is_free = not self._has_batches or bool(self._missing) or self.is_overdue
        return is_free or end <= max(partition.shipped, self.free.get(partition, 0))

    def _next_file(self, partition: Partition) -> int:
        """The first segment whose file was not sent."""
        return max(self._files.get(partition, 0), self._next(partition))

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
                continue  # retention took it (`allow_unsettled`), or it was moved away
            return
        if not row.size or not await self._is_there(key):  # it may have come here before retention took it
            await self._expire(partition)

    async def _until_there(self, partition: Partition, row: SegmentRow, path: Path) -> None:
        """A file that is not where it should be holds up its partition alone, with an alarm, until it is back."""

        async def look() -> None:
            self._missing.discard(partition)
            if not path.exists() and row.number >= partition.sealed.first_segment:
                self._missing.add(partition)
                self.shipped.set()
                raise StoreRefused(
                    f"a segment's file is missing and cannot be shipped path={path}",
                    cause="disk",
                    hint="put it back (holdfast reconcile looks for it); shipping of its partition then continues",
                )

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
                    "settled a segment topic=%s partition=%d segment=%d",
                    partition.topic,
                    partition.number,
                    row.number,
                    extra={
                        "action": "settled",
                        "topic": partition.topic,
                        "partition": partition.number,
                        "segment": row.number,
                        "records": row.rows,
                        "bytes": row.size,
                    },
                )
                self._acknowledged.popleft()
                self.settled.set()
                self.on_settled(partition, slot)
            self._wake()


def _about(partition: Partition, row: SegmentRow) -> dict[str, str | int]:
    return {
        "holdfast.topic": partition.topic,
        "holdfast.partition": partition.number,
        "holdfast.segment": row.number,
        "holdfast.bytes": row.size,
    }


def _starts(partition: Partition) -> int:
    """How many slots of a partition takeovers have."""
    shipment = shipment_of(partition)
    return shipment.slots - shipment.settled_segments


async def _nothing(_partition: Partition, _end: int) -> None:
    pass
