"""The format in batch: found without registration, right rows whatever else reads them, marks, clear errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import col, from_json

import holdfast
import pyspark_holdfast
from holdfast import Keyring
from holdfast.errors import Unavailable
from pyspark_holdfast import DefaultSource
from tests.spark.logs import START_US, as_of, collected, fill, made, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(autouse=True)
def through_python(spark: SparkSession) -> Iterator[None]:
    """The source itself is on trial here; `test_native_rule` holds Spark's own reader to the same answers."""
    spark.conf.set("spark.holdfast.native", "false")
    yield
    spark.conf.unset("spark.holdfast.native")


@pytest.fixture(params=["pushing", "not pushing"])
def either(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """Spark with filters pushed down, and without, which is its default."""
    spark.conf.set(PUSH_DOWN, str(request.param == "pushing").lower())
    yield spark
    spark.conf.unset(PUSH_DOWN)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two partitions, three segments and 60 records each."""
    return made(tmp_path_factory.mktemp("source") / "log")


def load(spark: SparkSession, root: Path | str, topic: str = "orders", **options: Any) -> DataFrame:
    return spark.read.format("holdfast").options(topic=topic, **options).load(str(root))


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


# -- finding it -------------------------------------------------------------------------------------------


def test_the_format_is_found_without_registration_and_in_new_sessions(spark: SparkSession, root: Path) -> None:
    assert load(spark, root).count() == 120
    assert load(spark.newSession(), root).count() == 120


def test_importing_costs_nothing_and_never_raises(tmp_path: Path) -> None:
    """Without pyspark, pyarrow or anything else: Spark imports every pyspark_* module that it sees."""
    code = (
        "import sys, pyspark_holdfast; assert not hasattr(pyspark_holdfast, 'DefaultSource');"
        "assert 'pyarrow' not in sys.modules and 'holdfast' not in sys.modules"
    )
    source = str(Path(pyspark_holdfast.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_it_can_be_registered_by_hand(spark: SparkSession, root: Path) -> None:
    """For the day on which another package breaks the search."""
    session = spark.newSession()
    pyspark_holdfast.register(session)
    assert load(session, root).count() == 120


# -- rows and columns -------------------------------------------------------------------------------------


def test_every_record_arrives_as_it_was(either: SparkSession, root: Path) -> None:
    frame = load(either, root)
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers", "kind"]
    assert collected(frame) == rows("orders", 2, 60)


@pytest.mark.parametrize("spelled", ["plain", "file:", "file://", "root of the store"])
def test_a_root_may_be_spelled_in_many_ways(spark: SparkSession, root: Path, spelled: str) -> None:
    """The log's directory, its own `segments/`, with and without a scheme."""
    places = {"plain": root, "file:": f"file:{root}", "file://": f"file://{root}"}
    assert load(spark, places.get(spelled, root / "segments"), columns="").count() == 120


def test_columns_are_chosen_by_option_and_by_schema(spark: SparkSession, root: Path) -> None:
    """In the order that was asked for; a schema may also ask for another type that holds the values."""
    assert load(spark, root, columns="value,offset").columns == ["value", "offset"]
    frame = spark.read.format("holdfast").option("topic", "orders").schema("offset decimal(20,0), key binary")
    found = frame.load(str(root)).toArrow().to_pylist()
    assert len(found) == 120
    assert {int(each["offset"]) for each in found} == set(range(60))


def test_what_needs_no_file_opens_none(spark: SparkSession, tmp_path: Path) -> None:
    """Counts, offsets, partitions and topics are in the manifest; the files may be gone."""
    path = made(tmp_path / "log")
    for file in path.rglob("*.parquet"):
        file.unlink()
    assert load(spark, path, columns="").count() == 120
    found = load(spark, path, columns="offset,partition,topic").where("offset >= 58").collect()
    assert sorted(map(tuple, found)) == [(58, 0, "orders"), (58, 1, "orders"), (59, 0, "orders"), (59, 1, "orders")]
    with pytest.raises(Exception, match="a segment is missing"):
        load(spark, path, columns="value").collect()


def test_typed_topics_have_their_own_columns(either: SparkSession, tmp_path: Path) -> None:
    """All versions of a schema are read as the newest one."""
    with holdfast.open(tmp_path / "log") as log:
        old = pa.schema([("symbol", pa.string()), ("price", pa.decimal128(12, 3)), ("size", pa.uint32())])
        log.topic("trades", schema=old).append([{"symbol": "A", "price": None, "size": 2**32 - 1}])
        log.seal()
        new = pa.schema([*old, ("tags", pa.list_(pa.string()))])
        log.topic("trades", schema=new).append([{"symbol": None, "price": None, "size": 0, "tags": ["x", None]}])
        log.seal()
    frame = load(either, tmp_path / "log", "trades")
    assert frame.columns == ["_topic", "_partition", "_offset", "_time", "symbol", "price", "size", "tags"]
    assert dict(frame.dtypes)["size"] == "bigint"
    found = frame.orderBy("_offset").drop("_time").toArrow().to_pylist()
    assert [tuple(each.values()) for each in found] == [
        ("trades", 0, 0, "A", None, 2**32 - 1, None),
        ("trades", 0, 1, None, None, 0, ["x", None]),
    ]
    with pytest.raises(Exception, match="2 versions of their schema"):
        load(either, tmp_path / "log", "trades", schemaMode="strict").collect()


def test_every_type_that_can_be_stored_arrives_or_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """Types that Spark lacks become what holds all their values."""
    kinds = {
        "u8": (pa.uint8(), 255, 255), "u16": (pa.uint16(), 65_535, 65_535), "u64": (pa.uint64(), 2**64 - 1, 2**64 - 1),
        "half": (pa.float16(), 0.5, 0.5), "day": (pa.time64("us"), None, None), "span": (pa.duration("ms"), None, None),
        "fixed": (pa.binary(2), b"ab", b"ab"), "listed": (pa.list_(pa.int8(), 2), [1, 2], [1, 2]),
        "mapped": (pa.map_(pa.string(), pa.int16()), [("a", 1)], [("a", 1)]),
        "inner": (pa.struct([pa.field("x", pa.large_string())]), {"x": "y"}, {"x": "y"}),
        "nanos": (pa.timestamp("ns", "UTC"), None, None), "small": (pa.decimal32(5, 2), None, None),
    }  # fmt: skip
    schema = pa.schema([pa.field(name, kind) for name, (kind, _, _) in kinds.items()])
    with holdfast.open(tmp_path / "log") as log:
        log.topic("odd", schema=schema).append(
            pa.Table.from_pylist([{name: value for name, (_, value, _) in kinds.items()}], schema)
        )
        log.topic("huge", schema=pa.schema([("wide", pa.decimal256(60, 0)), ("n", pa.int8())])).append([{"n": 1}])
        log.seal()
    (found,) = load(spark, tmp_path / "log", "odd").toArrow().to_pylist()
    for name, (_, _, expected) in kinds.items():
        assert found[name] == expected, name
    with pytest.raises(Exception, match="no type for column 'wide'"):
        load(spark, tmp_path / "log", "huge")
    assert load(spark, tmp_path / "log", "huge", columns="n").collect()[0].n == 1


def test_several_topics_and_patterns_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        for name in ("orders-eu", "orders-us", "other"):
            fill(log, name, partitions=1, seals=1, rows=5)
        log.topic("typed", schema=pa.schema([("a", pa.int8())])).append([{"a": 1}])
        log.seal()
    both = rows("orders-eu", 1, 5) + rows("orders-us", 1, 5)
    assert collected(load(spark, tmp_path / "log", "orders-us, orders-eu")) == both
    pattern = spark.read.format("holdfast").option("topicPattern", "orders-.*").load(str(tmp_path / "log"))
    assert collected(pattern) == both
    assert collected(pattern.where("topic = 'orders-us'")) == rows("orders-us", 1, 5)
    with pytest.raises(Exception, match="different columns"):
        load(spark, tmp_path / "log", "other,typed")


# -- filters ----------------------------------------------------------------------------------------------

FILTERS = [
    "offset = 17",
    "offset between 19 and 21",
    "offset > 57 or offset < 2",
    "offset in (3, 40, 59)",
    "partition = 1",
    "partition in (0, 7)",
    "topic = 'orders'",
    "topic = 'nothing'",
    "timestamp >= '2026-01-01 00:00:30' and timestamp < '2026-01-01 00:00:35'",
    "timestamp = '2026-01-01 00:00:30.000001'",
    "offset >= 10 and partition = 0 and key is not null and length(value) > 3",
    "offset <=> 5",
    "offset is null",
    "not (offset < 50)",
    "offset = 1 and offset = 2",
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_gives_what_it_gives_on_a_plain_table(either: SparkSession, root: Path, condition: str) -> None:
    """Whether Spark or the source applies it."""
    plain = either.createDataFrame(load(either, root).toArrow())
    assert collected(load(either, root).where(condition)) == collected(plain.where(condition))


def test_what_one_query_leaves_out_is_there_for_all_others(either: SparkSession, root: Path) -> None:
    """Spark plans a relation once for all that is made of it: no query may have a part in that plan."""
    frame = load(either, root)
    assert frame.where("offset < 10").count() == 20
    assert frame.count() == 120
    both = frame.where("offset < 5").union(frame.where("offset >= 55 and partition = 1"))
    assert both.count() == 15
    joined = frame.where("offset < 3").alias("a").join(frame.where("offset > 1").alias("b"), ["partition", "offset"])
    assert joined.count() == 2
    frame.createOrReplaceTempView("leaking")
    counts = "SELECT (SELECT count(*) FROM leaking WHERE offset = 7), (SELECT count(*) FROM leaking), count(*)"
    assert tuple(either.sql(f"{counts} FROM leaking WHERE partition = 1").collect()[0]) == (2, 120, 60)
    either.sql(f"CREATE TABLE leaking_table USING holdfast OPTIONS (root '{root}', topic 'orders')")
    try:
        twice = "SELECT count(*) n FROM leaking_table WHERE offset < 10 UNION ALL SELECT count(*) FROM leaking_table"
        assert sorted(row.n for row in either.sql(twice).collect()) == [20, 120]
    finally:
        either.sql("DROP TABLE leaking_table")


def test_no_reader_ever_offers_to_take_filters(either: SparkSession, root: Path) -> None:
    """Whatever the session says, and also in the process that Spark starts to push them."""
    from pyspark.sql.datasource import DataSourceReader

    source = DefaultSource({"path": str(root), "topic": "orders"})
    for process in ("any", "pushing"):
        with pytest.MonkeyPatch.context() as patch:
            if process == "pushing":
                patch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
            reader = source.reader(source.schema())
        assert getattr(type(reader), "pushFilters", None) is getattr(DataSourceReader, "pushFilters", None)
    assert "Filter (" in plan_of(load(either, root).where("offset < 10"))


def test_a_schema_that_carries_the_marks_of_another_read_is_refused(spark: SparkSession, root: Path) -> None:
    """A read would be labelled as what it is not; names and types are welcome."""
    schema = load(spark, root, endingOffsets='{"orders":{"0":5,"1":5}}').schema
    given = spark.read.format("holdfast").option("topic", "orders")
    with pytest.raises(Exception, match="carries the marks of another read"):
        given.schema(schema).load(str(root)).count()
    assert given.schema(schema.toDDL()).load(str(root)).count() == 120


def test_times_and_offsets_by_option(spark: SparkSession, root: Path) -> None:
    """Starting inclusive, ending exclusive; in milliseconds as with Kafka, or as text."""
    frame = load(
        spark, root, startingTimestamp=str((START_US + 20_000_000) // 1000), endingTimestamp="2026-01-01T00:00:30Z"
    )
    assert collected(frame) == rows("orders", 2, 30, 20)
    frame = load(spark, root, startingOffsets='{"orders":{"0":58,"1":-1}}', endingOffsets='{"orders":{"0":59}}')
    assert [each[1:3] for each in collected(frame)] == [(0, 58)]


# -- marks ------------------------------------------------------------------------------------------------


def test_a_frame_reads_the_same_however_much_is_written_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """It is pinned to the marks of its load; a new load sees more, `asOf` sees the same."""
    with holdfast.open(tmp_path / "log") as log:
        fill(log, seals=1)
        frame = load(spark, tmp_path / "log")
        marks = pyspark_holdfast.marks_of(frame)
        assert marks == f'{{"{log.id}":{{"orders":{{"0":[0,20],"1":[0,20]}}}}}}'
        assert frame.count() == 40
        fill(log, seals=1)
        log.topic("orders").append(b"not sealed")
        assert frame.count() == 40
        assert load(spark, tmp_path / "log").count() == 80
        assert load(spark, tmp_path / "log", asOf=marks).count() == 40
        with pytest.raises(Exception, match="not settled yet"):
            load(spark, tmp_path / "log", asOf=as_of(tmp_path / "log", '{"orders":{"0":41}}'))
        settled = pyspark_holdfast.settled_marks(str(tmp_path / "log"), topic="orders")
        assert settled == f'{{"{log.id}":{{"orders":{{"0":[0,40],"1":[0,40]}}}}}}'


def test_a_table_reads_what_is_settled_at_that_moment(spark: SparkSession, tmp_path: Path) -> None:
    """It outlives its options, which Spark forgets, and is not pinned."""
    with holdfast.open(tmp_path / "log") as log:
        fill(log, seals=1)
        spark.sql(f"CREATE TABLE orders_now USING holdfast OPTIONS (root '{tmp_path}/log', topic 'orders')")
        spark.sql(f"CREATE TABLE orders_path USING holdfast OPTIONS (topic 'orders') LOCATION '{tmp_path}/log'")
        try:
            assert spark.table("orders_now").count() == 40
            fill(log, seals=1)
            counted = spark.sql("SELECT count(*) FROM orders_now WHERE offset >= 20").first()
            assert counted is not None
            assert counted[0] == 40
            assert collected(spark.table("orders_path")) == collected(load(spark, tmp_path / "log"))
        finally:
            spark.sql("DROP TABLE orders_now")
            spark.sql("DROP TABLE orders_path")
    view = f"CREATE TEMPORARY VIEW seen USING holdfast OPTIONS (path '{tmp_path}/log', topic 'orders')"
    spark.sql(view)
    assert spark.table("seen").count() == 80


# -- errors and secrets -----------------------------------------------------------------------------------


def test_options_that_are_wrong_are_all_named_and_unknown_ones_refused(spark: SparkSession, root: Path) -> None:
    with pytest.raises(Exception, match="did you mean startingOffsets") as caught:
        load(spark, root, startingOffset="earliest", verify="maybe", minPartitions="0").collect()
    assert "verify must be one of" in str(caught.value)
    assert "minPartitions must be above zero" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "topic", "message"),
    [("nowhere", "orders", "there is no log at this root"), ("log", "ordres", "there are: orders")],
)
def test_what_is_not_there_is_reported(spark: SparkSession, root: Path, place: str, topic: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, root.parent / place, topic).collect()


def test_an_encrypted_topic_needs_its_key_by_reference(spark: SparkSession, tmp_path: Path) -> None:
    """With it, it reads as any other; without it, it says so, or gives its encrypted blocks."""
    Keyring.generate("k7").save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "log", keyring=Keyring.from_file(tmp_path / "keyring")) as log:
        fill(log)
    frame = load(spark, tmp_path / "log", keyring=f"file:{tmp_path}/keyring", minPartitions="4")
    assert collected(frame) == rows("orders", 2, 60)
    assert load(spark, tmp_path / "log", columns="").count() == 120
    with pytest.raises(AnalysisException, match="is encrypted, and there is no key key_id=k7") as caught:
        load(spark, tmp_path / "log").collect()
    assert len(str(caught.value).splitlines()) < 10  # said once, while planning, and not by every task
    Keyring.generate("k8").save(tmp_path / "newer")
    with pytest.raises(AnalysisException, match="the keyring has no key 'k7'"):
        load(spark, tmp_path / "log", keyring=f"file:{tmp_path}/newer").collect()
    with pytest.raises(AnalysisException, match="no keyring file"):
        load(spark, tmp_path / "log", keyring=f"file:{tmp_path}/nothing").collect()
    blocks = load(spark, tmp_path / "log", encrypted="sealed")
    assert blocks.columns == ["topic", "partition", "first_offset", "rows", "time_min", "time_max", "block"]
    assert sum(each.rows for each in blocks.collect()) == 120
    assert not any(b"0/1" in bytes(each.block) for each in blocks.collect())
    Keyring.generate("k7").save(tmp_path / "other")
    with pytest.raises(Exception, match="did not sign this root"):
        load(spark, tmp_path / "log", keyring=f"file:{tmp_path}/other").collect()


