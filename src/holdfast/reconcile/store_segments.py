"""The segments of one partition on a store, up to what is settled.

Everything at or below the mark must be there; what lies above is in flight, never judged and never touched. A segment
goes only after an `expired` object has said so. So that is read after the listing, and once more before a segment is
called missing. Whether the log itself still has the file does not matter: what is settled is on the store until it is
retired there. Rows are proved: a damaged manifest here ends the pass, and is for the local reconciliation.

Where compaction put one file in the place of many (`rewritten_files`), that one must be there. If it is lost or
damaged, it is made again of the segments that are here (`remake`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from holdfast.errors import Corrupt, NotFound
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import EXPIRING, LIVE, LOST, SegmentRow, ShipmentRow
from holdfast.model.segment import StoredFile
from holdfast.reconcile.bundle_repair import remake
from holdfast.reconcile.classify import Finding, Kind
from holdfast.reconcile.reconcile_report import Repair
from holdfast.reconcile.rewritten_files import RewrittenFiles, take_long
from holdfast.reconcile.store_objects import StoreObjects
from holdfast.segments.manifest.long_files import LongFile
from holdfast.store import layout

_RANGE_BYTES = 8 * 2**20
_DETAILS: dict[Kind, str] = {
    "missing": "the object is not there",
    "size_mismatch": "the object has another size than when it was sealed",
    "content_mismatch": "the object does not have the hash of its segment",
}


class StoreSegments:
    """The segment objects of one partition."""

    def __init__(self, objects: StoreObjects, partition: Partition, shipment: ShipmentRow) -> None:
        self.partition = partition
        self.count, self.end = shipment.settled_segments, shipment.settled_offset
        self._objects, self._store = objects, objects.store
        self._folder = layout.segments_folder(partition.topic, partition.number) + "/"
        self._flying: set[int] = set()
        self._retired = 0
        """Segments below this number may be gone."""
        self.rewritten = RewrittenFiles(objects.store, objects.manifest, objects.log_id, partition)
        self._long_sizes: dict[str, int] = {}
        self.fingerprints: set[bytes] = set()
        """Schemas of the segments that were compared."""

    def listing(self) -> tuple[dict[int, list[StoredFile]], list[StoredFile]]:
        """The objects of its folder."""
        numbered: dict[int, list[StoredFile]] = {}
        others: list[StoredFile] = []
        for info in self._store.list(self._folder):
            name = info.key[len(self._folder) :]
            parsed = layout.parse_segment_name(name)
            (others if parsed is None else numbered.setdefault(parsed.number, [])).append(StoredFile(name, info.size))
        self._flying = {number for number in numbered if number >= self.count}
        self._retired = self._retired_now()
        self._long_sizes = take_long(self.rewritten.look(), numbered)
        return numbered, others

    def long_files(self) -> list[tuple[LongFile, int | None]]:
        """Long files of which not all is retired."""
        files = self.rewritten.files
        return [(file, self._long_sizes.get(file.name)) for file in files if file.upto > self._retired]

    def in_flight(self) -> set[int]:
        """Whatever lies above the mark: nothing there was promised yet."""
        return self._flying

    def rows(self, start: int, stop: int) -> list[SegmentRow]:
        """Rows, each proved."""
        rows = list(self._objects.manifest.rows(self.partition, start, stop))
        self.fingerprints.update(row.schema for row in rows)
        return rows

    def unproved(self, rows: Sequence[SegmentRow]) -> list[Finding]:
        """None: a damaged row ends the pass."""
        return []

    def state(self, row: SegmentRow) -> int:
        """What was retired on the store may still be there, whatever its state in the log."""
        is_free = row.number < self._retired or self.rewritten.is_held(row.number)
        return EXPIRING if is_free else LOST if row.state == LOST else LIVE

    def prove(self, row: SegmentRow) -> Finding | None:
        """Compare the hash of a segment's object."""
        if self._has_hash(row):
            return None
        name = layout.segment_name(row.number, row.sha256)
        return Finding(
            "content_mismatch", number=row.number, name=name, first=row.first_offset, rows=row.rows, expected=row.size
        )

    def _has_hash(self, row: SegmentRow) -> bool:
        """Whether an object, read piece by piece, has its hash; not when it is gone, or shorter than it was."""
        digest, key = sha256(), self._key(row)
        try:
            for start in range(0, row.size, _RANGE_BYTES):
                digest.update(self._store.get_range(key, start, min(_RANGE_BYTES, row.size - start)))
        except (NotFound, Corrupt):
            return False
        return digest.digest() == row.sha256

    def confirm(self, finding: Finding, row: SegmentRow | None) -> Finding | None:
        """Ask for the object itself."""
        located = msgspec.structs.replace(finding, where="store", garbage=False)
        if finding.name is None:
            return located
        info = self._store.head(self._folder + finding.name)
        located = msgspec.structs.replace(located, name=self._folder + finding.name)
        if finding.kind == "untracked":
            return None if info is None else self._stranger(located, finding.name, row)
        assert row is not None
        kind: Kind = "missing" if info is None else "size_mismatch" if info.size != row.size else "content_mismatch"
        is_sound = kind == "content_mismatch" and (finding.kind != kind or self._has_hash(row))
        if is_sound or not self._must_be_there(row):
            return None
        size = None if info is None else info.size
        return msgspec.structs.replace(located, kind=kind, actual=size, detail=_DETAILS[kind])

    def _stranger(self, finding: Finding, name: str, row: SegmentRow | None) -> Finding | None:
        """What is to be said of a file that no row names."""
        self.rewritten.look()
        number = finding.number
        if self.rewritten.knows(name) or (number is not None and self.rewritten.is_awaited(number)):
            return None
        if row is None or not self._is_settled(row):
            return finding
        detail = "left by an owner that was overtaken, or a compactor that gave up; what counts is there"
        return msgspec.structs.replace(finding, garbage=True, detail=detail)

    def _must_be_there(self, row: SegmentRow) -> bool:
        """Whether a file is needed still: not all of it is retired, and no longer one has taken its place."""
        retired = self._retired_now()
        held = self.rewritten.look().files.holding(row.number)
        if held is None:
            return row.number >= retired
        return held.row.sha256 == row.sha256 and held.upto > retired

    def _is_settled(self, row: SegmentRow) -> bool:
        """Whether a number was settled with its own file, which is there, or retired. Another one can never count then.

        Numbers are dense and each has one manifest object forever, so the uploader of the other one was
        overtaken before it could settle it; an owner never uploads a number that is settled.
        """
        if row.number < self._retired_now():
            return True
        held = self.rewritten.files.holding(row.number)
        row = row if held is None else held.row
        info = self._store.head(self._key(row))
        return info is not None and info.size == row.size

    def repair(self, finding: Finding, row: SegmentRow | None) -> Repair | None:
        """Remove what can never count; upload again what is missing or damaged, and proved here."""
        key, is_orphan = finding.name, finding.kind == "untracked"
        if key is None or row is None or (is_orphan and not finding.garbage):
            return None
        if is_orphan:
            self._objects.remove(key)
            return Repair("removed", key)
        is_written = self._objects.write_segment(self.partition, row, damaged=finding.kind != "missing")
        if is_written:
            return Repair("restored", key)
        held = self.rewritten.files.holding(row.number)
        made = None if held is None else remake(self._objects, self.partition, held, self.rewritten)
        return None if made is None else Repair("restored", made)

    def _retired_now(self) -> int:
        folder = layout.expired_folder(self.partition.topic, self.partition.number)
        numbers = (layout.parse_number(info.key) for info in self._store.list(folder))
        return max((number for number in numbers if number is not None), default=0)

    def _key(self, row: SegmentRow) -> str:
        return self._folder + layout.segment_name(row.number, row.sha256)
