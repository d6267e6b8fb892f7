"""Stored entries one by one, also when some of them cannot be read.

Each is looked up by its number, so that a damaged page hides only what lies on it. Lookups are grouped into
short read transactions. The newest entry of the glance is the last one: what an owner commits meanwhile is
left for next time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import apsw

from holdfast.cli.glance import Glance, looking
from holdfast.crypto import chain
from holdfast.errors import Corrupt
from holdfast.journal.entry import Entry
from holdfast.journal.sqlite import SqliteBackend

_PAGE_ENTRIES = 256
_PAGE_BYTES = 4 * 2**20
_COLUMNS = (
    "seq, partition_id, first_offset, count, group_number, kind, codec, key_epoch, time_min, time_max, link, digest"
)


class Stored(NamedTuple):
    """An entry, the size of its body, whether that was too large to be fetched, and whether a lost one came before."""

    entry: Entry
    bytes: int
    too_large: bool
    after_lost: bool


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

    def newest(self, count: int | None, partitions: Collection[int] | None) -> Iterator[Stored]:
        """The newest `count` entries (None: all) of these partitions (None: all), in order."""
        if count == 0:
            return
        chosen = "" if partitions is None else f" AND partition_id IN ({','.join(map(str, partitions))})"
        at = self._first(count, chosen)
        while at <= self._seen.last_seq:
            page, at = self._page(at, chosen)
            yield from page
        self._tell_lost()

    def before(self, row: Stored) -> tuple[int, bytes] | None:
        """Where the partition's entry before this one ended, and its digest; None if that cannot be read."""
        entry = row.entry
        if row.after_lost:
            self._ends.clear()
        found = self._ends.get(entry.partition_id) or self._look_before(entry)
        self._ends[entry.partition_id] = (entry.first + entry.count, entry.digest)
        return found

    def _first(self, count: int | None, chosen: str) -> int:
        if count is None:
            return self._seen.first_seq
        sql = f"SELECT seq FROM entries WHERE seq <= ?{chosen} ORDER BY seq DESC LIMIT 1 OFFSET ?"
        with looking(self._backend) as connection:
            try:
                return int(connection.execute(sql, (self._seen.last_seq, count - 1)).get or self._seen.first_seq)
            except apsw.Error:
                return max(self._seen.first_seq, self._seen.last_seq - count + 1)

    def _page(self, at: int, chosen: str) -> tuple[list[Stored], int]:
        page: list[Stored] = []
        end, size = min(at + _PAGE_ENTRIES, self._seen.last_seq + 1), 0
        with looking(self._backend) as connection:
            while at < end and size < _PAGE_BYTES:
                found = self._look(connection, at, chosen)
                if found is not None:
                    page.append(found)
                    size += len(found.entry.body)
                at += 1
        return page, at

    def _look(self, connection: apsw.Connection, seq: int, chosen: str) -> Stored | None:
        sql = (
            f"SELECT {_COLUMNS}, CASE WHEN length(body) <= ? THEN body END, length(body)"
            f" FROM entries WHERE seq=?{chosen}"
        )
        try:
            row = connection.execute(sql, (self._bytes_max, seq)).fetchone()
        except apsw.Error:
            self._lost.append(seq)
            return None
        if row is None:
            return None
        after_lost = self._tell_lost()
        return Stored(Entry._make((*row[:-2], row[-2] or b"")), row[-1], row[-2] is None, after_lost)

    def _look_before(self, entry: Entry) -> tuple[int, bytes] | None:
        sql = (
            "SELECT first_offset + count, digest FROM entries WHERE partition_id=? AND first_offset < ?"
            " ORDER BY first_offset DESC LIMIT 1"
        )
        with looking(self._backend) as connection:
            try:
                return connection.execute(sql, (entry.partition_id, entry.first)).fetchone() or (0, chain.NO_LINK)
            except apsw.Error:
                return None

    def _tell_lost(self) -> bool:
        """One problem for a run of entries that cannot be read; whether there was any."""
        if not self._lost:
            return False
        span = f"{self._lost[0]}..{self._lost[-1]}"
        self._problems.append(Corrupt(f"entries cannot be read seq={span}", path=str(self._backend.path)))
        self._lost.clear()
        return True
