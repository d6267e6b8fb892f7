"""A producer with sequence numbers of its own: each number is written once, however often it is sent.

    producer = log.producer("device-7")
    for number, reading in unsent(after=producer.last or 0):
        producer.append("readings", reading, sequence=number)

The log keeps, in the same commit as the records, which numbers it has and what it answered. So a producer that was
restarted, or that never heard an answer, sends again what it is not sure of, and gets the original receipts; `last`
says where to go on. Numbers follow each other without a gap: one that is missing is an error, not a hole.

Records without a key go to the producer's own partition, so that they stay in order; a number that is sent again goes
where it went. Threads may share a producer, but must send its numbers in order.

Durable when `append` returns, like any append. A number whose append fails was not written, and may be sent again;
those behind it are refused until it is. Sessions are not on the store: a log that was restored knows none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

import msgspec

from holdfast.arguments import seconds, whole
from holdfast.caller import in_coroutine
from holdfast.errors import Invalid, NotFound
from holdfast.journal.journal_port import JournalPort, Run, check_producer
from holdfast.journal.queue.forwarded import ForwardedRows, ForwardedUnit
from holdfast.log.ports import TopicsPort
from holdfast.log.producers.produced_ticket import NumberedBatch, ProducedTicket, all_of, only
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_arguments import TopicArguments
from holdfast.log.topics.topic_partitions import PreparedBatch
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.topics.validation import Headers
from holdfast.model.record import Durability, Receipt

Given = TypeVar("Given")


class ProducerStatus(msgspec.Struct, frozen=True):
    """What the log knows about a producer."""

    producer: str
    """Its name."""
    last: int
    """The highest sequence number that was written."""
    first_known: int
    """The lowest one whose receipts are still known."""
    used_us: int
    """When it was used last."""


class Producer:
    """A producer of an open log; get it with `log.producer(name)`."""

    def __init__(self, name: str, journal: JournalPort, topics: TopicsPort, *, start: int = 1) -> None:
        self.name = name
        self._key = producer_key(name)
        self._start = whole(start, "start")
        check_producer(self._key, self._start, self._start)
        if journal.read_only:
            raise Invalid("this log is open for reading only", hint="log.producers() says how far producers are")
        self._journal = journal
        self._topics = TopicArguments(journal, topics, "a producer", "producer.append(topic, rows, sequence=…)")
        self._wait_seconds = journal.settings.ack_timeout_ms / 1000

    @property
    def last(self) -> int | None:
        """The highest sequence number that is durable; None where the log knows none of this producer."""
        return self._journal.sessions.last_produced(self._key)

    @property
    def next(self) -> int:
        """The sequence number that is expected next, as far as it is durable what was sent."""
        last = self.last
        return self._start if last is None else last + 1

    # -- appending ----------------------------------------------------------------------------------------

    @overload
    def append(
        self,
        topic: Topic | str,
        payload: Any,
        *,
        sequence: int,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Receipt: ...
    @overload
    def append(
        self,
        topic: TypedTopic,
        payload: object,
        *,
        sequence: int,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]: ...
    def append(
        self,
        topic: Topic | TypedTopic | str,
        payload: object,
        *,
        sequence: int,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Receipt | Sequence[Receipt]:
        """Append one record, or rows of a typed topic, under a number; its receipt once it survives power loss.

        A number that was written gives the original receipt, which says that it is `repeated`. One that is not the
        next is Invalid, and the error names the one that is expected. A raw topic may be given by its name. For the
        other arguments and what is raised see `Topic.append`.
        """
        self._begin("append", durability)
        left = self._time_left(timeout)
        ticket = self._submit(topic, payload, sequence, key, headers, kind, time, partition, timeout)
        given = ticket.result(left())
        return given if durability == "durable" else ticket.shipped(None if timeout is None else left())

    async def append_async(
        self,
        topic: Topic | TypedTopic | str,
        payload: object,
        *,
        sequence: int,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Receipt | Sequence[Receipt]:
        """What `append` does, for coroutines: waits for room and for the acknowledgement without blocking the loop."""

        def put(seconds: float) -> ProducedTicket[Receipt] | ProducedTicket[Sequence[Receipt]]:
            return self._submit(topic, payload, sequence, key, headers, kind, time, partition, seconds)

        left = self._time_left(timeout)
        ticket = await self._when_room(put, timeout, durability)
        if durability == "durable":
            return await ticket
        return await ticket.when_shipped.within(None if timeout is None else left())

    @overload
    def submit(
        self,
        topic: Topic | str,
        payload: Any,
        *,
        sequence: int,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> ProducedTicket[Receipt]: ...
    @overload
    def submit(
        self,
        topic: TypedTopic,
        payload: object,
        *,
        sequence: int,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> ProducedTicket[Sequence[Receipt]]: ...
    def submit(
        self,
        topic: Topic | TypedTopic | str,
        payload: object,
        *,
        sequence: int,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        kind: str | None = None,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> ProducedTicket[Receipt] | ProducedTicket[Sequence[Receipt]]:
        """Queue one record, or rows, under a number, and return the ticket; `ticket.result()` or `await ticket`.

        The next number may be submitted at once. If one fails, those behind it fail, too, and all may be sent again.
        """
        return self._submit(topic, payload, sequence, key, headers, kind, time, partition, timeout)

    def append_batch(
        self,
        topic: Topic | str,
        records: Iterable[Any],
        *,
        sequence: int,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """Append records as one unit under one number: all of them are durable when this returns, or none is."""
        self._begin("append_batch", durability)
        left = self._time_left(timeout)
        ticket = self.submit_batch(topic, records, sequence=sequence, partition=partition, timeout=timeout)
        given = ticket.result(left())
        return given if durability == "durable" else ticket.shipped(None if timeout is None else left())

    async def append_batch_async(
        self,
        topic: Topic | str,
        records: Iterable[Any],
        *,
        sequence: int,
        partition: int | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """What `append_batch` does, for coroutines."""
        batch = list(records)  # once: it may be an iterator

        def put(seconds: float) -> ProducedTicket[Sequence[Receipt]]:
            return self.submit_batch(topic, batch, sequence=sequence, partition=partition, timeout=seconds)

        left = self._time_left(timeout)
        ticket = await self._when_room(put, timeout, durability)
        if durability == "durable":
            return await ticket
        return await ticket.when_shipped.within(None if timeout is None else left())

    def submit_batch(
        self,
        topic: Topic | str,
        records: Iterable[Any],
        *,
        sequence: int,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> ProducedTicket[Sequence[Receipt]]:
        """Queue records as one unit under one number, and return the ticket."""
        raw = self._topics.raw(topic)
        return self._send_batch(raw, raw._prepared(records, partition, self._key), sequence, timeout)

    # -- how it goes to the journal -----------------------------------------------------------------------

    def _begin(self, verb: str, durability: Durability) -> None:
        if in_coroutine():
            warnings.warn(
                f"{verb}() blocks the event loop; use: await producer.{verb}_async(…)", RuntimeWarning, stacklevel=3
            )
        if durability != "durable":
            self._journal.check_durability(durability)

    def _time_left(self, timeout: float | None) -> Callable[[], float]:
        """What is left, at any later moment, of the seconds that a call takes."""
        monotonic = self._journal.clock.monotonic
        end = monotonic() + (self._wait_seconds if timeout is None else seconds(timeout))
        return lambda: max(0.0, end - monotonic())

    async def _when_room(self, put: Callable[[float], Given], timeout: float | None, durability: Durability) -> Given:
        if durability != "durable":
            self._journal.check_durability(durability)
        return await self._journal.when_room(put, self._wait_seconds if timeout is None else seconds(timeout))

    def _submit(
        self,
        topic: Topic | TypedTopic | str,
        payload: object,
        sequence: int,
        key: bytes | str | None,
        headers: Headers | None,
        kind: str | None,
        time: int | datetime | str | None,
        partition: int | None,
        timeout: float | None,
    ) -> ProducedTicket[Receipt] | ProducedTicket[Sequence[Receipt]]:
        if isinstance(topic, TypedTopic):
            self._topics.check_typed(topic, key, headers, kind)
            return self._send_batch(
                topic, topic._prepared(payload, time, partition, None, self._key), sequence, timeout
            )
        raw = self._topics.raw(topic)
        if partition is None and key is None:
            partition = raw._partitions.choose(None, self._key).number
        part, row, size = raw._row(payload, key, headers, kind, time, partition, None)  # type: ignore[arg-type]
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        number = whole(sequence, "sequence")
        sent = self._journal.sessions.produce(
            self._key, number, ForwardedRows(part, [row], size), wait_seconds, start=self._start
        )
        asked = NumberedBatch(self.name, number, raw.name, self._journal.partitions)
        return ProducedTicket(sent, asked, only, wait_seconds)

    def _send_batch(
        self, topic: Topic | TypedTopic, batch: PreparedBatch, sequence: int, timeout: float | None
    ) -> ProducedTicket[Sequence[Receipt]]:
        runs = [Run.unplaced(partition, columns) for partition, columns in batch.parts]
        unit = ForwardedUnit([*runs], sum(map(len, runs)), batch.size, alone=True)
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        number = whole(sequence, "sequence")
        sent = self._journal.sessions.produce(self._key, number, unit, wait_seconds, start=self._start)
        asked = NumberedBatch(self.name, number, topic.name, self._journal.partitions, batch)
        return ProducedTicket(sent, asked, all_of, wait_seconds)

    def __repr__(self) -> str:
        return f"Producer({self.name!r}, last={self.last})"


def producer_key(name: object) -> bytes:
    """A producer's name as it is stored."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise Invalid("a producer has a name of printable characters", hint="log.producer('device-7')")
    key = name.encode()
    check_producer(key, 1, 1)
    return key


def producers_of(journal: JournalPort) -> list[ProducerStatus]:
    """How far all producers are, those that were used longest ago first."""
    return [
        ProducerStatus(info.name.decode(errors="replace"), info.last, info.floor, info.used_us)
        for info in journal.sessions.all()
        if info.is_producer
    ]


def forget(journal: JournalPort, name: str) -> None:
    """Let go of what is known about a producer; what it sends again is written again."""
    if not journal.forget_producers([producer_key(name)]):
        raise NotFound(f"no producer {name!r} is known and idle", hint="log.producers() lists those that are known")
