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
fail with the same cause, until it is opened again: nobody goes on behind a hole. One journal is written by one
`LiveJournal` at a time; the next one is made when all that the one before handed over is settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import RLock
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.caller import in_coroutine
from holdfast.clock import Clock
from holdfast.errors import ExecutionHeld, Full, Invalid, Unavailable
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
from holdfast.execution.journal.execution_rows import ExecutionRows
from holdfast.execution.journal.recorded import Block
from holdfast.journal.commit.ticket import UnitTicket
from holdfast.journal.journal import Gathering, Journal, Operation, Unit
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
_ROW_GROWTH = 2**20
"""A row is written again when its journal has grown by so many bytes, so that a crash forgets little of its size."""
BLOCK_KEY, FOLDED_KEY = b"b", b"f"
_BLOCKS = (BLOCK_KEY, FOLDED_KEY)

Done = TypeVar("Done")


class Written(NamedTuple):
    """One record for the topic."""

    kind: bytes
    payload: bytes


class LiveJournal:
    """The journal of one execution, as whoever writes it sees it: where the next entry goes."""

    def __init__(self, execution: ExecutionId, next_entry: int = 0, size: int = 0) -> None:
        self.execution = execution
        self.space = PREFIX + str(execution)
        self.gathering = Gathering()
        """What was handed over last: the next part may go with it."""
        self.next_entry = next_entry
        """From here on by the journal's writer alone, which makes block after block; wrong once a commit failed."""
        self.size = size
        self.row: ExecutionRow | None = None
        """The row that was written last."""


