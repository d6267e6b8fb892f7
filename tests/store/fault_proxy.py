"""A proxy between a client and an S3 server that spoils requests on purpose, and counts what it did.

    proxy = FaultProxy(server.port, once_per_key(reset_after(), method="PUT"))
    … talk to proxy.endpoint …
    assert proxy.counts["reset_after"] == 1
    proxy.close()

A *policy* is a function: it gets a `Request` and answers with a `Fault`, or with None to let it pass. Faults are made
by the functions below (`delay`, `slow_down`, `reset_after` …), policies by hand or by `always`, `once_per_key`, `first`
and `at_random`. The policy may be exchanged at any time (`proxy.policy = …`).

Messages pass byte for byte, so signatures stay valid. What a random policy does to a request depends on its seed,
the request and how often it was made, not on the order in which connections happen to be served: a run can be
repeated. The proxy has a thread and an event loop of its own and may be used from any other.

`reset_…` ends a connection with RST, as a crashed machine or a firewall does; `close_…` with FIN, as a process that
ends. `…_before`: the server never saw the request. `…_after`: it did what was asked, and nobody hears of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakSet

Result = TypeVar("Result")

PATIENCE = 30
_PIECE = 64 * 1024
_HEAD_BYTES_MAX = 1 << 20
_FORGET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close sends RST and forgets what was not sent

Kind = Literal[
    "pass",
    "delay",
    "bandwidth",
    "reply",
    "reset_before",
    "reset_midway",
    "reset_after",
    "close_before",
    "close_after",
    "truncate",
    "half_open",
    "go_stale",
]


class Request(NamedTuple):
    """What a policy gets."""

    number: int
    """From 1, over all connections."""
    connection: int
    """From 1; which connection it came on."""
    method: str
    target: str
    """Path and query."""
    attempt: int
    """From 1; how often this method came for this target."""
    headers: dict[str, str]
    """By lower-case name."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request; `name` is what it is counted under."""

    name: str
    kind: Kind
    seconds: float = 0.0
    rate: float = 0.0
    reply: bytes = b""
    keep: int = 0


Policy = Callable[[Request], Fault | None]


# -- faults -----------------------------------------------------------------------------------------------


def delay(seconds: float) -> Fault:
    """The request waits before it is passed on."""
    return Fault("delay", "delay", seconds=seconds)


def bandwidth(bytes_per_second: float) -> Fault:
    """Request and reply trickle."""
    return Fault("bandwidth", "bandwidth", rate=bytes_per_second)


def server_error(status: int = 500, code: str = "InternalError") -> Fault:
    """The server says that it failed; it did nothing."""
    return _answer("server_error", status, code)


def slow_down(retry_after: float | str | None = None) -> Fault:
    """503 SlowDown, with the wish to be left alone for some seconds, or until an HTTP date."""
    return _answer("slow_down", 503, "SlowDown", {} if retry_after is None else {"Retry-After": str(retry_after)})


def conflict() -> Fault:
    """409: somebody else is writing this key right now; nobody has won yet."""
    return _answer("conflict", 409, "ConditionalRequestConflict")


def precondition_failed() -> Fault:
    """412: the key is taken, says the server."""
    return _answer("precondition_failed", 412, "PreconditionFailed")


def expired_token() -> Fault:
    """403: the credentials were good once."""
    return _answer("expired_token", 403, "ExpiredToken")


def answer(status: int, code: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Any other answer of S3, in the server's place; counted under its code."""
    return _answer(code, status, code, headers)


def reset_before() -> Fault:
    """The connection breaks, and the server never saw the request."""
    return Fault("reset_before", "reset_before")


def reset_midway() -> Fault:
    """The connection breaks when half of the body was sent, on both sides."""
    return Fault("reset_midway", "reset_midway")


def reset_after(seconds: float = 0.0) -> Fault:
    """The server did it, and the connection breaks before the reply: the ambiguous one."""
    return Fault("reset_after", "reset_after", seconds=seconds)


def close_before() -> Fault:
    """As reset_before, politely."""
    return Fault("close_before", "close_before")


def close_after(seconds: float = 0.0) -> Fault:
    """As reset_after, politely."""
    return Fault("close_after", "close_after", seconds=seconds)


def truncate(keep: int = 0) -> Fault:
    """The reply has its head and this many bytes of its body; then the connection ends."""
    return Fault("truncate", "truncate", keep=keep)


def half_open(seconds: float = PATIENCE) -> Fault:
    """Nothing comes any more, neither an answer nor an end; after a while the proxy gives up as well."""
    return Fault("half_open", "half_open", seconds=seconds)


def go_stale() -> Fault:
    """The request is served; the connection, which both sides believe to be kept, is closed behind it."""
    return Fault("go_stale", "go_stale")


def _answer(name: str, status: int, code: str, headers: Mapping[str, str] | None = None) -> Fault:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
    fields = {"Content-Type": "application/xml", "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{field}: {value}\r\n" for field, value in fields.items())
    return Fault(name, "reply", reply=f"HTTP/1.1 {status} {code}\r\n{head}\r\n{body}".encode("ascii"))


# -- policies ---------------------------------------------------------------------------------------------


def always(fault: Fault, method: str | None = None) -> Policy:
    """Every request, or every one with this method."""
    return lambda request: fault if method in (None, request.method) else None


def first(count: int, fault: Fault, method: str | None = None) -> Policy:
    """The first so many requests, or the first so many with this method."""
    left = count

    def policy(request: Request) -> Fault | None:
        nonlocal left
        if not left or method not in (None, request.method):
            return None
        left -= 1
        return fault

    return policy


def once_per_key(fault: Fault, method: str = "PUT") -> Policy:
    """The first request with this method for every key."""
    return lambda request: fault if request.attempt == 1 and request.method == method else None


def at_random(seed: int, chances: Mapping[Fault, float], method: str | None = None) -> Policy:
    """Each fault with its probability, drawn anew for every attempt, and always the same for the same attempt."""

    def policy(request: Request) -> Fault | None:
        if method not in (None, request.method):
            return None
        drawn = _draw(f"{seed} {request.method} {request.target} {request.attempt}")
        for fault, chance in chances.items():
            drawn -= chance
            if drawn < 0:
                return fault
        return None

    return policy


def _draw(what: str) -> float:
    return int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest()) / 2**64


