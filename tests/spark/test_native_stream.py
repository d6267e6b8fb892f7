"""The streaming twin of the fast path: every record once, in batches that keep their limits, on either path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Keyring
from holdfast.errors import Invalid, NotFound
from pyspark_holdfast import marks_of, path_of, read_stream
from tests.spark.logs import START_US, Row, collected, fill, made, record, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_holdfast import NativeStream

pytestmark = pytest.mark.spark


class Landing:
    """What a stream brought, batch by batch; a batch that comes again replaces itself."""

    def __init__(self, checkpoint: Path) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.paths: list[str] = []
        self.checkpoint = checkpoint

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.paths.append(path_of(batch).path)
        self.batches[number] = collected(batch)

    @property
    def rows(self) -> list[Row]:
        """All rows, as often as they came."""
        return sorted((row for batch in self.batches.values() for row in batch), key=lambda row: row[:3])

    def drain(self, stream: NativeStream) -> None:
        """Take what is available now."""
        run(stream, self, self.checkpoint)


def run(stream: NativeStream, function: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    writer = stream.foreach_batch(function).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of two partitions each, three segments of 20 records in each partition."""
    path = tmp_path_factory.mktemp("stream") / "log"
    with holdfast.open(path) as log:
        fill(log, "orders")
        fill(log, "bills")
    return path


# -- every record once ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "batches", "most"),
    [
        ({}, 1, 120),
        ({"maxSegmentsPerTrigger": 2}, 3, 40),
        ({"maxOffsetsPerTrigger": 34}, 4, 34),
        ({"maxBytesPerTrigger": 1}, 6, 20),
    ],
)
def test_all_records_come_once_and_limits_hold(
    spark: SparkSession, root: Path, landing: Landing, options: dict[str, Any], batches: int, most: int
) -> None:
    """A limit in offsets cuts segments; bytes and segments take them whole, at least one."""
    stream = read_stream(spark, root, "orders", **options)
    assert stream.path.path == "native"
    landing.drain(stream)
    assert landing.rows == rows("orders", 2, 60)
    assert len(landing.batches) == batches
    assert max(map(len, landing.batches.values())) <= most
    assert set(landing.paths) == {"native"}


@pytest.mark.parametrize("verify", ["", "hash"], ids=["native", "format"])
@pytest.mark.parametrize("options", [{}, {"maxBytesPerTrigger": 1, "maxSegmentsPerTrigger": 1}], ids=["rows", "all"])
def test_a_segment_three_times_as_large_as_the_limit_never_sticks(
    spark: SparkSession, tmp_path: Path, landing: Landing, verify: str, options: dict[str, int]
) -> None:
    """It comes in pieces, however many limits there are, and so does what follows it."""
    with holdfast.open(tmp_path / "log") as log:
        fill(log, partitions=1, seals=1, rows=22)
        log.topic("orders").append_batch([record(22, 0)])
        log.seal()
    given = {"maxOffsetsPerTrigger": 7, **options, **({"verify": verify} if verify else {})}
    landing.drain(read_stream(spark, tmp_path / "log", "orders", **given))
    sizes = [len(landing.batches[number]) for number in sorted(landing.batches)]
    assert sizes == ([7, 7, 7, 2] if not options else [7, 7, 7, 1, 1])
    assert landing.rows == rows("orders", 1, 23)
    assert set(landing.paths) == {"format" if verify else "native"}


