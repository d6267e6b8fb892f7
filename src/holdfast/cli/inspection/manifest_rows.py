"""Rows of the manifest one by one, also when some of them cannot be read.

Page by page in short read transactions, the newest of each partition, each with the row before it, which its chain
value must follow from. Files are not looked at: `holdfast reconcile` compares them with these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from holdfast.cli.inspection.control_tables import UNREADABLE, Glance, looking
from holdfast.errors import Corrupt
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.model.control_rows import EXPIRED, EXPIRING, LIVE, LOST, SegmentRow, WatermarkRow

STATES = {LIVE: "live", EXPIRING: "expiring", EXPIRED: "expired", LOST: "lost"}
_PAGE_ROWS = 512


class Sealed(NamedTuple):
    """A row of the manifest and the one before it; None where there is none or it cannot be read."""

    row: SegmentRow
    before: SegmentRow | None


class StoredSegments:
    """The rows of the manifest that a glance knew of."""

    def __init__(self, backend: SqliteBackend, seen: Glance, problems: list[Corrupt]) -> None:
        self._backend = backend
        self._seen = seen
        self._problems = problems

    def newest(self, count: int | None, partitions: Iterable[int]) -> Iterator[Sealed]:
        """The newest `count` segments (None: all) of each of these partitions, in order."""
        for partition_id in partitions:
            mark = self._seen.watermarks.get(partition_id)
            if mark is not None:
                first = 0 if count is None else max(0, mark.segments - count)
                yield from self._rows(partition_id, first, mark.segments)

    def last(self, mark: WatermarkRow) -> SegmentRow | None:
        """The newest segment of a partition, if it can be read."""
        return next(iter(self._page(mark.partition_id, mark.segments - 1, mark.segments)), None)

    def _rows(self, partition_id: int, first: int, end: int) -> Iterator[Sealed]:
        before = next(iter(self._page(partition_id, first - 1, first)), None)
        while page := self._page(partition_id, first, end):
            for row in page:
                yield Sealed(row, before)
                before = row
            first = page[-1].number + 1

    def _page(self, partition_id: int, start: int, stop: int) -> list[SegmentRow]:
        if start >= stop or stop <= 0:
            return []
        columns = ", ".join(SegmentRow.__annotations__)
        sql = f"SELECT {columns} FROM segments WHERE partition_id=? AND number>=? AND number<? ORDER BY number LIMIT ?"
        rows: list[SegmentRow] = []
        with looking(self._backend) as connection:
            try:
                for found in connection.execute(sql, (partition_id, start, stop, _PAGE_ROWS)):
                    rows.append(msgspec.convert(found, SegmentRow))  # noqa: PERF401 - what came before an error is kept
            except UNREADABLE:
                if not rows:  # else the next page begins with the damage
                    self._problems.append(
                        Corrupt(f"rows of the manifest cannot be read from={start}", path=str(self._backend.path))
                    )
        return rows
