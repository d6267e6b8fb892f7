"""Choosing rows of a batch whose offsets are dense: by offset, by time, in either order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import pack
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.arrow.plain_arrays import numbers
from holdfast.segments.file.segment_columns import microseconds, time_range

_JOINED_ROWS = 4096
_JOINED_BYTES = 2**18
"""What small batches are put together to; larger ones stay as they are."""
_TURNED_ROWS = 8192
"""Rows that are turned round at once, so that a reader of the last few does not pay for a whole batch."""


class Selection(NamedTuple):
    """What a read asks for."""

    start: int
    end: int
    names: list[str]
    since: int | None
    until: int | None
    reverse: bool
    share: tuple[int, int]
    to_the_end: bool

    def meets(self, first: int, rows: int, time_min: int, time_max: int) -> bool:
        """Whether a span of records may hold any that are asked for."""
        return (
            first < self.end
            and first + rows > self.start
            and (self.since is None or time_max >= self.since)
            and (self.until is None or time_min <= self.until)
        )


def shared(count: int, share: tuple[int, int]) -> range:
    """The row groups of one of several even parts: which one, of how many."""
    part, parts = share
    return range(count * part // parts, count * (part + 1) // parts)


def select(batch: pa.RecordBatch, start: int, end: int, since: int | None, until: int | None) -> pa.RecordBatch:
    """Rows with start <= offset < end and since <= time <= until; offsets are dense, so they are cut by slicing."""
    first = batch.column(0)[0].as_py()
    skip = max(start - first, 0)
    batch = batch.slice(skip, max(min(end - first, batch.num_rows) - skip, 0))
    if (since is None and until is None) or batch.num_rows == 0:
        return batch
    times = microseconds(batch.column(1))
    earliest, latest = time_range(batch)
    if since is not None and earliest < since:
        batch = batch.filter(pc.greater_equal(times, numbers([since], pa.int64())[0]))
        times = microseconds(batch.column(1))
    if until is not None and latest > until:
        batch = batch.filter(pc.less_equal(times, numbers([until], pa.int64())[0]))
    return batch


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not tiny: a bundle may have blocks of a few rows each, and a batch costs."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > _JOINED_ROWS or size + batch.nbytes > _JOINED_BYTES):
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def turned(batch: pa.RecordBatch, reverse: bool) -> Iterator[pa.RecordBatch]:
    """The rows as they are, or last first in pieces; nothing when there are none."""
    if not reverse:
        if batch.num_rows:
            yield batch
        return
    for end in range(batch.num_rows, 0, -_TURNED_ROWS):
        start = max(end - _TURNED_ROWS, 0)
        yield batch.take(pa.arange(end - 1, start - 1, -1))


def with_partition(schema: pa.Schema, name: str) -> pa.Schema:
    """The schema of results from several partitions: the partition's number before everything else."""
    return pa.schema([pa.field(name, pa.int32(), nullable=False), *schema])


class PartitionColumn:
    """The column with a partition's number, in such a schema; made once for all batches of a reading."""

    def __init__(self, number: int, schema: pa.Schema) -> None:
        self._number, self._schema = number, schema
        self._column = _repeated(number, 0)

    def added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the partition, with the column."""
        if len(self._column) < batch.num_rows:
            self._column = _repeated(self._number, batch.num_rows)
        numbers = self._column.slice(0, batch.num_rows)
        return pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=self._schema)


def _repeated(number: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(pack("<i", number) * count)])
