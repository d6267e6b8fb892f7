"""Connections: how many there are, how slow they may be, how large their headers are.

uvicorn reads requests; what it leaves open to hostile clients is closed here. A connection beyond the limit is cut off
at once. Headers must be complete within a time and a size, counted while they come, so that neither a client that
sends one byte a minute nor one that sends a header without end holds anything for long. A client that takes nothing of
what it is sent is cut off, and the kernel is told to notice those who are gone. TLS is begun here, too, so that a
connection counts before its handshake, which has a time limit of its own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from functools import partial
from math import inf
from typing import Any, Literal

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.remote.http.error_message import ErrorBody
from holdfast.server.guards.places import Places
from holdfast.server.request_caller import Caller
from holdfast.server_settings import ServerSettings

_log = logging.getLogger("holdfast.server")
_HEADERS_MAX = 100
_PIPELINED_MAX = 16
_ONCE = (b"host", b"authorization", b"idempotency-key", b"origin", b"sec-fetch-site", b"content-type")
"""Headers that decide who asks and for what, as all of our own do: a proxy might look at another one of two than we do.
"""
_LATE = 408
_GOODBYE_S = 2.0
"""How long the end of TLS may take: a client that does not answer must not hold up the server's own end."""
_WaitsFor = Literal["head", "body", "us", "request"]
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class ConnectionGuard:
    """What all connections of one server share, and what looks after them."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.open: set[GuardedProtocol] = set()
        self.refused = 0
        self._places = Places(settings.connections_max, "connections", settings.token_share)

    def admit(self, protocol: GuardedProtocol) -> bool:
        """Count one more; False where there are too many."""
        if len(self.open) >= self.settings.connections_max:
            self.refused += 1
            if self.refused == 1:
                _log.warning("connections are refused max=%d", len(self.open), extra={"action": "connections_refused"})
            return False
        self.open.add(protocol)
        return True

    def claim(self, protocol: GuardedProtocol, caller: Caller) -> None:
        """A token has sent a request over a connection, which counts as its own; Full where it has too many."""
        is_open = protocol in self.open  # one that is gone must not take a place: nobody would give it back
        if is_open and (protocol.caller is None or protocol.caller.id != caller.id):
            self._places.take(caller)
            self._give_back(protocol)
            protocol.caller = caller

    def _give_back(self, protocol: GuardedProtocol) -> None:
        if protocol.caller is not None:
            self._places.give_back(protocol.caller)
            protocol.caller = None

    def drop(self, protocol: GuardedProtocol) -> None:
        """One less."""
        self.open.discard(protocol)
        self._give_back(protocol)
        if self.refused and len(self.open) < self.settings.connections_max // 2:
            self.refused = 0  # the next time is worth a word again

    async def watch(self) -> None:
        """For as long as the server runs: cut off late clients. One look at all costs less than a timer for each."""
        limits = self.settings
        shortest = min(limits.headers_timeout_ms, limits.body_timeout_ms, limits.idle_timeout_ms)
        pause = min(1.0, min(shortest, limits.send_timeout_ms) / 4000)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            now = loop.time()
            for protocol in [one for one in self.open if one.deadline < now]:
                protocol.is_late()


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, connections: ConnectionGuard, is_counted: bool = False, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._guard = connections
        self._is_counted = is_counted
        limits = connections.settings
        self._headers_s, self._body_s = limits.headers_timeout_ms / 1000, limits.body_timeout_ms / 1000
        self._idle_s, self._send_s = limits.idle_timeout_ms / 1000, limits.send_timeout_ms / 1000
        self._headers_max = limits.headers_bytes_max
        self._waits_for: _WaitsFor = "head"
        self.deadline = inf
        """When that must have come."""
        self._send_deadline = inf
        self._head_bytes = self._head_count = 0
        """What has come of the present request's headers: as bytes that are not complete, and as complete ones."""
        self.caller: Caller | None = None
        """Whose token came with its last request."""
        self._refusal: tuple[int, str] | None = None
        self._unanswered: list[Any] = []
        """Requests of this connection that have no whole answer yet; several where a client does not wait."""
        self._is_last = False
        """Whether a request has come behind which another protocol could begin."""

    # -- the connection -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        if not self._is_counted and not self._guard.admit(self):
            self.transport = transport
            transport.abort()
            return
        self._is_counted = True
        notice_the_dead(transport, self._guard.settings.send_timeout_ms)
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]  # all that is asked of one
        self._wait_for("head", self._headers_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._guard.drop(self)
        # uvicorn tells the newest request only. One before it may be a follower, which would stay for ever.
        self.pipeline.clear()
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def _wait_for(self, what: _WaitsFor, seconds: float) -> None:
        self._waits_for = what
        self.deadline = self.loop.time() + seconds

    def is_late(self) -> None:
        """What it waits for has not come in time."""
        now, self.deadline = self.loop.time(), inf
        if now >= self._send_deadline:
            self.transport.abort()
        elif self._waits_for == "head":
            if self._head_bytes or self._head_count:
                self._say(408, "the headers did not arrive in time")
            self.transport.close()
        elif self._waits_for == "body":
            self._body_is_late()
        elif self._waits_for == "request":
            self.transport.close()
        if self.transport.is_closing():  # a client that does not even take an answer is cut off the next time
            self._send_deadline = self.deadline = now + self._send_s

    def _body_is_late(self) -> None:
        cycle = self.cycle
        if cycle is None or not cycle.more_body:
            return
        if not cycle.response_started:
            self._say(408, "the body did not arrive in time")
        cycle.disconnected = True  # nobody waits for it any more
        cycle.message_event.set()
        self.transport.close()

    # -- a request ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if self.transport.is_closing() or self._is_last:
            return
        super().data_received(data)
        if self._waits_for in ("head", "request") and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self._headers_max:
                self._refusal = (431, "the headers are too large")
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self.scope["state"]["claim"] = partial(self._guard.claim, self)
        self._head_bytes = self._head_count = 0
        self._wait_for("head", self._headers_s)

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. What comes behind a body is a trailer: it counts, and is nothing that a request says of itself."""
        if self._waits_for != "body":
            super().on_header(name, value)
        self._count(len(name) + len(value) + 4)

    def _count(self, size: int) -> None:
        self._head_count += size
        if self._head_count > self._headers_max or len(self.headers) > _HEADERS_MAX:
            self._refusal = (431, "the headers are too large")
            raise httptools.HttpParserError("too large")

    def on_headers_complete(self) -> None:
        """All headers are there."""
        version = self.parser.get_http_version()
        if not is_unambiguous(version, self.url, self.headers, self.parser.should_upgrade()):
            raise httptools.HttpParserError("others might read it in another way")
        self._wait_for("body", self._body_s)
        super().on_headers_complete()
        if self.parser.should_upgrade():  # we speak nothing else: it is answered, and nothing behind it is read
            self.cycle.keep_alive = False
            self._is_last = True
        self._unanswered = [one for one in self._unanswered if not one.response_complete]
        self._unanswered.append(self.cycle)
        if len(self._unanswered) > _PIPELINED_MAX:
            raise httptools.HttpParserError("too many at a time")

    def on_message_complete(self) -> None:
        """The whole request is there: it is our turn."""
        self._waits_for, self.deadline = "us", self._send_deadline
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The whole answer was handed over."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if self._waits_for == "us" and not self.pipeline:
            self._wait_for("request", self._idle_s)

    def send_400_response(self, msg: str) -> None:
        """Say that this is no request, and close."""
        status, message = self._refusal or (400, "this is no HTTP request")
        self._say(status, message)
        self.transport.close()

    def _say(self, status: int, message: str) -> None:
        """An answer of our own, in the middle of a request."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            return  # another answer is on its way: nothing may come in between
        kind = "Unavailable" if status == _LATE else "Invalid"
        body = msgspec.json.encode(ErrorBody(kind, message, "see docs/reference/http.md", {}, "-"))
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, _REASONS[status], len(body)) + body)

    # -- sending ------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client takes nothing, for now."""
        super().pause_writing()
        self._send_deadline = self.loop.time() + self._send_s
        self.deadline = min(self.deadline, self._send_deadline)

    def resume_writing(self) -> None:
        """It takes something again."""
        super().resume_writing()
        if self.deadline == self._send_deadline:
            self.deadline = inf
        self._send_deadline = inf


