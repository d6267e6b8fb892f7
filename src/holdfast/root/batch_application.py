"""The manifest objects of a sink's batch, written after it by whoever comes first.

They follow from the batch, byte for byte: writing them again changes nothing, and several may do it at once. A writer
applies what is left before it commits the next batch, so at most the newest one is not applied; whoever publishes,
retires or repairs applies it first and then works on manifest objects alone. A crash in between leaves each partition
with a beginning of what is to come, never with a hole.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from holdfast.errors import Corrupt
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store


def is_applied(store: Store, batch: SinkBatchDocument) -> bool:
    """Whether all manifest objects of a batch are there; one request per partition with new rows."""
    # Slots are filled in order: where the last one stands, all do.
    last = {segment.partition: segment for segment in batch.segments}
    return all(store.head(manifest_key_of(segment)) is not None for segment in last.values())


def apply(store: Store, batch: SinkBatchDocument | None) -> int:
    """Write the manifest objects of a batch that are not there yet, and say how many; raises Corrupt where others are.

    Costs one request per partition with new rows if all are there.
    """
    written = 0
    for _, group in groupby(() if batch is None else batch.segments, attrgetter("partition")):
        segments = list(group)
        # Slots are filled in order: where the last one stands, all do.
        if store.head(manifest_key_of(segments[-1])) is None:
            written += sum(_create(store, segment) for segment in segments)
    return written


def manifest_key_of(segment: SegmentDocument) -> str:
    """Where the manifest object of a segment stands."""
    return layout.manifest_key(segment.topic, segment.partition, segment.slot)


def _create(store: Store, segment: SegmentDocument) -> bool:
    key, data = manifest_key_of(segment), documents.encode(segment)
    try:
        store.create(key, Body.of(data))
    except AlreadyExists:
        if store.get(key) != data:
            raise Corrupt(
                "another manifest object stands where that of a sink's batch belongs", path=key, topic=segment.topic,
                partition=segment.partition, offset=segment.first,
            ) from None  # fmt: skip
        return False
    return True
