"""The format, read by Spark itself: answers, refusals and moments are those of the Python source."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader

import holdfast
import pyspark_holdfast
from holdfast import Keyring
from pyspark_holdfast import accelerate, marks_of, native_rule, parquet_scan, path_of
from pyspark_holdfast.parquet_scan import Unscannable
from tests.sampling import Some
from tests.spark.conftest import before
from tests.spark.logs import START_US, belonging, collected, fill, made, rows
from tests.spark.test_flipped_bits import flipped, payload_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SETTING = "spark.holdfast.native"
SALES = pa.schema({"city": pa.string(), "cents": pa.int64()})
GROWN = SALES.append(pa.field("place", pa.struct({"x": pa.float64(), "name": pa.string()})))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw topics of one and three partitions, and a typed one whose schema has grown."""
    path = tmp_path_factory.mktemp("rule") / "log"
    with holdfast.open(path) as log:
        fill(log, "orders", partitions=3)
        fill(log, "bills", partitions=1)
        log.topic("sales", schema=SALES).append([{"city": f"c{n % 3}", "cents": n} for n in range(10)])
        log.seal("sales")
        more = [{"city": None, "cents": n, "place": {"x": n / 2, "name": f"p{n}"}} for n in range(5)]
        log.topic("sales", schema=GROWN).append(more)
        log.seal()
    return path


def load(spark: SparkSession, root: Path | str, topic: str = "orders", **options: Any) -> DataFrame:
    topics = {"topic": topic} if topic else {}
    return spark.read.format("holdfast").options(**topics, **options).load(str(root))


def in_python(spark: SparkSession, root: Path | str, topic: str = "orders", **options: Any) -> DataFrame:
    """The same by the Python source."""
    return load(spark, root, topic, native="false", **options)


def contents(frame: DataFrame) -> list[str]:
    """The rows of a DataFrame, in an order of their own."""
    return sorted(map(repr, frame.toArrow().to_pylist()))


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def is_native(frame: DataFrame) -> bool:
    """Whether Spark itself reads everything of a query, by its plan."""
    return "FileScan parquet" in plan(frame) and "BatchScan" not in plan(frame)