def is_unambiguous(version: str, target: bytes, headers: list[tuple[bytes, bytes]], may_upgrade: bool) -> bool:
    """Whether each proxy that passed this request on must have read it as we do.

    Else one could hide in the body of another: a parser takes nothing behind a request to upgrade for its body, and
    HTTP/1.0 has no chunks.
    """
    names = [name for name, _ in headers]
    if version != "1.1" and (version != "1.0" or b"transfer-encoding" in names):
        return False
    if any(names.count(name) > 1 for name in names if name in _ONCE or name.startswith(b"holdfast-")):
        return False
    if may_upgrade and (b"content-length" in names or b"transfer-encoding" in names):
        return False
    if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
        return False
    return target.startswith(b"/")  # a target with a host of its own says otherwise than `Host`


class JoinedWrites:
    """A transport that sends what is written in one turn of the loop at once: head and body of an answer are one packet
    and one system call.
    """

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send it with what else is written now."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def close(self) -> None:
        """Send what is left, then close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class TlsGate(asyncio.Protocol):
    """A connection before its handshake: counted, and given little time."""

    def __init__(self, inner: GuardedProtocol, context: ssl.SSLContext, connections: ConnectionGuard) -> None:
        self._inner = inner
        self._context = context
        self._guard = connections
        self._task: asyncio.Task[None] | None = None
        self._early = b""
        """What a client sends with the last message of its handshake: that comes before the handshake has ended."""

    def data_received(self, data: bytes) -> None:
        """Some bytes, decrypted."""
        self._early += data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        assert isinstance(transport, asyncio.Transport)
        if not self._guard.admit(self._inner):
            transport.abort()
            return
        notice_the_dead(transport, self._guard.settings.send_timeout_ms)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """It went before the handshake began."""
        self._guard.drop(self._inner)

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._guard.settings.headers_timeout_ms / 1000
        try:
            secured = await loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            secured = None
        if secured is None:
            self._guard.drop(self._inner)
            transport.abort()
        else:
            secured.set_protocol(self._inner)
            self._inner.connection_made(secured)
            if self._early:
                self._inner.data_received(self._early)


def notice_the_dead(transport: asyncio.BaseTransport, timeout_ms: float) -> None:
    """Have the kernel end a connection whose other side does not acknowledge anything any more."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", int(timeout_ms)),
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
