"""The streaming twin of the fast path: the stream carries segments, and Spark's own reader reads each batch of them.

    stream = pyspark_holdfast.read_stream(spark, "/srv/log", "orders", maxSegmentsPerTrigger=8)
    query = stream.foreach_batch(land).option("checkpointLocation", "/srv/checkpoint").start()

Only one row per segment goes through Python, however large the segment is. Offsets, limits, restarts and refusals are
those of the format's stream. A batch that is requested again is the same batch, so a function that is idempotent by
batch id sees every record exactly once. Both paths write the same offsets to a checkpoint, so a query can switch from
one to the other and continue where it was.

Where Spark cannot read the files itself, rows come through the format's stream. If encryption begins later, the batches
that need it are read through the format. `path_of(batch)` says which. A batch carries no marks: its start and end are
in the query's progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Corrupt
from holdfast.model.segment import NO_SCHEMA, Segment, SegmentFacts, SegmentHead
from holdfast.reader.offsets import PartitionMark, ReadMarks, format_marks
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions, parse_options
from holdfast.reader.read_plan import Piece
from holdfast.reader.resolve import bounds_of, check_schemas, shape_of
from holdfast.root.objects.documents import SegmentDocument, TopicDocument
from holdfast.store import layout
from holdfast.store.address import parse_url
from pyspark_holdfast import native
from pyspark_holdfast.error_reports import naming_store
from pyspark_holdfast.native import NATIVE, PathTaken
from pyspark_holdfast.parquet_scan import Unscannable, check_reach, folders_of
from pyspark_holdfast.start_race import forestall
from pyspark_holdfast.stream import check_stream
from pyspark_holdfast.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

BatchFunction = Callable[["DataFrame", int], None]
"""Called with the rows of a batch and its number."""


def read_stream(
    spark: SparkSession,
    root: str | Path,
    topic: str | Sequence[str] = "",
    *,
    columns: str | Sequence[str] | None = None,
    **options: str | int | bool,
) -> NativeStream:
    """A stream of what gets settled, read natively where possible. Options are those of the format."""
    forestall(spark)
    given = native.given_options(root, topic, columns, options)
    place, chosen = parse_options(given)
    check_stream(chosen)
    with naming_store(place, chosen.store.endpoint):
        opened = SettledRoot.open(place, chosen)
        topics = opened.topics(chosen)
        taken = _path(spark, opened, topics, given, chosen)
    native.tell(taken)
    return NativeStream(spark, opened, topics, given, chosen, taken)


def _path(
    spark: SparkSession,
    root: SettledRoot,
    topics: Sequence[TopicDocument],
    given: Mapping[str, str],
    chosen: ReadOptions,
) -> PathTaken:
    reason = native.reason_of_options(given, chosen)
    if reason is not None:
        return PathTaken("format", reason)
    try:
        native.check_columns(spark, shape_of(topics, chosen).columns, native.all_columns(topics, chosen))
        check_reach(spark, parse_url(root.store.url))
        _check_newest(root, topics)
    except Unscannable as error:
        return PathTaken("format", str(error))
    return NATIVE


def _check_newest(root: SettledRoot, topics: Iterable[TopicDocument]) -> None:
    """Unscannable if the newest records are encrypted: the next ones will be too."""
    for topic in topics:
        for partition in range(topic.partitions):
            last = root.last((topic.topic, partition))
            if isinstance(last, SegmentDocument) and last.key_id:
                raise Unscannable(f"records are encrypted topics={topic.topic}")


class NativeStream:
    """A stream that has not been started. Made by `read_stream`."""

    def __init__(
        self,
        spark: SparkSession,
        root: SettledRoot,
        topics: Sequence[TopicDocument],
        given: Mapping[str, str],
        chosen: ReadOptions,
        taken: PathTaken,
    ) -> None:
        self._spark = spark
        self._root = root
        self._given = dict(given)
        # As in the format: a query that chose columns keeps them when new ones appear.
        is_chosen = chosen.columns is not None and chosen.schema_mode == "latest"
        self._asked = msgspec.structs.replace(chosen, schema_mode="known") if is_chosen else chosen
        self._shape = shape_of(topics, chosen)
        self.path = taken
        """How batches are read, and why so."""
        self.schema: StructType = spark_schema(self._shape.columns)
        """The columns of every batch."""

    def foreach_batch(self, function: BatchFunction) -> DataStreamWriter:
        """A query that calls a function with each batch; give it a checkpointLocation and a trigger, and start it."""
        is_native = self.path.path == "native"
        emit = {"emit": "segments"} if is_native else {}
        stream = self._spark.readStream.format("holdfast").options(**self._given, **emit).load()
        called = _from_segments(self, function) if is_native else _from_rows(self.schema, self.path, function)
        return stream.writeStream.foreachBatch(called)

    def frame(self, spark: SparkSession, found: Sequence[Piece]) -> DataFrame:
        """The rows of one batch, given its segments."""
        check_schemas(found, self._shape, self._asked)
        try:
            bounds = bounds_of(self._asked)
            return native.native_frame(spark, self._root, found, self._shape.columns, bounds, self.schema)
        except Unscannable as error:
            return self._through_format(spark, found, str(error))

    def piece(self, row: Row) -> Piece:
        """A segment from a row of the stream. Fields that only a proof would need are empty."""
        name = layout.parse_segment_name(row["key"].rpartition("/")[2])
        if name is None:
            raise Corrupt("a row of the stream does not name a segment", path=row["key"])
        head = SegmentHead(
            log_id=bytes.fromhex(self._root.log),
            topic=row["topic"],
            partition=row["partition"],
            number=row["number"],
            first=row["first_offset"],
            epoch=0,
            schema=bytes.fromhex(row["schema"]) or NO_SCHEMA,
            previous=b"",
        )
        facts = SegmentFacts(
            rows=row["rows"],
            size=row["bytes"],
            time_min=0,
            time_max=0,
            sha256=bytes.fromhex(name.hash),
            content=b"",
            footer=b"",
            key_id=row["key_id"],
        )
        return Piece(Segment(head=head, facts=facts), row["start_offset"], row["end_offset"])

    def _through_format(self, spark: SparkSession, found: Sequence[Piece], reason: str) -> DataFrame:
        """The same rows, read by the format: exactly the offsets of this batch."""
        spans = folders_of(found)
        given = {name: value for name, value in self._given.items() if name.lower() != "startingoffsets"}
        given["native"] = "false"  # that was tried
        read = {where: PartitionMark(span.start, span.end) for where, span in spans.items()}
        given["asOf"] = format_marks(ReadMarks(self._root.log, read))
        taken = PathTaken("format", reason)
        native.tell(taken)
        frame = spark.read.format("holdfast").options(**given).schema(self.schema).load()
        return native.relabelled(frame, native.with_path(self.schema, taken))


def _from_segments(stream: NativeStream, function: BatchFunction) -> BatchFunction:
    def called(batch: DataFrame, number: int) -> None:
        function(stream.frame(batch.sparkSession, [stream.piece(row) for row in batch.collect()]), number)

    return called


def _from_rows(schema: StructType, taken: PathTaken, function: BatchFunction) -> BatchFunction:
    # Without the stream: a remote session pickles this for its server, and nothing open may go with it.
    carried = native.with_path(schema, taken)

    def called(batch: DataFrame, number: int) -> None:
        function(native.relabelled(batch, carried), number)

    return called