@contextmanager
def switched(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def at(seconds: int) -> str:
    return (datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(seconds=seconds)).isoformat()


# -- the same answers -------------------------------------------------------------------------------------

READS: list[tuple[str, dict[str, str]]] = [
    ("orders", {}),
    ("orders,bills", {}),
    ("", {"topicPattern": "o.*|bills"}),
    ("", {"topicPattern": "nobody"}),
    ("sales", {}),
    ("sales", {"columns": "place,_partition,city"}),
    ("sales", {"schemaMode": "known"}),
    ("orders", {"columns": "offset"}),
    *([] if before(4, 1) else [("orders", {"columns": ""})]),
    ("orders", {"startingOffsets": '{"orders":{"0":25,"2":20}}', "endingOffsets": '{"orders":{"0":26,"1":-2}}'}),
    ("orders", {"asOf": '{"orders":{"0":1,"1":20,"2":55}}'}),
    ("orders", {"startingTimestamp": at(15), "endingTimestamp": at(45)}),
    ("bills", {"startingTimestamp": at(39), "columns": "value"}),
    ("orders", {"startingOffsets": "latest"}),
    ("orders", {"verify": "off", "failOnDataLoss": "false"}),
]


def test_rows_columns_and_marks_are_those_of_the_source(spark: SparkSession, root: Path, some: Some[Any]) -> None:
    for topic, given in some(READS, 4):
        options = belonging(root, given)
        native, slow = load(spark, root, topic, **options), in_python(spark, root, topic, **options)
        assert path_of(native).path == "native", (topic, options, path_of(native))
        assert is_native(native)
        assert not is_native(slow)
        assert native.schema == slow.schema  # with metadata
        assert contents(native) == contents(slow), (topic, options)
        if native.columns:
            assert marks_of(native) == marks_of(slow)


QUESTIONS = [
    "SELECT count(*) FROM {o}",
    "SELECT sum(offset), max(timestamp) FROM {o} WHERE offset >= 30 AND partition = 1",
    "SELECT offset FROM {o} WHERE timestamp < timestamp_micros(1767225610000000) AND topic = 'orders'",
    "SELECT * FROM {o} WHERE key = CAST('key-5' AS BINARY)",
    "SELECT headers[0].key, kind FROM {o} WHERE size(headers) > 1",
    "SELECT partition, count(DISTINCT kind), sum(length(value)) FROM {o} GROUP BY partition",
    "SELECT partition, offset FROM {o} ORDER BY offset DESC, partition LIMIT 7",
    "SELECT count(*) FROM (SELECT * FROM {o} LIMIT 11)",
    "SELECT a.value FROM {o} a JOIN {o} b ON a.offset = b.offset + 1 WHERE a.offset < 9 AND b.partition <> 2",
    "SELECT a.offset, b.cents FROM {o} a LEFT JOIN {s} b ON a.offset = b._offset WHERE a.partition = 0",
    "SELECT offset FROM {o} WHERE offset < 5 UNION ALL SELECT offset FROM {o} WHERE partition = 2",
    "SELECT (SELECT count(*) FROM {o} WHERE offset = 7), (SELECT max(cents) FROM {s}), count(*) FROM {o}",
    "SELECT (SELECT min(offset) FROM {o}), (SELECT max(offset) FROM {o}), (SELECT avg(offset) FROM {o})",
    "SELECT cents FROM {s} WHERE EXISTS (SELECT 1 FROM {o} WHERE offset = cents * 3 AND partition = 0)",
    "SELECT city FROM {s} s WHERE cents > (SELECT avg(cents) FROM {s} t WHERE t.city = s.city)",
    "WITH part AS (SELECT * FROM {o} WHERE offset % 7 = 0) SELECT count(*) FROM part a JOIN part b USING (offset)",
    "SELECT offset, row_number() OVER (PARTITION BY partition ORDER BY offset DESC) AS r FROM {o} WHERE offset < 4",
    "SELECT place.name, place FROM {s} WHERE place.x > 0.5",
    "SELECT place.x FROM {s}",
    "SELECT city FROM {s} EXCEPT SELECT 'c1'",
    "SELECT _offset, uuid() IS NOT NULL FROM {s}",
]


def test_every_question_has_the_answer_of_the_source(spark: SparkSession, root: Path, some: Some[Any]) -> None:
    """Asked of the same DataFrames, one after another."""
    for name, loaded in (("fast", load), ("slow", in_python)):
        loaded(spark, root).createOrReplaceTempView(f"{name}_orders")
        loaded(spark, root, "sales").createOrReplaceTempView(f"{name}_sales")
    for question in some(QUESTIONS, 6):
        fast, slow = (spark.sql(question.format(o=f"{name}_orders", s=f"{name}_sales")) for name in ("fast", "slow"))
        with switched(spark, "spark.sql.planChangeValidation", "true"):  # ids, references, types
            assert contents(fast) == contents(slow), question
        assert is_native(fast), question
        assert fast.schema == slow.schema


def test_conditions_columns_and_fields_reach_the_files(spark: SparkSession, root: Path) -> None:
    narrow = load(spark, root).where("offset = 7").select("kind")
    assert "PushedFilters: [IsNotNull(offset), EqualTo(offset,7)]" in plan(narrow)
    assert "ReadSchema: struct<offset:bigint,kind:string>" in plan(narrow)
    assert "PartitionFilters: [isnotnull(_partition" in plan(load(spark, root).where("partition = 1"))
    assert "ReadSchema: struct<place:struct<x:double>>" in plan(load(spark, root, "sales").select("place.x"))
    bounded = load(spark, root, startingTimestamp=at(15)).select("offset")
    assert "GreaterThanOrEqual(time,2026-01-01 00:00:15.0)" in plan(bounded)


def test_views_tables_and_cached_frames_are_read_by_spark_itself(spark: SparkSession, root: Path) -> None:
    options = f"OPTIONS (root '{root}', topic 'orders')"
    spark.sql(f"CREATE TABLE ruled USING holdfast {options}")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW ruled_view USING holdfast {options}")
    try:
        for name in ("ruled", "ruled_view"):
            counted = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE offset >= 50")
            assert [row.n for row in counted.collect()] == [30]
            assert is_native(counted)
            assert path_of(spark.table(name)).path == "native"
    finally:
        spark.sql("DROP TABLE ruled")
    frame = load(spark, root).cache()
    try:
        assert collected(frame) == rows("orders", 3, 60)
        assert frame.where("offset < 5").count() == 15
        assert "FileScan parquet" in plan(frame)
    finally:
        frame.unpersist()


def test_sizes_reach_the_planner_so_that_small_sides_are_broadcast(spark: SparkSession, root: Path) -> None:
    def joined(loaded: Callable[..., DataFrame]) -> DataFrame:
        return loaded(spark, root).join(loaded(spark, root, "bills"), "offset").select("offset")

    fast, slow = joined(load), joined(in_python)
    assert "BroadcastHashJoin" in plan(fast)
    assert "SortMergeJoin" in plan(slow)
    assert contents(fast) == contents(slow)


def test_streams_are_untouched_and_may_join_what_is_loaded(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    static = load(spark, root, "bills").select("offset", f.col("value").alias("bill"))
    stream = spark.readStream.format("holdfast").option("topic", "orders").load(str(root)).join(static, "offset")
    took: list[int] = []

    def land(batch: DataFrame, number: int) -> None:
        again = load(batch.sparkSession, root, "bills")
        took.append(batch.join(again, "offset").count())
        assert path_of(again).path == "native"

    query = stream.writeStream.foreachBatch(land).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination(120)
    assert sum(took) == 180


# -- the same moments -------------------------------------------------------------------------------------


def test_a_load_is_planned_once_and_reads_what_it_saw(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is used, and however much is written or removed beside the segments meanwhile."""
    caplog.set_level(logging.INFO, "holdfast")
    with holdfast.open(tmp_path / "log") as log:
        fill(log, seals=1)
        frame = load(spark, tmp_path / "log")
        chosen = spark.read.format("holdfast").option("topic", "orders").schema("offset long, partition int")
        given = chosen.load(str(tmp_path / "log"))
        fill(log, seals=1)
        assert (frame.count(), given.count()) == (40, 80)  # at the load; at the first action
        fill(log, seals=1)
        assert (frame.where("offset < 50").count(), given.where("offset < 50").count()) == (40, 80)
        assert frame.alias("a").join(given.alias("b"), ["offset", "partition"]).count() == 40
        assert load(spark, tmp_path / "log").count() == 120
    taken = [record for record in caplog.records if getattr(record, "action", "") == "spark_path"]
    assert [record.path for record in taken] == ["native"] * 3  # type: ignore[attr-defined]
    for manifest in (tmp_path / "log").rglob("_manifest"):
        os.rename(manifest, manifest.with_name("gone"))
    assert (frame.count(), given.count()) == (40, 80)


@pytest.mark.skipif(before(4, 1), reason="Spark 4.0 plans anew for each query")
def test_a_frame_that_was_read_through_python_is_not_planned_a_second_time(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody has pinned it but its first plan: it was made before the session was accelerated, say."""
    with holdfast.open(tmp_path / "log") as log:
        fill(log, seals=1)
        given = (
            spark.read.format("holdfast").option("topic", "orders").schema("offset long").load(str(tmp_path / "log"))
        )
        with switched(spark, SETTING, "false"):
            assert given.count() == 40
        fill(log, seals=1)
        assert given.count() == 40
        assert "read through Python before" in path_of(given).reason


def test_a_segment_that_expires_after_planning_is_an_error_and_never_a_shorter_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "log") as log:
        fill(log, partitions=1)
        planned, later = load(spark, tmp_path / "log"), load(spark, tmp_path / "log")
        assert planned.count() == 60
        log.set_retention("orders", records_max=20)
        log.retain()
        with pytest.raises(Exception, match=r"does not exist|FILE_NOT_EXIST"):
            planned.collect()
        with pytest.raises(Exception, match=r"a segment expired before it was read offsets=0\.\.19"):
            later.collect()
        assert path_of(later).path == "format"
        assert collected(load(spark, tmp_path / "log")) == rows("orders", 1, 60, start=40)


def test_what_nobody_holds_any_more_is_forgotten(spark: SparkSession, root: Path) -> None:
    """Thousands of loads of a long session do not pile up."""
    rule: Any = native_rule._known_rule(spark)
    frames = [load(spark, root, "bills") for _ in range(20)]
    assert [frame.count() for frame in frames[:3]] == [60] * 3
    assert all(path_of(frame).path == "native" for frame in frames)
    many = rule.kept()
    frames.clear()
    for _ in range(1000):  # Python tells the JVM in a thread of its own
        gc.collect()
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        if rule.kept() <= many - 15:
            return
    pytest.fail(f"loads are kept before={many} after={rule.kept()}")


# -- the same refusals ------------------------------------------------------------------------------------


def test_a_flipped_bit_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    root = made(tmp_path / "log", partitions=1, seals=1, rows=200)
    (segment,) = root.rglob("*.parquet")
    flipped(segment, payload_page(segment), 0)
    frame = load(spark, root)
    assert path_of(frame).path == "native"
    # As in a session that nobody configured: the scan itself asks for it.
    with (
        switched(spark, "parquet.page.verify-checksum.enabled", "false"),
        pytest.raises(Exception, match="CRC checksum verification failed"),
    ):
        frame.collect()


def refusal(asked: Callable[[], object]) -> str:
    """The kind and text of an error, without the rest of what Spark prints."""
    with pytest.raises(Exception) as raised:
        asked()
    text = str(raised.value)
    return text[text.index("holdfast.errors.") :].strip() if "holdfast.errors." in text else text


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("offset long", {"asOf": '{"orders":{"0":61}}'}),
        ("offset long, price int", {}),
        ("offset long", {"startingOffsets": '{"orders":{"9":1}}'}),
        ("offset long", {"topik": "orders"}),
        ("_offset long, city string, cents long", {"topic": "sales", "schemaMode": "strict"}),
    ],
)
def test_refusals_at_planning_are_those_of_the_source(
    spark: SparkSession, root: Path, schema: str, options: dict[str, str]
) -> None:
    def asked() -> object:
        reading = spark.read.format("holdfast").schema(schema)
        return reading.options(**{"topic": "orders", **belonging(root, options)}).load(str(root)).collect()

    contents = refusal(asked)
    with switched(spark, SETTING, "false"):
        assert refusal(asked) == contents


