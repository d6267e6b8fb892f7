"""Reconciliation: compares the manifest of an open log with its files, while everything goes on.

A pass goes through all partitions, in units of work small enough to rest in between, and then walks the directories
for what belongs to no partition at all. The judgement is `classify`'s; here the facts are gathered in the order that
it asks for, and every finding is *confirmed* before it is reported: row and file are looked at once more, and what
was only a race (sealed, expired or removed meanwhile) is dropped. So a busy log has no false findings.

Repairs are asked for, and only one pass at a time makes them; another one reports, and says so. Each repair looks
again before it acts. Removed is only what is provably garbage; anything else is moved to `quarantine/`. A segment
that is missing is put back if a file with its very hash is found. Nothing is ever changed in the manifest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

import msgspec

from holdfast import disk
from holdfast.clock import Clock
from holdfast.errors import Corrupt, Invalid, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log_directory import Directory
from holdfast.model.control_rows import EXPIRED, EXPIRING, LIVE, SegmentRow
from holdfast.model.segment import chain_value
from holdfast.reconcile.classify import Classified, Finding, Mark, State, Tracked, Where, classify
from holdfast.reconcile.unfinished import Unfinished
from holdfast.root.old_layout import new_key
from holdfast.segments.manifest import segment_folders
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.sealing.roller import Roller
from holdfast.segments.segment_settings import ReconcileSettings
from holdfast.store import layout

_STATES: dict[int, State] = {LIVE: "live", EXPIRING: "expiring", EXPIRED: "expired"}

_NUMBERS = 2**63 - 1
"""No segment has such a number or a higher one: the database could not hold it."""

logger = logging.getLogger("holdfast.segments")


class Repair(msgspec.Struct, frozen=True):
    """One thing that was repaired."""

    action: Literal["removed", "quarantined", "restored"]
    path: str
    """Relative to the log's directory: where the file was, or (restored) where it is now; on the store, the key."""


class ReconcileReport(msgspec.Struct, frozen=True):
    """What a pass found. Without `complete` it is what was found so far."""

    findings: tuple[Finding, ...] = ()
    repairs: tuple[Repair, ...] = ()
    segments: int = 0
    """Segments compared."""
    files: int = 0
    """Files compared."""
    in_flight: int = 0
    """Segments and files on their way in or out; never damage."""
    evidence: int = 0
    """Commit batches of the store behind a loss that a restore accepted; nobody removes them."""
    bytes_expected: int = 0
    bytes_actual: int = 0
    deep: bool = False
    mode: Literal["report", "fix"] = "report"
    fixes_skipped: str | None = None
    """Why nothing was repaired although that was asked for."""
    complete: bool = False
    started_us: int = 0
    completed_us: int | None = None
    where: Where = "log"
    """What was compared with the manifest: the log's own files, or the objects of its store."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found that is not repaired."""
        return not self.findings


