"""The footer and the pages of a segment file that nobody vouches for: admitted piece by piece, or refused.

A manifest vouches for a file only if the manifest itself is proved: a log's own database is, an object on a store that
others may write to is not. So the structure is walked here (`holdfast.parquet`), where a surprise is an exception, and
Arrow gets a rewritten footer. Before a row group is decoded, the headers of its pages are checked, and it is decoded in
steps that stay below a limit.

What is not as our writer writes it is BadStructure; what is larger than the limit is TooLarge. No files here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.arrow import arrow_types
from holdfast.model.schema import require_bounded, row_bytes
from holdfast.parquet.outline import PLAIN_CODEC, ZSTD, Model, RowGroup, outline, rewritten
from holdfast.parquet.pages import TooLarge, weigh
from holdfast.parquet.thrift import BadStructure
from holdfast.segments.file import encrypted_blocks
from holdfast.segments.file.proven_file import FOOTER_BYTES_MAX, Piece
from holdfast.segments.file.row_group_file import GROUPS_MAX
from holdfast.segments.file.segment_writer import parquet_settings

__all__ = ["BadStructure", "TooLarge", "UnprovenFooter"]

_STEP_BYTES = 64 * 2**20
"""What is decoded at once, about."""
_SCHEMAS_KEPT = 64


class UnprovenFooter:
    """A footer without a voucher."""

    def __init__(self, content: bytes, bytes_max: int) -> None:
        self._outline = outline(content, GROUPS_MAX)
        self._bytes_max = bytes_max
        self._model: Model | None = None
        self._logical: pa.Schema | None = None
        self._row_bytes = 1
        self._data_end = 0
        self._loosened: pq.FileMetaData | None = None
        self.growing: dict[str, pa.DataType] = {}
        """Columns in which lists hold lists of a fixed size; absent ones take room in memory and none in the file."""

    @property
    def pairs(self) -> dict[bytes, bytes]:
        """The key-value metadata."""
        return self._outline.pairs

    def admit(self, logical: pa.Schema, *, is_encrypted: bool, data_end: int) -> bytes:
        """The footer for Arrow, if the file has what our writer makes of these columns."""
        require_bounded(logical)
        self._model = _model(logical, is_encrypted)
        self._data_end = data_end
        self._logical = logical
        if not is_encrypted:
            self._row_bytes = row_bytes(logical)
            self.growing = {column.name: column.type for column in logical if _grows(column.type, inside=False)}
        return rewritten(self._outline, self._model, data_end)

    def loosened(self) -> pq.FileMetaData:
        """The same file for Arrow, with lists of a fixed size as lists of any."""
        assert self._logical is not None, "admitted first"
        if self._loosened is None:
            model = _model(pa.schema([column.with_type(_loose(column.type)) for column in self._logical]), False)
            self._loosened = read_metadata(rewritten(self._outline, model, self._data_end), FOOTER_BYTES_MAX)
        return self._loosened

    def row_group(self, group: int) -> RowGroup:
        """Where a row group lies."""
        return self._outline.groups[group]

    def rows_at_once(self, group: int, leaves: Sequence[int], pieces: Iterable[Piece]) -> int:
        """Look at the pages of some columns of a row group; returns how many rows may be decoded at once."""
        assert self._model is not None, "admitted first"
        chunks = self.row_group(group).chunks
        unpacked, value = 0, 0
        for leaf in leaves:
            chunk = chunks[leaf]
            weight = weigh(_part(pieces, chunk.start, chunk.end), chunk, self._model.leaves[leaf], self._bytes_max)
            unpacked += weight.unpacked
            value += weight.longest
        if unpacked > self._bytes_max:
            raise TooLarge
        return max(1, min(_STEP_BYTES, self._bytes_max // 4) // (self._row_bytes + value))


@lru_cache(_SCHEMAS_KEPT)
def _model(logical: pa.Schema, is_encrypted: bool) -> Model:
    stored = encrypted_blocks.BLOCK_SCHEMA if is_encrypted else logical
    return Model(
        stored, parquet_settings(logical, is_encrypted=is_encrypted), (PLAIN_CODEC,) if is_encrypted else (ZSTD,)
    )


def _grows(kind: pa.DataType, *, inside: bool) -> bool:
    """Whether there is a list of a fixed size inside a list of any size."""
    if pa.types.is_fixed_size_list(kind) and inside:
        return True
    inside = inside or arrow_types.is_list(kind) or pa.types.is_map(kind)
    return any(_grows(child.type, inside=inside) for child in arrow_types.inner(arrow_types.storage(kind)))


def _loose(kind: pa.DataType) -> pa.DataType:
    kind = arrow_types.storage(kind)
    if pa.types.is_fixed_size_list(kind):
        child = kind.value_field
        return pa.list_(child.with_type(_loose(child.type)))
    return arrow_types.remade(kind, lambda child: child.with_type(_loose(child.type)))


def _part(pieces: Iterable[Piece], start: int, end: int) -> memoryview:
    at, content = next((at, content) for at, content in pieces if at <= start and end <= at + len(content))
    return content[start - at : end - at]


def read_metadata(content: bytes, bytes_max: int) -> pq.FileMetaData:
    """Parquet's metadata of a footer that is known to be ours."""
    return pq.ParquetFile(
        pa.BufferReader(content),
        pre_buffer=False,
        thrift_string_size_limit=bytes_max,
        thrift_container_size_limit=2 * GROUPS_MAX,
    ).metadata
