"""The owner tells who shares its log that partitions have moved: one event for all that moved meanwhile.

A client says which topics somebody waits for there (`watch`); nothing is told about others, and nothing to clients
that wait for nothing. Signals of topics ring in the writer's thread, which only notes that they did; a thread of its
own tells, so a log that commits a thousand times per second tells as often as that thread gets around to it.

An event is a hint to look, not a record of anything: what a client then sees, it reads and proves itself. The exception
is how far partitions are on the store, which the owner knows before it is written down.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.journal import Journal
from holdfast.journal.sessions.outcomes import Refusal
from holdfast.owner.call_handlers import handler
from holdfast.owner.call_messages import AskMarks, Moved, Nothing, Shipments, Watch
from holdfast.owner.peer import Peer
from holdfast.signals import Flag

if TYPE_CHECKING:
    from holdfast.journal.state.partition import Partition
    from holdfast.owner.call_handlers import CallHandler

_SHIPPING = ""
"""Stands for the store where topics are named."""
_encode = msgspec.msgpack.encode


class MarkEvents:
    """Tells the clients of one owner."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._watchers: dict[str, set[Peer]] = {}
        """Who waits for which topic."""
        self._moved: deque[str] = deque()
        self._news = Flag()
        self._lock = Lock()
        self._is_over = False
        self._thread: Thread | None = None

    def handlers(self) -> dict[str, CallHandler]:
        """The calls that it answers."""
        return {"watch": handler(Watch, self._watch), "marks": handler(AskMarks, self._marks)}

    def stop(self) -> None:
        """The owner ends."""
        self._is_over = True
        self._news.set()

    # -- calls --------------------------------------------------------------------------------------------

    def _watch(self, caller: Peer, asked: Watch) -> Nothing:
        topics = [topic for topic in asked.topics if topic in self._journal.topics]
        if asked.shipping:
            topics.append(_SHIPPING)
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._work, name="holdfast-mark-events", daemon=True)
                self._thread.start()
            for topic in topics:
                is_new = topic not in self._watchers
                self._watchers.setdefault(topic, set()).add(caller)
                if is_new:
                    self._arm(topic)
        caller.at_end(partial(self._forget, caller))
        self._rang(*topics)  # it may have moved before it was watched
        return Nothing()

    def _marks(self, _: Peer, asked: AskMarks) -> Shipments:
        return self._shipments(self._journal.topics.get(asked.topic, ()))

    def _shipments(self, parts: tuple[Partition, ...] | list[Partition]) -> Shipments:
        rows = [part.shipment for part in parts if part.shipment is not None]
        refusal = self._journal.shipping_state.refusal
        return Shipments(tuple(row[:5] for row in rows), None if refusal is None else Refusal.of(refusal))

    def _forget(self, caller: Peer) -> None:
        with self._lock:
            for topic, watchers in list(self._watchers.items()):
                watchers.discard(caller)
                if not watchers:
                    del self._watchers[topic]

    # -- telling ------------------------------------------------------------------------------------------

    def _arm(self, topic: str) -> None:
        parts = self._journal.topics.get(topic, ())
        signal = self._journal.shipping_state.signal if topic == _SHIPPING else parts[0].signal
        signal.call(partial(self._rang, topic))

    def _rang(self, *topics: str) -> None:
        """In the writer's thread, perhaps: short, and never raises."""
        self._moved.extend(topics)
        self._news.set()

    def _work(self) -> None:
        while not self._is_over:
            self._news.wait()
            self._news.clear()
            moved = {self._moved.popleft() for _ in range(len(self._moved))}
            with self._lock:
                watched = {topic: tuple(self._watchers.get(topic, ())) for topic in moved}
                for topic, watchers in watched.items():
                    if watchers:
                        self._arm(topic)  # before it is told: what moves from now on rings again
            shipments = self._shipments(list(self._journal.partitions.values())) if watched.get(_SHIPPING) else None
            for caller in {caller for watchers in watched.values() for caller in watchers}:
                topics = tuple(topic for topic, watchers in watched.items() if topic and caller in watchers)
                is_told = caller in watched.get(_SHIPPING, ())
                caller.tell("marks", _encode(Moved(topics, shipments if is_told else None)))
