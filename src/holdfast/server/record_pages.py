"""Pages of records as bytes: JSON, lines of JSON, Arrow. Made in threads, each whole before it is sent.

A page that is whole has a position and an end before its first byte goes out, and what is damaged or expired is an
error, not a body that breaks off. Limits bound what a page takes in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.errors import Invalid
from holdfast.log.topics.reading import Reading
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.record_json import moment, record_line
from holdfast.model.row_json import placed, row_line
from holdfast.server.api_answers import ARROW, JSON, NDJSON, Answer, Headers, encode
from holdfast.server.api_request import ApiRequest
from holdfast.server.served import AnyKind
from holdfast.server_settings import ServerSettings

FORMS = (JSON, NDJSON, ARROW)
RECORDS = 1_000
RECORDS_MAX = 100_000
BYTES = 4 * 2**20

Place = int | str | None


class PageRequest(NamedTuple):
    """What a client wants to read of a topic."""

    start: Place
    end: Place
    limit: int
    reverse: bool
    partition: list[int] | None
    since: int | None
    until: int | None
    bytes_max: int
    key: Any
    columns: list[str] | None

    def reading(self, topic: AnyKind) -> Reading[Any]:
        """The reading."""
        common: dict[str, Any] = {
            "partition": self.partition,
            "since": self.since,
            "until": self.until,
            "bytes_max": self.bytes_max,
            "key": self.key,
        }
        if isinstance(topic, TypedTopic):
            return topic.read(self.start, self.end, self.limit, self.reverse, columns=self.columns, **common)
        if self.columns is not None:
            raise Invalid(f"topic {topic.name!r} is raw: it has no columns to choose from", hint="leave them out")
        return topic.read(self.start, self.end, self.limit, self.reverse, **common)


def wanted(request: ApiRequest, topic: AnyKind, settings: ServerSettings) -> PageRequest:
    """What a request asks for."""
    limit = request.whole("limit", RECORDS) or 0
    size = request.whole("bytes_max", BYTES) or 0
    if limit < 0 or size < 0:
        raise Invalid("limit and bytes_max are not negative", hint="leave them out for the usual page")
    since, until = request.text("since"), request.text("until")
    return PageRequest(
        place_of(request.text("start")),
        place_of(request.text("end")),
        min(limit, RECORDS_MAX),
        request.flag("reverse"),
        request.wholes("partition"),
        None if since is None else moment(since),
        None if until is None else moment(until),
        min(size, settings.page_bytes_max),
        key_of(request, topic),
        request.query.getlist("columns") or None,
    )


def place_of(text: str | None) -> Place:
    """An offset or a position in a query."""
    if text is None or text.startswith("{"):
        return text
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 20:
        raise Invalid("a place is an offset or a position", hint='for instance start=0, start=-10 or start={"0":42}')
    return int(text)


def key_of(request: ApiRequest, topic: AnyKind) -> Any:
    """The key that a request asks for, in its query or its headers, as the topic's keys are."""
    key = request.header_bytes(b"holdfast-key")
    if key is None:
        found = request.text("key")
        if found is None:
            return None
        key = found.encode("utf-8", "surrogateescape")
    if isinstance(topic, Topic) or topic.key is None:
        return key
    import pyarrow as pa

    kind = topic.schema.field(topic.key).type
    text = key.decode("utf-8", "replace")
    if pa.types.is_integer(kind):
        if not text.removeprefix("-").isdecimal() or len(text) > 20:
            raise Invalid(f"a key of this topic is a whole number column={topic.key!r}", hint="for instance key=42")
        return int(text)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return text if is_text else key


def lines(topic: AnyKind, reading: Reading[Any]) -> Iterator[tuple[int, int, bytes]]:
    """The records or rows of a reading: partition, offset, and JSON."""
    name = topic.name
    if isinstance(topic, TypedTopic):
        for item in placed(reading.batches()):
            yield item.partition, item.offset, encode(row_line(name, item))
    else:
        for record in reading:
            yield record.partition, record.offset, encode(record_line(name, record))


def page(topic: AnyKind, page_request: PageRequest, form: str) -> Answer:
    """One page, whole."""
    reading = page_request.reading(topic)
    if form == ARROW:
        return Answer(arrow(reading), ARROW, headers=head(reading, reverse=page_request.reverse))
    found = [line for _, _, line in lines(topic, reading)]
    headers = head(reading, reverse=page_request.reverse)
    if form == NDJSON:
        return Answer(b"".join(line + b"\n" for line in found), NDJSON, headers=headers)
    position = encode(reading.position)
    rest = b'],"position":%b,"exhausted":%b}' % (position, b"true" if reading.exhausted else b"false")
    return Answer(b'{"records":[' + b",".join(found) + rest, JSON, headers=headers)


def arrow(reading: Reading[Any]) -> bytes:
    """A reading as one Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reading.schema) as stream:
        for batch in reading.batches():
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def head(reading: Reading[Any], *, reverse: bool) -> Headers:
    """How far a page got, and where its reading ends."""
    start, end = reading.bounds
    return [
        (b"holdfast-position", reading.position.encode()),
        (b"holdfast-exhausted", b"true" if reading.exhausted else b"false"),
        (b"holdfast-start", start.encode()) if reverse else (b"holdfast-end", end.encode()),
    ]
