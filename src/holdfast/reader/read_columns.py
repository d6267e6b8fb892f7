"""The columns of a read, and how the rows of any segment become them.

A record has one vocabulary wherever it is read: raw topics have the columns of their files, typed ones the user's
behind `_topic`, `_partition`, `_offset` and `_time`. Only Spark's users get Kafka's names for raw topics: their queries
were written for Kafka's source, and run on ours as they are.

Files have no columns for topic and partition: they are made here. So are columns that came with a later version of the
schema (null), and offsets where no other column of a file is wanted: they are dense, so the manifest knows them, and no
file is opened. Values are never changed; where a caller wants another type, a value that does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import pack
from typing import NamedTuple

import pyarrow as pa
from pyarrow import compute

from holdfast.errors import Invalid
from holdfast.model.schema import TopicSchema
from holdfast.segments.file.encrypted_blocks import BLOCK_SCHEMA
from holdfast.segments.file.segment_columns import RAW_SCHEMA, TIME

TOPIC, PARTITION = "<topic>", "<partition>"
"""Sources of columns that files do not have."""

_CHUNK_ROWS = 2**20
"""Rows that are made at once where no file is opened."""


class Column(NamedTuple):
    """One column of the result."""

    name: str
    source: str
    """The file's column, or what makes it."""
    kind: pa.DataType


RAW = (
    Column("topic", TOPIC, pa.string()),
    Column("partition", PARTITION, pa.int32()),
    *(Column(field.name, field.name, field.type) for field in RAW_SCHEMA),
)
KAFKA = (
    Column("topic", TOPIC, pa.string()),
    Column("partition", PARTITION, pa.int32()),
    Column("offset", "offset", pa.int64()),
    Column("timestamp", "time", TIME),
    Column("key", "key", pa.binary()),
    Column("value", "payload", pa.binary()),
    Column("headers", "headers", RAW_SCHEMA.field("headers").type),
    Column("kind", "kind", pa.string()),
)
"""The same for Spark, in the names and the order of Kafka's source; `kind` is ours."""
_TYPED = (
    Column("_topic", TOPIC, pa.string()),
    Column("_partition", PARTITION, pa.int32()),
    Column("_offset", "_offset", pa.int64()),
    Column("_time", "_time", TIME),
)
ENCRYPTED = (
    Column("topic", TOPIC, pa.string()),
    Column("partition", PARTITION, pa.int32()),
    *(Column(field.name, field.name, field.type) for field in BLOCK_SCHEMA),
)
"""What a reader without a key gets of an encrypted topic: its blocks as they are."""


def columns_of(schema: TopicSchema | None, *, kafka_names: bool = False) -> tuple[Column, ...]:
    """All columns of a topic with this schema, which is None for raw records."""
    if schema is None:
        return KAFKA if kafka_names else RAW
    return (*_TYPED, *(Column(field.name, field.name, field.type) for field in schema.stored))


def choose(columns: Sequence[Column], names: Sequence[str] | None) -> tuple[Column, ...]:
    """The columns of these names, in this order; all of them for None."""
    if names is None:
        return tuple(columns)
    by_name = {column.name: column for column in columns}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise Invalid(
            f"there are no such columns columns={unknown[:10]}", hint=f"there are: {', '.join(by_name)[:500]}"
        )
    return tuple(by_name[name] for name in names)


