"""Reconciliation's judgement: the manifest of one partition against the list of its files.

A pure function, so that the local command and the Spark job give the same answer. It reads nothing, repairs nothing
and knows no clock; nothing is called finished or dead because of its age.

Only what is sealed is judged: at or below the mark a file is final and its row is settled, so any difference is real.
Above it things move. They are counted as in flight and never reported, but only while something vouches for them: a
row, or a number in `in_flight`. A finished file above the mark that nobody vouches for is a dead orphan, and is found.

Hazard: manifest, mark and listing are read one after the other while the log is at work. Read them in this order and a
writer can cause no finding: the mark, the listing, the numbers in flight, the rows. A file that was listed is then
vouched for by its number or, if its writer has finished since, by its row. Retention may still remove a file in
between: before acting on a finding, row and file are checked once more.

`garbage` marks what may be removed without looking at its content: unfinished files that nobody writes, and files of
segments that the manifest itself calls expired. A lost segment's file that turns up again is no garbage but a rescue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.model.control_rows import EXPIRED, EXPIRING, LIVE, LOST, SegmentRow
from holdfast.model.segment import StoredFile
from holdfast.store.layout import parse_segment_name, parse_temporary_name, segment_name

Kind = Literal["missing", "size_mismatch", "content_mismatch", "untracked", "overlap", "gap"]
Where = Literal["log", "store"]


class SealedMark(NamedTuple):
    """How far the partition is sealed: the last sealed segment, None before the first, and the offset after it."""

    index: int | None  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    offset: int


class Finding(msgspec.Struct, frozen=True):
    """One difference between what the manifest says and what is there.

    `classify` works on one partition and leaves `topic` and `partition` to its caller; `content_mismatch` is found
    only by those who read files.
    """

    kind: Kind
    """What it is; each has its row in how to reconcile."""
    topic: str = ""
    """Empty for a file that belongs to none."""
    partition: int = -1
    """-1 likewise."""
    number: int | None = None
    """The segment; for a gap, the one that should have begun there; None for a file whose name is not ours."""
    name: str | None = None
    """The file, without folders; of an object of the store, its key."""
    first: int | None = None
    """The segment's first offset; for a gap or an overlap, where it begins."""
    rows: int | None = None
    """The segment's rows; for a gap or an overlap, its length in offsets (a gap in the numbering alone has none)."""
    expected: int | None = None
    """Bytes by the manifest; for a gap or an overlap, the offset at which the next segment should begin."""
    actual: int | None = None
    """Bytes of the file; for a gap or an overlap, the offset at which the next segment begins."""
    detail: str = ""
    """What is wrong, in words that may change."""
    garbage: bool = False
    """Whether the file may be removed without looking inside."""
    where: Where = "log"
    """Whose file it is: the log's own, or an object of its store."""


class Classification(msgspec.Struct, frozen=True):
    """What a partition, or one page of its manifest, looks like."""

    findings: tuple[Finding, ...] = ()
    """By number, names that are not ours last."""
    checked_segments: int = 0
    """Rows at or below the mark."""
    checked_files: int = 0
    """Files that were judged; those in flight are not among them."""
    in_flight: int = 0
    """Rows above the mark, and files that are still being written or removed."""
    bytes_expected: int = 0
    """Bytes of the live segments by the manifest …"""
    bytes_actual: int = 0
    """… and of those of their files that are there."""


def classify(
    manifest: Iterable[SegmentRow],
    listing: Iterable[StoredFile],
    mark: SealedMark,
    in_flight: Collection[int] = (),
    *,
    state: Callable[[SegmentRow], int] = attrgetter("state"),
    after: SealedMark | None = None,
    last: bool = True,
) -> Classification:
    """Compare rows, sorted by number, with files, in any order.

    The manifest keeps the rows of expired segments, so it begins with number 0 at offset 0 and has no hole.

    It may come in pages: `after` is the row before the page and `last` says whether the page is the last one. A page
    judges the files whose numbers lie behind `after` and up to its last row; the last page judges all numbers behind
    `after`, and names that are not ours. Other files may be in `listing` and are passed over. Rows of one number
    belong on one page. All pages together find and count what the whole would.
    """
    page = _Page(dict(listing), mark, in_flight, state, after or SealedMark(None, 0))
    for _, rows in groupby(manifest, attrgetter("number")):
        page.take(list(rows))
    return page.finish(last=last)


