"""One execution that is being run here: what both kinds of context, promises, timers and signals stand on.

It says where a step stands (`place`), what was recorded there (`look`), and takes what happens (`write`). It knows
nothing of functions, effects or waiting. One lives at a time for each execution: `LiveExecutions` hands them out. A
process that has the log open is its only owner, so an execution that is not in this register, and was opened under an
earlier ownership of the log, is proved to have no program running: that, and not its age, makes it an orphan.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, current_thread

import msgspec

from holdfast.errors import ExecutionCanceled, ExecutionHeld, ExecutionPaused, Full, Invalid, Unavailable
from holdfast.execution.journal.entries import ENDED, Ended, Entry, ExecutionRow, Opened, Status
from holdfast.execution.journal.execution_id import PATH_BYTES_MAX, ExecutionId, checked_name, joined, step_key
from holdfast.execution.journal.execution_store import ExecutionStore, LiveJournal
from holdfast.execution.journal.recorded import Block, Recorded, StepRecord
from holdfast.journal.commit.ticket import UnitTicket
from holdfast.signals import Signal


class LiveExecution:
    """One execution, open."""

    def __init__(
        self, store: ExecutionStore, journal: LiveJournal, recorded: Recorded, row: ExecutionRow, *, resumed: bool
    ) -> None:
        self.id: ExecutionId = row.execution
        self.kind = row.kind
        self.store = store
        self.clock = store.clock
        self.journal = journal
        self.recorded = recorded
        self.resumed = resumed
        """Whether it has a past: something was recorded that may be replayed."""
        self.opened: UnitTicket | None = None
        """Of the commit that opened it; await it before any effect."""
        self.arrived = Signal()
        """Notified when a promise is settled, a signal comes, or the execution is to end."""
        self.cancel_reason: str | None = None
        """Why the program is asked to stop, for good: it looks before every step."""
        self.pause_reason: str | None = None
        """Why it is asked to stop here; whoever opens the execution next goes on."""
        self.is_stopping = False
        """Whether there is such a reason."""
        self._occurrences: dict[tuple[str, str], int] = {}
        self._lock = Lock()
        self._steps = 0

    @property
    def row(self) -> ExecutionRow:
        """What is known of it now."""
        return self.store.rows[self.id]

    # -- steps ------------------------------------------------------------------------------------------------

    def place(self, name: str, parent: str = "", what: str = "step") -> str:
        """The path of the next step of this name in this scope; called in program order, before anything is awaited."""
        checked_name(name, what)
        with self._lock:
            number = self._occurrences[parent, name] = self._occurrences.get((parent, name), 0) + 1
            self._steps += 1
            steps = self._steps
        most = self.store.settings.steps_max
        if most and steps > most:
            raise Full(
                f"an execution has up to {most} steps execution={self.id}",
                hint="see executions.steps_max; go on in another execution",
            )
        path = joined(parent, name, number)
        if len(path) > PATH_BYTES_MAX:
            raise Invalid(f"the path of a step is up to {PATH_BYTES_MAX} bytes", hint="shorten names, or nest less")
        return path

    def key(self, path: str, effect: str, operation: bytes) -> bytes:
        """The fingerprint of what a step at this path is asked to do."""
        return step_key(self.id, path, effect, operation)

    def look(self, path: str) -> StepRecord | None:
        """What was recorded at a path, by this run or an earlier one."""
        return self.recorded.look(path)

    def write(self, *entries: Entry, acked: bool = True) -> UnitTicket:
        """Hand entries over, in order; the ticket tells when they are durable."""
        ticket = self.store.write(self.journal, *entries, acked=acked)
        for entry in entries:
            self.recorded.add(entry)
        return ticket

    # -- its end ----------------------------------------------------------------------------------------------

    def finish(self, status: Status, payload: bytes = b"", note: str = "") -> UnitTicket | None:
        """End it; the first end counts, a later one is None and changes nothing."""
        now = self.clock.now_us()
        with self.store.lock:
            row = self.row
            if row.status in ENDED:
                return None
            row = msgspec.structs.replace(row, status=status, updated_us=now, ended_us=now, note=note)
            return self.store.change_row(self.journal, row, Ended(status, payload, now))

    def cancel(self, reason: str) -> None:
        """Ask the program to stop before its next step; then the execution is canceled, and never goes on."""
        self.cancel_reason = reason
        self.is_stopping = True
        self.arrived.notify()

    def pause(self, reason: str) -> None:
        """Ask the program to stop before its next step; the execution can be opened again and goes on."""
        self.pause_reason = reason
        self.is_stopping = True
        self.arrived.notify()

    def check_stop(self) -> None:
        """Raise why the program is to stop, if it is."""
        if self.cancel_reason is not None:
            raise ExecutionCanceled(f"this execution was canceled: {self.cancel_reason} execution={self.id}")
        if self.pause_reason is not None:
            raise ExecutionPaused(f"this execution stops here: {self.pause_reason} execution={self.id}")


class LiveExecutions:
    """The executions that are open in this process."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store
        self._live: dict[ExecutionId, tuple[LiveExecution, str]] = {}
        self._opening: set[ExecutionId] = set()
        self._last: dict[ExecutionId, UnitTicket] = {}
        """What was on its way to the disk when an execution was released: whoever comes next must see it."""

    def get(self, execution: ExecutionId) -> LiveExecution | None:
        """The one that is being run here."""
        held = self._live.get(execution)
        return None if held is None else held[0]

    def all(self) -> list[LiveExecution]:
        """All that are being run here."""
        return [live for live, _ in self._live.copy().values()]

    def open(
        self, execution: ExecutionId, kind: str, *, prepare: Callable[[ExecutionRow], ExecutionRow] | None = None
    ) -> LiveExecution:
        """Begin an execution, or go on with it; what was recorded is proved first.

        One that completed, failed or was aborted is running again; one that was canceled never is. `prepare` may change
        the row of a new one before it is stored. Whoever opens it must `release` it.
        """
        holder = current_thread().name
        store = self.store
        with store.lock:
            self._claim(execution)
        try:
            blocks, journal = self._load(execution)
            now = store.clock.now_us()
            with store.lock:
                before = store.rows.get(execution)
                row = _opened(before, execution, kind, now, store.epoch)
                if before is None and prepare is not None:
                    row = prepare(row)
                live = LiveExecution(store, journal, Recorded(blocks), row, resumed=bool(blocks))
                live.opened = store.change_row(journal, row, Opened(store.epoch, now, row.generation))
                self._live[execution] = (live, holder)
        finally:
            with store.lock:
                self._opening.discard(execution)
        return live

    def is_quick(self, execution: ExecutionId) -> bool:
        """Whether it can be opened without waiting for the disk: nothing is stored of it."""
        return execution not in self.store.rows and execution not in self._last

    def release(self, live: LiveExecution) -> None:
        """Its program is no longer running here; it can write nothing more."""
        journal = live.journal
        with journal.lock:
            journal.is_released = True
        with self.store.lock:
            if self.get(live.id) is live:
                del self._live[live.id]
                if journal.last is not None and not journal.last.done:
                    self._last = {one: ticket for one, ticket in self._last.items() if not ticket.done}
                    self._last[live.id] = journal.last

    def _load(self, execution: ExecutionId) -> tuple[list[Block], LiveJournal]:
        """What is stored of an execution that nobody else can open now."""
        store = self.store
        last = self._last.pop(execution, None)
        if last is not None and not last.wait(store.settings.ack_timeout_ms / 1000):
            self._last[execution] = last
            raise Unavailable(
                f"the end of this execution's last run is still on its way to the disk execution={execution}",
                hint="try again; the disk may be stalled",
            )
        return store.load(execution) if execution in store.rows else ([], store.journal_of(execution))

    def is_orphan(self, row: ExecutionRow) -> bool:
        """Whether it says that it is running, and nobody can be running it."""
        return row.status == "running" and row.execution not in self._live and row.execution not in self._opening

    def _claim(self, execution: ExecutionId) -> None:
        held = self._live.get(execution)
        if held is not None or execution in self._opening:
            holder = held[1] if held is not None else "opening"
            raise ExecutionHeld(f"this execution is being run already execution={execution}", holder=f"thread:{holder}")
        row = self.store.rows.get(execution)
        if row is not None and row.status == "canceled":
            raise ExecutionCanceled(f"this execution was canceled execution={execution}")
        self._opening.add(execution)


def _opened(before: ExecutionRow | None, execution: ExecutionId, kind: str, now: int, epoch: int) -> ExecutionRow:
    if before is None:
        return ExecutionRow(execution.bytes, kind, "running", now, now, epoch=epoch)
    if before.kind != kind:
        raise Invalid(
            f"this execution is a {before.kind!r}, not a {kind!r} execution={execution}", hint="open it under its kind"
        )
    generation = before.generation + (before.status in ENDED)
    return msgspec.structs.replace(
        before, status="running", updated_us=now, ended_us=0, epoch=epoch, generation=generation, note=""
    )
