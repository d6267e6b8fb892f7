"""Segments of a few kilobytes that ask for gigabytes, made with a Parquet writer and stamped as ours.

Each is what a plain root can hold: the footer's pairs, block hashes and stamp are right, only the rows are monstrous.
`size` is about what they take when they are decoded; making one takes less than that.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.crypto import digests
from holdfast.segments.file import footer as footers
from holdfast.segments.file.footer import Footer, RowGroupStatistics
from holdfast.segments.file.hashing_sink import BLOCK_BYTES, hash_block
from holdfast.segments.file.segment_columns import RAW_SCHEMA, TIME, typed_schema
from holdfast.segments.file.segment_writer import parquet_settings
from tests.segment_data import head

_MIB = 2**20


def forge(path: Path, claimed: pa.Schema, table: pa.Table, **settings: Any) -> None:
    """A plain file of one row group that claims to have these columns."""
    stream = io.BytesIO()
    is_raw = claimed.equals(RAW_SCHEMA)
    settings = {**parquet_settings(claimed, is_encrypted=False), "store_schema": False, **settings}
    with pq.ParquetWriter(stream, table.schema, **settings) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
        data = stream.getvalue()
        hashes = b"".join(hash_block(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))
        footer = Footer(
            head=head(typed=not is_raw),
            shape=footers.RAW if is_raw else footers.TYPED,
            rows=table.num_rows,
            time_min=0,
            time_max=0,
            content=bytes(32),
            groups=(RowGroupStatistics(table.num_rows, 0, 0),),
            blocks=hashes,
            schema=claimed.serialize().to_pybytes(),
            encrypted_with=None,
        )
        writer.add_key_value_metadata(footer.stamped(digests.plain_stamp))
    path.write_bytes(stream.getvalue())


def _raw(path: Path, key: pa.Array, payload: pa.Array, **settings: Any) -> None:
    rows = len(key)
    schema = RAW_SCHEMA.set(2, pa.field("key", key.type))
    headers = pa.nulls(rows, RAW_SCHEMA.field("headers").type)
    columns = [*_places(rows), key, pa.nulls(rows, pa.string()), headers, payload]
    forge(path, RAW_SCHEMA, pa.Table.from_arrays(columns, schema=schema), **settings)


def _typed(path: Path, column: pa.Array, claimed: pa.DataType | None = None) -> None:
    schema = typed_schema(pa.schema([pa.field("x", column.type)]))
    table = pa.Table.from_arrays([*_places(len(column)), column], schema=schema)
    forge(path, typed_schema(pa.schema([pa.field("x", claimed or column.type)])), table)


def _places(rows: int) -> list[pa.Array]:
    return [pa.arange(0, rows, 1), pa.repeat(pa.scalar(0, TIME), rows)]


def _untouched(size: int) -> pa.Buffer:
    """Zeros that take no memory until somebody looks at them."""
    return pa.py_buffer(mmap.mmap(-1, size))


def dictionary(path: Path, size: int) -> None:
    """One long key, again and again: a dictionary holds it once, and a run of indices the rest."""
    index = pa.repeat(pa.scalar(0, pa.int32()), 1 + size // 500_000)
    key = pa.DictionaryArray.from_arrays(index, pa.array([b"k" * 500_000], pa.binary()))
    _raw(path, key, pa.repeat(pa.scalar(b""), len(key)))


def zeros(path: Path, size: int) -> None:
    """A payload of zeros, which zstd makes ten thousand times smaller."""
    _raw(path, pa.nulls(1, pa.binary()), pa.array([bytes(size)], pa.binary()), data_page_size=2 * size)


def absent(path: Path, size: int) -> None:
    """Values of a fixed size, all of them absent: nothing in the file, a megabyte each in memory."""
    rows = 1 + size // _MIB
    buffers = [pa.py_buffer(bytes(-(-rows // 8))), _untouched(rows * _MIB)]
    _typed(path, pa.Array.from_buffers(pa.binary(_MIB), rows, buffers, rows))


def levels(path: Path, size: int) -> None:
    """One list of very many absent numbers: runs of levels, and nothing else."""
    items = size // 5
    buffers = [_untouched(-(-items // 8)), _untouched(-(-items // 8))]
    values = pa.Array.from_buffers(pa.bool_(), items, buffers, items)
    _typed(path, pa.ListArray.from_arrays(pa.array([0, items], pa.int32()), values))


def absent_lists(path: Path, size: int) -> None:
    """A list of absent lists of a fixed size: a few bits each in the file, and all of their numbers in memory."""
    items = 1 + size // 80_000
    column = pa.ListArray.from_arrays(pa.array([0, items], pa.int32()), pa.nulls(items, pa.list_(pa.int64())))
    _typed(path, column, claimed=pa.list_(pa.list_(pa.int64(), 10_000)))


BOMBS: dict[str, Callable[[Path, int], None]] = {
    made.__name__: made for made in (dictionary, zeros, absent, levels, absent_lists)
}
