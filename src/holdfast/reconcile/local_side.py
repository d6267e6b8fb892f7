"""The log's own files, compared with its manifest up to `sealed`, while everything goes on.

First the segments of every partition, then whatever lies in the directory and belongs to no partition at all.

Only what is provably garbage is removed; anything else is moved to `quarantine/`. A missing segment is put back if a
file with its very hash is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from holdfast import disk
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log_directory import Directory
from holdfast.model.control_rows import EXPIRED, EXPIRING, LIVE, LOST, SegmentRow
from holdfast.model.segment import StoredFile, chain_value
from holdfast.reconcile.classify import Finding
from holdfast.reconcile.reconcile_pass import ReconcilePass
from holdfast.reconcile.reconcile_report import Repair
from holdfast.reconcile.rewritten_files import RewrittenFiles, take_long
from holdfast.segments.manifest import segment_folders
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.long_files import LongFile
from holdfast.segments.sealing.roller import Roller
from holdfast.store import layout
from holdfast.store.directory import is_temporary

_STATES = (LIVE, EXPIRING, EXPIRED)

_NUMBERS = 2**63 - 1
"""No segment has such a number or a higher one: the database could not hold it."""


class LocalSide:
    """The directory of one open log."""

    where: Final = "log"

    def __init__(self, journal: Journal, manifest: Manifest, directory: Directory, roller: Roller | None) -> None:
        self.journal = journal
        self.manifest = manifest
        self.directory = directory
        self._root = directory.segments
        self.roller = roller

    def check(self) -> None:
        """Files can always be looked at."""

    def why_not_repair(self) -> None:
        """Raise Invalid unless this handle owns the log."""
        if self.roller is None:
            raise Invalid(
                "this log is open for reading only", hint="repair it in its owner, or while no process owns it"
            )

    def close(self) -> None:
        """It holds nothing."""

    def units(self, work: ReconcilePass) -> Iterator[None]:
        """Every partition, and then what belongs to none."""
        self.journal.refresh()
        for partition in list(self.journal.partitions.values()):
            segments = LocalSegments(self, partition)
            yield from work.compare(segments)
            segments.report_rewrites(work)
        self._compare_foreign(work)
        yield None

    def _compare_foreign(self, work: ReconcilePass) -> None:
        """Everything under the root that lies in no partition's segment folder."""
        for path in segment_folders.walk(self._root, self._is_known):
            key = path.relative_to(self._root).as_posix()
            if self._is_document(key) or self._is_known(path.parent):  # in this order: most files are documents
                continue
            if is_temporary(path.name):  # compaction writes it, or removes it a day after its death
                continue
            size = segment_folders.size(path)
            if size is None:
                continue
            work.counts["files"] += 1
            if work.fix:
                work.repaired(self.take_away(path, garbage=False))
            else:
                detail = "it belongs to no topic and partition of this log"
                work.findings.append(Finding("untracked", name=key, actual=size, detail=detail))

    def _is_document(self, key: str) -> bool:
        """Whether a file is a document of this log's own directory, or belongs to a topic's published table."""
        topic = layout.parse_document(key)
        return topic == "" or (topic or layout.parse_table_file(key)) in self.journal.topics

    def _is_known(self, folder: Path) -> bool:
        """Whether a folder holds the segments of one of our partitions."""
        parts = folder.relative_to(self._root).parts
        if len(parts) != 4 or parts[0] != "topics" or parts[3] != "segments":
            return False
        self.journal.refresh()
        known = self.journal.topics.get(parts[1], ())
        return parts[2] in {str(partition.number) for partition in known}

    def has_rewrites(self, partition: Partition) -> bool:
        """Whether the log's own files were compacted, or are about to be."""
        place = (partition.topic, partition.number)
        folders = (layout.rewrites_folder(*place), layout.intents_folder(*place))
        return any((self._root / folder).is_dir() for folder in folders)

    # -- repairs ------------------------------------------------------------------------------------------

    def take_away(self, path: Path, *, garbage: bool) -> Repair:
        """Remove a file that is garbage; move any other aside, overwriting nothing."""
        self._require_healthy()
        if garbage:
            disk.remove(path)
            return self._repair("removed", path)
        *above, name = path.relative_to(self._root).parts
        place = self.directory.quarantine
        for folder in above:
            place = segment_folders.free(place / folder, folder=True)
        disk.make_directory(place)
        disk.rename(path, segment_folders.free(place / name))
        return self._repair("quarantined", path)

    def put_back(self, final: Path, row: SegmentRow) -> Repair | None:
        """Restore a missing segment if a file with its hash lies among the untracked or in quarantine."""
        self._require_healthy()
        for place in (self._root, self.directory.quarantine):
            for path in segment_folders.walk(place, lambda folder: False):
                if path != final and segment_folders.is_same(path, row.size, row.sha256):
                    disk.make_directory(final.parent)
                    disk.rename(path, final)
                    return self._repair("restored", final)
        return None

    def _require_healthy(self) -> None:
        if self.journal.end is not None:  # a file whose commit is in doubt may be listed after all
            raise self.journal.end.again()

    def _repair(self, action: Literal["removed", "quarantined", "restored"], path: Path) -> Repair:
        return Repair(action, path.relative_to(self.directory.path).as_posix())


