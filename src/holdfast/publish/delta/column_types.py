"""A topic's columns in Delta's words. What Delta has no word for is refused, with the column's name and the reason.

The first column of a table is the partition, whose value stands in the table's log and in no file. Then come the
columns that files hold: those of raw records, or offset, time and the columns that the user declared, as stored.

Times are microseconds in UTC. A time without a zone is another type in Delta, which only newer readers know; a table
that has one says so in its protocol (`DeltaColumns.has_local_times`). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

RAW_PARTITION, TYPED_PARTITION = "partition", "_partition"
_FORBIDDEN = " ,;{}()\n\t="
_NAME_HINT = "a name cannot be changed later; write to a topic with other columns, or read this one with holdfast.read"
_TYPE_HINT = "write to a topic whose column has another type, or read this one with holdfast.read"

Kind = str | dict[str, Any]


class DeltaColumns(NamedTuple):
    """The columns of a table."""

    schema: str
    """As Delta's log has it."""
    partition: str
    """The column whose value is the partition."""
    offset: str
    time: str
    has_local_times: bool
    """Whether there are times without a zone."""


def raw_columns() -> DeltaColumns:
    """The columns of raw records."""
    header = _struct([_field("key", "string"), _field("value", "binary")])
    fields = [
        _field(RAW_PARTITION, "integer"),
        _field("offset", "long", nullable=False),
        _field("time", "timestamp", nullable=False),
        _field("key", "binary"),
        _field("kind", "string"),
        _field("headers", _array(header)),
        _field("payload", "binary", nullable=False),
    ]
    return DeltaColumns(_text(fields), RAW_PARTITION, "offset", "time", has_local_times=False)


def typed_columns(stored: pa.Schema) -> DeltaColumns:
    """The columns of a typed topic, from the schema in which its newest version is stored; raises Invalid."""
    fields = [
        _field(TYPED_PARTITION, "integer"),
        _field("_offset", "long", nullable=False),
        _field("_time", "timestamp", nullable=False),
        *_fields(stored),
    ]
    text = _text(fields)
    return DeltaColumns(text, TYPED_PARTITION, "_offset", "_time", has_local_times=has_local_times(text))


def schema_text(columns: pa.Schema) -> str:
    """Any columns, as Delta's log has them; raises Invalid."""
    return _text(_fields(columns))


def has_local_times(text: str) -> bool:
    """Whether a schema, as Delta's log has it, has times without a zone."""
    return '"timestamp_ntz"' in text


def _fields(columns: pa.Schema) -> list[dict[str, Any]]:
    _check_names(columns.names, "")
    return [_field(column.name, _kind(column.type, column.name), nullable=column.nullable) for column in columns]


# -- names --------------------------------------------------------------------------------------------------


def _check_names(names: Sequence[str], inside: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        path = f"{inside}{name}"
        if any(letter in _FORBIDDEN for letter in name):
            raise _refused(path, "its name has a space or one of ,;{}()=, which Delta does not allow", _NAME_HINT)
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise _refused(
                path, f"its name differs from {other!r} in case only, which Delta cannot distinguish", _NAME_HINT
            )


def _refused(column: str, reason: str, hint: str) -> Invalid:
    return Invalid(f"a column cannot be in a Delta table column={column!r}: {reason}", hint=hint)


# -- types --------------------------------------------------------------------------------------------------


def _kind(kind: pa.DataType, column: str) -> Kind:
    """Delta's name of an Arrow type; raises Invalid."""
    import pyarrow as pa

    plain = _plain(pa).get(kind)
    if plain is not None:
        return plain
    is_ = pa.types
    if is_.is_fixed_size_binary(kind):
        return "binary"
    if is_.is_timestamp(kind):
        return _timestamp(kind, column)
    if is_.is_decimal(kind):
        return _decimal(kind, column)
    if is_.is_nested(kind):
        return _nested(kind, column)
    raise _refused(column, f"Delta has no type for {kind}{_why(kind, is_)}", _TYPE_HINT)


def _plain(pa: Any) -> dict[Any, str]:
    return {
        pa.bool_(): "boolean",
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.binary(): "binary",
        pa.large_binary(): "binary",
        pa.date32(): "date",
    }


def _why(kind: pa.DataType, is_: Any) -> str:
    if is_.is_unsigned_integer(kind):
        return ": its integers have a sign"
    return ": it has no times of day" if is_.is_time(kind) else ""


def _timestamp(kind: pa.DataType, column: str) -> str:
    if kind.unit == "ns":
        raise _refused(column, f"Delta's times have microseconds, and {kind} has more", _TYPE_HINT)
    return "timestamp" if kind.tz else "timestamp_ntz"


def _decimal(kind: pa.DataType, column: str) -> str:
    if kind.precision > 38 or not 0 <= kind.scale <= kind.precision or kind.bit_width > 128:
        raise _refused(
            column, f"Delta's decimals have at most 38 digits in 128 bits, and {kind} is another", _TYPE_HINT
        )
    return f"decimal({kind.precision},{kind.scale})"


def _nested(kind: pa.DataType, column: str) -> Kind:
    import pyarrow as pa

    is_ = pa.types
    if is_.is_struct(kind):
        if not kind.num_fields:
            raise _refused(column, "a struct without fields cannot be stored in a Delta table", _TYPE_HINT)
        _check_names([child.name for child in kind], f"{column}.")
        return _struct([_field(child.name, _kind(child.type, f"{column}.{child.name}")) for child in kind])
    if is_.is_map(kind):
        key, value = _kind(kind.key_type, f"{column}.key"), _kind(kind.item_type, f"{column}.value")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _array(_kind(kind.value_type, f"{column}.element"))
    raise _refused(column, f"Delta has no type for {kind}", _TYPE_HINT)


# -- text ---------------------------------------------------------------------------------------------------


def _field(name: str, kind: Kind, *, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def _struct(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "fields": fields}


def _array(element: Kind) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def _text(fields: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(_struct(fields)).decode()
