"""The objects of a store, as all parts of a pass look at them, report what is wrong, and repair it.

Repairs are few, each is proved first, and none is made without asking whether the root is still ours. What may be
written is what the log's own directory proves: a segment's file with the very hash of its row, documents that follow
from its rows or from their own names. What may be removed is what no longer counts (commit batches that are settled or
were never adopted, segments of an owner that was overtaken), and a damaged object right before it is written again.
Between the two, readers find nothing there; before, they found damage. Where the key is taken after all, nothing is
overwritten. Commits that are missing are sent again by the shipper (`resend`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from holdfast import disk
from holdfast.errors import Closed, Corrupt, NotFound
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.reconcile.classify import Finding, Kind
from holdfast.reconcile.reconcile_pass import ReconcilePass
from holdfast.reconcile.reconcile_report import Repair
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument
from holdfast.root.root_store import RootStore
from holdfast.segments.manifest import segment_folders
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.shipping.refill.store_loss import StoreForgot
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, ObjectInfo

_RESENT_S = 60.0

Due = Callable[[bool], bytes | None]
"""What should stand under a key, given whether something stands there; None where that is not known."""


_HOLES_MAX = 10_000
"""Numbers that may be missing between two objects; more of them were never there."""


class StoreObjects:
    """The objects of one store, during one pass."""

    def __init__(
        self,
        work: ReconcilePass,
        store: RootStore,
        journal: Journal,
        manifest: Manifest,
        epoch: Callable[[], int] | None,
        resend: Callable[[], object],
    ) -> None:
        self.work = work
        self.store = store
        self.journal = journal
        self.manifest = manifest
        self.log_id = journal.log_id.hex()
        self._epoch = epoch or (lambda: 0)
        self._resend = resend

    def count(self, name: str) -> None:
        """One more of these."""
        self.work.counts[name] += 1

    def find(self, kind: Kind, key: str, detail: str, **facts: Any) -> None:
        """Something is wrong with an object."""
        self.work.findings.append(Finding(kind, name=key, detail=detail, where="store", **facts))

    def find_foreign(self, info: ObjectInfo, **place: Any) -> None:
        """An object was listed that is not ours; if it is still there, it is reported."""
        self.count("files")
        if self.store.head(info.key) is not None:
            self.find("untracked", info.key, "not an object of holdfast", actual=info.size, **place)

    # -- looking ------------------------------------------------------------------------------------------

    def read(self, key: str) -> bytes | None:
        """An object's bytes; None when it is not there, no bytes when this log's key did not sign it."""
        try:
            return self.store.get(key)
        except NotFound:
            return None
        except Corrupt:
            return b""

    def is_forged(self, key: str) -> bool:
        """Whether something stands there, in a log with keys, that none of them signed: its name says nothing then."""
        return self.store.trust.is_authentic and self.read(key) == b""

    def numbered(self, folder: str, **place: Any) -> dict[int, ObjectInfo]:
        """The objects of a folder by number; any other is not ours, and reported."""
        numbered: dict[int, ObjectInfo] = {}
        for info in self.store.list(folder):
            number = layout.parse_number(info.key)
            if number is not None and "/" not in info.key[len(folder) :]:
                numbered[number] = info
            else:
                self.find_foreign(info, **place)
        return numbered

    def expected(self, numbered: Mapping[int, ObjectInfo], **place: Any) -> Iterator[int]:
        """Every number from 1 to the highest of these. A gap that no log leaves is one finding, and not walked through:
        one name, which is untrusted, must not keep a pass busy forever.
        """
        before = 0
        for number in sorted(numbered):
            if number - before > _HOLES_MAX:
                detail = "the number of an object is far above all before it: no log wrote it"
                self.find("gap", numbered[number].key, detail, expected=before + 1, actual=number, **place)
            else:
                yield from range(before + 1, number)
            if number:
                yield number
            before = number

    def decoded(
        self, key: str, kind: type[documents.Kind], due: Due = lambda is_there: None, **place: Any
    ) -> documents.Kind | None:
        """A document that must be there, whole and of this log. Otherwise it is repaired, if its content is known and
        repairs are wanted; or reported, and the answer is None.
        """
        self.count("files")
        data = self.read(key)
        try:
            document = None if data is None else documents.decode(data, key, kind)
            detail = "the object is not there" if document is None else "the object belongs to another log"
        except Corrupt:
            document, detail = None, "the object is damaged"
        if document is not None and document.log == self.log_id:
            return document
        content = due(data is not None) if self.work.fix else None
        if content is not None and self.try_restore(key, content, damaged=data is not None):
            return documents.decode(content, key, kind)
        problem: Kind = "missing" if data is None else "content_mismatch"
        self.find(problem, key, detail, actual=None if data is None else len(data), **place)
        return None

    # -- repairing ----------------------------------------------------------------------------------------

    def try_remove(self, *keys: str) -> bool:
        """Remove these, if the pass repairs; whether it does."""
        if self.work.fix and keys:
            self.remove(*keys)
            for key in keys:
                self.work.repaired(Repair("removed", key))
        return self.work.fix

    def try_restore(self, key: str, data: bytes | None, *, damaged: bool) -> bool:
        """Write an object that is missing or damaged, if the pass repairs; whether it stands there now."""
        if not self.work.fix or data is None or not self._write(key, Body.of(data), damaged=damaged):
            return False
        self.work.repaired(Repair("restored", key))
        return True

    def remove(self, *keys: str) -> None:
        """Remove objects, and say nothing of it."""
        self._check_fence()
        self.store.delete(keys)

    def write_segment(self, partition: Partition, row: SegmentRow, *, damaged: bool) -> bool:
        """Upload a segment's file again, if it is here and proved; False when it is not, or its key is taken."""
        path = self.manifest.path(partition, row)
        key = layout.segment_key(partition.topic, partition.number, row.number, row.sha256)
        if row.state != LIVE:
            return False
        if not damaged:
            is_here = segment_folders.is_same(path, row.size, row.sha256)
            return is_here and self._write(key, Body.file(path, row.size, row.sha256), damaged=False)
        # Not by its path: retention may remove the file after the damaged object is gone and before it is written.
        try:
            data = disk.read_file(path, row.size)
        except (OSError, disk.NotRegular, disk.TooLong):
            return False
        is_here = sha256(data).digest() == row.sha256
        return is_here and self._write(key, Body(row.size, row.sha256, data), damaged=True)

    def create(self, key: str, body: Body) -> bool:
        """Write a new object; False when its key is taken."""
        return self._write(key, body, damaged=False)

    def resend(self, seq: int) -> bool:
        """Have the shipper send again what is missing up to a commit; whether all of it is there again."""
        self._check_fence()
        self._resend()
        journal = self.journal
        return journal.shipping_state.signal.sleep(
            lambda: journal.shipping is not None and journal.shipping.shipped_seq >= seq, _RESENT_S
        )

    def _write(self, key: str, body: Body, *, damaged: bool) -> bool:
        """Write an object that is missing, or in the place of a damaged one; False when its key is taken."""
        self._check_fence()
        if damaged:
            self.store.delete([key])
        try:
            self.store.create(key, body)
        except AlreadyExists:
            return False
        return True

    # -- whose root it is ---------------------------------------------------------------------------------

    def claim(self) -> EpochDocument:
        """Our own claim, as the store has it; raises StoreForgot where it does not."""
        epoch, shipping = self._epoch(), self.journal.shipping
        key = layout.epoch_key(epoch)
        try:
            claim = documents.decode(self.store.get(key), key, EpochDocument)
        except (NotFound, Corrupt):
            claim = None
        owner = "" if shipping is None else shipping.owner.hex()
        if claim is None or (claim.log, claim.owner) != (self.log_id, owner):
            raise StoreForgot(f"our claim on the store is gone, or another one's store={self.store.url} epoch={epoch}")
        return claim

    def _check_fence(self) -> None:
        """Raise Closed when another owner has claimed the store, StoreForgot when it does not know us any more."""
        epoch = self._epoch()
        if not epoch or self.store.head(layout.epoch_key(epoch + 1)) is not None:
            raise Closed(
                f"another process has taken this log over store={self.store.url} epoch={epoch + 1}",
                reason="fenced",
                hint="it repairs there; nothing was changed here or on the store",
            )
        self.claim()
