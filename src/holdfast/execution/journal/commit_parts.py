"""What the parts that were handed over for one execution come to when the journal's writer takes them: one commit.

Entries become blocks of bounded size, numbered on; the last row counts; a stretch of the journal that was folded takes
the place of what it stands for. Each of them is also a record of the topic `_executions`. This runs in the writer's
thread, once per unit and in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, get_args

import msgspec

from holdfast.execution.execution_settings import TOPIC
from holdfast.execution.journal.entries import Entry, ExecutionRow, Folded, StepResult, encode_block, encode_row
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.journal.journal import Journal, Make, OpenUnit, Operation, Run
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, Extra

INDEX = "executions"
PREFIX = "execution/"
DATA_PREFIX = "execution-data/"
"""Of spaces with large results, several for an execution: its id and a name follow."""
BLOCK_KEY, FOLDED_KEY = b"b", b"f"
BLOCK_BYTES = 256 * 1024
"""A block ends when it has so many bytes; an entry that is larger is a block of its own."""

Item = tuple[bytes, int, bytes]
"""Key, number and body of an item of a space."""

_ENTRIES = frozenset(get_args(Entry))
_ENTRY_BYTES = 96
"""What an entry takes beside its payload, about."""
_ROW_GROWTH = 2**20
"""A row is written again when its journal has grown by so many bytes, so that a crash forgets little of its size."""


class BlockReplacement(NamedTuple):
    """Blocks that take the place of others."""

    puts: list[Item]
    deletes: list[bytes]
    size: int
    """By how many bytes the journal grows."""
    shape: int
    """Of the journal that they were made of; in one of another shape nothing happens."""


class Anew(NamedTuple):
    """Everything before goes; what is handed over with it takes its place."""


Part = Entry | ExecutionRow | BlockReplacement | Anew | list[Operation]
"""What can be handed over."""


class LiveJournal:
    """The journal of one execution, as its writer sees it: where the next entry goes."""

    def __init__(self, execution: ExecutionId, next_entry: int = 0, size: int = 0, folded_steps: int = 0) -> None:
        self.execution = execution
        self.space = PREFIX + str(execution)
        self.gathering = OpenUnit()
        """What was handed over last: the next part may go with it."""
        self.next_entry = next_entry
        """From here on by the journal's writer alone, which makes block after block; wrong once a commit failed."""
        self.size = size
        self.make: Make | None = None
        """What the writer makes of what is handed over; kept, because most steps need it."""
        self.row: ExecutionRow | None = None
        """The row that was written last."""
        self.folded_steps = folded_steps
        """Steps whose results are folded: they no longer count."""
        self.shape = 0
        """How often the past was rewritten; by the journal's writer."""


