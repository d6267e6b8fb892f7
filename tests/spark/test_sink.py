"""`df.write.format("holdfast")` and `writeStream` with a real Spark: every reader reads what was written, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import holdfast
import pyspark_holdfast
from holdfast import Keyring
from tests.spark.batch_limits import LIMIT, batches
from tests.spark.deadly_sink import STEPS, deadly
from tests.spark.test_stream_kill import SLOW_WORKER, TRIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

BATCHES = batches(3)
"""How streams read the source."""
COLUMNS = (
    "id", "cast(id AS string) AS name", "if(id % 3 = 0, null, id) AS maybe", "array(id, null) AS xs",
    "named_struct('a', id, 'b', array(named_struct('c', cast(null AS string)))) AS deep",
    "map('k', id, 'n', null) AS m",
    "timestamp_micros(id * 1000003) AS moment", "timestamp_ntz '2026-01-02 03:04:05.678901' AS local",
    "cast(id AS decimal(38,9)) / 7 AS price", "date_add(date'1969-12-30', cast(id AS int)) AS day",
    "if(id = 5, double('NaN'), id) AS d", "cast(id AS float) AS f", "cast(id AS tinyint) AS t",
    "cast(id AS smallint) AS s", "id % 2 = 0 AS flag", "encode(cast(id AS string), 'utf-8') AS b",
    "interval 1 day * id AS wait",
)  # fmt: skip


def put(frame: DataFrame, root: Path, topic: str = "t", **options: object) -> None:
    frame.write.format("holdfast").mode("append").option("topic", topic).options(**options).save(str(root))


def got(spark: SparkSession, root: Path, topic: str = "t", **options: object) -> DataFrame:
    return spark.read.format("holdfast").option("topic", topic).options(**options).load(str(root))


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.toArrow().to_pylist()))


def refused(call: Callable[[], object], *words: str) -> None:
    """The call fails with these words, and in few lines."""
    with pytest.raises(PySparkException) as raised:
        call()
    for word in words:
        assert word in str(raised.value), str(raised.value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


# -- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_every_reader_reads_what_was_written(spark, root):
    """All types, nested ones, nulls; by the format, natively, by stream, and without Spark; twice the same."""
    frame = spark.range(0, 40, 1, 3).selectExpr(*COLUMNS)
    put(frame, root)
    put(frame, root, segmentBytes=65536, compressionLevel=3)
    names, twice = frame.columns, sorted(rows(frame) * 2)
    found = got(spark, root)
    assert rows(found.select(names)) == twice
    assert [field.dataType.simpleString() for field in found.select(names).schema] == [
        field.dataType.simpleString() for field in frame.schema
    ]
    for native in ("true", "false"):
        assert rows(got(spark, root, native=native).select(names)) == twice
    plain = pyspark_holdfast.read(spark, str(root), "t", columns=[n for n in names if n != "wait"])
    assert plain.select("id", "deep").count() == 80
    table = holdfast.read(str(root), "t").to_arrow()
    assert sorted(table.column("id").to_pylist()) == sorted([*range(40)] * 2)
    assert table.column("price").to_pylist()[0] is not None
    places = Counter((row["_partition"], row["_offset"]) for row in table.select(["_partition", "_offset"]).to_pylist())
    assert max(places.values()) == 1
    assert {partition for partition, _ in places} == {0, 1, 2}
    stream = spark.readStream.format("holdfast").option("topic", "t").load(str(root)).select(names)
    query = stream.writeStream.format("memory").queryName("sunk").trigger(availableNow=True).start()
    query.awaitTermination()
    assert rows(spark.sql("SELECT * FROM sunk")) == twice


def test_times_are_moments_whatever_zone_the_session_has(spark, root):
    """And a column of times becomes the time of the row."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        put(spark.sql("SELECT timestamp_micros(1700000000000001) AS moment, timestamp_micros(7) AS _time"), root)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    row = holdfast.read(str(root), "t").to_arrow().to_pylist()[0]
    assert (row["moment"].timestamp(), row["_time"].microsecond) == (1700000000.000001, 7)


def test_raw_records_go_from_topic_to_topic(spark, root, tmp_path):
    """Key, value, headers, kind and time are the same; offsets are those of the new place."""
    with holdfast.open(tmp_path / "log", store=root.as_uri()) as log:
        for number in range(5):
            log.topic("from").append(b"%d" % number, key=b"k", headers={"h": b"x"}, kind="order", time=number)
        log.seal()
    source = got(spark, root, "from").drop("topic", "partition", "offset")
    put(source, root, "to")
    assert rows(got(spark, root, "to").drop("topic", "partition", "offset")) == rows(source)
    put(source.selectExpr("cast(value AS string) AS value"), root, "to")
    assert [row.value for row in got(spark, root, "to").collect()][5:] == [b"%d" % n for n in range(5)]


