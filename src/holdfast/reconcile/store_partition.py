"""What a store says about one partition, compared with the log's own manifest, up to what is settled.

    manifest objects → the newest checkpoint → the newest retirement → rewrites → objects that belong to nothing

Its segments come before all of this (`store_segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.errors import Corrupt
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LOST, SegmentRow, ShipmentRow
from holdfast.reconcile.classify import Kind
from holdfast.reconcile.manifest_walk import ManifestWalk, PartitionFacts, Slot
from holdfast.reconcile.rewritten_files import RewrittenFiles
from holdfast.reconcile.store_objects import StoreObjects
from holdfast.root import store_manifest
from holdfast.root.numbered_objects import segments_below
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, SegmentDocument
from holdfast.root.objects.manifest_chain import is_linked
from holdfast.segments.manifest.manifest_documents import expired_document, segment_document
from holdfast.shipping.refill.partition_gaps import lost_start
from holdfast.store import layout

_PAGE = 256
"""Rows, and manifest objects of a deep pass, that are read at once."""
_BEHIND = "~"
"""Sorts behind every name of ours in a folder."""

Item = TypeVar("Item")


class PartitionObjects:
    """Compares the documents of one partition, once."""

    def __init__(
        self, objects: StoreObjects, partition: Partition, shipment: ShipmentRow, rewritten: RewrittenFiles
    ) -> None:
        self._objects = objects
        self._rewritten = rewritten
        self._store, self._deep = objects.store, objects.work.deep
        self._journal, self._manifest = objects.journal, objects.manifest
        self._partition = partition
        self._shipment = shipment
        self._where = (partition.topic, partition.number)
        self._place: dict[str, Any] = {"topic": partition.topic, "partition": partition.number}
        settled = shipment.settled_segments
        self._row: _Pages[SegmentRow] = _Pages(lambda *span: objects.manifest.rows(partition, *span), settled, _PAGE)

    def units(self) -> Iterator[None]:
        """All of it, in units of work."""
        yield from self._compare_slots()
        self._compare_checkpoints()
        self._compare_retirements()
        self._compare_rewrites()
        self._find_foreigns()
        yield None

    def _compare_slots(self) -> Iterator[None]:
        shipment = self._shipment
        listing = self._objects.numbered(layout.manifest_folder(*self._where), **self._place)
        self._objects.work.counts["in_flight"] += sum(1 for slot in listing if slot >= shipment.slots)
        walk = ManifestWalk(
            PartitionFacts(self._objects.log_id, *self._where, shipment.slots, shipment.settled_segments),
            {slot: info.size for slot, info in listing.items()},
            self._due,
            _Pages(self._fetch, shipment.slots, _PAGE if self._deep else 1),
            deep=self._deep,
        )
        for judged in walk:
            self._objects.work.counts["files"] += judged.problem != "missing"
            if judged.problem is not None:
                self._note_slot(judged, judged.problem)
            if (judged.slot + 1) % self._objects.work.unit_segments == 0:
                yield None
        yield None

    def _fetch(self, start: int, stop: int) -> list[bytes | None]:
        keys = [layout.manifest_key(*self._where, slot) for slot in range(start, stop)]
        return store_manifest.in_parallel(self._objects.read, keys)

    def _due(self, number: int, slot: int) -> bytes:
        """The manifest object of a row, which must follow from the row before it."""
        row = self._row(number)
        document = segment_document(self._manifest, self._partition, row, slot)
        if not is_linked(document):
            raise Corrupt(
                f"the log's own manifest is damaged: a segment does not follow the one before it number={row.number}",
                path=str(self._manifest.root),
                **self._place,
                hint="reconcile the log itself first: holdfast reconcile DIR --deep",
            )
        return documents.encode(document)

    def _note_slot(self, judged: Slot, problem: Kind) -> None:
        key, due = layout.manifest_key(*self._where, judged.slot), judged.due
        if judged.start is not None and self._objects.work.fix:
            # What can be known of a start is where it is. Nobody asks who it was.
            start = lost_start(self._manifest, self._objects.log_id, self._partition, judged.slot, judged.start)
            due = documents.encode(start)
        if not self._objects.try_restore(key, due, damaged=problem != "missing"):
            self._objects.find(
                problem,
                key,
                judged.detail,
                **self._place,
                number=judged.number,
                actual=judged.actual,
                expected=None if judged.due is None else len(judged.due),
            )

    def _compare_checkpoints(self) -> None:
        """The newest checkpoint, or with `deep` each, says what the manifest says, as far as that is settled."""
        for key in self._newest(layout.checkpoints_folder(*self._where)).values():
            data = self._objects.read(key)
            if data is None:
                continue  # a newer one has taken its place
            self._objects.count("files")
            wrong = self._wrong_checkpoint(key, data)
            # Planning does without it, and the next one is made of manifest objects.
            if wrong is not None and not self._objects.try_remove(key):
                self._objects.find("content_mismatch", key, wrong, **self._place, actual=len(data))

    def _newest(self, folder: str) -> dict[int, str]:
        """The numbered objects of a folder; unless the pass is deep, only the newest."""
        listing = self._objects.numbered(folder, **self._place)
        return {number: listing[number].key for number in sorted(listing)[0 if self._deep else -1 :]}

    def _wrong_checkpoint(self, key: str, data: bytes) -> str | None:
        try:
            found = store_manifest.decode_checkpoint(data, key, self._objects.log_id)
        except Corrupt as damage:
            return damage.message
        for slot, document in enumerate(found[: self._shipment.slots]):
            if isinstance(document, SegmentDocument) and not self._is_said(document, slot):
                return f"the checkpoint says something else than the log's own manifest slot={slot}"
        return None

    def _is_said(self, document: SegmentDocument, slot: int) -> bool:
        if document.number >= self._shipment.settled_segments:
            return False
        return segment_document(self._manifest, self._partition, self._row(document.number), slot) == document

    # -- retirements --------------------------------------------------------------------------------------

    def _compare_retirements(self) -> None:
        """The objects about retired segments: readers go by the newest one."""
        for upto, key in self._newest(layout.expired_folder(*self._where)).items():
            if self._is_hiding(key, upto) and self._objects.try_remove(key):
                continue
            due = partial(self._retired, upto)
            document = self._objects.decoded(key, ExpiredDocument, due, **self._place)
            if document is None or self._is_sound(document, upto):
                continue
            if not self._objects.try_restore(key, due(), damaged=True):
                self._objects.find("content_mismatch", key, "it says something else than its name", **self._place)

    def _is_hiding(self, key: str, upto: int) -> bool:
        """Whether this log did not sign a retirement, and the segments are there: it hides them.

        To write it again would be to sign it. Where the files are gone, it only says what is so.
        """
        return (
            self._objects.work.fix
            and self._objects.is_forged(key)
            and bool(segments_below(self._store, *self._where, upto))
        )

    def _is_sound(self, document: ExpiredDocument, upto: int) -> bool:
        first = self._end_of(upto)
        return document.upto == upto and (first is None or document.first == first)

    def _retired(self, upto: int, is_there: bool = True) -> bytes | None:
        """A retirement as of now: files go later than they would have, and never sooner."""
        first = self._end_of(upto)
        if first is None:
            return None
        now_us = self._journal.trusted_time.range_us()[1]
        return documents.encode(expired_document(self._journal, self._partition, upto, first, now_us))

    def _end_of(self, upto: int) -> int | None:
        """Where the segments below a number end; None where that is not known."""
        if not 0 < upto <= self._partition.sealed.segments:
            return None
        return self._manifest.row(self._partition, upto - 1).end

    # -- rewrites -----------------------------------------------------------------------------------------

    def _compare_rewrites(self) -> None:
        """All rewrites say something that fits the manifest; of intents, only names are ours to judge."""
        rewritten = self._rewritten.look()
        listing = self._objects.numbered(layout.rewrites_folder(*self._where), **self._place)
        self._objects.work.counts["files"] += len(listing)
        bad = rewritten.bad
        if bad is not None and not self._take_back([listing[n].key for n in sorted(listing) if n >= bad.number]):
            self._objects.find(bad.kind, bad.key, bad.detail, **self._place, actual=bad.size)
        for info in self._store.list(layout.intents_folder(*self._where)):
            if layout.parse_intent_key(info.key) is None:
                self._objects.find_foreign(info, **self._place)

    def _take_back(self, keys: list[str]) -> bool:
        """Remove a rewrite that says nothing, and those that build on it, if everything can be read without them.

        A rewrite adds nothing to a log: without it the files from before count. They are there, or were uploaded again
        a moment ago.
        """
        return self._objects.work.fix and self._is_all_there() and self._objects.try_remove(*keys)

    def _is_all_there(self) -> bool:
        """Whether all files are there that count by the sound rewrites alone."""
        folder = layout.segments_folder(*self._where) + "/"
        sizes = {info.key[len(folder) :]: info.size for info in self._store.list(folder)}
        listing = self._objects.numbered(layout.expired_folder(*self._where), **self._place)
        retired, files = max(listing, default=0), self._rewritten.files
        rows = self._manifest.rows(self._partition, retired, self._shipment.settled_segments)
        return all(
            sizes.get(layout.segment_name(row.number, row.sha256)) == row.size
            for row in files.of(rows)
            if row.state != LOST
        )

    def _find_foreigns(self) -> None:
        """Objects that lie in none of the known folders; those are skipped, at the price of one request each."""
        folders = (
            layout.checkpoints_folder,
            layout.expired_folder,
            layout.intents_folder,
            layout.manifest_folder,
            layout.rewrites_folder,
        )
        known = [folder(*self._where) for folder in folders] + [layout.segments_folder(*self._where) + "/"]
        after: str | None = None
        while True:
            for info in self._store.list(layout.partition_folder(*self._where) + "/", after):
                folder = next((folder for folder in known if info.key.startswith(folder)), None)
                if folder is not None:
                    after = folder + _BEHIND
                    break
                self._objects.find_foreign(info, **self._place)
            else:
                return


class _Pages(Generic[Item]):
    """Things by number, read a page at a time."""

    def __init__(self, read: Callable[[int, int], Iterable[Item]], stop: int, at_once: int) -> None:
        self._read, self._stop, self._at_once = read, stop, at_once
        self._page: dict[int, Item] = {}

    def __call__(self, number: int) -> Item:
        if number not in self._page:
            stop = min(self._stop, number + self._at_once)
            self._page = dict(zip(range(number, stop), self._read(number, stop), strict=True))
        return self._page[number]
