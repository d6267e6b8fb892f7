"""A stream of what gets settled: offsets are settled marks, small and stable, and a batch is what lies between two.

Settled records never change and never move. So a batch that Spark requests again, after the driver or an executor was
killed, is the same batch, and with a sink that is idempotent by batch id every record arrives exactly once. Looking for
new records costs one request per topic and partition, however long the history is. Manifests are read once and kept.

A query that cannot continue fails with an error that says why: retention removed records while it was away
(`failOnDataLoss`), or a newer schema has other columns (`schemaMode`). A partition that is new to a query begins at its
very first record. If retention has already removed that, it is an error too, and a batch that is requested again cannot
begin later than before.

Offsets carry the id of their log: at another log, as one recreated at the same place, they would pass over its first
records. So every trigger looks whose root it is, and refuses one that has less than the query has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.reader.admission import AdmissionLimits, admit
from holdfast.reader.lease import Lease, segment_number
from holdfast.reader.offsets import EARLIEST, LATEST, Where, marks_in, nested, require_log
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import meeting
from holdfast.reader.resolve import OffsetSpan, earliest_offset, lost, pieces
from holdfast.root.numbered_objects import segments_below
from holdfast.root.objects.documents import SegmentDocument, TopicDocument
from pyspark_holdfast.batch import RowReading
from pyspark_holdfast.error_reports import in_short
from pyspark_holdfast.versions.stream_triggers import JsonOffsets, Triggers, check_limits


class StreamReader(RowReading, Triggers, DataSourceStreamReader):
    """Plans micro-batches on the driver. Executors read them."""

    def __init__(self, place: str, options: ReadOptions, schema: StructType, *, is_inferred: bool) -> None:
        super().__init__(place, options, schema, is_inferred=is_inferred)
        check_stream(options)
        self._root: SettledRoot | None = None
        self._lease: Lease | None = None
        self._stop: dict[Where, int] | None = None
        """Where a query ends that takes what is available now."""

    def __getstate__(self) -> dict[str, Any]:
        """Executors get the options, not what the driver holds open."""
        return {**self.__dict__, "_root": None, "_lease": None, "_stop": None}

    # -- offsets ------------------------------------------------------------------------------------------

    def first_start(self) -> JsonOffsets:
        """Where a new query begins."""
        asked, root = self._options.starting_offsets, self._opened()
        starts = {}
        for topic in root.topics(self._options):
            for number in range(topic.partitions):
                where = (topic.topic, number)
                words = {"latest": LATEST, "earliest": EARLIEST}
                offset = words[asked] if isinstance(asked, str) else asked.end(where, EARLIEST)
                if offset == LATEST:
                    starts[where] = root.settled(topic, number)
                elif offset == EARLIEST:
                    starts[where] = self._earliest(topic, where)
                else:
                    starts[where] = offset
        return self._as_json(starts)

    def end_here(self) -> None:
        """The query ends with what is settled now."""
        self._stop = self._marks()

    def next_end(self, start: JsonOffsets, *, is_limited: bool) -> JsonOffsets:
        """Where a batch ends that begins there."""
        self._opened().require_same_log()
        begun = self._offsets(start)
        self._renew(begun)
        ends = self._stop if self._stop is not None else self._marks()
        self._check_not_ahead(begun, ends)
        starts = self._begun(begun, ends)
        # Never go back and never drop a partition, even if the store shows less than before.
        ends = {where: max(ends.get(where, 0), offset) for where, offset in starts.items()}
        limits = AdmissionLimits(self._options.max_offsets, self._options.max_bytes, self._options.max_segments)
        if not is_limited or not any(limits):
            return self._as_json(ends)
        starts = {where: self._left(where, offset, ends[where]) for where, offset in starts.items()}
        return self._as_json(
            admit(starts, {where: self._between(where, starts[where], ends[where]) for where in ends}, limits)
        )

    def settled_end(self) -> JsonOffsets:
        """What is settled."""
        return self._as_json(self._marks())

    @in_short
    def commit(self, end: JsonOffsets) -> None:
        """A batch is done: what lies before it is no longer needed."""
        self._renew(self._offsets(end))

    # -- batches ------------------------------------------------------------------------------------------

    @in_short
    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        """The tasks of one batch."""
        root, ends = self._opened(), self._offsets(self.saw(end))
        starts = self._begun(self._offsets(start), ends)
        topics = {topic.topic: topic for topic in self._topics(ends)}
        spans = [self._span(topics[where[0]], where, starts[where], ends[where]) for where in sorted(ends)]
        if self._options.emit == "manifest":
            return self._manifests(root, spans)
        found = pieces(root, spans, self._options, self._bounds)
        self._check_keys(found)
        self._check_columns(list(topics.values()), found)
        return self._partitions(root, found)

    def stop(self) -> None:
        """The query ends. Its lease stays until it expires, for the query's next run."""

    # -- what there is ------------------------------------------------------------------------------------

    def _opened(self) -> SettledRoot:
        if self._root is None:
            self._root = SettledRoot.open(self._place, self._options)
        return self._root

    def _as_json(self, offsets: Mapping[Where, int]) -> JsonOffsets:
        """Offsets for Spark's checkpoint."""
        return {self._opened().log: nested(offsets)}

    def _offsets(self, offsets: JsonOffsets) -> dict[Where, int]:
        """Offsets that Spark kept; refused if they are those of another log."""
        marks = marks_in(offsets, least=0)
        if marks.of and not marks.log:
            raise Invalid("these offsets name no log", hint="take a new checkpointLocation")
        require_log(
            marks,
            self._opened().log,
            what="the checkpoint belongs to",
            hint="read the root that the query has read so far, or take a new checkpointLocation to read this one",
        )
        return marks.ends

    def _marks(self) -> dict[Where, int]:
        root = self._opened()
        return root.marks(root.topics(self._options))

    def _topics(self, ends: Mapping[Where, int]) -> list[TopicDocument]:
        return [self._opened().topic(name) for name in sorted({topic for topic, _ in ends})]

    def _begun(self, starts: Mapping[Where, int], ends: Mapping[Where, int]) -> dict[Where, int]:
        """Where partitions begin: those that are new to the query begin at their very first record."""
        new = [where for where in ends if where not in starts]
        first = {name: self._opened().topic(name).first_offset for name in {topic for topic, _ in new}}
        return {**starts, **{where: first[where[0]] for where in new}}

    def _check_not_ahead(self, begun: Mapping[Where, int], ends: Mapping[Where, int]) -> None:
        """Refuse a root that has less than the query has already read: it was rolled back, or has lost records."""
        for where, offset in begun.items():
            settled = ends.get(where, 0)
            if offset > settled and self._options.fail_on_data_loss:
                raise Invalid(
                    f"the checkpoint is ahead of the root topic={where[0]} partition={where[1]} offset={offset}"
                    f" settled={settled}",
                    hint="the root has lost records, or is an older copy: put the newer one back, or take a new"
                    " checkpointLocation; failOnDataLoss=false waits until the root is as far",
                )

    def _earliest(self, topic: TopicDocument, where: Where) -> int:
        """Where a new query begins in a partition: at the first record that is left and not too old."""
        start = earliest_offset(self._opened(), topic, where)
        if self._bounds.since is None:
            return start
        for segment in self._opened().segments(where):
            if segment.first + segment.rows > start and not self._bounds.misses(segment.time_min, segment.time_max):
                return max(start, segment.first)
        return max(start, self._opened().settled(topic, where[1]))

    def _left(self, where: Where, start: int, end: int) -> int:
        """Where a partition that may have lost records continues. Lost records do not count towards limits."""
        if start >= end or self._options.fail_on_data_loss:
            return start
        return min(self._next(self._opened().topic(where[0]), where, start), end)

    def _next(self, topic: TopicDocument, where: Where, start: int) -> int:
        """Where a query that is at `start` continues: there, or at the first file that is left.

        Files of retired segments stay for a while, and as long as a lease names them, for queries that still need them.
        """
        root = self._opened()
        expired = root.expired(where)
        if expired is None or start >= expired.first:
            return max(start, topic.first_offset)
        there = self._present(where, expired.upto)
        first = expired.first
        for file in reversed(meeting(root.files(where), start, expired.first)):
            if file.key not in there:
                break
            first = file.first
        return max(start, first, topic.first_offset)

    def _present(self, where: Where, upto: int) -> set[str]:
        """The files that begin with a segment below `upto`."""
        return {key for _, key in segments_below(self._opened().store, *where, upto)}

    def _between(self, where: Where, start: int, end: int) -> Sequence[SegmentDocument]:
        return meeting(self._opened().segments(where), start, end) if start < end else ()

    def _span(self, topic: TopicDocument, where: Where, start: int, end: int) -> OffsetSpan:
        if start < end:
            left = self._next(topic, where, start)
            if start < left:
                start = min(lost(where, start, left, fail=self._options.fail_on_data_loss), end)
        return OffsetSpan(*where, start, end)

    # -- the lease ----------------------------------------------------------------------------------------

    def _renew(self, starts: Mapping[Where, int]) -> None:
        options, root = self._options, self._opened()
        if not options.reader:
            return
        if self._lease is None:
            if not root.is_store():
                raise Invalid(
                    "a lease needs a store: retention in a log's own directory checks no leases",
                    hint="leave reader out, or read the store that the log ships to",
                )
            self._lease = Lease(root.store, root.log, options.reader, options.lease_seconds, SystemClock())
        if self._lease.is_due():
            self._lease.renew({where: self._number(where, offset) for where, offset in starts.items()})

    def _number(self, where: Where, offset: int) -> int:
        return segment_number(self._opened().segments(where), offset)


def check_stream(options: ReadOptions) -> None:
    """Refuse options that say where to end, as Kafka's source does: a stream has no end. Nor has it a tail.

    Limits that this Spark would not keep are refused, too.
    """
    check_limits(options)
    if options.include_tail:
        raise Invalid(
            "includeTail has no meaning in a stream: records arrive as they are settled",
            hint="leave includeTail out; a batch read takes it",
        )
    asked = {
        "asOf": options.as_of is not None,
        "endingOffsets": options.ending_offsets != "latest",
        "endingTimestamp": options.before_us is not None,
    }
    wrong = [name for name, is_given in asked.items() if is_given]
    if wrong:
        raise Invalid(
            f"a stream has no end: {', '.join(wrong)}",
            hint="leave it out; trigger(availableNow=True) ends with what is settled",
        )