def test_a_store_that_does_not_answer_is_named(spark: SparkSession) -> None:
    """By the format and by the fast path; nobody sees the options of a query in its error."""
    options = {"endpoint": "http://127.0.0.1:9", "region": "here", "retries": "0", "timeoutMs": "500"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "unknown")
        with pytest.raises(Unavailable, match=r"root=s3://bucket/prefix endpoint=http://127\.0\.0\.1:9"):
            pyspark_holdfast.read(spark, "s3://bucket/prefix", "orders", **options)
        with pytest.raises(Unavailable, match=r"root=s3://bucket/prefix endpoint=http://127\.0\.0\.1:9"):
            DefaultSource({"path": "s3://bucket/prefix", "topic": "orders", **options}).schema()


def test_a_table_takes_its_options_when_it_is_created_and_never_again(spark: SparkSession, root: Path) -> None:
    """What would be passed over is refused."""
    spark.sql(f"CREATE TABLE marked USING holdfast OPTIONS (root '{root}', topic 'orders')")
    spark.sql(f"CREATE TABLE listed (offset LONG) USING holdfast OPTIONS (root '{root}', topic 'orders')")
    try:
        for asked in (
            lambda: spark.sql("SELECT * FROM marked WITH ('startingOffsets' = 'latest')"),
            lambda: spark.read.option("startingOffsets", "latest").table("marked"),
        ):
            with pytest.raises(AnalysisException, match="a table takes no options in a query"):
                asked().collect()
        with pytest.raises(AnalysisException, match="leave the list of columns out of CREATE TABLE"):
            spark.table("listed").collect()
    finally:
        spark.sql("DROP TABLE marked")
        spark.sql("DROP TABLE listed")