class Parts:
    """The parts of one commit, taken apart."""

    def __init__(self, journal: Journal, live: LiveJournal) -> None:
        self._journal = journal
        self._live = live
        self._entries: list[Entry] = []
        self.row: ExecutionRow | None = None
        """As it was handed over."""
        self._others: list[Operation] = []
        self._items: dict[str, list[Item]] = {}
        self._deletes: list[bytes] = []
        self._payloads: list[bytes] = []
        self._kinds: list[bytes] = []
        self._anew = False

    def add(self, part: object) -> None:
        """One more, in order."""
        if type(part) in _ENTRIES:
            self._entries.append(part)  # type: ignore[arg-type]
        elif type(part) is tuple:
            for one in part:
                self.add(one)
        else:
            self._add(part)

    def _add(self, part: object) -> None:
        match part:
            case ExecutionRow():
                self.row = part
            case BlockReplacement():
                self._reshape(part)
            case Anew():
                self._anew = True
            case list():
                self._others += part
            case _:
                raise TypeError(f"no part of an execution's journal: {type(part).__name__}")

    def operations(self, partition: Partition | None, now: int) -> list[Operation]:
        """All of it as operations of a unit: changes of spaces first, then records, so that it needs no savepoint."""
        live = self._live
        if self._anew:
            live.shape += 1
            live.size = live.folded_steps = 0
        for chunk in _chunks(self._entries):
            item = block_item(BLOCK_KEY, live.execution, live.next_entry, chunk)
            self._put(live.space, item, b"entries")
            live.next_entry += len(chunk)
            live.size += len(item[2])
        self._finish_row()
        made: list[Operation] = []
        if self._anew:
            made += self._journal.spaces.operations(live.space, [], [], drop=True)[0]
        for name, items in self._items.items():
            made += self._journal.spaces.operations(name, items, self._deletes if name == live.space else [])[0]
        if partition is not None and self._payloads:
            made.append(Run.unplaced(partition, self._columns(now)))
        return sorted([*made, *self._others], key=_comes_last)

    def _reshape(self, part: BlockReplacement) -> None:
        if part.shape != self._live.shape:
            return
        for item in part.puts:
            self._put(self._live.space, item, b"folded")
        self._deletes += part.deletes
        self._live.size += part.size

    def _finish_row(self) -> None:
        live, row = self._live, self.row
        if row is None and live.row is not None and live.size - live.row.size > _ROW_GROWTH:
            row = live.row
        if row is not None:
            live.row = row = msgspec.structs.replace(row, entries=live.next_entry, size=live.size)
            self._put(INDEX, (row.id, row.created_us, encode_row(row)), b"status")

    def _put(self, space: str, item: Item, kind: bytes) -> None:
        self._items.setdefault(space, []).append(item)
        self._record(kind, item[2])

    def _record(self, kind: bytes, payload: bytes) -> None:
        self._payloads.append(payload)
        self._kinds.append(kind)

    def _columns(self, now: int) -> Columns:
        key = str(self._live.execution).encode()
        extras: dict[int, Extra] = {at: (key, kind, None) for at, kind in enumerate(self._kinds)}
        return Columns(self._payloads, [now] * len(self._payloads), extras)


def block_item(kind: bytes, execution: ExecutionId, first: int, entries: list[Entry], covers: int = 0) -> Item:
    """A block as an item: its key has its number and how many numbers it takes, or (of folded ones) `covers`."""
    key = kind + first.to_bytes(8, "big") + (covers or len(entries)).to_bytes(4, "big")
    return key, first, encode_block(execution, first, entries)


def data_records(journal: Journal, execution: ExecutionId, space: str, items: Iterable[Item]) -> Run:
    """Parts of a large result as records of the topic."""
    now, name = journal.clock.now_us(), space.removeprefix(DATA_PREFIX)
    payloads = [msgspec.msgpack.encode((name, number, body)) for _, number, body in items]
    extra: Extra = (str(execution).encode(), b"data", None)
    columns = Columns(payloads, [now] * len(payloads), dict.fromkeys(range(len(payloads)), extra))
    return Run.unplaced(journal.topics[TOPIC][0], columns)


def weight(part: Part) -> int:
    """The bytes of a part, about; never much too few."""
    if isinstance(part, StepResult):
        return _ENTRY_BYTES + len(part.path) + len(part.payload) + len(part.reference)
    if isinstance(part, list):  # its bytes are given apart
        return 0
    if isinstance(part, BlockReplacement):
        return sum(len(body) for _, _, body in part.puts)
    size = sum(len(getattr(part, name, b"")) for name in ("path", "payload", "input", "error", "note", "detail"))
    return _ENTRY_BYTES + size + (sum(map(len, part.entries)) if isinstance(part, Folded) else 0)


def _comes_last(operation: Operation) -> bool:
    """Changes of spaces come before records: such a unit needs no savepoint."""
    return not isinstance(operation, ChangeSpace)


def _chunks(entries: list[Entry]) -> Iterable[list[Entry]]:
    """Entries in blocks of bounded size."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        heavy = weight(entry)
        if chunk and size + heavy > BLOCK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += heavy
    if chunk:
        yield chunk