def test_columns_grow_and_nothing_else(spark, root):
    """Added ones are null in older rows; a changed one is refused before a task runs."""
    put(spark.range(3).selectExpr("id"), root)
    put(spark.range(3).selectExpr("'x' AS more", "id"), root)
    assert rows(got(spark, root).select("id", "more")) == rows(
        spark.range(3).selectExpr("id", "cast(null AS string) AS more").unionAll(spark.range(3).selectExpr("id", "'x'"))
    )
    refused(lambda: put(spark.range(3).selectExpr("cast(id AS string) AS id"), root), "changed its type", "new topic")
    assert got(spark, root).count() == 6


def test_a_named_batch_is_written_once(spark, root):
    """txnAppId and txnVersion, as Delta has them; also in foreachBatch."""
    for version in (7, 7, 3, 8):
        put(spark.range(10), root, txnAppId="nightly", txnVersion=version)
    assert got(spark, root).count() == 20

    def land(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            put(frame.select("id"), root, txnAppId="each", txnVersion=batch)
        put(frame.select("id"), root)

    query = got_stream(spark, root).writeStream.foreachBatch(land).trigger(availableNow=True).start()
    query.awaitTermination()
    assert got(spark, root).count() == 20 + 2 * 20


def got_stream(spark: SparkSession, root: Path, topic: str = "t", **options: object) -> DataFrame:
    return spark.readStream.format("holdfast").option("topic", topic).options(**options).load(str(root))


def test_what_a_sink_refuses_has_a_remedy_and_writes_nothing(spark, root, tmp_path):
    """Each with a remedy, and nothing is written."""
    frame = spark.range(3)
    writer = frame.write.format("holdfast").option("topic", "t")
    refused(lambda: writer.mode("overwrite").save(str(root)), "never overwritten", 'mode("append")')
    refused(lambda: put(frame, root, txnapid="x"), "did you mean txnAppId?")
    refused(lambda: put(frame.selectExpr("make_ym_interval(1) AS x"), root), "no type for this column", "'x'")
    refused(lambda: put(frame.selectExpr("parse_json('1') AS x"), root), "no type for this column", "cast it")
    refused(lambda: writer.mode("ignore").save(str(root)), "UNSUPPORTED_DATA_SOURCE_SAVE_MODE")
    with holdfast.open(tmp_path / "log") as log:
        log.topic("x").append(b"x")
        log.seal()
        refused(lambda: put(frame, tmp_path / "log"), "log's own directory")
    assert not list(root.rglob("*.parquet"))


def test_a_task_that_fails_leaves_nothing(spark, root):
    """No rows, and no files of tasks that had ended; the topic goes on."""
    put(spark.range(2), root)
    files = set(root.rglob("*.parquet"))
    bad = spark.range(0, 9, 1, 3).selectExpr("if(id = 8, raise_error('no'), id) AS id")
    refused(lambda: put(bad, root), "no")
    # Spark has two cores: what it does not wait for is one task, and `retain` removes that task's file.
    assert len(set(root.rglob("*.parquet")) - files) <= 1
    put(spark.range(2), root)
    assert got(spark, root).count() == 4


def test_without_rows(spark, root):
    """The topic is made, with its columns; with a name, the batch is known."""
    put(spark.createDataFrame([], "a int, b string"), root)
    assert got(spark, root).columns[-2:] == ["a", "b"]
    put(spark.range(0).selectExpr("cast(id AS int) AS a"), root, txnAppId="x", txnVersion=1)
    put(spark.range(1).selectExpr("cast(id AS int) AS a"), root, txnAppId="x", txnVersion=1)
    assert got(spark, root).count() == 0


def test_a_sink_with_keys_writes_what_only_the_keyring_reads(spark, root, tmp_path):
    """Encrypted and signed; readers need the keyring, and so does the sink."""
    keys = tmp_path / "keys"
    Keyring.generate("k").save(keys)
    put(spark.range(5).selectExpr("'swordfish' AS s"), root, keyring=f"file:{keys}")
    refused(lambda: put(spark.range(5).selectExpr("'s' AS s"), root), "has keys", "option keyring")
    assert got(spark, root, keyring=f"file:{keys}").select("s").distinct().collect()[0].s == "swordfish"
    assert not [path for path in root.rglob("*") if path.is_file() and b"swordfish" in path.read_bytes()]


# -- streams ----------------------------------------------------------------------------------------------------


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Path:
    """A root whose topic `in` is three batches for a stream that takes one segment at a time."""
    path = tmp_path / "source"
    for batch in range(3):
        put(spark.range(batch * 10, batch * 10 + 10, 1, 2), path, "in")
    return path


def started(
    spark: SparkSession, source: Path, root: Path, *, name: str = "c", form: str = "holdfast", **trigger: Any
) -> StreamingQuery:
    """A stream from the source into the sink, two segments a batch."""
    frame = got_stream(spark, source, "in", **LIMIT).select("id").repartition(2)
    writer = frame.writeStream.format(form).option("topic", "out").option("checkpointLocation", f"{root}-{name}")
    return writer.trigger(**(trigger or {"availableNow": True})).start(str(root))


def finished(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that came to its end; one that Spark gave up for want of a worker is started again, as a user would."""
    for _ in range(TRIES):
        query = start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            assert SLOW_WORKER in str(error), error
            continue
        return query
    raise AssertionError(f"no query of {TRIES} got its Python workers in time")


def ids(spark: SparkSession, root: Path) -> list[int]:
    return sorted(row.id for row in got(spark, root, "out").select("id").collect())


def test_a_stream_is_written_once(spark, source, root, some):
    """Its marks are its query's id and its batches; batches that Spark forgot, or does again, are known."""
    query = finished(lambda: started(spark, source, root))
    assert ids(spark, root) == list(range(30))
    newest = max((root / "topics/out/_sink").iterdir()).read_text()
    assert f'"writer":"{query.id}"' in newest
    assert f'"marks":{{"{query.id}":{BATCHES - 1}}}' in newest
    objects = set(root.rglob("*"))
    for forgotten in some((1, 2), 1):  # the last commits of its log: they come again, under the same ids
        commits = sorted(Path(f"{root}-c/commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for path in commits[-forgotten:]:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        finished(lambda: started(spark, source, root))
        assert ids(spark, root) == list(range(30))
        assert {path for path in root.rglob("*") if path.is_file()} == {path for path in objects if path.is_file()}
    put(spark.range(30, 40), source, "in")
    finished(lambda: started(spark, source, root))
    assert ids(spark, root) == list(range(40))


def test_batches_without_rows_are_marked(spark, source, root):
    """A query that keeps nothing of a batch: its mark is there, and later rows arrive."""
    frame = got_stream(spark, source, "in", **LIMIT).select("id").where("id >= 20")
    writer = frame.writeStream.format("holdfast").option("topic", "out").option("checkpointLocation", f"{root}-c")
    finished(lambda: writer.trigger(availableNow=True).start(str(root)))
    assert len(list((root / "topics/out/_sink").iterdir())) == BATCHES
    assert ids(spark, root) == list(range(20, 30))


def test_a_stream_that_replaces_is_refused(spark, source, root):
    """Output mode complete; Spark itself refuses update."""
    frame = got_stream(spark, source, "in").groupBy().count()
    writer = frame.writeStream.format("holdfast").outputMode("complete").option("topic", "out")
    with pytest.raises(PySparkException, match="replaces everything"):
        writer.option("checkpointLocation", f"{root}-c").trigger(availableNow=True).start(str(root)).awaitTermination()
    assert not root.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_a_step_of_the_write(spark, source, root, tmp_path, step):
    """The query fails, readers see whole batches, and the query that is started again writes each row once."""
    marker = tmp_path / "died"
    form = f"deadly{STEPS.index(step)}"
    spark.dataSource.register(deadly({step: marker}, form=form))
    query = started(spark, source, root, form=form)
    with pytest.raises(PySparkException):
        query.awaitTermination()
    assert marker.exists()
    seen = [] if not (root / "topics/out/_topic").exists() else ids(spark, root)
    assert seen in ([], list(range(30 // BATCHES)))
    finished(lambda: started(spark, source, root))
    assert ids(spark, root) == list(range(30))


def test_streams_and_batches_into_one_topic_at_once(spark, source, root, is_sampled):
    """Two streams, two batch writers, and a reader that looks all the time: whole batches, and every row is there."""
    put(spark.range(0).select("id"), root, "out")
    batches, stop, seen = (1 if is_sampled else 3), Event(), []

    def write(first: int) -> None:
        spark.createDataFrame([], "x int")  # Spark finds formats of Python only where it is the thread's session
        for batch in range(batches):
            put(spark.range(first + 10 * batch, first + 10 * batch + 10, 1, 2), root, "out")

    def look() -> None:
        while not stop.is_set():
            found = holdfast.read(str(root), "out").to_arrow().column("id").to_pylist()
            tens = Counter(number // 10 for number in found)
            seen.append(len(found))
            assert all(count % 10 == 0 for count in tens.values()), tens

    def stream(name: str) -> None:
        spark.createDataFrame([], "x int")
        finished(lambda: started(spark, source, root, name=name))

    with ThreadPoolExecutor(5) as threads:
        looking = threads.submit(look)
        try:
            streams = [threads.submit(stream, name) for name in ("one", "two")]
            writing = [threads.submit(write, first) for first in (1000, 2000)]
            for work in (*streams, *writing):
                work.result()
        finally:
            stop.set()
        looking.result()
    written = 10 * batches
    expected = [*range(30), *range(30), *range(1000, 1000 + written), *range(2000, 2000 + written)]
    assert ids(spark, root) == sorted(expected)
    assert seen == sorted(seen)
