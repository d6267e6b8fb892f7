"""Parquet files of tables, read without trust: the bytes on the store are untrusted.

Arrow ends the process over a footer that does not fit together, and a few bytes of Parquet can stand for gigabytes. So
a footer is parsed in Python and rewritten (`holdfast.parquet`), one row group at a time, the pages of a row group are
weighed before they are unpacked, and their checksums are compared while they are. What our writer would not have
written is Corrupt. Memory: one row group as it is stored, and some rows of it decoded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Corrupt
from holdfast.model.arrow import ipc_message
from holdfast.model.schema import require_bounded, row_bytes
from holdfast.parquet.footer_bounds import bounded_columns
from holdfast.parquet.outline import MAGIC, TAIL_BYTES, ZSTD, Model, Outline, RowGroup, outline, rewritten
from holdfast.parquet.pages import TooLarge, weigh
from holdfast.parquet.thrift import BadStructure

GROUP_ROWS, GROUP_BYTES = 256 * 1024, 32 * 2**20
"""A row group, as it is written, about."""
_GROUP_BYTES_MAX = 2**30
"""What one row group may take, stored and unpacked: many times what is written, for rows that are large."""
_DICTIONARY_BYTES = 128 * 2**10
_STEP_BYTES = 32 * 2**20
_FOOTER_BYTES_MAX = 16 * 2**20
_GROUPS_MAX = 100_000
_TAIL_BYTES = 64 * 2**10
HINT = "another writer wrote or damaged it; restore the object from a copy, or recompute the table"

Fetch = Callable[[int, int], bytes]
"""So many bytes from a place of the file."""


class ParquetProfile(NamedTuple):
    """How a kind of file is written: all others are refused."""

    settings: Callable[[pa.Schema], dict[str, Any]]
    codec: int


def parquet_settings(schema: pa.Schema) -> dict[str, Any]:
    """How data files are written: also what is expected of one that is read."""
    # Texts repeat themselves, numbers rarely: of those a dictionary is larger and slower. One that does not stay small
    # is given up soon. Differences of whole numbers are small and quickly packed; less is left to compress.
    texts = [column.name for column in schema if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    whole = {column.name: "DELTA_BINARY_PACKED" for column in schema if _is_whole(column.type)}
    return {
        "version": "2.6",
        "data_page_version": "1.0",
        "store_schema": True,
        "compression": "zstd",
        "compression_level": 1,
        "write_page_checksum": True,
        "use_dictionary": texts or False,
        "dictionary_pagesize_limit": _DICTIONARY_BYTES,
        "column_encoding": whole or None,
        "write_statistics": bounded_columns(schema),
    }


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


DATA_FILE = ParquetProfile(parquet_settings, ZSTD)


class UntrustedFile:
    """One file."""

    def __init__(self, path: str, size: int, fetch: Fetch, written: ParquetProfile = DATA_FILE) -> None:
        """`path` is where it lies, for errors."""
        self._path = path
        self._fetch = fetch
        self._written = written
        try:
            self._tail = self._read_tail(size)
            self._outline = outline(self._tail, _GROUPS_MAX)
            self.schema = _schema(self._outline)
            self._data_end = size - len(self._tail)
            rewritten(self._outline, _model(self.schema, self._written), self._data_end)
        except (BadStructure, ValueError, OSError, EOFError, pa.ArrowException) as damage:
            raise self._damaged() from damage

    @property
    def pairs(self) -> dict[bytes, bytes]:
        """What the file says about itself."""
        return self._outline.pairs

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(group.rows for group in self._outline.groups)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows, with these columns; raises Corrupt."""
        for group in self._outline.groups:
            try:
                yield from self._group(group, list(names))
            except (BadStructure, TooLarge, pa.ArrowException, OSError, ValueError) as damage:
                raise self._damaged() from damage

    def _group(self, group: RowGroup, names: list[str]) -> Iterator[pa.RecordBatch]:
        model = _model(self.schema, self._written)
        start, end = group.chunks[0].start, group.chunks[-1].end
        if end - start > _GROUP_BYTES_MAX:
            raise TooLarge
        content = self._fetch(start, end - start)
        # The row group alone, as a file of its own that lies in memory.
        shift = start - len(MAGIC)
        moved = [
            chunk._replace(start=chunk.start - shift, end=chunk.end - shift, data=chunk.data - shift)
            for chunk in group.chunks
        ]
        step = self._rows_at_once(group, content, start, model)
        stop = len(MAGIC) + len(content)
        footer = rewritten(Outline(self._outline.elements, [RowGroup(group.rows, moved)], {}), model, stop)
        alone = pa.BufferReader(b"".join((MAGIC, content, footer)))
        file = pq.ParquetFile(alone, pre_buffer=False, page_checksum_verification=True)
        left = 2 * _GROUP_BYTES_MAX
        for batch in file.iter_batches(step, columns=names):
            left -= batch.nbytes
            if left < 0:
                raise TooLarge
            yield batch

    def _rows_at_once(self, group: RowGroup, content: bytes, start: int, model: Model) -> int:
        unpacked, longest, view = 0, 0, memoryview(content)
        for chunk, leaf in zip(group.chunks, model.leaves, strict=True):
            weight = weigh(view[chunk.start - start : chunk.end - start], chunk, leaf, _GROUP_BYTES_MAX)
            unpacked += weight.unpacked
            longest += weight.longest
        if unpacked > _GROUP_BYTES_MAX:
            raise TooLarge
        return max(1, min(GROUP_ROWS, _STEP_BYTES // (row_bytes(self.schema) + longest + 1)))

    def _read_tail(self, size: int) -> bytes:
        """The footer with its length and magic, exactly."""
        if size < len(MAGIC) + TAIL_BYTES:
            raise BadStructure
        most = min(size, _TAIL_BYTES)
        tail = self._fetch(size - most, most)
        length = TAIL_BYTES + int.from_bytes(tail[-TAIL_BYTES:-4], "little")
        if tail[-4:] != MAGIC or length > min(size - len(MAGIC), _FOOTER_BYTES_MAX):
            raise BadStructure
        return tail[-length:] if length <= most else self._fetch(size - length, length)

    def _damaged(self) -> Corrupt:
        return Corrupt("a file of a table is not what we wrote", path=self._path, hint=HINT)


def _schema(found: Outline) -> pa.Schema:
    """The columns that a file says it has; they prove nothing, and the pages are held against them."""
    data = base64.b64decode(found.pairs.get(b"ARROW:schema", b""), validate=True)
    schema = pa.ipc.read_schema(ipc_message.read_alone(data, "schema"))
    require_bounded(schema)
    return schema.remove_metadata()


@lru_cache(64)
def _model(schema: pa.Schema, written: ParquetProfile) -> Model:
    return Model(schema, written.settings(schema), (written.codec,))
