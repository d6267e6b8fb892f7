"""The fast path: Spark's own reader gives what the format gives, or the format does, and says so."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import holdfast
import pyspark_holdfast
from holdfast import Keyring
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_columns import KAFKA
from holdfast.reader.read_options import parse_options
from holdfast.reader.resolve import bounds_of, pieces, resolve
from holdfast.store import layout
from pyspark_holdfast import marks_of, path_of, read
from pyspark_holdfast.native import native_frame
from pyspark_holdfast.types import spark_schema
from tests.spark.logs import START_US, as_of, belonging, collected, fill, log_of, made, rows
from tests.store import shipped_logs
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, weed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
SALES = pa.schema({"city": pa.string(), "cents": pa.int64()})
GROWN = SALES.append(pa.field("tags", pa.list_(pa.string()))).append(pa.field("day", pa.date32()))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw topics of one, two and three partitions, and a typed one whose schema has grown."""
    path = tmp_path_factory.mktemp("native") / "log"
    with holdfast.open(path) as log:
        fill(log, "single", partitions=1)
        fill(log, "orders", partitions=3)
        fill(log, "bills", partitions=2)
        sales = log.topic("sales", schema=SALES, partitions=2)
        for partition in range(2):
            sales.append([{"city": f"c{n}", "cents": n} for n in range(10)], partition=partition)
        log.seal("sales")
        sales = log.topic("sales", schema=GROWN)
        sales.append([{"city": None, "cents": n, "tags": ["a", None], "day": date(1, 1, 1)} for n in range(5)])
        log.seal()
    return path


def through_format(spark: SparkSession, root: Path | str, topic: str = "", **options: Any) -> DataFrame:
    topics = {"topic": topic} if topic else {}
    return spark.read.format("holdfast").options(native="false", **topics, **options).load(str(root))


def bare(schema: StructType) -> list[tuple[str, str, bool]]:
    """A schema without what it carries."""
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in schema]


def contents(frame: DataFrame) -> list[str]:
    """The rows of a DataFrame, whatever they are, in an order of their own."""
    return sorted(map(repr, frame.toArrow().to_pylist()))


def assert_same(spark: SparkSession, root: Path | str, topic: str = "", **options: Any) -> DataFrame:
    """The native path, the format and `holdfast.read` agree; returns the native DataFrame."""
    native, by_format = read(spark, root, topic, **options), through_format(spark, root, topic, **options)
    assert path_of(native).path == "native", path_of(native)
    assert bare(native.schema) == bare(by_format.schema)
    assert marks_of(native) == marks_of(by_format)
    expected = contents(by_format)
    assert contents(native) == expected
    assert sorted(map(repr, in_python(root, topic, **options).to_pylist())) == expected
    return native


def in_python(root: Path | str, topic: str, **options: str) -> pa.Table:
    """The same of `holdfast.read`, with its columns called and ordered as Spark's."""
    names = {"startingOffsets": "starting_offsets", "endingOffsets": "ending_offsets", "asOf": "as_of"}
    own: dict[str, Any] = {names[name]: value for name, value in options.items() if name in names}
    for name in ("starting", "ending"):
        if f"{name}Timestamp" in options:
            own[f"{name}_timestamp"] = datetime.fromisoformat(options[f"{name}Timestamp"])
    topics, pattern = [name for name in topic.split(",") if name], options.get("topicPattern", "")
    names = holdfast.read(str(root), topics, topic_pattern=pattern).schema.names
    source = {column.name: column.source.strip("<>") for column in KAFKA} if names[0] == "topic" else {}
    wanted = options["columns"].split(",") if "columns" in options else list(source) or names
    own["columns"] = [source.get(name, name) for name in wanted]
    return holdfast.read(str(root), topics, topic_pattern=pattern, **own).to_arrow().rename_columns(wanted)


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def metric(frame: DataFrame, name: str) -> int:
    """What the scan of a finished query counted."""
    return int(frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0).metrics().apply(name).value())


def segments(root: Path, topic: str, partition: int = 0) -> list[Path]:
    return sorted((root / "segments" / "topics" / topic / str(partition) / "segments").glob("*.parquet"))


