"""One request and its answer, as ASGI: `receive` gives the body, `send` frames the answer.

Neither side is let run ahead: a body that nobody takes stops the reading of the connection (`http_connection`), and
`send` waits while the client takes nothing. The head of an answer goes out with the first part of its body, in one
packet. What the application says of its answer is checked: a header that would begin another line, or a body that is
not as long as its head says, ends the connection instead of being believed by a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from holdfast.server.api_answers import Send
from holdfast.server.api_request import Receive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.server.connections.http_connection import HttpConnection

    AsgiApplication = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_log = logging.getLogger("holdfast.server")
_STATUS_LINES = {one.value: b"HTTP/1.1 %d %b\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}
_BODILESS = (204, 304)
_GONE = {"type": "http.disconnect"}


class AsgiExchange:
    """A request, from its head to the end of its answer. Its connection sets what is public here."""

    __slots__ = (
        "_connection", "_expects_word", "_head", "_is_bodiless", "_is_chunked", "_is_taken", "_left", "_parts",
        "_wakeup", "has_begun", "has_more_body", "is_answered", "is_gone", "keep_alive", "scope", "size", "task",
    )  # fmt: skip

    def __init__(
        self, connection: HttpConnection, scope: MutableMapping[str, Any], *, keep_alive: bool, expects_word: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        """Whether another request may follow on the connection."""
        self.task: asyncio.Task[None] | None = None
        """The application at work on it, once it is its turn."""
        self.size = 0
        """Bytes of its body that have come and were not taken."""
        self.has_more_body = True
        """Whether some of its body has not come yet."""
        self.has_begun = self.is_answered = self.is_gone = False
        """Whether its answer has begun, and is complete; and whether nobody is there to take it."""
        self._connection = connection
        self._expects_word = expects_word
        self._parts: list[bytes] = []
        self._is_taken = False
        self._wakeup: asyncio.Event | None = None
        self._head = b""
        self._is_bodiless = self._is_chunked = False
        self._left: int | None = None
        """How many bytes of the answer's body are missing, where its head says how long it is."""

    async def run(self, application: AsgiApplication) -> None:
        """Let the application answer it."""
        try:
            await application(self.scope, self.receive, self.send)
        except Exception as error:
            _log.error("an answer broke off: %s", type(error).__name__, extra={"action": "answer_broke"})
        finally:
            self._connection.done(self)

    # -- the body -----------------------------------------------------------------------------------------

    def take_in(self, part: bytes) -> int:
        """A part of the body has come; returns how much waits to be taken."""
        if not (self.is_answered or self.is_gone):
            self._parts.append(part)
            self.size += len(part)
            if self._wakeup is not None:
                self._wakeup.set()
        return self.size

    def wake(self) -> None:
        """Something has changed for those who wait in `receive`."""
        if self._wakeup is not None:
            self._wakeup.set()

    def leave(self) -> None:
        """Nobody is there any more."""
        self.is_gone = True
        self.wake()

    async def receive(self) -> MutableMapping[str, Any]:
        """What of the body has come since, or that the client has gone or has its answer."""
        if self._expects_word and not self.has_begun:
            self._expects_word = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._parts or self.is_answered or self.is_gone) and (self.has_more_body or self._is_taken):
            if self._wakeup is None:
                self._wakeup = asyncio.Event()
            self._wakeup.clear()
            await self._wakeup.wait()
        if self.is_answered or self.is_gone:
            return _GONE
        body = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        self._is_taken = not self.has_more_body
        if self._connection.is_paused:
            self._connection.read_on()
        return {"type": "http.request", "body": body, "more_body": self.has_more_body}

    # -- the answer ---------------------------------------------------------------------------------------

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """A part of the answer; waits until the client has taken enough of what is before it."""
        writable = self._connection.writable
        if writable is not None and not self.is_gone:
            await writable.wait()
        if self.is_gone:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.has_begun:
            self._begin(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.has_begun and not self.is_answered:
            self._go_on(message.get("body", b""), has_more=message.get("more_body", False))
        else:
            raise RuntimeError(f"{kind} is not what comes next in an answer")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.has_begun = True
        lines = [_STATUS_LINES[status], self._connection.guard.date_line]
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection":
                self.keep_alive = False  # nothing else is ever said about it
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.scope["method"] == "HEAD" or status in _BODILESS:
            self._is_bodiless = True
        elif self._left is None and self.scope["http_version"] == "1.1":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:  # which is also the end of a body of neither kind
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        if not self._head.count(b"\n") == self._head.count(b"\r") == len(lines):
            raise RuntimeError("a header holds the end of a line")

    def _go_on(self, body: bytes, *, has_more: bool) -> None:
        if self._is_bodiless:
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not has_more):
                raise RuntimeError("the body is not as long as its head says")
        elif self._is_chunked:
            end = b"" if has_more else b"0\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        head, self._head = self._head, b""
        self._connection.transport.write(head + body if head else body)
        if not has_more:
            self.is_answered = True
            self._parts.clear()
            self.size = 0
            self.wake()
            self._connection.answered(self)
