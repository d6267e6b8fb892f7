"""Answers: a status, headers and bytes, or a stream of them, in the words of ASGI.

Every answer says that its type is meant, that it is not to be kept, and that no other site may use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"
EVENTS = "text/event-stream"

_SAFE: Headers = [
    (b"holdfast-api", b"1"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
]

_PART_BYTES = 256 * 1024

_encoder = msgspec.json.Encoder(decimal_format="string")
encode = _encoder.encode


_QUESTION = b"holdfast-question"


def bound(send: Send, asked: Mapping[bytes, bytes]) -> Send:
    """Sends what answers this request, and says which one that is: what the client called it, if it did."""
    question = asked.get(_QUESTION)
    if question is None or len(question) > 64 or not question.isalnum():
        return send

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (_QUESTION, question)]
        await send(message)

    return sending


class Answer:
    """A whole answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, body: bytes = b"", content_type: str = JSON, status: int = 200, headers: Headers | None = None
    ) -> None:
        self.body = body
        self.content_type = content_type
        self.status = status
        self.headers = headers

    async def send(self, send: Send, request: str, *, close: bool = False) -> None:
        """Hand it over."""
        headers = _head(self.content_type, request)
        if self.status != 204:  # which has no body, and no length
            headers.append((b"content-length", b"%d" % len(self.body)))
        if self.headers:
            headers += self.headers
        if close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for at in range(0, len(self.body) - _PART_BYTES, _PART_BYTES):
            await send({"type": "http.response.body", "body": self.body[at : at + _PART_BYTES], "more_body": True})
            await asyncio.sleep(0)  # what is written in one turn goes out at its end; then the next one waits for room
        sent = max(0, len(self.body) - 1) // _PART_BYTES * _PART_BYTES
        await send({"type": "http.response.body", "body": self.body[sent:]})


class Stream:
    """An answer that goes on until its source ends or its reader goes."""

    __slots__ = ("content_type", "parts")

    def __init__(self, parts: AsyncIterator[bytes], content_type: str) -> None:
        self.parts = parts
        self.content_type = content_type

    async def send(self, send: Send, request: str) -> None:
        """Hand over part after part, as fast as they are taken."""
        headers = [*_head(self.content_type, request), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _head(content_type: str, request: str) -> Headers:
    return [(b"content-type", content_type.encode()), (b"holdfast-request", request.encode()), *_SAFE]


def json_answer(value: object, status: int = 200, headers: Headers | None = None) -> Answer:
    """A value as JSON."""
    return Answer(encode(value), JSON, status, headers)