@contextmanager
def session_with(spark: SparkSession, **settings: str) -> Iterator[None]:
    """Settings of the session, for a while; `_` for `.`."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def at(seconds: int, microseconds: int = 0) -> str:
    moment = datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(seconds=seconds, microseconds=microseconds)
    return moment.isoformat()


# -- the same rows ----------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("topic", "options"),
    [
        ("single", {}),
        ("orders", {}),
        ("", {"topicPattern": "orders|b.*"}),
        ("sales", {}),
        ("sales", {"columns": "day,_partition,city"}),
        ("orders", {"columns": "value,topic"}),
        ("single", {"startingOffsets": '{"single":{"0":25}}', "endingOffsets": '{"single":{"0":41}}'}),
        ("orders", {"startingOffsets": '{"orders":{"0":25,"2":20}}', "endingOffsets": '{"orders":{"0":26,"1":-2}}'}),
        ("orders", {"asOf": '{"orders":{"0":1,"1":20,"2":55}}'}),
        ("sales", {"startingOffsets": '{"sales":{"0":3}}', "endingOffsets": '{"sales":{"1":9}}'}),
        ("orders,bills", {"asOf": '{"bills":{"1":33},"orders":{"1":60}}'}),
        ("single", {"startingTimestamp": at(15), "endingTimestamp": at(45)}),
        ("orders", {"startingTimestamp": at(39), "columns": "offset"}),
        ("orders", {"endingTimestamp": at(8, 1), "asOf": '{"orders":{"0":10,"2":60}}'}),
        ("orders", {"asOf": '{"bills":{"1":33}}'}),
        ("orders", {"startingOffsets": "latest"}),
        ("", {"topicPattern": "nobody"}),
    ],
)
def test_rows_columns_and_marks_are_those_of_the_format(
    spark: SparkSession, root: Path, topic: str, options: dict[str, str]
) -> None:
    assert_same(spark, root, topic, **belonging(root, options))


def test_rows_are_what_was_appended(spark: SparkSession, root: Path) -> None:
    assert collected(read(spark, root, "orders")) == rows("orders", 3, 60)
    assert collected(read(spark, root, ["bills", "orders"])) == rows("bills", 2, 60) + rows("orders", 3, 60)


def test_columns_are_a_list_and_keep_their_order(spark: SparkSession, root: Path) -> None:
    frame = read(spark, root, "orders", columns=["kind", "offset"])
    assert frame.columns == ["kind", "offset"]
    assert marks_of(frame) == pyspark_holdfast.settled_marks(str(root), topic="orders")


def test_without_a_column_rows_are_counted(spark: SparkSession, root: Path) -> None:
    assert read(spark, root, "orders", columns=[]).count() == 180


def test_all_types_that_spark_reads_itself_come_as_through_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """Ends of their ranges, old dates and times, nulls and everything nested, whatever calendar the session prefers."""
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    old, new = first.replace(tzinfo=None), last.replace(tzinfo=None)
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "flag": (pa.bool_(), [True, False]),
        "i8": (pa.int8(), [-128, 127]),
        "i16": (pa.int16(), [-(2**15), 2**15 - 1]),
        "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
        "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
        "u8": (pa.uint8(), [0, 255]),
        "u16": (pa.uint16(), [0, 2**16 - 1]),
        "u32": (pa.uint32(), [0, 2**32 - 1]),
        "u64": (pa.uint64(), [0, 2**64 - 1]),
        "f32": (pa.float32(), [0.5, float("inf")]),
        "f64": (pa.float64(), [-0.0, 5e-324]),
        "text": (pa.large_string(), ["", "größer"]),
        "word": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
        "bytes": (pa.binary(), [b"", b"\x00\xff"]),
        "three": (pa.binary(3), [b"abc", b"\x00\x00\x00"]),
        "day": (pa.date32(), [old.date(), new.date()]),
        "day64": (pa.date64(), [date(1582, 10, 4), date(1582, 10, 15)]),
        "ms": (pa.timestamp("ms"), [old, old + timedelta(days=693_595, milliseconds=1)]),
        "s_utc": (pa.timestamp("s", "UTC"), [first, datetime(1883, 11, 18, tzinfo=UTC)]),
        "us": (pa.timestamp("us"), [old, new]),
        "us_utc": (pa.timestamp("us", "Europe/Berlin"), [first, last]),
        "d32": (pa.decimal32(5, 2), [Decimal("-999.99"), Decimal("0.01")]),
        "d64": (pa.decimal64(18, 4), [Decimal("-99999999999999.9999"), Decimal(0)]),
        "d128": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1)]),
        "list": (pa.large_list(pa.uint8()), [[], [1, None, 255]]),
        "place": (pa.struct({"x": pa.uint16(), "inner": pa.struct({"y": pa.binary(2)})}), [{"x": 1}, None]),
        "map": (pa.map_(pa.string(), pa.list_(pa.timestamp("ms"))), [[], [("a", [old, None])]]),
        "a.b `c` (d)=é": (pa.int32(), [1, 2]),
    }
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in values.items()])
    table = pa.table([pa.array([*column, None], kind) for kind, column in values.values()], schema=schema)
    with holdfast.open(tmp_path / "log") as log:
        log.topic("all", schema=schema).append(table)
        log.seal()
    with session_with(spark, spark_sql_parquet_datetimeRebaseModeInRead="LEGACY"):
        native, by_format = read(spark, tmp_path / "log", "all"), through_format(spark, tmp_path / "log", "all")
        assert path_of(native).path == "native"
        assert bare(native.schema) == bare(by_format.schema)
        assert native.toArrow().equals(by_format.toArrow())


@pytest.mark.parametrize("name", ["a b%20c;#&+:,größer", "[x]{y,z}*?", "env=prod/_hidden/back\\slash"])
def test_the_path_of_a_root_may_have_any_characters(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark takes none of them for a pattern, an escape or a partition of a table."""
    made(tmp_path / "x" / "log", seals=1)  # what a pattern would find
    root = made(tmp_path / name / "log", seals=2)
    frame = read(spark, root, "orders")
    assert path_of(frame).path == "native"
    assert collected(frame) == rows("orders", 2, 40)


