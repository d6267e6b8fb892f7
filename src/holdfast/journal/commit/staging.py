"""What a group is about to change: entries, heads, keys, spaces and counters, before they are durable.

Staging allocates offsets and sequence numbers, packs each run into an entry, encrypts it and links it to the
partition's entry before. Nothing of it is visible until the commit; when a unit fails, its part is taken
back and its offsets go to the next one, so that offsets stay dense.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from holdfast.crypto import digests
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.journal.backend import Backend
from holdfast.journal.commit.space_changes import Saved, SpaceChanges
from holdfast.journal.queue.group import Run, Unit
from holdfast.journal.sessions.session_table import SessionChanges
from holdfast.journal.state.journal_state import JournalState
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.stamped_heads import head_row
from holdfast.model import frame
from holdfast.model.control_rows import HeadRow, KeyRow, stamped
from holdfast.model.entry import PLAIN_CODEC, RAW, TYPED, Entry, header
from holdfast.model.record_columns import Columns, EncodedRows

Head = tuple[int, bytes, int]
"""Next offset and link of a partition, and how many bytes this group adds to it."""

Keyed = tuple[Partition, int, int, bytes]
"""Where a record with an idempotency key went: partition, offset, seq; and the digest of what it was, if known."""

_HASH_BYTES = 16


class StagingPoint(NamedTuple):
    """A moment in the staging of a group, to come back to when a unit fails."""

    next_seq: int
    entries: int
    heads: dict[Partition, Head]
    keys: dict[bytes, Keyed]
    records: int
    bytes: int
    spaces: Saved


class Staging:
    """The changes of one group."""

    __slots__ = (
        "_backend", "_gathered", "_group", "_keys_before", "_keys_stored", "_partitions", "_spaces", "_state", "_vault",
        "bytes", "entries", "forgets_sessions", "heads", "is_full", "key_epoch", "keys", "next_seq", "records",
        "repeats", "sessions", "units",
    )  # fmt: skip

    def __init__(self, backend: Backend, state: JournalState) -> None:
        before = state.row
        self._backend = backend
        self._vault = state.vault
        self._partitions = state.topics.by_id
        self.key_epoch = state.vault.epoch
        self._group = before.groups + 1
        self._keys_before = before.keys
        self.next_seq = before.next_seq
        self.entries: list[Entry] = []
        self.heads: dict[Partition, Head] = {}
        """The heads of the partitions that change."""
        self.keys: dict[bytes, Keyed] = {}
        """Idempotency keys that this group remembers."""
        self._keys_stored = 0
        self._state = state
        self._spaces: SpaceChanges | None = None
        self._gathered: dict[Partition, list[Run]] = {}
        self.units: list[Unit] = []
        """Units that succeeded; what they declare is published after the commit."""
        self.records = 0
        self.bytes = 0
        self.repeats = 0
        self.is_full = False
        """All of the group is staged."""
        self.sessions: SessionChanges | None = None
        """What the group stores about sessions."""
        self.forgets_sessions = False

    @property
    def spaces(self) -> SpaceChanges:
        """Changes of spaces; most groups have none, and begin none."""
        if self._spaces is None:
            self._spaces = SpaceChanges(self._state.spaces, self._backend, self._vault)
        return self._spaces

    @property
    def is_plain(self) -> bool:
        """Whether records are all there is: no unit, no change of a space or a session, no idempotency key."""
        return not (self.units or self.keys) and self._spaces is None and self.sessions is None

    def snapshot(self, spaces: Sequence[bytes] = ()) -> StagingPoint:
        """What `restore` needs to take back what comes after; of spaces only these change."""
        saved = self.spaces.saved(spaces) if spaces else {}
        heads, keys = dict(self.heads), dict(self.keys)
        return StagingPoint(self.next_seq, len(self.entries), heads, keys, self.records, self.bytes, saved)

    def restore(self, saved: StagingPoint) -> None:
        """Take back all that was staged since `snapshot`; entries that the database has, it takes back itself."""
        self.next_seq, entries, self.heads, self.keys, self.records, self.bytes, spaces = saved
        if spaces:
            self.spaces.restore(spaces)
        self._keys_stored = len(self.keys)
        del self.entries[entries:]

    def gather(self, run: Run) -> None:
        """Take plain records of a unit that cannot fail any more; those of many units become one entry."""
        runs = self._gathered.get(run.partition)
        if runs is None:
            self._gathered[run.partition] = [run]
        else:
            runs.append(run)

    def settle(self) -> None:
        """Stage what was gathered, before anything else comes; a failure here is the whole group's."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        for partition, runs in gathered.items():
            whole = runs[0] if len(runs) == 1 else Run.unplaced(partition, _joined(runs))
            try:
                self.add(whole)
            except Unavailable:
                raise
            except HoldfastError as error:
                raise Unavailable(f"records could not be packed: {error.message}", hint=error.hint) from error
            first = whole.first
            for run in runs:
                run.first, run.seq = first, whole.seq
                first += len(run)

    def add(self, run: Run) -> None:
        """Stage a run; raises if it cannot be packed or encrypted, leaving nothing staged."""
        run.encode()
        if run.keyed or run.columns is not None:
            self._add_any(run)
        elif len(run.rows) == 1 and not run.extras:
            payload, time, _, _ = run.rows[0]
            self._pack(run, 1, RAW, b"", time, time, frame.encode_one(payload, time))
        elif run.rows:
            self._pack(run, len(run.rows), *_packed(Columns.of(run.rows, extras=run.extras)))

    def _add_any(self, run: Run) -> None:
        """The same for batches, and for rows of which some may be known already."""
        if not len(run):
            return
        columns = Columns.of(run.rows, extras=run.extras) if run.columns is None else run.columns
        fresh: dict[bytes, Keyed] | None = None
        if isinstance(columns, EncodedRows) and columns.key is not None:
            key, digest = columns.key[:_HASH_BYTES], columns.key[_HASH_BYTES:]
            if self._is_repeat(run, key, digest):
                return
            fresh = {key: (run.partition, self._next_offset(run.partition), self.next_seq, digest)}
        if run.keyed:
            kept, fresh = self._settle_repeats(run, self._next_offset(run.partition))
            if not kept:
                return
            if isinstance(columns, Columns) and len(kept) < len(columns):
                columns = columns.select(kept)
        self._pack(run, len(columns), *_packed(columns))
        if fresh is not None:
            self.keys.update(fresh)

    def _next_offset(self, partition: Partition) -> int:
        staged = self.heads.get(partition)
        return partition.durable if staged is None else staged[0]

    def _pack(
        self, run: Run, count: int, kind: int, schema: bytes, time_min: int, time_max: int, plain: bytes | memoryview
    ) -> None:
        """Make an entry of a run, behind those of its partition that are there already."""
        partition, seq = run.partition, self.next_seq
        first, link, before = self.heads.get(partition) or (partition.durable, partition.link, 0)
        place = (first, count, self._group, kind, PLAIN_CODEC, self.key_epoch, time_min, time_max, link)
        head = header(partition.place, seq, *place, schema)
        body = cast("bytes", self.encrypt(plain, head))  # of a plain typed entry any buffer: all that follows takes one
        digest = digests.digest(head, body)
        self.entries.append(Entry(seq, partition.id, *place, digest, body, schema))
        self.heads[partition] = (first + count, digest, before + len(body))
        run.first, run.seq = first, seq
        self.next_seq = seq + 1
        self.records += count
        self.bytes += len(body)

    def flush(self) -> None:
        """Hand staged entries and keys to the database's open transaction."""
        self.settle()
        if self.entries:
            self._backend.insert_entries(self.entries)
            self.entries.clear()
        if len(self.keys) > self._keys_stored:
            fresh = list(enumerate(self.keys.items(), self._keys_before + 1))[self._keys_stored :]
            self._backend.insert_keys(self._key_rows(fresh))
        self._keys_stored = len(self.keys)

    def framed(self) -> tuple[list[tuple[object, ...]], list[bytes]]:
        """The entries as a file of groups has them (the columns of `FramedEntry`), and their bodies."""
        framed: list[tuple[object, ...]] = []
        for entry in self.entries:
            at = self._partitions[entry.partition_id]
            framed.append((*entry[:12], entry.schema, at.topic, at.number, len(entry.body)))
        return framed, [entry.body for entry in self.entries]

    def head_rows(self, topics: dict[str, int]) -> list[HeadRow]:
        """The head rows to store, stamped."""
        rows = []
        for partition, (next_offset, link, _) in self.heads.items():
            rows.append(head_row(partition, topics[partition.topic], next_offset, link, self._vault))
        return rows

    def encrypt(self, body: bytes | memoryview, head: bytes) -> bytes | memoryview:
        """Encrypt a body, bound to its header."""
        try:
            return self._vault.encrypt(body, head)
        except HoldfastError:
            raise
        except Exception as error:  # an injected cipher: its failure is that of what it was to encrypt
            raise Unavailable("the cipher could not encrypt; nothing was written", hint="see the cause") from error

    def _settle_repeats(self, run: Run, first: int) -> tuple[list[int], dict[bytes, Keyed]]:
        """Give known keys their original receipts; returns the positions that are new, and their keys."""
        kept: list[int] = []
        slots: list[int] = []
        fresh: dict[bytes, Keyed] = {}
        for index, (_, _, _, unique) in enumerate(run.rows):
            slots.append(len(kept))
            if index in run.repeats:  # it was withdrawn
                continue
            if unique is None:
                kept.append(index)
                continue
            key, digest = unique[:_HASH_BYTES], unique[_HASH_BYTES:]
            known = self.keys.get(key) or fresh.get(key) or self._remembered(key)
            if known is None:
                fresh[key] = (run.partition, first + len(kept), self.next_seq, digest)
                kept.append(index)
            else:
                run.repeats[index] = _refusal(known, run.partition.topic, digest) or known[:3]
        if run.repeats:
            run.slots = slots
            self.repeats += sum(not isinstance(repeat, HoldfastError) for repeat in run.repeats.values())
        return kept, fresh

    def _is_repeat(self, run: Run, key: bytes, digest: bytes) -> bool:
        """Whether a batch with this key was stored before; then the run stands for that one."""
        known = self.keys.get(key) or self._remembered(key)
        if known is None:
            return False
        refusal = _refusal(known, run.partition.topic, digest)
        if refusal is not None:
            raise refusal
        run.partition, run.first, run.seq, _ = known
        run.repeated = True
        self.repeats += 1
        return True

    def _remembered(self, key: bytes) -> Keyed | None:
        row = self._backend.find_key(key)
        if row is None:
            return None
        if row.partition_id not in self._partitions or not self._vault.verify(row.key_epoch, row.message(), row.stamp):
            raise Corrupt("a remembered idempotency key does not match its stamp", path=str(self._backend.path))
        digest = self._vault.hash_cipher(row.key_epoch).decrypt(row.digest)
        return self._partitions[row.partition_id], row.record, row.seq, digest

    def _key_rows(self, fresh: list[tuple[int, tuple[bytes, Keyed]]]) -> list[KeyRow]:
        epoch = self._vault.epoch
        encrypted = self._vault.hash_cipher(epoch).encrypt(b"".join(where[3] for _, (_, where) in fresh))
        rows = []
        for at, (number, (key, (partition, record, seq, _))) in enumerate(fresh):
            digest = encrypted[_HASH_BYTES * at : _HASH_BYTES * (at + 1)]
            rows.append(stamped(KeyRow(number, key, partition.id, record, seq, digest, epoch, b""), self._vault))
        return rows


def _refusal(known: Keyed, topic: str, digest: bytes) -> Invalid | None:
    """Why an append whose key is known is no repeat; None where it is one.

    A hash covers the topic's name. One that is known from another topic was not made of a key of this topic: its
    sender learns nothing of the other one.
    """
    partition, offset, _, stored = known
    if partition.topic != topic:
        where = ""
    elif stored == digest:
        return None
    else:
        where = f" topic={topic} partition={partition.number} offset={offset}"
    return Invalid(
        f"the idempotency key is already in use for other content; nothing was written{where}",
        hint="a key identifies one append: repeat it with the same content, or use another key for other content",
    )


def _joined(runs: Iterable[Run]) -> Columns:
    return Columns.joined([cast("Columns", run.columns) for run in runs])


def _packed(columns: Columns | EncodedRows) -> tuple[int, bytes, int, int, bytes | memoryview]:
    """Kind, schema, time range and body of an entry."""
    if isinstance(columns, EncodedRows):
        return TYPED, columns.schema, columns.time_min, columns.time_max, columns.body
    return RAW, b"", min(columns.times), max(columns.times), frame.encode(columns)
