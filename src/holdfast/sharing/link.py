"""The link: a client's way to whoever owns the log at the moment.

One thread receives: answers, results of calls, events. When the connection ends it finds the next owner, or becomes it
(`Membership`), says hello under the same session, and sends everything again that was not answered, in order and under
the same numbers: what the log knows already is answered from what it knows. Whoever waits sees latency, and nothing
else. A link ends for good only when it is closed, or when an owner refuses this process (another version, other
settings): then all that waits is refused with that reason.

Sending happens in the callers' threads, under one lock, in the order of the numbers.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event as Flag
from threading import Lock, RLock, Thread
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import Closed, HoldfastError, Unavailable
from holdfast.sharing.group_frames import PackedGroup
from holdfast.sharing.wire import (
    ANSWER,
    BEFORE_WELCOME,
    BYE,
    CALL,
    CLOSING,
    EVENT,
    FROM_OWNER,
    HEADER,
    HELLO,
    REFUSED,
    RESULT,
    SESSION_BYTES,
    Answer,
    BadFrame,
    Call,
    Event,
    Header,
    Hello,
    Limits,
    Result,
    Welcome,
    decoded,
    frame,
    header,
)

if TYPE_CHECKING:
    from holdfast.journal.commit.forwarded import Item
    from holdfast.journal.commit.forwarder import Answered
    from holdfast.journal.sessions.outcomes import Refusal

Told = TypeVar("Told")

_BUFFER_BYTES = 64 * 1024
_BUFFERS_AT_ONCE = 512
_HELLO_S = 10.0

MET = "met"
"""The event that no owner tells: there is one, perhaps another one than before."""

logger = logging.getLogger("holdfast.sharing")


class Meeting(Protocol):
    """Finds the owner of a log, or becomes it."""

    def connect(self, closing: Flag) -> socket.socket | None:
        """A connection to the present owner, however long that takes; None when the link is closing."""

    def hello(self, session: bytes) -> Hello:
        """Who we are."""

    def check(self, hello: Hello, welcome: Welcome) -> None:
        """Whether the other end is the owner of this log; raises HoldfastError."""

    def leave(self, timeout: float) -> None:
        """This member needs no owner any more, and is none."""


class _Waiting:
    """A call that is not answered yet."""

    __slots__ = ("body", "error", "is_done", "is_lost")

    def __init__(self) -> None:
        self.is_done = Flag()
        self.body = b""
        self.error: HoldfastError | None = None
        self.is_lost = False
        """Whether the owner ended before it answered."""


class SocketLink:
    """One client's link."""

    def __init__(self, meeting: Meeting, clock: Clock) -> None:
        self._meeting = meeting
        self.session = clock.random_bytes(SESSION_BYTES)
        self._sequence = 0
        self._unanswered: dict[int, tuple[PackedGroup, Answered]] = {}
        self._sending = Lock()
        """Held while something is sent, so that frames do not mix and groups go in order."""
        self._sock: socket.socket | None = None
        self._state = RLock()
        """Guards the numbers, and what waits for an answer."""
        self._calls: dict[int, _Waiting] = {}
        self._call_number = 0
        self._listeners: dict[str, list[Callable[[bytes], None]]] = {}
        self._closing = Flag()
        self._joined = Flag()
        self.end: HoldfastError | None = None
        """Why this link is of no use any more."""
        self.on_end: Callable[[Closed], None] | None = None
        """Called when an owner has refused this process for good."""
        self.is_connected = False
        self._thread = Thread(target=self._work, name="holdfast-link", daemon=True)

    def join(self, timeout: float) -> None:
        """Find the owner, or become it; raises what keeps this process from sharing the log."""
        self._thread.start()
        if not self._joined.wait(timeout):
            self.close(0)
            raise Unavailable(
                f"the log's owner did not answer within {timeout:g} s", hint="another process holds LOCK: see its pid"
            )
        if self.end is not None:
            self.close(0)
            raise self.end.again()

    # -- sending ------------------------------------------------------------------------------------------

    def forward(self, items: list[Item], answered: Answered) -> None:
        """Have these committed together, once; see `journal.commit.forwarder.Link`."""
        with self._sending:
            with self._state:
                if self.end is not None:
                    raise self.end.again()
                self._sequence += 1
                group = PackedGroup(self._sequence, items)
                self._unanswered[self._sequence] = (group, answered)
                floor = next(iter(self._unanswered))
            sock = self._sock
            if sock is not None:
                with suppress(OSError):  # whoever receives finds out, and sends it again
                    _send(sock, group.buffers(floor))

    def call(self, name: str, request: msgspec.Struct, answer: type[Told], timeout: float) -> Told:
        """Ask the owner for something, and wait for its answer.

        Raises what it raised, and Unavailable when there is no answer in time. An owner that ends meanwhile may have
        done it or not; the next one is asked again. So every call is such that asking twice is asking once.
        """
        deadline = _now() + timeout
        body = msgspec.msgpack.encode(request)
        while (waiting := self._asked(name, body, timeout, deadline)).is_lost and self.end is None:
            pass
        if waiting.error is not None:
            raise waiting.error.again()
        try:
            return msgspec.msgpack.decode(waiting.body, type=answer)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"the owner's answer does not decode call={name}", hint="upgrade one of them") from error

    def _asked(self, name: str, body: bytes, timeout: float, deadline: float) -> _Waiting:
        waiting = _Waiting()
        with self._state:
            if self.end is not None:
                raise self.end.again()
            self._call_number += 1
            number = self._call_number
            self._calls[number] = waiting
        try:
            self._send_call(number, name, body, waiting, deadline)
            if not waiting.is_done.wait(max(0.0, deadline - _now())):
                raise Unavailable(f"the log's owner did not answer within {timeout:g} s call={name}", hint="try again")
        finally:
            with self._state:
                self._calls.pop(number, None)
        return waiting

    def _send_call(self, number: int, name: str, body: bytes, waiting: _Waiting, deadline: float) -> None:
        """Send a call once there is an owner."""
        while not waiting.is_done.is_set():
            if not self._sending.acquire(timeout=max(0.0, min(0.05, deadline - _now()))):
                if _now() >= deadline:
                    raise Unavailable(f"the log's owner does not take calls call={name}", hint="try again")
                continue
            try:
                sock = self._sock
                if sock is not None:
                    with suppress(OSError):
                        _send(sock, frame(CALL, Call(number, name), body))
                    return
            finally:
                self._sending.release()
            if _now() >= deadline:
                raise Unavailable(f"the log has no owner at the moment call={name}", hint="try again")
            waiting.is_done.wait(0.005)

    def on_event(self, name: str, call: Callable[[bytes], None]) -> None:
        """Have something called when the owner tells this; by the thread that receives: it must be short."""
        self._listeners.setdefault(name, []).append(call)

    # -- receiving ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._closing.is_set() and self.end is None:
                sock = self._meet()
                if sock is None:
                    return
                self._joined.set()
                for listener in self._listeners.get(MET, ()):
                    listener(b"")
                self._receive(sock)
        except BaseException as error:
            reason = error if isinstance(error, HoldfastError) else Unavailable(f"the link failed: {error}")
            if not isinstance(error, HoldfastError):
                logger.exception("the link to the owner failed", extra={"action": "link_died"})
            self._finish(reason)
        finally:
            self._joined.set()

    def _meet(self) -> socket.socket | None:
        """Connect, say hello, and send again what was not answered; None when the link is closing."""
        while True:
            sock = self._meeting.connect(self._closing)
            if sock is None:
                return None
            hello = self._meeting.hello(self.session)
            try:
                sock.settimeout(_HELLO_S)
                _send(sock, frame(HELLO, hello))
                kind, said = _receive_one(sock)
                if kind == REFUSED:
                    error = cast("Refusal", said).error()
                    if isinstance(error, Closed):  # it is about to end
                        sock.close()
                        self._closing.wait(0.01)
                        continue
                    sock.close()
                    raise error
                self._meeting.check(hello, cast("Welcome", said))
                sock.settimeout(None)
                self._resume(sock)
            except (OSError, BadFrame) as error:
                logger.info("the owner was lost while joining: %s", error, extra={"action": "rejoin"})
                sock.close()
                self._closing.wait(0.01)
                continue
            return sock

    def _resume(self, sock: socket.socket) -> None:
        with self._sending:
            with self._state:
                groups = [group for group, _ in self._unanswered.values()]
            for group in groups:
                _send(sock, group.buffers(groups[0].sequence))
            self._sock = sock
            self.is_connected = True

    def _receive(self, sock: socket.socket) -> None:
        """Take frames until the connection ends."""
        reader = _FrameReader(sock, FROM_OWNER)
        try:
            while (found := reader.next()) is not None:
                self._take(*found)
        except (OSError, BadFrame) as error:
            if not self._closing.is_set():
                logger.info("the owner was lost: %s", error, extra={"action": "owner_lost"})
        finally:
            self.is_connected = False
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # whoever sends at this moment comes back
            with self._sending:
                self._sock = None
                sock.close()
            self._fail_calls()

    def _take(self, kind: int, head: memoryview, body: memoryview) -> None:
        if kind == ANSWER:
            answer = cast("Answer", decoded(ANSWER, head))
            with self._state:
                waiting = self._unanswered.pop(answer.sequence, None)
            if waiting is not None:
                waiting[1](answer.outcomes if answer.error is None else answer.error.error())
        elif kind == RESULT:
            result = cast("Result", decoded(RESULT, head))
            with self._state:
                call = self._calls.get(result.number)
            if call is not None:
                call.body = bytes(body)
                call.error = None if result.error is None else result.error.error()
                call.is_done.set()
        elif kind == EVENT:
            for listener in self._listeners.get(cast("Event", decoded(EVENT, head)).name, ()):
                listener(bytes(body))
        elif kind == CLOSING:
            pass  # the end of the connection follows

    def _fail_calls(self) -> None:
        with self._state:
            calls = list(self._calls.values())
        for call in calls:
            if not call.is_done.is_set():
                call.error = Unavailable("the log's owner ended before it answered", hint="ask again")
                call.is_lost = True
                call.is_done.set()

    # -- the end ------------------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Let go of the owner; a second call does nothing."""
        self._closing.set()
        sock = self._sock
        if sock is not None:
            if self._sending.acquire(timeout=0.1):
                try:
                    with suppress(OSError):
                        _send(sock, frame(BYE))
                finally:
                    self._sending.release()
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._finish(Closed("the log is closed"))
        self._meeting.leave(timeout)

    def _finish(self, reason: HoldfastError) -> None:
        with self._state:
            if self.end is not None:
                return
            self.end = reason
            unanswered = list(self._unanswered.values())
            self._unanswered.clear()
        for _, answered in unanswered:
            answered(reason)
        self._fail_calls()
        if self.on_end is not None and not self._closing.is_set():
            self.on_end(Closed(f"this process can no longer share the log: {reason.message}", reason="poisoned"))


