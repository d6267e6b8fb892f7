"""Rows of typed topics at the edges: their times on the way in, the columns of results on the way out."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.model.content_digest import ContentDigest
from holdfast.model.schema import TopicSchema
from holdfast.segments.file.segment_columns import TYPED_FIRST
from holdfast.segments.file.selection import with_partition


def times_of(batch: pa.RecordBatch, column: str) -> tuple[bytes, int, int]:
    """The times of rows from one of their timestamp columns: as bytes, and their range."""
    if column not in batch.schema.names or not pa.types.is_timestamp(batch.schema.field(column).type):
        raise Invalid(f"there is no timestamp column {column!r}", hint="time= names a timestamp column, or is a time")
    times = batch.column(column)
    if times.null_count:
        raise Invalid(f"a time is null column={column}", hint="every row needs a time; fill the column first")
    micros = times.cast(pa.timestamp("us", tz=times.type.tz), safe=False).view(pa.int64())
    span = pc.min_max(micros).as_py()
    start = 8 * micros.offset
    taken = memoryview(micros.buffers()[1])[start : start + 8 * len(micros)].tobytes()
    return taken, span["min"], span["max"]


def content_of(batch: pa.RecordBatch) -> bytes:
    """A digest of what rows say, however Arrow lays them out. A column without values says nothing: the same rows are
    the same again when the schema has got another column.
    """
    filled = [at for at, column in enumerate(batch.columns) if column.null_count < batch.num_rows]
    rows = batch.select(filled)
    content = ContentDigest(rows.schema)
    if filled:
        content.update(rows)
    count: int = batch.num_rows
    return count.to_bytes(8, "little") + content.digest()


def joined(head: bytes, message: pa.Buffer) -> memoryview:
    """Two parts of a body in one piece of Arrow's memory, which is used again; a new `bytes` would be faulted in."""
    body = memoryview(pa.allocate_buffer(len(head) + message.size)).cast("B")
    body[: len(head)] = head
    body[len(head) :] = memoryview(message).cast("B")
    return body


def result_schema(newest: TopicSchema, columns: Collection[str] | None) -> pa.Schema:
    """The columns of results: partition, offset and time, then those of the topic that are wanted."""
    # Declared types, not stored ones: views, seconds and `date64` lie in files in a plainer form, and come back.
    wanted = [field for field in newest.declared if columns is None or field.name in columns]
    return with_partition(pa.schema([*TYPED_FIRST, *wanted]), "_partition")
