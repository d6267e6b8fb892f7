"""Reconciliation with the store: compares the log's own manifest with the objects of its store, while both go on.

    the root's own documents → commit batches, up to `shipped` (`reconcile_tail`)
    → every partition, up to `settled` (`reconcile_partition`) → the documents of its topic

Marks are read first and the store is listed afterwards; what may go meanwhile is announced on the store before it goes;
and each finding is confirmed by asking for the object itself. So a busy log has no false findings. Rows are proved
before anything is compared with them: a damaged manifest here ends the pass, and is for the local reconciliation.

A shallow pass costs one LIST per folder (and per thousand objects in it) and a handful of GETs per partition; a deep
one reads every object. Topics that this log does not know are not looked at: another writer may have put them there.

Repairs (`store_repairs`) are asked for, one pass at a time makes them, and only for the owner of the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.segment import NO_SCHEMA
from holdfast.reconcile.local_pass import ReconcileReport
from holdfast.reconcile.store_notes import Mend, StoreNotes
from holdfast.reconcile.store_partition import PartitionComparison
from holdfast.reconcile.store_repairs import StoreRepairs
from holdfast.reconcile.store_tail import TailComparison
from holdfast.reconcile.unfinished import Unfinished
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, LogDocument, TopicDocument
from holdfast.root.root_store import RootStore
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import first_offset, topic_document
from holdfast.segments.segment_settings import ReconcileSettings
from holdfast.shipping.refill.store_loss import REBUILD
from holdfast.shipping.shipping_marks import root_form
from holdfast.store import layout, store_kinds
from holdfast.store.address import parse_url
from holdfast.store.store_settings import StoreSettings

_UNCLAIMED = "the store could not be claimed: it does not answer"
_BUSY = "another pass is repairing at this moment"

logger = logging.getLogger("holdfast.shipping")


class StoreReconciler:
    """Runs passes over the store of one open log."""

    def __init__(
        self, journal: Journal, manifest: Manifest, address: StoreSettings, settings: ReconcileSettings, clock: Clock,
        epoch: Callable[[], int] | None, resend: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        _check(journal, address)
        self.journal = journal
        self.manifest = manifest
        self.store = RootStore(store_kinds.open_any_store(address.url, address, clock), root_form(journal))
        self.unit_segments = settings.unit_segments
        self.clock = clock
        self._epoch = epoch
        """The owner's claim on the store, 0 before it has one; None for a handle that only looks."""
        self._resend = resend
        """Has the owner's shipper look again at what the store has, and send what is missing."""
        self._fixing = Lock()
        self._unfinished: Unfinished[ReconcileReport] = Unfinished()

    def run(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """A whole pass; or, with a limit, so many units of one, going on with the next call."""
        if self.journal.end is not None:
            raise self.journal.end.again()
        return self._unfinished.run((fix, deep), lambda: self._begin(fix=fix, deep=deep), limit)

    def _begin(self, *, fix: bool, deep: bool) -> StorePass:
        repairs, skipped = None, None
        if fix:
            if self._epoch is None:
                raise Invalid("this log is open for reading only", hint="its owner repairs the store")
            if (ended := self.journal.topics.shipping_state.end) is not None:
                raise ended.again()
            if not self._epoch():
                trouble = self.journal.topics.shipping_state.trouble
                skipped = _UNCLAIMED if trouble is None else f"{trouble.message}; first: {REBUILD}"
            elif not self._fixing.acquire(blocking=False):
                skipped = _BUSY
            else:
                repairs = StoreRepairs(self.store, self.journal, self.manifest, self._epoch, self._resend)
        return StorePass(self, repairs, skipped, deep=deep)

    def let_repair(self) -> None:
        """By a pass that could repair, at its end."""
        self._fixing.release()

    def close(self) -> None:
        """Forget unfinished passes and let go of the store."""
        self._unfinished.reset()
        self.store.close()


class StorePass:
    """One pass: a sequence of units."""

    def __init__(
        self, of: StoreReconciler, repairs: StoreRepairs | None, skipped: str | None, *, deep: bool
    ) -> None:  # fmt: skip
        self._of = of
        self._journal, self._manifest = of.journal, of.manifest
        self._notes = StoreNotes(of.store, of.journal.vault.log_id.hex())
        self._repairs = repairs
        self._holds_lock = repairs is not None
        self._deep = deep
        self._report = ReconcileReport(
            deep=deep, mode="report" if repairs is None else "fix", fixes_skipped=skipped,
            started_us=of.clock.now_us(), where="store",
        )  # fmt: skip
        self._units = self._all_units()

    def run(self, limit: int | None) -> ReconcileReport:
        """Do so many units, or all that are left."""
        done = 0
        while (limit is None or done < limit) and not self._report.complete:
            self._step()
            done += 1
        return self._report

    def _step(self) -> None:
        complete = next(self._units, self) is self
        notes = self._notes
        self._report = msgspec.structs.replace(
            self._report, findings=tuple(notes.findings), repairs=tuple(notes.repairs), complete=complete,
            completed_us=self._of.clock.now_us() if complete else None, **notes.counts,
        )  # fmt: skip
        if complete:
            self.end()
            self._tell()

    def _tell(self) -> None:
        findings = self._report.findings
        if findings:
            logger.error(
                "reconciliation with the store found %d problems", len(findings),
                extra={"action": "reconcile", "findings": dict(Counter(found.kind for found in findings))},
            )  # fmt: skip

    def end(self) -> None:
        """Let others repair."""
        if self._holds_lock:
            self._holds_lock = False
            self._of.let_repair()

    def _all_units(self) -> Iterator[None]:
        self._root()
        yield None
        self._journal.refresh()
        shipping = self._journal.topics.shipping
        shipped = 0 if shipping is None else shipping.shipped_seq
        yield from TailComparison(self._notes, self._journal, self._repairs, shipped, deep=self._deep).units()
        for topic, partitions in sorted(self._journal.topics.partitions.items()):
            yield from self._topic(topic, partitions)

    def _root(self) -> None:
        """Whose root this is, and who claimed it."""
        journal, repairs = self._journal, self._repairs
        own = documents.encode(LogDocument(log=self._notes.log_id, created_us=journal.row.created_us))
        self._notes.decoded(layout.LOG, LogDocument, None if repairs is None else repairs.mend(layout.LOG, own))
        claims = self._notes.numbered(layout.EPOCHS)
        for number in range(1, max(claims, default=0) + 1):
            key = layout.epoch_key(number)
            if self._deep or (number not in claims and self._notes.store.head(key) is None):
                claim = self._notes.decoded(key, EpochDocument, self._claim_mend(number))
                if claim is not None and claim.epoch != number:
                    self._notes.find("content_mismatch", key, "the claim says another number than its name")

    def _claim_mend(self, number: int) -> Mend | None:
        """Fills in a claim that is missing below our own. What a damaged one said is known nowhere; that its number is
        taken is what counts.
        """
        repairs = self._repairs
        if repairs is None:
            return None

        def fill(is_there: bool) -> bytes | None:
            if is_there or number >= (own := repairs.claim()).epoch:
                return None
            data = documents.encode(msgspec.structs.replace(own, epoch=number, purpose="open", check=""))
            return data if repairs.write(layout.epoch_key(number), data, damaged=False) else None

        return fill

    def _topic(self, topic: str, partitions: tuple[Partition, ...]) -> Iterator[None]:
        """A topic's partitions, and then its documents: they are written before anything else of the topic."""
        fingerprints: set[bytes] = set()
        is_there = False
        for partition in partitions:
            if partition.damage is not None:
                continue
            self._journal.refresh()
            is_there |= partition.shipment is not None and partition.shipped > first_offset(self._manifest, partition)
            comparison = PartitionComparison(
                partition, self._manifest, self._notes, self._repairs, deep=self._deep,
                unit_segments=self._of.unit_segments,
            )  # fmt: skip
            yield from comparison.units()
            fingerprints |= comparison.fingerprints
        if is_there:
            self._documents(topic, partitions, fingerprints - {NO_SCHEMA})
            yield None

    def _documents(self, topic: str, partitions: tuple[Partition, ...], used: set[bytes]) -> None:
        listing = self._notes.numbered(layout.topic_folder(topic), topic=topic)
        newest = max(listing, default=1)
        for version in range(1 if self._deep else newest, newest + 1):
            key = layout.topic_key(topic, version)
            if version < newest:
                self._old_document(key, topic)
                continue
            due, repairs = (
                documents.encode(topic_document(self._journal, self._manifest, topic, version)),
                self._repairs,
            )
            mend = None if repairs is None else repairs.mend(key, due)
            document = self._notes.decoded(key, TopicDocument, mend, topic=topic)
            wrong = None if document is None else self._difference(document, topic, partitions, used)
            if wrong is not None and repairs is not None and repairs.write(key, due, damaged=True):
                self._notes.repaired("restored", key)
            elif wrong is not None:
                self._notes.find("content_mismatch", key, wrong, topic=topic)

    def _old_document(self, key: str, topic: str) -> None:
        """One that a newer one has taken the place of: what it said is known nowhere else, and nobody goes by it."""
        document = self._notes.decoded(key, TopicDocument, topic=topic)
        if document is not None and (document.topic, document.version) != (topic, layout.parse_number(key)):
            self._notes.find("content_mismatch", key, "the document says something else than its name", topic=topic)

    def _difference(
        self, document: TopicDocument, topic: str, partitions: tuple[Partition, ...], used: set[bytes]
    ) -> str | None:
        """What a document says wrongly. It may lag: new versions and policies come with the next records."""
        self._journal.refresh()  # what the store knows by now, the log knew before
        own = [row.fingerprint.hex() for row in self._journal.topics.schemas.get(topic, ())]
        listed = [schema.fingerprint for schema in document.schemas]
        place = (topic, len(partitions), first_offset(self._manifest, partitions[0]))
        if (document.topic, document.partitions, document.first_offset) != place:
            return "the topic's document says something else about its partitions than the log"
        if listed != own[: len(listed)]:
            return "the topic's document has other schemas than the log"
        if not {fingerprint.hex() for fingerprint in used} <= set(listed):
            return "segments have a schema that the topic's document does not know"
        return None


def _check(journal: Journal, address: StoreSettings) -> None:
    """Refuse what cannot be compared: marks of one store say nothing about another."""
    shipping = journal.topics.shipping
    if not address.url or shipping is None:
        known = "" if shipping is None else f"; it is shipped to {shipping.root}"
        raise Invalid(
            "there is no store to compare this log with",
            hint=f"open it with store=…, or set store.url (HOLDFAST_STORE__URL){known}",
        )
    root = parse_url(address.url).url
    if shipping.root != root:
        raise Invalid(f"this log is shipped to {shipping.root}, not to {root}", hint="compare it with its own store")