class _Page:
    """A page while it is judged: what was found, and the files that no row has claimed yet."""

    def __init__(
        self,
        files: dict[str, int],
        mark: SealedMark,
        in_flight: Collection[int],
        state: Callable[[SegmentRow], int],
        after: SealedMark,
    ) -> None:
        self._files = files
        self._mark = mark
        self._moving = set(in_flight)
        self._state = state
        self._before = -1 if after.index is None else after.index
        self._number = self._before
        """The last number seen."""
        self._judged = self._before
        """The last number judged, and the offset at which the next one should begin."""
        self._end = after.offset
        self._mark_passed = self._is_above(self._before)
        self._findings: list[Finding] = []
        self._checked_segments = self._checked_files = self._in_flight = 0
        self._bytes_expected = self._bytes_actual = 0

    def take(self, rows: list[SegmentRow]) -> None:
        """Judge all rows of one number: one, unless the manifest is damaged."""
        number = rows[0].number
        if number < self._number:
            raise Invalid(f"rows are not sorted number={number} after={self._number}", hint="sort them by number")
        seen, self._number = self._number, number
        if self._is_above(number):
            self._pass_mark()
            self._let_move(rows)
            return
        self._checked_segments += len(rows)
        # The first row of a number stands; another one claims a place that is taken, whatever it says.
        repeats = rows if number == seen else rows[1:]
        if number > seen:
            self._judge(rows[0], alone=not repeats)
        for row in repeats:
            detail = "the manifest lists this number more than once"
            self._add("overlap", number, detail, name=_name(row), first=row.first_offset, rows=row.rows)

    def finish(self, *, last: bool) -> Classification:
        """Judge what no row has claimed, and the end of the manifest."""
        if last:
            self._pass_mark()
        for name, size in self._files.items():
            self._judge_unclaimed(name, size, last=last)
        self._findings.sort(key=_by_number)
        return Classification(
            tuple(self._findings),
            self._checked_segments,
            self._checked_files,
            self._in_flight,
            self._bytes_expected,
            self._bytes_actual,
        )

    def _is_above(self, number: int) -> bool:
        return number > (-1 if self._mark.index is None else self._mark.index)

    def _pass_mark(self) -> None:
        # Once per partition, on the page where it happens: what is sealed ends exactly at the mark.
        if not self._mark_passed:
            self._mark_passed = True
            self._meet(0 if self._mark.index is None else self._mark.index + 1, self._mark.offset)

    def _let_move(self, rows: list[SegmentRow]) -> None:
        self._in_flight += len(rows)
        self._moving.add(rows[0].number)
        for row in rows:
            self._files.pop(_name(row), None)

    def _judge(self, row: SegmentRow, *, alone: bool) -> None:
        self._meet(row.number, row.first_offset)
        self._judged, self._end = row.number, row.end
        size, state = self._files.pop(_name(row), None), self._state(row)
        if state == LIVE:
            self._judge_live(row, size)
        elif state == EXPIRING:
            self._in_flight += size is not None
        elif state not in (EXPIRED, LOST):
            raise Invalid(f"unknown state={state} number={row.number}", hint="use a newer holdfast")
        elif size is not None:
            self._find_returned(row, size, is_lost=state == LOST, alone=alone)

    def _meet(self, number: int, first: int) -> None:
        """Find what lies between the last judged row and one that begins here: nothing, if all is well."""
        end, due = self._end, self._judged + 1
        if first < end:
            detail = "begins before the end of the segment before it"
            self._add("overlap", number, detail, first=first, rows=end - first, expected=end, actual=first)
        if first > end or number > due:
            lacking = f"segments are not in the manifest from={due} to={number - 1}"
            detail = lacking if number > due else "records are in no segment"
            self._add("gap", due, detail, first=end, rows=max(0, first - end), expected=end, actual=first)

    def _judge_live(self, row: SegmentRow, size: int | None) -> None:
        self._bytes_expected += row.size
        if size is None:
            self._find(row, "missing", None, "the file is not there")
            return
        self._checked_files += 1
        self._bytes_actual += size
        if size != row.size:
            self._find(row, "size_mismatch", size, "the file has another size than when it was sealed")

    def _find_returned(self, row: SegmentRow, size: int, *, is_lost: bool, alone: bool) -> None:
        self._checked_files += 1
        if is_lost:
            self._find(row, "untracked", size, "its segment was given up as lost and its file is here again")
        else:
            # A file goes for an expired row's sake only if no other row can mean it.
            self._find(row, "untracked", size, "its segment is expired", garbage=alone)

    def _find(self, row: SegmentRow, kind: Kind, size: int | None, detail: str, *, garbage: bool = False) -> None:
        self._add(
            kind,
            row.number,
            detail,
            name=_name(row),
            first=row.first_offset,
            rows=row.rows,
            expected=row.size,
            actual=size,
            garbage=garbage,
        )

    def _add(self, kind: Kind, number: int | None, detail: str, **facts: Any) -> None:
        self._findings.append(Finding(kind, number=number, detail=detail, **facts))

    def _judge_unclaimed(self, name: str, size: int, *, last: bool) -> None:
        finished = parse_segment_name(name)
        number = parse_temporary_name(name) if finished is None else finished.number
        if not self._is_ours(number, last=last):
            return
        if number is not None and self._is_above(number) and number in self._moving:
            self._in_flight += 1
            return
        self._checked_files += 1
        unfinished = number is not None and finished is None
        if unfinished:
            detail = "an unfinished file that no process is writing"
        elif number is None:
            detail = "not a name of holdfast"
        elif self._is_above(number):
            detail = "a finished file above the mark that no process is sealing"
        else:
            detail = "the manifest names another file for this number, or none"
        self._add("untracked", number, detail, name=name, actual=size, garbage=unfinished)

    def _is_ours(self, number: int | None, *, last: bool) -> bool:
        if number is None:
            return last
        return number > self._before and (last or number <= self._number)


def _name(row: SegmentRow) -> str:
    return segment_name(row.number, row.sha256)


def _by_number(finding: Finding) -> tuple[bool, int, str]:
    return finding.number is None, finding.number or 0, finding.name or ""
