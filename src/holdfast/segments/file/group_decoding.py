"""Row groups of a segment file, from stored bytes to Arrow's batches, in steps of bounded memory.

The bytes were proved before (`ProvenFile`). If the footer was not, its pages are weighed before Arrow unpacks them, and
what Arrow makes of them is counted: a row group beyond the limit is TooLarge. Nothing here knows what the rows mean.
Memory: one row group decoded, and its stored bytes. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.parquet.outline import Chunk, RowGroup
from holdfast.segments.file.file_shape import GROUP_BYTES_MAX
from holdfast.segments.file.proven_file import DamagedFile, Piece, ProvenFile
from holdfast.segments.file.unproven_footer import TooLarge, UnprovenFooter

_READ_BYTES_MAX = 4 * GROUP_BYTES_MAX
"""The most that is read or unpacked for one row group: what a shape allows, one oversized record, and some."""

STEP_ROWS = 65_536
"""Rows that a reader decodes at once."""
TYPED_STEP_ROWS = 131_072
"""The same for typed rows that are read to the end: a whole row group of the default shape. Raw records are few long
columns, which Arrow's threads cannot share, and come slower in such steps."""


class GroupDecoding:
    """The row groups of one file; without `unproven` its footer is trusted."""

    def __init__(
        self, file: ProvenFile, metadata: pq.FileMetaData, unproven: UnprovenFooter | None, bytes_max: int
    ) -> None:
        self._file, self._unproven = file, unproven
        self._bytes_max = bytes_max
        self._parquet = pq.ParquetFile(file.as_arrow(), metadata=metadata, pre_buffer=False)
        schema = self._parquet.schema
        self._paths = [schema.column(i).path for i in range(len(schema))]

    @property
    def names(self) -> list[str]:
        """The columns of the file."""
        return list(self._parquet.schema_arrow.names)

    def __len__(self) -> int:
        return int(self._parquet.num_row_groups)

    def rows(self, group: int) -> int:
        """How many rows of the file a row group has."""
        if self._unproven is not None:
            return self._unproven.row_group(group).rows
        return int(self._parquet.metadata.row_group(group).num_rows)

    def row_group(self, group: int) -> RowGroup:
        """Where a row group lies. Arrow is asked only about proved footers: others can end the process."""
        if self._unproven is not None:
            return self._unproven.row_group(group)
        found = self._parquet.metadata.row_group(group)
        return RowGroup(found.num_rows, [_chunk_of(found.column(i)) for i in range(found.num_columns)])

    def fetch(self, group: int, names: list[str]) -> list[Piece]:
        """The stored bytes of some columns of a row group, proved."""
        chosen = self._chosen(group, names)
        if max(sum(c.end - c.start for c in chosen), sum(c.unpacked for c in chosen)) > _READ_BYTES_MAX:
            raise DamagedFile("has a row group that is too large")
        if self._unproven is not None and sum(c.end - c.start for c in chosen) > self._bytes_max:
            raise TooLarge
        return self._file.fetch((chunk.start, chunk.end) for chunk in chosen)

    def announce(self, groups: Sequence[int], names: list[str]) -> None:
        """These row groups will be fetched next, in this order."""
        self._file.announce([(c.start, c.end) for c in self._chosen(group, names)] for group in groups)

    def _chosen(self, group: int, names: list[str]) -> list[Chunk]:
        chunks = self.row_group(group).chunks
        return [chunks[leaf] for leaf in self._leaves(names)]

    def whole(self, group: int, names: list[str], pieces: list[Piece]) -> pa.Table:
        """A whole row group."""
        if self._unproven is not None:
            return pa.Table.from_batches(list(self.steps(group, names, pieces, self.rows(group))))
        self._file.hold(pieces)
        try:
            return self._parquet.read_row_group(group, columns=names)
        finally:
            self._file.hold([])

    def steps(self, group: int, names: list[str], pieces: list[Piece], rows: int) -> Iterator[pa.RecordBatch]:
        """A row group in pieces of at most so many rows: a reader that stops early has not decoded the rest."""
        self._file.hold(pieces)
        try:
            if self._unproven is not None:
                yield from self._weighed(self._unproven, group, names, pieces, rows)
            elif rows < self.rows(group):
                yield from self._parquet.iter_batches(rows, row_groups=[group], columns=names)
            else:  # one step: each of Arrow's threads decodes whole columns, and none waits for others in between
                yield from self._parquet.read_row_group(group, columns=names).to_batches()
        finally:
            self._file.hold([])

    def _weighed(
        self, unproven: UnprovenFooter, group: int, names: list[str], pieces: list[Piece], rows: int
    ) -> Iterator[pa.RecordBatch]:
        rows = min(rows, unproven.rows_at_once(group, self._leaves(names), pieces))
        self._measure(unproven, group, names, rows)
        left = 2 * self._bytes_max
        for batch in self._parquet.iter_batches(rows, row_groups=[group], columns=names):
            yield batch
            left -= batch.nbytes
            if left < 0:
                raise TooLarge

    def _measure(self, unproven: UnprovenFooter, group: int, names: list[str], rows: int) -> None:
        """Lists of values of a fixed size: an absent one takes no room in a page and all of its size in memory.

        So their columns are decoded twice, first as lists of any size, in which an absent value takes nothing.
        """
        some = [name for name in names if name in unproven.growing]
        if not some:
            return
        loose = pq.ParquetFile(self._file.as_arrow(), metadata=unproven.loosened(), pre_buffer=False)
        left = 2 * self._bytes_max
        for batch in loose.iter_batches(rows, row_groups=[group], columns=some):
            left -= sum(grown(batch.column(name), unproven.growing[name]) for name in some)
            if left < 0:
                raise TooLarge

    def _leaves(self, names: list[str]) -> list[int]:
        """The Parquet columns of these columns."""
        chosen = set(names)
        return [i for i, path in enumerate(self._paths) if path in chosen or path.partition(".")[0] in chosen]


def grown(array: pa.Array, kind: pa.DataType) -> int:
    """The memory of an array of lists of any size, once some of them have the fixed size of their type."""
    if pa.types.is_fixed_size_list(kind):
        items: Any = array.values if len(array) else []
        return len(array) * int(kind.list_size) * 8 + (grown(items, kind.value_type) if len(items) else 0)
    if pa.types.is_struct(kind):
        return sum(grown(array.field(i), child.type) for i, child in enumerate(kind))
    if pa.types.is_map(kind):
        return grown(array.keys, kind.key_type) + grown(array.items, kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return grown(array.values, kind.value_type)
    return 0


def _chunk_of(column: Any) -> Chunk:
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return Chunk(
        start,
        start + column.total_compressed_size,
        column.total_uncompressed_size,
        column.num_values,
        0,
        0,
        column.data_page_offset,
    )
