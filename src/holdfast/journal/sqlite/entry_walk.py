"""Stored entries one by one, also where some of them cannot be read.

Each is looked up by its number, so that a damaged page hides only what lies on it. Lookups share short read
transactions. The walk ends with the newest entry that was there when it began; what the owner commits meanwhile is left
for next time. What it seals meanwhile is trimmed, and passed over: a segment holds it now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

import apsw
import msgspec

from holdfast.crypto import digests
from holdfast.errors import Corrupt
from holdfast.journal.groups.group_files import NUMBER_MAX
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.journal.sqlite.stored_rows import ENTRY_COLUMNS
from holdfast.model.entry import Entry, GroupFileEntry

_PAGE_ENTRIES = 256
_PAGE_BYTES = 4 * 2**20
_LOST_MAX = 10_000
"""After so many numbers in a row that cannot be read the rest is given up: they are not dense, so they are forged."""
_UNREADABLE = (apsw.Error, UnicodeDecodeError, msgspec.ValidationError)
"""What a damaged row raises: SQLite, text that is none, a column of another type."""


class StoredEntry(NamedTuple):
    """An entry, the size of its body, whether that was too large to be fetched, and whether a lost one came before."""

    entry: Entry
    bytes: int
    is_too_large: bool
    is_after_lost: bool


class _SizedEntry(NamedTuple):
    entry: Entry
    bytes: int
    is_too_large: int
    is_chosen: int
    file: int
    position: int


class EntryWalk:
    """One walk through the entries of a database; `groups` is how many commits its log had when it was read."""

    def __init__(self, backend: SqliteBackend, groups: int, problems: list[Corrupt], bytes_max: int) -> None:
        self._backend = backend
        self._groups = groups
        self._problems = problems
        self._bytes_max = bytes_max
        self._ends: dict[int, tuple[int, bytes]] = {}
        """Where the entry before ended, and its digest, by partition."""
        self._lost: list[int] = []
        self._first_seq, self._last_seq = 1, 0

    def newest(self, count: int | None, partitions: Collection[int] | None) -> Iterator[StoredEntry]:
        """The newest `count` entries (None: all) of these partitions (None: all), in order."""
        chosen = "1" if partitions is None else f"partition_id IN ({','.join(map(str, partitions))})"
        late = self._late(partitions)
        left = None if count is None else max(0, count - len(late))
        at = self._begin(left, chosen)
        while left != 0 and at <= self._last_seq:
            page, at = self._page(at, chosen)
            yield from page
        is_after_lost = self._tell_lost()
        for entry in late if count is None else late[len(late) - min(count, len(late)) :]:
            if entry.seq > self._last_seq:
                yield self._filed(entry, is_after_lost)
                is_after_lost = False

    def _late(self, partitions: Collection[int] | None) -> list[GroupFileEntry]:
        """Entries that are in files alone; what is in the database by then is met there."""
        with self._backend.reading() as rows:
            return [entry for entry in rows.late.entries if partitions is None or entry.partition_id in partitions]

    def _filed(self, entry: GroupFileEntry, is_after_lost: bool) -> StoredEntry:
        is_too_large = not 0 <= entry.size <= self._bytes_max
        body = None if is_too_large else self._backend.filed.files.body(entry.file, entry.position, entry.size)
        return StoredEntry(entry.entry(body or b""), entry.size, is_too_large, is_after_lost)

    def before(self, row: StoredEntry) -> tuple[int, bytes] | None:
        """Where the partition's entry before this one ended, and its digest.

        None if that cannot be read, or is gone because it was sealed.
        """
        entry = row.entry
        if row.is_after_lost:
            self._ends.clear()
        found = self._ends.get(entry.partition_id)
        if found is None or found[0] != entry.first:  # what lies between may have been trimmed meanwhile
            found = self._look_before(entry)
        self._ends[entry.partition_id] = (entry.first + entry.count, entry.digest)
        return found

    def _begin(self, count: int | None, chosen: str) -> int:
        """The number to begin with; beyond the last one where everything was sealed, or nothing was ever written."""
        with self._backend.reading() as rows:
            connection = rows.connection
            try:
                found = connection.execute(
                    "SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) FROM entries"
                ).fetchone()
                self._first_seq, self._last_seq = msgspec.convert(found, tuple[int, int])
            except _UNREADABLE:
                message = "a table cannot be read to its end table=entries"
                self._problems.append(Corrupt(message, path=str(self._backend.path)))
            if not count or not self._last_seq:
                return self._first_seq
            sql = f"SELECT seq FROM entries WHERE seq <= ? AND {chosen} ORDER BY seq DESC LIMIT 1 OFFSET ?"
            try:
                row = connection.execute(sql, (self._last_seq, count - 1)).fetchone()
            except _UNREADABLE:
                return max(self._first_seq, self._last_seq - count + 1)
        return self._first_seq if row is None else int(row[0])

    def _page(self, at: int, chosen: str) -> tuple[list[StoredEntry], int]:
        """Some entries from `at` on, and where to go on."""
        page: list[StoredEntry] = []
        size, end = 0, self._last_seq + 1
        with self._backend.reading() as rows:
            connection = rows.connection
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
                is_after_lost = self._tell_lost()
                if row.is_chosen:
                    entry = row.entry if not row.file else self._with_body(row)
                    page.append(StoredEntry(entry, row.bytes, bool(row.is_too_large), is_after_lost))
                    size += len(entry.body)
        return page, at

    def _with_body(self, row: _SizedEntry) -> Entry:
        """The entry with its body out of a file of groups; without one that is gone or too large."""
        if row.is_too_large or not (0 < row.file < NUMBER_MAX and 0 < row.position < NUMBER_MAX and row.bytes >= 0):
            return row.entry
        return row.entry._replace(body=self._backend.filed.files.body(row.file, row.position, row.bytes) or b"")

    def _look(self, connection: apsw.Connection, at: int, chosen: str) -> _SizedEntry | Literal["lost", "trimmed"]:
        """The first entry from number `at` on; lost where it cannot be read.

        There is one, because `at` is not beyond the last, unless all were trimmed since; and it is this very lookup
        that a damaged page fails.
        """
        sql = (
            f"SELECT {ENTRY_COLUMNS}, CASE WHEN length(body) <= ? AND {chosen} THEN body ELSE x'' END, schema,"
            f" length(body) + size, length(body) + size > ?, {chosen}, file, position"
            " FROM entries WHERE seq >= ? ORDER BY seq LIMIT 1"
        )
        try:
            row = connection.execute(sql, (self._bytes_max, self._bytes_max, at)).fetchone()
            if row is None and connection.execute("SELECT groups FROM log").get not in {None, self._groups}:
                return "trimmed"  # the owner has gone on meanwhile
            found = msgspec.convert(row and (row[:14], *row[14:]), _SizedEntry)
        except (apsw.BusyError, apsw.LockedError):
            raise
        except _UNREADABLE:
            found = None
        if found is None or found.entry.seq < at:  # the tree may be out of order: go forward whatever it says
            self._lost.append(at)
            return "lost"
        return found

    def _look_before(self, entry: Entry) -> tuple[int, bytes] | None:
        sql = (
            "SELECT first_offset, count, digest FROM entries WHERE partition_id=? AND first_offset < ?"
            " ORDER BY first_offset DESC LIMIT 1"
        )
        with self._backend.reading() as rows:
            connection = rows.connection
            try:
                row = connection.execute(sql, (entry.partition_id, entry.first)).fetchone()
                return (row[0] + row[1], row[2]) if row is not None else self._beginning(connection, entry)
            except _UNREADABLE:
                return None

    def _beginning(self, connection: apsw.Connection, entry: Entry) -> tuple[int, bytes] | None:
        """What must come before the first entry that is left of a partition; the watermark of this moment counts."""
        sql = "SELECT segments, sealed_offset, first_offset FROM watermarks WHERE partition_id=?"
        mark = connection.execute(sql, (entry.partition_id,)).fetchone()
        segments, sealed, first = mark or (0, 0, 0)
        if not segments:
            return first, digests.NO_LINK
        # The entry before was sealed and trimmed; whatever lies beyond the watermark must still follow on it.
        return None if entry.first <= sealed else (sealed, entry.link)

    def _tell_lost(self) -> bool:
        """One problem for a run of entries that cannot be read; whether there was any."""
        if not self._lost:
            return False
        span = f"{self._lost[0]}..{self._lost[-1]}"
        self._problems.append(Corrupt(f"entries cannot be read seq={span}", path=str(self._backend.path)))
        self._lost.clear()
        return True
