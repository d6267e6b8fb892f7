"""The manifest as the documents of a store: pure functions of durable rows; equal rows give equal bytes."""

from __future__ import annotations

from base64 import b64encode

from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SegmentRow
from holdfast.model.segment import Segment
from holdfast.root.objects import documents
from holdfast.root.objects.documents import (
    ExpiredDocument,
    RetentionLimits,
    SchemaVersion,
    SegmentDocument,
    TopicDocument,
)
from holdfast.segments.manifest.local_manifest import Manifest


def segment_document(manifest: Manifest, partition: Partition, row: SegmentRow, slot: int) -> SegmentDocument:
    """The manifest object of a segment, in this slot."""
    segment = Segment(head=manifest.head(partition, row), facts=row.facts)
    return SegmentDocument.of(segment, slot=slot, chain=row.chain, sealed_us=row.sealed_us)


def topic_document(journal: Journal, manifest: Manifest, topic: str, version: int) -> TopicDocument:
    """A topic as it is now."""
    partitions = journal.topics[topic]
    policy = journal.policies.get(topic)
    schemas = journal.schemas.get(topic, ())
    return TopicDocument(
        log=journal.log_id.hex(),
        topic=topic,
        version=version,
        partitions=len(partitions),
        first_offset=first_offset(manifest, partitions[0]),
        schemas=tuple(SchemaVersion(row.fingerprint.hex(), b64encode(row.definition).decode()) for row in schemas),
        codec=journal.codecs.get(topic, ""),
        retention=None if policy is None else RetentionLimits(policy.bytes_max, policy.age_max_us, policy.records_max),
    )


def topic_state(journal: Journal, topic: str) -> tuple[int, bytes]:
    """What can change about a topic: how many schemas it has, and which retention policy."""
    policy = journal.policies.get(topic)
    return len(journal.schemas.get(topic, ())), b"" if policy is None else policy.stamp


def next_topic_document(
    journal: Journal, manifest: Manifest, topic: str, newest: int, current: bytes | None
) -> TopicDocument | None:
    """The document to be written about a topic; None if the newest one there says it already."""
    if current == documents.encode(topic_document(journal, manifest, topic, newest)):
        return None
    return topic_document(journal, manifest, topic, newest + 1)


def expired_document(journal: Journal, partition: Partition, upto: int, first: int, expired_us: int) -> ExpiredDocument:
    """Segments of a partition below a number are retired; it begins at this offset now."""
    return ExpiredDocument(
        log=journal.log_id.hex(),
        topic=partition.topic,
        partition=partition.number,
        upto=upto,
        first=first,
        expired_us=expired_us,
    )


def gone_document(journal: Journal, partition: Partition) -> ExpiredDocument:
    """What retention has removed here is retired at once: its files are gone."""
    return expired_document(journal, partition, partition.sealed.first_segment, partition.sealed.first_offset, 0)


def first_offset(manifest: Manifest, partition: Partition) -> int:
    """Where a partition began."""
    sealed = partition.sealed
    return manifest.row(partition, 0).first_offset if sealed.segments else sealed.sealed_offset
