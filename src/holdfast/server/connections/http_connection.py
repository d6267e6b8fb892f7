"""One connection: its bytes become requests, one after the other, and answers go back in the same order.

`httptools` reads HTTP; what it leaves open to hostile clients is closed here. Requests that come before the answer to
the one ahead of them wait, unread where they can: only one is at work at a time. What is no request is answered when
those before it are, and nothing behind it is a request. Deadlines are kept by `connection_guard`.

| what a client does | what it gets |
|---|---|
| is one too many | the end, at once |
| sends a head too slowly | 408; the end without a word where it has sent nothing |
| sends a head without an end, or 101 headers | 431, as soon as one is too large |
| sends a body too slowly | 408, or the end where the answer has begun |
| sends trailers, or parts of a chunk that are no body, without an end | 431; trailers are no headers |
| sends a body longer than declared | what is too much is the next request, and mostly none: 400 |
| sends a body shorter than declared, and goes | nothing is done with it |
| sends more of a body than is taken | it is not read until there is room |
| sends `Expect: 100-continue` | 100 when the body is wanted, or the refusal; HTTP/1.0 no word |
| sends requests before it has answers | the answers in order; 400 behind the sixteenth of one packet |
| sends two of `Host`, `Authorization`, our own headers … | 400: others might look at the other one |
| sends a length and chunks, two lengths, another coding, bad chunks | 400, the end: no second reading of a request |
| sends a URL in place of a path, another version of HTTP, other bytes | 400 |
| asks to upgrade | an answer to the request, or 400 where it has a body; the end |
| speaks HTTP/1.0 | an answer without chunks, and the end |
| asks with HEAD, or for what is 204 or 304 | the head alone |
| takes nothing of its answer | the application waits; after a time the end |
| closes its side, or goes | what it asked for goes on, and the application learns that nobody waits |
| goes without a word, as a machine that lost its power | the kernel notices, and ends it (`notice_the_dead`) |
| goes on sending when it was refused | time to read why, within a megabyte and `headers_timeout_ms`; the end |
| shakes hands too slowly, or never | the end (`tls_gate`) |
| sends anything once the server ends | an answer to the request that had begun, and the end |
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import httptools
import msgspec

from holdfast.remote.http.error_message import ErrorBody
from holdfast.server.connections.asgi_exchange import AsgiExchange
from holdfast.server.request_caller import Caller

if TYPE_CHECKING:
    from holdfast.server.connections.asgi_exchange import AsgiApplication
    from holdfast.server.connections.connection_guard import ConnectionGuard

_HEADERS_MAX = 100
_PIPELINED_MAX = 16
_BODY_AHEAD = 64 * 1024
"""So much of a body may wait to be taken before no more of it is read."""
_GOODBYE_BYTES = 1024 * 1024
"""So much may still come when all is said."""
_ONCE = frozenset({
    b"host", b"authorization", b"idempotency-key", b"origin", b"sec-fetch-site", b"content-type", b"content-length",
    b"transfer-encoding", b"expect",
})  # fmt: skip
"""Headers that decide who asks and for what, as all of our own do: a proxy might look at another one of two than we do.
"""
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_WaitsFor = Literal["first request", "request", "head", "body", "answer", "nothing", "goodbye"]
_INVALID = b"400 Bad Request", "Invalid", "this is no HTTP request"
_TOO_LARGE = b"431 Request Header Fields Too Large", "Invalid", "the headers are too large"
_LATE = {
    "head": (b"408 Request Timeout", "Unavailable", "the headers did not arrive in time"),
    "body": (b"408 Request Timeout", "Unavailable", "the body did not arrive in time"),
}


class HttpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, application: AsgiApplication, guard: ConnectionGuard) -> None:
        self.transport: asyncio.Transport
        self.writable: asyncio.Event | None = None
        """What to wait for before more is written; None where there is room."""
        self.caller: Caller | None = None
        """Whose token came with its last request."""
        self.guard = guard
        self.is_paused = False
        """Whether nothing is read at the moment, because too much waits."""
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._state = {"claim": self._claim}
        self._scheme = "http"
        # what it waits for, and how often it was found waiting
        self._waits_for: _WaitsFor = "first request"
        self._looks = self._looks_stuck = 0
        # the head that is coming
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._loose_size = 0
        """Bytes that have come since they last made something whole: a header, or a part of a body."""
        self._has_moved = False
        # requests without a whole answer: the first is at work, the last may still be coming
        self._requests: deque[AsgiExchange] = deque()
        self._newest: AsgiExchange | None = None
        self._refusal: tuple[bytes, str, str] | None = None
        """What is said behind the answers to all of them."""

    # -- the connection -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there; behind TLS, it has shaken hands."""
        assert isinstance(transport, asyncio.Transport)
        if self.is_admitted(transport):
            self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
            self._looks = 0

    def is_admitted(self, transport: asyncio.Transport) -> bool:
        """Count this connection; where it is one too many, it is cut off."""
        self.transport = transport
        if not self.guard.admit(self):
            transport.abort()
            return False
        notice_the_dead(transport, self.guard.send_timeout_ms)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and so are all who waited for its client: also behind the newest request, or in front of it."""
        self.guard.drop(self)
        self._waits_for = "nothing"
        for exchange in self._requests:
            exchange.leave()
        self._requests.clear()
        self.resume_writing()
        self._parser = self._newest = None  # they know it, too

    def _claim(self, caller: Caller) -> None:
        if caller is not self.caller:
            self.guard.claim(self, caller)

    def look(self) -> None:
        """From time to time: what was not taken, or has not come, in time is waited for no longer."""
        if self.writable is not None or self.transport.is_closing():
            self._looks_stuck += 1
            if self._looks_stuck > self.guard.looks_while_sending:
                self.transport.abort()
        elif not self.is_paused:
            self._looks += 1
            if self._looks > self.guard.looks_for.get(self._waits_for, self._looks):
                self._is_late()

    def _is_late(self) -> None:
        refusal = _LATE.get(self._waits_for)
        if refusal is None:  # a request that has not begun, or the client's own end
            self.transport.close()
        else:
            self._refuse(refusal)

    def shut_down(self) -> None:
        """The server ends: what has begun is finished, and nothing more is begun."""
        if self._requests:
            self._requests[-1].keep_alive = False
        else:
            self.transport.close()

    # -- what comes ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if self._waits_for == "nothing" or self.transport.is_closing():
            return
        if self._waits_for == "goodbye":
            self._loose_size += len(data)
            if self._loose_size > _GOODBYE_BYTES:
                self.transport.close()
            return
        self._has_moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # nothing behind it is read
            self._waits_for = "nothing"
            return
        except httptools.HttpParserError:
            self._refuse(_TOO_LARGE if self._head_size > self.guard.headers_bytes_max else _INVALID)
            return
        self._loose_size = 0 if self._has_moved else self._loose_size + len(data)
        if self._loose_size > self.guard.headers_bytes_max:
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._url, self._headers, self._head_size = b"", [], 0
        self._has_moved = True
        self._waits_for, self._looks = "head", 0

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._has_moved = True
        self._url += url
        self._head_size += len(url)
        if self._head_size > self.guard.headers_bytes_max:
            raise httptools.HttpParserError("too large")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. What comes behind a body is a trailer: it counts, and is nothing that a request says of itself."""
        self._has_moved = True
        self._head_size += len(name) + len(value) + 4
        if self._waits_for == "head":
            self._headers.append((name.lower(), value))
            if len(self._headers) > _HEADERS_MAX:
                self._head_size = self.guard.headers_bytes_max + 1
        if self._head_size > self.guard.headers_bytes_max:
            raise httptools.HttpParserError("too large")

    def on_headers_complete(self) -> None:
        """All headers are there."""
        parser, headers = self._parser, self._headers
        version, may_upgrade = parser.get_http_version(), parser.should_upgrade()
        named = dict(headers)
        if not is_unambiguous(version, self._url, headers, named, may_upgrade=may_upgrade):
            raise httptools.HttpParserError("others might read it in another way")
        if len(self._requests) >= _PIPELINED_MAX:
            raise httptools.HttpParserError("too many at a time")
        target = httptools.parse_url(self._url)
        path = target.path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": self._scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": target.path,
            "query_string": target.query or b"",
            "root_path": "",
            "headers": headers,
            "state": self._state,
        }
        keep_alive = version == "1.1" and not may_upgrade and parser.should_keep_alive()
        expects_word = version == "1.1" and named.get(b"expect", b"").lower() == b"100-continue"
        self._waits_for, self._looks = "body", 0
        exchange = self._newest = AsgiExchange(self, scope, keep_alive=keep_alive, expects_word=expects_word)
        self._requests.append(exchange)
        if len(self._requests) == 1:
            self._begin(exchange)
        else:
            self._pause()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._has_moved = True
        if self._newest is not None and self._newest.take_in(body) > _BODY_AHEAD:
            self._pause()

    def on_message_complete(self) -> None:
        """The whole request is there: it is our turn."""
        newest = self._newest
        assert newest is not None
        newest.has_more_body = False
        newest.wake()
        self._waits_for, self._looks = "request" if newest.is_answered else "answer", 0

    def _pause(self) -> None:
        if not self.is_paused:
            self.is_paused = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Some of what was read is done with: go on, if there is room."""
        if len(self._requests) <= 1 and (self._newest is None or self._newest.size <= _BODY_AHEAD):
            self.is_paused = False
            self.transport.resume_reading()

    # -- what goes back -----------------------------------------------------------------------------------

    def _begin(self, exchange: AsgiExchange) -> None:
        self.guard.at_work.add(exchange)
        exchange.task = self._loop.create_task(exchange.run(self._application))

    def answered(self, exchange: AsgiExchange) -> None:
        """The whole answer to the first of the requests was handed over."""
        self._requests.popleft()
        if not exchange.keep_alive:
            (self._hang_up if exchange.has_more_body else self.transport.close)()
        elif self._requests:
            self._begin(self._requests[0])
        elif self._refusal is not None:
            self._say(self._refusal)
        elif self._waits_for == "answer":
            self._waits_for, self._looks = "request", 0
        if self.is_paused:
            self.read_on()

    def done(self, exchange: AsgiExchange) -> None:
        """The application has done with a request: where it has no whole answer, its client must not wait for one."""
        self.guard.done(exchange)
        if not (exchange.is_answered or exchange.is_gone):
            exchange.leave()
            self.transport.close()

    def _refuse(self, refusal: tuple[bytes, str, str]) -> None:
        """Read nothing more. What has come of a request is dropped, and the client learns why when it is its turn."""
        if self._waits_for == "nothing":  # as was said before
            return
        self._waits_for = "nothing"
        half = self._newest if self._newest is not None and self._newest.has_more_body else None
        if half is not None and not half.is_answered:
            self._requests.pop().leave()
        if self._requests:
            self._refusal = refusal
        elif half is not None and half.has_begun:
            self.transport.close()  # another answer is on its way: nothing may come in between
        else:
            self._say(refusal)

    def _say(self, refusal: tuple[bytes, str, str]) -> None:
        """An answer of our own, the last."""
        status, kind, message = refusal
        body = msgspec.json.encode(ErrorBody(kind, message, "see docs/reference/http.md", {}, "-"))
        head = b"HTTP/1.1 %b\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, self.guard.date_line, len(body)) + body)
        self._hang_up()

    def _hang_up(self) -> None:
        """Close, for a client that may still be sending: bytes that nobody reads would take its answer from it."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._waits_for, self._looks = "goodbye", 0
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client takes nothing, for now."""
        self.writable = asyncio.Event()

    def resume_writing(self) -> None:
        """It takes something again."""
        if self.writable is not None:
            self.writable.set()
            self.writable = None
            self._looks_stuck = 0


def is_unambiguous(
    version: str, target: bytes, headers: list[tuple[bytes, bytes]], named: dict[bytes, bytes], *, may_upgrade: bool
) -> bool:
    """Whether each proxy that passed this request on must have read it as we do.

    Else one could hide in the body of another: a parser takes nothing behind a request to upgrade for its body, and
    HTTP/1.0 has no chunks.
    """
    if len(named) < len(headers):
        names = [name for name, _ in headers]
        if any(names.count(name) > 1 for name in named if name in _ONCE or name.startswith(b"holdfast-")):
            return False
    coding = named.get(b"transfer-encoding")
    if coding is not None and (version != "1.1" or may_upgrade or coding.lower() != b"chunked"):
        return False
    if version not in ("1.0", "1.1") or (may_upgrade and b"content-length" in named):
        return False
    return target.startswith(b"/")  # a target with a host of its own says otherwise than `Host`


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