def test_batches_are_those_of_the_formats_stream(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """The same limits give the same batches, no matter what reads their rows."""
    native, by_format = Landing(tmp_path / "native"), Landing(tmp_path / "format")
    native.drain(read_stream(spark, root, "orders", maxOffsetsPerTrigger=50))
    by_format.drain(read_stream(spark, root, "orders", maxOffsetsPerTrigger=50, verify="hash"))
    assert (set(native.paths), set(by_format.paths)) == ({"native"}, {"format"})
    assert native.batches == by_format.batches


def test_several_topics_come_together(spark: SparkSession, root: Path, landing: Landing) -> None:
    landing.drain(read_stream(spark, root, ["orders", "bills"], maxSegmentsPerTrigger=5))
    assert landing.rows == rows("bills", 2, 60) + rows("orders", 2, 60)


def test_a_query_goes_on_where_it_was(spark: SparkSession, tmp_path: Path, landing: Landing) -> None:
    """Nothing twice, nothing left out, new partitions included."""
    with holdfast.open(tmp_path / "log") as log:
        fill(log, seals=1)
        landing.drain(read_stream(spark, tmp_path / "log", "orders"))
        landing.drain(read_stream(spark, tmp_path / "log", "orders"))
        assert list(landing.batches) == [0]
        fill(log, "orders2", partitions=1, seals=1)
        landing.drain(read_stream(spark, tmp_path / "log", topicPattern="orders.*"))
    assert landing.rows == rows("orders", 2, 20) + rows("orders2", 1, 20)


def test_a_query_may_change_its_path(spark: SparkSession, root: Path, landing: Landing) -> None:
    """The checkpoint of one path is a checkpoint of the other."""

    class Enough(Exception):
        pass

    def twice(batch: DataFrame, number: int) -> None:
        if number == 2:
            raise Enough
        landing(batch, number)

    with pytest.raises(Exception, match="Enough"):
        run(read_stream(spark, root, "orders", maxOffsetsPerTrigger=34), twice, landing.checkpoint)
    landing.drain(read_stream(spark, root, "orders", maxOffsetsPerTrigger=34, verify="hash"))
    assert landing.paths == ["native", "native", "format", "format"]
    assert landing.rows == rows("orders", 2, 60)


def test_a_batch_that_failed_comes_again(spark: SparkSession, root: Path, landing: Landing) -> None:
    """After its rows were taken, too: by number it is the same batch."""
    seen: list[int] = []

    def failing(batch: DataFrame, number: int) -> None:
        landing(batch, number)
        seen.append(number)
        if seen == [0, 1]:
            raise RuntimeError("no commit")

    stream = read_stream(spark, root, "orders", maxSegmentsPerTrigger=2)
    with pytest.raises(Exception, match="no commit"):
        run(stream, failing, landing.checkpoint)
    run(stream, failing, landing.checkpoint)
    assert seen == [0, 1, 1, 2]
    assert landing.rows == rows("orders", 2, 60)


# -- options ----------------------------------------------------------------------------------------------


def test_offsets_and_times_say_what_comes(spark: SparkSession, root: Path, landing: Landing) -> None:
    since = START_US + 15_000_000
    landing.drain(
        read_stream(
            spark,
            root,
            "orders",
            startingOffsets='{"orders":{"0":27,"1":-2}}',
            startingTimestamp=since // 1000,
            maxSegmentsPerTrigger=2,
        )
    )
    expected = [row for row in rows("orders", 2, 60) if row[3] >= since and (row[1] == 1 or row[2] >= 27)]
    assert landing.rows == expected


def test_a_batch_without_records_in_time_is_empty(spark: SparkSession, root: Path, landing: Landing) -> None:
    landing.drain(read_stream(spark, root, "orders", startingTimestamp="2999-01-01T00:00:00Z"))
    assert landing.batches == {0: []}


def test_columns_are_those_that_are_asked_for(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    schemas = []
    stream = read_stream(spark, root, "orders", columns=["value", "partition"])
    run(stream, lambda batch, _: schemas.append(batch.schema.simpleString()), tmp_path / "checkpoint")
    assert schemas == [stream.schema.simpleString()] == ["struct<value:binary,partition:int>"]


@pytest.mark.parametrize("options", [{}, {"verify": "hash"}])
def test_a_batch_carries_no_marks(spark: SparkSession, root: Path, tmp_path: Path, options: dict[str, str]) -> None:
    """Those of the moment at which the query was made would be wrong for every batch."""
    met: list[type[Exception]] = []

    def ask(batch: DataFrame, number: int) -> None:
        with pytest.raises(NotFound):
            marks_of(batch)
        met.append(NotFound)

    run(read_stream(spark, root, "orders", **options), ask, tmp_path / "checkpoint")
    assert met == [NotFound]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"includeTail": True}, "no meaning in a stream"),
        ({"endingOffsets": '{"orders":{"0":5}}'}, "a stream has no end: endingOffsets"),
        ({"topik": ""}, "no option"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read_stream(spark, root, "orders", **options)


# -- what changes on the way ------------------------------------------------------------------------------


def test_columns_that_come_later_stop_a_query_that_goes_on_with_them(spark: SparkSession, tmp_path: Path) -> None:
    """Started again, it has them; and one with chosen columns never stops."""
    schema = pa.schema({"n": pa.int64()})
    found: list[tuple[Any, ...]] = []

    def take(batch: DataFrame, number: int) -> None:
        found.extend(map(tuple, batch.drop("_topic", "_partition", "_time").collect()))

    with holdfast.open(tmp_path / "log") as log:
        log.topic("sales", schema=schema).append([{"n": 1}])
        log.seal()
        stream = read_stream(spark, tmp_path / "log", "sales")
        chosen = read_stream(spark, tmp_path / "log", "sales", columns="_offset,n")
        run(stream, take, tmp_path / "checkpoint")
        log.topic("sales", schema=schema.append(pa.field("m", pa.int64()))).append([{"n": 2, "m": 3}])
        log.seal()
        with pytest.raises(Exception, match="has grown since this read began"):
            run(stream, take, tmp_path / "checkpoint")
        assert found == [(0, 1)]
        run(read_stream(spark, tmp_path / "log", "sales"), take, tmp_path / "checkpoint")
        assert found == [(0, 1), (1, 2, 3)]
        run(chosen, take, tmp_path / "another")
        assert sorted(found[2:]) == [(0, 1), (1, 2)]


def test_a_missing_segment_stops_a_query_and_is_named(spark: SparkSession, tmp_path: Path, landing: Landing) -> None:
    root = made(tmp_path / "log", partitions=1)
    lost = sorted((root / "segments/topics/orders/0/segments").glob("*.parquet"))[1]
    lost.unlink()
    with pytest.raises(Exception, match=f"a segment is missing.*{lost.name}"):
        landing.drain(read_stream(spark, root, "orders", maxSegmentsPerTrigger=1))
    assert landing.rows == rows("orders", 1, 20)


def test_encrypted_records_come_through_the_format(
    spark: SparkSession, tmp_path: Path, keyring: Keyring, landing: Landing, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a query began before there were any; the log says so."""
    keyring.save(tmp_path / "keyring")
    options: dict[str, Any] = {"keyring": f"file:{tmp_path / 'keyring'}", "maxOffsetsPerTrigger": 30}
    with holdfast.open(tmp_path / "log", keyring=keyring) as log:
        fill(log, "other", partitions=1, seals=1, rows=1)
        early = read_stream(spark, tmp_path / "log", topicPattern="orders", **options)
        assert early.path.path == "native"
        fill(log, seals=2)
    with caplog.at_level(logging.INFO, "holdfast"):
        landing.drain(early)
    assert landing.rows == rows("orders", 2, 40)
    assert set(landing.paths) == {"format"}
    assert "records are encrypted topics=orders" in caplog.text
    late = read_stream(spark, tmp_path / "log", "orders", **options)
    assert late.path == ("format", "records are encrypted topics=orders")
    landing.drain(late)
    assert landing.rows == rows("orders", 2, 40)
