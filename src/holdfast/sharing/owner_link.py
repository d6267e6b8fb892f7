"""The link: a client's way to whoever owns the log at the moment.

One thread, the forwarder's, sends and receives: groups and their answers, calls of other threads and their results,
events. When the connection ends it finds the next owner, or becomes it (`Membership`), says hello under the same
session, and sends everything again that was not answered, in order and under the same numbers: what the log knows
already is answered from what it knows. Whoever waits sees latency, and nothing else. A link ends for good only when it
is closed, or when an owner refuses this process (another version, other settings).
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import Event as Flag
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.sharing.unanswered_groups import UnansweredGroups
from holdfast.sharing.wire import (
    ANSWER,
    BEFORE_WELCOME,
    BYE,
    CALL,
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
_NEXT_TRY_S = 0.01

MET = "met"
"""The event that no owner tells: there is one, perhaps another one than before."""

logger = logging.getLogger("holdfast.sharing")


class Meeting(Protocol):
    """Finds the owner of a log, or becomes it."""

    def connect(self, closing: Flag, deadline: float) -> socket.socket | None:
        """A connection to the present owner; None when the link is closing. Raises Unavailable at the deadline."""

    def hello(self, session: bytes) -> Hello:
        """Who we are."""

    def check(self, hello: Hello, welcome: Welcome) -> None:
        """Whether the other end is the owner of this log; raises HoldfastError."""

    def leave(self, session: bytes, timeout: float) -> None:
        """This member needs no owner any more, and is none."""


class _Waiting:
    """A call that is not answered yet."""

    __slots__ = ("body", "error", "is_done", "is_sent")

    def __init__(self) -> None:
        self.is_done = Flag()
        self.is_sent = False
        self.body = b""
        self.error: HoldfastError | None = None


class SocketLink:
    """One client's link. But for `call`, `on_event` and `close` it is the forwarder's thread that uses it."""

    def __init__(self, meeting: Meeting, clock: Clock) -> None:
        self._meeting = meeting
        self._clock = clock
        self.session = clock.random_bytes(SESSION_BYTES)
        self._unanswered = UnansweredGroups()
        self._sock: socket.socket | None = None
        self._frames = FrameReader(None, FROM_OWNER)
        self._bell = Bell()
        self._lock = Lock()
        """Guards the calls."""
        self._calls: dict[int, _Waiting] = {}
        self._call_number = 0
        self._outbox: deque[tuple[int, _Waiting, list[bytes | memoryview]]] = deque()
        """Calls of other threads that are to be sent."""
        self._listeners: dict[str, list[Callable[[bytes], None]]] = {}
        self._closing = Flag()
        self._roused = False

    @property
    def is_connected(self) -> bool:
        """Whether there is an owner at the moment, as far as is known."""
        return self._sock is not None

    def join(self, timeout: float) -> None:
        """Find the owner, or become it; raises what keeps this process from sharing the log."""
        self._meet(self._clock.monotonic() + timeout)

    # -- the queue's wake ---------------------------------------------------------------------------------

    @property
    def wake(self) -> SocketLink:
        """What the forwarder sleeps on."""
        return self

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Sleep until `release` or the time-out, and take what comes from the owner meanwhile."""
        if not blocking:
            roused, self._roused = self._roused, False
            return roused
        deadline = inf if timeout < 0 else self._clock.monotonic() + timeout
        while not self._roused:
            left = None if deadline == inf else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return False
            self._look(left, is_idle=True)
        self._roused = False
        return True

    def release(self) -> None:
        """Wake the forwarder; from any thread."""
        self._roused = True
        self._bell.ring()

    # -- sending ------------------------------------------------------------------------------------------

    def forward(self, items: list[Item], answered: Answered) -> None:
        """Have these committed together, once; see `journal.commit.forwarder.Link`."""
        group = self._unanswered.add(items, answered)
        if self._sock is not None:
            try:
                send(self._sock, self._unanswered.frame(group))
            except OSError:
                self._lose()

    def call(self, name: str, request: msgspec.Struct, answer: type[Told], timeout: float) -> Told:
        """Ask the owner for something, and wait for its answer; from any thread but the forwarder's.

        Raises what it raised, Unavailable when it was not asked in time, and OutcomeUnknown when it was asked and did
        not answer in time, or ended meanwhile: then it may have been done.
        """
        waiting = _Waiting()
        with self._lock:
            if self._closing.is_set():
                raise Closed("the log is closed")
            self._call_number += 1
            number = self._call_number
            self._calls[number] = waiting
        self._outbox.append((number, waiting, frame(CALL, Call(number, name), msgspec.msgpack.encode(request))))
        self._bell.ring()
        is_done = waiting.is_done.wait(timeout)
        with self._lock:
            self._calls.pop(number, None)
        if not is_done:
            raise _no_answer(name, timeout, is_sent=waiting.is_sent)
        if waiting.error is not None:
            raise waiting.error.again()
        try:
            return msgspec.msgpack.decode(waiting.body, type=answer)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"the owner's answer does not decode call={name}", hint="upgrade one of them") from error

    def _send_calls(self, sock: socket.socket) -> None:
        while self._outbox:
            number, waiting, buffers = self._outbox.popleft()
            with self._lock:
                wanted = number in self._calls
                waiting.is_sent = waiting.is_sent or wanted
            if wanted:
                send(sock, buffers)

    def on_event(self, name: str, call: Callable[[bytes], None]) -> None:
        """Have something called when the owner tells this; by the forwarder's thread: it must be short."""
        self._listeners.setdefault(name, []).append(call)

    # -- receiving ----------------------------------------------------------------------------------------

    def take(self) -> None:
        """Wait for something from the owner, and take it."""
        self._look(None)

    def _look(self, timeout: float | None, *, is_idle: bool = False) -> None:
        """Wait for the owner or the bell, and do what is to be done; with a new owner, if there is none."""
        sock = self._sock
        if sock is None:
            self._meet(inf)
            sock = self._sock
            if sock is None:
                raise Closed("the log is closed")
        try:
            self._bell.arm()  # before we look: whoever has something from now on rings
            if self._outbox:
                self._send_calls(sock)
            if self._bell.wait(sock, 0 if is_idle and self._roused else timeout):
                self._take_frames()
        except (OSError, BadFrame) as error:
            logger.info("the owner was lost: %s", error, extra={"action": "owner_lost"})
            self._lose()

    def _take_frames(self) -> None:
        """Take all that is here."""
        if not self._frames.fill():
            self._lose()
            return
        while (found := self._frames.next()) is not None:
            self._take(*found)

    def _take(self, kind: int, head: memoryview, body: memoryview) -> None:
        if kind == ANSWER:
            self._unanswered.take(cast("Answer", decoded(ANSWER, head)))
        elif kind == RESULT:
            result = cast("Result", decoded(RESULT, head))
            with self._lock:
                call = self._calls.get(result.number)
            if call is not None:
                call.body = bytes(body)
                call.error = None if result.error is None else result.error.error()
                call.is_done.set()
        elif kind == EVENT:
            for listener in self._listeners.get(cast("Event", decoded(EVENT, head)).name, ()):
                listener(bytes(body))

    # -- owners come and go -------------------------------------------------------------------------------

    def _meet(self, deadline: float) -> None:
        """Connect, say hello, and send again what was not answered; nothing when the link is closing."""
        while not self._closing.is_set():
            sock = self._meeting.connect(self._closing, deadline)
            if sock is None:
                return
            try:
                if self._greet(sock):
                    return
            except (OSError, BadFrame) as error:
                logger.info("the owner was lost while joining: %s", error, extra={"action": "rejoin"})
            except BaseException:
                sock.close()
                raise
            sock.close()
            self._closing.wait(_NEXT_TRY_S)

    def _greet(self, sock: socket.socket) -> bool:
        """Say hello to an owner; False when it is about to end. Raises what it refuses us for."""
        hello = self._meeting.hello(self.session)
        sock.settimeout(_HELLO_S)
        send(sock, frame(HELLO, hello))
        kind, said = _receive_one(sock)
        if kind == REFUSED:
            error = cast("Refusal", said).error()
            if isinstance(error, Closed):
                return False
            raise error
        welcome = cast("Welcome", said)
        self._meeting.check(hello, welcome)
        sock.settimeout(None)
        for group in self._unanswered.again(welcome.last):
            send(sock, self._unanswered.frame(group))
        self._frames = FrameReader(sock, FROM_OWNER)
        self._sock = sock
        for listener in self._listeners.get(MET, ()):
            listener(b"")
        return True

    def _lose(self) -> None:
        """The connection is gone; calls that were sent may have been done."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        with self._lock:
            calls = [call for call in self._calls.values() if call.is_sent]
        for call in calls:
            call.error = OutcomeUnknown("the log's owner ended before it answered", hint="look, then ask again")
            call.is_done.set()

    # -- the end ------------------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Let go of the owner; by whoever closes the log, when the forwarder has ended."""
        self._closing.set()
        sock, self._sock = self._sock, None
        if sock is not None:
            with suppress(OSError):
                sock.settimeout(0.1)
                send(sock, frame(BYE))
            sock.close()
        with self._lock:
            calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.error = Closed("the log is closed")
            call.is_done.set()
        self._meeting.leave(self.session, timeout)
        self._bell.close()

    def forget(self) -> None:
        """In a forked child: close our copies; the connection is the parent's, and goes on."""
        if self._sock is not None:
            self._sock.close()
        self._bell.close()

    def hang_up(self) -> None:
        """Wake a forwarder that waits for an owner, so that it can end; from any thread."""
        self._closing.set()
        sock = self._sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._bell.ring()


