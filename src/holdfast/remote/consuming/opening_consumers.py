"""Consumers of a server's log: members that live in this process, whose assignments and positions the server keeps.

They are those of any process that does not own its log (`log/consumers/shared_members.py`): the server is asked as the
owner of a shared log is, by calls, and tells by events that members have changed. Records are read in pages, positions
travel with the client's groups.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Iterable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.arguments import seconds
from holdfast.caller import in_coroutine, once
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.commit.owner_calls import Asking, Nothing
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.consumers.assignment import numbers_of
from holdfast.log.consumers.consumer import Consumer
from holdfast.log.consumers.consumer_status import ConsumerStatus
from holdfast.log.consumers.member_messages import AskConsumers, ConsumersNow, ForgetConsumer
from holdfast.log.consumers.partition_pages import OnExpired
from holdfast.log.consumers.position_finder import PositionFinder, Reader, Start, check_consumer
from holdfast.log.consumers.shared_members import SharedMembers
from holdfast.log.consumers.stored_positions import SPACE, Place, StoredPosition, position_items
from holdfast.model.topic_name import check_name
from holdfast.owner.link_port import MET
from holdfast.remote.http.server_link import ServerLink
from holdfast.remote.own_thread import begin
from holdfast.remote.writing.client_journal import ClientJournal

if TYPE_CHECKING:
    from holdfast.journal.journal import Operation

Reply = TypeVar("Reply")

logger = logging.getLogger("holdfast.remote")


class ClientPositions:
    """What members of a client make of their positions: the changes that travel; their records the server makes."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self.timeout = timeout
        self._clock = clock

    def later(self, before: int = 0) -> int:
        """A time for the next word about something of which the last one came at `before`."""
        return max(before + 1, self._clock.now_us())

    def operations(self, place: Place, positions: Mapping[int, StoredPosition]) -> tuple[list[Operation], int]:
        """What makes positions durable, and its bytes."""
        items = position_items(place, positions)
        return [ChangeSpace(SPACE.encode(), tuple(items))], sum(len(key) + len(body) for key, _, body in items)

    def stored(self, place: Place, positions: Mapping[int, StoredPosition]) -> None:
        """The server knows."""

    def partition(self) -> None:
        """Records of positions are made at the server."""

    def refuse_second(self) -> None:
        """Nobody waits here."""


class ConsumerOpening:
    """The consumers of one client; `_lock` guards which there are, and the thread that follows events."""

    def __init__(self, link: ServerLink, journal: ClientJournal) -> None:
        self._journal = journal
        self._link = link
        self._asking = Asking(self._link, journal.clock)
        self._kept = ClientPositions(journal.settings.ack_timeout_ms / 1000, journal.clock)
        self._members: dict[Place, SharedMembers] = {}
        self._news: SimpleQueue[bool] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = RLock()
        for event in (MET, "members"):
            self._link.on_event(event, self._note)
        journal.ends.append(self._close)

    def open(
        self,
        given: tuple[Any, ...],
        name: str,
        start: Start,
        partitions: int | Iterable[int] | None,
        on_expired: OnExpired,
        patience: float,
    ) -> Consumer[Any]:
        """A member of the consumer of this name; where nothing is committed yet, it begins at `start`."""
        reader = Reader(*given)
        check_name(name, "consumer")
        check_consumer(reader.topic, on_expired)
        named, patience = numbers_of(partitions, len(reader.parts)), seconds(patience, "patience")
        reader.source.refresh()
        find = PositionFinder(reader).find
        begins = {part.number: find(part.number, start) for part in reader.parts}
        with once(self._lock):
            members = self._members_of((name, reader.topic), reader)
            members.begin_at = begins
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

    def status(self, topic: str | None = None) -> list[ConsumerStatus]:
        """How far all consumers are, or those of one topic."""
        return list(self._asking.ask("consumers", AskConsumers(topic), ConsumersNow, self._kept.timeout).consumers)

    def forget_consumer(self, name: str, topic: str) -> None:
        """Let go of a consumer's position in a topic, durably."""
        request = ForgetConsumer(check_name(name, "consumer"), check_name(topic))
        self._link.call("forget_consumer", request, Nothing, self._kept.timeout)

    def _members_of(self, place: Place, reader: Reader) -> SharedMembers:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="holdfast-members", daemon=True)
            self._thread.start()
        found = self._members.get(place)
        if found is None:
            clock = self._journal.clock
            found = self._members[place] = SharedMembers(
                place,
                reader.parts,
                self._kept,
                clock.monotonic,
                clock.random_bytes,
                self._asking.ask,
                self._call,
                self._kept.timeout,
            )
        return found

    def _call(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        if in_coroutine():  # a member leaves: its loop must not wait for that
            begin(lambda: self._link.call(name, request, answer, timeout), "holdfast-leave")
            raise Unavailable("the request is sent by a thread of its own", hint="the next request says it, too")
        return self._link.call(name, request, answer, timeout)

    # -- what the server tells ------------------------------------------------------------------------------

    def _note(self, _: bytes) -> None:
        self._news.put(True)

    def _work(self) -> None:
        while self._news.get():
            with self._lock:
                known = list(self._members.values())
            for members in known:
                try:
                    members.changed()
                except HoldfastError as error:  # the reader of the next page gets it
                    logger.debug("members were not looked at: %s", error.message, extra={"action": "news_late"})

    def _close(self) -> None:
        self._news.put(False)
        self._link.close()
