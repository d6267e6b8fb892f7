"""What a stream promises: offsets that are settled marks, batches that are the same again, and errors that say why."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import pyspark_holdfast
from holdfast import Corrupt, Invalid, Keyring, Log, NotFound, Record, Settings
from holdfast.clock import SystemClock
from holdfast.root import shared_stores
from holdfast.root.objects import documents
from holdfast.root.objects.documents import LeaseDocument
from holdfast.root.root_place import root_url
from holdfast.store import layout
from holdfast.store.port import Store
from holdfast.store.store_kinds import open_any_store
from holdfast.store.store_settings import StoreSettings
from pyspark_holdfast.source import HoldfastSource
from pyspark_holdfast.stream import StreamReader
from tests.segments.planting import TEN, fill, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

NEVER = {"interval_ms": 3_600_000}
HOUR_US = 3_600 * 10**6
PATIENCE = 60.0

Row = tuple[str, int, int, bytes]
"""Topic, partition, offset and value of a raw record."""


class Sink:
    """A sink that is idempotent by batch id: what a batch brings again replaces what it brought before."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.calls: list[int] = []

    def take(self, frame: DataFrame, batch: int) -> None:
        """What foreachBatch calls."""
        raw = ["topic", "partition", "offset", "value"]
        rows = frame.select(*raw) if "value" in frame.columns else frame
        self.batches[batch] = sorted(tuple(row) for row in rows.collect())
        self.calls.append(batch)

    @property
    def rows(self) -> list[Any]:
        """Everything that arrived, and counts."""
        return sorted(row for rows in self.batches.values() for row in rows)

    @property
    def offsets(self) -> list[int]:
        return sorted(row[2] for row in self.rows)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Start queries into a sink, from one checkpoint; whatever still runs is stopped at the end."""
    started: list[StreamingQuery] = []

    def start(place: Path | str, sink: Sink, *, now: bool = True, **options: str) -> StreamingQuery:
        asked = options if "topicPattern" in options else {"topic": "orders", **options}
        frame = spark.readStream.format("holdfast").options(**asked).load(str(place))
        writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.append((writer.trigger(availableNow=True) if now else writer).start())
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def run(query: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
    """Run a query to the end of what is available now; raises what it fails with."""

    def run_one(place: Path | str, sink: Sink, **options: str) -> StreamingQuery:
        running = query(place, sink, **options)
        assert running.awaitTermination(PATIENCE), "it does not end"
        return running

    return run_one


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    """A log whose segments hold ten records, in which retention is applied when the test asks, and not before."""
    log: Log = open_log(segments=TEN, retention=NEVER)
    maintenance = log._maintenance
    assert maintenance._roller is not None
    assert maintenance._retention is not None
    maintenance._roller.chores.remove(maintenance._retention.check)
    return log


def retire(log: Log, topic: str = "orders") -> int:
    """Have retention take all but the newest segment of a topic; tells how many went."""
    log.set_retention(topic, records_max=1)
    return len(log.retain().removed)


def reader_of(place: Path | str, **options: str) -> StreamReader:
    """The reader of a stream, without Spark."""
    asked = options if "topicPattern" in options else {"topic": "orders", **options}
    source = HoldfastSource({"path": str(place), **asked})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def expected(topic: str, partition: int, offsets: range) -> list[Row]:
    """Records as `fill` writes them."""
    return [(topic, partition, offset, b"%d" % offset) for offset in offsets]


def journalled(tmp_path: Path, kind: str = "offsets") -> dict[int, str]:
    """What Spark wrote of each batch into its checkpoint; of offsets the last line."""
    found = (tmp_path / "checkpoint" / kind).glob("[0-9]*")
    return {int(path.name): path.read_text().splitlines()[-1] for path in found}


def forget_commit(tmp_path: Path) -> int:
    """Take the last entry out of Spark's commit log, as if the driver had died before it was written."""
    folder = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in folder.glob("[0-9]*"))
    (folder / str(last)).unlink()
    (folder / f".{last}.crc").unlink(missing_ok=True)
    return last


# -- offsets ------------------------------------------------------------------------------------------------


