"""All connections of one server: how many there are, whose they are, how slow they may be, and their end.

A connection beyond the limit is cut off at once. Instead of timers for each, all of them are looked at a few times in
the shortest of the limits: each counts the looks for which it has waited for its client, so that a server that was
held up itself blames nobody for it. Used by the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from email.utils import formatdate

from holdfast.clock import Clock
from holdfast.server.connections.asgi_exchange import AsgiExchange
from holdfast.server.connections.http_connection import HttpConnection
from holdfast.server.guards.places import Places
from holdfast.server.request_caller import Caller
from holdfast.server_settings import ServerSettings

_log = logging.getLogger("holdfast.server")


class ConnectionGuard:
    """What all connections of one server share, and what looks after them."""

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        self.headers_bytes_max = settings.headers_bytes_max
        self.handshake_s = settings.headers_timeout_ms / 1000
        self.send_timeout_ms = settings.send_timeout_ms
        times = settings.headers_timeout_ms, settings.body_timeout_ms, settings.idle_timeout_ms
        shortest = min(*times, settings.send_timeout_ms)
        self._pause_s = min(1.0, shortest / 4000)
        head, body, idle, send = (1 + math.ceil(ms / 1000 / self._pause_s) for ms in (*times, settings.send_timeout_ms))
        self.looks_for = {"first request": head, "head": head, "body": body, "request": idle, "goodbye": head}
        """How many times a connection may be found waiting for this."""
        self.looks_while_sending = send
        self._clock = clock
        self.date_line = self._date_line()
        """The header that says what time it is."""
        self.open: set[HttpConnection] = set()
        self.at_work: set[AsgiExchange] = set()
        """Requests that the application has not done with; their clients may have gone."""
        self.refused = 0
        self._most = settings.connections_max
        self._places = Places(self._most, "connections", settings.token_share)
        self._is_ending = False
        self._is_empty = asyncio.Event()

    def admit(self, connection: HttpConnection) -> bool:
        """Count one more; False where there are too many, or the server ends."""
        if connection in self.open:
            return True
        if self._is_ending:
            return False
        if len(self.open) >= self._most:
            self.refused += 1
            if self.refused == 1:
                _log.warning("connections are refused max=%d", self._most, extra={"action": "connections_refused"})
            return False
        self.open.add(connection)
        return True

    def claim(self, connection: HttpConnection, caller: Caller) -> None:
        """A token has sent a request over a connection, which counts as its own; Full where it has too many."""
        is_open = connection in self.open  # one that is gone must not take a place: nobody would give it back
        if is_open and (connection.caller is None or connection.caller.id != caller.id):
            self._places.take(caller)
            self._give_back(connection)
            connection.caller = caller

    def _give_back(self, connection: HttpConnection) -> None:
        if connection.caller is not None:
            self._places.give_back(connection.caller)
            connection.caller = None

    def drop(self, connection: HttpConnection) -> None:
        """One less."""
        self.open.discard(connection)
        self._give_back(connection)
        if self.refused and len(self.open) < self._most // 2:
            self.refused = 0  # the next time is worth a word again
        if self._is_ending:
            self._look_for_the_end()

    def done(self, exchange: AsgiExchange) -> None:
        """The application has done with a request."""
        self.at_work.discard(exchange)
        if self._is_ending:
            self._look_for_the_end()

    async def watch(self) -> None:
        """For as long as the server runs: cut off late clients, and know the time."""
        while True:
            await asyncio.sleep(self._pause_s)
            self.date_line = self._date_line()
            for connection in list(self.open):
                connection.look()

    def _date_line(self) -> bytes:
        return b"date: %b\r\n" % formatdate(self._clock.now_us() / 1_000_000, usegmt=True).encode()

    # -- the end ------------------------------------------------------------------------------------------

    def _look_for_the_end(self) -> None:
        if not self.open and not self.at_work:
            self._is_empty.set()

    async def end(self, cut: asyncio.Semaphore, seconds: float) -> None:
        """Finish what has begun, for so long at most or until `cut` can be acquired; then cut off what is left."""
        self._is_ending = True
        for connection in list(self.open):
            connection.shut_down()
        self._look_for_the_end()
        waiting = [asyncio.ensure_future(one) for one in (self._is_empty.wait(), cut.acquire())]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for connection in self.open:
            connection.transport.abort()
        tasks = [*waiting, *(exchange.task for exchange in self.at_work if exchange.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
