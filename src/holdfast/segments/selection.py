"""Choosing rows of a batch whose offsets are dense: by offset, by time, in either order."""

from __future__ import annotations

from struct import pack

import pyarrow as pa
import pyarrow.compute as pc


def select(
    batch: pa.RecordBatch, start: int, end: int, since: int | None, until: int | None, reverse: bool
) -> pa.RecordBatch:
    """Rows with start <= offset < end and since <= time <= until; last first when `reverse`."""
    first = batch.column(0)[0].as_py()
    low, high = max(0, start - first), min(batch.num_rows, end - first)
    batch = batch.slice(low, max(0, high - low))
    if since is not None or until is not None:
        batch = batch.filter(_between(batch.column(1).view(pa.int64()), since, until))
    return reversed_rows(batch) if reverse else batch


def reversed_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a batch, last first."""
    return batch.take(pa.arange(batch.num_rows - 1, -1, -1)) if batch.num_rows > 1 else batch


def _between(times: pa.Array, since: int | None, until: int | None) -> pa.Array:
    if since is None:
        return pc.less_equal(times, until)
    late = pc.greater_equal(times, since)
    return late if until is None else pc.and_(late, pc.less_equal(times, until))


def with_partition(schema: pa.Schema, name: str) -> pa.Schema:
    """The schema of results from several partitions: the partition's number before everything else."""
    return pa.schema([pa.field(name, pa.int32(), nullable=False), *schema])


def add_partition(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """A partition's batch in such a schema."""
    count = batch.num_rows
    numbers = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(pack("<i", number) * count)])
    return pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=schema)
