"""A pool of warm connections on one event loop: sockets, TLS, and whether each of them still lives.

The pool owns every socket that it opened, in use or not, and keeps `target` of them open. Each one acquired is returned
with `release`, whatever happened to it; what is not fit for another request is closed there and replaced.

* A connection that the peer closed while it was idle is taken out when the loop hears of it; and since the news may
  still lie in the kernel, each is checked once more before it is handed out.
* One that was idle for `heartbeat` seconds is checked with a cheap request (`ask`), and replaced when nothing comes
  back.
* While the endpoint refuses, one attempt at a time is made, with growing pauses, however many connections are missing.
  The same goes for a peer that accepts and hangs up at once: after any failure a new connection must answer `ask`
  before it counts.
* While there is none, `acquire` waits: that is the back-pressure. It gives up with the reason of the last failure.

Nothing is polled: a quiet pool has one timer, for the heartbeat. Waiting is measured by the loop's own clock, since its
timers go by it; jitter comes from the injected one. All calls belong to the loop's thread, except `state`, and
`abandon` after a fork.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.store.pool_state import PoolState
from holdfast.store.port import Cause, StoreUnavailable
from holdfast.store.s3.connections import AsyncConnection, Endpoint, cause_of, dial, expire, tls_context

PAUSE_BASE = 0.1
PAUSE_CAP = 5.0

_CLOSE_SECONDS = 1.0

Ask = Callable[[AsyncConnection], Awaitable[None]]
Result = TypeVar("Result")


class AsyncPool:
    """Keeps connections to one endpoint open, and lends them out."""

    def __init__(
        self,
        endpoint: Endpoint,
        ask: Ask,
        *,
        target: int,
        connect_timeout: float,
        heartbeat: float,
        clock: Clock,
        ca_file: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._ask = ask
        self._target = target
        self._connect_timeout = connect_timeout
        self._heartbeat = heartbeat
        self._clock = clock
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = tls_context(ca_file) if endpoint.tls else None
        self._connections: set[AsyncConnection] = set()
        self._idle: list[AsyncConnection] = []
        """Longest idle first; taken from the end, so that few are kept busy and the others may rest."""
        self._asked: set[AsyncConnection] = set()
        self._waiters: deque[asyncio.Future[AsyncConnection]] = deque()
        self._openers: set[asyncio.Task[None]] = set()
        self._beats: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reached = False
        """Whether a connection to this endpoint was ever opened."""
        self._failures = 0
        self._cause: Cause = "timeout"
        self._replaced = self._heartbeats = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to open connections, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._replenish()

    def state(self) -> PoolState:
        """True numbers; from any thread."""
        healthy, resting = len(self._connections), len(self._idle) + len(self._asked)
        return PoolState(
            target=self._target,
            healthy=healthy,
            in_use=max(0, healthy - resting),
            opening=len(self._openers),
            replaced_total=self._replaced,
            heartbeats_total=self._heartbeats,
        )

    # -- lending

    async def acquire(self, timeout: float) -> AsyncConnection:
        """A connection that lives, to be given back with `release`; raises StoreUnavailable when none comes in time."""
        while True:
            connection = self._idle.pop() if self._idle else await self._wait(timeout)
            fit = False
            try:
                fit = await connection.still_open() and connection.endpoint == self._endpoint
            finally:
                if not fit:
                    self._remove(connection)
            if fit:
                return connection

    def release(self, connection: AsyncConnection) -> None:
        """Take a connection back; it goes to the next one who waits, to rest, or out."""
        if connection not in self._connections:
            return
        if self._closed or not connection.reusable or not connection.alive or connection.endpoint != self._endpoint:
            self._remove(connection)
            return
        connection.idle_since = self._now()
        self._offer(connection)

    def move(self, endpoint: Endpoint) -> None:
        """Connect elsewhere from now on; connections in use are closed when they come back."""
        if endpoint == self._endpoint:
            return
        if endpoint.tls and self._tls is None:
            self._tls = tls_context(self._ca_file)
        self._endpoint, self._reached, self._failures = endpoint, False, 0
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for connection in list(self._idle):
            self._idle.remove(connection)
            self._remove(connection)
        self._replenish()

    async def off_loop(self, call: Callable[[], Result]) -> Result:
        """Call it in another thread: the loop goes on."""
        return await asyncio.to_thread(call)

    async def close(self) -> None:
        """Close everything; who waits or is in the middle of a request gets an error."""
        self._closed = True
        for timer in (self._pause, self._timer):
            if timer is not None:
                timer.cancel()
        for waiter in self._waiters:
            expire(waiter, StoreUnavailable("the connections to the store are closed", cause="other", hint=""))
        tasks = [*self._openers, *self._beats]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._connections = self._connections, set()
        self._idle.clear()
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.gone for connection in connections], timeout=_CLOSE_SECONDS)

    def abandon(self) -> None:
        """In a forked child, where the loop does not run: let go of all sockets."""
        self._closed = True
        for connection in self._connections:
            connection.abandon()
        self._connections, self._idle = set(), []

    async def _wait(self, timeout: float) -> AsyncConnection:
        if self._closed:
            raise StoreUnavailable("the connections to the store are closed", cause="other", hint="")
        waiter: asyncio.Future[AsyncConnection] = self._running().create_future()
        self._waiters.append(waiter)
        self._replenish()
        timer = self._running().call_later(timeout, lambda: expire(waiter, self._none_came(timeout)))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())  # it was handed over in the same moment
            raise
        finally:
            timer.cancel()
            if waiter in self._waiters:  # it gave up: a store that is away for hours must not leave a heap of these
                self._waiters.remove(waiter)

    def _none_came(self, timeout: float) -> StoreUnavailable:
        host, port, _ = self._endpoint
        cause: Cause = self._cause if self._failures else "timeout"
        return StoreUnavailable(
            f"no connection to the store cause={cause} host={host} port={port} waited={timeout:g}s", cause=cause
        )

    def _offer(self, connection: AsyncConnection) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)
        self._schedule()

    # -- taking out and replenishing

    def _remove(self, connection: AsyncConnection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        failed_young = connection.failed_young
        connection.abort()
        if self._closed:
            return
        self._replaced += 1
        if failed_young and connection.endpoint == self._endpoint:
            self._fail("reset")
        self._replenish()

    def _disturb(self, connection: AsyncConnection) -> None:
        """An idle connection ended, or its peer sent what nobody asked for."""
        if connection in self._idle:
            self._idle.remove(connection)
            self._remove(connection)

    def _fail(self, cause: Cause) -> None:
        self._cause = cause
        if self._pause is not None or self._closed:
            return
        ceiling = min(PAUSE_CAP, PAUSE_BASE * 2 ** min(self._failures, 30))
        jitter = int.from_bytes(self._clock.random_bytes(2)) / 2**16
        self._failures += 1
        self._pause = self._running().call_later(ceiling * (0.5 + 0.5 * jitter), self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._replenish()

    def _replenish(self) -> None:
        if self._closed or self._pause is not None or self._loop is None:
            return
        missing = self._target - len(self._connections) - len(self._openers)
        if self._failures or not self._reached:
            missing = min(missing, 1 - len(self._openers))
        for _ in range(missing):
            task = self._loop.create_task(self._open())
            self._openers.add(task)
            task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._openers.discard(task)
        self._replenish()

    async def _open(self) -> None:
        connection: AsyncConnection | None = None
        endpoint, admitted = self._endpoint, False
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._connect(endpoint)
                if self._failures:
                    await self._ask(connection)
            admitted = endpoint == self._endpoint and connection.alive and not self._closed
        except (OSError, UnicodeError, HoldfastError) as error:
            if endpoint == self._endpoint:
                self._fail(cause_of(error))
        finally:
            if connection is not None and not admitted:
                connection.abort()
        if admitted and connection is not None:
            self._openers.discard(asyncio.current_task())  # it is open: each socket is counted once
            self._admit(connection)

    def _admit(self, connection: AsyncConnection) -> None:
        self._reached, self._failures = True, 0
        connection.idle_since = self._now()
        self._connections.add(connection)
        self._offer(connection)

    async def _connect(self, endpoint: Endpoint) -> AsyncConnection:
        plain = await dial(endpoint, self._connect_timeout)
        try:
            _, connection = await self._running().create_connection(
                lambda: AsyncConnection(endpoint, self._disturb),
                sock=plain,
                ssl=self._tls if endpoint.tls else None,
                server_hostname=endpoint.host if endpoint.tls else None,
            )
        except BaseException:
            plain.close()
            raise
        return connection

    # -- heartbeats

    def _schedule(self) -> None:
        if self._timer is None and self._idle and len(self._asked) < self._asked_max and not self._closed:
            self._timer = self._running().call_at(self._idle[0].idle_since + self._heartbeat, self._beat)

    @property
    def _asked_max(self) -> int:
        """Only some are asked at a time: requests that come meanwhile find others."""
        return max(1, self._target // 4)

    def _beat(self) -> None:
        self._timer = None
        due = self._now() - self._heartbeat + 0.001
        while self._idle and self._idle[0].idle_since <= due and len(self._asked) < self._asked_max:
            connection = self._idle.pop(0)
            self._asked.add(connection)
            self._spawn_beat(self._examine(connection))
        self._schedule()

    def _spawn_beat(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._running().create_task(work)
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)

    async def _examine(self, connection: AsyncConnection) -> None:
        self._heartbeats += 1
        connection.reusable = False
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._ask(connection)
        except (OSError, HoldfastError) as error:
            if connection.endpoint == self._endpoint:
                self._fail(cause_of(error))
        finally:
            self._asked.discard(connection)
            self.release(connection)
            self._schedule()

    def _running(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the pool was not started"
        return self._loop

    def _now(self) -> float:
        return self._running().time()
