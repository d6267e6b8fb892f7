"""A DataFrame's Arrow batches as rows of a segment: offset and time in front, columns in their stored types.

Nothing loops over rows in Python, and nothing is copied that has its stored type already. Batches come from another
process and are validated first, because a text that is not UTF-8 would be written well and never be read. A value that
cannot be stored is Invalid, with the column. Pure but for the clock.
"""

from __future__ import annotations

from struct import pack

import pyarrow as pa

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.model.schema import TopicSchema
from holdfast.segments.file.segment_columns import RAW_SCHEMA, TIME, typed_schema
from holdfast.segments.typed import stored_batch
from holdfast.segments.typed.array_encoding import labelled, recoded
from holdfast.sink.topic_columns import RAW_NAMES, ColumnMapping


class RowBatches:
    """Makes rows of a topic out of batches with the given columns."""

    def __init__(self, columns: ColumnMapping, clock: Clock) -> None:
        self._topic, self._time = columns.schema, columns.time
        self._clock = clock
        self._now = 0
        self.schema = RAW_SCHEMA if self._topic is None else typed_schema(self._topic.stored)
        """The columns of the segments."""

    def made(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Rows of a batch, the first of which gets this offset."""
        _validate(batch)
        rows = batch.num_rows
        offsets = pa.arange(first, first + rows)
        arrays = [offsets, self._times(batch)]
        arrays += _raw_columns(batch) if self._topic is None else _typed_columns(self._topic, batch)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _times(self, batch: pa.RecordBatch) -> pa.Array:
        if not self._time:
            self._now = max(self._now, self._clock.now_us())  # a clock may be set back; the rows of a task are not
            made = pa.py_buffer(pack("<q", self._now) * batch.num_rows)
            return pa.Array.from_buffers(TIME, batch.num_rows, [None, made])
        times = batch.column(self._time)
        if times.null_count:
            raise Invalid(f"a time is null column={self._time!r}", hint="every row needs a time: fill the column first")
        return times.cast(TIME)


def _validate(batch: pa.RecordBatch) -> None:
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        raise Invalid(
            f"a text is not UTF-8, or the data is damaged columns={batch.schema.names[:20]}",
            hint="cast columns that hold bytes to binary",
        ) from None


def _typed_columns(topic: TopicSchema, batch: pa.RecordBatch) -> list[pa.Array]:
    there = set(batch.schema.names)
    found = [batch.column(name) if name in there else None for name in topic.stored.names]
    return list(stored_batch.assemble(topic, found, batch.num_rows).columns)


def _raw_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """Key, kind, headers, payload: as raw records have them behind offset and time."""
    found = {RAW_NAMES[name]: batch.column(name) for name in batch.schema.names}
    arrays = []
    for field in list(RAW_SCHEMA)[2:]:
        array = found.get(field.name)
        if array is None:
            array = pa.nulls(batch.num_rows, field.type)
        elif array.type != field.type:
            array = array.cast(field.type) if not pa.types.is_nested(field.type) else recoded(array, field.type)
        if not field.nullable and array.null_count:
            raise Invalid("a record has no value", hint="fill it: coalesce(value, X''), or filter the rows out")
        arrays.append(array if array.type == field.type else _labelled(array, field))
    return arrays


def _labelled(array: pa.Array, field: pa.Field) -> pa.Array:
    """Headers under the labels of their field; that nothing inside is null is checked when they are written."""
    return labelled([array], pa.schema([field])).column(0)
