"""A request: its headers, query and body, each within limits, checked before it is believed.

A body is refused by its declared length before a byte of it is read, and counted while it comes. All bodies that are
in memory at a time share one budget, of which each token has a part. What is wrong is Invalid, and says which part;
never with its value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.datastructures import QueryParams

from holdfast.arguments import seconds
from holdfast.errors import HoldfastError, Invalid
from holdfast.model.typed_decoding import make_known
from holdfast.server.guards.places import Places
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.request_caller import Caller
from holdfast.server_settings import ServerSettings

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Value = TypeVar("Value")

WAIT_SECONDS_MAX = 60.0
_DIGITS_MAX = 20
_DISCARDED = 4
"""How many times the largest body is let come for nothing."""


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


class ApiRequest:
    """One request."""

    __slots__ = (
        "_bodies", "_query", "_receive", "_settings", "_taken", "caller", "has_body_left", "headers", "id", "method",
        "params", "scope",
    )  # fmt: skip

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Receive, number: str, settings: ServerSettings, bodies: Places
    ) -> None:
        self.scope = scope
        self.id = number
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: dict[str, Any] = {}
        self.caller: Caller
        self._receive = receive
        self._settings = settings
        self._bodies = bodies
        self._taken = 0
        self._query: QueryParams | None = None
        self.has_body_left = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        """Whether the client may still be sending."""

    def release(self) -> None:
        """Its body is no longer needed."""
        if self._taken:
            self._bodies.give_back(self.caller, self._taken)
            self._taken = 0

    # -- headers and query --------------------------------------------------------------------------------

    def header(self, name: bytes) -> str | None:
        """A header, as text."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def header_text(self, name: bytes) -> str | None:
        """A header that is a name, as paths have it: in UTF-8."""
        try:
            value = self.headers.get(name)
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            raise Invalid(f"the header {name.decode()} is not UTF-8", hint="send it as UTF-8") from None

    def header_bytes(self, name: bytes) -> bytes | None:
        """A header whose value is percent-encoded bytes."""
        value = self.headers.get(name)
        return None if value is None else unquote_to_bytes(value)

    @property
    def media_type(self) -> str:
        """The body's type, without parameters."""
        return self.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()

    def accepts(self, offered: Iterable[str]) -> str:
        """The first type of these that the client takes, by its own order; 406 where there is none."""
        offers = list(offered)
        wanted = self.header(b"accept")
        if wanted is None:
            return offers[0]
        for part in wanted.split(","):
            name = part.partition(";")[0].strip().lower()
            if name == "*/*":
                return offers[0]
            if name in offers:
                return name
        raise RefusedRequest(406, "no format that the client accepts", hint=f"Accept one of {', '.join(offers)}")

    @property
    def query(self) -> QueryParams:
        """The query."""
        if self._query is None:
            self._query = QueryParams(self.scope["query_string"])
        return self._query

    def text(self, name: str) -> str | None:
        """A text in the query."""
        value = self.query.get(name)
        return value if isinstance(value, str) else None

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A whole number in the query."""
        value = self.text(name)
        return default if value is None else whole_of(value, name)

    def wholes(self, name: str) -> list[int] | None:
        """Whole numbers in the query: the name may be repeated."""
        return [whole_of(value, name) for value in self.query.getlist(name)] or None

    def flag(self, name: str) -> bool:
        """True or false in the query."""
        value = self.text(name)
        if value not in (None, "true", "false", "1", "0"):
            raise Invalid(f"{name} is true or false", hint=f"for instance {name}=true")
        return value in ("true", "1")

    def seconds(self, name: str, default: float | None = None, most: float = WAIT_SECONDS_MAX) -> float | None:
        """A time to wait, in the query."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return min(seconds(float(value), name), most)
        except ValueError:
            raise Invalid(f"{name} is a number of seconds", hint=f"for instance {name}=2.5") from None

    # -- the body -----------------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """All of the body."""
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
            raise RefusedRequest(415, "bodies are not compressed here", hint="send it without Content-Encoding")
        declared = self._declared()
        if declared is not None:
            self._take(declared)
        message = await self._next()
        content: bytes = message.get("body", b"")
        if message.get("more_body", False):
            parts, size = [content], len(content)
            while message.get("more_body", False):
                message = await self._next()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if declared is None and size > self._taken:
                    self._take(size - self._taken)
            content = b"".join(parts)
        elif declared is None:
            self._take(len(content))
        self.has_body_left = False
        return content

    def _declared(self) -> int | None:
        """How long it says it is; None where it does not say."""
        declared = self.headers.get(b"content-length")
        if declared is None:
            return None
        return int(declared) if declared.isdigit() and len(declared) < _DIGITS_MAX else 2**63

    async def discard(self) -> None:
        """Let what is left of a refused body come, if it is not too much: a client that is still sending when the
        connection is closed does not get to read why.
        """
        declared = self._declared()
        left = _DISCARDED * self._settings.body_bytes_max
        if not self.has_body_left or declared is None or declared > left or b"expect" in self.headers:
            return
        more = True
        while more and left >= 0:
            message = await self._next()
            more = message.get("more_body", False)
            left -= len(message.get("body", b""))
        self.has_body_left = more

    async def _next(self) -> MutableMapping[str, Any]:
        """The next part. How long it may take is the connection's business (`http_connection`)."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    def _take(self, count: int) -> None:
        most = self._settings.body_bytes_max
        if self._taken + count > most:
            raise RefusedRequest(
                413,
                f"the body is too large max={most}",
                hint="send it in several smaller ones",
                headers={"holdfast-body-max": str(most)},
            )
        self._bodies.take(self.caller, count)
        self._taken += count

    async def json(self, kind: type[Value]) -> Value:
        """The body as this type; an empty one is an empty object."""
        if self.media_type not in ("application/json", ""):
            raise RefusedRequest(415, "this body is JSON", hint="send Content-Type: application/json")
        content = await self.body()
        if content and not self.media_type:  # a page of another site can send what has no type without being asked
            raise RefusedRequest(415, "the body's type is missing", hint="send Content-Type: application/json")
        make_known(kind)
        return decoded(content or b"{}", msgspec.json.Decoder(kind))

    async def gone(self) -> None:
        """Wait until the client goes."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def decoded(content: bytes, decoder: msgspec.json.Decoder[Value], *, lines: bool = False) -> Value:
    """JSON as the decoder's type; its complaint names the place and never the value."""
    try:
        return decoder.decode_lines(content) if lines else decoder.decode(content)  # type: ignore[return-value]
    except msgspec.ValidationError as error:
        raise Invalid(f"the body is not as it should be: {error}"[:300], hint="see /docs for what it holds") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid("the body is not JSON", hint="see /docs for what it holds") from None
    except HoldfastError:
        raise
    except (ValueError, ArithmeticError):  # a float_hook that cannot take it
        raise Invalid("the body has a number that is none", hint="see /docs for what it holds") from None


def whole_of(value: str, name: str) -> int:
    """A text as a whole number."""
    if not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > _DIGITS_MAX:
        raise Invalid(f"{name} is a whole number", hint=f"for instance {name}=10")
    try:
        return int(value)
    except ValueError:
        raise Invalid(f"{name} is a whole number", hint=f"for instance {name}=10") from None