def test_a_closed_pipe_is_no_news(root: Path) -> None:
    """`limit` and `show` take what they need, and nobody prints a trace."""
    code = (
        "import pyspark_holdfast; spark = pyspark_holdfast.session('local[1]');"
        f"frame = spark.read.format('holdfast').option('topic', 'orders').load({str(root)!r});"
        "print([len(frame.limit(1).collect()) for _ in range(5)]); frame.show(1); spark.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "[1, 1, 1, 1, 1]" in done.stdout, done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_secret_in_the_wrong_place_is_refused_and_not_repeated(spark: SparkSession, root: Path) -> None:
    """Neither in the error nor in a plan."""
    secret = "k1:" + "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlYw=="
    for options in ({"keyring": secret}, {"credentials": secret}, {"timeoutMs": secret}):
        with pytest.raises(Exception, match=r"must be|must") as caught:
            load(spark, root, **options).collect()
        assert secret not in str(caught.value)


def test_plans_show_no_options(spark: SparkSession, tmp_path: Path) -> None:
    """References are no secrets, and yet nobody reads them in a plan."""
    Keyring.generate().save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "log", keyring=Keyring.from_file(tmp_path / "keyring")) as log:
        fill(log, seals=1)
    frame = load(spark, tmp_path / "log", keyring=f"file:{tmp_path}/keyring").where("offset > 3")
    frame.collect()
    plan = str(frame._jdf.queryExecution().toString())
    assert str(tmp_path / "keyring") not in plan
    assert (tmp_path / "keyring").read_text().partition(":")[2].strip() not in plan


