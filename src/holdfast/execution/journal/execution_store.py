"""Executions as a log keeps them: a row each in the space `executions`, a journal each in a space of its own.

The journal of an execution is its blocks, one item each, numbered by their first entry. The space proves them: an item
that was edited, lost, added, swapped or put back, and a space that is gone or older than it should be, is found when
the execution is opened, before anything runs (the original's signed high-water mark, of entries of all kinds). Bodies
are encrypted like everything in the log.

Everything of one execution goes through one causal scope, in order. What is handed over before the writer comes to it
becomes one block: a step costs a place in a list, not a row. Each change is also a record of the topic `_executions`,
in the same commit: entries (`entries`), rows (`status`), folded prefixes (`folded`) and executions that are gone
(`pruned`). They are what Spark sees, and what executions are made of again when a log was restored.

Who hands an entry over learns by its ticket when it is durable. If a commit fails, all later entries of that execution
fail with the same cause, until it is opened again: nobody goes on behind a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock, RLock
from typing import NamedTuple

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.journal.entries import (
    Entry,
    ExecutionRow,
    StepResult,
    decode_block,
    decode_row,
    encode_block,
    encode_row,
)
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.recorded import Block
from holdfast.journal.commit.ticket import UnitTicket
from holdfast.journal.journal import Journal, Make, Operation, Unit
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, Extra

INDEX = "executions"
PREFIX = "execution/"
BLOCK_BYTES = 256 * 1024
"""A block ends when it has so many bytes; an entry that is larger is a block of its own."""

Item = tuple[bytes, int, bytes]
"""Key, number and body of an item of a space."""

_ENTRY_BYTES = 96
"""What an entry takes beside its payload, about."""
_BLOCK_KEY = b"b"


class Written(NamedTuple):
    """One record for the topic."""

    kind: bytes
    payload: bytes


class LiveJournal:
    """The journal of one open execution, as its writer sees it: where the next entry goes."""

    def __init__(self, execution: ExecutionId, next_entry: int, size: int) -> None:
        self.execution = execution
        self.space = PREFIX + str(execution)
        self.next_entry = next_entry
        """By the writer alone, which makes block after block."""
        self.size = size
        self.make: Make
        """What the writer makes of the parts of a commit."""
        self.last: UnitTicket | None = None
        """Of what was handed over last: the next part may go with it."""
        self.is_fresh = True
        """Nothing was handed over yet: the first part repairs a scope that failed before."""
        self.is_released = False
        """Its program has ended here: somebody else may write now."""
        self.lock = Lock()
        """Guards the order of parts: what is handed over later never stands before what was there."""


class ExecutionStore:
    """The executions of one log."""

    def __init__(self, journal: Journal, partition: Partition | None, settings: ExecutionSettings) -> None:
        self._journal = journal
        self._partition = partition
        self.settings = settings
        self.clock: Clock = journal.clock
        self._timeout = settings.ack_timeout_ms / 1000
        self.lock = RLock()
        """Guards decisions about rows: who checks a status and changes it holds it."""
        self.rows: dict[ExecutionId, ExecutionRow] = {}
        """All rows, as they were handed over; loaded when the store is made."""
        for _, _, body in journal.spaces.load(INDEX):
            row = decode_row(body)
            self.rows[row.execution] = row

    @property
    def epoch(self) -> int:
        """The present ownership of the log."""
        return self._journal.epoch

    def load(self, execution: ExecutionId) -> tuple[list[Block], LiveJournal]:
        """The blocks of an execution, proved, each decoded when it is asked for; and where its next entry goes."""
        blocks: list[Block] = []
        end = size = 0
        for key, first, body in self._journal.spaces.load(PREFIX + str(execution)):
            if key[:1] != _BLOCK_KEY:
                continue
            blocks.append(partial(decode_block, body, execution, first))
            end, size = first, size + len(body)
        if blocks:
            end += len(blocks[-1]())
        return blocks, self.journal_of(execution, end, size)

    def journal_of(self, execution: ExecutionId, next_entry: int = 0, size: int = 0) -> LiveJournal:
        """Where the entries of an execution go from now on."""
        live = LiveJournal(execution, next_entry, size)
        live.make = partial(self._made, live)
        return live

    def write(
        self,
        live: LiveJournal,
        *parts: Entry | ExecutionRow | list[Operation],
        acked: bool = True,
        alone: bool = False,
        size: int = 0,
    ) -> UnitTicket:
        """Hand entries, a changed row, or operations that belong to them, over: all in one commit.

        Returns at once. `acked` says that somebody waits for it. `alone` begins a commit unit of its own. `size` are
        the bytes of the operations. Raises Full where there is no room, on an event loop without waiting for it.
        """
        part: object = parts[0] if len(parts) == 1 else parts
        size += sum(map(_size, parts))
        with live.lock:
            if live.is_released:
                raise Invalid(
                    f"this execution's program has ended here; nothing was written execution={live.execution}",
                    hint="finish all steps inside the block, and await all that was begun there",
                )
            live.last = ticket = self._journal.spaces.gather(
                part, live.make, append=(None, 0), size=size, scope=live.space, reissue=live.is_fresh,
                join=None if alone else live.last, acked=acked, timeout=self._timeout,
            )  # fmt: skip
            live.is_fresh = False
        return ticket

    def change_row(self, live: LiveJournal, row: ExecutionRow, *entries: Entry) -> UnitTicket:
        """Change an execution's row, with entries; others see it at once. Call with the lock held."""
        ticket = self.write(live, *entries, row)
        self.rows[row.execution] = row
        return ticket

    # -- by the journal's writer ------------------------------------------------------------------------------

    def _made(self, live: LiveJournal, unit: Unit) -> list[Operation]:
        """What the parts of a commit come to: blocks of entries, the last row, and records of both."""
        entries: list[Entry] = []
        more: list[Operation] = []
        row: ExecutionRow | None = None
        for part in _flat(unit.parts):
            if isinstance(part, ExecutionRow):
                row = part
            elif isinstance(part, list):
                more += part
            else:
                entries.append(part)  # type: ignore[arg-type]
        items: list[Item] = []
        written: list[Written] = []
        for chunk in _chunks(entries):
            first = live.next_entry
            body = encode_block(live.execution, first, chunk)
            items.append((_BLOCK_KEY + first.to_bytes(8, "big"), first, body))
            written.append(Written(b"entries", body))
            live.next_entry += len(chunk)
            live.size += len(body)
        changes: list[tuple[str, Item]] = [(live.space, item) for item in items]
        if row is not None:
            row = msgspec.structs.replace(row, entries=live.next_entry, size=live.size)
            body = encode_row(row)
            written.append(Written(b"status", body))
            changes.append((INDEX, (row.id, row.created_us, body)))
        made = [*self._operations(live.execution, changes, written), *more]
        return sorted(made, key=_comes_last)

    def _operations(
        self, execution: ExecutionId, changes: Sequence[tuple[str, Item]], written: Sequence[Written]
    ) -> list[Operation]:
        spaces: dict[str, list[Item]] = {}
        for name, item in changes:
            spaces.setdefault(name, []).append(item)
        operations: list[Operation] = []
        append = self._records(execution, written)
        for name, items in spaces.items():
            operations += self._journal.spaces.operations(name, items, [], append=append)[0]
            append = None
        return operations

    def _records(self, execution: ExecutionId, written: Sequence[Written]) -> tuple[Partition, Columns] | None:
        """What goes into the topic; nothing where there is none."""
        if self._partition is None or not written:
            return None
        now, key = self.clock.now_us(), str(execution).encode()
        extras: dict[int, Extra] = {at: (key, one.kind, None) for at, one in enumerate(written)}
        return self._partition, Columns([one.payload for one in written], [now] * len(written), extras)


def _comes_last(operation: Operation) -> bool:
    """Changes of spaces come before records: such a unit needs no savepoint."""
    return not isinstance(operation, ChangeSpace)


def _flat(parts: Iterable[object]) -> Iterable[object]:
    for part in parts:
        if type(part) is tuple:
            yield from part
        else:
            yield part


def _size(part: Entry | ExecutionRow | list[Operation]) -> int:
    if isinstance(part, StepResult):
        return _ENTRY_BYTES + len(part.payload)
    if isinstance(part, list):
        return 0
    return _ENTRY_BYTES + len(getattr(part, "payload", b"")) + len(getattr(part, "input", b""))


def _chunks(entries: list[Entry]) -> Iterable[list[Entry]]:
    """Entries in blocks of bounded size."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        weight = _size(entry)
        if chunk and size + weight > BLOCK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += weight
    if chunk:
        yield chunk
