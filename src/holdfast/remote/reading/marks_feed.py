"""How a client learns that a topic went on: by asking, and by waiting for an answer while anybody is interested.

One thread per topic asks for the marks again and again, each time waiting at the server until one moved; it takes them
up and wakes those who sleep on the topic's signal. It begins with the first waiter, goes on while the server is
away (pauses grow), and ends some time after nobody waits any more. Records are read by their offsets, by the reader
that wants them: whatever happens to a connection, nothing can be lost or come twice.
"""

from __future__ import annotations

from _thread import RLock
from threading import Thread

from holdfast.caller import once
from holdfast.errors import Closed, HoldfastError, Unavailable
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.remote.http.exchange import Exchange, Pauses, Question, monotonic, not_understood
from holdfast.remote.reading.topic_state import MarksRow, TopicState, apply
from holdfast.remote.writing.client_journal import ClientJournal

_WAIT_S = 20.0
_IDLE_S = 60.0
_LOOK_AGAIN_S = 0.1


class MarksFeed:
    """The marks of one topic, kept up to date.

    `_lock` guards the thread, and how long it is wanted; what it has asked and failed with is the thread's. Marks, here
    and in the partitions, are guarded by the journal's lock.
    """

    def __init__(self, topic: str, parts: tuple[Partition, ...], exchange: Exchange, journal: ClientJournal) -> None:
        self.topic = topic
        self.marks: tuple[MarksRow, ...] = ()
        """As the server gave them last."""
        self.failure: HoldfastError | None = None
        """Why no news come any more: the topic, or the right to see it, is gone."""
        self.parts = parts
        self._exchange = exchange
        self._journal = journal
        self._known = ""
        self._wanted_until = 0.0
        self._is_over = False
        self._thread: Thread | None = None
        self._lock = RLock()

    @property
    def _shipping_state(self) -> ShippingState:
        return self._journal.shipping_state

    def refresh(self) -> None:
        """Ask how far the topic is now, and which versions its schema has."""
        timeout = self._journal.settings.ack_timeout_ms / 1000
        answer = self._exchange.ask(Question("GET", ("v1", "client", "topics", self.topic)), timeout)
        state = TopicState.parse(answer)
        if state.schemas:
            self._journal.schemas[self.topic] = state.schema_rows()
        self._take_up(state.marks)

    def listen(self) -> None:
        """A reader waits for news: see that they come, for a while from now on."""
        with once(self._lock):
            self._wanted_until = monotonic() + _IDLE_S
            if self._thread is None and not self._is_over:
                self._thread = Thread(target=self._work, name=f"holdfast-marks-{self.topic}", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        pauses = Pauses()
        while self._is_wanted():
            try:
                self._wait_for_news()
                pauses = Pauses()
            except Unavailable:
                self._pause(pauses)
            except HoldfastError as error:
                self._fail(error)
        self.parts[0].signal.notify()

    def _pause(self, pauses: Pauses) -> None:
        try:
            self._exchange.pause(pauses.next())
        except Closed:
            self._fail(Closed("the client is closed"))

    def _is_wanted(self) -> bool:
        with once(self._lock):
            if not self._is_over and monotonic() < self._wanted_until and self._journal.end is None:
                return True
            self._thread = None
            return False

    def _wait_for_news(self) -> None:
        began = monotonic()
        query = (("wait", f"{_WAIT_S:g}"), ("known", self._known))
        answer = self._exchange.ask(Question("GET", ("v1", "client", "topics", self.topic), query), _WAIT_S + 10)
        state = TopicState.parse(answer)
        self._known = state.tag
        moved = self._take_up(state.marks)
        if not moved and monotonic() - began < _LOOK_AGAIN_S:  # it does not wait: do not ask all the time
            self._exchange.pause(_LOOK_AGAIN_S)

    def _take_up(self, marks: tuple[MarksRow, ...]) -> bool:
        if len(marks) != len(self.parts):
            raise not_understood("was the topic made anew?")
        with once(self._journal.lock):
            self.marks = marks
            moved = [apply(part, row) for part, row in zip(self.parts, marks, strict=True)]
        if any(moved):
            self.parts[0].signal.notify()
            self._shipping_state.signal.notify()
        return any(moved)

    def _fail(self, error: HoldfastError) -> None:
        self._is_over = True
        if not isinstance(error, Closed):
            self.failure = error

    def forget(self) -> None:
        """In a forked child."""
        self._lock = RLock()
        self._thread = None
