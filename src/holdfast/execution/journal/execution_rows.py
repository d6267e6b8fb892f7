"""The rows of all executions in memory: as they were handed over, and as they were before if a commit failed.

A changed row counts for everybody in this process at once, so that two who decide about one execution see each other's
decision. If its commit fails, the row falls back to what it was before. A caller that acts on a row towards the outside
waits for `settled` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import RLock
from typing import NamedTuple

from holdfast.caller import refuse_inside
from holdfast.execution.journal.entries import ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.journal.queue.ticket import UnitTicket


class _Change(NamedTuple):
    """A row that is on its way, or (None) one that is to be removed."""

    ticket: UnitTicket
    execution: ExecutionId
    before: ExecutionRow | None


class ExecutionRows(dict[ExecutionId, ExecutionRow]):
    """All rows, by their ids; changed through `change` and `remove`. Iterate over a copy."""

    def __init__(self, rows: Iterable[ExecutionRow]) -> None:
        super().__init__((row.execution, row) for row in rows)
        self.lock = RLock()
        self.sizes = {execution: row.size for execution, row in self.items()}
        """Bytes of each execution's journal."""
        self._grown = sum(self.sizes.values())
        """By the journal's writer alone …"""
        self._shrunk = 0
        """… and with the lock held: so neither loses what the other counts."""
        self._changes: deque[_Change] = deque()
        """In the order in which they were handed over, which is that in which they are committed."""
        self._completed: deque[tuple[ExecutionRow, ExecutionRow]] = deque()
        """What the writer has made of rows: the thread that settles them puts them in place."""

    def __getitem__(self, execution: ExecutionId) -> ExecutionRow:
        if self._changes:
            self._settle()
        return super().__getitem__(execution)

    def get(self, execution: ExecutionId) -> ExecutionRow | None:  # type: ignore[override]  # nobody gives a default
        """A row, or None."""
        if self._changes:
            self._settle()
        return super().get(execution)

    def __contains__(self, execution: object) -> bool:
        if self._changes:
            self._settle()
        return super().__contains__(execution)

    def copy(self) -> dict[ExecutionId, ExecutionRow]:
        """All rows at this moment."""
        self._settle()
        return super().copy()

    @property
    def bytes_total(self) -> int:
        """Bytes of the journals of all of them together."""
        return self._grown - self._shrunk

    def resize(self, execution: ExecutionId, size: int) -> None:
        """By the journal's writer: an execution's journal has so many bytes."""
        self._grown += size - self.sizes.get(execution, 0)
        self.sizes[execution] = size

    def change(self, row: ExecutionRow, ticket: UnitTicket) -> None:
        """This row was handed over. Call with the lock held."""
        execution = row.execution
        self._changes.append(_Change(ticket, execution, self.get(execution)))
        self[execution] = row

    def complete(self, handed_over: ExecutionRow, written: ExecutionRow) -> None:
        """By the journal's writer: this row is written so, with the extent of its journal.

        Hazard: not with the lock. Who has it may be interrupted by a signal handler that waits for the writer.
        """
        self._completed.append((handed_over, written))

    def remove(self, executions: Iterable[ExecutionId], ticket: UnitTicket) -> None:
        """The removal of these was handed over. Call with the lock held."""
        for execution in executions:
            self._changes.append(_Change(ticket, execution, self.pop(execution, None)))
            self._shrunk += self.sizes.pop(execution, 0)

    def settled(self, execution: ExecutionId) -> UnitTicket | None:
        """The ticket of a change of this row that may still fail; None if what is seen is durable."""
        with self.lock:
            self._settle()
            return next((one.ticket for one in reversed(self._changes) if one.execution == execution), None)

    def _settle(self) -> None:
        refuse_inside()
        with self.lock:
            changes = self._changes
            while changes and changes[0].ticket.done:
                self._put_completed()  # first: where nothing is on its way, rows are looked at without this
                change = changes.popleft()
                if not change.ticket.is_stored:
                    self._fall_back(change)

    def _put_completed(self) -> None:
        while self._completed:
            handed_over, written = self._completed.popleft()
            if super().get(written.execution) is handed_over:
                self[written.execution] = written

    def _fall_back(self, failed: _Change) -> None:
        """What was handed over behind it in the same scope fails, too: those changes are not looked at any more."""
        if failed.before is None:
            self.pop(failed.execution, None)
            self._shrunk += self.sizes.pop(failed.execution, 0)
        else:
            self[failed.execution] = failed.before
            if failed.execution not in self.sizes:
                self.sizes[failed.execution] = failed.before.size
                self._shrunk -= failed.before.size
        kept = [change for change in self._changes if change.execution != failed.execution]
        self._changes.clear()
        self._changes.extend(kept)
