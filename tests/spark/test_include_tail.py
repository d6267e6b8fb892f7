"""includeTail in Spark: a batch read goes on into commit batches, each offset once, whatever is settled meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Keyring, Log, Record, Settings
from holdfast.errors import Invalid
from holdfast.testing.manual_clock import ManualClock
from pyspark_holdfast import marks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PUSHING = "spark.sql.python.filterPushdown.enabled"
SETTINGS = {"segments": {"seal_on_close": False, "rows_max": 10}}

Row = tuple[int, int, bytes]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_shipped(tmp_path: Path, store: Path) -> Iterator[Callable[..., Log]]:
    """Open a log that ships to `store`."""
    opened: list[Log] = []

    def open_one(**options: Any) -> Log:
        settings = Settings.from_mapping({**SETTINGS, "store": {"url": str(store)}})
        opened.append(holdfast.open(tmp_path / "log", settings=settings, **options))
        return opened[-1]

    yield open_one
    for log in opened:
        log.close()


def append(log: Log, model: list[Row], partition: int, count: int) -> None:
    """One commit, on the store when this returns; record number n has the time n seconds."""
    first = sum(row[0] == partition for row in model)
    values = [b"%d:%d" % (partition, first + i) for i in range(count)]
    records = [Record(value, time=(first + i) * 1_000_000) for i, value in enumerate(values)]
    log.topic("orders", partitions=2).append_batch(records, partition=partition, durability="shipped")
    model += [(partition, first + i, value) for i, value in enumerate(values)]


@pytest.fixture
def shipped(open_shipped: Callable[..., Log]) -> tuple[Log, list[Row]]:
    """Ten settled records, and five more of each partition that are not."""
    log, model = open_shipped(), []
    append(log, model, 0, 10)
    log.seal()
    log.ship(20)
    for partition, count in ((0, 2), (1, 4), (0, 3), (1, 1)):
        append(log, model, partition, count)
    return log, model


def load(spark: SparkSession, store: Path, topic: str = "orders", **options: Any) -> DataFrame:
    return spark.read.format("holdfast").options(topic=topic, includeTail="true", **options).load(str(store))


def rows(frame: DataFrame) -> list[Row]:
    return sorted((row.partition, row.offset, bytes(row.value)) for row in frame.collect())


@contextmanager
def pushing(spark: SparkSession, is_on: bool) -> Iterator[None]:
    spark.conf.set(PUSHING, str(is_on).lower())
    try:
        yield
    finally:
        spark.conf.unset(PUSHING)


def test_a_batch_read_goes_on_into_the_tail(spark, shipped, store):
    _, model = shipped
    frame = load(spark, store)
    assert rows(frame) == sorted(model)
    assert frame.count() == 20
    assert load(spark, store, columns="").count() == 20


def test_marks_are_the_settled_ones_and_the_tail_is_of_the_moment(spark, shipped, store):
    log, model = shipped
    frame = load(spark, store)
    assert marks_of(frame) == f'{{"{log.id}":{{"orders":{{"0":[0,10],"1":[0,0]}}}}}}'
    append(log, model, 1, 3)
    assert rows(frame) == sorted(model)
    again = spark.read.format("holdfast").options(topic="orders", asOf=marks_of(frame)).load(str(store))
    assert again.count() == 10


def test_what_is_settled_between_load_and_action_comes_once(spark, shipped, store):
    log, model = shipped
    frame = load(spark, store)
    log.seal()
    log.ship(20)
    append(log, model, 0, 2)
    assert rows(frame) == sorted(model)


def test_what_is_settled_between_planning_and_reading_comes_once(shipped, store):
    """Tasks are made, then all batches go, then tasks are read; and read once more, as speculation would."""
    from pyspark_holdfast.source import HoldfastSource

    log, model = shipped
    source = HoldfastSource({"path": str(store), "topic": "orders", "includeTail": "true"})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    log.seal()
    log.ship(20)
    log.close()
    assert list((store / "tail").rglob("*.arrow")) == []
    for _ in range(2):
        found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        assert sorted((row["partition"], row["offset"], row["value"]) for row in found) == sorted(model)


@pytest.mark.parametrize("is_on", [True, False])
def test_filters_hold_in_the_tail_whether_spark_pushes_them_or_not(spark, shipped, store, is_on):
    _, model = shipped
    with pushing(spark, is_on):
        frame = load(spark, store)
        assert rows(frame.where("partition = 1")) == sorted(row for row in model if row[0] == 1)
        assert rows(frame.where("offset >= 9 and offset < 13")) == sorted(row for row in model if 9 <= row[1] < 13)
        assert rows(frame.where("timestamp >= timestamp_seconds(12)")) == sorted(row for row in model if row[1] >= 12)
        assert frame.where("topic = 'others'").count() == 0
        assert frame.where("offset >= 100").count() == 0


def test_offsets_and_times_hold_in_the_tail(spark, shipped, store):
    starts, ends = '{"orders":{"0":11,"1":-1}}', '{"orders":{"0":14}}'
    found = rows(load(spark, store, startingOffsets=starts, endingOffsets=ends))
    assert [row[:2] for row in found] == [(0, 11), (0, 12), (0, 13), *((1, offset) for offset in range(5))]
    assert [row[:2] for row in rows(load(spark, store, startingTimestamp="13000"))] == [(0, 13), (0, 14)]


def test_typed_topics_have_a_tail_and_columns_can_be_chosen(spark, open_shipped, store):
    log = open_shipped()
    topic = log.topic("cities", schema=pa.schema({"city": pa.string(), "count": pa.uint32()}))
    topic.append([{"city": "Ulm", "count": 1}])
    log.seal()
    log.ship(20)
    topic.append([{"city": "Bonn", "count": 2}, {"city": None, "count": 2**32 - 1}], durability="shipped")
    found = load(spark, store, "cities").orderBy("_offset").select("_offset", "city", "count").collect()
    assert [tuple(row) for row in found] == [(0, "Ulm", 1), (1, "Bonn", 2), (2, None, 2**32 - 1)]
    chosen = spark.read.format("holdfast").options(topic="cities", includeTail="true")
    frame = chosen.schema("count long, _offset long").load(str(store))
    assert sorted(tuple(row) for row in frame.collect()) == [(1, 0), (2, 1), (2**32 - 1, 2)]


def test_an_encrypted_tail_is_decrypted_in_the_executors(spark, open_shipped, store, tmp_path):
    keyring = Keyring.generate(clock=ManualClock(seed=7))
    keyring.save(tmp_path / "keys")
    log, model = open_shipped(keyring=keyring), []
    append(log, model, 0, 3)
    assert rows(load(spark, store, keyring=f"file:{tmp_path / 'keys'}")) == model
    with pytest.raises(Exception, match="is encrypted, and there is no key key_id=k1"):
        load(spark, store).collect()


def test_a_table_can_include_the_tail(spark, shipped, store):
    log, model = shipped
    spark.sql(f"create table with_tail using holdfast options (root '{store}', topic 'orders', includeTail 'true')")
    try:
        assert spark.table("with_tail").count() == 20
        append(log, model, 1, 1)
        assert rows(spark.table("with_tail")) == sorted(model)
    finally:
        spark.sql("drop table with_tail")


def test_a_stream_refuses_the_tail(store, shipped):
    from pyspark_holdfast.source import HoldfastSource

    source = HoldfastSource({"path": str(store), "topic": "orders", "includeTail": "true"})
    with pytest.raises(Invalid, match="includeTail has no meaning in a stream"):
        source.streamReader(source.schema())


def test_a_log_of_ones_own_has_no_tail(spark, tmp_path):
    with holdfast.open(tmp_path / "own") as log:
        log.topic("orders").append(b"x")
        log.seal()
    with pytest.raises(Exception, match="there is no tail at this root"):
        load(spark, tmp_path / "own").collect()
