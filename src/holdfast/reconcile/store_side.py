"""The objects of a log's store, compared with its own manifest up to `settled`, while both go on.

    the root's own documents → commit batches, up to `shipped` (`tail_check`) → every partition: its segments
    (`store_segments`), then what is said about them (`store_partition`) → the documents of its topic

Marks are read first and the store is listed afterwards; what may go meanwhile is announced on the store before it goes;
and each finding is confirmed by asking for the object itself. So a busy log has no false findings.

A shallow pass costs one LIST per folder (and per thousand objects in it) and a handful of GETs per partition; a deep
one reads every object. Topics that this log does not know are not checked, another writer may have put them there, but
for those of sinks (`sink_topics`): their writers keep nothing that they could be compared with.

Repairs (`store_objects`) are for the owner of the log alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import ShipmentRow
from holdfast.model.segment import NO_SCHEMA
from holdfast.reconcile.classify import Kind
from holdfast.reconcile.reconcile_pass import ReconcilePass
from holdfast.reconcile.reconcile_report import Repair
from holdfast.reconcile.sink_topics import SinkTopics
from holdfast.reconcile.store_objects import Due, StoreObjects
from holdfast.reconcile.store_partition import PartitionObjects
from holdfast.reconcile.store_segments import StoreSegments
from holdfast.reconcile.tail_check import TailCheck
from holdfast.root import store_manifest
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, LogDocument, TopicDocument
from holdfast.root.objects.frontiers import Where, behind, frontier_keys, newest_frontier
from holdfast.root.root_store import RootStore
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import first_offset, topic_document
from holdfast.shipping.refill.store_loss import REBUILD
from holdfast.shipping.shipping_marks import root_trust, shipped_partitions
from holdfast.signals import Flag
from holdfast.store import layout, store_kinds
from holdfast.store.address import parse_url
from holdfast.store.store_settings import StoreSettings

_NO_FRONTIER = "there is no frontier: readers cannot notice that newest manifest objects are missing"
_AHEAD = "the frontier says that more was settled than was ever sealed"
_LOST = "newest manifest objects are missing: the store has less than the frontier says"
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_UNCLAIMED = "the store could not be claimed: it does not answer"


class StoreSide:
    """The store of one open log."""

    where: Final = "store"

    def __init__(
        self,
        journal: Journal,
        manifest: Manifest,
        address: StoreSettings,
        clock: Clock,
        epoch: Callable[[], int] | None,
        resend: Callable[[], object] = lambda: None,
    ) -> None:
        _require_own(journal, address)
        self.store = RootStore(store_kinds.open_any_store(address.url, address, clock), root_trust(journal))
        self._journal = journal
        self._manifest = manifest
        self._epoch = epoch
        """The owner's claim on the store, 0 before it has one; None for a handle that only looks."""
        self._resend = resend
        """Has the owner's shipper look again at what the store has, and send what is missing."""

    def check(self) -> None:
        """Raise what ended the journal."""
        if self._journal.end is not None:
            raise self._journal.end.again()

    def why_not_repair(self) -> str | None:
        """Why the store cannot be repaired at present; raises unless this handle owns the log."""
        if self._epoch is None:
            raise Invalid("this log is open for reading only", hint="its owner repairs the store")
        shipping = self._journal.shipping_state
        if shipping.end is not None:
            raise shipping.end.again()
        if self._epoch():
            return None
        return _UNCLAIMED if shipping.trouble is None else f"{shipping.trouble.message}; first: {REBUILD}"

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()

    def units(self, work: ReconcilePass) -> Iterator[None]:
        """The root's own documents, commit batches, and every topic."""
        journal = self._journal
        objects = StoreObjects(work, self.store, journal, self._manifest, self._epoch, self._resend)
        self._compare_root(objects)
        self._compare_frontier(objects)
        yield None
        journal.refresh()
        shipping = journal.shipping
        yield from TailCheck(objects, 0 if shipping is None else shipping.shipped_seq).units()
        for topic, partitions in sorted(journal.topics.items()):
            if partitions[0].refusal is None:
                yield from self._compare_topic(objects, topic, partitions)
        yield from SinkTopics(objects).units()

    # -- the root -----------------------------------------------------------------------------------------

    def _compare_root(self, objects: StoreObjects) -> None:
        """Whose root this is, and who claimed it."""
        own = documents.encode(LogDocument(log=objects.log_id, created_us=self._journal.created_us))
        objects.decoded(layout.LOG, LogDocument, lambda is_there: own)
        claims = objects.numbered(layout.EPOCHS)
        for number in objects.expected(claims):
            key = layout.epoch_key(number)
            if objects.work.deep or (number not in claims and self.store.head(key) is None):
                claim = objects.decoded(key, EpochDocument, _missing_claim(objects, number))
                if claim is not None and claim.epoch != number:
                    objects.find("content_mismatch", key, "the claim says another number than its name")

    def _compare_frontier(self, objects: StoreObjects) -> None:
        """What tells readers of lost manifest objects: it is there, whole, and says no more than is settled."""
        objects.count("files")
        wrong = self._wrong_frontier()
        if wrong is not None and not (objects.work.fix and self._renew_frontier(objects, wrong[0])):
            objects.find(wrong[0], layout.FRONTIERS, wrong[1])

    def _wrong_frontier(self) -> tuple[Kind, str] | None:
        try:
            frontier = newest_frontier(self.store, self._journal.log_id.hex())
            # Afterwards: what a frontier says was sealed, and here, before it was written.
            self._journal.refresh()
            partitions = shipped_partitions(self._journal)
            if frontier is None and any(p.shipment is not None and p.shipment.settled_segments for p in partitions):
                return "missing", _NO_FRONTIER
            sealed = {(partition.topic, partition.number): partition.sealed.sealed_offset for partition in partitions}
            if behind(frontier, sealed):
                return "content_mismatch", _AHEAD
            # After a crash marks may be older than what the store had. Then only the store can say what it still has.
            settled = {(partition.topic, partition.number): partition.settled for partition in partitions}
            unsure = [(one.topic, one.partition) for one in behind(frontier, settled)]
            lost = behind(frontier, settled | {where: self._settled_there(where) for where in unsure})
        except Corrupt as damage:
            return "content_mismatch", damage.message
        return ("missing", f"{_LOST} {lost[0]}") if lost else None

    def _settled_there(self, where: Where) -> int:
        """Where the newest manifest object ends; 0 where none is left."""
        newest = store_manifest.read_newest(self.store, self._journal.log_id.hex(), *where)
        return 0 if newest is None else newest.end

    def _renew_frontier(self, objects: StoreObjects, kind: Kind) -> bool:
        """Have the shipper look at what is there, as it does under each claim, and write the frontier anew."""
        if kind != "missing":  # else it is right, if it is there, and says what must come back
            objects.remove(*frontier_keys(self.store))
        shipping = self._journal.shipping
        is_there = objects.resend(0 if shipping is None else shipping.shipped_seq)
        for pause in _PAUSES_S if is_there else ():
            if self._wrong_frontier() is None:
                objects.work.repaired(Repair("restored", layout.FRONTIERS))
                return True
            Flag().wait(pause)
        return False

    # -- topics -------------------------------------------------------------------------------------------

    def _compare_topic(self, objects: StoreObjects, topic: str, partitions: tuple[Partition, ...]) -> Iterator[None]:
        """A topic's partitions, and then its documents: they are written before anything else of the topic."""
        used: set[str] = set()
        is_there = False
        for partition in partitions:
            if partition.damage is not None:
                continue
            self._journal.refresh()
            beginning = first_offset(self._manifest, partition)
            is_there |= partition.shipment is not None and partition.shipped > beginning
            # The mark, before all else: one immutable row, whose numbers belong together.
            shipment = partition.shipment or ShipmentRow(partition.id, 0, 0, beginning, 0)
            segments = StoreSegments(objects, partition, shipment)
            yield from objects.work.compare(segments)
            yield from PartitionObjects(objects, partition, shipment, segments.rewritten).units()
            used |= {fingerprint.hex() for fingerprint in segments.fingerprints - {NO_SCHEMA}}
        if is_there:
            self._compare_documents(objects, topic, partitions, used)
            yield None

    def _compare_documents(
        self, objects: StoreObjects, topic: str, partitions: tuple[Partition, ...], used: set[str]
    ) -> None:
        versions = objects.numbered(layout.topic_folder(topic), topic=topic)
        newest = max(versions, default=1)
        if objects.work.deep:
            for version in objects.expected(versions, topic=topic):
                if version != newest:
                    self._compare_old_document(objects, topic, version)
        key = layout.topic_key(topic, newest)

        def due(is_there: bool = True) -> bytes:
            return documents.encode(topic_document(self._journal, self._manifest, topic, newest))

        document = objects.decoded(key, TopicDocument, due, topic=topic)
        wrong = None if document is None else self._difference(document, topic, partitions, used)
        if wrong is not None and not (objects.work.fix and objects.try_restore(key, due(), damaged=True)):
            objects.find("content_mismatch", key, wrong, topic=topic)

    def _compare_old_document(self, objects: StoreObjects, topic: str, version: int) -> None:
        """A newer one has taken its place: what it said is known nowhere else, and nobody goes by it."""
        key = layout.topic_key(topic, version)
        document = objects.decoded(key, TopicDocument, topic=topic)
        if document is not None and (document.topic, document.version) != (topic, version):
            objects.find("content_mismatch", key, "the document says something else than its name", topic=topic)

    def _difference(
        self, document: TopicDocument, topic: str, partitions: tuple[Partition, ...], used: set[str]
    ) -> str | None:
        """What a document says wrongly. It may lag: new versions and policies come with the next records."""
        self._journal.refresh()  # what the store knows by now, the log knew before
        own = [row.fingerprint.hex() for row in self._journal.schemas.get(topic, ())]
        listed = [schema.fingerprint for schema in document.schemas]
        place = (topic, len(partitions), first_offset(self._manifest, partitions[0]))
        if (document.topic, document.partitions, document.first_offset) != place:
            return "the topic's document says something else about its partitions than the log"
        if listed != own[: len(listed)]:
            return "the topic's document has other schemas than the log"
        if not used <= set(listed):
            return "segments have a schema that the topic's document does not know"
        return None


def _missing_claim(objects: StoreObjects, number: int) -> Due:
    """A claim that is missing below our own. What a damaged one said is known nowhere; that its number is taken is what
    counts.
    """

    def due(is_there: bool) -> bytes | None:
        if is_there or number >= (own := objects.claim()).epoch:
            return None
        return documents.encode(msgspec.structs.replace(own, epoch=number, purpose="open", check=""))

    return due


def _require_own(journal: Journal, address: StoreSettings) -> None:
    """Refuse what cannot be compared: marks of one store say nothing about another."""
    shipping = journal.shipping
    if not address.url or shipping is None:
        known = "" if shipping is None else f"; it is shipped to {shipping.root}"
        raise Invalid(
            "there is no store to compare this log with",
            hint=f"open it with store=…, or set store.url (HOLDFAST_STORE__URL){known}",
        )
    root = parse_url(address.url).url
    if shipping.root != root:
        raise Invalid(f"this log is shipped to {shipping.root}, not to {root}", hint="compare it with its own store")
