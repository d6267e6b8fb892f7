"""Compaction and Spark: the job, reads and streams over files that were replaced, and two jobs at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import holdfast
import pyspark_holdfast
from holdfast import Log, NotFound, Settings
from holdfast.reader.read_plan import Task
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, LeaseDocument
from holdfast.store import layout
from pyspark_holdfast.jobs.compact import compact
from pyspark_holdfast.source import HoldfastSource
from pyspark_holdfast.stream import StreamReader
from tests.spark.conftest import before
from tests.spark.logs import Row, collected, fill, record, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PATIENCE = 100.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def log(tmp_path: Path, root: Path) -> Iterator[Log]:
    """Two partitions, three segments of twenty records each, settled at `root`."""
    settings = Settings.from_mapping({"store": {"url": str(root)}, "segments": {"row_group_rows": 7}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        fill(log)
        log.ship(30)
        yield log


def more(log: Log, seals: int, rows: int = 20) -> None:
    """Segments behind those that `fill` made."""
    topic = log.topic("orders", partitions=2)
    for _ in range(seals):
        for partition in range(2):
            at = topic.marks()[partition].durable
            topic.append_batch([record(at + each, partition) for each in range(rows)], partition=partition)
        log.seal("orders")
    log.ship(30)


def removed(root: Path) -> None:
    """Replace files, and remove the replaced ones at once."""
    holdfast.compact(str(root))
    assert holdfast.compact(str(root), delete_after_ms=0).removed_files


def test_the_job_compacts_and_changes_no_row(spark: SparkSession, log: Log, root: Path):
    before = collected(spark.read.format("holdfast").option("topic", "orders").load(str(root)))
    report = compact(spark, str(root), "orders")
    assert (report.files_before, report.files_after, report.rewritten_rows) == (6, 2, 120)
    frame = spark.read.format("holdfast").options(topic="orders", minPartitions="4").load(str(root))
    assert collected(frame) == before == rows("orders", 2, 60)
    native = pyspark_holdfast.read(spark, root, "orders")
    assert pyspark_holdfast.path_of(native).path == "native"
    assert collected(native) == before
    assert compact(spark, str(root)).rewritten_files == 0
    assert compact(spark, str(root), delete_after_ms=0).removed_files == 6
    assert collected(spark.read.format("holdfast").option("topic", "orders").load(str(root))) == before


def test_two_jobs_at_once(spark: SparkSession, log: Log, root: Path):
    """One wins each partition; no rows are lost or doubled, and nothing is left behind."""
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(compact, spark, str(root)) for _ in range(2)]
        reports = [one.result(PATIENCE) for one in both]
    assert sum(report.rewritten_files for report in reports) == 6
    holdfast.compact(str(root), delete_after_ms=0)
    assert len(list(root.glob("topics/orders/*/segments/*"))) == 2
    assert list(root.glob("topics/orders/*/_intents/*")) == []
    assert collected(spark.read.format("holdfast").option("topic", "orders").load(str(root))) == rows("orders", 2, 60)


def test_a_frame_from_before_reads_the_same(spark: SparkSession, log: Log, root: Path):
    """What was loaded is planned when it is asked; and what was planned and is gone says why.

    Where Spark's own reader reads the files, it is Spark that says so: hence not here.
    """
    frame = spark.read.format("holdfast").options(topic="orders", native="false").load(str(root))
    marks = pyspark_holdfast.marks_of(frame)
    removed(root)
    more(log, 1)
    assert collected(frame) == rows("orders", 2, 60)
    removed(root)
    again = spark.read.format("holdfast").options(topic="orders", asOf=marks).load(str(root))
    assert collected(again) == rows("orders", 2, 60)
    if not before(4, 1):  # which plans anew for each query
        with pytest.raises(PySparkException, match="has taken the place of a segment"):
            frame.select("value").collect()


def reader(root: Path, **options: str) -> StreamReader:
    """The reader of a stream, without Spark."""
    source = HoldfastSource({"path": str(root), "topic": "orders", **options})
    found = source.streamReader(source.schema())
    assert isinstance(found, StreamReader)
    return found


def expire(root: Path, upto: int) -> None:
    """Retire the first segments of both partitions, as retention on the store does."""
    for partition in range(2):
        key = root / layout.manifest_key("orders", partition, upto - 1)
        last = documents.decode_manifest(key.read_bytes(), key.name)
        document = ExpiredDocument(
            log=last.log, topic="orders", partition=partition, upto=upto, first=last.end, expired_us=1
        )
        path = root / layout.expired_key("orders", partition, upto)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(documents.encode(document))


def test_a_stream_paused_over_compaction_and_retention(log: Log, root: Path):
    """It goes on as long as the files are there, and learns when they are not; what is left is read without a hole."""
    starts, ends = offsets(log, 5, 0), offsets(log, 60, 60)
    removed(root)
    expire(root, 2)
    assert spans(reader(root), starts, ends) == {0: (5, 60), 1: (0, 60)}, "the file that holds it reaches further"
    assert spans(reader(root, failOnDataLoss="false"), starts, ends) == {0: (5, 60), 1: (0, 60)}
    for file in root.glob("topics/orders/0/segments/*"):
        file.unlink()
    with pytest.raises(NotFound, match="expired"):
        reader(root).partitions(starts, ends)
    assert spans(reader(root, failOnDataLoss="false"), starts, ends) == {0: (40, 60), 1: (0, 60)}


Offsets = dict[str, dict[str, dict[str, int]]]


def offsets(log: Log, first: int, second: int) -> Offsets:
    """Offsets of a stream, as its checkpoint has them."""
    return {log.id: {"orders": {"0": first, "1": second}}}


def spans(stream: StreamReader, starts: Offsets, ends: Offsets) -> dict[int, tuple]:
    """What the tasks of a batch read of each partition."""
    found: dict[int, tuple[int, int]] = {}
    for task in stream.partitions(starts, ends):
        for piece in Task.decode(task.value).pieces:
            low, high = found.get(piece.head.partition, (piece.start, piece.end))
            found[piece.head.partition] = min(low, piece.start), max(high, piece.end)
    return found


def test_a_lease_names_segments_not_files(log: Log, root: Path):
    """What a stream needs is known by the numbers that were sealed, whatever file holds them."""
    stream = reader(root, reader="nightly")
    removed(root)
    stream.commit(offsets(log, 25, 60))
    (lease,) = root.glob("leases/nightly/*.json")
    assert documents.decode(lease.read_bytes(), lease.name, LeaseDocument).needs == {"orders": {"0": 1, "1": 3}}


def test_looking_for_news_costs_no_more_after_a_compaction(log: Log, root: Path):
    stream = reader(root, maxOffsetsPerTrigger="10")
    first = stream.next_end(offsets(log, 0, 0), is_limited=True)
    removed(root)
    assert stream.next_end(offsets(log, 0, 0), is_limited=True) == first
    assert stream._root is not None
    assert stream._root._rewrites == {}, "rewrites are for planning"


class Sink:
    """Idempotent by batch id."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = collected(frame)

    @property
    def rows(self) -> list[Row]:
        return sorted((row for batch in self.batches.values() for row in batch), key=lambda row: row[:3])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxSegmentsPerTrigger", "maxBytesPerTrigger"])
