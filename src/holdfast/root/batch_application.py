"""The manifest objects that follow from a sink's batch: written after it, by whoever comes first.

Their bytes are a function of the batch, so it does not matter who writes them, or how often, or who else does. Those of
one partition are written in the order of their slots, so that a crash leaves no hole, and the last of all after all
others: if it is there, all are. A writer applies what is left before it commits the next batch, so at most the newest
one is not applied. Readers take what is missing from the batch itself; whoever publishes or retires applies it first,
and then works on manifest objects alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from holdfast.errors import Corrupt, HoldfastError
from holdfast.root.checkpointing import CHECKPOINT_EVERY, write_checkpoint
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout
from holdfast.store.port import Body, Store
from holdfast.store.repeated_create import create_repeatedly

logger = logging.getLogger("holdfast")


def is_applied(store: Store, batch: SinkBatchDocument | None) -> bool:
    """Whether the manifest objects of a batch are there; one request."""
    return batch is None or not batch.segments or store.head(manifest_key_of(batch.segments[-1])) is not None


def apply_batch(store: Store, batch: SinkBatchDocument | None) -> None:
    """Write the manifest objects of a batch that are not there yet; one request if all are. Raises Corrupt."""
    if batch is None or is_applied(store, batch):
        return
    *others, last = batch.segments
    partitions = [list(segments) for _, segments in groupby(others, attrgetter("partition"))]
    in_parallel(lambda segments: _put_all(store, segments), partitions)
    _put(store, last)
    for segment in batch.segments:
        if (segment.slot + 1) % CHECKPOINT_EVERY == 0:
            _write_checkpoint(store, segment)


def manifest_key_of(segment: SegmentDocument) -> str:
    """Where the manifest object of a segment stands."""
    return layout.manifest_key(segment.topic, segment.partition, segment.slot)


def _put_all(store: Store, segments: Sequence[SegmentDocument]) -> None:
    for segment in segments:
        _put(store, segment)


def _put(store: Store, segment: SegmentDocument) -> None:
    data = documents.encode(segment)

    def require_same(key: str) -> None:
        if store.get(key) != data:
            raise Corrupt("a manifest object is not the one that the sink's batch says", path=key, topic=segment.topic)

    create_repeatedly(store, manifest_key_of(segment), Body.of(data), require_same)


def _write_checkpoint(store: Store, segment: SegmentDocument) -> None:
    """Planning does without a checkpoint, and the batch is part of the topic in any case."""
    try:
        write_checkpoint(store, segment.log, segment.topic, segment.partition, segment.slot)
    except HoldfastError as error:
        logger.error("a checkpoint cannot be written: %s", error.message, extra={"action": "checkpoint_damaged"})
