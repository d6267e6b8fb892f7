"""From an open log to a listening process, and back: bind, serve, and end without losing anything.

The port is bound before anything is said, so a line on stderr means that requests are answered. A server that listens
beyond loopback has tokens, or does not start. On SIGTERM or SIGINT it takes no new connections, ends followers with a
word, finishes the requests that are at work, and then returns; the program that opened the log closes it. A second
signal, or `server.shutdown_timeout_ms`, cuts off what is left: the log is closed in order in any case.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.clock import SystemClock
from holdfast.errors import Invalid, Unavailable
from holdfast.log.log import Log
from holdfast.process_lifetime import at_end_signals
from holdfast.remote.http.server_connections import harden
from holdfast.server.access import Access
from holdfast.server.application import Application
from holdfast.server.connections.connection_guard import ConnectionGuard
from holdfast.server.connections.http_connection import HttpConnection
from holdfast.server.connections.tls_gate import TlsGate
from holdfast.server.guards.browser_guard import BrowserGuard, is_loopback
from holdfast.server.served import Served
from holdfast.server.tokens import FILE, TokenFile, TokenMemory
from holdfast.server_settings import ServerSettings

_THREADS = 32
_ACCEPTED, _WAITING = 16, 512
"""Connections that are accepted in one turn of the loop, before they are counted; and those that may wait for it."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """As it stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`127.0.0.1:7474`, `[::1]:7474` or `localhost:7474`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host.strip("[]"):
        raise Invalid("an address is a host and a port", hint="for instance 127.0.0.1:7474, or [::1]:7474")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise Invalid("an IPv6 address stands in brackets", hint="for instance [::1]:7474")
    return Address(host.strip("[]"), int(port))


def token_file(log: Log, settings: ServerSettings, *, may_be_lost: bool) -> TokenFile:
    """A log's tokens; Invalid where it had some and they are not there."""
    path = log.path / FILE if settings.tokens is None else Path(settings.tokens)
    memory = TokenMemory(log)
    if not (os.path.lexists(path) or may_be_lost or settings.token) and memory.changes:
        raise Invalid(
            f"this log had tokens, and their file is not there path={path}",
            hint="make tokens again (holdfast token create DIR NAME …), or put the file back;"
            " --no-tokens serves without, to everybody on this machine",
        )
    return TokenFile(path, memory)


class HttpServer:
    """One log, served over HTTP; made, then run."""

    def __init__(self, log: Log, settings: ServerSettings | None = None, *, no_tokens: bool = False) -> None:
        """Binds the port; Invalid or Unavailable where that must not or cannot be.

        `no_tokens`: a log that had tokens, and lost their file, is served without.
        """
        self.settings = settings or log.settings.server
        self._log = log
        self._clock = SystemClock()
        asked = parse_address(self.settings.listen)
        tokens = token_file(log, self.settings, may_be_lost=no_tokens)
        self.access = Access(tokens, self.settings.token, self._clock, self.settings.rate_max)
        self._context = _tls(self.settings)
        found = _resolved(asked)
        if no_tokens and self.access.is_needed:
            raise Invalid("there are tokens, and --no-tokens says that there are none", hint="leave one of them out")
        if not self.access.is_needed and not all(is_loopback(one[4][0]) for one in found):
            raise Invalid(
                f"a server without tokens listens on loopback only listen={asked.text}",
                hint="make a token first: holdfast token create DIR NAME --scope read --topic '*'",
            )
        self._is_loopback = all(is_loopback(one[4][0]) for one in found)
        self._sockets = _bound(found, asked)
        self.address = Address(asked.host, self._sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{'http' if self._context is None else 'https'}://{self.address.text}"

    @property
    def is_exposed(self) -> bool:
        """Whether tokens would cross a network in the clear."""
        return self._context is None and not self._is_loopback

    def run(self, started: Callable[[], None]) -> None:
        """Serve until a signal; `started` is called once requests are answered."""
        try:
            asyncio.run(self.serve(started))
        finally:
            self.close()

    async def serve(self, started: Callable[[], None]) -> None:
        """The same on a running loop."""
        guard = BrowserGuard(self.address.host, self.settings.hosts, is_loopback=self._is_loopback)
        served = Served(self._log, self.settings, self.access, guard, self._clock)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "holdfast-http"))
        application, connections = Application(served), ConnectionGuard(self.settings, self._clock)
        watching = asyncio.ensure_future(connections.watch())
        self._loop, self._stops = asyncio.get_running_loop(), asyncio.Semaphore(0)
        try:
            with at_end_signals(self.stop):
                listening = [await self._listen(one, application, connections) for one in self._sockets]
                started()
                await self._stops.acquire()
                for one in listening:
                    one.close()
                served.draining.set()
                await connections.end(self._stops, self.settings.shutdown_timeout_ms / 1000)
        finally:
            watching.cancel()
            served.close()

    async def _listen(
        self, place: socket.socket, application: Application, connections: ConnectionGuard
    ) -> asyncio.Server:
        def connection() -> asyncio.Protocol:
            inner = HttpConnection(application, connections)
            return inner if self._context is None else TlsGate(inner, self._context, connections)

        found = await asyncio.get_running_loop().create_server(connection, sock=place, backlog=_ACCEPTED)
        place.listen(_WAITING)
        return found

    def stop(self) -> None:
        """End, from any thread, as a signal does; the second time at once."""
        self._loop.call_soon_threadsafe(self._stops.release)

    def close(self) -> None:
        """Let go of the port."""
        for one in self._sockets:
            one.close()


def _resolved(address: Address) -> list[Any]:
    try:
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise Invalid(f"there is no such address listen={address.text}", hint="for instance 127.0.0.1:7474") from None


def _bound(found: list[Any], address: Address) -> list[socket.socket]:
    """A socket for each of the name's addresses, on one port."""
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, place in found:
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((place[0], port, *place[2:]))
            port = one.getsockname()[1]
    except OSError as error:
        for one in sockets:
            one.close()
        raise Unavailable(
            f"cannot listen listen={address.text}: {error.strerror}",
            hint="another port: --listen 127.0.0.1:0 takes any",
        ) from None
    return sockets


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    try:
        is_open = os.stat(settings.tls_key).st_mode & 0o007
    except OSError:
        is_open = 0  # loading it says what is wrong
    if is_open:
        raise Invalid(f"everybody may read the TLS key path={settings.tls_key}", hint=f"chmod 600 {settings.tls_key}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden(context)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(
            f"the certificate or its key cannot be used: {type(error).__name__}",
            hint="both are PEM files, the certificate first in its chain, the key without a password",
        ) from None
    return context
