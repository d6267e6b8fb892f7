"""One HTTP/1.1 exchange over one connection: a request out, its answer in, and an honest word about what went wrong.

Nothing is ever sent twice: a connection that turns out to be dead, be it before the first byte of an answer, leaves the
outcome of a PUT unknown, and the caller must know. A connection may be used again only after a whole exchange.

Answers as S3 nearly always gives them (a head that is beyond doubt, and a body of known length) are read here, the body
straight into the bytes that are handed on; everything else goes through h11, which knows the protocol. Heads, bodies
and interim answers have bounds, whatever a peer says.

Time: no step may stand still longer than `stall`, and the whole may take `timeout`, plus what the bytes moved so far
take at a very slow line's pace; so a big object on a slow line gets through, and a dead peer is noticed all the same.

The connection may belong to a loop (`connections`) or block its thread (`blocking_pool`): it does all the waiting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import NamedTuple, Protocol, TypeVar

from holdfast.errors import Invalid
from holdfast.store.credentials import EXTRA_HINT
from holdfast.store.port import Body, Cause, StoreRefused, StoreUnavailable
from holdfast.store.s3.off_loop import OffLoop

try:
    import h11
except ImportError as error:
    raise Invalid("S3 needs the extra 's3'", hint=EXTRA_HINT) from error

ERROR_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 2**30
HEAD_BYTES_MAX = 32 * 1024
INTERIM_MAX = 10
"""Answers of the kind *continue* before the one that counts."""
SLOWEST_LINE = 64 * 1024
"""Bytes per second."""

PIECE_BYTES = 256 * 1024
"""Larger bodies go out in pieces: copying or encrypting one must not hold up a loop."""
_AT_ONCE = 64 * 1024
"""Bodies up to here go out together with their head: one copy is cheaper than two system calls."""

_FIELD_NAME = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rf"[A-Z]+ /[\x21-\x7e]* HTTP/1\.1\r\n(?:{_FIELD_NAME}: [\x20-\x7e\x80-\xff]*\r\n)*\r\n")
_TEXT = r"\x20-\x7e\x80-\xff"
_PLAIN_HEAD = rf"HTTP/1\.1 ([2-5][0-9][0-9])(?: [{_TEXT}]*)?\r\n((?:{_FIELD_NAME}:[\t{_TEXT}]*\r\n)*)\r\n"
_PLAIN_ANSWER = re.compile(_PLAIN_HEAD.encode("latin-1"))
_LENGTH = re.compile(r"[0-9]{1,15}")
_BODILESS = (204, 304)

Result = TypeVar("Result")


class AnyConnection(OffLoop, Protocol):
    """A connection, as an exchange sees it: bytes out, bytes in. One user at a time."""

    served: int
    reusable: bool

    @property
    def ended(self) -> bool:
        """Whether the peer hung up, or the connection broke."""

    @property
    def has_data(self) -> bool:
        """Whether something came that was not taken."""

    def now(self) -> float:
        """Seconds, on the clock that its waiting goes by."""

    async def send(self, data: bytes | memoryview, seconds: float) -> bool:
        """Send bytes; False when the peer answered or hung up meanwhile, so that more should not follow."""

    async def receive(self, seconds: float) -> bytes:
        """What comes next; empty when it has ended. Raises TimeoutError."""

    async def fill(self, place: memoryview, seconds: float) -> int:
        """What comes next, put there; how much it was, 0 when it has ended. Raises TimeoutError."""


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
    connection: AnyConnection,
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
    exchange = _Exchange(connection, method, timeout, timeout if stall is None else stall, limit)
    try:
        await exchange.send(_head_of(method, target, headers), body)
        response = await exchange.receive()
    except TimeoutError:
        raise _unavailable("the store did not answer in time", "timeout", method, target) from None
    except (h11.RemoteProtocolError, _Broken) as error:
        raise _unavailable(*exchange.what_broke(), method, target) from error
    connection.served += 1
    connection.reusable = exchange.is_over and not connection.has_data
    return response


def _head_of(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"{method} {target} HTTP/1.1\r\n{lines}\r\n"
    if not _REQUEST.fullmatch(head) or head.count("\n") != len(headers) + 2:
        raise StoreRefused(  # without its text: it holds the signature
            "the request holds characters that HTTP cannot carry",
            cause="other",
            hint="check the bucket, the region and the prefix in the settings of the store",
        )
    return head.encode("latin-1")


class AnswerTooLarge(StoreRefused):
    """A response has more bytes than the caller will take."""


class _Broken(Exception):
    """The connection ended in the middle of an answer."""


class _Exchange:
    """One request and its answer, and the time that is left for it."""

    def __init__(self, connection: AnyConnection, method: str, timeout: float, stall: float, limit: int) -> None:
        self._connection = connection
        self._method = method
        self._limit = limit
        self._deadline = connection.now() + timeout
        self._stall = stall
        self._is_asked = True
        """Whether all of the request went out."""
        self._answered = False
        """Whether a single byte of an answer came."""
        self.is_over = False
        """Whether both sides said all that they had to say, and will go on."""

    def what_broke(self) -> tuple[str, Cause]:
        """Why nothing can be made of the answer."""
        if not self._answered:
            return "the connection broke before the store answered", "reset"
        if self._connection.ended:
            return "the store's answer is cut short", "truncated"
        return "the store's answer is not HTTP", "other"

    # -- out

    async def send(self, head: bytes, body: Body | None) -> None:
        """Send all of it, or less when the answer does not wait for the end."""
        if body is None or not body.size:
            await self._send(head)
        elif body.data is not None and body.size <= _AT_ONCE:
            await self._send(head + body.data)
            _tell_handed(body)
        else:
            await self._send(head)
            self._is_asked = await self._send_pieces(body)
            if self._is_asked:
                _tell_handed(body)

    async def _send_pieces(self, body: Body) -> bool:
        chunks, left = body.chunks(), body.size
        while (chunk := await self._next(chunks, body)) is not None:
            if left < len(chunk):
                raise StoreUnavailable(f"the object is longer than it was path={body.path}", cause="bad_digest")
            view = memoryview(chunk)
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                left -= len(piece)
                if not await self._send(piece):
                    return left == 0
        if left:
            raise StoreUnavailable(f"the object is shorter than it was path={body.path}", cause="bad_digest")
        return True

    async def _next(self, chunks: Iterator[bytes | memoryview], body: Body) -> bytes | memoryview | None:
        """The next piece of a body; files are read off the loop, since a disk may take its time."""
        if body.data is not None:
            return next(chunks, None)
        try:
            return await self._connection.off_loop(lambda: next(chunks, None))
        except OSError as error:
            raise StoreUnavailable(f"cannot read the file to send path={body.path}", cause="disk") from error

    async def _send(self, data: bytes | memoryview) -> bool:
        goes_on = await self._connection.send(data, self._seconds_left())
        self._moved(len(data))
        return goes_on

    # -- in

    async def receive(self) -> Response:
        """The answer; what is beyond the limit of an error's body stays unread."""
        data = await self._receive()
        while b"\r\n\r\n" not in data and data and len(data) < HEAD_BYTES_MAX and not self._connection.ended:
            data += await self._receive()
        plain = _PLAIN_ANSWER.match(data, 0, HEAD_BYTES_MAX)
        headers = {} if plain is None else _fields(plain[2])
        length = _length(self._method, int(plain[1]), headers) if plain is not None else None
        if plain is None or length is None:
            return await self._receive_by_h11(data)
        self._check(int(plain[1]), length)
        body = await self._body(length, memoryview(data)[plain.end() :], int(plain[1]))
        return Response(int(plain[1]), headers, body)

    async def _body(self, length: int, begun: memoryview, status: int) -> bytes:
        wanted = length if status < 300 else min(length, ERROR_BYTES_MAX)
        self.is_over = self._is_asked and wanted == length and len(begun) <= length
        if len(begun) >= wanted:
            return bytes(begun[:wanted])
        # Bytes that are filled in place: nothing is copied, and memory is taken as it is filled.
        whole = BytesIO(bytes(wanted))
        with whole.getbuffer() as place:
            place[: len(begun)] = begun
            at = len(begun)
            while at < wanted:
                count = await self._connection.fill(place[at:], self._seconds_left())
                if not count:
                    raise _Broken
                self._moved(count)
                at += count
        return whole.getvalue()

    async def _receive_by_h11(self, data: bytes) -> Response:
        machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        machine.send(h11.Request(method=self._method, target="/", headers=[("host", "-")]))  # what it must know of ours
        machine.send(h11.EndOfMessage())
        machine.receive_data(data)
        head = await self._head(machine)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        succeeded = 200 <= head.status_code < 300
        self._check(head.status_code, 0)
        parts: list[bytes] = []
        size = 0
        while isinstance(event := await self._event(machine), h11.Data):
            parts.append(bytes(event.data))
            size += len(event.data)
            self._check(head.status_code, size)
            if not succeeded and size > ERROR_BYTES_MAX:
                break
        done = machine.our_state is h11.DONE and machine.their_state is h11.DONE
        self.is_over = self._is_asked and done and not machine.trailing_data[0]
        return Response(head.status_code, headers, parts[0] if len(parts) == 1 else b"".join(parts))

    def _check(self, status: int, size: int) -> None:
        if not 200 <= status < 300:
            return
        if not self._is_asked:
            raise StoreUnavailable("the store responded before the request", cause="other")
        if size > self._limit:
            raise AnswerTooLarge(f"the store's answer is too large limit={self._limit}", cause="other")

    async def _head(self, machine: h11.Connection) -> h11.Response:
        for _ in range(INTERIM_MAX):
            event = await self._event(machine)
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
        raise h11.RemoteProtocolError("no answer")

    async def _event(self, machine: h11.Connection) -> object:
        while (event := machine.next_event()) is h11.NEED_DATA:
            machine.receive_data(await self._receive())
        return event

    async def _receive(self) -> bytes:
        data = await self._connection.receive(self._seconds_left())
        self._answered = self._answered or bool(data)
        self._moved(len(data))
        return data

    # -- time

    def _moved(self, count: int) -> None:
        self._deadline += count / SLOWEST_LINE

    def _seconds_left(self) -> float:
        left = self._deadline - self._connection.now()
        if left <= 0:
            raise TimeoutError
        return min(left, self._stall)


def _tell_handed(body: Body) -> None:
    if body.handed is not None:
        body.handed()


def _fields(lines: bytes) -> dict[str, str]:
    """The fields of a head by name; of names that occur twice, the values with a comma between them."""
    pairs = [line.partition(":") for line in lines.decode("latin-1").split("\r\n")[:-1]]
    fields = {name.lower(): value.strip(" \t") for name, _, value in pairs}
    if len(fields) != len(pairs):
        for name in fields:
            fields[name] = ", ".join([value.strip(" \t") for other, _, value in pairs if other.lower() == name])
    return fields


def _length(method: str, status: int, fields: dict[str, str]) -> int | None:
    """How long the body is, where that is beyond doubt and the connection goes on behind it."""
    if "transfer-encoding" in fields or fields.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    length = fields.get("content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        return None
    if method == "HEAD" or status in _BODILESS:
        return 0
    return None if length is None else int(length)


def _unavailable(what: str, cause: Cause, method: str, target: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} method={method} path={target}", cause=cause)
