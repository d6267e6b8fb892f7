"""Bodies as records or rows: JSON, lines of JSON, bytes, Arrow. What is wrong is refused before anything is queued.

Bytes of Arrow are hostile until they are proved: messages are read one by one, compressed ones refused before they
expand, and every batch is validated as a whole before a column of it is looked at.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from holdfast.errors import Invalid
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.record import NOW, Record
from holdfast.model.record_json import JsonRecord, moment
from holdfast.model.row_json import Row, typed_rows
from holdfast.model.value_codec import ValueCodec
from holdfast.server.api_answers import ARROW, BYTES, JSON, NDJSON
from holdfast.server.api_request import ApiRequest, decoded, whole_of
from holdfast.server.http_errors import RefusedRequest

if TYPE_CHECKING:
    import pyarrow as pa

_one = msgspec.json.Decoder(JsonRecord)
_several = msgspec.json.Decoder(list[JsonRecord])
_row = msgspec.json.Decoder(Row, float_hook=Decimal)
_rows = msgspec.json.Decoder(list[Row], float_hook=Decimal)

_HEADER = b"holdfast-header-"
_RAW_COLUMNS = ("payload", "key", "kind", "headers", "time")
_READ_COLUMNS = ("partition", "offset")
"""What a read gives and an append ignores."""


class RequestRecords(NamedTuple):
    """What a body holds."""

    items: Any
    """Records or payloads, as a list; rows as a list of dicts or as Arrow data."""
    is_one: bool
    partition: int | None = None


# -- raw topics -------------------------------------------------------------------------------------------


def records_of(request: ApiRequest, topic: Topic, content: bytes) -> RequestRecords:
    """A body for a raw topic."""
    kind = request.media_type
    if kind == NDJSON:
        return _records(decoded(content, _one, lines=True), topic.codec)  # type: ignore[arg-type]
    if kind == JSON:
        if content.lstrip()[:1] == b"[":
            return _records(decoded(content, _several), topic.codec)
        one = decoded(content, _one)
        return RequestRecords([one.content(topic.codec)], True, one.partition)
    if kind == BYTES:
        return _bytes_record(request, content)
    if kind == ARROW:
        return RequestRecords(_arrow_records(content, topic), False)
    raise _other_type()


def _records(given: list[JsonRecord], codec: ValueCodec | None) -> RequestRecords:
    if not given:
        raise Invalid("the body has no record", hint="send at least one")
    partitions = {one.partition for one in given}
    if len(partitions) > 1:
        raise Invalid("records of one body name different partitions", hint="name one for all of them, or none")
    return RequestRecords([one.content(codec) for one in given], False, partitions.pop())


def _bytes_record(request: ApiRequest, content: bytes) -> RequestRecords:
    headers = {
        unquote(name[len(_HEADER) :].decode("latin-1")): unquote_to_bytes(value)
        for name, value in request.headers.items()
        if name.startswith(_HEADER)
    }
    time, partition = request.header(b"holdfast-time"), request.header(b"holdfast-partition")
    kind = request.header(b"holdfast-kind")
    record = Record(
        content,
        request.header_bytes(b"holdfast-key"),
        None if kind is None else unquote(kind),
        headers or None,
        NOW if time is None else moment(unquote(time)),
    )
    return RequestRecords([record], True, None if partition is None else whole_of(partition, "Holdfast-Partition"))


def _arrow_records(content: bytes, topic: Topic) -> list[Record]:
    import pyarrow as pa

    records: list[Record] = []
    for batch in _batches(content, topic):
        names = batch.schema.names
        unknown = [name for name in names if name not in (*_RAW_COLUMNS, *_READ_COLUMNS)]
        if unknown or "payload" not in names or len(set(names)) < len(names):
            raise Invalid(
                f"topic {topic.name!r} is raw: its columns are others",
                hint=f"'payload', and where wanted some of {', '.join(_RAW_COLUMNS[1:])}",
            )
        columns = {name: batch.column(name) for name in names if name in _RAW_COLUMNS}
        if not all(_is_raw(name, column.type) for name, column in columns.items()):
            raise _other_column()
        if "time" in columns:
            columns["time"] = _times(columns["time"])
        values = {name: column.to_pylist() for name, column in columns.items()}
        nothing = [None] * batch.num_rows
        lists = (values.get(name, nothing) for name in _RAW_COLUMNS)
        try:
            records += [
                Record(payload, key, kind, _headers(headers), NOW if time is None else time)
                for payload, key, kind, headers, time in zip(*lists, strict=True)
            ]
        except (TypeError, ValueError, KeyError, pa.ArrowException):
            raise _other_column() from None
    if not records:
        raise Invalid("the body has no record", hint="send at least one")
    return records


def _is_raw(name: str, kind: pa.DataType) -> bool:
    """Whether a column may be one of raw records. What it holds is made into objects: of nothing else."""
    import pyarrow as pa

    if name != "headers":
        return not pa.types.is_nested(kind)
    if pa.types.is_map(kind):
        return not (pa.types.is_nested(kind.key_type) or pa.types.is_nested(kind.item_type))
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return bool(pa.types.is_null(kind))
    value = kind.value_type
    pair = pa.types.is_struct(value) and sorted(field.name for field in value) == ["key", "value"]
    return bool(pa.types.is_null(value)) or (pair and not any(pa.types.is_nested(field.type) for field in value))


def _other_column() -> Invalid:
    return Invalid("a column has another type", hint="see docs/reference/http.md#appending")


def _times(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    try:
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    except pa.ArrowException:
        raise Invalid("column 'time' is no time", hint="give a timestamp in UTC") from None


def _headers(found: list[Any] | None) -> dict[str, bytes] | None:
    if found is None:
        return None
    return {one["key"]: one["value"] for one in found} if found and isinstance(found[0], dict) else dict(found)


# -- typed topics -----------------------------------------------------------------------------------------


def rows_of(request: ApiRequest, topic: TypedTopic, content: bytes) -> RequestRecords:
    """A body for a typed topic."""
    kind = request.media_type
    if kind == ARROW:
        return RequestRecords(_table(content, topic), False)
    schema = topic.schema
    if kind == NDJSON:
        return RequestRecords(typed_rows(decoded(content, _row, lines=True), schema), False)  # type: ignore[arg-type]
    if kind == JSON:
        if content.lstrip()[:1] == b"[":
            found: list[Row] = decoded(content, _rows)
            return RequestRecords(typed_rows(found, schema), False)
        return RequestRecords(typed_rows([decoded(content, _row)], schema), True)
    if kind == BYTES:
        raise RefusedRequest(415, f"topic {topic.name!r} is typed: bytes are no row", hint="send JSON, NDJSON or Arrow")
    raise _other_type()


def _table(content: bytes, topic: TypedTopic) -> pa.Table:
    import pyarrow as pa

    batches = _batches(content, topic)
    return pa.Table.from_batches(batches) if batches else pa.table({})


# -- Arrow ------------------------------------------------------------------------------------------------


def _batches(content: bytes, topic: Topic | TypedTopic) -> list[pa.RecordBatch]:
    """The batches of an Arrow stream, each valid."""
    from holdfast.segments.typed.row_message import BadRows, stream_batches

    settings = topic._journal.settings
    try:
        return stream_batches(content, settings.batch_records_max, settings.batch_bytes_max)
    except BadRows as error:
        raise Invalid(
            f"the body is no Arrow stream that is taken here: {error}",
            hint="write plain columns with pyarrow.ipc.new_stream, not compressed, and large data in several bodies",
        ) from None


def schema_of(content: bytes) -> pa.Schema:
    """The schema of an Arrow stream, or of a single message."""
    import pyarrow as pa

    try:
        return pa.ipc.read_schema(pa.py_buffer(content))
    except (pa.ArrowException, OSError, ValueError):
        raise Invalid("the schema is no message of Arrow", hint="schema.serialize() makes one") from None


def _other_type() -> RefusedRequest:
    return RefusedRequest(
        415, "the body's type is missing or not known", hint=f"send {JSON}, {NDJSON}, {BYTES} or {ARROW}"
    )
