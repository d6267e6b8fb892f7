"""The columns of a pipeline's table: as Arrow has them, as Delta's log spells them, and how they may change.

`normal` makes of any columns those that files hold. Encodings become plain (dictionaries their values, large and view
types ordinary ones, seconds microseconds), everything is nullable, metadata is left out. What Delta has no word for is
Invalid, with the column's name and the remedy: a cast in the table's function. `from_delta` gives back equal columns,
of untrusted text.

A table grows by columns, in no other way: rows that are there have nulls in them. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import Corrupt, Invalid
from holdfast.model.arrow import arrow_types
from holdfast.model.schema import COLUMNS_MAX, DEPTH_MAX, FIELDS_MAX, NAME_CHARS_MAX, SERIALIZED_BYTES_MAX
from holdfast.publish.delta.column_types import schema_text

_CAST = "give it another name or type in the table's function: .withColumnRenamed(…), .withColumn(…, col(…).cast(…))"
_is = pa.types

# -- as files hold them -----------------------------------------------------------------------------------------


def normal(columns: pa.Schema) -> pa.Schema:
    """The columns as files hold them; raises Invalid for what cannot be stored."""
    if not len(columns):
        raise Invalid("a table needs a column", hint="the table's function returned none")
    made = pa.schema([_normal(column) for column in columns])
    _require_bounded(made)
    delta_text(made)
    return made


def _normal(column: pa.Field) -> pa.Field:
    return pa.field(column.name, _normal_type(column.type))


def _normal_type(kind: pa.DataType) -> pa.DataType:
    kind = arrow_types.storage(kind)
    if _is.is_dictionary(kind):
        return _normal_type(kind.value_type)
    if _is.is_map(kind):
        return pa.map_(_normal_type(kind.key_type), _normal_type(kind.item_type))
    if _is_listed(kind):
        return _listed(_normal_type(kind.value_type))
    return pa.struct([_normal(child) for child in kind]) if _is.is_struct(kind) else _normal_leaf(kind)


def _normal_leaf(kind: pa.DataType) -> pa.DataType:
    if kind in arrow_types.TEXTS:
        return pa.string()
    if kind in arrow_types.BINARIES or _is.is_fixed_size_binary(kind):
        return pa.binary()
    if _is.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if _is.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    return pa.date32() if _is.is_date64(kind) else kind


def _listed(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))  # as Parquet and Spark call it


def _is_listed(kind: pa.DataType) -> bool:
    views = _is.is_list_view(kind) or _is.is_large_list_view(kind)
    return bool(arrow_types.is_list(kind) or _is.is_fixed_size_list(kind) or views)


def _require_bounded(columns: pa.Schema) -> None:
    left = FIELDS_MAX

    def descend(column: pa.Field, top: str, depth: int) -> None:
        nonlocal left
        left -= 1
        if depth > DEPTH_MAX or left < 0 or len(column.name) > NAME_CHARS_MAX:
            raise Invalid(
                f"a column is too deep, has too many fields or too long a name column={top[:NAME_CHARS_MAX]!r}",
                hint=f"{FIELDS_MAX} fields of a table in {DEPTH_MAX} levels, names of {NAME_CHARS_MAX} letters",
            )
        for child in arrow_types.inner(column.type):
            descend(child, top, depth + 1)

    if len(columns) > COLUMNS_MAX:
        raise Invalid(f"a table has too many columns columns={len(columns)}", hint=f"at most {COLUMNS_MAX}")
    for column in columns:
        descend(column, column.name, 1)


# -- as Delta's log spells them -----------------------------------------------------------------------------------


def delta_text(columns: pa.Schema) -> str:
    """The columns, as Delta's log has them; raises Invalid."""
    names = columns.names
    twice = next((name for at, name in enumerate(names) if not name or name in names[:at]), None)
    if twice is not None:
        raise Invalid(f"a column has no name, or the name of another one column={twice!r}", hint=_CAST)
    try:
        return schema_text(columns)
    except Invalid as refused:
        raise Invalid(refused.message, hint=_CAST) from None


def from_delta(text: str, path: str) -> pa.Schema:
    """The columns that a text of Delta's log stands for; raises Corrupt, naming the place of the text."""
    try:
        if len(text) > SERIALIZED_BYTES_MAX:
            raise ValueError("too long")
        top = msgspec.json.decode(text, type=dict[str, Any])
        columns = pa.schema([_column(field, 1) for field in _fields(top)])
        _require_bounded(columns)
        if len(set(columns.names)) != len(columns) or not len(columns):
            raise ValueError("names")
    except (msgspec.DecodeError, Invalid, ValueError, TypeError, KeyError, RecursionError, pa.ArrowException):
        raise Corrupt(
            "the columns of a table make no sense, or are of a kind that no table of a pipeline has",
            path=path,
            hint="another writer wrote this table's log; restore the object, or remove the table and run again",
        ) from None
    return columns


_PLAIN = {
    "boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def _fields(struct: dict[str, Any]) -> list[dict[str, Any]]:
    fields = struct["fields"]
    if struct["type"] != "struct" or not isinstance(fields, list) or len(fields) > FIELDS_MAX:
        raise ValueError("not a struct")
    return fields


def _column(field: dict[str, Any], depth: int) -> pa.Field:
    name = field["name"]
    # Column mapping, generated columns and the like stand in a field's metadata; none of ours has any.
    if not isinstance(name, str) or field["metadata"] != {} or field["nullable"] is not True or depth > DEPTH_MAX:
        raise ValueError("not a column")
    return pa.field(name, _type(field["type"], depth + 1))


def _type(kind: Any, depth: int) -> pa.DataType:
    if depth > 2 * DEPTH_MAX:
        raise ValueError("too deep")
    if isinstance(kind, str):
        return _PLAIN[kind] if kind in _PLAIN else _decimal(kind)
    if kind["type"] == "array":
        return _listed(_type(kind["elementType"], depth + 1))
    if kind["type"] == "map":
        return pa.map_(_type(kind["keyType"], depth + 1), _type(kind["valueType"], depth + 1))
    return pa.struct([_column(field, depth + 1) for field in _fields(kind)])


def _decimal(kind: str) -> pa.DataType:
    digits = kind.removeprefix("decimal(").removesuffix(")").split(",")
    precision, scale = (int(part) for part in digits if part.isascii() and part.isdigit() and len(part) <= 2)
    if not 0 <= scale <= precision <= 38 or not precision or kind != f"decimal({precision},{scale})":
        raise ValueError("not a decimal")
    return pa.decimal128(precision, scale)


# -- growth -------------------------------------------------------------------------------------------------------


def grown(before: pa.Schema, now: pa.Schema) -> pa.Schema:
    """A table's columns with those that a run adds, in the order in which they came; raises Invalid for other changes.

    Both are `normal`.
    """
    for column in before:
        at = now.get_field_index(column.name)
        if at < 0:
            raise Invalid(
                f"a column of the table is missing from its new rows column={column.name!r} type={column.type}",
                hint=f'keep it, as null: .withColumn("{column.name}", lit(None).cast(…)); or remove the table and its '
                "folder, and run again",
            )
        if now.field(at).type != column.type:
            raise Invalid(
                f"a column of the table has another type in its new rows column={column.name!r} "
                f"table={arrow_types.shown(column.type)} rows={arrow_types.shown(now.field(at).type)}",
                hint="cast it in the table's function, or give the new one another name",
            )
    return normal(pa.schema([*before, *(column for column in now if column.name not in before.names)]))
