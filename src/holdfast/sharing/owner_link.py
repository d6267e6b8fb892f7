"""The link: a member's way to the present owner of the log.

It sends and receives: groups and their answers, calls of other threads and their results, events. It never waits for
the other end but in `sleep`, which is the forwarder's thread's alone; all else is done in *turns*, one at a time, by
that thread or by an event loop (`LoopDriver`).

When the connection ends the thread finds the next owner, or becomes it (`Membership`), and says hello under the same
session; then everything is sent again that was not answered, in order and under the same numbers: what the log knows
already is answered from what it knows. A waiter sees latency, and nothing else. A link ends for good only when it
is closed, or when an owner refuses this process (another version, other settings).
"""

from __future__ import annotations

import logging
import socket
from _thread import RLock, get_ident
from asyncio import AbstractEventLoop
from asyncio.events import _get_running_loop
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec

from holdfast.caller import in_coroutine, once
from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.journal.shared_number import SharedNumber
from holdfast.model.typed_decoding import from_msgpack
from holdfast.owner.link_port import MET
from holdfast.owner.wire import (
    ANSWER,
    BYE,
    CHALLENGE,
    EVENT,
    FROM_OWNER,
    HELLO,
    PROOF,
    REFUSED,
    RESULT,
    SESSION_BYTES,
    BadFrame,
    Challenge,
    GroupAnswer,
    Hello,
    OwnerEvent,
    Proof,
    Result,
    Welcome,
    decoded,
    frame,
)
from holdfast.sharing.frame_reader import FrameReader, receive_one, send
from holdfast.sharing.loop_driver import LoopDriver
from holdfast.sharing.unanswered import UnansweredCalls, UnansweredGroups
from holdfast.sharing.unsent import Unsent
from holdfast.sharing.wakeup_pipe import WakeupPipe
from holdfast.signals import Flag

if TYPE_CHECKING:
    from holdfast.journal.commit.forwarder import Turn, Waiting
    from holdfast.journal.queue.forwarded import Item
    from holdfast.journal.sessions.outcomes import Refusal

Reply = TypeVar("Reply")

_HELLO_S = 10.0
_NEXT_TRY_S = 0.01
_STAND_BY_S = 0.02
"""How long a loop may leave undone what it has a turn for."""
_IDLE_S = 1.0
"""A loop that had no turn for so long gets no more."""

logger = logging.getLogger("holdfast.sharing")


class Meeting(Protocol):
    """How a link comes to an owner: a member's `Membership`, or a caller's, which never owns the log itself."""

    def connect(self, closing: Flag, deadline: float) -> socket.socket | None:
        """A connection to the present owner; None when the link is closing. Raises Unavailable at the deadline."""

    def hello(self, session: bytes) -> Hello:
        """Who we are."""

    def prove(self, hello: Hello, challenge: Challenge) -> Proof:
        """That we have the log's keys."""

    def check(self, hello: Hello, challenge: bytes, welcome: Welcome) -> None:
        """Whether the other end is the owner of this log; raises HoldfastError."""

    def leave(self, session: bytes, timeout: float) -> None:
        """This process needs no owner any more, and is none."""


