"""The link of a client to its server: calls of verbs, and events.

It offers what the link of a member to its owner offers (`owner/link_port.py`), so what asks and listens there works
here. A call is one request. Events are asked for by a thread, again and again, as soon as something was called that
has some; asking keeps the client's place at the server. Each answer says who this client is to the server: where that
has changed (the server was started anew, or heard nothing for too long), listeners learn that there is another owner
(`MET`), and ask for their events again.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, Unavailable
from holdfast.model.typed_decoding import from_msgpack
from holdfast.owner.link_port import MET
from holdfast.owner.wire import SESSION_BYTES, WaitingEvents
from holdfast.remote.http.exchange import MSGPACK, Exchange, Pauses, Question, monotonic, not_understood
from holdfast.signals import Flag

Reply = TypeVar("Reply")

WITH_EVENTS = frozenset(("watch", "subscribe", "join_consumer", "sync_member", "leave_consumer"))
"""Calls of which the server tells more later: they need a place there."""
_WAIT_S = 20.0
_ANSWER_S = 10.0
"""How much longer than it waits the server may take to answer."""

logger = logging.getLogger("holdfast.remote")
_events = msgspec.msgpack.Decoder(WaitingEvents).decode


class ServerLink:
    """One client's link; any thread may use it. `turns` guards the listeners, and is held while they are called."""

    def __init__(self, exchange: Exchange, clock: Clock) -> None:
        self.session = clock.random_bytes(SESSION_BYTES)
        self.turns = RLock()
        self._exchange = exchange
        self._headers = {"Holdfast-Session": self.session.hex(), "Accept": MSGPACK}
        self._listeners: dict[str, tuple[Callable[[bytes], None], ...]] = {}
        self._thread: Thread | None = None
        self._is_over = Flag()

    def call(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        """Ask the server for something, and wait for its answer; OutcomeUnknown where it may have been done."""
        if name in WITH_EVENTS:
            self._listen()
        headers = {**self._headers, "Content-Type": MSGPACK}
        body = msgspec.msgpack.encode(request)
        question = Question("POST", ("v1", "calls", name), body=body, headers=headers, again=False)
        found = self._exchange.ask(question, timeout)
        try:
            return from_msgpack(found.body, answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise not_understood() from error

    def on_event(self, name: str, call: Callable[[bytes], None]) -> None:
        """Have something called when the server tells this: it must be short."""
        with self.turns:
            self._listeners[name] = (*self._listeners.get(name, ()), call)

    def _tell(self, name: str, body: bytes) -> None:
        with self.turns:
            for listener in self._listeners.get(name, ()):
                listener(body)

    # -- events -------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        with self.turns:
            if self._thread is None and not self._is_over.is_set():
                self._thread = Thread(target=self._work, name="holdfast-events", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        pauses, peer, after = Pauses(), b"", 0
        while not self._is_over.is_set():
            try:
                news = self._next(after)
            except HoldfastError as error:
                if self._is_over.is_set() or isinstance(error, Closed):  # what is closed at the server is Unavailable
                    return
                logger.debug("the server does not answer: %s", error.message, extra={"action": "events_late"})
                with suppress(Closed):
                    self._exchange.pause(pauses.next())
                continue
            pauses = Pauses()
            if news.peer != peer:
                peer, after = news.peer, 0
                self._tell(MET, b"")
            for event in news.events:
                if event.number > after:
                    after = event.number
                    self._tell(event.name, event.body)

    def _next(self, after: int) -> WaitingEvents:
        query = (("wait", f"{_WAIT_S:g}"), ("after", str(after)))
        question = Question("GET", ("v1", "events"), query, headers=self._headers)
        attempt = self._exchange.attempt(question, monotonic() + _WAIT_S + _ANSWER_S)
        if attempt.problem is not None:
            raise attempt.problem
        if attempt.answer is None:
            raise Unavailable(attempt.why)
        try:
            return _events(self._exchange.checked(attempt.answer).body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise not_understood() from None

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye, if there is anything to end there."""
        self._is_over.set()
        if self._thread is not None:
            with suppress(HoldfastError):
                self._exchange.ask(Question("DELETE", ("v1", "events"), headers=self._headers), 2.0)

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self.turns = RLock()
        self._thread = None
        self._is_over.set()
