"""Commit batches out of the journal, in the order of commits.

What is taken is what is stored: entries as they are, sealed or not, each proved by its digest. Entries whose segments
are settled already are left out, as are those of topics that are not shipped (`refusal`). Entries that are not in the
journal any more were sealed and trimmed before they could be shipped (after a long outage, say); then the batch needs
those segments on the store (`needs`), and every commit that they have a part of (`needs_upto`): so whatever counts has
everything before it on the store, and commits are there as a whole. Each entry brings the idempotency keys of its
records along.

Where batches are small and much waits, entries of several batches are read at once. Batches are cut from them in the
same places as if each were read by itself; what would not fill a batch is read again, with what came since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from holdfast.journal.journal import Journal
from holdfast.journal.proving.remembered_keys import RememberedKeys
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import KeyRow
from holdfast.model.entry import Entry
from holdfast.root.objects.commit_batch import TailEntry, TailKey, with_idempotent
from holdfast.shipping.shipping_marks import shipped_partitions
from holdfast.shipping.shipping_settings import ShippingSettings

_MANY = 2**62
_AHEAD_BATCHES, _AHEAD_BYTES = 16, 2 * 2**20
"""How much is read at once, if a single batch is not larger."""


class SourceBatch(NamedTuple):
    """The next batch: entries from the journal, and what they mean for the marks."""

    first_seq: int
    last_seq: int
    entries: list[TailEntry]
    keys: tuple[TailKey, ...]
    ends: Mapping[Partition, int]
    """Up to where each partition is in this batch."""
    needs: Mapping[Partition, int]
    """Up to where each partition was sealed when entries turned out to be missing."""
    records: int
    size: int
    needs_upto: int = 0
    """The last commit that those segments may have a part of."""

    @property
    def topics(self) -> set[str]:
        """Whose records these are."""
        return {partition.topic for partition in self.ends}


class JournalSource:
    """Takes batches from one journal; belongs to the shipper's thread."""

    def __init__(self, journal: Journal, settings: ShippingSettings, remembered: RememberedKeys) -> None:
        self._journal = journal
        self._remembered = remembered
        self._groups_max = settings.batch_size_threshold
        self._bytes_max = settings.batch_bytes_max
        self.commits = journal.commits
        self._groups_seen = self.commits.groups
        self._bytes_seen = self.commits.bytes
        self._base = self._cursor = 0
        """Behind the last batch, and behind what was looked at."""
        self._has_more = True
        self._ahead: Sequence[Entry] = ()
        """Entries behind the cursor that were read already …"""
        self._more = False
        """… whether there were more …"""
        self._read_upto = 0
        """… and up to where at least they had been committed by then."""
        self._needs: Mapping[Partition, int] = {}
        """What the next batch needs."""
        self._ends: Mapping[Partition, int] = {}
        """What the next batch lets count besides itself."""
        self._key_id = 0
        """Idempotency keys up to this id were read."""
        self._idempotency: dict[int, list[KeyRow]] = {}
        """Keys that were read and not sent, by the sequence numbers of their entries."""

    @property
    def taken_upto(self) -> int:
        """Entries up to this one were taken, or are not needed."""
        return self._cursor

    def start(self, seq: int, ends: Mapping[Partition, int] | None = None) -> None:
        """Begin behind this entry. Given the ends of what was sent up to there, the first batch needs all that is
        sealed, and lets those count, too: nobody knows whether all of it is on the store.
        """
        self._base = self._cursor = seq
        # Numbers of a log that was rebuilt begin anew: no gap in them tells that segments lie before the first one.
        self._needs = self.unsettled() if ends is not None or not seq else {}
        self._ends = ends or {}
        self._key_id = self._remembered.last_id_upto(seq)

    def pending(self) -> tuple[int, int]:
        """Commits and bytes that wait to be taken; very many when they were not counted."""
        if self.commits.last_seq <= self._cursor:
            return 0, 0
        if self._has_more:
            return _MANY, _MANY
        return self.commits.groups - self._groups_seen, self.commits.bytes - self._bytes_seen

    def wake_at(self, commits: int, size: int) -> tuple[int, int]:
        """What the writer's counters will say when so much is pending."""
        return self._groups_seen + commits, self._bytes_seen + size

    def take(self) -> SourceBatch | None:
        """The next batch; None when everything is taken or settled. One without entries may need segments."""
        while True:
            entries = self._next()
            upto = self._end(entries)
            if upto <= self._cursor:
                return None
            before, self._cursor = self._cursor, upto
            if len(entries) != upto - before:  # some were trimmed: they lie in what is sealed by now
                self._needs = {**self._needs, **self.unsettled()}
            taken = self._batch(entries, upto)
            if taken.entries or taken.needs:
                self._base, self._needs, self._ends = upto, {}, {}
                return taken

    def _next(self) -> Sequence[Entry]:
        """Entries for one batch, in whole commits."""
        end, is_full = first_batch(self._ahead, self._groups_max, self._bytes_max)
        if not is_full or (self._more and end == len(self._ahead)):  # what follows a batch is known when it is taken
            groups, size, self._read_upto = self.commits.groups, self.commits.bytes, self.commits.last_seq
            self._ahead, self._more = self._journal.entries_after(
                self._cursor, self._groups_max * _AHEAD_BATCHES + 1, max(self._bytes_max, _AHEAD_BYTES)
            )
            end, _ = first_batch(self._ahead, self._groups_max, self._bytes_max)
            self._has_more = self._more or end < len(self._ahead)
            if not self._has_more:
                self._groups_seen, self._bytes_seen = groups, size
            self._read_keys()
        entries, self._ahead = self._ahead[:end], self._ahead[end:]
        return entries

    def _end(self, entries: Sequence[Entry]) -> int:
        """Where a batch of these ends: right before the next entry that is there, so that no part of its last commit
        is missing behind it.
        """
        taken = entries[-1].seq if entries else self._cursor
        following = self._ahead or (self._journal.entries_after(taken, 1, 1)[0] if self._more else ())
        return following[0].seq - 1 if following else max(taken, self._read_upto)

    def _read_keys(self) -> None:
        """The idempotency keys of what was read: they were committed together, so they are there."""
        if self._ahead:
            for row in self._remembered.rows(self._key_id, self._ahead[0].seq, self._ahead[-1].seq):
                self._idempotency.setdefault(row.seq, []).append(row)
                self._key_id = row.id

    def _keys_of(self, entry: Entry) -> bytes:
        rows = self._idempotency.pop(entry.seq, ())
        places = range(entry.first, entry.first + entry.count)
        rows = [row for row in rows if row.partition_id == entry.partition_id and row.record in places]
        if not rows:
            return b""
        hashes = self._remembered.encrypt(entry.key_epoch, [row.hash for row in rows])
        digests = self._remembered.digests(entry.key_epoch, rows)
        return with_idempotent(zip((row.record - entry.first for row in rows), hashes, digests, strict=True))

    def unsettled(self) -> dict[Partition, int]:
        """Up to where partitions are sealed whose segments the store does not have all of."""
        partitions = shipped_partitions(self._journal)
        return {p: p.sealed.sealed_offset for p in partitions if p.settled < p.sealed.sealed_offset}

    def _batch(self, entries: Sequence[Entry], upto: int) -> SourceBatch:
        by_id = self._journal.partitions
        kept: list[TailEntry] = []
        ends = dict(self._ends)
        for entry in entries:
            partition = by_id[entry.partition_id]
            end = entry.first + entry.count
            if end > partition.settled and partition.refusal is None:
                ends[partition] = end
                keys = self._keys_of(entry) if self._idempotency else b""
                kept.append(TailEntry(partition.topic, partition.number, entry.seq, *entry[2:], keys))
        self._idempotency = {seq: rows for seq, rows in self._idempotency.items() if seq > upto}
        numbers = sorted({entry.key_epoch for entry in kept} - {0})
        epochs = tuple(TailKey.of(self._remembered.key_epoch(number)) for number in numbers)
        return SourceBatch(
            self._base + 1,
            upto,
            kept,
            epochs,
            ends,
            self._needs,
            sum(entry.count for entry in kept),
            sum(len(entry.body) for entry in kept),
            self.commits.last_seq if self._needs else 0,
        )


def first_batch(entries: Sequence[Entry], groups_max: int, bytes_max: int) -> tuple[int, bool]:
    """Where the first batch of these entries ends, and whether it is one that could not take more.

    As the journal cuts it: whole commits up to the limits, the first one in any case.
    """
    groups = size = end = 0
    for _, commit in groupby(entries, attrgetter("group_number")):
        if groups == groups_max or (groups and size >= bytes_max):
            return end, True
        sizes = [len(entry.body) for entry in commit]
        size += sum(sizes)
        if groups and size > bytes_max:
            return end, True
        groups += 1
        end += len(sizes)
    return end, groups == groups_max or (groups > 0 and size >= bytes_max)
