"""A log's database as the command line sees it: read only, whatever its state, with or without a key.

Everything that `holdfast.cli` wants to know of a database it asks here. What cannot be read is reported and skipped. A
database of another program, or of another version of holdfast, is refused.

Control rows come out of one read transaction, so that they agree with each other while an owner writes on. Segments and
entries come page by page, each page in a short transaction of its own: there may be millions.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.crypto.keyring import Keyring
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.journal.backend import (
    Backend,
    ControlRows,
    ControlTables,
    EntryWalk,
    PartitionBytes,
    StoredEntry,
    open_backend,
)
from holdfast.journal.entry_reader import EntryReader
from holdfast.journal.proving import proved_groups
from holdfast.journal.proving.examination import Examination, Finding, Verdict
from holdfast.journal.proving.proofs import BAD, OK, UNCHECKED, Proofs
from holdfast.journal.proving.recovery import lost_bodies
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import DiskFailed, SegmentRow
from holdfast.model.entry import TYPED, Entry, is_whole
from holdfast.model.record_columns import BadRecords
from holdfast.model.segment import NO_CHAIN, chain_value
from holdfast.signals import Signal

__all__ = [
    "BAD", "OK", "UNCHECKED", "ControlRows", "EntryVerdict", "Finding", "InspectedDatabase", "Inspection",
    "PartitionBytes", "SegmentVerdict", "StoredEntry", "Verdict", "control_rows", "is_keyed",
]  # fmt: skip

_PAGE_ROWS = 512

Decode = Callable[[Entry, bytes], object]
"""The rows in the body of a typed entry; raises BadFrame."""


class SegmentVerdict(NamedTuple):
    """What the checks of a row of the manifest say; files are not looked at."""

    stamp: str = UNCHECKED
    chain: str = UNCHECKED
    """Whether it follows from the segment before it."""


class EntryVerdict(NamedTuple):
    """What the checks of an entry say."""

    link: str = UNCHECKED
    digest: str = UNCHECKED
    body: str = UNCHECKED
    content: object = None
    """The records (`Columns`), or what typed rows were decoded to, where the body could be opened."""


class InspectedDatabase:
    """A log's database, for looking only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[InspectedDatabase]:
        """The database in this file."""
        try:
            backend = open_backend(path, read_only=True)
            try:
                yield cls(backend)
            finally:
                backend.close()
        except DiskFailed as error:
            raise Unavailable(f"cannot read the database path={path}", hint="check the disk") from error

    def control_rows(self, newest: int | None = None) -> ControlRows:
        """The control rows as they are stored, nothing proved; of epochs and key epochs only the `newest`."""
        with self._tables() as tables:
            return tables.control_rows(newest)

    def bytes_of(self, control: ControlRows) -> dict[int, PartitionBytes]:
        """The sizes of tails and segments, by partition; this goes through the manifest once."""
        with self._tables(control.damage) as tables:
            return {head.partition_id: tables.bytes_of(head.partition_id, control) for head in control.heads}

    def key_uses(self, control: ControlRows) -> tuple[Counter[str], Counter[str]]:
        """How many entries and how many live segments there are under each key, by its name."""
        with self._tables() as tables:
            return tables.key_uses(control)

    def examine(
        self, log_id: bytes | None, keyring: Keyring | None, problems: list[Corrupt], newest: int | None = None
    ) -> Inspection:
        """The control rows, each examined; of epochs and key epochs only the `newest`, but one at least.

        What is damaged is added to `problems`, as long as the inspection goes on.
        """
        with self._tables() as tables:
            control = tables.control_rows(newest)
            keys = tables.number("idempotency", "count(*)")
            proofs = Proofs(self._backend, control, log_id, keyring, tolerant=True)
            proved_groups.take_in(control, tables, proofs)
            findings = list(Examination(tables, control, proofs, log_id).findings())
        return Inspection(self._backend, control, proofs, findings, keys, problems)

    @contextmanager
    def _tables(self, damage: list[Corrupt] | None = None) -> Iterator[ControlTables]:
        with self._backend.tables(damage, tolerant=True) as tables:
            yield tables


def control_rows(path: Path) -> ControlRows:
    """The control rows of the database in this file, nothing proved; of epochs and key epochs only the newest."""
    with InspectedDatabase.open(path) as database:
        return database.control_rows(1)


def is_keyed(path: Path) -> bool:
    """Whether the log in this file says that it is encrypted; False where nothing can be read."""
    try:
        row = control_rows(path).log
    except HoldfastError:
        return False
    return row is not None and bool(row.keyed)


