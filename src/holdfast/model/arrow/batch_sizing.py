"""Batches of any size in, pieces of about one size out: how rows become row groups and encrypted blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

Piece = list[pa.RecordBatch]
"""Consecutive rows in parts, as they came: putting them together would copy all of them."""


class BatchBuffer:
    """Rows that wait until they are enough: `rows_max` rows or `bytes_max` bytes of Arrow data.

    Holds less than one piece. A piece exceeds the bytes only if it is a single row.
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Take a batch and give what is full."""
        while batch.num_rows:
            part = batch.slice(0, min(batch.num_rows, self._rows_max - self._rows))
            size = part.nbytes
            if self._bytes + size > self._bytes_max:
                part = self._what_fits(part, size)
                size = part.nbytes
            if part.num_rows:  # else nothing fits any more
                self._parts.append(part)
            self._rows += part.num_rows
            self._bytes += size
            batch = batch.slice(part.num_rows)
            if batch.num_rows or self._rows == self._rows_max or self._bytes >= self._bytes_max:
                yield self._take()

    def rest(self) -> Piece:
        """What is left, once; empty when nothing is."""
        return self._take()

    def _what_fits(self, part: pa.RecordBatch, size: int) -> pa.RecordBatch:
        room = self._bytes_max - self._bytes
        rows = part.num_rows * room // size
        while rows and part.slice(0, rows).nbytes > room:  # rows differ in size
            rows //= 2
        return part.slice(0, rows or (0 if self._rows else 1))

    def _take(self) -> Piece:
        parts, self._parts, self._rows, self._bytes = self._parts, [], 0, 0
        return parts
