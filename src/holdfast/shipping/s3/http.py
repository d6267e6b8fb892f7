"""One HTTP/1.1 exchange over one connection: a request out, its answer in, and an honest word about what went wrong.

h11 knows the protocol; this module moves the bytes and watches the time. Nothing is ever sent twice: a connection that
turns out to be dead, be it before the first byte of an answer, leaves the outcome of a PUT unknown, and whoever asked
must know. A connection may be used again only after a whole exchange, and if h11 says so.

Time: no step may stand still longer than `stall`, and the whole may take `timeout`, plus what the bytes moved so far
take at a very slow line's pace; so a big object on a slow line gets through, and a dead peer is noticed all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holdfast.errors import Invalid
from holdfast.shipping.s3.connections import Connection
from holdfast.store.port import Body, Cause, StoreRefused, StoreUnavailable

try:
    import h11
except ImportError as error:
    raise Invalid("S3 needs the extra 's3'", hint="pip install 'holdfast[s3]'") from error

ERROR_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 2**30
SLOWEST_LINE = 64 * 1024
"""Bytes per second."""

_AT_ONCE = 64 * 1024
"""Bodies up to here go out together with their head: one copy is cheaper than two system calls."""


class Response(NamedTuple):
    """A whole answer; of an error's body, the beginning."""

    status: int
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes = b""

    @property
    def framed(self) -> bool:
        """Whether the answer said how long it is; if not, nobody can tell that some of it is missing."""
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()


async def request(
    connection: Connection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: Body | None = None,
    *,
    timeout: float,
    stall: float | None = None,
    limit: int = ANSWER_BYTES_MAX,
) -> Response:
    """Ask and wait for the answer; raises StoreUnavailable, or StoreRefused when the answer is larger than `limit`."""
    connection.reusable = False
    exchange = _Exchange(connection, timeout, timeout if stall is None else stall)
    try:
        await exchange.send(method, target, headers, body)
        response = await exchange.receive(limit)
    except TimeoutError:
        raise _unavailable("the store did not answer in time", "timeout", method, target) from None
    except h11.RemoteProtocolError as error:
        raise _unavailable(*exchange.what_broke(), method, target) from error
    connection.served += 1
    connection.reusable = exchange.is_over
    return response


class _Exchange:
    """h11's state of one request and its answer, and the time that is left for it."""

    def __init__(self, connection: Connection, timeout: float, stall: float) -> None:
        self._connection = connection
        self._machine = h11.Connection(h11.CLIENT)
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout
        self._stall = stall
        self._answered = False
        """Whether a single byte of an answer came."""

    @property
    def is_over(self) -> bool:
        """Whether both sides said all that they had to say, and will go on."""
        machine = self._machine
        done = machine.our_state is h11.DONE and machine.their_state is h11.DONE
        return done and not machine.trailing_data[0] and not self._connection.has_data

    def what_broke(self) -> tuple[str, Cause]:
        """Why h11 could make nothing of the answer."""
        if not self._answered:
            return "the connection broke before the store answered", "reset"
        if self._connection.ended:
            return "the store's answer is cut short", "truncated"
        return "the store's answer is not HTTP", "other"

    # -- out

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: Body | None) -> None:
        """Send all of it, or less when the answer does not wait for the end."""
        head = self._head_of(method, target, headers)
        if body is None or not body.size:
            self._finish()
            self._write(head)
        elif body.data is not None and body.size <= _AT_ONCE:
            pieces = self._machine.send_with_data_passthrough(h11.Data(data=body.data)) or []
            self._finish()
            self._write(b"".join([head, *pieces]))
            _tell_handed(body)
        else:
            self._write(head)
            if await self._send_pieces(body):
                self._finish()
                _tell_handed(body)

    def _head_of(self, method: str, target: str, headers: Mapping[str, str]) -> bytes:
        try:
            head = self._machine.send(h11.Request(method=method, target=target, headers=list(headers.items())))
        except (h11.LocalProtocolError, UnicodeError):  # their messages may repeat a header: none of that gets out
            raise StoreRefused(
                "the request holds characters that HTTP cannot carry",
                cause="other",
                hint="look at the bucket, the region and the prefix in the settings of the store",
            ) from None
        assert head is not None
        return head

    async def _send_pieces(self, body: Body) -> bool:
        chunks = body.chunks()
        while (chunk := await _next(chunks, body)) is not None:
            try:
                pieces = self._machine.send_with_data_passthrough(h11.Data(data=chunk)) or []  # type: ignore[arg-type]
            except h11.LocalProtocolError as error:
                raise _changed(body) from error
            for piece in pieces:
                self._write(piece)
            while not self._connection.has_room and not self._interrupted:
                await self._connection.changed(self._patience())
            if self._interrupted:
                return False
        return True

    @property
    def _interrupted(self) -> bool:
        return self._connection.has_data or self._connection.ended

    def _finish(self) -> None:
        try:
            self._machine.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise StoreUnavailable("the object is shorter than it was", cause="bad_digest") from error

    def _write(self, data: bytes) -> None:
        if not self._connection.ended:
            self._connection.write(data)
            self._moved(len(data))

    # -- in

    async def receive(self, limit: int) -> Response:
        """The answer; what is beyond the limit of an error's body stays unread."""
        head = await self._head()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        succeeded = 200 <= head.status_code < 300
        if succeeded and self._machine.our_state is h11.SEND_BODY:
            raise StoreUnavailable("the store answered before it was asked", cause="other")
        parts: list[bytes] = []
        size = 0
        while isinstance(event := await self._event(), h11.Data):
            parts.append(event.data)
            size += len(event.data)
            if size > (limit if succeeded else ERROR_BYTES_MAX):
                if succeeded:
                    raise StoreRefused(f"the store's answer is too large limit={limit}", cause="other")
                break
        return Response(head.status_code, headers, parts[0] if len(parts) == 1 else b"".join(parts))

    async def _head(self) -> h11.Response:
        while not isinstance(event := await self._event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("no answer")
        return event

    async def _event(self) -> object:
        while (event := self._machine.next_event()) is h11.NEED_DATA:
            await self._feed()
        return event

    async def _feed(self) -> None:
        connection = self._connection
        while not connection.has_data and not connection.ended:
            await connection.changed(self._patience())
        data = connection.take() if connection.has_data else b""
        self._answered = self._answered or bool(data)
        self._moved(len(data))
        self._machine.receive_data(data)

    # -- time

    def _moved(self, count: int) -> None:
        self._deadline += count / SLOWEST_LINE

    def _patience(self) -> float:
        left = self._deadline - self._loop.time()
        if left <= 0:
            raise TimeoutError
        return min(left, self._stall)


def _tell_handed(body: Body) -> None:
    if body.handed is not None:
        body.handed()


async def _next(chunks: Iterator[bytes | memoryview], body: Body) -> bytes | memoryview | None:
    """The next piece of a body; files are read in a thread, since a disk may take its time."""
    if body.data is not None:
        return next(chunks, None)
    try:
        return await asyncio.to_thread(next, chunks, None)
    except OSError as error:
        raise StoreUnavailable(f"cannot read the file to send path={body.path}", cause="disk") from error


def _changed(body: Body) -> StoreUnavailable:
    return StoreUnavailable(f"the object is longer than it was path={body.path}", cause="bad_digest")


def _unavailable(what: str, cause: Cause, method: str, target: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} method={method} path={target}", cause=cause)
