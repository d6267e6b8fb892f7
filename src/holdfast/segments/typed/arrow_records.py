"""Arrow batches of raw records as `Record` objects, a column at a time.

Binary columns are cut from their buffer directly: a loop over Arrow scalars would cost more than reading the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa

from holdfast.model.record import Record

_TIMES, _OFFSETS = "time", "offset"


def records(batch: pa.RecordBatch, partition: int, topic: str) -> Iterator[Record]:
    """The records of a batch with the raw schema, in its order."""
    return map(
        Record,
        _values(batch.column("payload")),
        _values(batch.column("key")),
        _texts(batch.column("kind")),
        _headers(batch.column("headers")),
        integers(batch.column(_TIMES)),
        integers(batch.column(_OFFSETS)),
        repeat(partition),
        repeat(topic),
    )


def integers(column: pa.Array) -> list[int]:
    """A column of 64-bit integers or times without nulls, as a list."""
    values = memoryview(column.buffers()[1]).cast("q")
    return values[column.offset : column.offset + len(column)].tolist()


def _values(column: pa.Array) -> list[bytes | None] | repeat[None]:
    """A binary column as a list of bytes; None where there is none."""
    count = len(column)
    if column.null_count == count:
        return repeat(None)
    _, starts, values = column.buffers()
    ends = memoryview(starts).cast("i")[column.offset : column.offset + count + 1].tolist()
    data = b"" if values is None else memoryview(values)[ends[0] : ends[-1]].tobytes()
    base = ends[0]
    cut: list[bytes | None] = [data[a - base : b - base] for a, b in pairwise(ends)]
    if column.null_count:
        for index, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                cut[index] = None
    return cut


def _texts(column: pa.Array) -> list[str | None] | repeat[None]:
    if column.null_count == len(column):
        return repeat(None)
    texts: list[str | None] = column.to_pylist()
    return texts


def _headers(column: pa.Array) -> list[dict[str, bytes] | None] | repeat[None]:
    if column.null_count == len(column):
        return repeat(None)
    rows: list[list[dict[str, Any]] | None] = column.to_pylist()
    return [None if row is None else {item["key"]: item["value"] for item in row} for row in rows]
