"""Plain segments open in the usual tools unaided, with the right values."""

from __future__ import annotations

import random

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import poison
from tests.segment_data import batch_of, head_of, write

from holdfast.parquet.footer_bounds import bounded_columns
from holdfast.parquet.thrift import Walk
from holdfast.segments.file.segment_columns import TIME, conform, stored_schema, typed_schema

pytestmark = pytest.mark.disk


@pytest.fixture(params=["raw", "typed"])
def segment(request, tmp_path):
    """A plain file of 250 records, and the records in Arrow."""
    batch = batch_of(request.param, 2**40, 250)
    path = tmp_path / "segment.parquet"
    write(path, head_of(request.param, 2**40), [batch])
    return path, pa.Table.from_batches([conform(batch, stored_schema(batch.schema))])


def plain(value):
    """A cell without the differences in how tools present nested values."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def rows(table):
    """Rows whose maps are dicts, whatever the tool made of them."""
    for name in table.column_names:
        if name == "extra":
            cells = [dict(_pairs(cell)) if cell is not None else None for cell in table[name].to_pylist()]
            table = table.drop_columns([name]).append_column(name, pa.array([repr(cell) for cell in cells]))
    return [plain(row) for row in table.to_pylist()]


def _pairs(cell):
    return [(item["key"], item["value"]) if isinstance(item, dict) else item for item in cell]


def test_pyarrow_reads_every_column(segment):
    """pyarrow reads every column with its type."""
    path, expected = segment
    assert pq.read_table(path).equals(expected)


def test_duckdb_reads_every_value(segment):
    """DuckDB reads every value, and counts by offset and time."""
    path, expected = segment
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        found = db.sql("SELECT * FROM read_parquet(?)", params=[str(path)]).to_arrow_table()
        offset, time = expected.column_names[:2]
        query = f'SELECT count(*), min("{offset}"), max("{offset}"), min("{time}") FROM read_parquet(?)'
        query += f' WHERE "{offset}" >= ?'
        count, low, high, earliest = db.execute(query, [str(path), 2**40 + 100]).fetchone()
    assert rows(found) == rows(expected)
    assert (count, low, high) == (150, 2**40 + 100, 2**40 + 249)
    assert earliest == min(expected[time].to_pylist()[100:])


def test_polars_reads_every_value(segment):
    """Polars reads every value, eagerly and through a filter."""
    path, expected = segment
    found = pl.read_parquet(path)
    assert rows(found.to_arrow()) == rows(expected)
    offset = expected.column_names[0]
    assert pl.scan_parquet(path).filter(pl.col(offset) == 2**40 + 7).collect().height == 1


def test_pandas_reads_every_value(segment):
    """pandas reads offsets, times in UTC and values."""
    path, expected = segment
    found = pd.read_parquet(path)
    offset, time, *others = expected.column_names
    assert found[offset].tolist() == list(range(2**40, 2**40 + 250))
    assert [stamp.to_pydatetime() for stamp in found[time]] == expected[time].to_pylist()
    simple = "payload" if "payload" in others else "id"
    assert found[simple].tolist() == expected[simple].to_pylist()
    assert list(found.columns) == expected.column_names


def test_columns_that_spark_reads_in_vectors(segment):
    """Version 1 data pages, microseconds, and only encodings that Spark's vectorised reader knows."""
    path, expected = segment
    known = {"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "DELTA_BINARY_PACKED"}
    metadata = pq.read_metadata(path)
    for i in range(metadata.num_columns):
        column = metadata.row_group(0).column(i)
        assert set(column.encodings) <= known
        assert column.compression == "ZSTD"
    time = expected.column_names[1]
    assert pq.read_schema(path).field(time).type == pa.timestamp("us", "UTC")
    statistics = metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (2**40, 2**40 + 99)


def test_every_page_has_a_checksum_that_finds_a_flipped_bit(segment, tmp_path):
    """For readers that look at it: without it, most flipped bits come through silently."""
    path, _ = segment
    content = path.read_bytes()
    spans = list(pages(content, pq.read_metadata(path)))
    assert spans
    chance = random.Random(1)
    for _ in range(40):
        start, end = chance.choice(spans)
        damaged = bytearray(content)
        damaged[chance.randrange(start, end)] ^= 1 << chance.randrange(8)
        (tmp_path / "damaged.parquet").write_bytes(damaged)
        with pytest.raises(OSError, match=r"(?i)crc"):
            pq.read_table(tmp_path / "damaged.parquet", page_checksum_verification=True)


def pages(content, metadata):
    """Where the stored bytes of all pages lie; each has a checksum."""
    for group in range(metadata.num_row_groups):
        for i in range(metadata.num_columns):
            column = metadata.row_group(group).column(i)
            at = column.dictionary_page_offset or column.data_page_offset
            end = at + column.total_compressed_size
            while at < end:
                walk = Walk(content, at, end)
                header = walk.struct()
                assert header.kinds[4] == 5, "a checksum"
                yield walk.at, walk.at + header[3]
                at = walk.at + header[3]


def test_a_column_whose_bounds_could_exclude_a_row_has_none(tmp_path):
    """Floats may hold NaN, wherever they are nested; others keep their bounds, by which engines skip row groups."""
    rows = pa.table(
        {
            **{name: poison.TABLE.column(name) for name in poison.SCHEMA.names},
            "half": pa.nulls(poison.COUNT, pa.float16()),
            "code": pa.nulls(poison.COUNT, pa.dictionary(pa.int8(), pa.float64())),
            "s.y": pa.array(range(poison.COUNT)),  # Arrow takes it for the field `y` of `s`
        }
    )
    schema, path = typed_schema(rows.schema), tmp_path / "segment.parquet"
    first = [pa.array(range(poison.COUNT)), pa.nulls(poison.COUNT, pa.int64()).fill_null(1).view(TIME)]
    batch = pa.record_batch([*first, *rows.combine_chunks().to_batches()[0].columns], schema=schema)
    write(path, head_of("typed"), [batch])
    group = pq.read_metadata(path).row_group(0)
    found = {group.column(at).path_in_schema for at in range(group.num_columns) if group.column(at).is_stats_set}
    bounded = set(poison.KINDS) - {"x", "f", "a.b", "ms", "nothing"}
    assert found == {"_offset", "_time", "id", *bounded, "s.t", "s.d.n"}
    assert bounded_columns(pa.schema([("a", pa.int8()), ("b", pa.large_string()), ("c", pa.timestamp("s"))])) == [
        "a",
        "b",
    ]
