"""The manifest objects that follow from a batch: written after it, by whoever comes first.

Their bytes are a function of the batch, so it does not matter who writes them, or how often. All but the last are
written together and the last one after them: if it is there, all are. Until then readers take the segments from the
batch itself.
"""

from __future__ import annotations

import logging

from holdfast.errors import Corrupt, HoldfastError
from holdfast.root.checkpointing import CHECKPOINT_EVERY, write_checkpoint
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout
from holdfast.store.port import Body, Store
from holdfast.store.repeated_create import create_repeatedly

logger = logging.getLogger("holdfast")


def apply_batch(store: Store, batch: SinkBatchDocument | None) -> None:
    """Write the manifest objects of a batch that are not there yet; one request if all are. Raises Corrupt."""
    if batch is None or not batch.segments:
        return
    *others, last = batch.segments
    if store.head(_key(last)) is not None:
        return
    in_parallel(lambda segment: _put(store, segment), others)
    _put(store, last)
    for segment in batch.segments:
        if (segment.slot + 1) % CHECKPOINT_EVERY == 0:
            _write_checkpoint(store, segment)


def _put(store: Store, segment: SegmentDocument) -> None:
    data = documents.encode(segment)

    def require_same(key: str) -> None:
        if store.get(key) != data:
            raise Corrupt("a manifest object is not the one that the sink's batch says", path=key, topic=segment.topic)

    create_repeatedly(store, _key(segment), Body.of(data), require_same)


def _key(segment: SegmentDocument) -> str:
    return layout.manifest_key(segment.topic, segment.partition, segment.slot)


def _write_checkpoint(store: Store, segment: SegmentDocument) -> None:
    """Planning does without a checkpoint, and the batch is part of the topic in any case."""
    try:
        write_checkpoint(store, segment.log, segment.topic, segment.partition, segment.slot)
    except HoldfastError as error:
        logger.error("a checkpoint cannot be written: %s", error.message, extra={"action": "checkpoint_damaged"})
