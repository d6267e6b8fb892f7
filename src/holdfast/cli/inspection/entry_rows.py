"""Stored entries one by one, also when some of them cannot be read.

Each is sought by its number, so that a damaged page hides only what lies on it. Lookups are grouped into
short read transactions. The newest entry of the glance is the last one: what an owner commits meanwhile is
left for next time. What he seals meanwhile is trimmed and gone; it is passed over, for a segment holds it now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

import apsw
import msgspec

from holdfast.cli.inspection.control_tables import SEGMENTS_SINCE, UNREADABLE, Glance, looking
from holdfast.crypto import digests
from holdfast.errors import Corrupt
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.model.entry import Entry

_PAGE_ENTRIES = 256
_PAGE_BYTES = 4 * 2**20
_LOST_MAX = 10_000
"""After so many numbers in a row that cannot be read the rest is given up: they are not dense, so they are forged."""
_COLUMNS = (
    "seq, partition_id, first_offset, count, group_number, kind, codec, key_epoch, time_min, time_max, link, digest"
)


class Stored(NamedTuple):
    """An entry, the size of its body, whether that was too large to be fetched, and whether a lost one came before."""

    entry: Entry
    bytes: int
    too_large: bool
    after_lost: bool


class _Found(NamedTuple):
    entry: Entry
    bytes: int
    is_too_large: int
    is_chosen: int


class StoredEntries:
    """The entries that a glance saw."""

    def __init__(self, backend: SqliteBackend, seen: Glance, problems: list[Corrupt], bytes_max: int) -> None:
        self._backend = backend
        self._seen = seen
        self._problems = problems
        self._bytes_max = bytes_max
        self._ends: dict[int, tuple[int, bytes]] = {}
        """Where the entry before ended, and its digest, by partition."""
        self._lost: list[int] = []
        self._schema = "schema" if seen.version >= SEGMENTS_SINCE else "x''"

    def newest(self, count: int | None, partitions: Collection[int] | None) -> Iterator[Stored]:
        """The newest `count` entries (None: all) of these partitions (None: all), in order."""
        chosen = "1" if partitions is None else f"partition_id IN ({','.join(map(str, partitions))})"
        if not self._seen.last_seq:  # everything was sealed, or nothing was ever written
            return
        at = self._first(count, chosen)
        while count != 0 and at <= self._seen.last_seq:
            page, at = self._page(at, chosen)
            yield from page
        self._tell_lost()

    def before(self, row: Stored) -> tuple[int, bytes] | None:
        """Where the partition's entry before this one ended, and its digest.

        None if that cannot be read, or is gone because it was sealed.
        """
        entry = row.entry
        if row.after_lost:
            self._ends.clear()
        found = self._ends.get(entry.partition_id)
        if found is None or found[0] != entry.first:  # what lies between may have been trimmed meanwhile
            found = self._look_before(entry)
        self._ends[entry.partition_id] = (entry.first + entry.count, entry.digest)
        return found

    def _first(self, count: int | None, chosen: str) -> int:
        if not count:
            return self._seen.first_seq
        sql = f"SELECT seq FROM entries WHERE seq <= ? AND {chosen} ORDER BY seq DESC LIMIT 1 OFFSET ?"
        with looking(self._backend) as connection:
            try:
                row = connection.execute(sql, (self._seen.last_seq, count - 1)).fetchone()
            except UNREADABLE:
                return max(self._seen.first_seq, self._seen.last_seq - count + 1)
        return self._seen.first_seq if row is None else int(row[0])

    def _page(self, at: int, chosen: str) -> tuple[list[Stored], int]:
        """Some entries from `at` on, and where to go on."""
        page: list[Stored] = []
        size, end = 0, self._seen.last_seq + 1
        with looking(self._backend) as connection:
            for _ in range(_PAGE_ENTRIES):
                if at >= end or size >= _PAGE_BYTES:
                    break
                row = self._look(connection, at, chosen)
                if row == "lost":
                    at = at + 1 if len(self._lost) < _LOST_MAX else end
                    continue
                if row == "trimmed" or row.entry.seq >= end:
                    return page, end
                at = row.entry.seq + 1
                after_lost = self._tell_lost()
                if row.is_chosen:
                    page.append(Stored(row.entry, row.bytes, bool(row.is_too_large), after_lost))
                    size += len(row.entry.body)
        return page, at

    def _look(self, connection: apsw.Connection, at: int, chosen: str) -> _Found | Literal["lost", "trimmed"]:
        """The first entry from number `at` on; lost where it cannot be read.

        There is one, because `at` is not beyond the last, unless all were trimmed since; and it is this very seek
        that a damaged page fails.
        """
        sql = (
            f"SELECT {_COLUMNS}, CASE WHEN length(body) <= ? AND {chosen} THEN body ELSE x'' END, {self._schema},"
            f" length(body), length(body) > ?, {chosen} FROM entries WHERE seq >= ? ORDER BY seq LIMIT 1"
        )
        try:
            row = connection.execute(sql, (self._bytes_max, self._bytes_max, at)).fetchone()
            if row is None and self._has_gone_on(connection):
                return "trimmed"
            found = msgspec.convert(row and (row[:14], *row[14:]), _Found)
        except UNREADABLE:
            found = None
        if found is None or found.entry.seq < at:  # the tree may be out of order: go forward whatever it says
            self._lost.append(at)
            return "lost"
        return found

    def _has_gone_on(self, connection: apsw.Connection) -> bool:
        """Whether the owner has committed something since the glance."""
        row = connection.execute("SELECT groups FROM log", ()).fetchone()
        return row is not None and self._seen.log is not None and row[0] != self._seen.log.groups

    def _look_before(self, entry: Entry) -> tuple[int, bytes] | None:
        sql = (
            "SELECT first_offset, count, digest FROM entries WHERE partition_id=? AND first_offset < ?"
            " ORDER BY first_offset DESC LIMIT 1"
        )
        with looking(self._backend) as connection:
            try:
                row = connection.execute(sql, (entry.partition_id, entry.first)).fetchone()
                return (row[0] + row[1], row[2]) if row is not None else self._beginning(connection, entry)
            except UNREADABLE:
                return None

    def _beginning(self, connection: apsw.Connection, entry: Entry) -> tuple[int, bytes] | None:
        """What must come before the first entry that is left of a partition; the mark of this moment counts."""
        mark = None
        if self._seen.version >= SEGMENTS_SINCE:
            sql = "SELECT segments, sealed_offset, first_offset FROM watermarks WHERE partition_id=?"
            mark = connection.execute(sql, (entry.partition_id,)).fetchone()
        segments, sealed, first = mark or (0, 0, 0)
        if not segments:
            return first, digests.NO_LINK
        # The entry before was sealed and trimmed; whatever lies beyond the mark must still follow on it.
        return None if entry.first <= sealed else (sealed, entry.link)

    def _tell_lost(self) -> bool:
        """One problem for a run of entries that cannot be read; whether there was any."""
        if not self._lost:
            return False
        span = f"{self._lost[0]}..{self._lost[-1]}"
        self._problems.append(Corrupt(f"entries cannot be read seq={span}", path=str(self._backend.path)))
        self._lost.clear()
        return True
