"""Commit batches as a restore reads them: each entry once, in order, proved, up to the first hole.

Entries that are already in segments are skipped. Two batches may hold the same entry, because a restart cuts batches
differently; then they must agree. If the entry before another one in its partition is nowhere, the later one was never
acknowledged: everything from its commit on is cut off, so that a restore brings back whole commits, and a prefix of the
log.

A hole may also be damage: segments that a floor relies on are gone. That is certain if every entry between the floor
and the hole is there, and then it is `Corrupt`. So is an entry that does not follow the one before it. Pure: batches
come in decoded, in the order of their first sequence numbers, and are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.crypto.cipher import NotAuthentic
from holdfast.errors import Corrupt
from holdfast.model.entry import Entry, Place, header_of, is_whole
from holdfast.model.record_columns import BadRecords
from holdfast.root.objects.commit_batch import CommitBatch, TailEntry, TailKey
from holdfast.store import layout

Where = tuple[str, int]

Prove = Callable[[CommitBatch, TailEntry, bytes], None]
"""Opens an entry of a batch, given its header; raises NotAuthentic or BadFrame."""


class TailContents(NamedTuple):
    """What commit batches bring beyond the segments."""

    last_seq: int
    """The last sequence number that counts."""
    last_group: int
    ends: dict[Where, int]
    """Where each partition's tail ends; only those that have one."""
    links: dict[Where, bytes]
    """Digest of the last entry of each of those."""
    keys: tuple[TailKey, ...]
    """What is needed to open the entries that count."""
    records: int
    cut_records: int
    """Records that are in these batches and do not count."""
    schemas: frozenset[tuple[str, bytes]] = frozenset()
    """Topic and fingerprint of each schema that typed entries name."""
    reach: int = 0
    """Everything up to here is in these batches, or settled."""
    acks: Mapping[int, int] = {}  # nobody changes it
    """What batches say was acknowledged as shipped when they were cut, by epoch."""


def walk(
    log_id: bytes,
    batches: Iterable[CommitBatch],
    settled: Mapping[Where, int],
    floor: int,
    limit: int,
    prove: Prove | None = None,
) -> TailContents:
    """Find out what counts: up to `limit`, beyond `floor` (which is settled), up to the first hole.

    `settled` names every partition there is; raises Corrupt at an entry of another one. With `prove`, every entry that
    counts is opened, too.
    """
    walker = _Walker(log_id, settled, floor, limit, prove)
    for batch in batches:
        walker.add(batch)
    return walker.finish()


def cut(batch: CommitBatch, last_seq: int) -> CommitBatch:
    """A batch up to a sequence number: a takeover may have adopted only its first commits; the rest is written anew."""
    if batch.last_seq <= last_seq:
        return batch
    return batch._replace(entries=[entry for entry in batch.entries if entry.seq <= last_seq], segments=())


def entries(
    batches: Iterable[CommitBatch], settled: Mapping[Where, int], upto: int, ids: Mapping[Where, int]
) -> Iterator[Entry]:
    """The entries that count, each once, as rows of the journal."""
    last = 0
    for batch in batches:
        for entry in batch.entries:
            where = (entry.topic, entry.partition)
            if last < entry.seq <= upto:
                last = entry.seq
                if entry.first >= settled[where]:
                    yield _row(entry, ids[where])


