"""Many manifest objects in one file: how a checkpoint is written, by the process that settled the last of them.

A checkpoint says nothing that the objects do not say. One that was not written costs readers time, and nothing else.
"""

from __future__ import annotations

from holdfast.root.numbered_objects import numbered
from holdfast.root.objects import checkpoint
from holdfast.root.store_manifest import read_upto
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store

CHECKPOINT_EVERY = 1_000
"""Manifest objects of a partition from one checkpoint to the next, where nothing else is set."""
_CHECKPOINTS_KEPT = 2


def write_checkpoint(store: Store, log: str, topic: str, partition: int, slot: int) -> None:
    """Write the checkpoint up to a slot, from the one before and the manifest objects since; old ones are removed."""
    folder = layout.checkpoints_folder(topic, partition)
    older = [key for key in numbered(store, folder) if (layout.parse_number(key) or 0) < slot]
    rows = read_upto(store, log, topic, partition, slot)
    try:
        store.create(layout.checkpoint_key(topic, partition, slot), Body.of(checkpoint.encode(rows)))
    except AlreadyExists:
        pass  # written before a crash, from the same objects
    store.delete(older[: -(_CHECKPOINTS_KEPT - 1)])
