"""What a read's options mean at this moment: topics, one set of columns, and a span of offsets per partition.

A span never ends beyond what is settled. Requested offsets that are gone (retention was faster) or not settled yet are
refused, with the numbers: an answer with a hole would look like any other answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.model.schema import TopicSchema
from holdfast.reader.offsets import EARLIEST, LATEST, PartitionMark, ReadMarks, Where, require_log
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_columns import ENCRYPTED, Column, choose, columns_of
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import Piece, TimeBounds, pieces_of
from holdfast.root.objects.documents import SegmentDocument, TopicDocument
from holdfast.root.root_contents import versions
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout

logger = logging.getLogger("holdfast")


class RowShape(NamedTuple):
    """What the rows of a read look like."""

    columns: tuple[Column, ...]
    schemas: frozenset[bytes]
    """Fingerprints of the schema versions whose columns are all there."""


def shape_of(topics: Sequence[TopicDocument], options: ReadOptions) -> RowShape:
    """The columns of these topics, which must be of one kind and, if typed, of one schema."""
    if options.emit == "manifest":
        return RowShape((), frozenset())  # topics of any columns: no record is read
    if options.encrypted == "sealed":
        return RowShape(choose(ENCRYPTED, options.columns), frozenset())
    if not topics:
        return RowShape(choose(columns_of(None, kafka_names=options.kafka_names), options.columns), frozenset())
    kinds: dict[bytes, tuple[TopicDocument, tuple[TopicSchema, ...]]] = {}
    for topic in topics:
        known = versions(topic)
        kinds.setdefault(known[-1].fingerprint if known else b"", (topic, known))
    if len(kinds) > 1:
        one, other = (topic.topic for topic, _ in list(kinds.values())[:2])
        raise Invalid(
            f"topics with different columns cannot be read together topics={one},{other}",
            hint="read them one by one, or those of one schema together",
        )
    (_, known) = next(iter(kinds.values()))
    columns = columns_of(known[-1] if known else None, kafka_names=options.kafka_names)
    return RowShape(choose(columns, options.columns), frozenset(version.fingerprint for version in known))


class OffsetSpan(NamedTuple):
    """The offsets of one partition that a read covers."""

    topic: str
    partition: int
    start: int
    end: int


class ResolvedRead(NamedTuple):
    """A read, made definite: asking for it again gives the same rows."""

    log: str
    topics: tuple[TopicDocument, ...]
    shape: RowShape
    spans: tuple[OffsetSpan, ...]

    @property
    def marks(self) -> ReadMarks:
        """What is read of each partition; what `asOf` takes."""
        return ReadMarks(
            self.log, {(span.topic, span.partition): PartitionMark(span.start, span.end) for span in self.spans}
        )


def resolve(root: SettledRoot, options: ReadOptions, pinned: ReadMarks | None = None) -> ResolvedRead:
    """Make a read definite; `pinned` is what was found when the same read was resolved before.

    Then what was retired since is still read: its files stay for a while, and once they are gone that is an error, not
    a shorter answer.
    """
    topics = root.topics(options)
    if pinned is not None:  # what was settled once is settled: nothing more has to be asked
        require_log(
            pinned, root.log, what="what was loaded belongs to", hint="another log was put there since: load it again"
        )
        known = tuple(OffsetSpan(*where, mark.start or 0, mark.end) for where, mark in sorted(pinned.of.items()))
        return ResolvedRead(root.log, tuple(topics), shape_of(topics, options), known)
    settled = root.marks(topics, lambda where: _limit(where, options))
    ends = ends_of(settled, options)
    by_name = {topic.topic: topic for topic in topics}

    def span(where: Where) -> OffsetSpan:
        return OffsetSpan(
            *where, _start(root, by_name[where[0]], where, options, settled[where], ends[where]), ends[where]
        )

    return ResolvedRead(root.log, tuple(topics), shape_of(topics, options), tuple(in_parallel(span, ends)))


def ends_of(settled: Mapping[Where, int], options: ReadOptions) -> dict[Where, int]:
    """Where a read ends in each partition, given what is settled; partitions that are not read are left out."""
    for asked in (options.starting_offsets, options.ending_offsets):
        _refuse_others(asked, settled)
    ends = {where: _end(where, options, mark) for where, mark in settled.items()}
    return {where: end for where, end in ends.items() if end is not None}


def _refuse_others(asked: ReadMarks | str, read: Mapping[Where, int]) -> None:
    """Refuse offsets of what is not read: behind a mistyped topic, the right one would be read from end to end."""
    others = [] if isinstance(asked, str) else sorted(where for where in asked.of if where not in read)
    if others:
        topic, partition = others[0]
        raise Invalid(
            f"offsets name a partition that is not read topic={topic} partition={partition}",
            hint="name only topics and partitions that are read",
        )


def _end(where: Where, options: ReadOptions, settled: int) -> int | None:
    """Where a partition's span ends; None when the partition is not read at all."""
    end = _limit(where, options)
    if end == EARLIEST:
        return None
    if end == LATEST:
        return settled
    if end > settled and options.include_tail:
        return settled  # the rest is looked for in the tail, and refused there
    if end > settled:
        raise Invalid(
            f"this is not settled yet topic={where[0]} partition={where[1]} offset={end} settled={settled}",
            hint="wait until it is, or read up to what is: only settled records are read",
        )
    return end


