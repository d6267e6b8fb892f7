"""The manifest objects of a sink's batch, written after it by the first process that needs them.

They follow from the batch, byte for byte: writing them again changes nothing, and several may do it at once. A writer
applies what is left before it commits the next batch, so at most the newest one is not applied; publication, retirement
and repair apply it first and then work on manifest objects alone. Until then readers take the segments from the batch
itself.

The slots of a partition are filled in order, partitions side by side, and the batch's last segment comes after all
others: a crash leaves each partition with a beginning of what is to come and never with a hole, and where the last one
stands, all do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from holdfast.errors import Corrupt, HoldfastError, NotFound
from holdfast.root.checkpointing import CHECKPOINT_EVERY, write_checkpoint
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout
from holdfast.store.port import Body, Store
from holdfast.store.repeated_create import create_repeatedly

logger = logging.getLogger("holdfast")


def is_applied(store: Store, batch: SinkBatchDocument) -> bool:
    """Whether all manifest objects of a batch are there; one request. Raises Corrupt where the last is another one."""
    return not batch.segments or stands(store, batch.segments[-1])


def apply(store: Store, batch: SinkBatchDocument | None) -> None:
    """Write the manifest objects of a batch that are not there yet; one request if all are.

    Raises Corrupt where another object stands in the place of one.
    """
    if batch is None or is_applied(store, batch):
        return
    *others, last = batch.segments
    partitions = [list(group) for _, group in groupby(others, attrgetter("partition"))]
    in_parallel(lambda segments: _write(store, segments), partitions)
    _write(store, [last])
    for segment in batch.segments:
        if (segment.slot + 1) % CHECKPOINT_EVERY == 0:
            _write_checkpoint(store, segment)


def manifest_key_of(segment: SegmentDocument) -> str:
    """Where the manifest object of a segment stands."""
    return layout.manifest_key(segment.topic, segment.partition, segment.slot)


def stands(store: Store, segment: SegmentDocument) -> bool:
    """Whether the manifest object of a segment is there; raises Corrupt where it is another one."""
    key = manifest_key_of(segment)
    try:
        data = store.get(key)
    except NotFound:
        return False
    if data != documents.encode(segment):
        raise Corrupt(
            "another manifest object is where that of a sink's batch belongs",
            path=key,
            topic=segment.topic,
            partition=segment.partition,
            offset=segment.first,
        )
    return True


def _write(store: Store, segments: Sequence[SegmentDocument]) -> None:
    for segment in segments:

        def require_same(key: str, segment: SegmentDocument = segment) -> None:
            stands(store, segment)

        create_repeatedly(store, manifest_key_of(segment), Body.of(documents.encode(segment)), require_same)


def _write_checkpoint(store: Store, segment: SegmentDocument) -> None:
    """Planning does without a checkpoint, and the batch is part of the topic in any case."""
    try:
        write_checkpoint(store, segment.log, segment.topic, segment.partition, segment.slot)
    except HoldfastError as error:
        logger.error("a checkpoint cannot be written: %s", error.message, extra={"action": "checkpoint_damaged"})