def test_a_missing_segment_is_the_error_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    root = made(tmp_path / "log", partitions=1)
    sorted(root.rglob("*.parquet"))[1].unlink()
    frame = load(spark, root)
    assert "a segment is missing offsets=20..39" in refusal(frame.select("value").collect)
    assert load(spark, root, columns="offset").count() == 60  # manifests are enough for this, as ever
    assert "a segment is missing" in path_of(frame).reason


# -- the Python source, where it must be ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"verify": "hash"}, "verify=hash is set"),
        ({"native": "false"}, "native=false is set"),
        ({"minPartitions": "4"}, "minPartitions is given"),
        ({"splitBytes": "1000"}, "splitBytes is given"),
    ],
)
def test_what_is_asked_for_is_done_by_the_source(
    spark: SparkSession, root: Path, options: dict[str, str], reason: str
) -> None:
    frame = load(spark, root, **options)
    assert reason in path_of(frame).reason
    assert not is_native(frame)
    assert collected(frame) == rows("orders", 3, 60)


def test_segments_as_rows_are_given_by_the_source(spark: SparkSession, root: Path) -> None:
    frame = load(spark, root, emit="segments")
    assert "segments are requested" in path_of(frame).reason
    assert frame.count() == 9


def test_other_types_than_those_of_the_files_are_made_by_the_source(spark: SparkSession, root: Path) -> None:
    reading = spark.read.format("holdfast").option("topic", "orders")
    for schema in ("offset decimal(20,0)", "offset long NOT NULL", "value string"):
        assert path_of(reading.schema(schema).load(str(root))).reason.endswith("other types than the files"), schema
    other = reading.schema("offset decimal(20,0)").load(str(root))
    assert other.agg(f.sum("offset")).collect()[0][0] == 3 * sum(range(60))


