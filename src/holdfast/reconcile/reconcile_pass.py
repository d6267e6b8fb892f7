"""One pass of reconciliation, whatever the manifest is compared with: the log's own files, or the objects of its store.

    Reconciler (who may repair; passes that stopped at a limit) → Pass (unit by unit) → a Side says what there is
    to compare → each partition's segments: rows and files → `classify`, then its long files → confirm → repair or
    report

A unit of work is small enough to rest after it. Facts are gathered in the order that `classify` asks for, and every
finding is *confirmed*: row and file are checked once more, and what was only a race (sealed, expired or removed
meanwhile) counts as in flight. So a busy log has no false findings.

Repairs are opt-in. One pass at a time makes them; another one reports, and says so. Each repair looks again before it
acts, and the manifest is never changed.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol

import msgspec

from holdfast.caller import once
from holdfast.clock import Clock
from holdfast.errors import Invalid, Unavailable
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.model.segment import StoredFile
from holdfast.reconcile.classify import Classification, Finding, Kind, SealedMark, Where, classify
from holdfast.reconcile.reconcile_report import ReconcileReport, Repair
from holdfast.segments.manifest.long_files import LongFile
from holdfast.segments.segment_settings import ReconcileSettings
from holdfast.telemetry import spans

_BUSY = "another pass is repairing at this moment"
_LOGGERS = {"log": logging.getLogger("holdfast.segments"), "store": logging.getLogger("holdfast.shipping")}


class Segments(Protocol):
    """The segments of one partition in one place, up to a mark that was read before anything else."""

    partition: Partition
    count: int
    """So many segments are below the mark …"""
    end: int
    """… which is this offset."""

    def listing(self) -> tuple[dict[int, list[StoredFile]], list[StoredFile]]:
        """The files by number, and those whose names have none."""

    def in_flight(self) -> set[int]:
        """Numbers above the mark that are vouched for; asked after listing."""

    def rows(self, start: int, stop: int) -> Sequence[SegmentRow]:
        """Rows of the manifest."""

    def unproved(self, rows: Sequence[SegmentRow]) -> list[Finding]:
        """Rows that are damaged themselves."""

    def state(self, row: SegmentRow) -> int:
        """The state of a segment here; live means that its file must be here."""

    def long_files(self) -> Sequence[tuple[LongFile, int | None]]:
        """Files that hold runs of segments and must be here, each with its size as it was listed; after `listing`."""

    def prove(self, row: SegmentRow) -> Finding | None:
        """Read a whole file; what is wrong with it."""

    def confirm(self, finding: Finding, row: SegmentRow | None) -> Finding | None:
        """Look again; the finding as it is reported, or None when it was a race."""

    def repair(self, finding: Finding, row: SegmentRow | None) -> Repair | None:
        """Repair what was confirmed; None where that cannot be done."""


class Side(Protocol):
    """What the manifest is compared with."""

    @property
    def where(self) -> Where:
        """Whose files they are."""

    def check(self) -> None:
        """Raise what prevents a comparison."""

    def why_not_repair(self) -> str | None:
        """Why nothing can be repaired at present; raises where this handle never repairs."""

    def units(self, work: ReconcilePass) -> Iterator[None]:
        """Compare everything, a unit at a time."""

    def close(self) -> None:
        """Let go of what it holds."""


class Reconciler:
    """Runs passes over one side of an open log."""

    def __init__(self, side: Side, settings: ReconcileSettings, clock: Clock) -> None:
        self.side = side
        self.unit_segments = settings.unit_segments
        self.clock = clock
        self.fixing = Lock()  # never waited for: a caller that is interrupted meanwhile learns that a pass repairs
        """Held by the pass that repairs."""
        self._lock = RLock()
        self._unfinished: dict[tuple[bool, bool], ReconcilePass] = {}
        """Passes that stopped at a limit: one with and one without repairs, deep or not."""
        self.last: ReconcileReport | None = None
        self.passes = 0

    def begin(self, *, fix: bool, deep: bool) -> ReconcilePass:
        """A new pass; if repairs are asked for and cannot be made at present, it will only report."""
        skipped = self.side.why_not_repair() if fix else None
        if fix and skipped is None and not self.fixing.acquire(blocking=False):
            skipped = _BUSY
        return ReconcilePass(self, fix=fix and skipped is None, skipped=skipped, deep=deep)

    def run(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """A whole pass; or, with a limit, so many units, going on where the last such pass stopped."""
        self.side.check()
        if limit is not None and limit <= 0:
            raise Invalid(f"limit must be above zero, got {limit}", hint="leave it out for a whole pass")
        with once(self._lock):
            work = self._unfinished.pop((fix, deep), None) or self.begin(fix=fix, deep=deep)
        with spans.span(spans.RECONCILE, {"holdfast.where": self.side.where, "holdfast.deep": deep}) as span:
            done = 0
            while (limit is None or done < limit) and work.step():
                done += 1
            report = work.report
            span.set_attribute("holdfast.findings", len(report.findings))
            span.set_attribute("holdfast.repairs", len(report.repairs))
        if not report.complete:
            with once(self._lock):
                other, self._unfinished[fix, deep] = self._unfinished.get((fix, deep)), work
            if other is not None:
                other.end()
        return report

    def publish(self, report: ReconcileReport) -> None:
        """The report of a complete pass, for everybody to read."""
        self.last = report
        self.passes += 1
        if report.findings:
            _LOGGERS[report.where].error(
                "reconciliation of the %s found %d problems",
                report.where,
                len(report.findings),
                extra={"action": "reconcile", "findings": self.findings_by_kind()},
            )

    def findings_by_kind(self) -> dict[str, int]:
        """Findings of the last complete pass, counted."""
        return dict(Counter(finding.kind for finding in self.last.findings)) if self.last is not None else {}

    def close(self) -> None:
        """Forget unfinished passes, and let go of the side."""
        with once(self._lock):
            passes, self._unfinished = list(self._unfinished.values()), {}
        for work in passes:
            work.end()
        self.side.close()


class ReconcilePass:
    """One pass: a sequence of units, and what they have found so far."""

    def __init__(self, of: Reconciler, *, fix: bool, skipped: str | None, deep: bool) -> None:
        self._of = of
        self.fix, self.deep = fix, deep
        self.unit_segments = of.unit_segments
        self.findings: list[Finding] = []
        self.repairs: list[Repair] = []
        self.counts: Counter[str] = Counter()
        """By the names that they have in the report."""
        self._holds_lock = fix
        self._units = of.side.units(self)
        self.report = ReconcileReport(
            deep=deep,
            mode="fix" if fix else "report",
            fixes_skipped=skipped,
            started_us=of.clock.now_us(),
            where=of.side.where,
        )

    def step(self) -> bool:
        """Do one unit; False when the pass is complete."""
        if self.report.complete:
            return False
        try:
            is_complete = next(self._units, self) is self
        except OSError as error:
            self.end()
            raise Unavailable(
                f"cannot read the files path={error.filename}: {error.strerror}",
                hint="check permissions and the disk; then reconcile again",
            ) from error
        except BaseException:
            self.end()
            raise
        self.report = msgspec.structs.replace(
            self.report,
            findings=tuple(self.findings),
            repairs=tuple(self.repairs),
            complete=is_complete,
            completed_us=self._of.clock.now_us() if is_complete else None,
            **self.counts,
        )
        if is_complete:
            self.end()
            self._of.publish(self.report)
        return not is_complete

    def end(self) -> None:
        """Let others repair."""
        if self._holds_lock:
            self._holds_lock = False
            self._of.fixing.release()

    # -- the segments of one partition --------------------------------------------------------------------

    def compare(self, of: Segments) -> Iterator[None]:
        """Compare rows and files, a page at a time; in the order that `classify` asks for."""
        mark = SealedMark(of.count - 1 if of.count else None, of.end)
        files, others = of.listing()
        flying = of.in_flight()
        before: SealedMark | None = None
        for start in range(0, max(1, of.count), self.unit_segments):
            stop = min(of.count, start + self.unit_segments)
            rows = of.rows(start, stop)
            listed = [file for row in rows for file in files.pop(row.number, ())]
            if stop == of.count:
                listed += [file for more in files.values() for file in more] + others
            before = before or SealedMark(None, rows[0].first_offset if rows else of.end)
            moving = flying | of.in_flight()
            found = classify(rows, listed, mark, moving, state=of.state, after=before, last=stop == of.count)
            wrong = self._judge(of, found, rows)
            yield None
            for row in rows if self.deep else ():
                if of.state(row) == LIVE and row.number not in wrong:
                    damage = of.prove(row)
                    if damage is not None:
                        self._take(of, damage, row)
                    yield None
            before = SealedMark(rows[-1].number, rows[-1].end) if rows else before
        yield from self._compare_long(of)

    def _compare_long(self, of: Segments) -> Iterator[None]:
        """The files that compaction put in the place of segments: each is there, whole and (deep) as it was written."""
        for file, size in of.long_files():
            row = file.row
            self.counts["bytes_expected"] += row.size
            self.counts["bytes_actual"] += size or 0
            self.counts["files"] += size is not None
            kind: Kind | None = "missing" if size is None else "size_mismatch" if size != row.size else None
            found = of.prove(row) if kind is None and self.deep else None
            if kind is not None:
                found = Finding(
                    kind,
                    number=row.number,
                    name=file.name,
                    first=row.first_offset,
                    rows=row.rows,
                    expected=row.size,
                    actual=size,
                    detail=f"a file that holds segments {row.number} to {file.upto - 1}",
                )
            if found is not None:
                self._take(of, found, row)
            yield None

    def _judge(self, of: Segments, found: Classification, rows: Sequence[SegmentRow]) -> set[int | None]:
        """Count, and take what was found; returns the numbers of the segments that something is wrong with."""
        self.counts.update(
            segments=found.checked_segments,
            files=found.checked_files,
            in_flight=found.in_flight,
            bytes_expected=found.bytes_expected,
            bytes_actual=found.bytes_actual,
        )
        known = len(self.findings)
        by_number: dict[int | None, SegmentRow] = {row.number: row for row in rows} if found.findings else {}
        for finding in found.findings:
            self._take(of, finding, by_number.get(finding.number))
        self.findings += of.unproved(rows)
        return {finding.number for finding in self.findings[known:]}

    def _take(self, of: Segments, finding: Finding, row: SegmentRow | None) -> None:
        """Confirm a finding; then repair it, if that is wanted, or report it."""
        place = of.partition
        real = of.confirm(msgspec.structs.replace(finding, topic=place.topic, partition=place.number), row)
        repair = of.repair(real, row) if self.fix and real is not None else None
        if real is None:
            self.counts["in_flight"] += 1
        elif repair is None:
            self.findings.append(real)
        else:
            self.repaired(repair)

    def repaired(self, repair: Repair) -> None:
        """Something was repaired."""
        self.repairs.append(repair)
        _LOGGERS[self.report.where].warning(
            "reconciliation of the %s %s %s",
            self.report.where,
            repair.action,
            repair.path,
            extra={"action": f"reconcile_{repair.action}", "path": repair.path},
        )
