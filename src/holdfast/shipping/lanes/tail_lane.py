"""Commit batches: taken from the journal, sent as soon as the rule says so, acknowledged strictly in order.

    decide → take → send (many at once, each retried alone) → complete → all before it complete? → fence → mark

A batch that lacks entries, because they were trimmed before they were taken, is held back: until the files of the
segments that have them are on the store, and all commits that these have a part of. Then it names those segments. By
this one object all of it counts at once, and no commit by halves; what lies behind it is behind a hole until then.

The lane blocks when there is nothing to do: on the journal while nothing waits, on a reply at the limit of what may be
under way. A batch lets go of its bytes when the store has them, and its mark is published once, in order, after the
fence has said that nobody has taken over. Cancelling the lane abandons what it holds: nothing counts that was not
acknowledged, and the records are durable in the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from holdfast.journal.state.partition import Partition
from holdfast.root.objects import commit_batch
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import SegmentDocument
from holdfast.shipping.events import Event
from holdfast.shipping.lanes.batch_source import JournalSource, SourceBatch
from holdfast.shipping.lanes.batching import NEVER_SENT, BatchRule, SendBatch, WaitForCommits
from holdfast.shipping.lanes.ordering import BatchOrder, Stage
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.signals import until
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.telemetry import spans

logger = logging.getLogger("holdfast.shipping")

_IDLE_S = 3600.0
_UNACKNOWLEDGED_MAX = 4096
"""Batches that are sent and do not count yet. Those that the store has hold no bytes any more, but one that fails for
hours must not gather them without end.
"""
_NO_ROOM = 2**62
_GATHER_S = 0.005
"""How long completed batches gather for one question to the fence where many are under way: it costs like a PUT."""


class MarkPublisher(Protocol):
    """Where marks are published."""

    @property
    def acknowledged_seq(self) -> int:
        """Entries up to this one were acknowledged as shipped, by whichever claim."""

    def ship(self, ends: Mapping[Partition, int], seq: int) -> None:
        """Everything up to an entry is on the store."""


class SentBatch(NamedTuple):
    """A batch that is on the store: what its removal will depend on."""

    key: str
    last_seq: int
    ends: Mapping[Partition, int]


class _IncompleteBatch:
    """A batch that lacks entries, until what it needs is there."""

    def __init__(self, taken: SourceBatch) -> None:
        self.taken = taken
        self.needs: dict[Partition, int] = {}
        self.upto = 0
        self.add(taken)

    def add(self, taken: SourceBatch) -> None:
        """One more batch lacks entries, and counts only with this one: what it needs is needed here."""
        self.needs |= taken.needs
        self.upto = max(self.upto, taken.needs_upto)

    def counting(self) -> SourceBatch:
        """What comes to count with it."""
        ends = dict(self.taken.ends)
        for partition, end in self.needs.items():
            ends[partition] = max(ends.get(partition, 0), end)
        return self.taken._replace(entries=[], ends=ends, needs={})


class TailLane:
    """The way of commit batches to the store."""

    def __init__(
        self,
        context: ShippingContext,
        source: JournalSource,
        put: Callable[[str, Body], Awaitable[None]],
        describe: Callable[[str], Awaitable[None]],
        fence: Fence,
        marks: MarkPublisher,
    ) -> None:
        self._log_id = context.journal.log_id
        self._source = source
        self._put = put
        self._describe = describe
        self._fence = fence
        self._marks = marks
        self._subscribers = context.subscribers
        self._batching = BatchRule(context.settings)
        self._busy = max(2, context.settings.max_in_flight_requests // 2)
        """So many under way mean that much waits: then a question to the fence is worth gathering for."""
        self._in_flight_max = context.settings.max_in_flight_requests
        self._counters = context.counters
        self._ordering = BatchOrder()
        self._stages: dict[int, tuple[Stage[Body], SourceBatch]] = {}
        self.sent: deque[SentBatch] = deque()
        """Batches on the store, oldest first, until they are removed."""
        self._in_flight = 0
        self._last_sent = NEVER_SENT
        self._stopping = False
        self._waiting: asyncio.Future[None] | None = None
        self._completed = asyncio.Event()
        self.settled = asyncio.Event()
        """Set by the other lane when something was settled."""
        self._unaccepted: deque[tuple[int, SourceBatch]] = deque()
        """Batches that were not handed to a connection yet, or come behind one …"""
        self._handed: set[int] = set()
        """… and the places of those that were."""
        self._since: deque[float] = deque()
        """When each batch that does not count yet was taken."""
        self._pending_since = 0.0
        self._adopted: SourceBatch | None = None
        """What was on the store before; taken up by `run`, since nobody lets go of it where that never begins."""
        self._held: _IncompleteBatch | None = None
        """A batch that lacks entries, while commits are not sent that it needs."""
        self._due = 0
        """Batches that were held back, and go next."""
        self._sending: dict[int, int] = {}
        """The first commit of each batch under way, by its place."""
        self._moved = asyncio.Event()
        """Something was taken, or has arrived."""
        self.named: Callable[[Mapping[Partition, int]], Awaitable[tuple[SegmentDocument, ...]]] = _nothing_named
        """Segments up to these offsets that are not settled, once the store has their files."""
        self.is_overdue: Callable[[], bool] = lambda: False
        """Whether there are so many segments that they do not wait for their commits."""
        self.on_shipped: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Ship until stopped; then what is left, and return."""
        loop = asyncio.get_running_loop()
        try:
            if self._adopted is not None:
                self._begin_adopted(self._adopted)
            async with asyncio.TaskGroup() as tasks:
                acknowledging = tasks.create_task(self._acknowledge())
                try:
                    while not (self._stopping and self._is_idle()):
                        await self._step(loop, tasks)
                finally:
                    acknowledging.cancel()
        finally:
            self._abandon()

    def adopt(self, ends: Mapping[Partition, int], needs: Mapping[Partition, int], seq: int) -> None:
        """What an earlier epoch brought to the store counts, too: before the first batch of this one."""
        self._adopted = SourceBatch(seq + 1, seq, [], (), ends, needs, 0, 0)

    def _begin_adopted(self, taken: SourceBatch) -> None:
        place = self._ordering.begin()
        publish = partial(self._marks.ship, taken.ends, taken.last_seq)
        self._stages[place] = (Stage(Body.of(b""), publish, "what was there"), taken)
        self._ordering.complete(place)
        self._completed.set()

    def stop(self) -> None:
        """Send what is there without waiting for more, and end."""
        self._stopping = True
        self._wake()

    def lag_seconds(self, now: float) -> float:
        """Age of the oldest commit that does not count."""
        oldest = min([*list(self._since)[:1], *([self._pending_since] if self._pending_since else [])], default=now)
        return max(0.0, now - oldest)

    def _is_idle(self) -> bool:
        return not self._in_flight and not self._ordering.unacknowledged and not self._stages and not self._pending()[0]

    def _pending(self) -> tuple[int, int]:
        pending = self._source.pending()
        if not pending[0]:
            self._pending_since = 0.0
        elif not self._pending_since:
            self._pending_since = asyncio.get_running_loop().time()
        return pending

    async def _step(self, loop: asyncio.AbstractEventLoop, tasks: asyncio.TaskGroup) -> None:
        # Registered before looking: what comes in between is not missed.
        future = self._waiting
        if future is None or future.done():
            self._waiting = future = self._source.commits.signal.future(loop, _IDLE_S)
        commits, size = self._pending()
        # What a batch waits for that is held back must be sent, however many do not count yet.
        has_room = len(self._stages) < _UNACKNOWLEDGED_MAX or self._held is not None
        in_flight = self._in_flight + self._due if has_room else _NO_ROOM
        decision = self._batching.decide(loop.time(), commits, size, in_flight, self._last_sent)
        if isinstance(decision, SendBatch) or (self._stopping and commits and isinstance(decision, WaitForCommits)):
            self._send(loop, tasks)
            await asyncio.sleep(0)
            return
        if isinstance(decision, WaitForCommits):
            self._source.commits.ask(*self._source.wake_at(decision.commits, decision.bytes))
            if self._source.pending() != (commits, size):
                return  # something came before the writer knew what we wait for
        if self._stopping and self._is_idle():
            return
        timer = None
        if isinstance(decision, WaitForCommits) and decision.until is not None:
            timer = loop.call_at(decision.until, self._wake)
        await future
        if timer is not None:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _abandon(self) -> None:
        """Let go of batches that the store has and that never came to count."""
        for stage, _ in self._stages.values():
            if stage.outcome is None:
                stage.release("abandoned")
        self._stages.clear()

    # -- one batch ----------------------------------------------------------------------------------------

    def _send(self, loop: asyncio.AbstractEventLoop, tasks: asyncio.TaskGroup) -> None:
        since = self._pending_since or loop.time()
        taken = self._source.take()
        if taken is None:
            return
        self._moved.set()
        key = layout.batch_key(self._fence.epoch, taken.first_seq, taken.last_seq)
        place = self._ordering.begin()
        self._since.append(since)
        self._pending_since = 0.0
        self._last_sent = loop.time()
        if taken.needs and self._held is None:
            self._hold(tasks, place, key, taken)
            return
        if self._held is not None:
            self._held.add(taken)
        bare = taken._replace(entries=[], needs={})  # the bytes are in the body now
        stage = Stage(self._body(place, taken), lambda: self._publish(bare, key), key)
        self._stages[place] = (stage, bare)
        self._unaccepted.append((place, bare))
        self._begin(place, taken)
        tasks.create_task(self._ship(place, stage, key, bare))

    def _body(self, place: int, taken: SourceBatch, segments: tuple[SegmentDocument, ...] = ()) -> Body:
        loop = asyncio.get_running_loop()
        batch = CommitBatch(
            self._log_id,
            self._fence.epoch,
            taken.first_seq,
            taken.last_seq,
            taken.keys,
            taken.entries,
            self._marks.acknowledged_seq,
            segments,
        )
        return Body.of(commit_batch.encode(batch))._replace(handed=lambda: _call(loop, self._hand, place))

    def _begin(self, place: int, taken: SourceBatch) -> None:
        self._in_flight += 1
        self._sending[place] = taken.first_seq

    async def _ship(self, place: int, stage: Stage[Body], key: str, taken: SourceBatch) -> None:
        try:
            for topic in sorted(taken.topics):
                await self._describe(topic)
            with spans.span(spans.SHIP, _about(taken)):
                await self._put(key, stage.payload)
        except BaseException:
            self._give_up(place, stage)
            raise
        finally:
            self._in_flight -= 1
            self._wake()
        del self._sending[place]
        self._moved.set()
        self._hand(place)
        stage.sent()
        self._ordering.complete(place)
        self._completed.set()

    def _give_up(self, place: int, stage: Stage[Body]) -> None:
        self._ordering.abandon(place)
        self._stages.pop(place)
        stage.release("abandoned")

    # -- a batch that lacks entries -----------------------------------------------------------------------

    def _hold(self, tasks: asyncio.TaskGroup, place: int, key: str, taken: SourceBatch) -> None:
        self._held = held = _IncompleteBatch(taken)
        bare = taken._replace(entries=[], needs={})
        waiting = Stage(Body.of(b""), lambda: None, key)
        self._stages[place] = (waiting, bare)
        self._unaccepted.append((place, bare))
        tasks.create_task(self._ship_held(held, place, waiting, key))

    async def _ship_held(self, held: _IncompleteBatch, place: int, waiting: Stage[Body], key: str) -> None:
        """Send a batch once all that it needs is there but its own bytes."""
        try:
            await self._until_sent(held)
            self._held = None  # what lacks entries from now on is held back by itself
            segments = await self.named(held.needs)
            self._due += 1
            await until(self._moved, lambda: self._in_flight < self._in_flight_max)
            self._due -= 1
        except BaseException:
            self._give_up(place, waiting)
            raise
        waiting.release("abandoned")
        counting = held.counting()
        stage = Stage(self._body(place, held.taken, segments), lambda: self._publish(counting, key), key)
        self._stages[place] = (stage, counting)
        self._begin(place, counting)
        await self._ship(place, stage, key, counting)

    async def _until_sent(self, held: _IncompleteBatch) -> None:
        """Until every commit is on the store that those segments may have a part of, as far as it is in batches."""

        def is_sent() -> bool:
            if self.is_overdue():  # they settle one by one
                return True
            return self._source.taken_upto >= held.upto and all(n > held.upto for n in self._sending.values())

        await until(self._moved, is_sent)

    def _hand(self, place: int) -> None:
        """A batch was handed to a connection; that is published once, in order."""
        self._handed.add(place)
        while self._unaccepted and self._unaccepted[0][0] in self._handed:
            accepted, taken = self._unaccepted.popleft()
            self._handed.discard(accepted)
            self._tell("accepted", taken)
        if not self._unaccepted or place < self._unaccepted[0][0]:
            self._handed.discard(place)  # once more, by a retry

    # -- in order -----------------------------------------------------------------------------------------

    async def _acknowledge(self) -> None:
        """Let batches count, each after all before it: one question to the fence for as many as are complete."""
        while True:
            await self._completed.wait()
            if self._in_flight >= self._busy:
                await asyncio.sleep(_GATHER_S)
            self._completed.clear()
            places = self._ordering.acknowledge()
            if not places:
                continue
            stages = [self._stages[place] for place in places]
            try:
                await self._fence.check()
                for place, (stage, taken) in zip(places, stages, strict=True):
                    await until(self.settled, partial(_are_settled, taken.needs))
                    stage.release("acknowledged")
                    del self._stages[place]
            finally:
                for place, (stage, _) in zip(places, stages, strict=True):
                    if stage.outcome is None:
                        stage.release("abandoned")
                        self._stages.pop(place, None)
                self._wake()

    def _publish(self, taken: SourceBatch, key: str) -> None:
        self._since.popleft()
        self.sent.append(SentBatch(key, taken.last_seq, taken.ends))
        self._counters.batches += 1
        self._counters.acknowledged_bytes += taken.size
        self._marks.ship(taken.ends, taken.last_seq)
        self.on_shipped()
        self._tell("shipped", taken)
        logger.debug(
            "shipped %d records first_seq=%d last_seq=%d",
            taken.records,
            taken.first_seq,
            taken.last_seq,
            extra={
                "action": "shipped",
                "records": taken.records,
                "bytes": taken.size,
                "first_seq": taken.first_seq,
                "last_seq": taken.last_seq,
            },
        )

    def _tell(self, kind: str, taken: SourceBatch) -> None:
        event = Event(kind, taken.first_seq, taken.last_seq, taken.records, taken.size)  # type: ignore[arg-type]
        self._subscribers.publish(event)


async def _nothing_named(_needs: Mapping[Partition, int]) -> tuple[SegmentDocument, ...]:
    return ()


def _about(taken: SourceBatch) -> dict[str, int]:
    return {
        "holdfast.records": taken.records,
        "holdfast.bytes": taken.size,
        "holdfast.first_seq": taken.first_seq,
        "holdfast.last_seq": taken.last_seq,
    }


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[int], None], place: int) -> None:
    """From whatever thread carries the bytes; the loop may have ended meanwhile."""
    try:
        loop.call_soon_threadsafe(call, place)
    except RuntimeError:
        pass


def _are_settled(needs: Mapping[Partition, int]) -> bool:
    return all(partition.settled >= end for partition, end in needs.items())