def test_offsets_are_settled_marks(run, log, sink, tmp_path):
    log.topic("orders", partitions=2)
    fill(log, "orders", 4)
    fill(log, "orders", 2, partition=1)
    run(log.path, sink)
    assert json.loads(journalled(tmp_path)[0]) == {log.id: {"orders": {"0": 40, "1": 20}}}
    settled = pyspark_holdfast.settled_marks(str(log.path), topic="orders")
    assert json.loads(settled) == {log.id: {"orders": {"0": [0, 40], "1": [0, 20]}}}
    assert sink.rows == expected("orders", 0, range(40)) + expected("orders", 1, range(20))


TRIGGERS: dict[str, dict[str, Any]] = {
    "availableNow": {"availableNow": True},
    "once": {"once": True},
    "processingTime": {"processingTime": "1 second"},
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_query_is_refused_at_a_log_that_was_made_anew_under_every_trigger(
    spark, run, log, sink, open_log, tmp_path, trigger
):
    """Not a record of the other log is passed over without a word."""
    fill(log, "orders", 2)
    run(log.path, sink)
    log.close()
    log.path.rename(tmp_path / "kept")
    other = open_log(segments=TEN)
    assert other.path == log.path
    fill(other, "orders", 5)
    frame = spark.readStream.format("holdfast").option("topic", "orders").load(str(other.path))
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(**TRIGGERS[trigger]).start()
    try:
        with pytest.raises(StreamingQueryException, match="the checkpoint belongs to another log"):
            query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    assert len(sink.rows) == 20


def test_equal_offsets_are_equal_text(log):
    """By number and not by spelling, and the same from another reader, in whatever order it heard of partitions."""
    log.topic("orders", partitions=12)
    log.topic("orders").append(b"0", partition=2)
    log.seal()
    starts = [{"orders": {"10": 0, "2": 0}}, {"orders": {"2": 0, "10": 0}}]
    latest = [json.dumps(reader_of(log.path).next_end({log.id: start}, is_limited=False)) for start in starts]
    assert latest[0] == latest[1]
    assert list(json.loads(latest[0])[log.id]["orders"]) == [str(number) for number in range(12)]


def test_nothing_comes_before_it_is_settled(query, log, sink):
    """Records that are durable and in no segment yet stay away; sealing brings them."""
    fill(log, "orders", 1)
    running = query(log.path, sink, now=False)
    log.topic("orders").append_batch([b"10", b"11"])
    running.processAllAvailable()
    assert sink.offsets == list(range(10))
    log.seal()
    wait_for(lambda: len(sink.offsets) > 10, PATIENCE)
    assert sink.offsets == list(range(12))


@pytest.mark.parametrize(
    ("limit", "most"), [("maxOffsetsPerTrigger", 7), ("maxBytesPerTrigger", 1), ("maxSegmentsPerTrigger", 2)]
)
def test_a_trigger_takes_no_more_than_it_may(run, log, sink, limit, most):
    """Offsets cut segments; bytes and segments take whole ones, and one at least."""
    log.topic("orders", partitions=2)
    fill(log, "orders", 3)
    fill(log, "orders", 1, partition=1)
    run(log.path, sink, **{limit: str(most)})
    rows_most = {"maxOffsetsPerTrigger": 7, "maxBytesPerTrigger": 10, "maxSegmentsPerTrigger": 20}[limit]
    sizes = [len(rows) for rows in sink.batches.values()]
    assert max(sizes) <= rows_most
    assert len(sizes) == -(-40 // rows_most)
    assert sink.rows == expected("orders", 0, range(30)) + expected("orders", 1, range(10))


def test_all_limits_hold_together(log):
    fill(log, "orders", 5)
    reader = reader_of(log.path, maxOffsetsPerTrigger="25", maxSegmentsPerTrigger="2")
    assert reader.latestOffset({log.id: {"orders": {"0": 0}}}, reader.getDefaultReadLimit()) == {
        log.id: {"orders": {"0": 20}}
    }
    reader = reader_of(log.path, maxOffsetsPerTrigger="15", maxSegmentsPerTrigger="2")
    assert reader.latestOffset({log.id: {"orders": {"0": 0}}}, reader.getDefaultReadLimit()) == {
        log.id: {"orders": {"0": 15}}
    }


def test_a_quiet_partition_gets_its_turn_beside_a_busy_one(log):
    log.topic("orders", partitions=2)
    log.topic("orders").append(b"0", partition=1)
    fill(log, "orders", 8)
    log.seal()
    reader = reader_of(log.path, maxOffsetsPerTrigger="10")
    assert reader.latestOffset({}, reader.getDefaultReadLimit()) == {log.id: {"orders": {"0": 9, "1": 1}}}


def test_available_now_ends_with_what_was_there_when_it_began(query, run, log, sink):
    """More is settled while it runs: that is for the next run, which goes on from the checkpoint."""
    fill(log, "orders", 3)

    class Writing(Sink):
        def take(self, frame: DataFrame, batch: int) -> None:
            super().take(frame, batch)
            fill(log, "orders", 1)

    busy = Writing()
    run(log.path, busy, maxSegmentsPerTrigger="1")
    assert busy.offsets == list(range(30))
    assert len(busy.calls) == 3
    run(log.path, sink)
    assert sink.offsets == list(range(30, 60))


def test_a_restart_goes_on_where_the_checkpoint_ends(run, log, sink, tmp_path):
    fill(log, "orders", 2)
    run(log.path, sink)
    fill(log, "orders", 2)
    run(log.path, sink)
    assert sink.calls == [0, 1]
    assert sink.batches[1] == expected("orders", 0, range(20, 40))
    assert json.loads(journalled(tmp_path)[1]) == {log.id: {"orders": {"0": 40}}}


def test_a_batch_that_spark_does_not_know_to_be_done_comes_again_the_same(run, log, sink, tmp_path):
    """However much was settled since: same id, same rows, and a sink by batch id has each once."""
    fill(log, "orders", 2)
    run(log.path, sink)
    before = dict(sink.batches)
    fill(log, "orders", 2)
    run(log.path, sink, maxSegmentsPerTrigger="1")
    last = forget_commit(tmp_path)
    before[last] = sink.batches[last]
    fill(log, "orders", 1)
    run(log.path, sink)
    assert sink.calls.count(last) == 2
    assert all(sink.batches[batch] == rows for batch, rows in before.items())
    assert sink.rows == expected("orders", 0, range(50))


# -- where it begins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "first"), [("earliest", 0), ("latest", 20), ('{"orders":{"0":13}}', 13), ('{"orders":{"0":-1}}', 20)]
)
def test_a_new_query_begins_where_it_is_asked_to(query, log, sink, where, first):
    fill(log, "orders", 2)
    running = query(log.path, sink, now=False, startingOffsets=where)
    running.processAllAvailable()
    fill(log, "orders", 1)
    wait_for(lambda: bool(sink.rows) and sink.offsets[-1] == 29, PATIENCE)
    assert sink.offsets == list(range(first, 30))


def test_a_new_query_begins_at_a_time(run, log, sink):
    """Record by record; segments that are too old are not even taken into batches."""
    start = datetime(2026, 11, 15, tzinfo=UTC)
    begin_us = int(start.timestamp()) * 10**6
    for number in range(4):
        log.topic("orders").append_batch(
            [Record(b"%d" % (10 * number + i), time=begin_us + number * HOUR_US + i) for i in range(10)]
        )
        log.seal()
    since = f"{int(start.timestamp()) * 1000 + 2 * 3_600_000}"
    assert reader_of(log.path, startingTimestamp=since).initialOffset() == {log.id: {"orders": {"0": 20}}}
    run(log.path, sink, startingTimestamp=since, maxSegmentsPerTrigger="1")
    assert sink.offsets == list(range(20, 40))
    assert len(sink.calls) == 2


def test_a_time_in_the_middle_of_a_segment_cuts_it(log):
    log.topic("orders").append_batch([Record(b"%d" % i, time=i * 1000) for i in range(10)])
    log.seal()
    reader = reader_of(log.path, startingTimestamp="4")
    (task,) = reader.partitions(reader.initialOffset(), {log.id: {"orders": {"0": 10}}})
    offsets = [offset for batch in reader.read(task) for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(4, 10))


def test_a_time_after_everything_begins_at_what_comes_next(log):
    fill(log, "orders", 2)
    assert reader_of(log.path, startingTimestamp="9000000000000").initialOffset() == {log.id: {"orders": {"0": 20}}}


def test_a_topic_that_matches_a_pattern_later_is_read_from_its_beginning(query, log, sink):
    """Also by a query that began at the end of the others."""
    fill(log, "orders-a", 1)
    running = query(log.path, sink, now=False, topicPattern="orders-.*", startingOffsets="latest")
    running.processAllAvailable()
    log.topic("orders-b", partitions=2)
    fill(log, "orders-b", 1, partition=1)
    fill(log, "other", 1)
    wait_for(lambda: bool(sink.rows), PATIENCE)
    fill(log, "orders-a", 1)
    wait_for(lambda: len(sink.rows) == 20, PATIENCE)
    assert sink.rows == expected("orders-a", 0, range(10, 20)) + expected("orders-b", 1, range(10))


def test_a_pattern_may_match_nothing_yet(run, log, sink):
    fill(log, "other", 1)
    run(log.path, sink, topicPattern="orders-.*")
    fill(log, "orders-b", 1)
    run(log.path, sink, topicPattern="orders-.*")
    assert sink.rows == expected("orders-b", 0, range(10))


def test_a_topic_whose_folder_is_there_before_it_is_not_there_yet(log):
    """Files of a segment come before the document of their topic."""
    fill(log, "orders-a", 1)
    reader = reader_of(log.path, topicPattern="orders-.*")
    start = reader.initialOffset()
    (log.path / "segments" / layout.segments_folder("orders-b", 0)).mkdir(parents=True)
    assert reader.next_end(start, is_limited=False) == {log.id: {"orders-a": {"0": 10}}}


# -- schemas ------------------------------------------------------------------------------------------------

NARROW = pa.schema([("price", pa.int64())])
WIDE = pa.schema([("price", pa.int64()), ("currency", pa.string())])


def append_typed(log: Log, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    log.topic("orders", schema=schema).append(rows)
    log.seal()


class TypedSink(Sink):
    """Prices and, where there are any, currencies."""

    def take(self, frame: DataFrame, batch: int) -> None:
        names = [name for name in frame.columns if not name.startswith("_")]
        self.batches[batch] = [tuple(row) for row in frame.orderBy("_offset").select(*names).collect()]
        self.calls.append(batch)


def test_a_schema_that_grows_stops_a_query_and_the_next_run_has_the_column(query, run, log, tmp_path):
    """Nothing is lost or doubled by the stop."""
    sink = TypedSink()
    append_typed(log, NARROW, [{"price": 1}])
    running = query(log.path, sink, now=False)
    running.processAllAvailable()
    append_typed(log, WIDE, [{"price": 2, "currency": "EUR"}])
    with pytest.raises(StreamingQueryException, match="the schema of topic 'orders' has grown since this read began"):
        running.awaitTermination(PATIENCE)
    assert sink.batches == {0: [(1,)]}
    run(log.path, sink)
    assert sink.batches == {0: [(1,)], 1: [(2, "EUR")]}


def test_a_query_that_keeps_to_known_columns_goes_on_without_the_new_one(query, log):
    sink = TypedSink()
    append_typed(log, NARROW, [{"price": 1}])
    running = query(log.path, sink, now=False, schemaMode="known")
    running.processAllAvailable()
    append_typed(log, WIDE, [{"price": 2, "currency": "EUR"}])
    wait_for(lambda: len(sink.rows) == 2, PATIENCE)
    assert sink.batches == {0: [(1,)], 1: [(2,)]}


def test_versions_that_were_known_at_the_start_are_read_together(run, log):
    sink = TypedSink()
    append_typed(log, NARROW, [{"price": 1}])
    append_typed(log, WIDE, [{"price": 2, "currency": "EUR"}])
    run(log.path, sink)
    assert sink.rows == [(1, None), (2, "EUR")]


# -- retention ----------------------------------------------------------------------------------------------


def test_a_query_that_retention_has_overtaken_fails(run, log, sink):
    """With the offsets that are gone."""
    fill(log, "orders", 1)
    run(log.path, sink)
    fill(log, "orders", 3)
    assert retire(log) == 3
    with pytest.raises(
        StreamingQueryException, match=r"records have expired topic=orders partition=0 offsets=10\.\.29"
    ):
        run(log.path, sink)
    assert sink.offsets == list(range(10))


def test_a_query_learns_when_the_newest_manifest_object_is_lost(log, run, sink):
    """It would wait forever; a query that may go on gets what is there."""
    fill(log, "orders", 3)
    log.close()
    reader = reader_of(log.path)
    start = reader.initialOffset()
    max((log.path / "segments" / layout.manifest_folder("orders", 0)).iterdir()).unlink()
    with pytest.raises(Corrupt, match="settled are missing topic=orders partition=0 there=20 settled=30"):
        reader.next_end(start, is_limited=False)
    run(log.path, sink, failOnDataLoss="false")
    assert sink.offsets == list(range(20))


def test_a_query_that_may_lose_data_goes_on_with_what_is_left(run, log, sink):
    """At once: limits are not spent on what is gone."""
    fill(log, "orders", 1)
    run(log.path, sink)
    fill(log, "orders", 4)
    assert retire(log) == 4
    run(log.path, sink, failOnDataLoss="false", maxSegmentsPerTrigger="1")
    assert sink.offsets == [*range(10), *range(40, 50)]
    assert sink.calls == [0, 1]


def test_a_query_whose_next_record_is_there_does_not_mind_retention(run, log, sink):
    fill(log, "orders", 3)
    run(log.path, sink)
    assert retire(log) == 2
    fill(log, "orders", 1)
    run(log.path, sink)
    assert sink.offsets == list(range(40))


def test_a_query_with_a_place_to_begin_goes_on_though_that_is_gone_by_now(run, log, sink):
    """Only where it is counts."""
    fill(log, "orders", 3)
    run(log.path, sink, startingOffsets='{"orders":{"0":5}}')
    assert retire(log) == 2
    fill(log, "orders", 1)
    run(log.path, sink, startingOffsets='{"orders":{"0":5}}')
    assert sink.offsets == list(range(5, 40))


def test_a_new_topic_that_was_cut_before_the_query_saw_it_is_a_loss(log):
    """A batch that is asked for again begins where it began, or says that it cannot."""
    fill(log, "orders-a", 1)
    reader = reader_of(log.path, topicPattern="orders-.*")
    start = reader.initialOffset()
    fill(log, "orders-b", 2)
    end = reader.next_end(start, is_limited=False)
    assert reader.partitions(start, end)
    assert retire(log, "orders-b") == 1
    with pytest.raises(NotFound, match=r"topic=orders-b partition=0 offsets=0\.\.9"):
        reader.partitions(start, end)
    lenient = reader_of(log.path, topicPattern="orders-.*", failOnDataLoss="false")
    rows = [batch.num_rows for task in lenient.partitions(start, end) for batch in lenient.read(task)]
    assert sum(rows) == 20


@pytest.fixture
def open_shipped(open_log: Callable[..., Log], tmp_path: Path) -> Callable[..., Log]:
    """Opens a log that ships to a directory, with a policy for what stays there."""

    def open_one(**policy: object) -> Log:
        sections = {"segments": TEN, "retention": NEVER, "shipping": policy, "store": {"url": str(tmp_path / "store")}}
        log: Log = open_log(settings=Settings.from_mapping(sections))
        return log

    return open_one


def retire_on_store(open_shipped: Callable[..., Log], tmp_path: Path, left: list[int] | None = None) -> None:
    """Have the owner retire all but the newest segment on the store, and remove what nobody needs."""
    log = open_shipped(store_bytes_max=1, delete_after_ms=0)
    fill(log, "orders", 1)
    log.ship(20)
    wait_for(lambda: any((tmp_path / "store" / layout.expired_folder("orders", 0)).glob("*.json")))
    if left is not None:
        wait_for(lambda: files_on_store(tmp_path) == left)
    log.close()


def files_on_store(tmp_path: Path) -> list[int]:
    """Numbers of the segments whose files are there."""
    paths = (tmp_path / "store" / layout.segments_folder("orders", 0)).iterdir()
    return sorted(name.number for path in paths if (name := layout.parse_segment_name(path.name)))


@pytest.mark.parametrize(("lease", "left"), [({"reader": "billing"}, [0, 1, 2, 3]), ({}, [3])])
def test_segments_wait_for_a_lease_and_for_nobody_else(open_shipped, tmp_path, lease, left):
    """Retired as they are, they are read by the query that needs them; one without a lease learns that it is late."""
    log = open_shipped()
    fill(log, "orders", 1)
    log.ship(20)
    reader = reader_of(tmp_path / "store", **lease)
    start = reader.next_end(reader.initialOffset(), is_limited=False)
    assert start == {log.id: {"orders": {"0": 10}}}
    reader.commit(start)
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    retire_on_store(open_shipped, tmp_path, left)
    assert files_on_store(tmp_path) == left
    restarted, end = reader_of(tmp_path / "store", **lease), {log.id: {"orders": {"0": 40}}}
    if lease:
        tasks = restarted.partitions(start, end)
        assert sum(batch.num_rows for task in tasks for batch in restarted.read(task)) == 30
    else:
        with pytest.raises(NotFound, match=r"offsets=10\.\.29"):
            restarted.partitions(start, end)


def test_a_query_with_a_lease_goes_on_after_a_pause_longer_than_retention(run, open_shipped, sink, tmp_path):
    log = open_shipped()
    fill(log, "orders", 1)
    log.ship(20)
    run(tmp_path / "store", sink, reader="billing")
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    retire_on_store(open_shipped, tmp_path)
    (key,) = (tmp_path / "store" / layout.LEASES / "billing").glob("*.json")
    assert documents.decode(key.read_bytes(), str(key), LeaseDocument).needs == {"orders": {"0": 0}}
    run(tmp_path / "store", sink, reader="billing")
    assert sink.offsets == list(range(40))


# -- what is refused ----------------------------------------------------------------------------------------


def test_a_stream_has_no_tail(query, log, sink):
    fill(log, "orders", 1)
    with pytest.raises(Exception, match="includeTail has no meaning in a stream"):
        query(log.path, sink, includeTail="true").awaitTermination(PATIENCE)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("asOf", '{"LOG":{"orders":{"0":[0,5]}}}'),
        ("endingOffsets", '{"orders":{"0":5}}'),
        ("endingTimestamp", "1700000000000"),
    ],
)
def test_a_stream_has_no_end(log, option, value):
    """What would say where to end is not passed over."""
    fill(log, "orders", 1)
    with pytest.raises(Invalid, match=f"a stream has no end: .*{option}"):
        reader_of(log.path, **{option: value.replace("LOG", log.id)})