def _pass(_: Request) -> Fault | None:
    return None


# -- the proxy --------------------------------------------------------------------------------------------


class FaultProxy:
    """Listens on loopback, on a port that stays the same; with `tls`, speaks TLS to the client."""

    def __init__(self, upstream_port: int, policy: Policy = _pass, *, tls: ssl.SSLContext | None = None) -> None:
        self.upstream_port = upstream_port
        self.policy = policy
        self.counts: Counter[str] = Counter()
        """Requests by what was done to them; "pass" for those that were let through."""
        self.accepted = 0
        """Connections taken so far."""
        # Bound and never listening: while the proxy is down nobody else gets the port, not even a client by chance.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self._tls = tls
        self._numbers = self._connections = 0
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._clients: dict[asyncio.StreamWriter, bool] = {}
        self._transports: WeakSet[asyncio.WriteTransport] = WeakSet()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())

    @property
    def endpoint(self) -> str:
        """Where the client should go."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections of clients that are open now."""
        return len(self._clients)

    @property
    def idle_connections(self) -> int:
        """Those of them on which no request is under way."""
        return sum(not busy for busy in list(self._clients.values()))

    def close_idle(self, *, reset: bool = False) -> int:
        """End all connections on which no request is under way, as servers and firewalls do; returns how many."""
        return self._run(self._close_idle(reset))

    def go_down(self) -> None:
        """Refuse new connections and reset those that there are, until `come_up`."""
        self._run(self._go_down())

    def come_up(self) -> None:
        """Listen again, on the same port."""
        self._run(self._listen())

    def close(self) -> None:
        """End everything, and the thread."""
        self._run(self._go_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._place.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=_HEAD_BYTES_MAX, ssl=self._tls
        )

    async def _close_idle(self, reset: bool) -> int:
        idle = [client for client, busy in self._clients.items() if not busy]
        for client in idle:
            _end(client, reset=reset)
        self.counts["close_idle"] += len(idle)
        return len(idle)

    async def _go_down(self) -> None:
        if self._server is not None:
            # A server that is closed while it takes a connection leaks it (Python 3.11): first it stops taking any.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            await _a_few_steps()
            self._server.close()
            self._server = None
        for client in list(self._clients):
            _end(client, reset=True)
        while serving := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
        for transport in list(self._transports):
            with suppress(AttributeError):  # Python 3.11.2 stumbles over one with TLS that has gone already
                transport.abort()  # also those that have to close, and wait for a reader of what is left
        await _a_few_steps()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._connections += 1
        self._clients[client] = False
        self._transports.add(client.transport)
        upstream = _Upstream(self.upstream_port)
        try:
            await self._converse(self._connections, reader, client, upstream)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            pass  # either side left, or the proxy goes down: the conversation is over
        finally:
            del self._clients[client]
            upstream.close()
            client.close()

    async def _converse(
        self, connection: int, reader: asyncio.StreamReader, client: asyncio.StreamWriter, upstream: _Upstream
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self._clients[client] = True
            request = self._meet(connection, head)
            fault = self.policy(request) or Fault("pass", "pass")
            self.counts[fault.name] += 1
            if not await self._apply(fault, _Message(request.method, head, reader), client, upstream):
                return
            self._clients[client] = False

    def _meet(self, connection: int, head: bytes) -> Request:
        line, *fields = head.decode("latin-1").rstrip().split("\r\n")
        method, target, _ = line.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self._numbers += 1
        self._attempts[method, target] += 1
        return Request(self._numbers, connection, method, target, self._attempts[method, target], headers)

    async def _apply(self, fault: Fault, message: _Message, client: asyncio.StreamWriter, upstream: _Upstream) -> bool:
        """Do to one request what was decided; False when the connection has ended with it."""
        await message.invite(client)
        if fault.kind == "reset_midway":
            await upstream.send(message.head + await message.some_body(), fault.rate)
            upstream.reset()
            return _end(client, reset=True)
        body = await message.body(fault.rate)
        if fault.kind in ("reset_before", "close_before"):
            return _end(client, reset=fault.kind == "reset_before")
        if fault.kind == "half_open":
            await asyncio.sleep(fault.seconds)
            return _end(client, reset=True)
        if fault.kind == "reply":
            await _send(client, fault.reply, 0)
            return True
        await asyncio.sleep(fault.seconds if fault.kind == "delay" else 0)
        await upstream.send(message.head + body, fault.rate)
        return await self._answer(fault, await upstream.reply(message.method), client)

    async def _answer(self, fault: Fault, reply: _Reply, client: asyncio.StreamWriter) -> bool:
        if fault.kind in ("reset_after", "close_after"):
            await asyncio.sleep(fault.seconds)
            return _end(client, reset=fault.kind == "reset_after")
        if fault.kind == "truncate":
            await _send(client, reply.head + reply.body[: fault.keep], 0)
            return _end(client, reset=False)
        await _send(client, reply.head + reply.body, fault.rate)
        return _end(client, reset=False) if fault.kind == "go_stale" else True


class _Reply(NamedTuple):
    head: bytes
    body: bytes


class _Message:
    """A request or a reply whose head was read; its body is read as its head says."""

    def __init__(self, method: str, head: bytes, reader: asyncio.StreamReader) -> None:
        self.method, self.head, self._reader = method, head, reader
        self._fields = head.lower()

    async def invite(self, client: asyncio.StreamWriter) -> None:
        """Some clients send a body only when they were asked for it."""
        if b"\r\nexpect: 100-continue" in self._fields:
            await _send(client, b"HTTP/1.1 100 Continue\r\n\r\n", 0)

    async def some_body(self) -> bytes:
        """Half of a body, as far as its length is known."""
        return await self._reader.readexactly((self._length() or 0) // 2)

    async def body(self, rate: float = 0) -> bytes:
        """The body, byte for byte, at most at this rate."""
        length = self._length()
        if length is not None:
            return await self._read(length, rate)
        if b"\r\ntransfer-encoding: chunked" in self._fields:
            return await self._read_chunks()
        return b""

    def _length(self) -> int | None:
        _, found, rest = self._fields.partition(b"\r\ncontent-length:")
        return int(rest.partition(b"\r\n")[0]) if found else None

    async def _read(self, length: int, rate: float) -> bytes:
        read = bytearray()
        while len(read) < length:
            piece = await self._reader.readexactly(min(_piece(rate), length - len(read)))
            await _pace(len(piece), rate)
            read += piece
        return bytes(read)

    async def _read_chunks(self) -> bytes:
        read, size = b"", -1
        while size:
            line = await self._reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            read += line + await self._reader.readexactly(size + 2)
        return read


class _Upstream:
    """The connection to the server: opened when first needed, and again when the server closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, data: bytes, rate: float) -> None:
        if self._writer is None or (self._reader is not None and self._reader.at_eof()):
            self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_HEAD_BYTES_MAX)
        await _send(self._writer, data, rate)

    async def reply(self, method: str) -> _Reply:
        assert self._reader is not None
        head = b"HTTP/1.1 100"
        while head.startswith(b"HTTP/1.1 100"):
            head = await self._reader.readuntil(b"\r\n\r\n")
        bodiless = method == "HEAD" or head.split(b" ", 2)[1] in (b"204", b"304")
        return _Reply(head, b"" if bodiless else await _Message(method, head, self._reader).body())

    def reset(self) -> None:
        if self._writer is not None:
            _end(self._writer, reset=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def _a_few_steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def _send(writer: asyncio.StreamWriter, data: bytes, rate: float) -> None:
    view, step = memoryview(data), _piece(rate) if rate else max(1, len(data))
    for start in range(0, len(view), step):
        piece = view[start : start + step]
        await _pace(len(piece), rate)
        writer.write(piece)
        await writer.drain()


def _piece(rate: float) -> int:
    """How much goes at once: a tenth of a second's worth, so that a slow line trickles."""
    return min(_PIECE, max(1, int(rate / 10))) if rate else _PIECE


async def _pace(size: int, rate: float) -> None:
    if rate:
        await asyncio.sleep(size / rate)


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> bool:
    """End a connection; False, for a caller that asks whether it goes on."""
    if reset:
        plain: socket.socket | None = writer.get_extra_info("socket")
        if plain is not None and plain.fileno() >= 0:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET)
        writer.transport.abort()
    else:
        writer.close()
    return False
