"""Reading over HTTP: pages, single records, the newest of a key, and following.

A follower reads page by page, too: it sleeps until something is durable behind its position, without a thread, then
reads in one. So it costs nothing while nothing happens, and what it sends can be found again by its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.log.topics.reading import parse_position, position_text
from holdfast.log.topics.topic import Topic
from holdfast.model.record import Record
from holdfast.model.record_json import iso
from holdfast.remote.http.error_message import ErrorBody
from holdfast.server.api_answers import BYTES, EVENTS, JSON, NDJSON, Answer, Headers, Stream, encode
from holdfast.server.api_request import ApiRequest, whole_of
from holdfast.server.http_errors import body_of
from holdfast.server.record_pages import FORMS, PageRequest, key_of, lines, page, place_of, wanted
from holdfast.server.served import AnyKind, Served

_FOLLOW_RECORDS = 1_000
_FOLLOW_BYTES = 2**20


class PageAnswer(msgspec.Struct, frozen=True):
    """One page."""

    records: list[dict[str, Any]]
    position: str
    exhausted: bool


async def read(request: ApiRequest, served: Served) -> Answer:
    """One page. It is complete before its first byte is sent, so an error is always a status."""
    topic = served.topic(request.params["topic"])
    query = wanted(request, topic, served.settings)
    form = request.accepts(FORMS)
    wait = request.seconds("wait", 0.0)
    if wait:
        await served.waiting(request, _wait(topic, query, wait))
    return await served.read(lambda: page(topic, query, form), request.caller)


async def _wait(topic: AnyKind, query: PageRequest, seconds: float) -> None:
    if query.reverse or query.end is not None or query.until is not None:
        raise Invalid("'wait' waits for what comes", hint="leave out 'reverse', 'end' and 'until'")
    start = topic.read(partition=query.partition, limit=0).position if query.start is None else query.start
    await topic.follow(start, partition=query.partition).wait(seconds)


# -- single records ---------------------------------------------------------------------------------------


async def one_record(request: ApiRequest, served: Served) -> Answer:
    """The record at an offset: of a raw topic its payload, the rest in headers; of a typed topic the row as JSON. 404
    where there is none yet, 410 where it has expired.
    """
    topic = served.topic(request.params["topic"])
    partition, offset = whole_of(request.params["partition"], "partition"), whole_of(request.params["offset"], "offset")
    if offset < 0:
        raise Invalid("an offset is not negative here", hint="read with start=-1 gives the last record")
    size = served.settings.page_bytes_max
    query = PageRequest(offset, offset + 1, 1, False, [partition], None, None, size, None, None)
    return await served.read(lambda: _one(topic, query), request.caller)


def _one(topic: AnyKind, query: PageRequest) -> Answer:
    reading = query.reading(topic)
    if not isinstance(topic, Topic):
        return _line(topic, query, "there is no row yet at this offset")
    record = next(iter(reading), None)
    if record is None:
        raise NotFound("there is no record yet at this offset", hint="the topic's marks say how far it got")
    return Answer(record.payload, BYTES, headers=_record_headers(record))


def _record_headers(record: Record) -> Headers:
    headers = [
        (b"holdfast-time", (iso(record.time) or str(record.time)).encode()),
        (b"content-disposition", b"attachment"),
    ]
    if record.key is not None:
        headers.append((b"holdfast-key", quote(record.key, safe="").encode()))
    if record.kind is not None:
        headers.append((b"holdfast-kind", quote(record.kind, safe="").encode()))
    for name, value in (record.headers or {}).items():
        headers.append((b"holdfast-header-" + quote(name, safe="").encode(), quote(value, safe="").encode()))
    return headers


async def latest(request: ApiRequest, served: Served) -> Answer:
    """The newest record or row with this key, as JSON; 404 where there is none."""
    topic = served.topic(request.params["topic"])
    key = key_of(request, topic)
    if key is None:
        raise Invalid("a key is needed", hint="give it as 'key' in the query, or in the header Holdfast-Key")
    size = served.settings.page_bytes_max
    query = PageRequest(None, None, 1, True, request.wholes("partition"), None, None, size, key, None)
    return await served.read(lambda: _line(topic, query, "there is no record with this key"), request.caller)


def _line(topic: AnyKind, query: PageRequest, missing: str) -> Answer:
    found = next(lines(topic, query.reading(topic)), None)
    if found is None:
        raise NotFound(missing, hint="the topic's marks say how far it got")
    return Answer(found[2], JSON)


# -- following --------------------------------------------------------------------------------------------


async def follow(request: ApiRequest, served: Served) -> Stream:
    """Records as they become durable, until the client goes or the server shuts down."""
    topic = served.topic(request.params["topic"])
    form = request.accepts((EVENTS, NDJSON))
    start = request.header(b"last-event-id") or request.text("start")
    place = place_of(start)
    following = _Following(request, served, topic, _EVENT_FORM if form == EVENTS else _LINE_FORM)
    following.begin(place, request.wholes("partition"))
    with served.followers.held(request.caller):  # refused before the answer begins; taken for good by the stream itself
        return Stream(following.parts(), form)


class _Form:
    """How a stream looks."""

    def __init__(self, record: bytes, end: bytes, error: bytes, beat: bytes) -> None:
        self._record, self._end, self._error, self.beat = record, end, error, beat

    def record(self, position: bytes, line: bytes) -> bytes:
        return self._record % (position, line)

    def end(self, reason: str) -> bytes:
        return self._end % encode({"reason": reason})

    def error(self, body: ErrorBody) -> bytes:
        return self._error % encode(body)


_EVENT_FORM = _Form(
    b"id: %b\nevent: record\ndata: %b\n\n", b"event: end\ndata: %b\n\n", b"event: error\ndata: %b\n\n", b":\n\n"
)
_LINE_FORM = _Form(b'{"position":%b,"record":%b}\n', b'{"end":%b}\n', b'{"error":%b}\n', b"\n")


class _Following:
    """One follower."""

    def __init__(self, request: ApiRequest, served: Served, topic: AnyKind, form: _Form) -> None:
        self._request = request
        self._served = served
        self._topic = topic
        self._form = form
        self._partition: list[int] | None = None

    def begin(self, start: int | str | None, partition: list[int] | None) -> None:
        """Decide where it begins, and refuse what is wrong before anything is sent."""
        self._partition = partition
        self._follower = self._topic.follow(start, partition=partition)

    async def parts(self) -> AsyncIterator[bytes]:
        """What is sent."""
        served = self._served
        with served.followers.held(self._request.caller):
            yield self._form.beat  # so that headers go out
            try:
                async for part in self._records():
                    yield part
            except HoldfastError as error:
                yield self._form.error(body_of(error, self._request.id))

    async def _records(self) -> AsyncIterator[bytes]:
        served = self._served
        draining = asyncio.ensure_future(served.draining.wait())
        try:
            while True:
                more = asyncio.ensure_future(self._follower.wait(served.settings.heartbeat_ms / 1000))
                try:
                    await asyncio.wait({more, draining}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    more.cancel()
                if draining.done():
                    yield self._form.end("shutdown")
                    return
                if not self._is_allowed():
                    yield self._form.end("revoked")
                    return
                if more.result():
                    yield await served.read(self._page, self._request.caller)
                else:
                    served.check_ready()
                    yield self._form.beat
        finally:
            draining.cancel()

    def _is_allowed(self) -> bool:
        return self._served.access.is_still_known(self._request.caller)

    def _page(self) -> bytes:
        """In a thread: the next records."""
        at, part = self._follower.position, self._partition
        query = PageRequest(at, None, _FOLLOW_RECORDS, False, part, None, None, _FOLLOW_BYTES, None, None)
        reading = query.reading(self._topic)
        positions = dict(parse_position(self._follower.position))
        parts = []
        quoted = self._form is _LINE_FORM
        for partition, offset, line in lines(self._topic, reading):
            positions[partition] = offset + 1
            text = position_text(positions)
            parts.append(self._form.record(encode(text) if quoted else text.encode(), line))
        self._follower.go_to(reading.position)
        return b"".join(parts)
