"""Connections for threads: each blocks the one that uses it, and rests in a pool when nobody does.

What the sockets of a loop are to shipping, these are to readers, restore and reconciliation: the same exchanges go over
both. Their methods are coroutines that never wait for a loop, so `run_now` runs one to its end where it is called.

At most `CONNECTIONS_MAX` are in use at a time; who comes when all are in use waits. The one used last is used next, is
checked before it is handed out, and is closed when it was idle for long. Nothing beats and nothing polls: there is no
thread here. After a fork the child's pool is another one (`abandon`): sockets are never shared between processes.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from struct import pack
from typing import Any, TypeVar

from holdfast.clock import SystemClock
from holdfast.store.pool_state import PoolState
from holdfast.store.port import StoreUnavailable
from holdfast.store.s3.connections import Endpoint, alternating, cause_of, seconds_per_address, tls_context

CONNECTIONS_MAX = 32
IDLE_MAX = 16
IDLE_SECONDS = 50.0
"""Less than what servers and firewalls bear."""

_RECEIVE_BYTES = 64 * 1024
_LARGE_BYTES = 256 * 1024
"""From here on it pays to let the kernel wait for all of it."""

Result = TypeVar("Result")
_monotonic = SystemClock().monotonic  # sockets wait by the machine's own clock, whatever the log's is


def run_now(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that waits for nothing but blocking connections."""
    try:
        work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    work.close()
    raise AssertionError("a request waited for a loop where there is none")