class Reconciler:
    """Runs passes over one open log."""

    def __init__(
        self, journal: Journal, manifest: Manifest, directory: Directory, roller: Roller | None,
        settings: ReconcileSettings, clock: Clock,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._manifest = manifest
        self._directory = directory
        self._roller = roller
        self._settings = settings
        self._clock = clock
        self._fixing = Lock()
        self._unfinished: Unfinished[ReconcileReport] = Unfinished()
        self.last: ReconcileReport | None = None
        self.passes = 0

    def begin(self, *, fix: bool, deep: bool) -> Pass:
        """A new pass; if repairs are asked for and another pass makes them already, it will only report."""
        if fix and self._roller is None:
            raise Invalid(
                "this log is open for reading only", hint="repair it where it is owned, or while nobody owns it"
            )
        return Pass(self, fix=fix and self._fixing.acquire(blocking=False), asked=fix, deep=deep)

    def run(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """A whole pass; or, with a limit, so many units of one, going on with the next call."""
        return self._unfinished.run((fix, deep), lambda: self.begin(fix=fix, deep=deep), limit)

    def reset(self) -> None:
        """Forget unfinished passes."""
        self._unfinished.reset()

    def publish(self, report: ReconcileReport) -> None:
        """The report of a complete pass, for everybody to read."""
        self.last = report
        self.passes += 1
        if report.findings:
            logger.error(
                "reconciliation found %d problems", len(report.findings),
                extra={"action": "reconcile", "findings": self.findings_by_kind()},
            )  # fmt: skip

    def findings_by_kind(self) -> dict[str, int]:
        """Findings of the last complete pass, counted."""
        return dict(Counter(finding.kind for finding in self.last.findings)) if self.last is not None else {}


class Pass:
    """One pass: a sequence of units, each a step of `units`."""

    def __init__(self, reconciler: Reconciler, *, fix: bool, asked: bool, deep: bool) -> None:
        self._of = reconciler
        self._journal, self._manifest = reconciler._journal, reconciler._manifest
        self._directory = reconciler._directory
        self._root = self._directory.segments
        self._clock = reconciler._clock
        self._fix = fix
        self._holds_lock = fix
        self._deep = deep
        skipped = "another pass is repairing at this moment" if asked and not fix else None
        self.report = ReconcileReport(
            deep=deep, mode="fix" if fix else "report", fixes_skipped=skipped, started_us=self._clock.now_us()
        )  # fmt: skip
        self._units = self._all_units()

    def run(self, limit: int | None = None) -> ReconcileReport:
        """Do so many units, or all that are left."""
        done = 0
        while limit is None or done < limit:
            if not self.step():
                break
            done += 1
        return self.report

    def step(self) -> bool:
        """Do one unit; False when the pass is complete."""
        try:
            next(self._units)
        except StopIteration:
            if not self.report.complete:
                now = self._clock.now_us()
                self.report = msgspec.structs.replace(self.report, complete=True, completed_us=now)
                self._of.publish(self.report)
            self.end()
            return False
        except OSError as error:
            self.end()
            raise Unavailable(
                f"cannot look at the files path={error.filename}: {error.strerror}",
                hint="check permissions and the disk; then reconcile again",
            ) from error
        except BaseException:
            self.end()
            raise
        return True

    def end(self) -> None:
        """Let others repair."""
        if self._holds_lock:
            self._holds_lock = False
            self._of._fixing.release()

    def _all_units(self) -> Iterator[None]:
        self._journal.refresh()
        for partition in list(self._journal.topics.by_id.values()):
            yield from self._partition(partition)
        yield from self._strangers()

    # -- one partition ------------------------------------------------------------------------------------

    def _partition(self, partition: Partition) -> Iterator[None]:
        # In this order: see classify.
        sealed = partition.sealed
        mark = Mark(sealed.segments - 1 if sealed.segments else None, sealed.sealed_offset)
        folder = self._manifest.folder(partition)
        listing, others = segment_folders.listing(folder)
        flying = self._in_flight(partition)
        after: Tracked | None = None
        for start in range(0, max(1, sealed.segments), self._of._settings.unit_segments):
            stop = min(sealed.segments, start + self._of._settings.unit_segments)
            rows = self._manifest.page(partition, start, stop)
            last = stop == sealed.segments
            if after is None:
                after = _beginning(rows[0].first_offset if rows else sealed.sealed_offset)
            tracked = [_tracked(row) for row in rows]
            files = [listed for row in rows for listed in listing.pop(row.number, ())]
            if last:
                files += [listed for more in listing.values() for listed in more] + others
            found = classify(tracked, files, mark, flying | self._in_flight(partition), after=after, last=last)
            self._note(partition, found, rows)
            if self._deep:
                yield from self._prove_all(partition, rows)
            after = tracked[-1] if tracked else after
            yield None

    def _note(self, partition: Partition, found: Classified, rows: list[SegmentRow]) -> None:
        real: list[Finding] = []
        races = 0
        unproved = {row.number: row for row in rows if not self._is_proved(row)}
        for finding in found.findings:
            located = msgspec.structs.replace(finding, topic=partition.topic, partition=partition.number)
            if not self._is_real(partition, located):
                races += 1
            elif finding.number in unproved:
                real.append(located)  # nothing is touched on the word of a damaged row
            else:
                real += self._repaired(partition, located)
        for row in unproved.values():
            real.append(_mismatch(partition, row, "the manifest row does not match its stamp"))
        old = self.report
        self.report = msgspec.structs.replace(
            old,
            findings=(*old.findings, *real),
            segments=old.segments + found.checked_segments,
            files=old.files + found.checked_files,
            in_flight=old.in_flight + found.in_flight + races,
            bytes_expected=old.bytes_expected + found.bytes_expected,
            bytes_actual=old.bytes_actual + found.bytes_actual,
        )

    def _is_proved(self, row: SegmentRow) -> bool:
        try:
            return self._journal.vault.verify(row.key_epoch, row.message(), row.stamp)
        except Corrupt:  # a key epoch that is gone proves nothing
            return False

    def _in_flight(self, partition: Partition) -> set[int]:
        """Numbers that are being written: our roller's, or, if another process owns the log, the next one."""
        if self._of._roller is not None:
            return {number for owner, number in self._of._roller.sealing if owner == partition.id}
        return {partition.sealed.segments} if self._directory.holder() is not None else set()

    # -- confirming ---------------------------------------------------------------------------------------

    def _is_real(self, partition: Partition, finding: Finding) -> bool:
        """Look once more at row and file."""
        if finding.kind in ("gap", "overlap"):
            return True
        flying = self._in_flight(partition)
        self._journal.refresh()
        assert finding.name is not None
        if finding.kind in ("missing", "size_mismatch"):
            return self._is_harmed(partition, finding.kind, finding.name, finding.number)
        if not self._is_strange(partition, finding.name, finding.number):
            return False
        return finding.number not in flying | self._in_flight(partition)

    def _is_harmed(self, partition: Partition, kind: str, name: str, number: int | None) -> bool:
        # In this order: a file that was emptied to be expired (`retention`) goes only after its row is not live.
        folder = self._manifest.folder(partition)
        size, emptied = segment_folders.size(folder / name), segment_folders.size(folder / (name + layout.EXPIRED))
        row = self._row_now(partition, number)
        if row is None or row.state != LIVE or (size is None and emptied is not None):
            return False
        return size is None if kind == "missing" else size is not None and size != row.size

    def _is_strange(self, partition: Partition, name: str, number: int | None) -> bool:
        # In this order: what a row speaks for goes before the row stops to.
        folder = self._manifest.folder(partition)
        own = name.removesuffix(layout.EXPIRED)
        finished = layout.parse_segment_name(own)
        row = self._row_now(partition, number if finished is None else finished.number)
        if segment_folders.size(folder / name) is None:
            return False
        if row is None or row.state not in (LIVE, EXPIRING) or own != layout.segment_name(row.number, row.sha256):
            return True
        return own != name and segment_folders.size(folder / own) is not None

    def _row_now(self, partition: Partition, number: int | None) -> SegmentRow | None:
        if number is None or number >= _NUMBERS:  # a stranger's name may say anything
            return None
        rows = self._manifest.page(partition, number, number + 1)
        return rows[0] if rows else None

    # -- deep ---------------------------------------------------------------------------------------------

    def _prove_all(self, partition: Partition, rows: list[SegmentRow]) -> Iterator[None]:
        place = (partition.topic, partition.number)
        known = {finding.number for finding in self.report.findings if (finding.topic, finding.partition) == place}
        for row in rows:
            if row.state == LIVE and row.number not in known:
                problem = self._prove(partition, row)
                if problem is not None:
                    finding = _mismatch(partition, row, problem)
                    self.report = msgspec.structs.replace(self.report, findings=(*self.report.findings, finding))
                yield None

    def _prove(self, partition: Partition, row: SegmentRow) -> str | None:
        """Read a whole file and prove it; what is wrong, or None."""
        try:
            head = self._manifest.head(partition, row)
            if chain_value(head, row.rows, row.content) != row.chain:
                return "its chain value does not follow from the segment before"
            with self._manifest.open(partition, row) as reader:
                reader.verify()
        except FileNotFoundError:
            return None  # expired meanwhile; a missing one is found by the shallow part
        except Corrupt as damage:
            return damage.message
        return None

    # -- what belongs to no partition ---------------------------------------------------------------------

    def _is_document(self, key: str) -> bool:
        """Whether a file is a manifest object or another document of this log's own directory."""
        topic = layout.parse_document(new_key(key))
        return topic == "" or topic in self._journal.topics.partitions

    def _strangers(self) -> Iterator[None]:
        """Everything under the root that is no partition's segment folder."""
        for path in segment_folders.walk(self._root, self._is_known):
            relative = path.relative_to(self._root).as_posix()
            size = segment_folders.size(path)
            if size is None or self._is_known(path.parent) or self._is_document(relative):
                continue
            finding = Finding(
                "untracked", name=relative, actual=size, detail="it belongs to no topic and partition of this log"
            )  # fmt: skip
            left = self._repaired(None, finding)
            old = self.report
            self.report = msgspec.structs.replace(old, findings=(*old.findings, *left), files=old.files + 1)
        yield None

    def _is_known(self, folder: Path) -> bool:
        """Whether a folder holds the segments of one of our partitions."""
        parts = folder.relative_to(self._root).parts
        if len(parts) != 4 or parts[0] != "topics" or parts[3] != "segments":
            return False
        self._journal.refresh()
        known = self._journal.topics.partitions.get(parts[1], ())
        return parts[2] in {str(partition.number) for partition in known}

    # -- repairing ----------------------------------------------------------------------------------------

    def _repaired(self, partition: Partition | None, finding: Finding) -> list[Finding]:
        """What is left of a finding after repair: nothing, or itself."""
        if not self._fix:
            return [finding]
        if self._journal.end is not None:  # a file whose commit is in doubt may be listed after all
            raise self._journal.end.again()
        if finding.kind == "missing" and partition is not None:
            return [] if self._restore(partition, finding) else [finding]
        if finding.kind != "untracked" or finding.name is None:
            return [finding]
        path = (self._root if partition is None else self._manifest.folder(partition)) / finding.name
        relative = path.relative_to(self._directory.path).as_posix()
        if finding.garbage:
            disk.remove(path)
            self._log_repair(Repair("removed", relative))
        else:
            target = self._quarantined(path)
            disk.make_directory(target.parent)
            disk.rename(path, target)
            self._log_repair(Repair("quarantined", relative))
        return []

    def _quarantined(self, path: Path) -> Path:
        *above, name = path.relative_to(self._root).parts
        place = self._directory.quarantine
        for folder in above:
            place = segment_folders.free(place / folder, folder=True)
        return segment_folders.free(place / name)

    def _restore(self, partition: Partition, finding: Finding) -> bool:
        """Put a missing segment back if a file with its hash lies among the untracked or in quarantine."""
        row = self._row_now(partition, finding.number)
        if row is None or row.state != LIVE:
            return False
        final = self._manifest.path(partition, row)
        for place in (self._root, self._directory.quarantine):
            for path in segment_folders.walk(place, lambda folder: False):
                if (
                    path != final
                    and segment_folders.size(path) == row.size
                    and segment_folders.sha256(path) == row.sha256
                ):
                    disk.make_directory(final.parent)
                    disk.rename(path, final)
                    self._log_repair(Repair("restored", final.relative_to(self._directory.path).as_posix()))
                    return True
        return False

    def _log_repair(self, repair: Repair) -> None:
        self.report = msgspec.structs.replace(self.report, repairs=(*self.report.repairs, repair))
        logger.warning(
            "reconciliation %s %s", repair.action, repair.path,
            extra={"action": f"reconcile_{repair.action}", "path": repair.path},
        )  # fmt: skip


def _tracked(row: SegmentRow) -> Tracked:
    name = layout.segment_name(row.number, row.sha256)
    return Tracked(row.number, row.first_offset, row.rows, row.size, name, _STATES.get(row.state, "lost"))


def _beginning(offset: int) -> Tracked:
    """What stands before the first segment of a partition that begins at an offset."""
    return Tracked(-1, 0, offset, 0, "", "expired")


def _mismatch(partition: Partition, row: SegmentRow, detail: str) -> Finding:
    return Finding(
        "content_mismatch", partition.topic, partition.number, row.number, layout.segment_name(row.number, row.sha256),
        row.first_offset, row.rows, detail=detail,
    )  # fmt: skip