class Bell:
    """Wakes a thread that waits for a socket; rung by any other."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._sock = -1
        self._is_asleep = False

    def arm(self) -> None:
        """From now on a ring is heard; then look whether there is anything to do, then wait."""
        self._is_asleep = True

    def ring(self) -> None:
        """Wake it, if it sleeps."""
        if self._is_asleep:
            self._is_asleep = False
            with suppress(OSError):  # full: it is awake; closed: it has ended
                os.write(self._in, b"\0")

    def wait(self, sock: socket.socket, timeout: float | None) -> bool:
        """Sleep until the socket has something, the bell rings or the time is up; whether the socket has something."""
        descriptor = sock.fileno()
        if descriptor != self._sock:
            if self._sock >= 0:
                with suppress(KeyError, OSError):
                    self._poll.unregister(self._sock)
            self._poll.register(descriptor, select.POLLIN)
            self._sock = descriptor
        ready = self._poll.poll(None if timeout is None else max(0, timeout * 1000))
        self._is_asleep = False
        if any(one == self._out for one, _ in ready):
            with suppress(BlockingIOError):
                os.read(self._out, 4096)
        return any(one == descriptor for one, _ in ready)

    def close(self) -> None:
        """Let go of its descriptors."""
        os.close(self._in)
        os.close(self._out)


class FrameReader:
    """Frames out of a socket: filled by one call for each that it has something, then taken one by one."""

    def __init__(self, sock: socket.socket | None, limits: Limits) -> None:
        self._sock = sock
        self._limits = limits
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0

    def fill(self) -> bool:
        """Take what the socket has, waiting for the first of it; False when the connection has ended."""
        assert self._sock is not None
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == len(self._buffer):
            self._make_room()
        count = self._sock.recv_into(self._view[self._end :])
        self._end += count
        return count > 0

    def next(self) -> tuple[int, memoryview, memoryview] | None:
        """The next frame; None when it is not here as a whole. It is valid until the next `fill`."""
        here = self._end - self._begin
        if here < HEADER.size:
            return None
        found = header(self._buffer, self._begin, self._limits)
        if here < found.size:
            if self._begin + found.size > len(self._buffer):
                self._make_room(found.size)
            return None
        at = self._begin + HEADER.size
        middle = at + found.head
        self._begin += found.size
        return found.kind, self._view[at:middle], self._view[middle : middle + found.body]

    def _make_room(self, size: int = 0) -> None:
        here = bytes(self._view[self._begin : self._end])
        if size > len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[: len(here)] = here
        self._begin, self._end = 0, len(here)


def _receive_one(sock: socket.socket) -> tuple[int, msgspec.Struct]:
    frames = FrameReader(sock, BEFORE_WELCOME)
    while (found := frames.next()) is None:
        if not frames.fill():
            raise BadFrame("the owner hung up")
    return found[0], decoded(found[0], found[1])


def _no_answer(name: str, timeout: float, *, is_sent: bool) -> HoldfastError:
    if is_sent:
        return OutcomeUnknown(
            f"the log's owner did not answer within {timeout:g} s call={name}", hint="look, then ask again"
        )
    return Unavailable(f"the log had no owner within {timeout:g} s call={name}", hint="ask again")


def send(sock: socket.socket, buffers: list[bytes | memoryview]) -> None:
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
