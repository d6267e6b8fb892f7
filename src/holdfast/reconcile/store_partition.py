"""One partition of a store, compared with the log's own manifest, up to what is settled.

    the mark, before all else → segments are listed → what is retired → rows, page by page → manifest objects
    → the newest checkpoint → objects that belong to nothing

Everything at or below the mark must be there; what lies above is in flight, never judged and never touched. A segment
goes only after an `expired` object has said so, which is why that is read after the listing, and once more before a
segment is called missing. Whether the log itself still has the file does not matter: what is settled is on the store
until it is retired there.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.errors import Corrupt, NotFound
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LOST, SegmentRow, ShipmentRow
from holdfast.model.segment import Listed
from holdfast.reconcile.classify import Finding, Kind, Mark, State, Tracked, classify
from holdfast.reconcile.manifest_walk import ManifestWalk, Slot, Walked
from holdfast.reconcile.store_notes import Mend, StoreNotes
from holdfast.reconcile.store_repairs import StoreRepairs
from holdfast.root import store_manifest
from holdfast.root.numbered_objects import segments_below
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import ExpiredDocument, SegmentDocument
from holdfast.root.objects.manifest_chain import prove
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import expired_document, first_offset, segment_document
from holdfast.shipping.refill.store_standing import lost_start
from holdfast.store import layout

_RANGE_BYTES = 8 * 2**20
_PAGE = 256
"""Rows, and manifest objects of a deep pass, that are read at once."""
_BEHIND = "~"
"""Sorts behind every name of ours in a folder."""
_NO_CONTENT = bytes(32)


class PartitionComparison:
    """Compares one partition, once."""

    def __init__(
        self, partition: Partition, manifest: Manifest, notes: StoreNotes, repairs: StoreRepairs | None, *,
        deep: bool, unit_segments: int,
    ) -> None:  # fmt: skip
        self._partition = partition
        self._place: dict[str, Any] = {"topic": partition.topic, "partition": partition.number}
        self._shipment = partition.shipment or ShipmentRow(partition.id, 0, 0, first_offset(manifest, partition), 0)
        """The mark: one immutable row, whose numbers belong together."""
        self._manifest = manifest
        self._notes = notes
        self._store = notes.store
        self._repairs = repairs
        self._deep = deep
        self._unit = unit_segments
        self._folder = layout.segments_folder(partition.topic, partition.number) + "/"
        self.fingerprints: set[bytes] = set()
        """Schemas of the segments that were compared."""

    def units(self) -> Iterator[None]:
        """All of it, in units of work."""
        yield from self._segments()
        yield from self._manifest_objects()
        self._checkpoints()
        self._retirements()
        self._strangers()
        yield None

    # -- segments -----------------------------------------------------------------------------------------

    def _segments(self) -> Iterator[None]:
        files, others = self._listed()
        retired = self._retired()
        settled = self._shipment.settled_segments
        mark = Mark(settled - 1 if settled else None, self._shipment.settled_offset)
        flying = {number for number in files if number >= settled}
        after = Tracked(-1, 0, first_offset(self._manifest, self._partition), 0, "", "expired")
        for start in range(0, max(1, settled), self._unit):
            stop = min(settled, start + self._unit)
            rows = {row.number: row for row in self._manifest.rows(self._partition, start, stop)}
            tracked = [_tracked(row, retired) for row in rows.values()]
            listed = [file for number in rows for file in files.pop(number, ())]
            if stop == settled:
                listed += [file for more in files.values() for file in more] + others
            found = classify(tracked, listed, mark, flying, after=after, last=stop == settled)
            self._count(checked_segments="segments", checked_files="files", of=found)
            self._count("in_flight", "bytes_expected", "bytes_actual", of=found)
            self.fingerprints.update(row.schema for row in rows.values())
            for finding in found.findings:
                self._note(finding, rows)
            yield None
            if self._deep:
                harmed = {finding.number for finding in found.findings}
                yield from self._prove([row for number, row in rows.items() if number not in harmed], retired)
            after = tracked[-1] if tracked else after

    def _count(self, *same: str, of: object, **names: str) -> None:
        for found, counted in (*((name, name) for name in same), *names.items()):
            self._notes.counts[counted] += getattr(of, found)

    def _listed(self) -> tuple[dict[int, list[Listed]], list[Listed]]:
        numbered: dict[int, list[Listed]] = {}
        others: list[Listed] = []
        for info in self._store.list(self._folder):
            name = info.key[len(self._folder) :]
            parsed = layout.parse_segment_name(name)
            (others if parsed is None else numbered.setdefault(parsed.number, [])).append(Listed(name, info.size))
        return numbered, others

    def _retired(self) -> int:
        """Segments below this number may be gone."""
        folder = layout.expired_folder(self._partition.topic, self._partition.number)
        numbers = (layout.parse_number(info.key) for info in self._store.list(folder))
        return max((number for number in numbers if number is not None), default=0)

    def _note(self, finding: Finding, rows: dict[int, SegmentRow]) -> None:
        """Confirm what `classify` found; repair it, if that is wanted, or report it."""
        info = None if finding.name is None else self._store.head(self._folder + finding.name)
        if finding.kind == "untracked" and info is not None and self._is_garbage(finding, rows):
            self._orphan(finding)
        elif finding.name is None or (finding.kind == "untracked" and info is not None):
            self._notes.findings.append(self._located(finding))
        elif finding.kind in ("missing", "size_mismatch") and finding.number is not None:
            row = rows[finding.number]
            if info is None:
                self._harmed(row, "missing", "the object is not there", None)
            elif info.size != row.size:
                self._harmed(row, "size_mismatch", "the object has another size than when it was sealed", info.size)

    def _is_garbage(self, finding: Finding, rows: dict[int, SegmentRow]) -> bool:
        """Whether a segment file can never count: its number was settled with another file, which is there, or retired.

        Numbers are dense and each has one manifest object for ever, so whoever uploaded this one was overtaken before
        it could settle it; nobody who owns the log uploads a number that is settled.
        """
        row = None if finding.number is None else rows.get(finding.number)
        if row is None or row.number >= self._shipment.settled_segments:
            return False
        if row.number < self._retired():
            return True
        info = self._store.head(self._key(row))
        return info is not None and info.size == row.size

    def _orphan(self, finding: Finding) -> None:
        key = f"{self._folder}{finding.name}"
        if self._repairs is not None:
            self._repairs.remove([key])
            self._notes.repaired("removed", key)
            return
        detail = "a segment of an owner that was overtaken; the one that counts is there"
        located = msgspec.structs.replace(self._located(finding), garbage=True, detail=detail)
        self._notes.findings.append(located)

    def _located(self, finding: Finding) -> Finding:
        """As a finding about the store; nothing there is garbage for its name alone."""
        name = None if finding.name is None else self._folder + finding.name
        return msgspec.structs.replace(finding, **self._place, name=name, garbage=False, where="store")

    def _harmed(self, row: SegmentRow, kind: Kind, detail: str, actual: int | None) -> None:
        """A segment's object is missing or damaged, unless it was retired: upload it again, or report it."""
        if row.number < self._retired():
            self._notes.counts["in_flight"] += 1
            return
        key = self._key(row)
        if self._repairs is not None and self._repairs.write_segment(self._partition, row, damaged=kind != "missing"):
            self._notes.repaired("restored", key)
            return
        self._notes.find(
            kind, key, detail, **self._place, number=row.number, first=row.first_offset, rows=row.rows,
            expected=row.size, actual=actual,
        )  # fmt: skip

    def _prove(self, rows: list[SegmentRow], retired: int) -> Iterator[None]:
        for row in rows:
            if row.number >= retired and row.state != LOST:
                self._prove_one(row)
                yield None

    def _prove_one(self, row: SegmentRow) -> None:
        """Compare the hash of a segment's object; twice, before anybody says that it is damaged."""
        key = self._key(row)
        if self._hash(key, row.size) == row.sha256 or self._hash(key, row.size) == row.sha256:
            return
        info = self._store.head(key)
        if info is None:
            self._harmed(row, "missing", "the object is not there", None)
        else:
            self._harmed(row, "content_mismatch", "the object does not have the hash of its segment", info.size)

    def _hash(self, key: str, size: int) -> bytes | None:
        """The hash of an object, read piece by piece; None when it is not there, or shorter than it was."""
        digest = sha256()
        try:
            for start in range(0, size, _RANGE_BYTES):
                digest.update(self._store.get_range(key, start, min(_RANGE_BYTES, size - start)))
        except (NotFound, Corrupt):
            return None
        return digest.digest()

    def _key(self, row: SegmentRow) -> str:
        return self._folder + layout.segment_name(row.number, row.sha256)

    # -- manifest objects ---------------------------------------------------------------------------------

    def _manifest_objects(self) -> Iterator[None]:
        partition, shipment = self._partition, self._shipment
        listing = self._notes.numbered(layout.manifest_folder(partition.topic, partition.number), **self._place)
        self._notes.counts["in_flight"] += sum(1 for slot in listing if slot >= shipment.slots)
        rows = _Rows(self._manifest, partition, shipment.settled_segments)
        of = Walked(self._notes.log_id, partition.topic, partition.number, shipment.slots, shipment.settled_segments)
        walk = ManifestWalk(
            of,
            {slot: info.size for slot, info in listing.items()},
            lambda number, slot: self._due(rows(number), slot),
            _Fetched(self._notes, partition, shipment.slots, at_once=_PAGE if self._deep else 1),
            deep=self._deep,
        )
        for judged in walk:
            self._notes.counts["files"] += judged.problem != "missing"
            if judged.problem is not None:
                self._note_slot(judged, judged.problem)
            if (judged.slot + 1) % self._unit == 0:
                yield None
        yield None

    def _due(self, row: SegmentRow, slot: int) -> bytes:
        """The manifest object of a row, which must follow from the row before it."""
        document = segment_document(self._manifest, self._partition, row, slot)
        chain = document.segment.chain
        if chain != row.chain and row.content != _NO_CONTENT:  # which a rebuild wrote for a file that was gone
            path = str(self._manifest.root)
            raise Corrupt(
                f"the log's own manifest is damaged: a segment does not follow the one before it number={row.number}",
                path=path, **self._place, hint="reconcile the log itself first: holdfast reconcile DIR --deep",
            )  # fmt: skip
        return documents.encode(document)

    def _note_slot(self, judged: Slot, problem: Kind) -> None:
        key = layout.manifest_key(self._partition.topic, self._partition.number, judged.slot)
        if self._is_written(key, self._due_at(judged), damaged=problem != "missing"):
            self._notes.repaired("restored", key)
            return
        expected = None if judged.due is None else len(judged.due)
        self._notes.find(
            problem, key, judged.detail, **self._place, number=judged.number, expected=expected, actual=judged.actual
        )

    def _due_at(self, judged: Slot) -> bytes | None:
        """What belongs into a slot; of a start what can be known: where it is. Nobody asks who it was."""
        if judged.start is None or self._repairs is None:
            return judged.due
        start = lost_start(self._manifest, self._notes.log_id, self._partition, judged.slot, judged.start)
        return documents.encode(start)

    def _is_written(self, key: str, due: bytes | None, *, damaged: bool) -> bool:
        return self._repairs is not None and due is not None and self._repairs.write(key, due, damaged=damaged)

    def _checkpoints(self) -> None:
        """The newest checkpoint, or with `deep` each, says what the manifest says, as far as that is settled."""
        partition = self._partition
        listing = self._notes.numbered(layout.checkpoints_folder(partition.topic, partition.number), **self._place)
        for slot in sorted(listing) if self._deep else sorted(listing)[-1:]:
            key = listing[slot].key
            data = self._notes.read(key)
            if data is None:
                continue  # a newer one has taken its place
            self._notes.counts["files"] += 1
            wrong = self._wrong_checkpoint(key, data)
            if wrong is not None and self._repairs is not None:
                self._repairs.remove([key])  # planning does without it, and the next one is made of manifest objects
                self._notes.repaired("removed", key)
            elif wrong is not None:
                self._notes.find("content_mismatch", key, wrong, **self._place, actual=len(data))

    def _wrong_checkpoint(self, key: str, data: bytes) -> str | None:
        partition, shipment = self._partition, self._shipment
        try:
            found = checkpoint.decode(data, key)
            prove(found, self._notes.log_id, partition.topic, partition.number)
        except Corrupt as damage:
            return damage.message
        rows = _Rows(self._manifest, partition, shipment.settled_segments)
        for slot, document in enumerate(found[: shipment.slots]):
            if isinstance(document, SegmentDocument) and not self._is_said(document, slot, rows):
                return f"the checkpoint says something else than the log's own manifest slot={slot}"
        return None

    def _is_said(self, document: SegmentDocument, slot: int, rows: _Rows) -> bool:
        if document.number >= self._shipment.settled_segments:
            return False
        return segment_document(self._manifest, self._partition, rows(document.number), slot) == document

    # -- the rest of its folder ---------------------------------------------------------------------------

    def _retirements(self) -> None:
        """The objects about retired segments: readers go by the newest one."""
        listing = self._notes.numbered(
            layout.expired_folder(self._partition.topic, self._partition.number), **self._place
        )
        for upto in sorted(listing) if self._deep else sorted(listing)[-1:]:
            key = listing[upto].key
            if self._has_removed_forged(key, upto):
                continue
            document = self._notes.decoded(key, ExpiredDocument, self._retirement_mend(key, upto), **self._place)
            if document is None or self._is_sound(document, upto):
                continue
            mend = self._retirement_mend(key, upto)
            if mend is not None and mend(True) is not None:
                self._notes.repaired("restored", key)
            else:
                self._notes.find("content_mismatch", key, "it says something else than its name", **self._place)

    def _has_removed_forged(self, key: str, upto: int) -> bool:
        """Whether this is a retirement that this log did not sign, of segments that are there: it hides them.

        To write it again would be to sign it. Where the files are gone, it only says what is so.
        """
        place = (self._partition.topic, self._partition.number)
        if self._repairs is None or not self._notes.is_forged(key) or not segments_below(self._store, *place, upto):
            return False
        self._repairs.remove([key])
        self._notes.repaired("removed", key)
        return True

    def _is_sound(self, document: ExpiredDocument, upto: int) -> bool:
        first = self._end_of(upto)
        return document.upto == upto and (first is None or document.first == first)

    def _retirement_mend(self, key: str, upto: int) -> Mend | None:
        """Writes a retirement again, as of now: files go later than they would have, and never sooner."""
        first, repairs = self._end_of(upto), self._repairs
        if repairs is None or first is None:
            return None
        document = expired_document(repairs.journal, self._partition, upto, first, repairs.journal.clock.now_us())
        return repairs.mend(key, documents.encode(document))

    def _end_of(self, upto: int) -> int | None:
        """Where the segments below a number end; None where that is not known."""
        if not 0 < upto <= self._partition.sealed.segments:
            return None
        return self._manifest.row(self._partition, upto - 1).end

    def _strangers(self) -> None:
        """Objects that lie in none of the known folders; those are passed over, at the price of one request each."""
        place = (self._partition.topic, self._partition.number)
        known = (
            layout.checkpoints_folder(*place), layout.expired_folder(*place), layout.manifest_folder(*place),
            self._folder,
        )  # fmt: skip
        after: str | None = None
        while True:
            for info in self._store.list(layout.partition_folder(*place) + "/", after):
                folder = next((folder for folder in known if info.key.startswith(folder)), None)
                if folder is not None:
                    after = folder + _BEHIND
                    break
                self._notes.find_stranger(info, **self._place)
            else:
                return