def sources_of(names: Sequence[str], *, is_raw: bool, is_encrypted: bool = False) -> tuple[str, ...]:
    """Where Spark's columns of these names come from: all that a task must know of them."""
    known = {column.name: column.source for column in (ENCRYPTED if is_encrypted else KAFKA if is_raw else _TYPED)}
    return tuple(known.get(name, name) for name in names)


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of a result; everything may be null, as in Spark."""
    return pa.schema([pa.field(column.name, column.kind) for column in columns])


def width_of(sources: Sequence[str], target: pa.Schema, *, is_raw: bool) -> int | None:
    """About how many bytes a row of these columns has; None if only the files can tell."""
    width, narrow = 0, _NARROW_RAW if is_raw else _NARROW
    for source, field in zip(sources, target, strict=True):
        if source in narrow:
            width += narrow[source]
        elif pa.types.is_primitive(field.type) or pa.types.is_decimal(field.type):
            width += -(-field.type.bit_width // 8)
        else:
            return None
    return width


_NARROW = {TOPIC: 0, PARTITION: 0}
_NARROW_RAW = {**_NARROW, "key": 16, "kind": 4, "headers": 16}
"""Columns of raw topics beside which the payload is the large one."""


class RowShaper:
    """Makes batches of one schema out of the rows of segments."""

    def __init__(self, sources: Sequence[str], target: pa.Schema, *, is_raw: bool) -> None:
        # In a typed topic, `offset` is a column of the user's like any other.
        offset = "offset" if is_raw else "_offset"
        self._sources = tuple(sources)
        self._target = target
        self._constants: dict[tuple[str, str | int], pa.Array] = {}
        self.needs = [source for source in sources if source not in (TOPIC, PARTITION)]
        """Columns of the file."""
        self.needs_file = any(name != offset for name in self.needs)

    def shape(self, batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """Rows of a file as rows of the result."""
        count = batch.num_rows
        if not self._sources:
            return _bare(count)
        there = set(batch.schema.names)
        arrays = []
        for source, field in zip(self._sources, self._target, strict=True):
            if source == TOPIC:
                array = self._constant(source, topic, count)
            elif source == PARTITION:
                array = self._constant(source, partition, count)
            elif source in there:
                array = batch.column(source)
            else:
                array = pa.nulls(count, field.type)
            arrays.append(_cast(array, field))
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def made(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows of which only topic, partition and offset are wanted; no file is needed."""
        for first in range(start, end, _CHUNK_ROWS):
            last = min(end, first + _CHUNK_ROWS)
            if not self._sources:
                yield _bare(last - first)
                continue
            offsets = pa.arange(first, last)
            names = list(dict.fromkeys(self.needs)) or ["offset"]
            rows = pa.RecordBatch.from_arrays([offsets] * len(names), names=names)
            yield self.shape(rows, topic, partition)

    def _constant(self, source: str, value: str | int, count: int) -> pa.Array:
        kept = self._constants.get((source, value))
        if kept is None or len(kept) < count:
            kept = self._constants[source, value] = _repeated(value, max(count, 2**16))
        return kept.slice(0, count)


def _bare(count: int) -> pa.RecordBatch:
    """Rows without a column: only their number is wanted."""
    struct = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(struct)


def _repeated(value: str | int, count: int) -> pa.Array:
    # Not pa.repeat, which imports pandas if it is installed.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(pack("<i", value) * count)])
    text = value.encode()
    ends = pa.arange(0, (count + 1) * len(text), len(text)).cast(pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(text * count)])


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        made = array.cast(field.type)
        if _is_rounding(array.type, field.type) and _is_other(made.cast(array.type), array):
            raise pa.ArrowInvalid("rounded")
        return made
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Invalid(
            f"a value of column {field.name!r} does not fit its type type={field.type} stored={array.type}",
            hint="leave the column out with the option columns, or ask for a wider type with schema(…)",
        ) from None


def _is_rounding(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow silently takes the nearest value if it does not have the same one."""
    if not pa.types.is_floating(wanted):
        return False
    return bool(pa.types.is_decimal(stored) or (pa.types.is_floating(stored) and stored.bit_width > wanted.bit_width))


def _is_other(back: pa.Array, array: pa.Array) -> bool:
    differs = compute.not_equal(back, array)
    if pa.types.is_floating(array.type):
        differs = compute.and_(differs, compute.invert(compute.is_nan(array)))
    return bool(compute.any(differs).as_py())