def test_a_reader_can_travel_and_read_twice(root: Path) -> None:
    """Speculative duplicates of a task read the same rows; what travels holds nothing open."""
    import pickle

    source = DefaultSource({"path": str(root), "topic": "orders"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    twin = pickle.loads(pickle.dumps(reader))
    one, other = (pa.Table.from_batches(each.read(task)) for each in (twin, twin))
    assert one.equals(other)
    assert one.num_rows == 120


def test_names_of_the_module_stay_what_they_are(spark: SparkSession) -> None:
    """No submodule takes the place of a function, whatever was imported."""
    import importlib
    import pkgutil

    for module in pkgutil.iter_modules(pyspark_holdfast.__path__):
        importlib.import_module(f"pyspark_holdfast.{module.name}")
        assert module.name not in pyspark_holdfast.__all__
    assert callable(pyspark_holdfast.session)


def test_values_of_a_topic_of_json_are_a_struct_by_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    """The recipe of the how-to: payloads are the bytes of JSON, with nothing around them."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("events", codec="json").append_batch([{"id": 2**53 + 1, "at": {"x": "ä"}}, {"id": 2}])
        log.seal()
    parsed = from_json(col("value").cast("string"), "id BIGINT, at STRUCT<x: STRING>")
    found = load(spark, tmp_path / "log", "events").select("offset", parsed.alias("value")).orderBy("offset").collect()
    assert [(row.value.id, row.value.at and row.value.at.x) for row in found] == [(2**53 + 1, "ä"), (2, None)]