def test_a_root_behind_a_link_and_as_a_url_is_the_same(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    for place in (tmp_path / "link", f"file://{root}/segments"):
        frame = read(spark, place, "single")
        assert path_of(frame).path == "native"
        assert collected(frame) == rows("single", 1, 60)


def test_an_answer_stays_the_same_while_more_is_written(spark: SparkSession, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        fill(log, seals=1)
        frame = read(spark, tmp_path / "log", "orders")
        fill(log, seals=1)
        assert frame.count() == 40
        assert read(spark, tmp_path / "log", "orders").count() == 80
        assert read(spark, tmp_path / "log", "orders", asOf=marks_of(frame)).count() == 40


@pytest.mark.parametrize("columns", [None, ["offset"], []])
def test_reads_of_the_same_files_with_other_spans_are_kept_apart(
    spark: SparkSession, root: Path, columns: list[str] | None
) -> None:
    """Cached, and read once for two in one query: Spark compares files, and not what folders are asked."""
    one = read(spark, root, "bills", columns=columns, startingOffsets='{"bills":{"0":5,"1":5}}')
    other = read(spark, root, "bills", columns=columns, startingOffsets='{"bills":{"0":5,"1":7}}')
    assert [one.count(), other.count()] == [110, 108]
    both = one.groupBy().count().union(other.groupBy().count())
    assert [row[0] for row in both.collect()] == [110, 108]
    one.cache()
    try:
        assert [one.count(), other.count()] == [110, 108]
    finally:
        one.unpersist()


# -- what is read -----------------------------------------------------------------------------------------


def test_counting_reads_no_column(spark: SparkSession, root: Path) -> None:
    """Footers tell; topic and partition, which could be asked for, cost nothing."""
    counted = read(spark, root, "orders,bills").groupBy().count()
    assert "ReadSchema: struct<>" in plan(counted)
    assert counted.collect() == [(300,)]


def test_columns_that_are_not_selected_are_not_read(spark: SparkSession, root: Path) -> None:
    assert "ReadSchema: struct<payload:binary>" in plan(read(spark, root, "orders").select("partition", "value"))


def test_the_vectorised_reader_is_used(spark: SparkSession, root: Path) -> None:
    for topic in ("orders", "sales"):
        assert "Batched: true" in plan(read(spark, root, topic))


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("partition = 1", 6),
        ("topic = 'bills'", 6),
        ("topic = 'bills' and partition in (0, 2)", 3),
        ("partition = 7", 0),
    ],
)
def test_a_filter_on_topic_or_partition_leaves_files_out(
    spark: SparkSession, root: Path, condition: str, files: int
) -> None:
    frame = read(spark, root, "orders,bills").where(condition)
    assert len(frame.collect()) == 20 * files
    assert metric(frame, "numFiles") == files


