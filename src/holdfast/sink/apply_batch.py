"""A batch that was committed, put into the manifests of its partitions by the writer.

Partitions are done several at once, the last one after the others: if its last manifest object is there, all are, and
one request tells. Now and then a checkpoint follows. Until then readers take the segments from the batch itself.
"""

from __future__ import annotations

import logging
from itertools import groupby
from operator import attrgetter

import msgspec

from holdfast.errors import HoldfastError
from holdfast.root.batch_application import apply, stands
from holdfast.root.checkpointing import CHECKPOINT_EVERY, write_checkpoint
from holdfast.root.objects.documents import SegmentDocument, SinkBatchDocument
from holdfast.root.store_manifest import in_parallel
from holdfast.store.port import Store

logger = logging.getLogger("holdfast")


def apply_batch(store: Store, batch: SinkBatchDocument | None) -> None:
    """Write the manifest objects of a batch that are not there yet; one request if all are. Raises Corrupt."""
    if batch is None or not batch.segments or stands(store, batch.segments[-1]):
        return
    *others, last = [
        msgspec.structs.replace(batch, segments=tuple(group))
        for _, group in groupby(batch.segments, attrgetter("partition"))
    ]
    in_parallel(lambda part: apply(store, part), others)
    apply(store, last)
    for segment in batch.segments:
        if (segment.slot + 1) % CHECKPOINT_EVERY == 0:
            _write_checkpoint(store, segment)


def _write_checkpoint(store: Store, segment: SegmentDocument) -> None:
    """Planning does without a checkpoint, and the batch is part of the topic in any case."""
    try:
        write_checkpoint(store, segment.log, segment.topic, segment.partition, segment.slot)
    except HoldfastError as error:
        logger.error("a checkpoint cannot be written: %s", error.message, extra={"action": "checkpoint_damaged"})
