"""An examination: what of a log can be proved, row by row, going on after whatever is damaged.

Digests and links need no key. Stamps and bodies of an encrypted log do; without it they are *unchecked*,
which is not the same as good. Opening a log stops at the first doubt; this does not, and returns every row
with its checks. Damage is gathered in `problems`. Nothing is ever repaired or written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

from holdfast import Keyring, SystemClock
from holdfast.cli.inspection.control_tables import SPACES_SINCE, Glance
from holdfast.cli.inspection.entry_rows import Stored, StoredEntries
from holdfast.cli.inspection.key_epochs import Keys
from holdfast.cli.inspection.manifest_rows import Sealed, StoredSegments
from holdfast.cli.json_rows import Rows, rows_of
from holdfast.cli.output import BAD, OK, UNCHECKED
from holdfast.crypto import digests as chain
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.entry_reader import Reader
from holdfast.journal.recovery import recover
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.state_digest import total
from holdfast.model.control_rows import HeadRow, SegmentRow, ShipmentRow, WatermarkRow
from holdfast.model.entry import TYPED, Entry, is_whole
from holdfast.model.record_columns import Columns
from holdfast.model.segment import NO_CHAIN, chain_value
from holdfast.signals import Signal


class Stamped(Protocol):
    """A control row: what its stamp covers, and under which key epoch it was made."""

    @property
    def key_epoch(self) -> int: ...  # noqa: D102
    @property
    def stamp(self) -> bytes: ...  # noqa: D102
    def message(self) -> bytes: ...  # noqa: D102


class Examined(NamedTuple):
    """An entry and its checks; `columns` or, of a typed topic, `rows` is what is in it, where it could be opened."""

    stored: Stored
    partition: Partition | None
    link: str
    digest: str
    body: str
    columns: Columns | None = None
    rows: Rows | None = None


class ExaminedSegment(NamedTuple):
    """A row of the manifest and its checks."""

    row: SegmentRow
    partition: Partition | None
    stamp: str
    chain: str


class Examination:
    """Checks the rows of one log."""

    def __init__(
        self,
        backend: SqliteBackend,
        seen: Glance,
        format_id: bytes | None,
        keyring: Keyring | None,
        problems: list[Corrupt],
    ) -> None:
        self._backend = backend
        self._seen = seen
        self._keys = Keys(backend, seen, format_id, keyring)
        self._vault = self._keys.vault
        self._blamed: set[int] = set()
        self._segments = StoredSegments(backend, seen, problems)
        self.problems = problems
        problems.extend(seen.problems)
        self.topics = {topic.id: topic for topic in seen.topics}
        self.partitions = {head.partition_id: found for head in seen.heads if (found := self._partition(head))}
        self._check_whole(format_id)

    @property
    def keyless(self) -> bool:
        """Whether the log is encrypted and there is no key."""
        return self._vault is None

    # -- control rows -------------------------------------------------------------------------------------

    def key_epoch(self, number: int) -> str:
        """Whether a key epoch is what it was: its key, its commitment, its stamp."""
        check, reason = self._keys.check(number)
        if check == BAD and number not in self._blamed:
            self._blamed.add(number)
            self._damaged(f"a key epoch cannot be used key_epoch={number}: {reason}")
        return check

    def stamp(self, row: Stamped, what: str, topic: str | None = None, partition: int | None = None) -> str:
        """Whether a control row is what was stamped."""
        if self._vault is None or self.key_epoch(row.key_epoch) != OK:
            return UNCHECKED
        if self._vault.verify(row.key_epoch, row.message(), row.stamp):
            return OK
        return self._damaged(f"{what} does not match its stamp", topic, partition)

    def tail(self, head: HeadRow) -> str:
        """Whether a partition's entries end where its head says; needs no key."""
        if head.partition_id not in self._seen.tails:
            return UNCHECKED
        found, mark = self._seen.tails[head.partition_id], self._seen.watermarks.get(head.partition_id)
        if found is None:  # nothing was written yet, or all of it was sealed and trimmed
            sealed = 0 if mark is None else mark.sealed_offset
            link = head.link if mark is not None and mark.segments else chain.NO_LINK
            end, digest = sealed, link
        else:
            end, digest = found
        if (end, digest) == (head.next_offset, head.link):
            return OK
        message = f"a head and its last entry disagree head={head.next_offset} entries={end}"
        return self._damaged(message, self.topic_of(head), head.number, min(end, head.next_offset))

    def seal(self, mark: WatermarkRow) -> str:
        """Whether the manifest ends where a watermark says, with that chain value; needs no key."""
        partition = self.partitions.get(mark.partition_id)
        if partition is None:
            return self._damaged(f"a watermark belongs to no partition partition_id={mark.partition_id}")
        place = (partition.topic, partition.number, mark.sealed_offset)
        if not mark.first_offset <= mark.sealed_offset <= partition.durable:
            return self._damaged("a watermark lies beyond its head", *place)
        if not mark.segments:
            return OK
        newest = self._segments.last(mark)
        if newest is None or (newest.end, newest.chain) != (mark.sealed_offset, mark.chain):
            return self._damaged("the manifest does not end at its watermark", *place)
        return OK

    def shipment(self, row: ShipmentRow) -> str:
        """Whether a partition is on the store no further than it is here; needs no key."""
        partition, mark = self.partitions.get(row.partition_id), self._seen.watermarks.get(row.partition_id)
        if partition is None:
            return self._damaged(f"a shipment belongs to no partition partition_id={row.partition_id}")
        segments, sealed = (0, 0) if mark is None else (mark.segments, mark.sealed_offset)
        if (
            0 <= row.settled_segments <= min(segments, row.slots)
            and row.settled_offset <= min(sealed, row.shipped_offset)
            and row.shipped_offset <= partition.durable
        ):
            return OK
        return self._damaged(
            "a shipment is further than its partition", partition.topic, partition.number, row.shipped_offset
        )

    def stored_shipments(self) -> Iterator[ShipmentRow]:
        """The shipments that were written down; a partition that was made since has none."""
        return (row for row in self._seen.shipments.values() if row.stamp)

    def check_rows(self) -> None:
        """Check the log's own row, its topics and heads, for whoever wants only the problems."""
        if self._seen.log is not None:
            self.stamp(self._seen.log, "the log's own row")
        for topic in self._seen.topics:
            self.stamp(topic, "a topic", topic.name)
        for head in self._seen.heads:
            self.stamp(head, "a head", self.topic_of(head), head.number)
            self.tail(head)
        for mark in self._seen.watermarks.values():
            self.stamp(mark, "a watermark", *self.place_of(mark.partition_id))
            self.seal(mark)
        for schema in self._seen.schemas:
            self.stamp(schema, "a schema", self.topic_named(schema.topic_id))
        for policy in self._seen.policies:
            self.stamp(policy, "a retention policy", self.topic_named(policy.topic_id))
        if self._seen.shipping is not None:
            self.stamp(self._seen.shipping, "what was shipped")
        for shipment in self.stored_shipments():
            self.stamp(shipment, "a shipment", *self.place_of(shipment.partition_id))
            self.shipment(shipment)

    def topic_named(self, topic_id: int) -> str | None:
        """The name of a topic."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.name

    def place_of(self, partition_id: int) -> tuple[str | None, int | None]:
        """Topic and number of a partition."""
        partition = self.partitions.get(partition_id)
        return (None, None) if partition is None else (partition.topic, partition.number)

    def topic_of(self, head: HeadRow) -> str | None:
        """The name of the topic that a head belongs to."""
        return self.topic_named(head.topic_id)

    # -- segments -----------------------------------------------------------------------------------------

    def segments(self, newest: int | None, partitions: Iterable[int]) -> Iterator[ExaminedSegment]:
        """The newest segments of each partition in order, each row checked; files are not looked at."""
        for sealed in self._segments.newest(newest, partitions):
            partition = self.partitions.get(sealed.row.partition_id)
            if partition is None:
                self._damaged(f"a segment belongs to no partition partition_id={sealed.row.partition_id}")
                yield ExaminedSegment(sealed.row, None, UNCHECKED, UNCHECKED)
                continue
            stamp = self.stamp(sealed.row, "a row of the manifest", partition.topic, partition.number)
            yield ExaminedSegment(sealed.row, partition, stamp, self._follows(sealed, partition))

    def _follows(self, sealed: Sealed, partition: Partition) -> str:
        """Whether a segment begins where the one before ends, with a chain value that follows from that one's."""
        row, before = sealed
        if before is None and row.number:
            return UNCHECKED
        follows = before is None or (before.number + 1, before.end) == (row.number, row.first_offset)
        previous = NO_CHAIN if before is None else before.chain
        head = row.head(self._keys.log_id, partition.topic, partition.number, previous)
        if follows and chain_value(head, row.rows, row.content) == row.chain:
            return OK
        message = f"a segment does not follow from the one before it number={row.number}"
        return self._damaged(message, partition.topic, partition.number, row.first_offset)

    # -- entries ------------------------------------------------------------------------------------------

    def entries(self, newest: int | None, partitions: Collection[int] | None, bytes_max: int) -> Iterator[Examined]:
        """The newest entries in order, each checked."""
        stored = StoredEntries(self._backend, self._seen, self.problems, bytes_max)
        for row in stored.newest(newest, partitions):
            yield self._examine(row, stored.before)

    def _examine(self, row: Stored, before: Callable[[Stored], tuple[int, bytes] | None]) -> Examined:
        entry, partition = row.entry, self.partitions.get(row.entry.partition_id)
        if partition is None:
            self._damaged(f"an entry belongs to no partition seq={entry.seq}")
            return Examined(row, None, UNCHECKED, UNCHECKED, UNCHECKED)
        link = self._link(entry, partition, before(row))
        if row.too_large:
            self._damaged("an entry is larger than the limits allow", partition.topic, partition.number, entry.first)
            return Examined(row, partition, link, UNCHECKED, UNCHECKED)
        if not is_whole(partition.place, entry):
            digest = self._damaged(
                f"an entry's digest does not match seq={entry.seq}", partition.topic, partition.number, entry.first
            )
            return Examined(row, partition, link, digest, UNCHECKED)
        return self._open(Examined(row, partition, link, OK, UNCHECKED), entry, partition)

    def _link(self, entry: Entry, partition: Partition, before: tuple[int, bytes] | None) -> str:
        if before is None:
            return UNCHECKED
        if before == (entry.first, entry.link):
            return OK
        message = f"entries are missing or out of place seq={entry.seq}"
        return self._damaged(message, partition.topic, partition.number, min(before[0], entry.first))

    def _open(self, examined: Examined, entry: Entry, partition: Partition) -> Examined:
        if self._vault is None or self.key_epoch(entry.key_epoch) != OK:
            return examined
        reader = Reader(self._backend, self._vault, partition, len(entry.body))
        try:
            if entry.kind == TYPED:
                return examined._replace(body=OK, rows=rows_of(reader, entry, self._seen.schemas))
            return examined._replace(body=OK, columns=reader.open(entry))
        except Corrupt as error:
            self.problems.append(error)
            return examined._replace(body=BAD)

    # -- the whole ----------------------------------------------------------------------------------------

    def _partition(self, head: HeadRow) -> Partition | None:
        topic = self.topic_of(head)
        if topic is None:
            self._damaged(f"a head belongs to no topic partition_id={head.partition_id}")
            return None
        try:
            return Partition(head.partition_id, topic, head.number, self._keys.log_id, Signal(), head.next_offset)
        except struct.error:
            self._damaged(f"a head is out of range partition_id={head.partition_id}", topic)
            return None

    def _check_whole(self, format_id: bytes | None) -> None:
        row, seen = self._seen.log, self._seen
        if row is not None and format_id is not None and row.log_id != format_id:
            self._damaged("the database belongs to another log than FORMAT says")
        if row is not None and not seen.problems and not self._sequence_ends_well(row.next_seq - 1):
            self._damaged(f"the sequence does not end where it should seq={seen.last_seq} expected={row.next_seq - 1}")
        numbers: dict[int, list[int]] = {}
        for head in seen.heads:
            numbers.setdefault(head.topic_id, []).append(head.number)
        for topic in seen.topics:
            own = numbers.get(topic.id, [])
            if len(own) != topic.partitions or own != list(range(len(own))):
                self._damaged("a topic has lost a partition's head", topic.name)
        if not self.problems and self._vault is not None and format_id is not None:
            self._prove_as_opening_does(self._vault, format_id)

    def _sequence_ends_well(self, expected: int) -> bool:
        """Whether the last entry is the last that was written; it may be gone only where something was sealed."""
        trimmed = any(mark.segments for mark in self._seen.watermarks.values())
        return self._seen.last_seq <= expected if trimmed else self._seen.last_seq == expected

    def _prove_as_opening_does(self, vault: Vault, format_id: bytes) -> None:
        """What no single row shows: rows that are gone, heads that the log's own row does not vouch for."""
        if self._seen.version < SPACES_SINCE:
            self._prove_heads(vault)
            return
        try:
            recovered = recover(self._backend, format_id, *vault.sources(), SystemClock())
        except Corrupt as damage:
            self.problems.append(damage)
        except Invalid:  # a key is missing: its rows are unchecked, and each says so
            pass
        else:
            self.problems.extend(recovered.problems)

    def _prove_heads(self, vault: Vault) -> None:
        """Of a database that is older than this program, which only its owner may bring up to date."""
        row = self._seen.log
        if row is None or self.key_epoch(row.key_epoch) != OK:
            return
        vouched: list[Stamped] = [*self._seen.heads, *self._seen.watermarks.values(), *self._seen.policies]
        if total(vault.stamp_under(row.key_epoch), [control.stamp for control in vouched]) != row.heads:
            self._damaged("the heads are not those that the log's own row vouches for")

    def _damaged(
        self, message: str, topic: str | None = None, partition: int | None = None, offset: int | None = None
    ) -> str:
        path = str(self._backend.path)
        self.problems.append(Corrupt(message, path=path, topic=topic, partition=partition, offset=offset))
        return BAD