class LocalSegments:
    """The segment files of one partition."""

    def __init__(self, side: LocalSide, partition: Partition) -> None:
        sealed = partition.sealed
        self.partition = partition
        self.count, self.end = sealed.segments, sealed.sealed_offset
        self._side = side
        self._journal, self._manifest = side.journal, side.manifest
        self._folder = side.manifest.folder(partition)
        own, log = side.manifest.as_store(), side.journal.log_id.hex()
        self._rewritten = RewrittenFiles(own, side.manifest, log, partition)
        self._long_sizes: dict[str, int] = {}

    def listing(self) -> tuple[dict[int, list[StoredFile]], list[StoredFile]]:
        """The files of its folder."""
        numbered, others = segment_folders.listing(self._folder)
        self._long_sizes = take_long(self._look(), numbered)
        return numbered, [file for file in others if not is_temporary(file.name)]

    def long_files(self) -> list[tuple[LongFile, int | None]]:
        """Long files of which not all has expired."""
        first = self.partition.sealed.first_segment
        return [(file, self._long_sizes.get(file.name)) for file in self._rewritten.files if file.upto > first]

    def _look(self) -> RewrittenFiles:
        """Rewrites as they are now; nearly always there are none."""
        return self._rewritten.look() if self._side.has_rewrites(self.partition) else self._rewritten

    def in_flight(self) -> set[int]:
        """Numbers that are being written: our roller's, or, if another process owns the log, the next one."""
        if self._side.roller is not None:
            return {number for owner, number in self._side.roller.sealing if owner == self.partition.id}
        return {self.partition.sealed.segments} if self._side.directory.holder() is not None else set()

    def rows(self, start: int, stop: int) -> list[SegmentRow]:
        """Rows as they are, not proved."""
        return self._manifest.page(self.partition, start, stop)

    def state(self, row: SegmentRow) -> int:
        """Its own; a damaged row, which is reported for that, demands no file, and one in a long file has no own."""
        if row.state == LIVE and self._rewritten.is_held(row.number):
            return EXPIRING
        return row.state if row.state in _STATES else LOST

    def unproved(self, rows: Sequence[SegmentRow]) -> list[Finding]:
        """Rows whose stamps do not match."""
        detail = "the manifest row does not match its stamp"
        return [self._mismatch(row, detail) for row in rows if not self._is_proved(row)]

    def _is_proved(self, row: SegmentRow) -> bool:
        try:
            return self._journal.segment_rows.proves(row)
        except Corrupt:  # a key epoch that is gone proves nothing
            return False

    def _mismatch(self, row: SegmentRow, detail: str) -> Finding:
        return Finding(
            "content_mismatch",
            self.partition.topic,
            self.partition.number,
            row.number,
            _name(row),
            row.first_offset,
            row.rows,
            detail=detail,
        )

    def prove(self, row: SegmentRow) -> Finding | None:
        """Read a whole file, and compare it with what its row says."""
        try:
            head = self._manifest.head(self.partition, row)
            if chain_value(head, row.rows, row.content) != row.chain:
                return self._mismatch(row, "its chain value does not follow from the segment before")
            with self._manifest.open(self.partition, row) as reader:
                reader.verify()
        except FileNotFoundError:
            return None  # expired meanwhile; a missing one is found without reading
        except Corrupt as damage:
            return self._mismatch(row, damage.message)
        return None

    # -- confirming ---------------------------------------------------------------------------------------

    def confirm(self, finding: Finding, row: SegmentRow | None) -> Finding | None:
        """Look once more at row and file."""
        if finding.name is None or finding.kind in ("gap", "overlap", "content_mismatch"):
            return finding
        flying = self.in_flight()
        self._journal.refresh()
        if finding.kind == "untracked":
            is_real = self._is_strange(finding.name, finding.number)
            is_real = is_real and finding.number not in flying | self.in_flight()
        elif row is not None and not row.stamp:
            is_real = self._is_long_harmed(finding, row)
        else:
            is_real = self._is_harmed(finding, finding.name)
        return finding if is_real else None

    def _is_long_harmed(self, finding: Finding, row: SegmentRow) -> bool:
        held = self._look().files.holding(row.number)
        if held is None or held.row != row or held.upto <= self.partition.sealed.first_segment:
            return False
        size = segment_folders.size(self._folder / held.name)
        emptied = segment_folders.size(self._folder / (held.name + layout.EXPIRED))
        if finding.kind == "missing":
            return size is None and emptied is None
        return size is not None and size != row.size

    def _is_harmed(self, finding: Finding, name: str) -> bool:
        # In this order: a file that was emptied to be expired (`retention`) goes only after its row is not live.
        size = segment_folders.size(self._folder / name)
        emptied = segment_folders.size(self._folder / (name + layout.EXPIRED))
        row = self._row_now(finding.number)
        if row is None or row.state != LIVE or (size is None and emptied is not None):
            return False
        if self._look().is_held(row.number):
            return False
        return size is None if finding.kind == "missing" else size is not None and size != row.size

    def _is_strange(self, name: str, number: int | None) -> bool:
        # In this order: a row stops vouching for a file only after the file has gone.
        own = name.removesuffix(layout.EXPIRED)
        finished = layout.parse_segment_name(own)
        row = self._row_now(number if finished is None else finished.number)
        rewritten = self._look()
        if segment_folders.size(self._folder / name) is None or rewritten.knows(own):
            return False
        if finished is not None and rewritten.is_awaited(finished.number):
            return False
        if row is None or row.state not in (LIVE, EXPIRING) or own != _name(row):
            return True
        return own != name and segment_folders.size(self._folder / own) is not None

    def _row_now(self, number: int | None) -> SegmentRow | None:
        if number is None or number >= _NUMBERS:  # the name of a foreign file may say anything
            return None
        return next(iter(self._manifest.page(self.partition, number, number + 1)), None)

    def report_rewrites(self, work: ReconcilePass) -> None:
        """The first rewrite that says nothing: what it replaced, and what it put there, is not known then."""
        bad = self._rewritten.bad
        if bad is not None:
            place = (self.partition.topic, self.partition.number)
            work.findings.append(Finding(bad.kind, *place, name=bad.key, actual=bad.size, detail=bad.detail))

    def repair(self, finding: Finding, row: SegmentRow | None) -> Repair | None:
        """Take away what is not tracked, put back what is missing; nothing on the word of a damaged row."""
        if row is not None and not row.stamp:  # a long file
            return self._side.put_back(self._folder / _name(row), row) if finding.kind == "missing" else None
        if row is not None and not self._is_proved(row):
            return None
        if finding.kind == "untracked" and finding.name is not None:
            return self._side.take_away(self._folder / finding.name, garbage=finding.garbage)
        row = self._row_now(finding.number) if finding.kind == "missing" else None
        if row is None or row.state != LIVE:
            return None
        return self._side.put_back(self._manifest.path(self.partition, row), row)


def _name(row: SegmentRow) -> str:
    return layout.segment_name(row.number, row.sha256)
