"""Repairs on a store: few, each proved first, and none without asking whether the root is still ours.

What may be written is what the log's own directory proves: a segment's file with the very hash of its row, a manifest
object made from its row. What may be removed is a commit batch that says nothing any more, and an object whose key
belongs to a segment that is written anew in the same breath. Between that removal and the writing readers find nothing
there; before, they found damage. Where the key is taken after all, nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from holdfast.errors import Closed
from holdfast.journal.partition import Partition
from holdfast.journal.rows import LIVE, SegmentRow
from holdfast.segments import folders
from holdfast.segments.manifest import Manifest
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store


class StoreRepairs:
    """Writes and removes on one store, for the owner of the log alone."""

    def __init__(self, store: Store, manifest: Manifest, epoch: Callable[[], int]) -> None:
        self._store = store
        self._manifest = manifest
        self._epoch = epoch
        """The claim of this log on the store; 0 while there is none."""

    def write_segment(self, partition: Partition, row: SegmentRow, *, damaged: bool) -> bool:
        """Upload a segment's file again, if it is here and proved; False when it is not, or its key is taken."""
        key = layout.segment_key(partition.topic, partition.number, row.number, row.sha256)
        body = self._in_memory(partition, row) if damaged else self._on_disk(partition, row)
        if body is None:
            return False
        self.check_fence()
        if damaged:
            self._store.delete([key])
        return self._create(key, body)

    def write_manifest_object(self, key: str, data: bytes) -> bool:
        """Write a manifest object that is not there; False when its key is taken."""
        self.check_fence()
        return self._create(key, Body.of(data))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove what is garbage."""
        self.check_fence()
        self._store.delete(keys)

    def check_fence(self) -> None:
        """Raise Closed when somebody else has claimed the store."""
        epoch = self._epoch()
        if not epoch or self._store.head(layout.epoch_key(epoch + 1)) is not None:
            raise Closed(
                f"another process has taken this log over store={self._store.url} epoch={epoch + 1}",
                reason="fenced",
                hint="it repairs there; nothing was changed here or on the store",
            )

    def _on_disk(self, partition: Partition, row: SegmentRow) -> Body | None:
        path = self._manifest.path(partition, row)
        if row.state != LIVE or folders.size(path) != row.size or folders.sha256(path) != row.sha256:
            return None
        return Body.file(path, row.size, row.sha256)

    def _in_memory(self, partition: Partition, row: SegmentRow) -> Body | None:
        # Not by its path: retention may remove the file after the damaged object is gone and before this is written.
        try:
            data = self._manifest.path(partition, row).read_bytes()
        except OSError:
            return None
        proved = row.state == LIVE and sha256(data).digest() == row.sha256
        return Body(row.size, row.sha256, data) if proved else None

    def _create(self, key: str, body: Body) -> bool:
        try:
            self._store.create(key, body)
        except AlreadyExists:
            return False
        return True
