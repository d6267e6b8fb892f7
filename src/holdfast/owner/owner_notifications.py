"""What a member hears from the owner of its log: partitions have moved, assignments of consumers have changed.

The link's thread hands events over; a thread of its own takes up what has moved, and by that wakes those that wait for
a partition or for the store. It is there as soon as something is waited for.

When the log changes hands, the next owner is asked to report on the same topics, and everything that is waited
for is looked at once: nobody misses what happened in between. While there is no owner nothing moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.caller import in_coroutine, once
from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.commit.owner_calls import Asking, Nothing
from holdfast.journal.journal import Journal
from holdfast.log.local_parts import parts_of
from holdfast.model.control_rows import ShipmentRow
from holdfast.owner.link_port import HAND_OVER_S, MET, OwnerLink
from holdfast.owner.mark_events import AskMarks, MarksMoved, Shipments, WatchMarks
from holdfast.signals import Signal

if TYPE_CHECKING:
    from holdfast.crypto.keyring import Keyring
    from holdfast.log.log import Log

HOLD_OFF = "hold_off"
"""The event that another member is about to own the log."""
_OWN_S = 10.0
_ASK_S = 5.0
_MARKS_S = 1.0
"""How long `marks()` waits for the owner's word before it gives what is written down."""

logger = logging.getLogger("holdfast.sharing")
_moved = msgspec.msgpack.Decoder(MarksMoved).decode


class Ownership(Protocol):
    """Who owns the log, as far as this process knows."""

    def log(self) -> Log | None:
        """The owner's own log, if that is in this process."""

    def keep(self) -> Log | None:
        """The same, and it is not handed over on request any more."""

    def wanted(self) -> AbstractContextManager[None]:
        """Meanwhile it is about to be kept: once it is here, it is not handed over."""

    def hold_off(self, seconds: float) -> None:
        """Leave the log to another process for so long."""