def test_segments_outside_of_the_span_are_not_read(spark: SparkSession, root: Path) -> None:
    frame = read(spark, root, "single", startingOffsets='{"single":{"0":25}}', endingTimestamp=at(40))
    frame.collect()
    assert metric(frame, "numFiles") == 1


def test_the_edges_of_a_span_and_times_are_pushed_down(spark: SparkSession, root: Path) -> None:
    options = {"startingOffsets": '{"single":{"0":25}}', "endingTimestamp": at(50)}
    with session_with(spark, spark_sql_maxMetadataStringLength="1000"):
        pushed = plan(read(spark, root, "single", **options)).partition("PushedFilters: ")[2].partition("ReadSchema")[0]
    assert "GreaterThanOrEqual(offset,25)" in pushed
    assert "LessThanOrEqual(time," in pushed


def test_many_files_are_found_without_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would start one for more than 32; a session that says when keeps its word."""
    root = made(tmp_path / "log", partitions=3, seals=12, rows=1)
    before = str(spark.conf.get(THRESHOLD))
    jobs = spark.sparkContext.statusTracker()
    try:
        spark.conf.unset(THRESHOLD)
        spark.sparkContext.setJobGroup("native", "native")
        assert path_of(read(spark, root, "orders")).path == "native"
        assert list(jobs.getJobIdsForGroup("native")) == []
        assert THRESHOLD not in spark.conf.getAll
        spark.conf.set(THRESHOLD, "10")
        assert path_of(read(spark, root, "orders")).path == "native"
        assert len(jobs.getJobIdsForGroup("native")) == 1
    finally:
        spark.conf.set(THRESHOLD, before)
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


# -- the format, where it must be -------------------------------------------------------------------------


def assert_format(frame: DataFrame, reason: str) -> None:
    path, why = path_of(frame)
    assert path == "format"
    assert reason in why


@pytest.mark.parametrize(
    ("options", "reason"), [({"verify": "hash"}, "verify=hash is set"), ({"VERIFY": "full"}, "verify=full is set")]
)
def test_what_spark_cannot_do_is_done_by_the_format(
    spark: SparkSession, root: Path, options: dict[str, Any], reason: str
) -> None:
    frame = read(spark, root, "orders", **options)
    assert_format(frame, reason)
    assert collected(frame) == rows("orders", 3, 60)
    assert marks_of(frame) == pyspark_holdfast.settled_marks(str(root), topic="orders")


def test_the_tail_is_read_by_the_format(spark: SparkSession, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log", store=(tmp_path / "store").as_uri()) as log:
        fill(log, seals=1)
        log.topic("orders").append(b"", partition=1, durability="shipped")
        frame = read(spark, tmp_path / "store", "orders", includeTail=True)
        assert_format(frame, "includeTail is set")
        assert frame.count() == 41


def test_verify_off_is_no_reason_to_leave_the_native_path(spark: SparkSession, root: Path) -> None:
    assert path_of(read(spark, root, "orders", verify="off")).path == "native"


def test_an_encrypted_topic_is_opened_by_the_format(spark: SparkSession, tmp_path: Path, keyring: Keyring) -> None:
    keyring.save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "log", keyring=keyring) as log:
        fill(log, seals=1)
    frame = read(spark, tmp_path / "log", "orders", keyring=f"file:{tmp_path / 'keyring'}")
    assert_format(frame, "records are encrypted topics=orders")
    assert collected(frame) == rows("orders", 2, 20)
    blocks = read(spark, tmp_path / "log", "orders", encrypted="sealed")
    assert_format(blocks, "encrypted blocks are requested")
    assert blocks.count() > 0


def test_columns_that_spark_reads_otherwise_are_read_by_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """Named, and only where they are asked for."""
    kinds = {
        "half": pa.float16(),
        "clock": pa.time64("us"),
        "took": pa.duration("us"),
        "pair": pa.struct({"two": pa.list_(pa.int32(), 2)}),
    }
    with holdfast.open(tmp_path / "log") as log:
        topic = log.topic("odd", schema=pa.schema({"fine": pa.int32(), **kinds}))
        topic.append({"fine": 1, "half": 0.5, "took": timedelta(seconds=1), "pair": {"two": [1, 2]}})
        log.seal()
    frame = read(spark, tmp_path / "log", "odd")
    assert_format(frame, "columns=['half', 'clock', 'took', 'pair']")
    assert contents(frame) == contents(through_format(spark, tmp_path / "log", "odd"))
    assert_same(spark, tmp_path / "log", "odd", columns="fine")


def test_names_that_differ_in_capitals_only_are_read_by_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would take the older column for the newer one, in segments that have only the older."""
    with holdfast.open(tmp_path / "log") as log:
        schema = pa.schema({"A": pa.int32(), "n": pa.int32()})
        log.topic("capitals", schema=schema).append({"A": 1, "n": 5})
        log.seal()
        log.topic("capitals", schema=schema.append(pa.field("a", pa.int32()))).append({"A": 2, "n": 6, "a": 7})
        log.topic("nested", schema=pa.schema({"s": pa.struct({"A": pa.int8(), "a": pa.int8()})})).append({"s": None})
        log.seal()
    frame = read(spark, tmp_path / "log", "capitals", columns="a")
    assert_format(frame, "differ only in case")
    assert [row.a for row in frame.collect()] == [None, 7]
    assert path_of(read(spark, tmp_path / "log", "capitals", columns="n")).path == "native"
    assert_format(read(spark, tmp_path / "log", "nested"), "columns=['s']")
    with session_with(spark, spark_sql_caseSensitive="true"):
        assert_same(spark, tmp_path / "log", "capitals")