class BlockingConnection:
    """One socket, used by one thread at a time."""

    def __init__(self, endpoint: Endpoint, opened: socket.socket, generation: int) -> None:
        self.endpoint = endpoint
        self.generation = generation
        self.served = 0
        self.reusable = True
        self.ended = False
        self.idle_since = 0.0
        self._socket = opened
        self._poller = select.poll()
        self._is_tls = isinstance(opened, ssl.SSLSocket)
        opened.settimeout(0)  # polled instead, where that is possible: it costs fewer calls of the kernel

    @property
    def has_data(self) -> bool:
        """Not known; each is looked at before it is handed out again."""
        return False

    def now(self) -> float:
        """The machine's monotonic clock."""
        return _monotonic()

    async def off_loop(self, call: Callable[[], Result]) -> Result:
        """Call it here: this thread has nothing else to do."""
        return call()

    async def send(self, data: bytes | memoryview, seconds: float) -> bool:
        """Send bytes; False when the peer answered or hung up before all of them went."""
        try:
            if self._is_tls:  # where bytes may come that are no answer
                self._socket.settimeout(seconds)
                self._socket.sendall(data)
                return True
            return self._send_unless_answered(memoryview(data), _monotonic() + seconds)
        except TimeoutError:
            raise
        except OSError:
            return False  # an answer may lie there nevertheless: reading tells

    def _send_unless_answered(self, data: memoryview, deadline: float) -> bool:
        while True:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                pass
            if not data:
                return True
            events = self._poll(select.POLLIN | select.POLLOUT, deadline - _monotonic())
            if not events:
                raise TimeoutError
            if events & select.POLLIN:
                return False

    async def receive(self, seconds: float) -> bytes:
        """What comes next; empty when it has ended."""
        if not self._is_tls:
            self._wait(seconds)  # nothing can be there yet: it was only just asked for
        data = self._read(lambda: self._socket.recv(_RECEIVE_BYTES), seconds) or b""
        self.ended = not data
        return data

    async def fill(self, place: memoryview, seconds: float) -> int:
        """What comes next, put there by the kernel."""
        large = len(place) >= _LARGE_BYTES and not self._is_tls
        read = partial(self._fill_all, place, seconds) if large else partial(self._socket.recv_into, place)
        count = self._read(read, seconds) or 0
        self.ended = not count
        return count

    def _fill_all(self, place: memoryview, seconds: float) -> int:
        """All that is asked for, or what came in time: the kernel waits, and other threads run meanwhile."""
        microseconds = max(1, int(seconds * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("@ll", *divmod(microseconds, 10**6)))
        self._socket.setblocking(True)
        try:
            return self._socket.recv_into(place, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError from None
        finally:
            self._socket.setblocking(False)

    def _read(self, read: Callable[[], Result], seconds: float) -> Result | None:
        """What was read; None when the connection broke."""
        try:
            if self._is_tls:
                self._socket.settimeout(seconds)
                return read()
            while True:
                try:
                    return read()
                except BlockingIOError:
                    self._wait(seconds)
        except TimeoutError:
            raise
        except OSError:
            return None

    def _wait(self, seconds: float) -> None:
        if not self._poll(select.POLLIN, seconds):
            raise TimeoutError

    def still_open(self) -> bool:
        """Whether the peer has not hung up, and has not talked out of turn."""
        return not self.ended and (not self._is_readable() or self._is_quiet())

    def close(self) -> None:
        """Close the socket; in a forked child it stays the parent's."""
        self.ended = True
        self._socket.close()

    def _is_readable(self) -> bool:
        return bool(self._poll(select.POLLIN, 0))

    def _is_quiet(self) -> bool:
        """Something lies there: whether it is nothing but TLS's own business."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        except OSError:
            pass
        return False

    def _poll(self, events: int, seconds: float) -> int:
        self._poller.register(self._socket, events)
        found = self._poller.poll(max(0.0, seconds) * 1000)
        return found[0][1] if found else 0


class BlockingPool:
    """Lends connections to threads, and opens them when there is none."""

    def __init__(self, endpoint: Endpoint, *, wait: float, ca_file: str = "") -> None:
        self._endpoint = endpoint
        self._wait = wait
        self._ca_file = ca_file
        # A file is looked at now, so that a wrong name is reported at once; the system's own certificates can wait.
        self._tls: ssl.SSLContext | None = tls_context(ca_file) if ca_file else None
        self._free = threading.Condition(threading.Lock())
        self._in_use = self._waiting = 0
        self._idle: list[BlockingConnection] = []
        self._open: set[BlockingConnection] = set()
        self._generation = 0
        weakref.finalize(self, _close_all, self._open)  # a store that is forgotten leaves no socket behind

    def state(self) -> PoolState:
        """True numbers, from any thread."""
        return PoolState(beside=len(self._open))

    async def acquire(self, timeout: float) -> BlockingConnection:
        """A connection that lives; raises StoreUnavailable when none can be opened in time."""
        connection = self._rested()
        try:
            while connection is not None and not self._is_fit(connection):
                self._discard(connection)
                connection = self._next_rested()
            return connection or self._connect(timeout)
        except BaseException:
            self._let_go()
            raise

    def release(self, connection: BlockingConnection) -> None:
        """Take a connection back, to rest or to be closed."""
        connection.idle_since = _monotonic()
        fit = connection.reusable and not connection.ended and connection.endpoint == self._endpoint
        out: BlockingConnection | None = connection
        with self._free:
            if fit and connection.generation == self._generation and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                rested_long = connection.idle_since - self._idle[0].idle_since > IDLE_SECONDS
                out = self._idle.pop(0) if rested_long else None
        if out is not None:
            self._discard(out)
        self._let_go()

    def move(self, endpoint: Endpoint) -> None:
        """Connect elsewhere from now on."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._drop_idle()

    async def off_loop(self, call: Callable[[], Result]) -> Result:
        """Call it here."""
        return call()

    def close(self) -> None:
        """Close what rests now, and what is in use when it comes back; later requests open new ones."""
        self._generation += 1
        self._drop_idle()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets. The locks are the parent's as well."""
        _close_all(self._open)

    def _rested(self) -> BlockingConnection | None:
        """The right to use one more, and the connection that was used last, if one rests."""
        with self._free:
            if self._in_use >= CONNECTIONS_MAX:
                self._waiting += 1
                came = self._free.wait_for(lambda: self._in_use < CONNECTIONS_MAX, self._wait)
                self._waiting -= 1
                if not came:
                    raise StoreUnavailable(
                        f"all connections to the store are in use count={CONNECTIONS_MAX} waited={self._wait:g}s",
                        cause="timeout",
                    )
            self._in_use += 1
            return self._idle.pop() if self._idle else None

    def _next_rested(self) -> BlockingConnection | None:
        with self._free:
            return self._idle.pop() if self._idle else None

    def _is_fit(self, connection: BlockingConnection) -> bool:
        return connection.endpoint == self._endpoint and connection.still_open()

    def _let_go(self) -> None:
        with self._free:
            self._in_use -= 1
            if self._waiting:
                self._free.notify()

    def _drop_idle(self) -> None:
        with self._free:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)

    def _discard(self, connection: BlockingConnection) -> None:
        self._open.discard(connection)
        connection.close()

    def _connect(self, timeout: float) -> BlockingConnection:
        endpoint, generation = self._endpoint, self._generation
        try:
            connection = BlockingConnection(endpoint, self._dial(endpoint, timeout), generation)
        except (OSError, UnicodeError) as error:
            cause = cause_of(error)
            raise StoreUnavailable(
                f"no connection to the store cause={cause} host={endpoint.host} port={endpoint.port}", cause=cause
            ) from error
        self._open.add(connection)
        return connection

    def _dial(self, endpoint: Endpoint, timeout: float) -> socket.socket:
        """A socket to the first of a server's addresses that answers, the families in turn."""
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        seconds = seconds_per_address(found, timeout)
        error: OSError = socket.gaierror("the name has no address")
        for family, _, protocol, _, address in alternating(found):
            dialled = socket.socket(family, socket.SOCK_STREAM, protocol)
            try:
                dialled.settimeout(seconds)
                dialled.connect(address)
                dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._secured(dialled, endpoint, timeout) if endpoint.tls else dialled
            except OSError as failure:
                dialled.close()
                error = failure
            except BaseException:
                dialled.close()
                raise
        raise error

    def _secured(self, plain: socket.socket, endpoint: Endpoint, timeout: float) -> ssl.SSLSocket:
        if self._tls is None:
            self._tls = tls_context(self._ca_file)
        plain.settimeout(timeout)
        return self._tls.wrap_socket(plain, server_hostname=endpoint.host)


def _close_all(connections: set[BlockingConnection]) -> None:
    for connection in list(connections):
        connection.close()