def test_a_stream_paused_over_compactions_goes_on(
    spark: SparkSession, log: Log, root: Path, tmp_path: Path, limit: str
):
    """It stops in the middle of what then becomes one file, larger than its limit."""
    sink = Sink()
    most = {"maxOffsetsPerTrigger": "50", "maxSegmentsPerTrigger": "2", "maxBytesPerTrigger": "9000"}[limit]
    stream = spark.readStream.format("holdfast").options(**{"topic": "orders", limit: most}).load(str(root))
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))

    def run() -> None:
        running = query.trigger(availableNow=True).start()
        assert running.awaitTermination(PATIENCE)

    run()
    first = len(sink.batches)
    assert first > 1
    more(log, 3)
    removed(root)
    run()
    assert sink.rows == rows("orders", 2, 120)
    assert len(sink.batches) > first + 1, "limits hold, as if nothing had been joined"


def test_a_native_stream_paused_over_compactions_goes_on(spark: SparkSession, log: Log, root: Path, tmp_path: Path):
    sink = Sink()

    def run() -> None:
        stream = pyspark_holdfast.read_stream(spark, root, "orders", maxOffsetsPerTrigger=70)
        writer = stream.foreach_batch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    run()
    more(log, 2)
    removed(root)
    run()
    assert sink.rows == rows("orders", 2, 100)
