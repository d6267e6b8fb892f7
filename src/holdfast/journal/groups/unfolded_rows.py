"""Rows that are durable in a group file and not yet folded into the database, many groups in one transaction.

Readers take them for stored: entries follow those in the database, and the current log row and heads follow from the
entries. The owner's are added by the writer's thread alone, group after group, and replaced by an empty set once the
database has them. Readers in other threads take the set *before* they read the database: so an entry is in at least one
of the two, and one that is in both is the same.

Row and heads have no stamps here until a holder of the keys adds them: the owner, before the database gets them; the
process that opens the log, after the groups are proved (`proved_groups`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from holdfast.errors import Corrupt
from holdfast.journal.groups.group_frame import FrameProof
from holdfast.model.control_rows import HeadRow, LogRow, SessionRow
from holdfast.model.entry import GroupFileEntry


class UnfoldedRows:
    """What the database does not have yet."""

    __slots__ = ("_by_partition", "damage", "entries", "groups", "heads", "proofs", "session_total", "sessions")

    def __init__(self) -> None:
        self.groups = 0
        """The number of the newest group; 0: the database has everything."""
        self.sessions: dict[bytes, SessionRow | None] = {}
        """By their names; None: it is gone."""
        self.session_total: tuple[int, bytes] | None = None
        """How many sessions there are, and what they add up to, where that has changed."""
        self.entries: list[GroupFileEntry] = []
        """In the order of commits."""
        self.proofs: list[FrameProof] = []
        """Of each group, for readers that found them in files; an owner has no need to prove its own."""
        self.damage: Corrupt | None = None
        """Why there may be more groups that cannot be read."""
        self.heads: dict[int, HeadRow] = {}
        """Heads with their stamps, as far as they have some."""
        self._by_partition: dict[int, list[GroupFileEntry]] = {}

    def add(self, group: int, entries: Sequence[GroupFileEntry]) -> None:
        """One more group; readers see its entries from now on."""
        self.entries += entries
        for entry in entries:
            partition_id = entry.partition_id
            if (known := self._by_partition.get(partition_id)) is None:
                self._by_partition[partition_id] = [entry]
            else:
                known.append(entry)
        self.groups = group

    def add_sessions(self, rows: Sequence[SessionRow], gone: Sequence[bytes], total: tuple[int, bytes] | None) -> None:
        """What a group changes in sessions."""
        self.sessions.update(dict.fromkeys(gone))
        self.sessions.update((session.name, session) for session in rows)
        self.session_total = total or self.session_total

    def copy(self) -> UnfoldedRows:
        """The same, to be added to while others read this one."""
        other = UnfoldedRows()
        other.groups, other.damage = self.groups, self.damage
        other.heads, other.entries, other.sessions = dict(self.heads), list(self.entries), dict(self.sessions)
        other.session_total, other.proofs = self.session_total, list(self.proofs)
        other._by_partition = {number: list(entries) for number, entries in self._by_partition.items()}
        return other

    @property
    def partitions(self) -> Collection[int]:
        """The ids of the partitions that have entries here."""
        return self._by_partition

    def row_after(self, stored: LogRow) -> LogRow:
        """The log's own row after the newest group, given the one in the database."""
        if self.groups <= stored.groups:
            return stored
        sessions, session_sum = self.session_total or (stored.sessions, stored.session_sum)
        return stored._replace(
            entries=stored.entries + len(self.entries),
            next_seq=self.entries[-1].seq + 1,
            groups=self.groups,
            sessions=sessions,
            session_sum=session_sum,
            stamp=b"",
        )

    def head_after(self, stored: HeadRow) -> HeadRow:
        """A head after the newest group, given the one in the database."""
        head = self.heads.get(stored.partition_id)
        if head is not None:
            return head
        last = self.last(stored.partition_id)
        if last is None:
            return stored
        return stored._replace(
            next_offset=last.first + last.count, link=last.digest, key_epoch=last.key_epoch, stamp=b""
        )

    def last(self, partition_id: int) -> GroupFileEntry | None:
        """The newest entry of a partition."""
        found = self._by_partition.get(partition_id)
        return found[-1] if found else None

    def overlapping(self, partition_id: int, start: int, end: int) -> list[GroupFileEntry]:
        """The entries of a partition that overlap start..end, in order."""
        found = self._by_partition.get(partition_id)
        if not found:
            return []
        at = max(0, bisect_right(found, start, key=_first) - 1)
        return [entry for entry in found[at:] if entry.first < end and entry.first + entry.count > start]

    def after(self, seq: int) -> Iterator[GroupFileEntry]:
        """The entries behind a sequence number."""
        return (entry for entry in tuple(self.entries) if entry.seq > seq)


def _first(entry: GroupFileEntry) -> int:
    return entry.first
