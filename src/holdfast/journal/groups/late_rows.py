"""Rows that are durable in a file of groups and reach the database later, many groups in one transaction.

Whoever reads takes them for stored: the newest row of the log and the newest heads count for those in the database, and
entries follow those that are there. An owner's are added by the writer's thread alone, group after group, and replaced
by an empty set once the database has them. Readers of other threads take the set *before* they look into the database:
so an entry is in one of the two at least, and one that is in both is the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from holdfast.errors import Corrupt
from holdfast.model.control_rows import HeadRow, LogRow, SessionRow
from holdfast.model.entry import FiledEntry


class LateRows:
    """What the database does not have yet."""

    __slots__ = ("_by_partition", "damage", "entries", "heads", "row", "sessions")

    def __init__(self) -> None:
        self.row: LogRow | None = None
        """The log's own row of the newest group; None: the database has everything."""
        self.heads: dict[int, HeadRow] = {}
        self.sessions: dict[bytes, SessionRow | None] = {}
        """By their names; None: it is gone."""
        self.entries: list[FiledEntry] = []
        """In the order of commits."""
        self.damage: Corrupt | None = None
        """Why there may be more groups that cannot be read."""
        self._by_partition: dict[int, list[FiledEntry]] = {}

    def add(
        self,
        row: LogRow,
        heads: Sequence[HeadRow],
        entries: Sequence[FiledEntry],
        sessions: Sequence[SessionRow] = (),
        gone: Sequence[bytes] = (),
    ) -> None:
        """One more group; readers see its entries from now on."""
        for head in heads:
            self.heads[head.partition_id] = head
        self.entries += entries
        for entry in entries:
            self._by_partition.setdefault(entry.partition_id, []).append(entry)
        if sessions or gone:
            self.sessions.update(dict.fromkeys(gone))
            self.sessions.update((session.name, session) for session in sessions)
        self.row = row

    def copy(self) -> LateRows:
        """The same, to be added to while others read this one."""
        other = LateRows()
        other.row, other.damage = self.row, self.damage
        other.heads, other.entries, other.sessions = dict(self.heads), list(self.entries), dict(self.sessions)
        other._by_partition = {number: list(entries) for number, entries in self._by_partition.items()}
        return other

    def last(self, partition_id: int) -> FiledEntry | None:
        """The newest entry of a partition."""
        found = self._by_partition.get(partition_id)
        return found[-1] if found else None

    def overlapping(self, partition_id: int, start: int, end: int) -> list[FiledEntry]:
        """The entries of a partition that overlap start..end, in order."""
        found = self._by_partition.get(partition_id)
        if not found:
            return []
        at = max(0, bisect_right(found, start, key=_first) - 1)
        return [entry for entry in found[at:] if entry.first < end and entry.first + entry.count > start]

    def after(self, seq: int) -> Iterator[FiledEntry]:
        """The entries behind a sequence number."""
        return (entry for entry in tuple(self.entries) if entry.seq > seq)


def _first(entry: FiledEntry) -> int:
    return entry.first