def test_encrypted_and_odd_topics_are_read_by_the_source(spark: SparkSession, tmp_path: Path, keyring: Keyring) -> None:
    keyring.save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "secret", keyring=keyring) as log:
        fill(log, seals=1)
    secret = load(spark, tmp_path / "secret", keyring=f"file:{tmp_path / 'keyring'}")
    assert "records are encrypted" in path_of(secret).reason
    assert collected(secret) == rows("orders", 2, 20)
    with holdfast.open(tmp_path / "odd") as log:
        log.topic("odd", schema=pa.schema({"half": pa.float16(), "fine": pa.int32()})).append({"half": 0.5, "fine": 1})
        log.seal()
    odd = load(spark, tmp_path / "odd", "odd")
    assert "columns=['half']" in path_of(odd).reason
    assert [row.half for row in odd.collect()] == [0.5]
    assert path_of(load(spark, tmp_path / "odd", "odd", columns="fine")).path == "native"


def test_a_setting_of_the_session_turns_it_off(spark: SparkSession, root: Path) -> None:
    frame = load(spark, root)
    with switched(spark, SETTING, "false"):
        assert not is_native(frame.where("offset >= 0"))
        assert path_of(frame).reason == f"{SETTING} is off"
        assert collected(frame) == rows("orders", 3, 60)
    assert is_native(frame.where("offset >= 0"))