class ExecutionStore:
    """The executions of one log."""

    def __init__(self, journal: Journal, partition: Partition | None, settings: ExecutionSettings) -> None:
        self._journal = journal
        self._partition = partition
        self.settings = settings
        self.clock: Clock = journal.clock
        self.timeout = settings.ack_timeout_ms / 1000
        self.rows = ExecutionRows(decode_row(body) for _, _, body in journal.spaces.load(INDEX))
        self.lock = self.rows.lock
        """Guards decisions about rows: who checks a status and changes it holds it. Nobody waits while holding it."""
        self._writing: dict[ExecutionId, LiveJournal] = {}
        """Who writes which journal …"""
        self._left: deque[tuple[UnitTicket | None, LiveJournal]] = deque()
        """… and those of them that were left, until what they handed over is settled."""

    @property
    def epoch(self) -> int:
        """The present ownership of the log."""
        return self._journal.epoch

    @property
    def is_read_only(self) -> bool:
        """Whether another process may own the log."""
        return self._journal.read_only

    def removal(self, execution: ExecutionId) -> list[Operation]:
        """The operations that remove all blocks that are durable now: others take their place in the same commit."""
        name = PREFIX + str(execution)
        keys = [key for key, _, _ in self._journal.spaces.load(name)]
        return self._journal.spaces.operations(name, [], keys)[0]

    def forget(self) -> None:
        """In a forked child."""
        self.rows.lock = self.lock = RLock()

    # -- reading ----------------------------------------------------------------------------------------------

    def load(self, execution: ExecutionId) -> tuple[list[Block], LiveJournal]:
        """The blocks of an execution as they are committed, proved, each decoded when it is asked for.

        And where its next entry would go; but who wants to write `take`s it.
        """
        found = [item for item in self._journal.spaces.load(PREFIX + str(execution)) if item[0][:1] in _BLOCKS]
        blocks: list[Block] = []
        for at, (_, first, body) in enumerate(found):
            behind = found[at + 1] if at + 1 < len(found) else None
            # A folded block has the number of the last entry that it stands for: there is a gap before it.
            checked = None if behind is None or behind[0][:1] == FOLDED_KEY else behind[1]
            blocks.append(partial(decode_block, body, execution, first, checked))
        end = found[-1][1] + len(blocks[-1]()) if found else 0
        return blocks, LiveJournal(execution, end, sum(len(body) for _, _, body in found))

    def take(self, execution: ExecutionId) -> tuple[list[Block], LiveJournal]:
        """The same, for the only one who writes it from now on; waits until all before is settled.

        A coroutine awaits `leaving` first.
        """
        before = self.leaving(execution)
        while before is not None and before.wait(self.timeout):
            before = self.leaving(execution)
        if before is not None:
            raise Unavailable(
                f"what was written of this execution is not settled within {self.timeout:g} s execution={execution}",
                hint="the disk may be stalled; try again",
            )
        blocks, live = self.load(execution)
        with self.lock:
            self._writing[execution] = live
        return blocks, live

    def leaving(self, execution: ExecutionId) -> UnitTicket | None:
        """What has to be settled before this execution's journal can be loaded to write on; None if nothing.

        Whoever wrote it before writes no more.
        """
        with self.lock:
            live = self._writing.get(execution)
            ended = None if live is None else self._journal.spaces.end_gathering(live.gathering, _left(execution))
            if ended is not None and not ended.done:
                return ended
            return self.rows.settled(execution)  # it may be about to be pruned

    def leave(self, live: LiveJournal) -> None:
        """Its program is no longer running here: whatever still comes from it is refused."""
        ticket = self._journal.spaces.end_gathering(live.gathering, _left(live.execution))
        with self.lock:
            self._left.append((ticket, live))
            while self._left and ((first := self._left[0][0]) is None or first.done):
                _, gone = self._left.popleft()
                if self._writing.get(gone.execution) is gone:
                    del self._writing[gone.execution]

    # -- writing ----------------------------------------------------------------------------------------------

    def write(
        self,
        live: LiveJournal,
        *parts: Entry | ExecutionRow | list[Operation],
        acked: bool = True,
        alone: bool = False,
        size: int = 0,
        timeout: float | None = None,
    ) -> UnitTicket:
        """Hand entries, a changed row, or operations that belong to them, over: all in one commit.

        Returns at once. `acked` says that somebody waits for it. `alone` begins a commit unit of its own. `size` are
        the bytes of the operations. Raises Full where there is no room, on an event loop without waiting for it, and
        Invalid for what is too large; nothing was handed over then.
        """
        part: object = parts[0] if len(parts) == 1 else parts
        for one in parts:
            size += self._checked_size(one)
        return self._journal.spaces.gather(
            part, partial(self._made, live), append=(None, 0), size=size, scope=live.space, join=live.gathering,
            alone=alone, acked=acked, timeout=self.timeout if timeout is None else timeout,
        )  # fmt: skip

    def change_row(
        self, live: LiveJournal, row: ExecutionRow, *entries: Entry, operations: list[Operation] | None = None
    ) -> UnitTicket:
        """Change an execution's row, with entries; others see it at once, and no longer if its commit fails.

        Call with the lock held, through `with_room` or `when_room`: raises Full without waiting.
        """
        more = [] if operations is None else [operations]
        ticket = self.write(live, *entries, row, *more, timeout=self.timeout if in_coroutine() else 0)
        ticket = UnitTicket(ticket.unit, self.timeout)
        self.rows.change(row, ticket)
        return ticket

    def _checked_size(self, part: Entry | ExecutionRow | list[Operation]) -> int:
        size = weight(part)
        if size > self.settings.payload_bytes_max + 8 * 1024:
            raise Invalid(
                f"an entry of an execution's journal is too large bytes={size}",
                hint="see executions.payload_bytes_max; give large values by reference",
            )
        return size

    def with_room(self, act: Callable[[], Done]) -> Done:
        """Do what raises Full without waiting as soon as there is room. Call without the lock.

        A coroutine is refused at once: it uses `when_room`.
        """
        deadline = self.clock.monotonic() + self.timeout
        while True:
            try:
                return act()
            except Full:
                left = deadline - self.clock.monotonic()
                if in_coroutine() or left <= 0:
                    raise
                self._journal.wait_for_room(self.settings.payload_bytes_max, left)

    async def when_room(self, act: Callable[[], Done]) -> Done:
        """What `with_room` does, for coroutines."""
        return await self._journal.when_room(lambda _: act(), self.timeout)

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
            items.append((BLOCK_KEY + first.to_bytes(8, "big"), first, body))
            written.append(Written(b"entries", body))
            live.next_entry += len(chunk)
            live.size += len(body)
        changes: list[tuple[str, Item]] = [(live.space, item) for item in items]
        if row is None and live.row is not None and live.size - live.row.size > _ROW_GROWTH:
            row = live.row
        if row is not None:
            live.row = row = msgspec.structs.replace(row, entries=live.next_entry, size=live.size)
            body = encode_row(row)
            written.append(Written(b"status", body))
            changes.append((INDEX, (row.id, row.created_us, body)))
        self.rows.sizes[live.execution] = live.size
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


def weight(part: Entry | ExecutionRow | list[Operation]) -> int:
    """The bytes of a part, about; never much too few."""
    if isinstance(part, list):
        return 0
    size = _ENTRY_BYTES + len(getattr(part, "path", ""))
    if isinstance(part, StepResult):
        return size + len(part.payload) + len(part.reference)
    return size + sum(len(getattr(part, name, b"")) for name in ("payload", "input", "error", "note", "detail"))


def _left(execution: ExecutionId) -> ExecutionHeld:
    return ExecutionHeld(f"this execution was given up by whoever writes here execution={execution}", holder="nobody")


def _comes_last(operation: Operation) -> bool:
    """Changes of spaces come before records: such a unit needs no savepoint."""
    return not isinstance(operation, ChangeSpace)


def _flat(parts: Iterable[object]) -> Iterable[object]:
    for part in parts:
        if type(part) is tuple:
            yield from part
        else:
            yield part


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
