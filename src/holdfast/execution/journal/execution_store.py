"""Executions as a log stores them: a row each in the space `executions`, a journal each in a space of its own.

The journal of an execution is its blocks, one item each, numbered by their first entry. The space proves them: an item
that was edited, lost, added, swapped or rolled back, and a space that is missing or out of date, is found when the
execution is opened, before anything runs. Bodies are encrypted like everything in the log.

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
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from typing import TypeVar

from holdfast.caller import in_coroutine
from holdfast.clock import Clock
from holdfast.errors import Corrupt, ExecutionHeld, Full, Invalid, Unavailable
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.journal.commit_parts import (
    BLOCK_KEY,
    FOLDED_KEY,
    INDEX,
    PREFIX,
    Anew,
    BlockReplacement,
    Item,
    LiveJournal,
    Part,
    Parts,
    weight,
)
from holdfast.execution.journal.entries import Entry, ExecutionRow, Folded, StepResult, decode_block, decode_row
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.execution_record import Block
from holdfast.execution.journal.execution_rows import ExecutionRows
from holdfast.journal.journal import Journal, Operation, Unit
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.partition import Partition

__all__ = ["ExecutionStore", "LiveJournal"]


Done = TypeVar("Done")


class ExecutionStore:
    """The executions of one log."""

    def __init__(self, journal: Journal, partition: Partition | None, settings: ExecutionSettings) -> None:
        self._journal = journal
        self._partition = partition
        self.settings = settings
        self.clock: Clock = journal.clock
        self.trusted_time = journal.trusted_time
        """By which executions are old."""
        self.timeout = settings.ack_timeout_ms / 1000
        self._entry_bytes_max = settings.payload_bytes_max + 8 * 1024
        given = journal.settings
        self._commit_bytes_max = max(given.group_bytes_max + given.payload_bytes_max, given.batch_bytes_max)
        """More in one commit could not be read back from the topic."""
        self.rows = ExecutionRows(decode_row(body) for key, _, body in journal.spaces.load(INDEX) if len(key) == 16)
        self.lock = self.rows.lock
        """Guards decisions about rows: who checks a status and changes it holds it. Nobody waits while holding it."""
        self.make_room: Callable[[], None] = lambda: None
        """Called where a bound on all executions is reached; raises Full if nothing can be done about it."""
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
        return not self._journal.owned

    def forget(self) -> None:
        """In a forked child."""
        self.rows.lock = self.lock = RLock()

    # -- reading ----------------------------------------------------------------------------------------------

    def load(self, execution: ExecutionId) -> tuple[list[Block], LiveJournal]:
        """The blocks of an execution as they are committed, proved, each decoded when it is asked for.

        And where its next entry would go; but who wants to write `take`s it.
        """
        blocks: list[Block] = []
        end = size = folded_steps = 0
        for key, number, body in self.items(execution):
            block = partial(decode_block, body, execution, number)
            if key[:1] == FOLDED_KEY:
                folded_steps += sum(entry.steps for entry in block() if isinstance(entry, Folded))
            blocks.append(block)
            end, size = _extent(key, number)[1], size + len(body)
        return blocks, LiveJournal(execution, end, size, folded_steps)

    def items(self, execution: ExecutionId) -> list[Item]:
        """The blocks of an execution as they are stored, proved, in order and without a gap."""
        found = self._journal.spaces.load(PREFIX + str(execution))
        items = [item for item in found if item[0][:1] in (BLOCK_KEY, FOLDED_KEY)]
        behind = 0
        for key, number, body in items:
            first, end = _extent(key, number)
            if first != behind and not (behind == 0 and _begins_anew(decode_block(body, execution, number))):
                raise Corrupt(
                    f"an execution's journal has a gap execution={execution} entry={behind}",
                    hint="a part of it is lost: begin another execution, or put a copy of the log back",
                )
            behind = end
        return items

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
        if execution not in self.rows and self._is_at_a_bound():
            self.make_room()
        blocks, live = self.load(execution)
        with self.lock:
            self._writing[execution] = live
        return blocks, live

    def leaving(self, execution: ExecutionId) -> UnitTicket | None:
        """What has to be settled before this execution's journal can be loaded to write on; None if nothing.

        Its previous writer writes no more.
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
        *parts: Part,
        acked: bool = True,
        alone: bool = False,
        size: int = 0,
        timeout: float | None = None,
    ) -> UnitTicket:
        """Hand entries, a changed row, or operations that belong to them, over: all in one commit.

        Returns at once. `acked` says that a caller waits for it. `alone` begins a commit unit of its own. `size` are
        the bytes of the operations. Raises Full where there is no room, on an event loop without waiting for it, and
        Invalid for what is too large; nothing was handed over then.
        """
        if self.rows.bytes_total >= self.settings.journal_bytes_max and not _ends(parts):
            self._make_room_to_write()
        part: object = parts[0] if len(parts) == 1 else parts
        own = sum(map(self._checked_size, parts))
        if own > self._commit_bytes_max:
            raise Invalid(
                f"too much of an execution's journal for one commit bytes={own}",
                hint="see journal.batch_bytes_max; hand it over in several parts",
            )
        size += own
        return self._journal.spaces.gather(
            part,
            partial(self._made, live),
            append=(None, 0),
            size=size,
            scope=live.space,
            join=live.gathering,
            alone=alone,
            acked=acked,
            timeout=self.timeout if timeout is None else timeout,
        )

    def write_result(self, live: LiveJournal, result: StepResult) -> None:
        """What `write` does with one result that nobody waits for, and quicker: most steps end so."""
        size = weight(result)
        if size > self._entry_bytes_max or self.rows.bytes_total >= self.settings.journal_bytes_max:
            self.write(live, result, acked=False)
            return
        if live.make is None:
            live.make = partial(self._made, live)
        self._journal.spaces.put_part(
            result, live.make, None, 0, size, self.timeout, scope=live.space, join=live.gathering, acked=False
        )

    def drain(self) -> None:
        """Wait until all that was handed over is settled."""
        self._journal.drain(self.timeout)

    def change_row(
        self, live: LiveJournal, row: ExecutionRow, *parts: Part, anew: bool = False, size: int = 0
    ) -> UnitTicket:
        """Change an execution's row, with entries; others see it at once, and no longer if its commit fails.

        With `anew` these entries take the place of all before. Call with the lock held, through `with_room` or
        `when_room`: raises Full without waiting.
        """
        before = [Anew()] if anew else []
        wait = self.timeout if in_coroutine() else 0
        ticket = self.write(live, *before, *parts, row, alone=anew, size=size, timeout=wait)
        ticket = UnitTicket(ticket.unit, self.timeout)
        self.rows.change(row, ticket)
        return ticket

    def _checked_size(self, part: Part) -> int:
        size = weight(part)
        if isinstance(part, BlockReplacement | Folded):  # they are made here, of what was checked before
            return size
        if size > self._entry_bytes_max:
            raise Invalid(
                f"an entry of an execution's journal is too large bytes={size}",
                hint="see executions.payload_bytes_max; give large values by reference",
            )
        return size

    def _is_at_a_bound(self) -> bool:
        settings, rows = self.settings, self.rows
        return len(rows) >= settings.executions_max or rows.bytes_total >= settings.journal_bytes_max

    def _make_room_to_write(self) -> None:
        try:
            self.make_room()
        except Full as full:  # not for want of room in the queue: nobody should try again at once
            raise Unavailable(full.message, hint=full.hint) from None

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

    def _made(self, live: LiveJournal, unit: Unit) -> list[Operation]:
        """By the journal's writer: what the parts of a commit come to."""
        parts = Parts(self._journal, live)
        for part in unit.parts:
            parts.add(part)
        made = parts.operations(self._partition, self.clock.now_us())
        self.rows.resize(live.execution, live.size)
        if parts.row is not None and live.row is not None:
            self.rows.complete(parts.row, live.row)
        return made


def _extent(key: bytes, number: int) -> tuple[int, int]:
    """The number of the first entry that a block stands for, and the one behind the last."""
    covers = int.from_bytes(key[9:13], "big")
    if key[:1] == FOLDED_KEY:  # it has the number of the last one
        return number + 1 - covers, number + 1
    return number, number + covers


def _begins_anew(entries: Sequence[Entry]) -> bool:
    """Whether a block stands for everything before it: a past that was written anew."""
    return bool(entries) and isinstance(entries[0], Folded) and entries[0].upto == entries[0].count


def _ends(parts: tuple[Part, ...]) -> bool:
    """Whether a row is among them: an execution can always be ended."""
    return any(isinstance(part, ExecutionRow) for part in parts)


def _left(execution: ExecutionId) -> ExecutionHeld:
    return ExecutionHeld(f"this execution was abandoned by its writer execution={execution}", holder="nobody")