@pytest.fixture
def encrypted(open_log: Callable[..., Log], keyring: Keyring) -> Log:
    log: Log = open_log("encrypted", segments=TEN, keyring=keyring)
    fill(log, "orders", 2)
    return log


def test_an_encrypted_topic_is_opened_with_the_keyring_that_is_named(run, encrypted, keyring, sink, tmp_path):
    keyring.save(tmp_path / "keys")
    run(encrypted.path, sink, keyring=f"file:{tmp_path / 'keys'}")
    assert sink.rows == expected("orders", 0, range(20))


def test_an_encrypted_topic_without_a_key_says_so(run, encrypted, sink):
    with pytest.raises(StreamingQueryException, match="topic 'orders' is encrypted, and there is no key"):
        run(encrypted.path, sink)
    assert sink.rows == []


# -- stopping, and reading twice ----------------------------------------------------------------------------


def planners(spark: SparkSession) -> list[int]:
    """Processes of this session that plan a stream."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, stat = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue  # it has just ended
        parent = int(stat.rpartition(")")[2].split()[1])
        if b"python_streaming_source_runner" in command and parent == gateway.proc.pid:
            found.append(int(folder.name))
    return found


def test_a_query_that_is_stopped_leaves_nothing_behind(spark, query, log, sink):
    """No thread and no process; what had arrived stays counted, and a next run goes on."""
    fill(log, "orders", 2)
    running = query(log.path, sink, now=False)
    running.processAllAvailable()
    assert planners(spark)
    running.stop()
    assert running.exception() is None
    wait_for(lambda: not planners(spark), PATIENCE)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-store")]


def test_a_task_that_is_read_twice_gives_the_same_rows(log):
    """In the same order: what speculation, or a retry, would read."""
    log.topic("orders", partitions=3)
    for partition in range(3):
        fill(log, "orders", 4, partition=partition)
    reader = reader_of(log.path, minPartitions="5")
    tasks = reader.partitions({}, reader.next_end({}, is_limited=False))
    assert len(tasks) >= 5
    twins = [reader_of(log.path, minPartitions="5") for _ in range(2)]
    once, again = ([pa.Table.from_batches(twin.read(task)) for task in tasks] for twin in twins)
    assert all(one.equals(other) for one, other in zip(once, again, strict=True))
    places = [
        (row["partition"], row["offset"]) for table in once for row in table.select(["partition", "offset"]).to_pylist()
    ]
    assert places == [(partition, offset) for partition in range(3) for offset in range(40)]


# -- what a trigger costs -----------------------------------------------------------------------------------


class Counting:
    """A store that counts what it is asked, and how many keys its listings name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*values: Any, **options: Any) -> Any:
            self.asked[name] += 1
            answer = found(*values, **options)
            return self._keys(answer) if name == "list" else answer

        return counted

    def _keys(self, listing: Iterator[Any]) -> Iterator[Any]:
        for info in listing:
            self.asked["keys"] += 1
            yield info


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Counting]:
    """Have everything that reads a root ask through a counting store."""

    def count(place: Path) -> Counting:
        url, settings = root_url(str(place)), StoreSettings()
        store = Counting(open_any_store(url, settings, SystemClock()))
        monkeypatch.setitem(shared_stores._opened, (url, settings), store)  # type: ignore[misc]
        return store

    return count