def test_names_that_spark_would_replace_or_match_are_only_names(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop replaces `${…}` in what Spark's reader is given, and Spark in SQL; a session may match names there."""
    names = ["${spark.app.name}", "a.c", "abc", ".*"]
    with holdfast.open(tmp_path) as log:
        for topic, chosen in {"replaced": names, "matched": names[1:]}.items():
            rows = log.topic(topic, schema=pa.schema({name: pa.int32() for name in chosen}), partitions=2)
            for partition in range(2):
                rows.append([{name: place for place, name in enumerate(chosen)}] * 2, partition=partition)
        log.seal()
    with session_with(spark, **{"spark.sql.parser.quotedRegexColumnNames": "true"}):
        loaded = spark.read.format("holdfast").option("topic", "replaced").load(str(tmp_path))
        for frame in (read(spark, tmp_path, "replaced"), loaded):
            assert_format(frame, "${…}")
            assert [tuple(row)[4:] for row in frame.collect()] == [(0, 1, 2, 3)] * 4
        assert_same(spark, tmp_path, "matched", startingOffsets='{"matched":{"0":1,"1":0}}')


def test_a_store_that_only_this_process_has_is_none_for_spark(spark: SparkSession) -> None:
    from holdfast.store.address import parse_url
    from pyspark_holdfast.parquet_scan import Unscannable, check_reach

    with pytest.raises(Unscannable, match="no way to memory://"):
        check_reach(spark, parse_url("memory://somewhere"))


def test_a_remote_session_reads_through_the_format(root: Path) -> None:
    from holdfast.store.address import parse_url
    from pyspark_holdfast.parquet_scan import Unscannable, check_reach

    with pytest.raises(Unscannable, match="the session is remote"):
        check_reach(object(), parse_url(str(root)))  # type: ignore[arg-type]


def test_a_spark_with_other_insides_reads_through_the_format(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that are not for everybody may go; the answer stays."""
    monkeypatch.setattr("pyspark_holdfast.parquet_scan._paths", lambda java, paths: java.spark("Gone")(paths))
    frame = read(spark, root, "single")
    assert_format(frame, "Spark does not reach the files error=Py4JError")
    assert collected(frame) == rows("single", 1, 60)


def test_the_log_says_which_path_was_taken(spark: SparkSession, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast"):
        read(spark, root, "orders")
        read(spark, root, "orders", verify="hash")
    said = [record for record in caplog.records if getattr(record, "action", "") == "spark_path"]
    assert [vars(record)["path"] for record in said] == ["native", "format"]
    assert "verify=hash" in said[1].getMessage()


def test_a_frame_that_says_nothing_is_refused(spark: SparkSession, root: Path) -> None:
    with pytest.raises(NotFound, match="does not say how it is read"):
        path_of(spark.range(1))


# -- on S3 ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with weed(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture(scope="module")
def shipped(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A log that is also on S3; where it is here, and the options that find it there."""
    path = tmp_path_factory.mktemp("shipped") / "log"
    settings = shipped_logs.settings(server.endpoint)
    with holdfast.open(path, store=shipped_logs.url("native"), settings=settings) as log:
        fill(log)
        log.ship()
    secret = path.with_name("credentials")
    secret.write_text(f"access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n")
    secret.chmod(0o600)
    return path, {"endpoint": server.endpoint, "region": REGION, "credentials": f"file:{secret}", "allowHttp": True}


def test_s3_without_a_connector_is_read_through_the_format(
    spark: SparkSession, shipped: tuple[Path, dict[str, Any]]
) -> None:
    frame = read(spark, shipped_logs.url("native"), "orders", **shipped[1])
    assert_format(frame, "Spark has no Hadoop connector for s3a://")
    assert collected(frame) == rows("orders", 2, 60)


@contextmanager
def connector(spark: SparkSession, target: Path) -> Iterator[None]:
    """Hadoop's own way to stand in for a connector: everything in the bucket is looked for in a directory."""
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.s3a.impl.disable.cache": "true",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        f"fs.viewfs.mounttable.{BUCKET}.link./native": target.as_uri(),
    }
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        hadoop.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            hadoop.unset(name)


def test_s3_with_a_connector_is_read_natively(spark: SparkSession, shipped: tuple[Path, dict[str, Any]]) -> None:
    path, options = shipped
    with connector(spark, path / "segments"):
        frame = read(spark, shipped_logs.url("native"), "orders", startingOffsets='{"orders":{"0":7}}', **options)
        assert path_of(frame).path == "native"
        assert collected(frame) == [row for row in rows("orders", 2, 60) if row[1] == 1 or row[2] >= 7]


def test_a_connector_that_sees_something_else_is_not_believed(
    spark: SparkSession, shipped: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """It may have other credentials, or another endpoint: the store that the options name decides."""
    (tmp_path / "empty").mkdir()
    with connector(spark, tmp_path / "empty"):
        frame = read(spark, shipped_logs.url("native"), "orders", **shipped[1])
        assert_format(frame, "Spark found other files than the manifests name files=0 named=6")
        assert collected(frame) == rows("orders", 2, 60)


# -- refusals and damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", ["false", "true"])
def test_a_missing_segment_is_an_error_that_names_it(spark: SparkSession, tmp_path: Path, ignored: str) -> None:
    """Also in a session that passes over missing files: there are no silent holes."""
    root = made(tmp_path / "log")
    lost = segments(root, "orders", 1)[1]
    lost.unlink()
    with session_with(spark, spark_sql_files_ignoreMissingFiles=ignored):
        with pytest.raises(Corrupt, match=r"a segment is missing offsets=20\.\.39") as raised:
            read(spark, root, "orders")
        assert str(raised.value.path).endswith(f"orders/1/segments/{lost.name}")
        assert read(spark, root, "orders", asOf=as_of(root, '{"orders":{"0":60,"1":20}}')).count() == 80


@pytest.mark.parametrize("native", [True, False])
def test_a_lost_newest_manifest_object_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, native: bool
) -> None:
    root = made(tmp_path / "log")
    folder = layout.manifest_folder("orders", 1)
    max((root / "segments" / folder).iterdir()).unlink()
    with pytest.raises(Exception, match="settled are missing topic=orders partition=1 there=40 settled=60"):
        (read if native else through_format)(spark, root, "orders").count()
    assert read(spark, root, "orders", asOf=as_of(root, '{"orders":{"0":60,"1":40}}')).count() == 100
    assert read(spark, root, "orders", failOnDataLoss="false").count() == 100


def test_a_segment_that_goes_missing_later_is_an_error_that_names_it(spark: SparkSession, tmp_path: Path) -> None:
    root = made(tmp_path / "log")
    lost = segments(root, "orders")[0]
    with session_with(spark, spark_sql_files_ignoreMissingFiles="true"):
        frame = read(spark, root, "orders")
        lost.unlink()
        with pytest.raises(Exception, match=lost.name):
            frame.count()


def test_a_segment_of_another_size_is_an_error_that_names_it(spark: SparkSession, tmp_path: Path) -> None:
    root = made(tmp_path / "log")
    cut = segments(root, "orders")[2]
    os.truncate(cut, 100)
    with pytest.raises(Corrupt, match="does not have the size that the manifest says bytes=100") as raised:
        read(spark, root, "orders")
    assert cut.name in str(raised.value.path)


def test_a_damaged_segment_is_an_error_in_a_session_that_passes_over_damage(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = made(tmp_path / "log")
    damaged = segments(root, "orders")[0]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with session_with(spark, spark_sql_files_ignoreCorruptFiles="true"):
        frame = read(spark, root, "orders")
        with pytest.raises(Exception, match=damaged.name):
            frame.collect()


def test_a_segment_that_expires_while_it_is_to_be_read_is_an_error_that_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "log") as log:
        fill(log, partitions=1)
        place, asked = parse_options({"path": str(tmp_path / "log"), "topic": "orders"})
        root = SettledRoot.open(place, asked)
        resolved = resolve(root, asked)
        found = pieces(root, resolved.spans, asked, bounds_of(asked))
        log.set_retention("orders", records_max=20)
        log.retain()
        columns = resolved.shape.columns
        with pytest.raises(NotFound, match=r"a segment expired before it was read offsets=0\.\.19"):
            native_frame(spark, root, found, columns, bounds_of(asked), spark_schema(columns))


def test_what_retention_took_is_refused_as_by_the_format(spark: SparkSession, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        fill(log, partitions=1)
        log.set_retention("orders", records_max=20)
        log.retain()
    options = {"startingOffsets": '{"orders":{"0":5}}'}
    with pytest.raises(NotFound, match="records have expired"):
        read(spark, tmp_path / "log", "orders", **options)
    frame = read(spark, tmp_path / "log", "orders", failOnDataLoss=False, **options)
    assert collected(frame) == rows("orders", 1, 60, start=40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"asOf": '{"orders":{"0":61}}'}, "not settled yet"),
        ({"topik": "orders"}, "there is no option topik"),
        ({"columns": "offset,price"}, "no such columns"),
        ({"emit": "segments"}, "emit is for the format"),
        ({"columns": ["a,b"]}, "cannot be requested"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read(spark, root, "orders", **belonging(root, options))


def test_a_schema_that_has_grown_is_refused_where_that_is_asked_for(spark: SparkSession, root: Path) -> None:
    with pytest.raises(Invalid, match="2 versions of their schema"):
        read(spark, root, "sales", schemaMode="strict")


def test_marks_are_text_for_another_read(spark: SparkSession, root: Path) -> None:
    assert json.loads(marks_of(read(spark, root, "bills"))) == {log_of(root): {"bills": {"0": [0, 60], "1": [0, 60]}}}
