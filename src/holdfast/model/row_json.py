"""Rows of typed topics as JSON, both ways. Pure.

What a read gives under `row` (`holdfast read --json`, the HTTP API), an append takes again, except for times that
Python does not have: nanoseconds, and years beyond 1 to 9999. JSON has fewer types than Arrow, so some values are text:
bytes are base64, times, dates and timestamps ISO 8601 (a number of the column's unit where no calendar has them),
decimals their digits; durations are numbers of the column's unit, maps lists of pairs. What does not come out as the
column's type is left as it is, for the topic to refuse.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.model.record_json import iso

if TYPE_CHECKING:
    import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OWN_COLUMNS = 3
"""Results begin with partition, offset and time."""

Row = dict[str, Any]

_LINES = msgspec.json.Decoder(Row, float_hook=Decimal)
"""Digits as they are written; what they become is up to the column."""


class PlacedRow(NamedTuple):
    """A row, and where it is."""

    partition: int
    offset: int
    time: int
    row: Row


class JsonRow(msgspec.Struct, frozen=True):
    """A row of a typed topic as one JSON object."""

    topic: str
    partition: int
    offset: int
    time: str | None
    """When it was appended, or the time that it was given."""
    time_us: int
    """The same in microseconds since 1970, always exact."""
    row: Row
    """Of a typed topic, in place of key to payload: the columns by name."""


# -- out --------------------------------------------------------------------------------------------------


def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[PlacedRow]:
    """The rows of a reading, for JSON."""
    import pyarrow as pa

    for batch in batches:
        partitions, offsets = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        times = batch.column(2).cast(pa.int64()).to_pylist()
        rows = plain_rows(batch.select(batch.schema.names[_OWN_COLUMNS:]), batch.num_rows)
        yield from map(PlacedRow._make, zip(partitions, offsets, times, rows, strict=True))


def row_line(topic: str, item: PlacedRow) -> JsonRow:
    """A row for JSON."""
    return JsonRow(topic, item.partition, item.offset, iso(item.time), item.time, item.row)


def plain_rows(batch: pa.RecordBatch, count: int) -> list[Row]:
    """The rows of a batch as values that JSON can hold."""
    columns = [_plain(column) for column in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] or [{}] * count


def _plain(array: pa.Array) -> list[Any]:
    """The values of a column. Recursive, because any level may hold times that no calendar has."""
    import pyarrow as pa

    kind, is_a = array.type, pa.types
    if is_a.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if is_a.is_timestamp(kind):
        spelled = _speller(kind)
        return [None if value is None else spelled(value) for value in array.cast(pa.int64()).to_pylist()]
    if is_a.is_time64(kind) and kind.unit == "ns":
        array = array.cast(pa.time64("us"), safe=False)
    if is_a.is_struct(kind):
        columns = [_plain(column) for column in array.flatten()]
        names = [field.name for field in kind]
        values = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            dict(zip(names, own, strict=True)) if there else None
            for own, there in zip(values, array.is_valid().to_pylist(), strict=True)
        ]
    if is_a.is_duration(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if is_a.is_nested(kind):
        return [_plain_items(value) if value.is_valid else None for value in array]
    return list(array.to_pylist())


def _plain_items(value: pa.Scalar) -> list[Any]:
    """The items of one list or map."""
    found = _plain(value.values)
    return [list(pair.values()) for pair in found] if type(value).__name__ == "MapScalar" else found


def _speller(kind: pa.TimestampType) -> Callable[[int], str | int]:
    per_second = _PER_SECOND[kind.unit]

    def spelled(value: int) -> str | int:
        seconds, rest = divmod(value, per_second)
        text = iso(seconds * 10**6)
        if text is None:
            return value
        fraction = f"{rest:0{len(str(per_second)) - 1}d}".rstrip("0")
        return text[:19] + ("." + fraction if fraction else "") + ("" if kind.tz is None else "Z")

    return spelled


# -- in ---------------------------------------------------------------------------------------------------


def parse_rows(text: bytes, schema: pa.Schema) -> list[Row]:
    """Lines of JSON, one object each, as rows for a topic of this schema."""
    try:
        found = _LINES.decode_lines(text)
    except (msgspec.MsgspecError, InvalidOperation):  # its message may hold a part of the row
        raise Invalid(
            "a row is not a JSON object", hint="give one JSON object per line: column names and values"
        ) from None
    return typed_rows(found, schema)


def typed_rows(rows: Iterable[Row], schema: pa.Schema) -> list[Row]:
    """Objects that were decoded with `float_hook=Decimal`, as rows for a topic of this schema."""
    return [_typed_row(row, schema) for row in rows]


def _typed_row(row: Row, schema: pa.Schema) -> Row:
    return {
        name: _typed(value, schema.field(name).type) if name in schema.names else value for name, value in row.items()
    }


def _typed(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as the column's type wants it."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(value, str):
        return _from_text(value, kind)
    if is_a.is_nested(kind):
        return _nested(value, kind)
    if type(value) is int and is_a.is_decimal(kind):
        return Decimal(value)
    if isinstance(value, Decimal) and is_a.is_floating(kind):
        return value if isinf(float(value)) else float(value)
    return _duration(value, kind) if type(value) is int and is_a.is_duration(kind) else value


def _duration(value: int, kind: pa.DataType) -> Any:
    micros, rest = divmod(value * 10**6, _PER_SECOND[kind.unit])
    try:
        return value if rest else timedelta(microseconds=micros)
    except OverflowError:
        return value


def _nested(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if isinstance(value, dict) and pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return {name: _typed(own, fields[name]) if name in fields else own for name, own in value.items()}
    if not isinstance(value, list) or pa.types.is_struct(kind):
        return value
    if not pa.types.is_map(kind):
        return [_typed(item, kind.value_type) for item in value]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return value
    return [(_typed(key, kind.key_type), _typed(item, kind.item_type)) for key, item in value]


def _from_text(value: str, kind: pa.DataType) -> Any:
    """What a text stands for in a column of another type; the text itself where it stands for nothing."""
    try:
        for is_such, read in _readers():
            if is_such(kind):
                return read(value)
    except (ValueError, InvalidOperation, NotBase64):
        pass
    return value


def _readers() -> Sequence[tuple[Callable[[Any], bool], Callable[[str], Any]]]:
    import pyarrow as pa

    def is_bytes(kind: pa.DataType) -> bool:
        return bool(
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_fixed_size_binary(kind)
            or pa.types.is_binary_view(kind)
        )

    return (
        (pa.types.is_timestamp, _moment),
        (pa.types.is_date, date.fromisoformat),
        (pa.types.is_time, time.fromisoformat),
        (pa.types.is_decimal, Decimal),
        (is_bytes, lambda text: b64decode(text, validate=True)),
    )


def _moment(text: str) -> datetime:
    if len(text.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]) > 6:
        raise ValueError("Python's datetime would cut nanoseconds off without a word")
    return datetime.fromisoformat(text)
