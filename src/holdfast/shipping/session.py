"""One stretch of shipping under one claim: from the first look at the store until it is stopped, fenced, or forgotten.

    introduce → wait for something to ship → what is there, and what is not any more → claim → put back what is missing
    → lanes and chores, side by side, until it has to stop

A rebuild follows the same steps, but checks everything, continues where the store has forgotten this log, and gives up
what is lost if that is allowed. Nothing is written before that is known. Belongs to the shipper's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import Corrupt, HoldfastError
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import ShipmentRow
from holdfast.root.objects import documents
from holdfast.root.objects.documents import AdoptedDocument, EpochDocument, SegmentDocument
from holdfast.root.tail_listing import TailListing
from holdfast.shipping.cleanup.janitor import Janitor
from holdfast.shipping.events import Event
from holdfast.shipping.lanes.batch_source import JournalSource
from holdfast.shipping.lanes.frontier_lane import FrontierLane
from holdfast.shipping.lanes.key_cover import KeyCover
from holdfast.shipping.lanes.segment_lane import SegmentLane
from holdfast.shipping.lanes.tail_lane import TailLane
from holdfast.shipping.lanes.topic_documents import TopicDocuments
from holdfast.shipping.lanes.uploading import Requests, Uploader
from holdfast.shipping.ownership.earlier_epochs import EarlierEpochs
from holdfast.shipping.ownership.fence import Claimant, Fence
from holdfast.shipping.ownership.taken_topics import TakenTopics
from holdfast.shipping.refill.partition_gaps import PartitionGaps
from holdfast.shipping.refill.rebuild_order import RebuildOrder, RebuildOrdered
from holdfast.shipping.refill.store_loss import StoreForgot, StoreRebuildReport
from holdfast.shipping.refill.store_refill import StoreRefill, lost_spans
from holdfast.shipping.remote_store import Remote
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.shipping.shipping_marks import ShippedMarks, say, shipment_of, shipped_partitions, shipping_of
from holdfast.store import layout
from holdfast.store.port import Body

_NOTE_INTERVAL_S = 0.1
_SWEEP_AT_END_S = 2.0
_IDLE_S = 3600.0
_LOOK_TWICE_S = 0.5
_NOTHING = TailListing(0, 0, (), (), ())

logger = logging.getLogger("holdfast.shipping")


class ShipperCalls:
    """What the shipper's thread is asked to do by others."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.ordered = asyncio.Event()
        """An order to rebuild the store is waiting."""
        self.is_claim_wanted = False
        self.is_suspicious = False
        """The store has lost something that the first look at it did not show."""

    async def any(self) -> None:
        """Return when one of them comes."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.stop, self.ordered)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def obey(self) -> None:
        """Forever; raises RebuildOrdered when an order comes."""
        await self.ordered.wait()
        raise RebuildOrdered


class ShippingSession:
    """One log and its store, for one claim."""

    def __init__(self, context: ShippingContext, remote: Remote, requests: Requests, calls: ShipperCalls) -> None:
        self._context = context
        journal, _, store, settings, clock, counters, _ = context
        self._journal = journal
        self._store = store
        self._requests = requests
        self._counters = counters
        self._calls = calls
        shipping = shipping_of(journal)
        claimant = Claimant(journal.log_id, journal.created_us, shipping.owner, shipping.epoch)
        self.fence = Fence(claimant, store, remote, requests, clock, settings.claim_check_interval_ms / 1000)
        self.lane: TailLane | None = None
        self.frontier: FrontierLane | None = None
        self._remote = remote
        self._uploader = Uploader(remote, requests, self.fence, counters, store)
        self._earlier = EarlierEpochs(journal, store, requests, counters)
        self._refill = StoreRefill(context, requests, remote, self._uploader.put)
        self.taken = TakenTopics(journal, store, requests, requests.refused)

    async def run(self, remembered: Callable[[], None], *, is_doubtful: bool) -> None:
        """Ship; `remembered` is called once the store turned out to be what it was."""
        await self.fence.introduce()
        if is_doubtful:
            await self.taken.find()  # before anything of this log is looked for there
            self._refill.require_no_loss(await self._refill.find(thorough=self._calls.is_suspicious))
        remembered()
        await self.taken.find()
        await self._until_work()
        if self._calls.stop.is_set() and not self._has_work():
            return
        await self._earlier.inherited(self.fence)  # before the claim: a log that was rolled back overtakes nobody
        gaps = await self._refill.find(thorough=self._calls.is_suspicious)
        self._refill.require_no_loss(gaps)
        self._calls.is_suspicious = False
        await self._ship(await self.fence.claim("open"), gaps)

    async def rebuild(self, order: RebuildOrder, remembered: Callable[[], None]) -> None:
        """Bring back what the store has lost, and ship on."""
        is_missing = await self.fence.introduce(rebuild=True)
        await self.taken.find()
        if not self.fence.is_forgotten:
            await self._earlier.inherited(self.fence)
        gaps = await self._find_all()
        if not order.accept_loss:
            self._refill.require_no_loss(gaps)
        fallen = 0
        if self.fence.is_forgotten:
            # Before the claim, or a process that is killed in between would take what it finds there for its own.
            marks = ShippedMarks(self._journal)
            fallen = self._fall(marks, _NOTHING, gaps)
            await marks.noted()
        if is_missing:
            await self.fence.introduce_anew(replace=True)
        claim = await self.fence.claim("open", rebuild=True)
        remembered()

        def answer(again: int) -> None:
            records = fallen + again
            files = sum(len(gap.files) + gap.behind for gap in gaps)
            manifests = sum(len(gap.objects) + gap.slots_behind for gap in gaps)
            lost = lost_spans(gaps)
            order.finish(StoreRebuildReport(self._store.url, claim.epoch, is_missing, manifests, files, records, lost))

        await self._ship(claim, gaps, answer)

    async def _find_all(self) -> list[PartitionGaps]:
        try:
            return await self._refill.find(thorough=True, strict=True, anew=self.fence.is_forgotten)
        except Corrupt as damage:  # not the end of shipping: this needs a person, who can try again
            raise StoreForgot(damage.message, hint=damage.hint) from damage

    # -- something to ship --------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        partitions = shipped_partitions(self._journal)
        unsettled = any(shipment_of(p).settled_segments < p.sealed.segments for p in partitions)
        tail = self._context.settings.commit_batches and any(p.shipped < p.durable for p in partitions)
        is_wanted = self._calls.is_claim_wanted or self._calls.is_suspicious
        return unsettled or tail or is_wanted or self._journal.has_changed_topics

    async def _until_work(self) -> None:
        """Sleep until there is something to ship; a log that is only read never claims its store."""
        loop, commits = asyncio.get_running_loop(), self._journal.commits
        called = loop.create_task(self._calls.any())
        try:
            while not self._calls.stop.is_set():
                waiting: set[asyncio.Future[None] | asyncio.Task[Any]] = {
                    commits.signal.future(loop, _IDLE_S),
                    commits.seals.future(loop, _IDLE_S),
                    self._journal.topic_changes.future(loop, _IDLE_S),
                    called,
                }
                commits.ask(0, 0)
                if self._has_work():
                    return
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._calls.ordered.is_set():
                    raise RebuildOrdered
        finally:
            called.cancel()

    # -- at work ------------------------------------------------------------------------------------------

    async def _ship(
        self, claim: EpochDocument, gaps: Sequence[PartitionGaps], answer: Callable[[int], None] = lambda records: None
    ) -> None:
        context, fence, put = self._context, self.fence, self._uploader.put
        journal, settings = context.journal, context.settings
        marks = ShippedMarks(journal)
        await marks.claimed(claim.epoch)
        say(journal, ended="", alarm=self.taken.alarm, last_error="")
        journal.shipping_state.signal.notify()
        remembered = journal.remembered_keys()
        source = JournalSource(journal, settings, remembered)
        keys = KeyCover(journal, remembered, put, fence, lambda: marks.shipped_seq)
        topics = TopicDocuments(
            journal, context.manifest, self._store, self._requests, put, self._uploader.remove_forged
        )
        tail = self.lane = TailLane(context, source, put, topics.describe, fence, marks)
        segments = SegmentLane(context, put, topics.describe, fence, marks, self._requests, self._remote.head)
        janitor = Janitor(context, put, self._requests, fence, tail.sent, keys)
        frontier = self.frontier = FrontierLane(
            journal, self._store, self._requests, put, fence, marks, self._counters, keys
        )
        await self._refill.refill(gaps)
        # Where the claims are lost, another writer may have written what exists: all of the tail is sent again.
        inherited = _NOTHING if fence.is_forgotten else await self._earlier.inherited(fence)
        shipped = inherited.frontier if fence.is_forgotten else marks.shipped_seq
        records = self._fall(marks, inherited, gaps)
        self._counters.backlog_bytes = journal.bytes_after(marks.shipped_seq) - journal.commits.bytes
        keys.inherit(inherited, inherited.frontier)
        self._begin(source, tail, segments, inherited.frontier, is_lost=bool(gaps))
        janitor.inherit(inherited)
        # What the store acknowledged before counts, also behind a hole that is about to be filled.
        await self._adopt(max(shipped, inherited.frontier))
        await frontier.begin()
        answer(records)

        def on_settled(partition: Partition, slot: int) -> None:
            tail.settled.set()
            janitor.on_settled(partition, slot)
            frontier.note()

        segments.on_settled, segments.before_settling = on_settled, keys.before_segment

        async def named(needs: Mapping[Partition, int]) -> tuple[SegmentDocument, ...]:
            found = await segments.named(needs)
            for partition, end in needs.items():
                await keys.before_segment(partition, end)
            return found

        tail.named, tail.on_shipped, tail.is_overdue = named, segments.shipped.set, lambda: segments.is_overdue
        lanes: list[SegmentLane | TailLane] = [segments, tail] if settings.commit_batches else [segments]
        chores = (
            janitor.run(),
            topics.run(),
            frontier.run(),
            _note(marks),
            self._look_behind(),
            fence.watch(settings.heartbeat_interval_ms / 1000),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                working = [tasks.create_task(lane.run()) for lane in lanes]
                running = [tasks.create_task(chore) for chore in (*chores, self._calls.obey())]
                await self._calls.stop.wait()
                for lane, task in reversed([*zip(lanes, working, strict=True)]):  # batches may wait for segments
                    lane.stop()
                    await asyncio.wait([task])
                for topic in list(journal.topics):
                    await topics.describe(topic)
                for chore in running:
                    chore.cancel()
                await frontier.write()
            await _tidy(janitor, frontier)
        finally:
            marks.note_now()

    def _begin(
        self, source: JournalSource, tail: TailLane, segments: SegmentLane, frontier: int, *, is_lost: bool
    ) -> None:
        """Where the lanes begin, given up to where commits are on the store.

        Segments that nobody acknowledged may have a part of commits behind that: the first batch names them. Without a
        batch, there are no such commits.
        """
        unsettled, ends = source.unsettled(), self._journal.ends_upto(frontier)
        is_known = all(end <= max(p.shipped, ends.get(p, 0)) for p, end in unsettled.items()) and not is_lost
        if frontier >= self._journal.commits.last_seq:
            segments.free = unsettled
        elif not is_known:
            source.start(frontier, ends)
            return
        source.start(frontier)
        if frontier > shipping_of(self._journal).shipped_seq or is_lost:
            tail.adopt(ends, {} if is_known else unsettled, frontier)

    async def _look_behind(self) -> None:
        """Once, beside everything else: is all there, by name, that lies behind the newest objects? Or begin anew."""
        if await self._refill.find(thorough=True):
            await asyncio.sleep(_LOOK_TWICE_S)  # a listing may lag
            if await self._refill.find(thorough=True):
                self._calls.is_suspicious = True
                raise RebuildOrdered

    def _fall(self, marks: ShippedMarks, inherited: TailListing, gaps: Sequence[PartitionGaps]) -> int:
        """Where the store has lost something, the marks say what is there; returns how many records are sent again."""
        shipped, frontier = marks.shipped_seq, inherited.frontier
        if frontier >= shipped and not gaps:
            return 0
        rows = {partition: shipment_of(partition) for partition in self._journal.partitions.values()}
        before = sum(row.shipped_offset for row in rows.values())
        rows |= {gap.partition: gap.shipment for gap in gaps}
        if frontier < shipped:
            ends = self._journal.ends_upto(frontier)
            rows = {partition: _fallen(row, ends.get(partition, 0)) for partition, row in rows.items()}
        records = before - sum(row.shipped_offset for row in rows.values())
        marks.fall(frontier, [row for partition, row in rows.items() if row != shipment_of(partition)])
        self._counters.resent += records
        if frontier < shipped:
            logger.warning(
                "the store has lost commits %d to %d, which it had acknowledged; everything after them is sent again",
                frontier + 1,
                shipped,
                extra={"action": "tail_resent", "first_seq": frontier + 1, "last_seq": shipped, "records": records},
            )
        lost = (frontier + 1, shipped) if frontier < shipped else (0, 0)
        if records or any(lost):
            self._context.subscribers.publish(Event("resent", *lost, records, 0))
        return records

    async def _adopt(self, seq: int) -> None:
        """Cut what an owner before us may still send: nobody will ever count it."""
        if self.fence.epoch == 1:
            return  # nobody was before us
        document = AdoptedDocument(log=self._journal.log_id.hex(), epoch=self.fence.epoch, seq=seq)
        await self._uploader.put(layout.adopted_key(self.fence.epoch, seq), Body.of(documents.encode(document)))


def _fallen(row: ShipmentRow, end: int) -> ShipmentRow:
    """A partition whose commit batches end there."""
    return row._replace(shipped_offset=min(row.shipped_offset, max(row.settled_offset, end)))


async def _note(marks: ShippedMarks) -> None:
    """Have the marks written down, a few times per second at most."""
    while True:
        marks.note()
        await marks.changed.wait()
        await asyncio.sleep(_NOTE_INTERVAL_S)


async def _tidy(janitor: Janitor, frontier: FrontierLane) -> None:
    """One last sweep, if it does not take long, and which keys are in objects then."""
    try:
        await asyncio.wait_for(janitor.sweep(), _SWEEP_AT_END_S)
        await asyncio.wait_for(frontier.write(), _SWEEP_AT_END_S)
    except (TimeoutError, HoldfastError):
        pass  # the next owner tidies up