def test_the_same_words_must_mean_the_same_place(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Python processes have the directory and the environment that the JVM was started with."""
    monkeypatch.setenv("HOLDFAST_STORE__REGION", "elsewhere")
    frame = load(spark, root)
    assert "HOLDFAST_STORE__" in path_of(frame).reason
    assert frame.count() == 180
    monkeypatch.delenv("HOLDFAST_STORE__REGION")
    asked = native_rule.LoadRequest(schema="", options={}, directory=os.getcwd(), variables={})
    native_rule._check_place(asked, "data")
    monkeypatch.chdir(tmp_path)
    native_rule._check_place(asked, "/srv/data")
    with pytest.raises(Unscannable, match="has changed its directory"):
        native_rule._check_place(asked, "data")


# -- whatever goes wrong ----------------------------------------------------------------------------------


def test_an_error_in_planning_is_logged_and_the_source_answers(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("planted")

    frame = load(spark, root)
    monkeypatch.setattr(native_rule, "native_scan", broken)
    assert collected(frame) == rows("orders", 3, 60)
    assert path_of(frame).reason == "planning failed: TypeError"
    assert "planning failed for Spark's own reader" in caplog.text


def test_a_scan_of_other_columns_is_not_taken(spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule does not trust the plan that it gets."""
    made_scan = native_rule.native_scan

    def crossed(*given: Any) -> Any:
        scan = made_scan(*given)
        return scan._replace(names=scan.names[::-1])

    frame = load(spark, root)
    monkeypatch.setattr(native_rule, "native_scan", crossed)
    assert collected(frame) == rows("orders", 3, 60)
    assert "a column has another type" in path_of(frame).reason


def test_a_rule_that_does_not_compile_leaves_the_session_as_it_was(
    spark: SparkSession, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jvm").mkdir()
    (tmp_path / "jvm" / "NativeRule.java").write_text("public class NativeRule extends NoSuchRule {}")
    monkeypatch.setattr(native_rule, "_rules", [])
    monkeypatch.setattr(parquet_scan, "files", lambda _: tmp_path)
    taken = accelerate(spark)
    assert taken.path == "format"
    assert "does not take the rule" in taken.reason
    assert "the format stays slow" in caplog.text
    frame = load(spark, root)
    assert "not accelerated" in path_of(frame).reason
    assert frame.count() == 180


class Impostor(DataSource):
    """Somebody else's source of the same name."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> str:
        return "offset long"

    def reader(self, schema: Any) -> DataSourceReader:
        return ImpostorReader()


class ImpostorReader(DataSourceReader):
    def read(self, partition: Any) -> Iterator[tuple[int]]:
        yield (42,)


@pytest.mark.skipif(before(4, 1), reason="Spark 4.0 takes no other source of this name")
def test_another_source_of_this_name_is_left_alone(spark: SparkSession, root: Path) -> None:
    session = spark.newSession()
    session.dataSource.register(Impostor)
    given = session.read.format("holdfast").schema("offset long").load(str(root))
    assert [row.offset for row in given.collect()] == [42]
    for frame in (load(session, root), given):
        assert "another source" in path_of(frame).reason


def test_a_frame_of_something_else_has_no_path(spark: SparkSession) -> None:
    with pytest.raises(holdfast.errors.NotFound, match="does not say how it is read"):
        path_of(spark.range(3))


def test_a_remote_session_learns_so() -> None:
    class Remote:
        pass

    assert accelerate(Remote()).reason == "the session is remote: its server decides"  # type: ignore[arg-type]


# -- sessions and threads ---------------------------------------------------------------------------------


def test_new_sessions_have_the_rule_and_it_is_there_once(spark: SparkSession, root: Path) -> None:
    for _ in range(3):
        assert accelerate(spark).path == "native"
    rules = spark._jsparkSession.sessionState().experimentalMethods().extraOptimizations()
    assert sum("NativeRule" in str(rules.apply(at).getClass().getName()) for at in range(rules.size())) == 1
    session = spark.newSession()
    assert is_native(load(session, root))
    accelerate(session)
    assert collected(load(session, root)) == rows("orders", 3, 60)


def test_many_threads_plan_and_ask_at_once(spark: SparkSession, root: Path) -> None:
    """The same DataFrame, and their own; some accelerate meanwhile."""
    shared, found, failed = load(spark, root), [], []

    def ask(number: int) -> None:
        try:
            accelerate(spark)
            own = load(spark, root, "bills")
            found.append((shared.where(f"offset >= {number}").count(), own.count(), path_of(own).path))
        except Exception as error:  # compared below
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert sorted(found) == sorted(((60 - number) * 3, 60, "native") for number in range(4))


def test_sessions_of_ours_are_accelerated(spark: SparkSession) -> None:
    """The one that all tests share was made by `configure`."""
    assert native_rule._known_rule(spark) is not None
    assert pyspark_holdfast.accelerate is accelerate