def idle_cost(store: Counting, reader: StreamReader, start: Mapping[str, Any]) -> Counter[str]:
    """What the second trigger with nothing new asks for."""
    for _ in range(2):
        store.asked.clear()
        end = reader.next_end(dict(start), is_limited=True)
        assert end == start
        reader.settled_end()
    return Counter(store.asked)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_trigger_with_nothing_new_costs_the_same_after_any_history(open_log, counting, is_restarted):
    """In requests and in keys listed; in a query that has read batches, and in one that has just begun again."""
    costs = []
    for segments in (3, 40):
        log = open_log(f"log-{segments}", segments=TEN)
        log.topic("orders", partitions=2)
        fill(log, "orders", segments)
        fill(log, "orders", 2, partition=1)
        store = counting(log.path)
        reader = reader_of(log.path, maxSegmentsPerTrigger="1000")
        end = reader.next_end({}, is_limited=True)
        assert end == {log.id: {"orders": {"0": 10 * segments, "1": 20}}}
        reader.partitions({}, end)
        costs.append(idle_cost(store, reader_of(log.path) if is_restarted else reader, end))
    assert costs[0] == costs[1]
    assert costs[0]["keys"] == 0
    # Whose root it is; and twice: the frontier, one per topic, one per partition.
    assert sum(costs[0].values()) <= 1 + 2 * (1 + 1 + 2)


def test_news_cost_what_is_new_and_not_the_history(open_log, counting):
    costs = []
    for segments in (3, 40):
        log = open_log(f"log-{segments}", segments=TEN)
        fill(log, "orders", segments)
        store = counting(log.path)
        reader = reader_of(log.path)
        start = reader.next_end({}, is_limited=False)
        reader.partitions({}, start)
        fill(log, "orders", 1)
        store.asked.clear()
        end = reader.next_end(start, is_limited=False)
        assert len(reader.partitions(start, end)) == 1
        costs.append(Counter(store.asked))
    assert costs[0] == costs[1]