class Inspection:
    """What was found in a database: its control rows with their verdicts, and on request its segments and entries."""

    def __init__(
        self,
        backend: Backend,
        control: ControlRows,
        proofs: Proofs,
        findings: list[Finding],
        keys: int,
        problems: list[Corrupt],
    ) -> None:
        self._backend = backend
        self._proofs = proofs
        self.names = control.topic_names
        self.control = control
        self.findings = findings
        self.idempotency_keys = keys
        self.problems = problems
        problems += [problem for _, verdict in findings for problem in verdict.problems]
        self.partitions = {head.partition_id: one for head in control.heads if (one := self._partition(*head[:4]))}

    @property
    def keyless(self) -> bool:
        """Whether the log is encrypted and there is no key."""
        return self._proofs.vault is None

    def place(self, partition_id: int) -> tuple[str | None, int | None]:
        """Topic and number of a partition; none where its head is lost or damaged."""
        partition = self.partitions.get(partition_id)
        return (None, None) if partition is None else (partition.topic, partition.number)

    def _partition(self, partition_id: int, topic_id: int, number: int, end: int) -> Partition | None:
        try:
            return Partition(partition_id, self.names[topic_id], number, self._proofs.log_id, Signal(), end)
        except (KeyError, struct.error):  # the head's verdict says it
            return None

    def lost_bodies(self) -> list[Corrupt]:
        """Files of groups that are cut off or gone. An owner may remove one meanwhile: what is so twice is so."""
        if not any(lost_bodies(self._backend, self.partitions)):
            return []
        return list(lost_bodies(self._backend, self.partitions))

    # -- segments -----------------------------------------------------------------------------------------

    def segments(self, newest: int | None, partitions: Iterable[int]) -> Iterator[tuple[SegmentRow, SegmentVerdict]]:
        """The newest segments (None: all) of each of these partitions, in order."""
        for partition_id in partitions:
            mark = self.control.watermarks.get(partition_id)
            if mark is None:
                continue
            first = 0 if newest is None else max(0, mark.segments - newest)
            before = next(iter(self._page(partition_id, first - 1, first)), None)
            while page := self._page(partition_id, first, mark.segments):
                for row in page:
                    yield row, self._segment(row, before)
                    before = row
                first = page[-1].number + 1

    def _page(self, partition_id: int, start: int, stop: int) -> list[SegmentRow]:
        if start >= stop or stop <= 0:
            return []
        with self._backend.tables(tolerant=True) as tables:
            page = tables.segments(partition_id, start, stop, _PAGE_ROWS)
        known = {problem.message for problem in self.problems}  # what cannot be read is met again by the next page
        self.problems += [damage for damage in tables.damage if damage.message not in known]
        return page

    def _segment(self, row: SegmentRow, before: SegmentRow | None) -> SegmentVerdict:
        partition = self.partitions.get(row.partition_id)
        if partition is None:
            self._bad(f"a segment belongs to no partition partition_id={row.partition_id}")
            return SegmentVerdict()
        stamp = self._proofs.stamp(row)
        self._blame(row.key_epoch)
        if stamp is BAD:
            self._bad("a row of the manifest does not match its stamp", partition)
        if before is None and row.number:
            return SegmentVerdict(stamp)
        follows = before is None or (before.number + 1, before.end) == (row.number, row.first_offset)
        previous = NO_CHAIN if before is None else before.chain
        head = row.head(self._proofs.log_id, partition.topic, partition.number, previous)
        if follows and chain_value(head, row.rows, row.content) == row.chain:
            return SegmentVerdict(stamp, OK)
        message = f"a segment does not follow from the one before it number={row.number}"
        return SegmentVerdict(stamp, self._bad(message, partition, row.first_offset))

    # -- entries ------------------------------------------------------------------------------------------

    def entries(
        self, newest: int | None, partitions: Collection[int] | None, bytes_max: int, decode: Decode
    ) -> Iterator[tuple[StoredEntry, EntryVerdict]]:
        """The newest entries (None: all) of these partitions (None: all), in order."""
        groups = -1 if self.control.log is None else self.control.log.groups
        walk = EntryWalk(self._backend, groups, self.problems, bytes_max)
        for row in walk.newest(newest, partitions):
            partition = self.partitions.get(row.entry.partition_id)
            if partition is None:
                self._bad(f"an entry belongs to no partition seq={row.entry.seq}")
                yield row, EntryVerdict()
            else:
                link = self._link(row.entry, partition, walk.before(row))
                yield row, self._entry(row, partition, decode)._replace(link=link)

    def _link(self, entry: Entry, partition: Partition, before: tuple[int, bytes] | None) -> str:
        if before is None:
            return UNCHECKED
        if before == (entry.first, entry.link):
            return OK
        message = f"entries are missing or out of place seq={entry.seq}"
        return self._bad(message, partition, min(before[0], entry.first))

    def _entry(self, row: StoredEntry, partition: Partition, decode: Decode) -> EntryVerdict:
        entry, vault = row.entry, self._proofs.vault
        if row.is_too_large:
            self._bad("an entry is larger than the limits allow", partition, entry.first)
            return EntryVerdict()
        if not is_whole(partition.place, entry):
            return EntryVerdict(
                digest=self._bad(f"an entry's digest does not match seq={entry.seq}", partition, entry.first)
            )
        self._blame(entry.key_epoch)
        if vault is None or self._proofs.key_epoch(entry.key_epoch)[0] is not OK:
            return EntryVerdict(digest=OK)
        reader = EntryReader(self._backend, vault, partition, len(entry.body))
        try:
            return EntryVerdict(digest=OK, body=OK, content=_content(reader, entry, decode))
        except Corrupt as damage:
            self.problems.append(damage)
            return EntryVerdict(digest=OK, body=BAD)

    def _blame(self, key_epoch: int) -> None:
        if (message := self._proofs.blame(key_epoch)) is not None:
            self._bad(message)

    def _bad(self, message: str, partition: Partition | None = None, offset: int | None = None) -> str:
        path = str(self._backend.path)
        topic, number = (None, None) if partition is None else (partition.topic, partition.number)
        self.problems.append(Corrupt(message, path=path, topic=topic, partition=number, offset=offset))
        return BAD


def _content(reader: EntryReader, entry: Entry, decode: Decode) -> object:
    if entry.kind != TYPED:
        return reader.open(entry)
    body = reader.body(entry)
    try:
        return decode(entry, body)
    except BadRecords as error:
        raise reader.malformed(entry, error) from None