class _Rows:
    """Rows of one partition by number, a page at a time, each proved."""

    def __init__(self, manifest: Manifest, partition: Partition, stop: int) -> None:
        self._manifest, self._partition, self._stop = manifest, partition, stop
        self._page: dict[int, SegmentRow] = {}

    def __call__(self, number: int) -> SegmentRow:
        if number not in self._page:
            stop = min(self._stop, number + _PAGE)
            self._page = {row.number: row for row in self._manifest.rows(self._partition, number, stop)}
        return self._page[number]


class _Fetched:
    """Manifest objects by slot, so many at once."""

    def __init__(self, notes: StoreNotes, partition: Partition, stop: int, *, at_once: int) -> None:
        self._notes, self._partition, self._stop, self._at_once = notes, partition, stop, at_once
        self._page: dict[int, bytes | None] = {}

    def __call__(self, slot: int) -> bytes | None:
        if slot not in self._page:
            slots = range(slot, min(self._stop, slot + self._at_once))
            keys = [layout.manifest_key(self._partition.topic, self._partition.number, number) for number in slots]
            read = self._notes.read
            answers = store_manifest.in_parallel(read, keys)
            self._page = dict(zip(slots, answers, strict=True))
        return self._page[slot]


def _tracked(row: SegmentRow, retired: int) -> Tracked:
    state: State = "expiring" if row.number < retired else "lost" if row.state == LOST else "live"
    name = layout.segment_name(row.number, row.sha256)
    return Tracked(row.number, row.first_offset, row.rows, row.size, name, state)
