"""What a restore brought back, and what it could not prove: the report, for people and for scripts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from holdfast.model.control_rows import EXPIRED, LIVE, LOST, SegmentRow
from holdfast.recovery.restored_database import RootContents
from holdfast.root.objects.documents import TopicDocument
from holdfast.root.store_manifest import StoreManifest

logger = logging.getLogger("holdfast")


class RestoredPolicy(msgspec.Struct, frozen=True):
    """A topic's own retention, as the store says it: the restored log will delete by it. 0 = no limit."""

    topic: str
    bytes_max: int
    age_max_us: int
    records_max: int
    """0 is no limit, of each."""


class RestoredExpiry(msgspec.Struct, frozen=True):
    """Segments of a partition that are retired, and do not come back."""

    topic: str
    partition: int
    segments: int
    first: int
    """Where the partition begins now."""
    records: int
    """Retired with them."""


class RestoredLoss(msgspec.Struct, frozen=True):
    """Records of a partition that were settled, and that the store has lost."""

    topic: str
    partition: int
    first: int
    """The first offset."""
    records: int
    """How many."""


class RestoreReport(msgspec.Struct, frozen=True):
    """What was brought back."""

    log: str
    """The log's id."""
    store: str
    """The store's address."""
    epoch: int
    """The claim on the store; 0 for a copy."""
    topics: int
    """How many are back."""
    partitions: int
    """How many are back."""
    segments: int
    """Segments that the log has now."""
    records: int
    """All that can be read now, in segments and tail."""
    tail_records: int
    """Those of them that came from commit batches."""
    bytes: int
    """Of the segments."""
    resumed: int
    """Segments that an earlier, interrupted restore had fetched already."""
    expired: int
    """Segments whose place in the chain is known and whose records were retired."""
    cut_batches: int
    """Commit batches behind a hole; with `lost_commits` 0, none were acknowledged as shipped."""
    cut_records: int
    """Records in those, and in other batches behind a hole inside of one."""
    acknowledged_seq: int = 0
    """The last commit that the store says was acknowledged as shipped."""
    lost_commits: int = 0
    """Commits that were acknowledged and are not there; above 0 only where the loss was accepted."""
    keys: int = 0
    """Idempotency keys that are known again."""
    policies: tuple[RestoredPolicy, ...] = ()
    """Retention of topics, by which this log will delete."""
    expiries: tuple[RestoredExpiry, ...] = ()
    """What is retired and did not come back."""
    not_proved: tuple[str, ...] = ()
    """What had to be taken on trust, in words."""
    sink_topics: tuple[str, ...] = ()
    """Topics of the root that sinks write: they stay on the store as they are, and are read there."""
    lost_settled: tuple[RestoredLoss, ...] = ()
    """Records that were settled and are not there; only where the loss was accepted."""


def warn_of_losses(rows: list[SegmentRow], seen: RootContents, cut: int) -> None:
    """Say in the log's output what is missing from what was brought back; `cut`: records that are left out."""
    if lost := [row for row in rows if row.state == LOST]:
        logger.warning(
            "the log was rebuilt before it was shipped, and %d records were lost then",
            sum(row.rows for row in lost),
            extra={"action": "restored_lost", "segments": len(lost)},
        )
    if seen.lost:
        batches = len(seen.inherited.beyond)
        logger.warning(
            "restored with a loss that was accepted: %d commits that were acknowledged as shipped are missing from"
            " seq %d on; %d batches with %d records after them are left out and stay on the store",
            seen.lost,
            seen.walked.reach + 1,
            batches,
            cut,
            extra={"action": "restored_with_loss", "commits": seen.lost, "batches": batches, "records": cut},
        )


def policies(topics: Iterable[TopicDocument]) -> tuple[RestoredPolicy, ...]:
    """What the restored log will delete by."""
    return tuple(
        RestoredPolicy(topic.topic, topic.retention.bytes_max, topic.retention.age_max_us, topic.retention.records_max)
        for topic in topics
        if topic.retention is not None
    )


def expiries(manifests: Iterable[StoreManifest]) -> tuple[RestoredExpiry, ...]:
    """What is retired, partition by partition."""
    found = []
    for manifest in manifests:
        gone = [segment for segment in manifest.segments if manifest.expired and segment.number < manifest.expired.upto]
        if manifest.expired is not None and gone:
            records = sum(segment.rows for segment in gone)
            found.append(RestoredExpiry(manifest.topic, manifest.partition, len(gone), manifest.expired.first, records))
    return tuple(found)


def not_proved(
    rows: Iterable[SegmentRow], seen: RootContents, *, keyed: bool, damaged: int, unread: int
) -> tuple[str, ...]:
    """What had to be taken on trust."""
    rows, doubts = list(rows), list(_beyond(seen))
    if not keyed:
        doubts.append(
            "the log is not encrypted: everything agrees with itself, and nothing proves that this log wrote it"
        )
    if any(row.state == EXPIRED for row in rows):
        doubts.append("records of expired segments are gone: that they had expired is only said")
    if lost := sum(row.rows for row in rows if row.state == LOST):
        doubts.append(f"{lost} records were lost when the log was rebuilt, before it was shipped")
    if unread:
        doubts.append(f"{unread} commit batches after a hole cannot be read: what they say was acknowledged is unknown")
    if damaged:
        doubts.append(f"{damaged} damaged objects were left out, because the loss was accepted")
    return tuple(doubts)


def _beyond(seen: RootContents) -> Iterable[str]:
    """What may have been lost at the end of partitions."""
    yield from (f"records that were settled are missing {one}: the loss was accepted" for one in seen.behind)
    if seen.frontier is None and seen.topics:
        yield "there is no frontier: newest manifest objects that are missing cannot be noticed"
    if seen.lost_keys is not None:
        yield "idempotency keys are missing: repeats of what was appended under them will not be recognised"
    for (topic, partition), files in sorted(seen.files_beyond.items()):
        yield (
            f"{files} segment files are after the newest manifest object topic={topic} partition={partition}:"
            " they were on their way, or their manifest objects are lost"
        )


def lost_settled(seen: RootContents) -> tuple[RestoredLoss, ...]:
    """What is missing of what was settled; also said aloud."""
    if seen.behind:
        logger.warning(
            "restored with a loss that was accepted: records that were settled are missing, in %d partitions; %s",
            len(seen.behind),
            seen.behind[0],
            extra={"action": "restored_with_loss", "partitions": len(seen.behind)},
        )
    return tuple(RestoredLoss(one.topic, one.partition, one.there, one.settled - one.there) for one in seen.behind)


def live(rows: Iterable[SegmentRow]) -> list[SegmentRow]:
    """Segments whose files are here."""
    return [row for row in rows if row.state == LIVE]
