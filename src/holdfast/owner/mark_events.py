"""The owner's events to processes that use its log: partitions have moved: one event for all that moved meanwhile.

A client says which topics are waited for there (`watch`); nothing is said about others, and nothing to clients
that wait for nothing. Signals of topics ring in the writer's thread, which only notes that they did; a thread of its
own tells, so a log that commits a thousand times per second tells as often as that thread gets around to it.

An event is a hint to look, not a record of anything: what a client then sees, it reads and proves itself. The exception
is how far partitions are on the store, which the owner knows before it is written down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.commit.owner_calls import Nothing
from holdfast.journal.journal import Journal
from holdfast.journal.sessions.outcomes import Refusal
from holdfast.owner.peer import Peer
from holdfast.owner.verb import About, Name, Names, Right, Verb, its_topic
from holdfast.signals import Flag

if TYPE_CHECKING:
    from holdfast.journal.state.partition import Partition
    from holdfast.owner.log_owner import LogOwner

_SHIPPING = ""
"""Stands for the store where topics are named."""
_encode = msgspec.msgpack.encode


class WatchMarks(msgspec.Struct, frozen=True, array_like=True):
    """Tell me when the partitions of these topics move, and (`shipping`) when the store has taken something."""

    topics: Names
    shipping: bool


class Shipments(msgspec.Struct, frozen=True, array_like=True):
    """How far partitions are on the store: of each its id, slots, settled segments, settled and shipped offset."""

    partitions: tuple[tuple[int, int, int, int, int], ...]
    refusal: Refusal | None = None
    """Why nobody should wait for the store at the moment."""


class AskMarks(msgspec.Struct, frozen=True, array_like=True):
    """How far is a topic on the store?"""

    topic: Name


class MarksMoved(msgspec.Struct, frozen=True, array_like=True):
    """The event `marks`: these topics have moved."""

    topics: Names
    shipments: Shipments | None = None


class MarkEvents:
    """Tells the clients of one owner."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._watchers: dict[str, set[Peer]] = {}
        """Who waits for which topic …"""
        self._armed: set[str] = set()
        """… and which of them ring when they move, once."""
        self._moved: deque[tuple[str, bool]] = deque()
        """Topics to look at, and whether they rang."""
        self._news = Flag()
        self._lock = Lock()
        self._is_over = False
        self._thread: Thread | None = None

    def stop(self) -> None:
        """The owner ends."""
        self._is_over = True
        self._news.set()

    # -- calls --------------------------------------------------------------------------------------------

    def watch(self, caller: Peer, asked: WatchMarks) -> Nothing:
        """Tell a peer when these topics move."""
        topics = [topic for topic in asked.topics if topic in self._journal.topics]
        if asked.shipping:
            topics.append(_SHIPPING)
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._work, name="holdfast-mark-events", daemon=True)
                self._thread.start()
            is_new = not any(caller in watchers for watchers in self._watchers.values())
            for topic in topics:
                self._watchers.setdefault(topic, set()).add(caller)
                self._arm(topic)
        if topics and is_new:
            caller.at_end(partial(self._forget, caller))
        self._look_at((topic, False) for topic in topics)  # it may have moved before it was watched
        return Nothing()

    def marks(self, peer: Peer, asked: AskMarks) -> Shipments:
        """How far a topic is on the store."""
        return self._shipments(peer, self._journal.topics.get(asked.topic, ()))

    def _shipments(self, peer: Peer, parts: Iterable[Partition]) -> Shipments:
        """How far these partitions are; why shipping is held up only members learn, for it may name the store."""
        rows = [part.shipment for part in parts if part.shipment is not None]
        refusal = self._journal.shipping_state.refusal if peer.rights is None else None
        return Shipments(tuple(row[:5] for row in rows), None if refusal is None else Refusal.of(refusal))

    def _forget(self, caller: Peer) -> None:
        with self._lock:
            for topic, watchers in list(self._watchers.items()):
                watchers.discard(caller)
                if not watchers:
                    del self._watchers[topic]

    # -- telling ------------------------------------------------------------------------------------------

    def _arm(self, topic: str) -> None:
        """Have a topic ring when it moves; with the lock held."""
        if topic in self._armed:
            return
        self._armed.add(topic)
        parts = self._journal.topics.get(topic, ())
        signal = self._journal.shipping_state.signal if topic == _SHIPPING else parts[0].signal
        signal.call(partial(self._look_at, ((topic, True),)))

    def _look_at(self, topics: Iterable[tuple[str, bool]]) -> None:
        """In the writer's thread, perhaps: short, and never raises."""
        self._moved.extend(topics)
        self._news.set()

    def _work(self) -> None:
        while not self._is_over:
            self._news.wait()
            self._news.clear()
            looked_at = [self._moved.popleft() for _ in range(len(self._moved))]
            moved = {topic for topic, _ in looked_at}
            with self._lock:
                self._armed.difference_update(topic for topic, rang in looked_at if rang)
                watched = {topic: tuple(self._watchers.get(topic, ())) for topic in moved}
                for topic, watchers in watched.items():
                    if watchers:
                        self._arm(topic)  # before the event: what moves from now on rings again
            for peer in {peer for watchers in watched.values() for peer in watchers}:
                topics = tuple(topic for topic, watchers in watched.items() if topic and peer in watchers)
                shipments = None
                if peer in watched.get(_SHIPPING, ()):
                    shipments = self._shipments(peer, self._seen(peer))
                peer.tell("marks", _encode(MarksMoved(topics, shipments)))

    def _seen(self, peer: Peer) -> list[Partition]:
        """The partitions whose shipping a peer hears of: of those that it watches, or all if it is a member."""
        if peer.rights is None:
            return list(self._journal.partitions.values())
        with self._lock:
            topics = [topic for topic, watchers in self._watchers.items() if peer in watchers]
        return [part for topic in topics for part in self._journal.topics.get(topic, ())]


# -- the verbs --------------------------------------------------------------------------------------------


def _watched(request: WatchMarks) -> tuple[About, ...]:
    """Each topic."""
    return tuple(map(About, request.topics))


def _watch(owner: LogOwner, peer: Peer, request: WatchMarks) -> Nothing:
    return owner.marks.watch(peer, request)


def _marks(owner: LogOwner, peer: Peer, request: AskMarks) -> Shipments:
    return owner.marks.marks(peer, request)


_SEE = ("read", "append", "consume")
WATCH = Verb("watch", WatchMarks, Nothing, Right(_SEE, _watched), _watch, has_events=True)
MARKS = Verb("marks", AskMarks, Shipments, Right(_SEE, its_topic), _marks)