class OwnerNotifications:
    """Hears for one member; any thread may use it.

    The link's lock guards what is watched, the thread, the meetings, and what is heard of the store, perhaps by two
    threads at once. Events come in turns of the link, where it is held.
    """

    def __init__(self, journal: Journal, link: OwnerLink, asking: Asking, ownership: Ownership) -> None:
        self._ownership = ownership
        self._clock = journal.clock
        self._met = Signal()
        self._meetings = 0
        """How many owners were met; it changes when there is another one, or the same one again."""
        link.on_event(MET, self._note_meeting)
        link.on_event(HOLD_OFF, lambda body: ownership.hold_off(HAND_OVER_S))
        self._journal = journal
        self._asking = asking
        self._link = link
        self._topics: set[str] = set()
        self._shipping = False
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = link.turns
        self._thread: Thread | None = None
        self.rotate: Callable[[Keyring], None] | None = None
        """How the owner is asked for another key."""
        self.on_members: Callable[[], None] = lambda: None
        """Called when the members of some consumer have changed, or the owner has."""
        journal.shipping_state.expect = self._watch_shipping
        link.on_event("marks", lambda body: self._soon(lambda: self._take(body)))
        link.on_event("members", lambda body: self._soon(self._members_changed))
        link.on_event(MET, lambda body: self._soon(self._watch_again))

    def watch(self, topic: str) -> None:
        """Have everybody who waits for a topic's partitions be woken when they move."""
        with once(self._lock):
            is_new = topic not in self._topics
            self._topics.add(topic)
        if is_new:
            self.soon(self._watch_again)

    def _watch_shipping(self) -> None:
        with once(self._lock):
            is_new, self._shipping = not self._shipping, True
        if is_new:
            self.soon(self._watch_again)

    def _note_meeting(self, _: bytes) -> None:
        self._meetings += 1
        self._met.notify()

    def ask_marks(self, topic: str) -> None:
        """Take up how far a topic is on the store, as the owner knows it; as it is written down if nobody answers."""
        if self._journal.shipping_state.ships:
            if in_coroutine():  # asking would block its loop: the owner tells by itself, from the first look on
                self._watch_shipping()
                return
            try:
                self._take_shipments(self._link.call("marks", AskMarks(topic), Shipments, _MARKS_S))
            except HoldfastError as error:
                logger.debug("the owner did not say how far it is: %s", error.message, extra={"action": "news_late"})

    def owned_here(self) -> Log | None:
        """The owner's own log, if that is in this process; None where it is in another one."""
        return self._ownership.log()

    def own(self) -> Log:
        """The owner's own log, in this process from now on: another one that owns it is asked to hand it over."""
        deadline = self._clock.monotonic() + _OWN_S
        with self._ownership.wanted():
            while (log := self._ownership.keep()) is None:
                if self._clock.monotonic() >= deadline:
                    raise Unavailable("the log was not handed over to this process in time", hint="try again")
                meetings = self._meetings
                self._asking.ask("own", Nothing(), Nothing, _OWN_S)
                # Others leave it to us for a while. If another one asked first, or we were too slow, one of them owns
                # it now: ask that one.
                self._wait_to_own(meetings, min(deadline, self._clock.monotonic() + 2 * HAND_OVER_S))
        self._journal.refuse_within(parts_of(log).journal)
        return log

    def _wait_to_own(self, meetings: int, until: float) -> None:
        def is_over() -> bool:
            return self._ownership.log() is not None or self._meetings != meetings

        while not is_over() and self._clock.monotonic() < until:
            self._met.sleep(is_over, 0.05)

    def rotate_key(self, keyring: Keyring) -> None:
        """Have the owner encrypt under this keyring's current key from now on."""
        assert self.rotate is not None
        self.rotate(keyring)

    def make_salt(self) -> None:
        """Have the owner draw the salt that hides keys of items, if there is none yet."""
        self._asking.ask("make_salt", Nothing(), Nothing, self._journal.settings.ack_timeout_ms / 1000)

    # -- its thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take up what is heard; in a turn, too."""
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._work, name="holdfast-news", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """The log is closed."""
        self._todo.put(None)

    def soon(self, do: Callable[[], None]) -> None:
        """Do something that waits for the owner, in the thread that takes up what it tells; from any thread."""
        self.start()
        self._todo.put(do)

    def _soon(self, do: Callable[[], None]) -> None:
        """In a turn: a thread that was interrupted with a lock of ours would keep the whole link waiting for another
        one.
        """
        if self._thread is not None:
            self._todo.put(do)

    def _work(self) -> None:
        while (do := self._todo.get()) is not None:
            try:
                do()
            except (HoldfastError, msgspec.MsgspecError) as error:  # waiters look again, and learn why
                logger.debug("news of the owner were not taken up: %s", error, extra={"action": "news_late"})

    def _watch_again(self) -> None:
        with once(self._lock):
            topics, shipping = tuple(sorted(self._topics)), self._shipping
        if topics or shipping:
            self._asking.ask("watch", WatchMarks(topics, shipping), Nothing, _ASK_S)
        self.on_members()

    def _members_changed(self) -> None:
        self.on_members()

    def _take(self, body: bytes) -> None:
        try:
            moved = _moved(body)
        except msgspec.MsgspecError:
            return
        for topic in moved.topics:
            self._journal.refresh(topic)
        if moved.shipments is not None:
            self._journal.refresh()  # the store may have what is not known here to be durable
            self._take_shipments(moved.shipments)

    def _take_shipments(self, shipments: Shipments) -> None:
        state = self._journal.shipping_state
        refusal = None if shipments.refusal is None else shipments.refusal.error()
        with once(self._lock):
            for row in shipments.partitions:
                part = self._journal.partitions.get(row[0])
                if part is not None:
                    part.shipment = ShipmentRow(*row)
            if refusal is None or state.trouble is None or refusal.message != state.trouble.message:
                state.trouble = refusal
        state.signal.notify()
