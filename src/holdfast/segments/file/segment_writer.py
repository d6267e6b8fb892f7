"""Writes one segment: a Parquet file that describes and proves itself (docs/formats/0004-segment.md).

The writer owns a temporary file. When `finish` returns, the file's content is durable; its name is not, and giving
it the final one is the caller's business. Whatever goes wrong, the file is given up: the caller removes it and a new
attempt writes a new one, under a new key.

Behind the last row group it writes an index of the records' keys (`segments.keys`), made beside encoding.

Memory: the rows of one row group, and as much again while it is encoded, and 8 bytes for each key. A helper thread
hashes beside encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from holdfast.crypto import digests
from holdfast.crypto.segment_key import SegmentKey
from holdfast.errors import Invalid
from holdfast.model.arrow.batch_sizing import BatchBuffer, Piece
from holdfast.model.content_digest import ContentDigest
from holdfast.model.segment import NO_SCHEMA, SegmentFacts, SegmentHead
from holdfast.parquet.footer_bounds import bounded_columns
from holdfast.segments.file import encrypted_blocks
from holdfast.segments.file import footer as footers
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.footer import Footer, KeyPlace, RowGroupStatistics
from holdfast.segments.file.hashing_sink import hash_block
from holdfast.segments.file.row_group_file import RowGroupFile
from holdfast.segments.file.segment_columns import conform, is_raw, require_dense, stored_schema, time_range
from holdfast.segments.keys import key_blob
from holdfast.segments.keys.key_index import KeyIndexBuilder

__all__ = ["FileShape", "SegmentWriter", "parquet_settings"]


class SegmentWriter:
    """Writes the batches of one segment, once.

    `path` is that of the temporary file; `schema` RAW_SCHEMA or `typed_schema(…)`. With a `key` the records are
    encrypted. `rewrite` is the nonce of the rewrite that the file is for, if it takes the place of others. `key_column`
    is the column of a typed topic that holds the keys; raw records have theirs in `key`. `codec` is the topic's.
    """

    def __init__(
        self,
        path: Path,
        head: SegmentHead,
        schema: pa.Schema,
        shape: FileShape,
        key: SegmentKey | None,
        *,
        rewrite: str = "",
        key_column: str | None = None,
        codec: str = "",
    ) -> None:
        if is_raw(schema) != (head.schema == NO_SCHEMA):
            raise Invalid("columns and schema fingerprint do not fit", hint="raw records have RAW_SCHEMA and NO_SCHEMA")
        self._head, self._rewrite, self._codec = head, rewrite, codec
        self._schema = stored_schema(schema)
        self._next = head.first
        self._key_column = "key" if is_raw(schema) else key_column
        file_schema = self._schema if key is None else encrypted_blocks.BLOCK_SCHEMA
        self._content = ContentDigest(file_schema)
        self._key = key
        self._rows = _PlainRows(shape) if key is None else _EncryptedRows(shape, head, self._schema, key)
        settings = parquet_settings(
            self._schema, is_encrypted=key is not None, compression_level=shape.compression_level
        )
        self._file = RowGroupFile(path, file_schema, settings)
        self._keys = KeyIndexBuilder(self._file.beside)
        self._key_place: KeyPlace | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()  # which does nothing to a file that is finished

    @property
    def size(self) -> int:
        """Bytes of the file so far; rows that wait for their row group to be full are not in it."""
        return self._file.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next records; offsets must go on where they ended."""
        self._file.require_open()
        batch = conform(batch, self._schema)
        require_dense(batch, self._next)
        self._next += batch.num_rows
        if self._key_column is not None:
            self._keys.add(batch.column(self._key_column))
        for group, rows in self._rows.add(batch):
            self._write_group(group, rows)

    def finish(self) -> SegmentFacts:
        """Write the footer, make the file durable and close it. It still has its temporary name."""
        self._file.require_open()
        self._keys.close()  # before the last row group is encoded: the index is made meanwhile
        for group, rows in self._rows.rest():
            self._write_group(group, rows)
        if self._key_column is not None and self._file.groups:
            self._key_place = self._write_keys(self._key_column)
        return self._file.finish(self._footer, digests.plain_stamp if self._key is None else self._key.mac)

    def abandon(self) -> None:
        """Close the file as it is; removing it is the caller's business. Does nothing after `finish`."""
        self._file.abandon()

    def _write_group(self, group: Piece, about: RowGroupStatistics) -> None:
        hashed = self._file.beside(lambda: self._hash(group))
        self._file.write(pa.Table.from_batches(group), about)
        hashed.result()

    def _hash(self, group: Piece) -> None:
        for part in group:
            self._content.update(part)

    def _write_keys(self, column: str) -> KeyPlace | None:
        index = self._keys.result()
        if index is None:
            return None
        if self._key is not None:
            index = key_blob.encrypted(index, self._head, self._next - self._head.first, self._key)
        return KeyPlace(self._file.write_behind(index), len(index), hash_block(index), column)

    def _footer(self, blocks: bytes) -> Footer:
        encrypted_with = None if self._key is None else self._key.encrypted_with
        plain, encrypted = (footers.TYPED, footers.RAW), (footers.ENCRYPTED_TYPED, footers.ENCRYPTED_RAW)
        kinds = plain if encrypted_with is None else encrypted
        return Footer(
            head=self._head,
            shape=kinds[is_raw(self._schema)],
            rows=self._next - self._head.first,
            time_min=min(group.time_min for group in self._file.groups),
            time_max=max(group.time_max for group in self._file.groups),
            content=self._content.digest(),
            groups=tuple(self._file.groups),
            blocks=blocks,
            schema=self._schema.serialize().to_pybytes(),
            encrypted_with=encrypted_with,
            rewrite=self._rewrite,
            keys=self._key_place,
            codec=self._codec,
        )