def _limit(where: Where, options: ReadOptions) -> int:
    """Where a partition's span is set to end."""
    if options.as_of is not None:
        return options.as_of.end(where, EARLIEST)
    return LATEST if isinstance(options.ending_offsets, str) else options.ending_offsets.end(where, LATEST)


def _start(root: SettledRoot, topic: TopicDocument, where: Where, options: ReadOptions, settled: int, end: int) -> int:
    start = _asked_start(where, options)
    if start == LATEST:
        return settled
    earliest = earliest_offset(root, topic, where)
    if start == EARLIEST:
        return earliest
    if start < earliest and start < end:
        return lost(where, start, earliest, fail=options.fail_on_data_loss)
    return start


def _asked_start(where: Where, options: ReadOptions) -> int:
    """Where a partition is set to begin: by `startingOffsets`, else where the read began whose marks are given."""
    asked = options.starting_offsets
    if asked == "latest":
        return LATEST
    mark = None if options.as_of is None else options.as_of.of.get(where)
    begun = EARLIEST if mark is None or mark.start is None else mark.start
    return begun if isinstance(asked, str) else asked.end(where, begun)


def earliest_offset(root: SettledRoot, topic: TopicDocument, where: Where) -> int:
    """Where a partition begins now."""
    expired = root.expired(where)
    return topic.first_offset if expired is None else max(expired.first, topic.first_offset)


def lost(where: Where, start: int, earliest: int, *, fail: bool) -> int:
    """Retention was faster than the reader: raise, or log it and return the first offset that is left."""
    place = f"topic={where[0]} partition={where[1]}"
    message = f"records have expired {place} offsets={start}..{earliest - 1} first_left={earliest}"
    if fail:
        raise NotFound(
            message,
            hint="failOnDataLoss=false continues with what is left; keep segments longer, or name a reader for a lease",
        )
    logger.warning("%s", message, extra={"action": "data_loss", "topic": where[0], "partition": where[1]})
    return earliest


def bounds_of(options: ReadOptions) -> TimeBounds:
    """What the options say about times."""
    return TimeBounds(since=options.since_us, until=None if options.before_us is None else options.before_us - 1)


def pieces(root: SettledRoot, spans: Sequence[OffsetSpan], options: ReadOptions, bounds: TimeBounds) -> list[Piece]:
    """The parts of files that these spans need, by topic, partition and offset."""
    wanted = [span for span in spans if span.start < span.end]
    manifests = in_parallel(lambda span: root.files((span.topic, span.partition)), wanted)
    for span, segments in zip(wanted, manifests, strict=True):
        _check_reach(root, span, segments)
    skip_lost = not options.fail_on_data_loss
    return [
        piece
        for span, segments in zip(wanted, manifests, strict=True)
        for piece in pieces_of(segments, span.start, span.end, bounds, skip_lost=skip_lost)
    ]


def _check_reach(root: SettledRoot, span: OffsetSpan, segments: Sequence[SegmentDocument]) -> None:
    """Check that the manifest holds all that was settled; if not, a part of it was removed."""
    end = segments[-1].end if segments else 0
    if end < span.end:
        raise Corrupt(
            f"the manifest ends before what was settled end={end} settled={span.end} store={root.store.url}",
            path=layout.manifest_folder(span.topic, span.partition),
            topic=span.topic,
            partition=span.partition,
            offset=end,
            hint="`holdfast reconcile DIR --remote --fix` rewrites manifest objects",
        )


def check_schemas(
    found: Sequence[Piece], shape: RowShape, options: ReadOptions, tail: Iterable[tuple[str, bytes]] = ()
) -> None:
    """Refuse what the schema mode does not allow: several versions, or one that is newer than the chosen columns.

    `tail` has topic and schema of what is read beyond segments.
    """
    topics = {schema: topic for topic, schema in tail} | {piece.head.schema: piece.head.topic for piece in found}
    schemas = topics.keys() - {bytes(16)}
    if options.encrypted == "sealed":
        return
    if options.schema_mode == "strict" and len(schemas) > 1:
        raise Invalid(
            f"these records have {len(schemas)} versions of their schema",
            hint="schemaMode=latest reads them with the newest columns, null where a version had none",
        )
    if options.schema_mode != "known" and not schemas <= shape.schemas:
        topic = topics[min(schemas - shape.schemas)]
        raise Invalid(
            f"the schema of topic {topic!r} has grown since this read began",
            hint="restart the query: it continues where it stopped, with the new columns;"
            " or set schemaMode=known to continue without them",
        )