class _FrameReader:
    """Frames out of a socket that blocks."""

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self._sock = sock
        self._limits = limits
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0

    def next(self) -> tuple[int, memoryview, memoryview] | None:
        """The next frame; None when the connection ended between two."""
        if not self._fill(HEADER.size):
            return None
        found = header(self._buffer, self._begin, self._limits)
        if found.size > len(self._buffer):
            return self._large(found)
        self._fill(found.size)
        at = self._begin + HEADER.size
        middle = at + found.head
        self._begin += found.size
        return found.kind, self._view[at:middle], self._view[middle : middle + found.body]

    def _fill(self, size: int) -> bool:
        """Have so many bytes here; False when the connection ended before the first."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin + size > len(self._buffer):
            here = self._end - self._begin
            self._view[:here] = bytes(self._view[self._begin : self._end])
            self._begin, self._end = 0, here
        while self._end - self._begin < size:
            count = self._sock.recv_into(self._view[self._end :])
            if not count:
                if self._end == self._begin:
                    return False
                raise BadFrame("the connection ended within a frame")
            self._end += count
        return True

    def _large(self, found: Header) -> tuple[int, memoryview, memoryview]:
        whole = memoryview(bytearray(found.size))
        here = self._end - self._begin
        whole[:here] = self._view[self._begin : self._end]
        self._begin = self._end = 0
        while here < found.size:
            count = self._sock.recv_into(whole[here:])
            if not count:
                raise BadFrame("the connection ended within a frame")
            here += count
        middle = HEADER.size + found.head
        return found.kind, whole[HEADER.size : middle], whole[middle:]


def _receive_one(sock: socket.socket) -> tuple[int, msgspec.Struct]:
    found = _FrameReader(sock, BEFORE_WELCOME).next()
    if found is None:
        raise BadFrame("the owner hung up")
    return found[0], decoded(found[0], found[1])


def _send(sock: socket.socket, buffers: list[bytes | memoryview]) -> None:
    """Send all of these; blocks."""
    at = 0
    while at < len(buffers):
        some = buffers[at : at + _BUFFERS_AT_ONCE]
        sent = sock.sendmsg(some)
        whole = sum(map(len, some))
        if sent == whole:
            at += len(some)
            continue
        while sent >= len(buffers[at]):
            sent -= len(buffers[at])
            at += 1
        if sent:
            buffers[at] = memoryview(buffers[at])[sent:]


def _now() -> float:
    return SystemClock().monotonic()