class SocketLink:
    """One client's link. But for `call`, `on_event`, `release`, `hurry` and `close` it is used in turns.

    `turns`, the lock that is held during a turn, guards all of it: the connection, frames, what is not sent or not
    answered, calls and listeners, and which loop has turns. Nobody holds it while waiting, connecting or meeting. It is
    one with the forwarder's: a thread that was interrupted with it is refused, as with the queue's.

    Two fields are raised by anybody without it, for a signal handler may be among them: `_roused` and `_hurried`. They
    are lowered at the beginning of a turn, before it looks at the queue. What `begin` sets is the forwarder's, once.
    """

    def __init__(self, meeting: Meeting, clock: Clock, remembered_us: int) -> None:
        """`remembered_us`: for so long after its last use no owner forgets a session."""
        self._meeting = meeting
        self._clock = clock
        self.session = clock.random_bytes(SESSION_BYTES)
        self._unanswered = UnansweredGroups(clock, remembered_us)
        self._sock: socket.socket | None = None
        self._met: socket.socket | None = None
        """A connection to an owner that has welcomed us, to be used from the next turn on."""
        self._known = 0
        """The newest number of our session that this owner knows."""
        self.durable: SharedNumber | None = None
        """How many groups are durable, as the owner says that was met last: true also when that is gone."""
        self._frames = FrameReader(None, FROM_OWNER)
        self._unsent = Unsent()
        self._wakeup = WakeupPipe()
        self._calls = UnansweredCalls()
        """Of other threads."""
        self._listeners: dict[str, tuple[Callable[[bytes], None], ...]] = {}
        self._closing = Flag()
        self._ended: HoldfastError | None = None
        """Why there will be no owner any more."""
        self._roused = self._hurried = False
        """Something was brought since the last turn; a thread blocks until it is done."""
        self._turn: Turn | None = None
        self.turns = RLock()
        """Held by the thread that has a turn, or looks."""
        self._refuse_second: Callable[[], None] = lambda: None
        """For a thread that has what a turn needs."""
        self._loop_driver: LoopDriver | None = None
        self._blind_loop: AbstractEventLoop | None = None
        """One that cannot watch a socket."""
        self._thread = 0
        self._sent_by_thread = 0
        """The newest group that the forwarder's thread sent."""

    def join(self, timeout: float) -> None:
        """Find the owner, or become it; raises what keeps this process from sharing the log."""
        self._meet(self._clock.monotonic() + timeout)

    # -- whose turn it is ---------------------------------------------------------------------------------

    @property
    def wake(self) -> SocketLink:
        """What the queue rouses."""
        return self

    def begin(self, turn: Turn, refuse_second: Callable[[], None]) -> None:
        """From now on, on the forwarder's thread: turns are taken by this, which holds the lock meanwhile."""
        with self.turns:
            self._thread = get_ident()
            self._refuse_second = refuse_second
            self._turn = turn  # last: a loop may ask for turns as soon as there is one

    def release(self) -> None:
        """Something was brought: have a turn soon; from any thread, with the queue's lock held."""
        self._roused = True
        loop = _get_running_loop()
        if loop is None:
            self._wakeup.ring()
            return
        turns = self._loop_driver
        if turns is not None and turns.loop is loop and not turns.is_over:
            turns.schedule()
            return
        self._wakeup.ring()
        if turns is None and self._turn is not None and loop is not self._blind_loop and in_coroutine():
            loop.call_soon(self._give_turns, loop)

    def hurry(self) -> None:
        """A caller is about to block this thread: do not leave to its loop what was brought."""
        if self._roused:
            self._hurried = True
            self._wakeup.ring()

    def _give_turns(self, loop: AbstractEventLoop) -> None:
        """On a loop that brings groups: let it have turns, if it can watch a socket."""
        with self.turns:  # several loops may come here at once, and only one has turns
            sock, turn = self._sock, self._turn
            if self._loop_driver is not None or sock is None or turn is None or self._closing.is_set():
                return
            try:
                self._loop_driver = LoopDriver(loop, sock, turn)
            except NotImplementedError:
                self._blind_loop = loop
                return
            except (OSError, ValueError):  # no descriptor is left, or the loop is being closed
                return
        self._wakeup.ring()  # the thread need not watch the socket any more

    def _end_loop_driver(self) -> None:
        """No loop has turns any more; `turns` is held."""
        turns, self._loop_driver = self._loop_driver, None
        if turns is not None:
            turns.end()

    def sleep(self, timeout: float | None) -> bool:
        """Wait for something to do; whether the owner may have sent something. By the forwarder's thread.

        Finds another owner where there is none. While a loop has its turns, only what it leaves undone is to do.
        """
        while True:
            with self.turns:
                has_owner = self._sock is not None or self._met is not None
            if not has_owner:
                self._meet_again()
            with self.turns:
                if self._sock is None and self._met is None and self._closing.is_set():
                    raise Closed("the log is closed")
                turns, sock = self._working_loop(), self._sock
                self._wakeup.arm()  # before we look: what comes from now on rings
                if sock is None or self._calls.has_unsent or self._hurried or (self._roused and turns is None):
                    return False
                watched = sock if turns is None or self._is_awaited() else None
                to_send = bool(self._unsent)
                seen = -1 if turns is None else turns.count
            if turns is not None:
                timeout = _STAND_BY_S if timeout is None else min(timeout, _STAND_BY_S)
            try:
                rang, has_news = self._wakeup.wait(watched, timeout, to_send=to_send)
            except (OSError, ValueError):  # a loop has found it to be gone
                continue
            if turns is None or rang or has_news:
                return has_news
            if turns.count == seen:
                turns.is_scheduled = False
                return True

    def _meet_again(self) -> None:
        """Find another owner; where there is none for this process, nobody waits for one."""
        try:
            self._meet(inf)
        except HoldfastError as error:
            with self.turns:
                self._ended = error
                calls = self._calls.all()
            for call in calls:
                call.end(b"", error)
            raise

    def _working_loop(self) -> LoopDriver | None:
        """The loop that has turns, if it uses them; one that does not makes room for another. `turns` is held."""
        turns = self._loop_driver
        if turns is not None and (turns.loop.is_closed() or turns.idle_seconds(self._clock.monotonic()) > _IDLE_S):
            self._end_loop_driver()
            return None
        return turns

    def _is_awaited(self) -> bool:
        """Whether something is on its way that no loop may ever look for. `turns` is held."""
        return bool(self._calls or self._unsent) or 0 < self._unanswered.first <= self._sent_by_thread

    # -- sending ------------------------------------------------------------------------------------------

    def forward(self, items: list[Item], waiting: Waiting) -> None:
        """Have these committed together, once; see `journal.commit.forwarder.Link`."""
        group = self._unanswered.add(items, waiting)
        if get_ident() == self._thread:
            self._sent_by_thread = group.sequence
        if self._sock is not None:
            self._unsent.add(self._unanswered.frame(group))
            self._flush(self._sock)

    def has(self, waiting: Waiting) -> bool:
        """Whether this waits for an answer."""
        return self._unanswered.has(waiting)

    def _flush(self, sock: socket.socket) -> None:
        try:
            if not self._unsent.flush(sock):
                self._wakeup.ring()  # the thread waits until there is room
        except OSError:
            self.lose()

    def call(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        """Ask the owner for something, and wait for its answer; from any thread but the forwarder's.

        Raises what it raised, Unavailable when it was not asked in time, and OutcomeUnknown when it was asked and did
        not answer in time, or ended meanwhile: then it may have been done.
        """
        self._refuse_second()  # the thread that would send it waits for us
        body = msgspec.msgpack.encode(request)
        with once(self.turns):
            if self._closing.is_set():
                raise Closed("the log is closed")
            if self._ended is not None:
                raise self._ended
            number, waiting = self._calls.add(name, body)
        self._wakeup.ring()
        waiting.is_done.wait(timeout)
        with self.turns:
            self._calls.give_up(number)
            is_done, is_sent = waiting.is_done.is_set(), waiting.is_sent
        if not is_done:
            raise _no_answer(name, timeout, is_sent=is_sent)
        if waiting.error is not None:
            raise waiting.error.again()
        try:
            return from_msgpack(waiting.body, answer)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"the owner's answer does not decode call={name}", hint="upgrade one of them") from error

    def _send_calls(self, sock: socket.socket) -> None:
        for buffers in self._calls.to_send():
            self._unsent.add(buffers)
        self._flush(sock)

    def on_event(self, name: str, call: Callable[[bytes], None]) -> None:
        """Have something called when the owner tells this; in a turn: it must be short."""
        with once(self.turns):
            self._listeners[name] = (*self._listeners.get(name, ()), call)

    def _tell(self, name: str, body: bytes) -> None:
        for listener in self._listeners.get(name, ()):
            listener(body)

    # -- receiving ----------------------------------------------------------------------------------------

    def take(self, *, has_news: bool) -> None:
        """Take what is here, and send what could not be sent before."""
        self._roused = self._hurried = False
        if self._met is not None:
            self._use(self._met)
        sock = self._sock
        if sock is None:
            self._wakeup.ring()  # the thread finds another owner
            return
        if self._calls.has_unsent:
            self._send_calls(sock)
        elif self._unsent:
            self._flush(sock)
        if has_news and self._sock is not None:
            self._take_frames()

    def _take_frames(self) -> None:
        """Take all that is here."""
        try:
            if not self._frames.fill(socket.MSG_DONTWAIT):
                self.lose()
                return
            while (found := self._frames.next()) is not None:
                self._take(*found)
        except (BlockingIOError, InterruptedError):  # another thread has taken it
            pass
        except (OSError, BadFrame) as error:
            logger.info("the owner was lost: %s", error, extra={"action": "owner_lost"})
            self.lose()

    def _take(self, kind: int, head: memoryview, body: memoryview) -> None:
        if kind == ANSWER:
            self._unanswered.take(cast("GroupAnswer", decoded(ANSWER, head)))
        elif kind == RESULT:
            self._calls.take(cast("Result", decoded(RESULT, head)), bytes(body))
        elif kind == EVENT:
            self._tell(cast("OwnerEvent", decoded(EVENT, head)).name, bytes(body))

    # -- owners come and go -------------------------------------------------------------------------------

    def _meet(self, deadline: float) -> None:
        """Connect and say hello; nothing when the link is closing."""
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
        kind, said, number = receive_one(sock)
        challenge = b""
        if kind == CHALLENGE:
            challenge = cast("Challenge", said).nonce
            send(sock, frame(PROOF, self._meeting.prove(hello, cast("Challenge", said))))
            kind, said, number = receive_one(sock)
        if kind == CHALLENGE:
            raise BadFrame("the owner asks for a proof twice")
        if kind == REFUSED:
            error = cast("Refusal", said).error()
            if isinstance(error, Closed):
                return False
            raise error
        self._meeting.check(hello, challenge, cast("Welcome", said))
        sock.settimeout(None)
        with self.turns:
            if self._closing.is_set():  # the thread that closes has looked already
                return False
            self.durable, self._known, self._met = number, cast("Welcome", said).last, sock
        return True

    def _use(self, sock: socket.socket) -> None:
        """Go on with another owner: send again what was not answered."""
        self._unsent = Unsent()
        self._frames = FrameReader(sock, FROM_OWNER)
        self._sock, self._met = sock, None  # a signal in between makes it begin again
        for group in self._unanswered.again(self._known):
            self._unsent.add(self._unanswered.frame(group))
        self._flush(sock)
        self._tell(MET, b"")

    def lose(self) -> None:
        """The connection is gone; calls that were sent may have been done."""
        sock, self._sock = self._sock, None
        self._end_loop_driver()
        if sock is not None:
            _hang_up(sock)
        self._calls.lose()
        self._wakeup.ring()

    # -- the end ------------------------------------------------------------------------------------------

    def close(self, timeout: float) -> HoldfastError | None:
        """Let go of the owner; by the thread that closes the log, when the forwarder has ended.

        Returns what went wrong where we are the owner, and the log was closed all the same.
        """
        self._closing.set()
        with self.turns:  # a loop may be in the middle of one
            self._end_loop_driver()
            for sock in (self._sock, self._met):
                if sock is not None:
                    with suppress(OSError):
                        sock.settimeout(0.1)
                        send(sock, frame(BYE))
                    _hang_up(sock)
            self._sock = self._met = self.durable = None
            calls = self._calls.all()
        for call in calls:
            call.end(b"", Closed("the log is closed"))
        try:
            self._meeting.leave(self.session, timeout)
        except HoldfastError as error:
            return error
        finally:
            self._wakeup.close()
        return None

    def forget(self) -> None:
        """In a forked child: close our copies; the connection is the parent's, and goes on."""
        for copy in (self._sock, self._met):
            if copy is not None:
                copy.close()
        if self._loop_driver is not None:
            self._loop_driver.forget()
        self.durable = None
        self._wakeup.close()


def _hang_up(sock: socket.socket) -> None:
    """End a connection, of which a loop may have a copy."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _no_answer(name: str, timeout: float, *, is_sent: bool) -> HoldfastError:
    if is_sent:
        return OutcomeUnknown(
            f"the log's owner did not answer within {timeout:g} s call={name}", hint="look, then ask again"
        )
    return Unavailable(f"the log had no owner within {timeout:g} s call={name}", hint="ask again")
