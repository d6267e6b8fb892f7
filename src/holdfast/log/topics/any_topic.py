"""What raw and typed topics have in common: waiting for what was queued, reading, following, and how far they got.

A kind of topic adds its own verbs for appending, and a `Shape`: how its items and Arrow columns are made.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from holdfast.arguments import flag, seconds, whole
from holdfast.caller import in_coroutine
from holdfast.errors import Invalid
from holdfast.journal.journal_port import JournalPort
from holdfast.journal.queue.receipts import Receipts
from holdfast.journal.queue.ticket import BatchTicket, ShippedTicket
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.following import Follower
from holdfast.log.topics.key_filter import Key, KeyFilter
from holdfast.log.topics.later_reading import LaterReading
from holdfast.log.topics.reading import ALWAYS, Reading, Shape, Span, Times
from holdfast.log.topics.topic_partitions import Partitions, PreparedBatch
from holdfast.log.topics.validation import Validation, time_of
from holdfast.log.topics.watching import Watch
from holdfast.model.record import Durability, Marks, Watermark, moment_of
from holdfast.process_lifetime import holding

if TYPE_CHECKING:
    from holdfast.log.consumers.consumer import Consumer

Item = TypeVar("Item")
Given = TypeVar("Given")
Kept = TypeVar("Kept", bound="AnyTopic[Any]")


class _AppendTicket(Protocol[Given]):
    """The ticket of a record or of a batch."""

    def result(self, timeout: float | None = None) -> Given: ...
    def shipped(self, timeout: float | None = None) -> Given: ...
    @property
    def when_shipped(self) -> ShippedTicket[Given]: ...
    def __await__(self) -> Generator[Any, None, Given]: ...


class AnyTopic(Generic[Item]):
    """One topic of an open log."""

    __slots__ = ("__dict__", "__weakref__", "_keeper")
    _keeper: object

    def __init__(
        self,
        name: str,
        journal: JournalPort,
        partitions: Partitions,
        checks: Validation,
        shape: Callable[[], Shape[Item]],
    ) -> None:
        self.name = name
        self._partitions = partitions
        self._source = partitions.source
        self._journal = journal
        self._shape = shape
        self._now = journal.clock.now_us
        self._monotonic = journal.clock.monotonic
        self._wait_seconds = journal.settings.ack_timeout_ms / 1000
        self._checks = checks
        self.open_consumer: Callable[..., Consumer[Item]] | None = None
        """How the log opens a consumer of it."""

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return len(self._partitions.parts)

    # -- waiting for what was queued ----------------------------------------------------------------------

    def _begin(self, verb: str, timeout: float | None, durability: Durability) -> tuple[float, float]:
        """Before a verb that blocks queues anything: how many seconds it has, and when they end. Without a time-out of
        the caller's, waiting for the store has its own, after that.
        """
        if in_coroutine():
            warnings.warn(
                f"{verb}() blocks the event loop; use: await topic.{verb}_async(…)", RuntimeWarning, stacklevel=3
            )
        if durability != "durable":
            self._journal.check_durability(durability)
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        return wait_seconds, self._monotonic() + wait_seconds

    def _wait(
        self, ticket: _AppendTicket[Given], deadline: float, durability: Durability, timeout: float | None = None
    ) -> Given:
        """Wait until it is durable, or shipped; waiting for room has used some of the time."""
        given = ticket.result(max(0.0, deadline - self._monotonic()))
        if durability == "durable":
            return given
        return ticket.shipped(None if timeout is None else max(0.0, deadline - self._monotonic()))

    async def _wait_async(
        self, put: Callable[[float], _AppendTicket[Given]], timeout: float | None, durability: Durability
    ) -> Given:
        """Queue and wait without blocking the event loop; `put` is called again until there is room."""
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        if durability == "durable":
            return await (await self._journal.when_room(put, wait_seconds))
        self._journal.check_durability(durability)
        deadline = self._monotonic() + wait_seconds
        ticket = await self._journal.when_room(put, wait_seconds)
        return await ticket.when_shipped.within(None if timeout is None else max(0.0, deadline - self._monotonic()))

    def _submit_batch(self, batch: PreparedBatch, wait_seconds: float) -> BatchTicket:
        unit = self._journal.put_runs(batch.parts, batch.size, wait_seconds)
        return BatchTicket(unit, Receipts(unit.runs(), batch.positions, batch.starts), wait_seconds)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is durable; raises if anything accepted was not stored."""
        self._journal.flush(None if timeout is None else seconds(timeout))

    # -- reading ------------------------------------------------------------------------------------------

    def read(
        self,
        start: int | str | None = None,
        end: int | str | None = None,
        limit: int | None = None,
        reverse: bool = False,
        *,
        partition: int | Iterable[int] | None = None,
        since: int | datetime | str | None = None,
        until: int | datetime | str | None = None,
        bytes_max: int | None = None,
        key: Key | None = None,
    ) -> Reading[Item]:
        """Durable records with offsets from `start` up to, not including, `end`, in order of offsets.

        Begins with the first record that is left and ends with the last that is durable now; negative offsets count
        from there: `start=-10` is the last ten. `since` and `until` keep only records with such times, both ends
        included: a datetime, "2026-01-31T12:00:00Z", "2026-01-31" (in UTC), or "10m" for that long ago; times need not
        be in order. `limit` bounds the number of records, `bytes_max` their size (the
        first is given in any case). A topic with several partitions is read one partition after the other, unless
        one or some are named. A `position` of an earlier reading may stand for `start`, or for `end` backwards.

        `key` gives only records with this key, found by the indexes that sealing writes: of segments without it
        hardly anything is read. They are looked for in the key's own partition, unless others are named.
        """
        return self._read(self._shape, start, end, limit, reverse, partition, since, until, bytes_max, key)

    def latest(self, key: Key, *, partition: int | None = None) -> Item | None:
        """The newest durable record with this key, or None if none is left.

        It is looked for in the key's own partition, unless one is named: from the newest record backwards, through
        the tail and then segment by segment, by the indexes that sealing writes.
        """
        return next(iter(self.read(reverse=True, partition=partition, key=key)), None)

    def _wanted(self, key: object) -> KeyFilter:
        """A key that is looked for; Invalid if the topic can have none like it."""
        raise NotImplementedError

    def _read(
        self,
        shape: Callable[[], Shape[Item]],
        start: int | str | None,
        end: int | str | None,
        limit: int | None,
        reverse: bool,
        partition: int | Iterable[int] | None,
        since: int | datetime | str | None,
        until: int | datetime | str | None,
        bytes_max: int | None,
        key: Key | None = None,
    ) -> Reading[Item]:
        for name, value in (("limit", limit), ("bytes_max", bytes_max)):
            if value is not None and whole(value, name) < 0:
                raise Invalid(f"{name} must not be negative, got {value}", hint="leave it out to read everything")
        flag(reverse, "reverse")
        partition = _once(partition)

        def plan() -> Reading[Item]:
            return self._planned(shape, start, end, limit, reverse, partition, since, until, bytes_max, key)

        if self._source.is_far and in_coroutine():
            plan()  # by what is known already: what is wrong with the question is said at once
            return LaterReading(self._source.refresh, plan)
        self._source.refresh()
        return plan()

    def _planned(
        self,
        shape: Callable[[], Shape[Item]],
        start: int | str | None,
        end: int | str | None,
        limit: int | None,
        reverse: bool,
        partition: int | Iterable[int] | None,
        since: int | datetime | str | None,
        until: int | datetime | str | None,
        bytes_max: int | None,
        key: Key | None,
    ) -> Reading[Item]:
        """By what is known here of the topic."""
        times = Times(self._bound(since), self._bound(until))
        wanted = None if key is None else self._wanted(key)
        if wanted is not None and partition is None:
            partition = self._partitions.choose(None, wanted.encoded).number
        spans = self._partitions.spans(partition, start, end)
        # The least advanced first: a reader that pages through a busy topic gets to every partition.
        spans.sort(
            key=lambda span: (span.end if reverse else span.start, span.stream.partition.number), reverse=reverse
        )
        # The shape comes last: no row of these spans can have a later version of the schema than there is now.
        most = None if limit is None else min(limit, sys.maxsize)
        return holding(Reading(shape(), spans, times, reverse, most, bytes_max, wanted), self)

    def _bound(self, time: int | datetime | str | None) -> int | None:
        """A bound of times, as it is compared."""
        return None if time is None else time_of(moment_of(time, self._now()) if isinstance(time, str) else time)

    def follow(self, start: int | str | None = None, *, partition: int | Iterable[int] | None = None) -> Follower[Item]:
        """Records as they become durable, forever: `for record in topic.follow()` or `async for`.

        Begins at offset `start` of every partition, or at the `position` of a reading (default: with the next
        record). Order holds within each partition. Ends when the log is closed.
        """
        partition = _once(partition)
        return Follower(self._journal, self._source, lambda: self._partitions.positions(partition, start), self._items)

    def _items(self, part: Partition, first: int, end: int) -> Iterator[Item]:
        return self._shape().items(Span(self._source.stream(part), first, end), ALWAYS, False)

    def consumer(
        self,
        name: str,
        *,
        start: int | str | datetime = "first",
        partitions: int | Iterable[int] | None = None,
        on_expired: Literal["fail", "first"] = "fail",
        patience: float = 30.0,
    ) -> Consumer[Item]:
        """A named reader whose position lives in the log: `for record in topic.consumer("billing")`.

        It goes on behind what a consumer of this name has committed. A new one begins at `start`: 'first', 'next', an
        offset, a position, or a time. Several consumers of one name share the partitions, unless they name them;
        one that wants a partition waits at most `patience` seconds until its holder commits. Where retention has
        removed what comes next it raises Expired, or goes on with what is left (`on_expired="first"`).
        """
        if self.open_consumer is None:
            raise Invalid("this topic has no consumers", hint="get it from an open log: log.topic(name)")
        reader = (self.name, self._partitions.parts, self._items, self._since, self._source)
        return holding(self.open_consumer(reader, name, start, partitions, on_expired, patience), self)

    def _since(self, partition: int, time: datetime) -> Reading[Item]:
        return self.read(partition=partition, since=time, limit=1)

    # -- how far it got -----------------------------------------------------------------------------------

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition got."""
        return self._source.marks()

    def watermark(self, partition: int = 0) -> Watermark:
        """How far a partition is sealed: its newest segment (None before the first) and the offset behind it."""
        return self.watch(partition).value

    def watch(self, partition: int = 0) -> Watch:
        """The watermark as it moves: `.value` at any time, `for` or `async for` each change."""
        return Watch(self._journal, self._source, self._partitions.explicit(partition))

    def wait_sealed(self, offset: int, timeout: float, *, partition: int = 0) -> Watermark:
        """Wait until everything below `offset` is sealed; raises Unavailable when it is not in time."""
        return self.watch(partition).wait(offset, timeout)


def _once(partition: int | Iterable[int] | None) -> int | Iterable[int] | None:
    """Partitions that may be an iterator, which gives them once; what is none of them is refused later."""
    return tuple(partition) if isinstance(partition, Iterable) and not isinstance(partition, str | bytes) else partition


def keeping(topic: Kept, log: object) -> Kept:
    """The same topic, as a caller has it that got it from this log: as long as it is there, the log stays open.

    The log itself keeps its topics without that: else it would keep itself, and never end when it is forgotten.
    """
    handle = type(topic).__new__(type(topic))
    # Attribute by attribute: to look into a dictionary that two objects share would cost every append a quarter more.
    for name, value in vars(topic).items():
        setattr(handle, name, value)
    handle._keeper = log
    return handle
