"""The columns of a segment: what a row of a raw and of a typed topic looks like in Arrow.

Offset and time come first in both. A raw topic's columns are fixed; a typed topic's own columns follow offset and
time under the names that the user gave them, which is why those two have a leading underscore there.

Pure functions over batches; nothing here touches a file.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.model import content_digest

TIME = pa.timestamp("us", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)])

RAW_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time", TIME, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("kind", pa.string()),
        pa.field("headers", pa.list_(pa.field("element", HEADER, nullable=False))),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of raw records."""

TYPED_FIRST = (pa.field("_offset", pa.int64(), nullable=False), pa.field("_time", TIME, nullable=False))


def typed_schema(user_schema: pa.Schema) -> pa.Schema:
    """Offset and time, then the user's columns; metadata of the schema as a whole is left out, that of fields kept."""
    names = [field.name for field in (*TYPED_FIRST, *user_schema)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Invalid(
            f"column names must differ, also from '_offset' and '_time' columns={twice}", hint="rename the columns"
        )
    for field in user_schema:
        reason = content_digest.unsupported(field.type)
        if reason is not None:
            raise Invalid(f"a column cannot be stored column={field.name}: {reason}", hint="use another type")
    return pa.schema([*TYPED_FIRST, *user_schema])


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as files hold it and readers return it: dictionaries decoded, no metadata of the whole."""
    return pa.schema([field.with_type(content_digest.stored_type(field.type)) for field in schema])


def is_raw(schema: pa.Schema) -> bool:
    """Whether these are the columns of raw records."""
    return bool(schema.equals(RAW_SCHEMA))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the stored schema; Invalid if it has other columns, or nulls where there must be none."""
    if not batch.schema.equals(schema):
        if batch.schema.names != schema.names or not stored_schema(batch.schema).equals(schema):
            raise Invalid("a batch has other columns than its segment", hint="give batches of the segment's schema")
        batch = pa.RecordBatch.from_arrays(
            [decoded(column, field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
        )
    for field, column in zip(schema, batch.columns, strict=True):
        if _has_forbidden_null(field, column):
            raise Invalid(
                f"a null in a column that allows none column={field.name}", hint="fill it, or make it nullable"
            )
    return batch


def decoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in its stored type."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return array if array.type.equals(kind) else array.cast(kind)


def _has_forbidden_null(field: pa.Field, array: pa.Array) -> bool:
    if not field.nullable and array.null_count:
        return True
    if isinstance(array, pa.ExtensionArray) or not pa.types.is_nested(array.type):
        return False
    if pa.types.is_struct(array.type):
        there = array.drop_null() if array.null_count else array  # fields of an absent struct are absent by right
        return any(map(_has_forbidden_null, array.type, there.flatten()))
    if pa.types.is_map(array.type):
        array = content_digest.list_of_entries(array)
    return _has_forbidden_null(array.type.value_field, array.flatten())


def require_dense(batch: pa.RecordBatch, first: int) -> None:
    """Invalid unless the batch's offsets are first, first + 1, first + 2 …"""
    if not is_dense(batch.column(0), first):
        raise Invalid(f"offsets of a segment must be dense expected={first}", hint="write batches in order, each once")


def is_dense(offsets: pa.Array, first: int) -> bool:
    """Whether these offsets are first, first + 1, first + 2 …"""
    count = len(offsets)
    if not has_ends(offsets, first):
        return False
    # Between the right ends, strictly rising integers leave no room for a gap.
    return count <= 1 or bool(pc.all(pc.less(offsets.slice(0, count - 1), offsets.slice(1))).as_py())


def has_ends(offsets: pa.Array, first: int) -> bool:
    """Whether the first and the last of these offsets are where they would be if all were dense."""
    count = len(offsets)
    return count == 0 or (offsets[0].as_py() == first and offsets[count - 1].as_py() == first + count - 1)


def microseconds(times: pa.Array) -> pa.Array:
    """Times as plain integers, without a copy."""
    return times.view(pa.int64())


def time_range(batch: pa.RecordBatch) -> tuple[int, int]:
    """The earliest and the latest time of a batch that has rows."""
    ends: Any = pc.min_max(microseconds(batch.column(1))).as_py()
    return ends["min"], ends["max"]
