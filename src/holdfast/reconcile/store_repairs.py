"""Repairs on a store: few, each proved first, and none without asking whether the root is still ours.

What may be written is what the log's own directory proves: a segment's file with the very hash of its row, documents
that follow from its rows or from their own names. What may be removed is what says nothing any more (commit batches
that are settled or were never adopted, segments of an owner that was overtaken), and an object that is written anew in
the same breath. Between that removal and the writing readers find nothing there; before, they found damage. Where the
key is taken after all, nothing is overwritten. Commits that are missing are sent again by the shipper (`resend`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from holdfast.errors import Closed, Corrupt, NotFound
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.reconcile.store_notes import Mend
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument
from holdfast.segments.manifest import segment_folders
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.shipping.refill.store_loss import StoreForgot
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store

_RESENT_S = 60.0


class StoreRepairs:
    """Writes and removes on one store, for the owner of the log alone."""

    def __init__(
        self, store: Store, journal: Journal, manifest: Manifest, epoch: Callable[[], int], resend: Callable[[], object]
    ) -> None:
        self._store = store
        self.journal = journal
        self._manifest = manifest
        self._epoch = epoch
        """The claim of this log on the store; 0 while there is none."""
        self._resend = resend
        """Has the shipper look again at what the store has, and send what is missing."""

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

    def write(self, key: str, data: bytes, *, damaged: bool) -> bool:
        """Write an object that is missing, or in the place of a damaged one; False when its key is taken."""
        self.check_fence()
        if damaged:
            self._store.delete([key])
        return self._create(key, Body.of(data))

    def mend(self, key: str, data: bytes) -> Mend:
        """As `write`, for whoever finds out only later whether something stands there."""
        return lambda damaged: data if self.write(key, data, damaged=damaged) else None

    def resend(self, seq: int) -> bool:
        """Have the shipper send again what is missing up to a commit; whether all of it is there again."""
        self.check_fence()
        self._resend()
        topics = self.journal.topics
        return topics.shipping_state.signal.sleep(
            lambda: topics.shipping is not None and topics.shipping.shipped_seq >= seq, _RESENT_S
        )

    def remove(self, keys: Sequence[str]) -> None:
        """Remove what is garbage."""
        self.check_fence()
        self._store.delete(keys)

    def claim(self) -> EpochDocument:
        """Our own claim, as the store has it; raises StoreForgot where it does not."""
        epoch, shipping = self._epoch(), self.journal.topics.shipping
        key = layout.epoch_key(epoch)
        try:
            claim = documents.decode(self._store.get(key), key, EpochDocument)
        except (NotFound, Corrupt):
            claim = None
        owner = "" if shipping is None else shipping.owner.hex()
        if claim is None or (claim.log, claim.owner) != (self.journal.vault.log_id.hex(), owner):
            raise StoreForgot(f"our claim on the store is gone, or another one's store={self._store.url} epoch={epoch}")
        return claim

    def check_fence(self) -> None:
        """Raise Closed when somebody else has claimed the store, StoreForgot when it does not know us any more."""
        epoch = self._epoch()
        if not epoch or self._store.head(layout.epoch_key(epoch + 1)) is not None:
            raise Closed(
                f"another process has taken this log over store={self._store.url} epoch={epoch + 1}",
                reason="fenced",
                hint="it repairs there; nothing was changed here or on the store",
            )
        self.claim()

    def _on_disk(self, partition: Partition, row: SegmentRow) -> Body | None:
        path = self._manifest.path(partition, row)
        if row.state != LIVE or segment_folders.size(path) != row.size or segment_folders.sha256(path) != row.sha256:
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