class _PlainRows:
    """Records as rows of the file."""

    def __init__(self, shape: FileShape) -> None:
        self._gathering = BatchBuffer(shape.row_group_rows, shape.row_group_bytes)

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[Piece, RowGroupStatistics]]:
        """Take records; gives row groups that are full."""
        for group in self._gathering.add(batch):
            yield group, _about(group)

    def rest(self) -> Iterator[tuple[Piece, RowGroupStatistics]]:
        """The last row group, if there is one."""
        group = self._gathering.rest()
        if group:
            yield group, _about(group)


def _about(group: Piece) -> RowGroupStatistics:
    ranges = [time_range(part) for part in group]
    return RowGroupStatistics(
        sum(part.num_rows for part in group), min(low for low, _ in ranges), max(high for _, high in ranges)
    )


class _EncryptedRows:
    """Blocks of records, encrypted, as rows of the file."""

    def __init__(self, shape: FileShape, head: SegmentHead, schema: pa.Schema, key: SegmentKey) -> None:
        self._gathering = BatchBuffer(shape.block_rows, shape.block_bytes)
        self._encryptor = encrypted_blocks.BlockEncryptor(head, schema, key, shape.compression_level)
        self._rows_max, self._bytes_max = shape.row_group_rows, shape.row_group_bytes
        self._blocks: list[tuple[encrypted_blocks.BlockFacts, encrypted_blocks.Blob]] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[Piece, RowGroupStatistics]]:
        """Take records; gives row groups that are full."""
        for block in self._gathering.add(batch):
            self._encrypt(block)
            if self._rows >= self._rows_max or self._bytes >= self._bytes_max:
                yield self._take()

    def rest(self) -> Iterator[tuple[Piece, RowGroupStatistics]]:
        """The last row group, if there is one."""
        block = self._gathering.rest()
        if block:
            self._encrypt(block)
        if self._blocks:
            yield self._take()

    def _encrypt(self, parts: Piece) -> None:
        block = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        self._blocks.append(self._encryptor.encrypt(block))
        self._rows += block.num_rows
        self._bytes += block.nbytes

    def _take(self) -> tuple[Piece, RowGroupStatistics]:
        blocks, rows = self._blocks, self._rows
        self._blocks, self._rows, self._bytes = [], 0, 0
        earliest, latest = min(p.time_min for p, _ in blocks), max(p.time_max for p, _ in blocks)
        return [encrypted_blocks.table(blocks)], RowGroupStatistics(rows, earliest, latest)


_COMMON: dict[str, Any] = {"version": "2.6", "data_page_version": "1.0", "store_schema": True}
_SEALED_SETTINGS: dict[str, Any] = {
    **_COMMON,
    "compression": "none",  # blocks are compressed before they are encrypted
    "use_dictionary": False,
    "write_statistics": ["first_offset", "rows", "time_min", "time_max"],
}


def parquet_settings(schema: pa.Schema, *, is_encrypted: bool, compression_level: int = 1) -> dict[str, Any]:
    """How a file with these records is written: also what a reader expects of one that it does not trust."""
    if is_encrypted:
        return _SEALED_SETTINGS
    # Measured: dictionaries make keys and kinds smaller, and typed columns of many values larger and slower, where
    # zstd alone does well. Statistics of payloads cost time and tell nobody anything.
    raw = is_raw(schema)
    return {
        **_COMMON,
        "compression": "zstd",
        "compression_level": compression_level,
        # For other readers: ours compares blocks with BLAKE3, which covers every byte of every page. An encrypted file
        # has none: its blocks are nothing to other readers, and decrypting finds more than a checksum does.
        "write_page_checksum": True,
        "use_dictionary": ["key", "kind"] if raw else False,
        "write_statistics": ["offset", "time", "key", "kind"] if raw else bounded_columns(schema),
        "column_encoding": dict.fromkeys(schema.names[:2], "DELTA_BINARY_PACKED"),
    }
