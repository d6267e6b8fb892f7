"""The host: in the process that owns a log, the thread that serves the others.

One thread for all connections. It takes frames apart, puts what they forward into the owner's queue, and sends an
answer when the group that it went into is durable: the writer wakes this thread once per group, however many clients
take part in it. It never waits for one client, for the disk or for room in the queue: a client whose group has no room
is not read any further until there is some. Then whatever others send stands in line behind it: small groups would
else take all the room that ever comes, and a large one would wait forever. Calls run in threads of their own.

A client that breaks the protocol, does not read its answers or is another user is disconnected; the log goes on.
Everything is bounded: connections, bytes that are on their way, bytes that wait to be sent, calls at once.

Draining: the host stops listening and reading, answers all that it has taken, tells the clients, and ends. What they
sent and was not read they send again to the next owner.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread, current_thread
from typing import TYPE_CHECKING, NamedTuple, cast

from holdfast.clock import Clock
from holdfast.errors import Closed, Full, HoldfastError
from holdfast.owner.group_frames import GroupReader
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.peer import Peer
from holdfast.owner.wire import (
    ANSWER,
    BYE,
    CALL,
    CLOSING,
    EVENT,
    GROUP,
    HELLO,
    PROOF,
    REFUSED,
    WELCOME,
    BadFrame,
    Call,
    Challenge,
    GroupAnswer,
    Header,
    Hello,
    OwnerEvent,
    Proof,
    Welcome,
    decoded,
    frame,
    from_client,
    refusal,
)
from holdfast.sharing import socket_place
from holdfast.sharing.hosting.call_runner import CallRunner
from holdfast.sharing.hosting.client_connection import ClientConnection
from holdfast.sharing.hosting.listening import Listening, turn_away
from holdfast.sharing.wakeup_pipe import WakeupPipe
from holdfast.telemetry import collecting
from holdfast.telemetry.metric import MetricPoint
from holdfast.telemetry.metric_list import shared

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.journal.queue.forwarded import ForwardedTicket, Item

Guard = Callable[["list[Item]"], tuple["list[Item]", Callable[[], None]]]
"""Gives back what is forwarded, with what must not be written refused; and what to call when it was queued, or not."""
Greeting = Callable[[Hello, bytes, bytes], Welcome | Challenge]
"""Checks a hello, with the challenge and the proof that came of it, both empty at first; raises what refuses it."""

_HELLO_S = 10.0
_FRAME_S = 60.0
"""How long a client may take to say who it is, and to send the rest of a frame that it has begun."""
_LOOK_AGAIN_S = 1.0
_LAST_CALLS_S = 2.0

logger = logging.getLogger("holdfast.sharing")


class _Parked(NamedTuple):
    """A group for which there was no room."""

    sequence: int
    floor: int
    items: list[Item]


class Host:
    """Serves the clients of one owner.

    All of it is the host's thread's, but for what others leave there: `_left` (a deque) and `_ending`. They look at
    `_welcomed`, which is replaced and never changed.
    """

    def __init__(self, journal: Journal, listening: Listening, greet: Greeting, clock: Clock) -> None:
        self._journal = journal
        self._listening = listening
        self._greet = greet
        self._clock = clock
        self._reader = GroupReader(journal.partitions, journal.settings)
        body_max = 2 * journal.settings.queue_bytes_max
        self._limits = from_client(body_max)
        self._held_max = 2 * body_max
        self._call_runner = CallRunner(self._tell)
        self.guard: Guard = lambda items: (items, lambda: None)
        """Looks at what is forwarded before it is queued."""
        self._connections: dict[int, ClientConnection] = {}
        self._welcomed: tuple[Peer, ...] = ()
        self._connections_max = socket_place.connections_max()
        self._looked_at = 0.0
        self._numbers = 0
        self._waiting: deque[tuple[ForwardedTicket, ClientConnection, int]] = deque()
        """Forwarded groups that are in the owner's queue, in order; whose they are, and their sequence."""
        self._parked: dict[ClientConnection, _Parked] = {}
        """Groups for which there was no room, in line; and whether room will be announced."""
        self._awaits_room = False
        self._left: deque[tuple[ClientConnection, list[bytes | memoryview]]] = deque()
        """What other threads want to have sent."""
        self._selector = selectors.DefaultSelector()
        self._wakeup = WakeupPipe()
        self.wake = self._wakeup.ring
        """Something may be there to do; from any thread."""
        self._ending: str | None = None
        self.is_welcoming = True  # a client that comes while it is not tries again
        self._calls_until = 0.0
        """How long calls that are under way are waited for, when it ends."""
        self._last_group: object = None
        self._thread = Thread(target=self._work, name="holdfast-host", daemon=True)

    def start(self) -> None:
        """Listen, and begin to serve; where that is not possible, nothing of it stays open."""
        try:
            self._listening.open(self._selector, self._clock.monotonic())
            self._selector.register(self._wakeup.fileno(), selectors.EVENT_READ, None)
            self._thread.start()
        except BaseException:
            self._end()
            raise
        collecting.watch(self, _points)

    def answer_with(self, owner: LogOwner) -> None:
        """Answer what clients ask for with this; before it starts."""
        self._call_runner.owner, self.guard = owner, owner.consumers.guard

    @property
    def is_alive(self) -> bool:
        """Whether anybody is served."""
        return self._thread.is_alive()

    def numbers(self) -> tuple[str, int, int]:
        """The log, how many clients there are now, and how many sessions are remembered."""
        return self._journal.log_id.hex(), len(self.callers()), self._journal.sessions.count

    def callers(self) -> list[Peer]:
        """The clients that were welcomed."""
        return list(self._welcomed)

    def others(self, session: bytes) -> int:
        """How many there are beside this one."""
        return sum(one.session != session for one in self.callers())

    def publish(self, name: str, body: bytes, to: Callable[[Peer], bool] = lambda caller: True) -> None:
        """Tell clients something; from any thread."""
        for caller in self._welcomed:
            if to(caller):
                caller.tell(name, body)

    def drain(self, timeout: float) -> bool:
        """Stop listening and reading, answer all that was taken, and end; False when that takes longer."""
        self._calls_until = self._clock.monotonic() + _LAST_CALLS_S
        self.stop(timeout, "drain")
        return not self._thread.is_alive()

    def stop(self, timeout: float, ending: str = "stop") -> None:
        """End at once: the owner cannot go on."""
        self._ending = ending
        self.wake()
        if self._thread is not current_thread():
            self._thread.join(timeout)

    def forget(self) -> None:
        """In a forked child: close our copies of what the parent goes on with."""
        self._listening.forget()
        for connection in self._connections.values():
            connection.sock.close()
        self._selector.close()
        self._wakeup.close()

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._is_over():
                self._turn()
        except BaseException as error:
            logger.critical("the host of a shared log ended: %s", error, extra={"action": "host_died"}, exc_info=error)
        finally:
            self._end()

    def _turn(self) -> None:
        self._wakeup.arm()  # before we look: what comes from now on wakes us
        busy = self._answer() or bool(self._left)
        patience = 0.005 if self._parked or self._ending else self._listening.patience
        ready = self._selector.select(0 if busy else patience)
        self._wakeup.disarm(rang=any(key.data is None for key, _ in ready))
        received: list[ClientConnection] = []
        for key, mask in ready:
            if isinstance(key.data, ClientConnection):
                if self._receive(key.data, mask):
                    received.append(key.data)
            elif key.data is self._listening:
                self._accept()
        # Now, and not between two reads, where the writer would wake up and commit what the first of them sent alone.
        for connection in received:
            self._serve(connection)
        self._retry_parked()
        self._send_left()
        self._answer()
        self._drop_slow()
        self._listening.look(self._clock.monotonic())

    def _is_over(self) -> bool:
        if self._ending is None:
            return False
        if self._listening.is_open:
            self._stop_listening()
        if self._ending == "stop":
            return True
        self._answer()
        has_calls = any(one.calls for one in self._connections.values())  # first: what came of them is sent before
        self._send_left()
        is_late = self._clock.monotonic() > self._calls_until  # their callers learn that nobody knows
        return not self._waiting and (is_late or not has_calls)

    def _stop_listening(self) -> None:
        self._listening.close()
        for connection in self._connections.values():
            connection.is_paused = True
            self._watch(connection)

    def _end(self) -> None:
        if self._listening.is_open:
            with suppress(Exception):
                self._stop_listening()
        for connection in list(self._connections.values()):
            connection.send(frame(CLOSING))
            connection.sock.setblocking(True)
            connection.sock.settimeout(1.0)
            connection.flush()
            self._close(connection)
        self._call_runner.end()
        self._selector.close()
        self._wakeup.close()

    # -- connections --------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for sock in self._listening.accepted(self._clock.monotonic()):
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        if len(self._connections) >= self._connections_max:
            hint = "close some; the limit is half of what RLIMIT_NOFILE allows the owner"
            turn_away(sock, Full(f"the log has {self._connections_max} clients already", hint=hint))
            return
        sock.setblocking(False)
        socket_place.widen(sock)
        self._numbers, connection = self._numbers + 1, ClientConnection(sock, self._numbers + 1)
        connection.since = self._clock.monotonic()
        self._connections[self._numbers] = connection
        self._watch(connection)

    def _receive(self, connection: ClientConnection, mask: int) -> bool:
        """Send what waits to be sent, and take the bytes that are there; whether the other end is there, too."""
        if not connection.is_open:
            return False
        if mask & selectors.EVENT_WRITE and not connection.flush():
            self._disconnect(connection, "it does not read")
        elif mask & selectors.EVENT_READ and not connection.receive():
            self._close(connection)
        return connection.is_open

    def _disconnect(self, connection: ClientConnection, reason: object) -> None:
        logger.warning("a client was disconnected: %s", reason, extra={"action": "client_disconnected"})
        self._close(connection)

    def _serve(self, connection: ClientConnection) -> None:
        """Handle the whole frames that were received."""
        try:
            connection.work(self._handle, self._may_hold)
        except BadFrame as error:
            self._disconnect(connection, error)
            return
        if not connection.has_begun:
            connection.since = 0.0 if connection.caller is not None else connection.since
        elif not connection.since:
            connection.since = self._clock.monotonic()
        self._watch(connection)

    def _may_hold(self, size: int) -> bool:
        return size + sum(one.holds for one in self._connections.values()) <= self._held_max

    def _watch(self, connection: ClientConnection) -> None:
        """Wait for what this connection can do next."""
        if not connection.is_open:
            return
        events = 0 if connection.is_paused else selectors.EVENT_READ
        if connection.has_unsent:
            events |= selectors.EVENT_WRITE
        watched, connection.watched = connection.watched, events
        if not watched and events:
            self._selector.register(connection.sock, events, connection)
        elif watched and not events:
            self._selector.unregister(connection.sock)
        elif watched != events:
            self._selector.modify(connection.sock, events, connection)

    def _close(self, connection: ClientConnection) -> None:
        if connection.is_open:
            with suppress(KeyError, ValueError):
                self._selector.unregister(connection.sock)
            self._connections.pop(connection.number, None)
            self._parked.pop(connection, None)
            connection.close()
            self._welcomed = tuple(one for one in self._welcomed if one is not connection.caller)

    def _drop_slow(self) -> None:
        """Disconnect who has not said who it is, or began a frame long ago."""
        now = self._clock.monotonic()
        if now - self._looked_at < _LOOK_AGAIN_S:
            return
        self._looked_at = now
        for connection in list(self._connections.values()):
            limit = _HELLO_S if connection.caller is None else _FRAME_S
            if connection.since and not connection.is_paused and now - connection.since > limit:
                self._close(connection)

    # -- frames -------------------------------------------------------------------------------------------

    def _handle(
        self, connection: ClientConnection, found: Header, head: memoryview, body: memoryview, keeps: bool
    ) -> None:
        if found.kind == GROUP:
            group, items = self._reader.read(head, body, keeps=keeps)
            self._take(connection, _Parked(group.sequence, group.floor, items))
        elif found.kind == CALL:
            self._call_runner.begin(connection, cast("Call", decoded(CALL, head)), bytes(body))
        elif found.kind == HELLO:
            self._welcome(connection, cast("Hello", decoded(HELLO, head)), b"")
        elif found.kind == PROOF:
            assert connection.hello is not None  # before that no such frame is let in
            self._welcome(connection, connection.hello, cast("Proof", decoded(PROOF, head)).proof)
        elif found.kind == BYE:
            self._close(connection)

    def _welcome(self, connection: ClientConnection, hello: Hello, proof: bytes) -> None:
        try:
            if self._ending or not self.is_welcoming:
                raise Closed("the owner of the log ends, or does not welcome anybody at the moment")
            welcome = self._greet(hello, connection.challenge, proof)
        except HoldfastError as error:
            connection.send(frame(REFUSED, refusal(error)))
            connection.flush()
            self._close(connection)
            return
        if isinstance(welcome, Challenge):
            if not connection.ask_for_proof(hello, welcome):
                self._close(connection)
            return
        connection.caller = Peer(
            hello.session,
            hello.pid,
            lambda name, body: self._tell(connection, frame(EVENT, OwnerEvent(name), body)),
            is_member=hello.shares,
        )
        self._welcomed = (*self._welcomed, connection.caller)
        connection.limits = self._limits
        connection.since = 0.0
        if not connection.welcome(frame(WELCOME, welcome), self._journal.durable_groups()):
            self._close(connection)

    def _take(self, connection: ClientConnection, group: _Parked) -> None:
        """Put a group into the owner's queue, or in line; what is known already needs no room, and is answered."""
        assert connection.caller is not None
        sessions, session = self._journal.sessions, connection.caller.session
        if self._parked and not sessions.is_known(session, group.sequence, group.floor):
            self._park(connection, group)
        else:
            self._put(connection, group)

    def _park(self, connection: ClientConnection, group: _Parked) -> None:
        self._parked[connection] = group  # one that was in line keeps its place
        connection.is_paused = True

    def _put(self, connection: ClientConnection, group: _Parked) -> bool:
        """Put a group into the owner's queue; False: there is no room, and it is in line."""
        assert connection.caller is not None
        items, queued = self.guard(group.items)
        try:
            forwarded = self._journal.sessions.put(connection.caller.session, group.sequence, group.floor, items, 0)
        except Full:
            self._park(connection, group)
            if not self._awaits_room:
                self._awaits_room = True
                self._journal.room.call(self._room_came)
            return False
        except Closed:  # it is about to end, or has failed: the next owner gets it
            connection.is_paused = True
            self._ending = self._ending or "stop"
        except HoldfastError as error:
            self._send_answer(connection, GroupAnswer(group.sequence, (), refusal(error)))
        else:
            group_of = forwarded.group
            if group_of is None:  # it was known already: it waits for nobody
                self._send_answer(connection, GroupAnswer(group.sequence, forwarded.outcomes()))
                return True
            self._waiting.append((forwarded, connection, group.sequence))
            if group_of is not self._last_group:
                self._last_group = group_of
                group_of.signal.call(self.wake)
        finally:
            queued()
        return True

    def _retry_parked(self) -> None:
        """Put what is in line, in order, as far as there is room."""
        while self._parked:
            if self._ending is not None:  # the next owner gets them
                self._parked.clear()
                return
            connection, group = next(iter(self._parked.items()))
            connection.is_paused = False
            if not self._put(connection, group):
                return
            self._parked.pop(connection, None)
            try:
                connection.work(self._handle, self._may_hold)
            except BadFrame:
                self._close(connection)
                continue
            self._watch(connection)

    def _room_came(self) -> None:
        self._awaits_room = False
        self.wake()

    # -- answers ------------------------------------------------------------------------------------------

    def _answer(self) -> bool:
        """Answer the groups that are durable or refused; whether there were any."""
        touched: set[ClientConnection] = set()
        if self._journal.end is not None:  # it failed: what is stored is known to the next owner
            self._ending = self._ending or "stop"
            return False
        while self._waiting and self._waiting[0][0].done:
            forwarded, connection, sequence = self._waiting.popleft()
            if connection.is_open:
                connection.send(frame(ANSWER, GroupAnswer(sequence, forwarded.outcomes())))
                touched.add(connection)
        for connection in touched:
            self._flush(connection)
        return bool(touched)

    def _send_answer(self, connection: ClientConnection, answer: GroupAnswer) -> None:
        connection.send(frame(ANSWER, answer))
        self._flush(connection)

    def _flush(self, connection: ClientConnection) -> None:
        if connection.is_open:
            if not connection.flush():
                self._close(connection)
            elif connection.has_unsent:
                self._watch(connection)

    # -- what other threads want to have sent ---------------------------------------------------------------

    def _tell(self, connection: ClientConnection, buffers: list[bytes | memoryview]) -> None:
        self._left.append((connection, buffers))
        self.wake()

    def _send_left(self) -> None:
        touched: set[ClientConnection] = set()
        while self._left:
            connection, buffers = self._left.popleft()
            if connection.is_open:
                connection.send(buffers)
                touched.add(connection)
        for connection in touched:
            self._flush(connection)


def _points(host: Host) -> Iterator[MetricPoint]:
    return shared(*host.numbers()) if host.is_alive else iter(())