class _Walker:
    def __init__(
        self, log_id: bytes, settled: Mapping[Where, int], floor: int, limit: int, prove: Prove | None
    ) -> None:
        self._log_id = log_id
        self._open = prove
        self._acks: dict[int, int] = {}
        self._cut_at = limit + 1
        """The first entry that does not count."""
        self._settled = settled
        self._floor, self._limit = floor, limit
        self._places: dict[Where, Place] = {}
        self._digests: dict[int, bytes] = {}
        """Of entries that a later batch may hold once more, ascending."""
        self._ends: dict[Where, int] = {}
        self._links: dict[Where, bytes] = {}
        self._keys: dict[int, TailKey] = {}
        self._schemas: set[tuple[str, bytes]] = set()
        self._batch: CommitBatch | None = None
        self._group: list[TailEntry] = []
        """Entries of the commit that is being read."""
        self._seen = 0
        self._whole_upto = floor
        """Every entry between the floor and this one was seen."""
        self._last_seq = self._last_group = self._records = self._cut = 0
        self._is_cut = False

    def add(self, batch: CommitBatch) -> None:
        """The next batch, ordered by its first sequence number."""
        self._batch = batch
        if batch.log_id != self._log_id:
            raise self._corrupt("a commit batch belongs to another log")
        self._acks[batch.epoch] = max(self._acks.get(batch.epoch, 0), batch.acked)
        self._forget(batch.first_seq)
        for entry in batch.entries:
            if entry.seq in self._digests:
                if self._digests[entry.seq] != entry.digest:
                    raise self._corrupt(f"two commit batches disagree about an entry seq={entry.seq}", entry)
                continue
            if entry.seq <= self._seen:
                continue  # a newer batch left it out: it is in a segment, or was when that batch came to count
            self._seen = entry.seq
            if entry.seq == self._whole_upto + 1:
                self._whole_upto = entry.seq
            if self._group and entry.group_number != self._group[0].group_number:
                self._end_group()
            self._prove(entry)
            self._digests[entry.seq] = entry.digest
            self._group.append(entry)
        self._end_group()  # batches hold whole commits
        if batch.segments and not self._is_cut:  # what it lacks is in segments that count with it
            self._last_seq = max(self._last_seq, batch.last_seq)

    def finish(self) -> TailContents:
        """What counts."""
        last = max(self._last_seq, min(self._floor, self._limit))
        return TailContents(
            last,
            self._last_group,
            self._ends,
            self._links,
            tuple(self._keys[n] for n in sorted(self._keys)),
            self._records,
            self._cut,
            frozenset(self._schemas),
            max(self._cut_at - 1, min(self._floor, self._limit)),
            self._acks,
        )

    def _forget(self, first_seq: int) -> None:
        """Digests of entries that no later batch can hold."""
        while self._digests and (oldest := next(iter(self._digests))) < first_seq:
            del self._digests[oldest]

    def _prove(self, entry: TailEntry) -> None:
        where = (entry.topic, entry.partition)
        if where not in self._settled:
            raise self._corrupt("a commit batch has an entry of a partition that the store does not know", entry)
        place = self._places.setdefault(where, Place(self._log_id, *where))
        if not is_whole(place, _row(entry, 0)):
            raise self._corrupt("an entry's digest does not match", entry)

    def _end_group(self) -> None:
        group, self._group = self._group, []
        if not group:
            return
        new = [entry for entry in group if entry.first >= self._settled[entry.topic, entry.partition]]
        records = sum(entry.count for entry in new)
        # Even if all of a commit is in segments: its numbers are used again after the end.
        self._is_cut = self._is_cut or group[-1].seq > self._limit or not self._follow(new)
        if self._is_cut:
            self._cut += records
            self._cut_at = min(self._cut_at, group[0].seq)
            return
        self._records += records
        self._last_seq, self._last_group = group[-1].seq, group[-1].group_number
        for entry in new:
            self._note(entry)

    def _follow(self, new: list[TailEntry]) -> bool:
        """Add a commit's entries after those before it; False at a hole, and then nothing is changed."""
        ends, links = dict(self._ends), dict(self._links)
        for entry in new:
            where = (entry.topic, entry.partition)
            expected = ends.get(where, self._settled[where])
            if entry.first > expected:
                if self._whole_upto >= entry.seq:
                    raise self._corrupt(f"segments are missing that a floor counts on from={expected}", entry)
                return False
            if entry.first < expected or links.get(where, entry.link) != entry.link:
                raise self._corrupt("an entry does not follow the one before it", entry)
            ends[where], links[where] = expected + entry.count, entry.digest
        self._ends, self._links = ends, links
        return True

    def _note(self, entry: TailEntry) -> None:
        """Note what is needed to read an entry that counts, and prove that it can be read."""
        if self._open is not None:
            self._open_entry(entry)
        if entry.schema:
            self._schemas.add((entry.topic, entry.schema))
        if not entry.key_epoch:
            return
        assert self._batch is not None
        key = next(key for key in self._batch.keys if key.number == entry.key_epoch)
        if self._keys.setdefault(key.number, key) != key:
            raise self._corrupt(f"two commit batches disagree about a key epoch key_epoch={key.number}", entry)

    def _open_entry(self, entry: TailEntry) -> None:
        assert self._batch is not None
        assert self._open is not None
        place = self._places[entry.topic, entry.partition]
        try:
            self._open(self._batch, entry, header_of(place, _row(entry, 0)))
        except NotAuthentic:
            raise self._corrupt("an entry does not decrypt: its key did not encrypt it", entry) from None
        except BadRecords as bad:
            raise self._corrupt(f"an entry does not hold the records that it says: {bad}", entry) from None

    def _corrupt(self, message: str, entry: TailEntry | None = None) -> Corrupt:
        batch = self._batch
        assert batch is not None
        path = layout.batch_key(batch.epoch, batch.first_seq, batch.last_seq)
        if entry is None:
            return Corrupt(message, path=path)
        return Corrupt(message, path=path, topic=entry.topic, partition=entry.partition, offset=entry.first)


def _row(entry: TailEntry, partition_id: int) -> Entry:
    return Entry(
        entry.seq,
        partition_id,
        entry.first,
        entry.count,
        entry.group_number,
        entry.kind,
        entry.codec,
        entry.key_epoch,
        entry.time_min,
        entry.time_max,
        entry.link,
        entry.digest,
        bytes(entry.body),
        entry.schema,
    )
