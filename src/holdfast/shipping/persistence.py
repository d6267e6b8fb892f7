"""The shipper: one thread with one event loop that brings an open log to its store.

    introduce (is this root ours?) → wait for something to ship → claim the epoch → see what is there already
    → commit batches and segments, side by side, until told to stop → drain → write the marks down

A log opens, appends and closes while its store is away: nothing here is in the way of the journal, which is pulled from
and never asked to wait. What ends shipping for good is told once, loudly, and stays visible (`stats().shipping.ended`):
another process has taken over (appends are refused from then on), or the root holds what this log cannot have written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from threading import Event as ThreadEvent
from threading import Thread
from typing import Any

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Closed, Corrupt, HoldfastError, NotFound, Unavailable
from holdfast.journal import stored
from holdfast.journal.journal import Journal
from holdfast.journal.partition import Partition
from holdfast.segments.manifest import Manifest
from holdfast.settled import tail_walk
from holdfast.shipping import cost
from holdfast.shipping.escalation import Escalation
from holdfast.shipping.events import Subscribers, Subscription
from holdfast.shipping.fence import Fence
from holdfast.shipping.janitor import Janitor
from holdfast.shipping.marks import ShippedMarks, shipment_of
from holdfast.shipping.remote import CountedRemote, Remote
from holdfast.shipping.segment_lane import SegmentLane
from holdfast.shipping.settings import ShippingSettings
from holdfast.shipping.source import JournalSource
from holdfast.shipping.stats import Counters, ShippingStats
from holdfast.shipping.tail_lane import TailLane
from holdfast.shipping.topic_documents import TopicDocuments
from holdfast.shipping.uploading import Requests, Uploader
from holdfast.store import commit_batch, documents, layout
from holdfast.store.documents import AdoptedDocument
from holdfast.store.inheritance import Inherited, inherit
from holdfast.store.pool_state import PoolState
from holdfast.store.port import Body, Store

_NOTE_INTERVAL_S = 0.1
_SWEEP_AT_END_S = 2.0
_IDLE_S = 3600.0
_AT_ONCE, _BYTES_AT_ONCE = 1000, 8 * 2**20

logger = logging.getLogger("holdfast.shipping")


class Unshipped(msgspec.Struct, frozen=True):
    """Records of one partition that are durable here and not known to be on the store."""

    topic: str
    partition: int
    first: int
    records: int


class RolledBack(Corrupt):
    """The store knows more than this log: appends are refused, or offsets would be given away a second time."""


class Shipper:
    """Ships one open log."""

    def __init__(
        self,
        journal: Journal,
        manifest: Manifest,
        store: Store,
        remote: Callable[[], Remote],
        settings: ShippingSettings,
        clock: Clock,
        abort: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._manifest = manifest
        self._store = store
        self._make_remote = remote
        self._settings = settings
        self._clock = clock
        self.counters = Counters()
        self.subscribers = Subscribers(settings.events_max)
        self._escalation = Escalation(
            settings.escalation, lambda reason: journal.queue.hold("shipping", reason), abort
        )  # fmt: skip
        self._remote: CountedRemote | None = None
        self._lane: TailLane | None = None
        self._fence: Fence | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._contacted = ThreadEvent()
        self._is_claim_wanted = False
        self._harbour = journal.topics.harbour
        self._harbour.ships = True
        self._harbour.timeout = settings.shipped_timeout_ms / 1000
        self._thread = Thread(target=self._work, name="holdfast-shipper", daemon=True)

    def start(self, patience: float) -> None:
        """Begin; waits a moment for the store's first word, so that a root which is not ours is refused at once."""
        self._thread.start()
        self._contacted.wait(patience)
        if self._harbour.end is not None:
            raise self._harbour.end.again()

    # -- for everybody ------------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        """Events from now on."""
        return self.subscribers.subscribe()

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled."""
        wanted = {p: p.sealed.sealed_offset for p in self._journal.topics.by_id.values()}
        deadline = self._clock.monotonic() + timeout

        def is_settled() -> bool:
            return all(partition.settled >= end for partition, end in wanted.items())

        while not is_settled():
            if self._harbour.end is not None:
                raise self._harbour.end.again()
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise Unavailable(
                    f"not all that is sealed is on the store within {timeout:g} s store={self._store.url}",
                    hint="shipping goes on by itself; log.stats().shipping says what holds it up",
                )
            self._harbour.bell.sleep(lambda: is_settled() or self._harbour.end is not None, left)

    def claim(self, timeout: float) -> int:
        """Claim the store now, also if there is nothing to ship; the number, or 0 when that took too long."""
        self._is_claim_wanted = True
        if self._loop is not None:
            self._call(self._loop, self._journal.topics.bell.ring)
        fence = self._fence
        self._harbour.bell.sleep(lambda: fence is not None and fence.epoch > 0, timeout)
        return 0 if fence is None else fence.epoch

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable here and not known to be on the store; of a log that was taken over, what is stranded."""
        spans = []
        for partition in self._journal.topics.by_id.values():
            shipped, durable = partition.shipped, partition.durable
            if shipped < durable:
                spans.append(Unshipped(partition.topic, partition.number, shipped, durable - shipped))
        return tuple(sorted(spans, key=lambda span: (span.topic, span.partition)))

    def stats(self) -> ShippingStats:
        """Shipping at this moment."""
        counters = self.counters
        partitions = list(self._journal.topics.by_id.values())
        lag_bytes = counters.backlog_bytes + self._journal.commits.bytes - counters.acknowledged_bytes
        now = self._loop.time() if self._loop is not None else 0.0
        requests = counters.cost.requests if self._remote is None else self._remote.requests()
        return ShippingStats(
            store=self._store.url,
            epoch=0 if self._fence is None else self._fence.epoch,
            in_flight=counters.in_flight,
            batches_total=counters.batches,
            segments_total=counters.segments,
            objects_total=counters.objects,
            bytes_total=counters.bytes,
            put_seconds=counters.histogram(),
            resolved_total=counters.resolved,
            retries=counters.retries,
            lag_records=sum(p.durable - p.shipped for p in partitions),
            lag_bytes=max(0, lag_bytes) if any(p.shipped < p.durable for p in partitions) else 0,
            lag_seconds=0.0 if self._lane is None else self._lane.lag_seconds(now),
            unsettled_segments=sum(p.sealed.segments - shipment_of(p).settled_segments for p in partitions),
            pool=PoolState() if self._remote is None else self._remote.pool(),
            requests={kind: count for kind, count in requests.items() if count},
            dollars=cost.dollars(requests),
            events_subscribers=len(self.subscribers),
            alarm=self._escalation.state,
            last_error=counters.last_error,
            ended=None if self._harbour.end is None else self._harbour.end.message,
        )

    def close(self, timeout: float) -> None:
        """Ship what is there within the time, write the marks down, end the thread, say what is left."""
        loop, deadline = self._loop, self._clock.monotonic() + timeout
        if loop is not None and self._thread.is_alive():
            self._call(loop, self._stop.set)
            # Where the store is known to be away, waiting for it would be in vain.
            self._thread.join(min(timeout, 0.5) if self._escalation.state is not None else timeout)
            if self._thread.is_alive() and self._task is not None:
                self._call(loop, self._task.cancel)
            self._thread.join(max(2.0, deadline - self._clock.monotonic()))
        left = self.unshipped()
        if left and self._harbour.end is None:
            logger.warning(
                "closed with %d records that are not on the store yet; they are shipped after the next open",
                sum(span.records for span in left),
                extra={"action": "close_unshipped", "records": sum(span.records for span in left)},
            )
        self._harbour.finish(Closed("the log is closed"))
        self.subscribers.end(None)
        self._store.close()

    def _call(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has ended by itself
            pass

    def forget(self) -> None:
        """In a forked child: the thread and its connections are the parent's."""
        self._loop = self._task = None
        forked = Closed("this log was opened before a fork", reason="forked")
        self._harbour.finish(forked)
        # New ones: the lock of the old may have been held by a thread that is not here.
        self.subscribers = Subscribers(self._settings.events_max)
        self.subscribers.end(forked)

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        try:
            self._task = loop.create_task(self._main())
            loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass  # the time to drain is over
        except BaseException as error:
            self._end(_first(error))
        finally:
            self._contacted.set()
            _finish(loop, self._leave())

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, HoldfastError):
            reason = f"{type(error).__name__}: {error}"
            defect = Unavailable(f"shipping stopped: {reason}", hint="this is a defect in holdfast; reopen the log")
            defect.__cause__ = error
            logger.critical("shipping stopped: %s", reason, exc_info=error, extra={"action": "shipping_ended"})
            error = defect
        else:
            logger.critical("shipping ended: %s", error.message, extra={"action": "shipping_ended"})
        if isinstance(error, Closed | RolledBack):
            self._journal.queue.hold("fenced", error)
        self.counters.last_error = error.message
        self._harbour.finish(error)
        self.subscribers.end(error)

    async def _main(self) -> None:
        self._remote = remote = CountedRemote(self._make_remote(), self.counters.cost)
        requests = Requests(self._settings, self._escalation, self.counters, self._clock)
        fence = self._fence = Fence(
            self._journal.vault.log_id, self._journal.row.created_us, self._store, remote, requests, self._clock,
            _owner(self._journal),
        )  # fmt: skip
        uploader = Uploader(remote, requests, fence, self.counters)
        await remote.start()
        await fence.introduce()
        self._contacted.set()
        await self._until_work()
        if not self._stop.is_set() or self._has_work():
            await self._inherited(requests, fence)  # before the claim: whoever was rolled back overtakes nobody
            await fence.claim("open")
            self._harbour.bell.ring()
            await self._ship(fence, uploader, requests)

    async def _leave(self) -> None:
        """Close what `_main` opened; a task of its own, since `_main` may be cancelled at any moment, also twice."""
        if self._fence is not None:
            await self._fence.close()
        if self._remote is not None:
            await self._remote.close()

    def _has_work(self) -> bool:
        partitions = list(self._journal.topics.by_id.values())
        unsettled = any(shipment_of(p).settled_segments < p.sealed.segments for p in partitions)
        tail = self._settings.commit_batches and any(p.shipped < p.durable for p in partitions)
        return unsettled or tail or self._journal.topics.is_changed or self._is_claim_wanted

    async def _until_work(self) -> None:
        """Sleep until there is something to ship; a log that is only read never claims its store."""
        loop, commits = asyncio.get_running_loop(), self._journal.commits
        stopped = loop.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                waiting: set[asyncio.Future[None] | asyncio.Task[Any]] = {
                    commits.bell.future(loop, _IDLE_S), commits.seals.future(loop, _IDLE_S),
                    self._journal.topics.bell.future(loop, _IDLE_S), stopped,
                }  # fmt: skip
                commits.ask(0, 0)
                if self._has_work():
                    return
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    async def _ship(self, fence: Fence, uploader: Uploader, requests: Requests) -> None:
        settings, journal = self._settings, self._journal
        marks = ShippedMarks(journal)
        marks.claimed(fence.epoch)
        source = JournalSource(journal, settings)
        topics = TopicDocuments(journal, self._manifest, self._store, requests, uploader.put)
        log_id = journal.vault.log_id
        tail = self._lane = TailLane(
            log_id, source, uploader.put, topics.describe, fence, marks, self.subscribers, settings, self.counters
        )
        segments = SegmentLane(
            journal, self._manifest, uploader.put, topics.describe, fence, marks, settings, self.counters, requests
        )
        janitor = Janitor(
            journal, self._manifest, self._store, uploader.put, requests, fence, settings, self.counters, self._clock,
            tail.sent,
        )  # fmt: skip
        inherited = await self._inherited(requests, fence)
        with journal.backend.reading() as connection:
            self.counters.backlog_bytes = stored.bytes_after(connection, marks.shipped_seq) - journal.commits.bytes
        source.start(max(inherited.frontier, marks.shipped_seq))
        if inherited.frontier > marks.shipped_seq:
            tail.adopt(self._ends(inherited.frontier), source.unsettled(), inherited.frontier)
        janitor.inherit(inherited)
        await self._adopt(fence, uploader, inherited.frontier)

        def on_settled(partition: Partition, slot: int) -> None:
            tail.settled.set()
            janitor.on_settled(partition, slot)

        segments.on_settled = on_settled
        lanes: list[SegmentLane | TailLane] = [segments, tail] if settings.commit_batches else [segments]
        try:
            async with asyncio.TaskGroup() as tasks:
                working = [tasks.create_task(lane.run()) for lane in lanes]
                chores = [tasks.create_task(chore) for chore in (janitor.run(), topics.run(), _note(marks))]
                await self._stop.wait()
                for lane in lanes:
                    lane.stop()
                await asyncio.wait(working)
                for topic in list(journal.topics.partitions):
                    await topics.describe(topic)
                for chore in chores:
                    chore.cancel()
            await _tidy(janitor)
        finally:
            marks.note_now()

    async def _inherited(self, requests: Requests, fence: Fence) -> Inherited:
        """What earlier epochs brought to the store; more than there is here means that this log was rolled back."""
        loop = asyncio.get_running_loop()
        self.counters.cost.add("list")
        inherited = await requests.until_answered(
            "list the commit batches",
            lambda: loop.run_in_executor(None, lambda: inherit(self._store.list(layout.TAIL))),
        )
        is_ours = inherited.frontier <= self._journal.commits.last_seq and await requests.until_answered(
            "read the commit batches", lambda: loop.run_in_executor(None, self._is_ours, inherited)
        )
        if not is_ours:
            await fence.require_own()  # unless they are those of somebody who has taken over since
            raise RolledBack(
                "the store holds commits that this log does not know: it was rolled back, or made anew"
                f" last={self._journal.commits.last_seq} store={inherited.frontier}",
                path=self._store.url,
                hint="an old copy of the directory was put back? get the newest state with: holdfast restore",
            )
        return inherited

    def _is_ours(self, inherited: Inherited) -> bool:
        """Whether batches that the marks here do not know hold what this log holds under the same numbers."""
        shipping, topics = self._journal.topics.shipping, self._journal.topics
        assert shipping is not None
        unknown = [(key, name.last_seq) for key, name in inherited.batches if name.last_seq > shipping.shipped_seq]
        if not unknown:
            return True
        digests = self._digests(shipping.shipped_seq, inherited.frontier)
        for key, last_seq in unknown:
            try:
                batch = commit_batch.decode(self._store.get(key), key)
            except NotFound:
                continue  # settled, and removed since it was listed
            for entry in tail_walk.cut(batch, last_seq).entries:
                parts = topics.partitions.get(entry.topic, ())
                if entry.partition >= len(parts):
                    return False
                head = parts[entry.partition]
                # Of what was trimmed since only a partition's last entry is known.
                known = head.link if entry.first + entry.count == head.durable else entry.digest
                if digests.get(entry.seq, known) != entry.digest:
                    return False
        return True

    def _digests(self, after: int, upto: int) -> dict[int, bytes]:
        """Digests of the entries that the journal still has, by sequence number."""
        digests: dict[int, bytes] = {}
        more = True
        while more and after < upto:
            entries, more = self._journal.taken_after(after, _AT_ONCE, _BYTES_AT_ONCE)
            digests.update((entry.seq, entry.digest) for entry in entries)
            after = max(digests, default=after)
        return digests

    async def _adopt(self, fence: Fence, uploader: Uploader, seq: int) -> None:
        """Cut what an owner before us may still send: nobody will ever count it."""
        if fence.epoch == 1:
            return  # nobody was before us
        document = AdoptedDocument(log=self._journal.vault.log_id.hex(), epoch=fence.epoch, seq=seq)
        await uploader.put(layout.adopted_key(fence.epoch, seq), Body.of(documents.encode(document)))

    def _ends(self, seq: int) -> dict[Partition, int]:
        """Up to where partitions are in the batches that are there."""
        by_id = self._journal.topics.by_id
        with self._journal.backend.reading() as connection:
            ends = stored.ends_upto(connection, seq)
        return {by_id[partition]: end for partition, end in ends.items() if partition in by_id}


async def _note(marks: ShippedMarks) -> None:
    """Have the marks written down, a few times per second at most."""
    while True:
        marks.note()
        await marks.changed.wait()
        await asyncio.sleep(_NOTE_INTERVAL_S)


async def _tidy(janitor: Janitor) -> None:
    """One last sweep, if it does not take long."""
    try:
        await asyncio.wait_for(janitor.sweep(), _SWEEP_AT_END_S)
    except (TimeoutError, HoldfastError):
        pass  # the next owner tidies up


def _owner(journal: Journal) -> bytes:
    shipping = journal.topics.shipping
    assert shipping is not None
    return shipping.owner


def _first(error: BaseException) -> BaseException:
    """What went wrong first, out of a group."""
    while isinstance(error, BaseExceptionGroup):
        holdfast = error.subgroup(HoldfastError)
        error = (holdfast or error).exceptions[0]
    return error


def _finish(loop: asyncio.AbstractEventLoop, leave: Coroutine[Any, Any, None]) -> None:
    try:
        loop.run_until_complete(leave)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
