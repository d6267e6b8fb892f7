"""How far streams are behind: counted from manifests, shown to Prometheus and in the log, never in a query's way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from holdfast import Invalid, Log
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.store import layout
from holdfast.testing.manual_clock import ManualClock
from pyspark_holdfast import LagListener
from pyspark_holdfast.lag import Lag, PartitionLag, Unread, exposition, unread
from tests.segments.planting import TEN, fill, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OURS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"
KAFKA = "KafkaV2[Subscribe[orders]]"
PATIENCE = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(open_log: Callable[..., Log], clock: ManualClock) -> Log:
    log: Log = open_log(segments=TEN, clock=clock)
    return log


@pytest.fixture
def listen(clock: ManualClock) -> Iterator[Callable[..., LagListener]]:
    """Make listeners with the clock of the log; they are closed at the end."""
    made: list[LagListener] = []

    def listener(root: Path | str, **options: str) -> LagListener:
        made.append(LagListener(str(root), clock=clock, **options))
        return made[-1]

    yield listener
    for each in made:
        each.close()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[logging.LogRecord]]:
    """What was logged with an action."""
    caplog.set_level("INFO", logger="holdfast")
    return lambda action: [record for record in caplog.records if getattr(record, "action", "") == action]


def progress(
    log: Log, end: str, latest: str = "None", *, name: str | None = "q", kind: str = OURS, query: str = "1"
) -> Any:
    """What Spark reports after a batch, of a stream of this log."""
    end, latest = (f'{{"{log.id}":{text}}}' if text.startswith("{") else text for text in (end, latest))
    source = SimpleNamespace(description=kind, startOffset="None", endOffset=end, latestOffset=latest)
    return SimpleNamespace(progress=SimpleNamespace(id=query, name=name, sources=[source]))


def ended(exception: str | None = None, query: str = "1") -> Any:
    return SimpleNamespace(id=query, exception=exception)


# -- counting -----------------------------------------------------------------------------------------------


def test_what_is_unread_is_counted_from_segments(log, clock):
    """Whole segments with their bytes, a cut one in proportion; the age is that of the oldest that is touched."""
    for _ in range(3):
        fill(log, "orders", 1)
        clock.advance(1)
    segments = SettledRoot.open(str(log.path), ReadOptions(topics=("orders",))).segments(("orders", 0))
    sizes = [segment.size for segment in segments]
    assert unread(segments, 0, 30) == Unread(30, sum(sizes), segments[0].time_min)
    assert unread(segments, 10, 20) == Unread(10, sizes[1], segments[1].time_min)
    assert unread(segments, 15, 30) == Unread(15, sizes[1] // 2 + sizes[2], segments[1].time_min)
    assert unread(segments, 30, 30) == Unread()


def test_a_query_that_has_everything_is_not_behind(log, listen):
    fill(log, "orders", 2)
    listener = listen(log.path)
    listener.onQueryProgress(progress(log, '{"orders": {"0": 20}}', '{"orders": {"0": 20}}'))
    assert listener.lags() == {"q": Lag(0, 0, 0.0, {("orders", 0): PartitionLag()})}


def test_lag_is_reported_in_records_bytes_and_seconds(log, listen, clock):
    """By partition, and for the query: sums, and the age of the oldest."""
    log.topic("orders", partitions=2)
    fill(log, "orders", 1)
    clock.advance(30)
    fill(log, "orders", 1)
    clock.advance(30)
    fill(log, "orders", 1, partition=1)
    clock.advance(5)
    listener = listen(log.path)
    listener.onQueryProgress(progress(log, '{"orders": {"0": 10, "1": 0}}', '{"orders": {"0": 20, "1": 10}}'))
    lag = listener.lags()["q"]
    parts = lag.partitions
    assert {where: part.records for where, part in parts.items()} == {("orders", 0): 10, ("orders", 1): 10}
    assert {where: round(part.seconds) for where, part in parts.items()} == {("orders", 0): 35, ("orders", 1): 5}
    assert (lag.records, round(lag.seconds)) == (20, 35)
    assert lag.bytes == sum(part.bytes for part in parts.values()) > 0


def test_the_age_grows_while_a_query_hangs(log, listen, clock):
    """Nothing is reported by a batch that does not end."""
    fill(log, "orders", 1)
    listener = listen(log.path)
    listener.onQueryProgress(progress(log, '{"orders": {"0": 0}}', '{"orders": {"0": 10}}'))
    before = listener.lags()["q"].seconds
    clock.advance(60)
    assert round(listener.lags()["q"].seconds - before) == 60


def test_what_spark_does_not_report_is_looked_up(log, listen):
    """The latest offset is not in every report."""
    fill(log, "orders", 2)
    listener = listen(log.path)
    listener.onQueryProgress(progress(log, '{"orders": {"0": 5}}', "None"))
    assert listener.lags()["q"].records == 15


def test_a_partition_that_is_new_to_a_query_is_unread_from_its_beginning(log, listen):
    fill(log, "orders-a", 1)
    fill(log, "orders-b", 2)
    listener = listen(log.path)
    latest = '{"orders-a": {"0": 10}, "orders-b": {"0": 20}}'
    listener.onQueryProgress(progress(log, '{"orders-a": {"0": 10}}', latest))
    assert listener.lags()["q"].partitions[("orders-b", 0)].records == 20


def test_manifests_are_followed_from_report_to_report(log, listen):
    """What came since the last one counts."""
    listener = listen(log.path)
    for number in range(1, 4):
        fill(log, "orders", 1)
        listener.onQueryProgress(progress(log, '{"orders": {"0": 0}}', f'{{"orders": {{"0": {10 * number}}}}}'))
        assert listener.lags()["q"].records == 10 * number


# -- whose lag ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (KAFKA, '{"orders": {"0": 5}}'),
        (OURS, '{"LOG": {"elsewhere": {"0": 5}}}'),
        (OURS, '{"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f": {"orders": {"0": 5}}}'),
        (OURS, '{"seqNum": 3}'),
        (OURS, "7"),
        (OURS, "None"),
    ],
)
def test_sources_that_are_not_of_this_root_are_passed_over(log, listen, lines, kind, end):
    fill(log, "orders", 1)
    listener = listen(log.path)
    end = end.replace("LOG", log.id)
    source = SimpleNamespace(description=kind, startOffset="None", endOffset=end, latestOffset=end)
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id="1", name="q", sources=[source])))
    assert listener.lags() == {}
    assert lines("stream_lag_unknown") == []


def test_topics_that_are_not_asked_for_are_passed_over(log, listen):
    fill(log, "orders", 1)
    listener = listen(log.path, topic="payments")
    listener.onQueryProgress(progress(log, '{"orders": {"0": 5}}'))
    assert listener.lags() == {}


def test_a_query_without_a_name_goes_by_its_id(log, listen):
    fill(log, "orders", 1)
    listener = listen(log.path)
    listener.onQueryProgress(progress(log, '{"orders": {"0": 10}}', name=None, query="0-1-2"))
    assert list(listener.lags()) == ["0-1-2"]


def test_a_query_that_ended_well_is_forgotten_and_one_that_failed_is_not(log, listen):
    fill(log, "orders", 1)
    listener = listen(log.path)
    for query in ("1", "2"):
        listener.onQueryProgress(progress(log, '{"orders": {"0": 0}}', name=f"q{query}", query=query))
    listener.onQueryTerminated(ended(query="1"))
    listener.onQueryTerminated(ended("it broke", query="2"))
    assert list(listener.lags()) == ["q2"]


# -- failures -----------------------------------------------------------------------------------------------


def test_a_root_that_cannot_be_read_is_reported_once_and_again_after_it_was_whole(log, listen, lines):
    fill(log, "orders", 1)
    listener = listen(log.path)
    damaged = log.path / "segments" / layout.manifest_key("orders", 0, 0)
    content = damaged.read_bytes()
    for outage in (1, 2):
        damaged.write_bytes(b"")
        for _ in range(3):
            listener.onQueryProgress(progress(log, '{"orders": {"0": 0}}', '{"orders": {"0": 10}}'))
        assert len(lines("stream_lag_unknown")) == outage
        damaged.write_bytes(content)
        listener.onQueryProgress(progress(log, '{"orders": {"0": 10}}', '{"orders": {"0": 10}}'))
        assert listener.lags()["q"].records == 0


def test_wrong_options_are_refused_at_once(log):
    with pytest.raises(Invalid, match="there is no option endpiont"):
        LagListener(str(log.path), endpiont="http://127.0.0.1")


# -- telling ------------------------------------------------------------------------------------------------


def test_the_text_for_prometheus_is_stable():
    """Names, order and labels; whatever a query is called."""
    lags = {'a "b"\\\n': Lag(3, 40, 1.5, {("orders", 0): PartitionLag(3, 40, 1.5), ("orders", 1): PartitionLag()})}
    label = r'query="a \"b\"\\\n",topic="orders"'
    assert exposition(lags).splitlines() == [
        "# HELP holdfast_stream_lag_records Records that are settled and not processed yet.",
        "# TYPE holdfast_stream_lag_records gauge",
        f'holdfast_stream_lag_records{{{label},partition="0"}} 3',
        f'holdfast_stream_lag_records{{{label},partition="1"}} 0',
        "# HELP holdfast_stream_lag_bytes Bytes of segments that are settled and not processed yet.",
        "# TYPE holdfast_stream_lag_bytes gauge",
        f'holdfast_stream_lag_bytes{{{label},partition="0"}} 40',
        f'holdfast_stream_lag_bytes{{{label},partition="1"}} 0',
        "# HELP holdfast_stream_lag_seconds Age of the oldest segment with records that are not processed yet.",
        "# TYPE holdfast_stream_lag_seconds gauge",
        f'holdfast_stream_lag_seconds{{{label},partition="0"}} 1.5',
        f'holdfast_stream_lag_seconds{{{label},partition="1"}} 0.0',
    ]


def test_metrics_are_served_until_closed(log, listen):
    """On one path, to this machine, and no thread stays."""
    fill(log, "orders", 1)
    listener = listen(log.path)
    listener.onQueryProgress(progress(log, '{"orders": {"0": 4}}'))
    port = listener.serve()
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert 'holdfast_stream_lag_records{query="q",topic="orders",partition="0"} 6\n' in answer.read().decode()
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{port}/", timeout=10)
    assert refused.value.code == 404
    refused.value.close()
    with pytest.raises(Invalid):
        listener.serve()
    listener.close()
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-lag"]


# -- a real query -------------------------------------------------------------------------------------------


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Callable[[LagListener], None]]:
    added: list[LagListener] = []

    def add(listener: LagListener) -> None:
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for listener in added:
        spark.streams.removeListener(listener)


def test_a_real_query_tells_its_lag_after_every_batch(spark, log, listen, listening, lines, tmp_path):
    """While it runs by log lines and figures; a listener that fails does not disturb it."""
    fill(log, "orders", 3)
    listener, broken = listen(log.path), listen(tmp_path / "nothing")
    listening(broken)
    listening(listener)
    frame = spark.readStream.format("holdfast").option("topic", "orders").option("maxSegmentsPerTrigger", "1")
    writer = frame.load(str(log.path)).writeStream.queryName("billing").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        wait_for(lambda: len(lines("stream_lag")) == 3, PATIENCE)
        assert [record.records for record in lines("stream_lag")] == [20, 10, 0]
        assert listener.lags()["billing"].records == 0
        assert len(lines("stream_lag_unknown")) == 1
    finally:
        query.stop()
    wait_for(lambda: listener.lags() == {}, PATIENCE)
    assert query.exception() is None
