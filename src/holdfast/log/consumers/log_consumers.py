"""The consumers of an open log: opened by topics, looked at by the log, their last word said when it is closed."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.arguments import seconds, whole
from holdfast.caller import once, refuse_second
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.journal.commit.owner_calls import Asking, Nothing
from holdfast.journal.journal import Operation
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.assignment import numbers_of
from holdfast.log.consumers.consumer import Consumer
from holdfast.log.consumers.consumer_status import ConsumerPartition, ConsumerStats, ConsumerStatus, lag_of
from holdfast.log.consumers.member_messages import AskConsumers, ConsumersNow, ForgetConsumer
from holdfast.log.consumers.members import Members
from holdfast.log.consumers.partition_pages import OnExpired
from holdfast.log.consumers.position_finder import PositionFinder, Reader, Start, check_consumer
from holdfast.log.consumers.position_store import PositionStore
from holdfast.log.consumers.shared_members import SharedMembers
from holdfast.log.consumers.stored_positions import TOPIC, Place, StoredPosition
from holdfast.log.log_context import LogContext
from holdfast.log.topics.local_source import LocalSource
from holdfast.log.topics.topic_partitions import no_topic
from holdfast.model.topic_name import check_name
from holdfast.suggestions import listed, meant

_CONSUMERS_MAX = 1_000
Reply = TypeVar("Reply")


class LogConsumers:
    """The consumers of one open log."""

    def __init__(self, context: LogContext, kept: PositionStore, create_topic: Callable[[str], object]) -> None:
        """`create_topic` makes the topic that positions are recorded in, if it is not there."""
        self._context = context
        self._journal = context.journal
        self._kept = kept
        self._create_topic = create_topic
        self._members: dict[Place, Members] = {}
        self._lock = RLock()

    def open(
        self,
        given: tuple[Any, ...],
        name: str,
        start: Start,
        partitions: int | Iterable[int] | None,
        on_expired: OnExpired,
        patience: float,
    ) -> Consumer[Any]:
        """A member of this consumer; where nothing is committed yet, it begins at `start`, and that is durable."""
        reader = Reader(*given)
        self._check(reader.topic, on_expired)
        check_name(name, "consumer")
        if not isinstance(start, str | datetime):
            whole(start, "start")
        named, patience = numbers_of(partitions, len(reader.parts)), seconds(patience, "patience")
        find = PositionFinder(reader).find
        members = self._members_of((name, reader.topic), reader, lambda number: find(number, start))
        return Consumer(
            self._journal,
            self._kept,
            members,
            reader.items,
            find,
            reader.source,
            named=named,
            on_expired=on_expired,
            patience=patience,
        )

    def _check(self, topic: str, on_expired: str) -> None:
        if self._journal.read_only:
            raise Invalid(
                "this log is open for reading only", hint="read it with topic.read(position) or topic.follow(position)"
            )
        if self._journal.end is not None:
            raise self._journal.end.again()
        check_consumer(topic, on_expired)

    def members_at(self, place: Place, begin: Mapping[int, int]) -> Members:
        """Of a log that is owned here: the members of a consumer, for one in another process that joins them.

        `begin` says where partitions begin of which nothing was committed yet; else it is where they begin.
        """
        name, topic = check_name(place[0], "consumer"), check_name(place[1])
        self._check(topic, "fail")
        reader = self._reader(topic)
        if reader is None:
            raise no_topic(topic, self._journal.topics)
        find = PositionFinder(reader).find
        return self._members_of((name, topic), reader, lambda number: find(number, begin.get(number, "first")))

    def members_if(self, place: Place) -> Members | None:
        """The same where it needs no commit: its positions are known. None else."""
        found = self._members.get(place)
        if found is None and (reader := self._reader(place[1])) is not None:
            kept = self._kept.positions(place)
            if all(part.number in kept and not kept[part.number].gone for part in reader.parts):
                return self._members_of(place, reader, lambda number: 0)
        return found

    def positions(self, place: Place) -> dict[int, StoredPosition]:
        """What is committed of each partition."""
        return self._kept.positions(place)

    def position_operations(self, place: Place, positions: Mapping[int, StoredPosition]) -> tuple[list[Operation], int]:
        """What makes positions durable that a member elsewhere commits, and its bytes."""
        return self._kept.operations(place, positions)

    def _reader(self, topic: str) -> Reader | None:
        parts = self._journal.topics.get(topic)
        return None if parts is None else Reader(topic, parts, _unread, _unread, self._source(topic))

    def _source(self, topic: str) -> LocalSource:
        return LocalSource(topic, self._journal, self._context.manifest)

    def _ask(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        """Of a log that another process owns: ask the owner."""
        return Asking(self._journal.link, self._context.clock).ask(name, request, answer, timeout)

    def changed(self) -> None:
        """Of a log that another process owns: the members of some consumer have changed, or the owner has."""
        for members in list(self._members.values()):
            if isinstance(members, SharedMembers):
                members.changed()

    def _shared_members(self, place: Place, reader: Reader, begin: Callable[[int], int]) -> Members:
        """Members in a process that does not own the log: the owner knows what is committed."""
        journal, clock = self._journal, self._context.clock
        if TOPIC not in journal.topics:
            self._create_topic(TOPIC)
        if journal.news is not None:
            journal.news.watch(reader.topic)
        known = self._kept.positions(place)
        missing = [part.number for part in reader.parts if part.number not in known or known[part.number].gone]
        begins = {number: begin(number) for number in missing}
        members = self._members.get(place)
        if not isinstance(members, SharedMembers):
            members = self._members[place] = SharedMembers(
                place,
                reader.parts,
                self._kept,
                clock.monotonic,
                clock.random_bytes,
                self._ask,
                journal.link.call,
                self._kept.timeout,
            )
        members.begin_at = begins
        return members

    def _members_of(self, place: Place, reader: Reader, begin: Callable[[int], int]) -> Members:
        self._journal.refuse_second()
        self._kept.refuse_second()
        with once(self._lock):
            if self._journal.shared:
                return self._shared_members(place, reader, begin)
            members = self._members.get(place)
            if members is None:
                if TOPIC not in self._journal.topics:
                    self._create_topic(TOPIC)
                if not self._members:  # the first use by this owner
                    self._kept.say_again()
                positions = self._begun(place, reader, begin)
                monotonic = self._context.clock.monotonic
                members = self._members[place] = Members(place, reader.parts, self._kept, positions, monotonic)
            return members

    def _begun(self, place: Place, reader: Reader, begin: Callable[[int], int]) -> dict[int, StoredPosition]:
        """What is committed of each partition; what is not, is now, so that a crash does not move the beginning."""
        known = self._kept.positions(place)
        fresh: dict[int, StoredPosition] = {}
        for part in reader.parts:
            before = known.get(part.number)
            if before is None or before.gone:
                fresh[part.number] = StoredPosition(begin(part.number), self._kept.later(before.at if before else 0))
        if fresh:
            self._check_room(place)
            self._kept.commit(place, fresh)
        return {**known, **fresh}

    def _check_room(self, place: Place) -> None:
        if len(known := self._kept.all_positions()) >= _CONSUMERS_MAX and place not in known:
            raise Invalid(
                f"the log has {_CONSUMERS_MAX} consumers already", hint="let go of old ones: log.forget_consumer(…)"
            )

    def forget_consumer(self, name: str, topic: str) -> None:
        """Let go of a consumer's position in a topic, durably."""
        place = (check_name(name, "consumer"), check_name(topic))
        if self._journal.read_only:
            raise Invalid("this log is open for reading only", hint="its owner can let go of consumers")
        if self._journal.shared:
            self._journal.link.call("forget_consumer", ForgetConsumer(*place), Nothing, self._kept.timeout)
            return
        with once(self._lock):
            members = self._members.get(place)
            if members is not None and members.count:
                raise Invalid(f"this consumer is in use consumer={name!r} topic={topic!r}", hint="close() it first")
            self._members.pop(place, None)
            if not self._kept.forget_consumer(place):
                raise no_consumer(name, topic, self._kept.all_positions())

    # -- how far they are ---------------------------------------------------------------------------------

    def status(self, topic: str | None = None) -> list[ConsumerStatus]:
        """All consumers, or those of one topic, by name and topic."""
        if self._journal.shared:
            return list(self._ask("consumers", AskConsumers(topic), ConsumersNow, self._kept.timeout).consumers)
        self._journal.refresh()
        self._settle()
        found = self._kept.all_positions()
        return [self._status(place, kept) for place, kept in found.items() if topic in (None, place[1])]

    def _settle(self) -> None:
        self._journal.refuse_second()
        self._kept.refuse_second()
        for members in list(self._members.values()):
            refuse_second(members.lock)
            members.settle()

    def _status(self, place: Place, positions: dict[int, StoredPosition]) -> ConsumerStatus:
        name, topic = place
        parts = {part.number: part for part in self._journal.topics.get(topic, ())}
        lines = tuple(_line(parts[number], kept) for number, kept in sorted(positions.items()) if number in parts)
        wait, members = self._kept.wait(topic), self._members.get(place)
        return ConsumerStatus(
            consumer=name,
            topic=topic,
            lag=sum(line.lag for line in lines),
            members=None if self._journal.read_only else 0 if members is None else members.count,
            retention_waits=wait is not None and name in wait.consumers,
            partitions=lines,
        )

    def stats(self) -> ConsumerStats:
        """Lag and members, as numbers."""
        try:
            found = self.status()
        except HoldfastError:  # damage of a space is reported to who asks for it; here it must not hide the rest
            return ConsumerStats()
        lag = {f"{one.consumer}/{one.topic}": one.lag for one in found}
        return ConsumerStats(len(found), sum(one.members or 0 for one in found), lag)

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say all positions once more, so that the newest segment of their topic has them."""
        self._settle()
        self._kept.end()

    def forget(self) -> None:
        """In a forked child: the locks may have been held by threads that are not here."""
        self._lock = RLock()
        self._members = {}


def _unread(*_: Any) -> Any:
    """How the topic of a member in another process is read: there, and not here."""
    raise Invalid("a member in another process reads by itself", hint="this is a defect in holdfast")


def _line(part: Partition, kept: StoredPosition) -> ConsumerPartition:
    first = part.sealed.first_offset
    return ConsumerPartition(
        partition=part.number,
        first=first,
        committed=kept.next,
        durable=part.durable,
        lag=lag_of(part, kept.next),
        expired=max(0, first - kept.next),
        committed_us=kept.at,
    )


def no_consumer(name: str, topic: str | None, known: Iterable[Place]) -> NotFound:
    """The error for a consumer that is not there, with the one that was probably meant."""
    names = sorted({place[0] for place in known if topic in (None, place[1])})
    where = "" if topic is None else f" topic={topic!r}"
    return NotFound(f"there is no consumer {name!r}{meant(name, names)}{where}", hint=listed(names))
