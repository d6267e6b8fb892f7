"""One execution that is being run here: what both kinds of context, promises, timers and signals stand on.

It says where a step stands (`place`), what was recorded there (`look`), and takes what happens (`write`). It knows
nothing of functions, effects or waiting. One lives at a time for each execution: `LiveExecutions` hands them out. A
process that has the log open is its only owner, so an execution that is not in this register, and was opened under an
earlier ownership of the log, is proved to have no program running: that, and not its age, makes it an orphan.
"""

from __future__ import annotations

from asyncio import current_task
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock, current_thread

import msgspec

from holdfast.errors import Closed, ExecutionCanceled, ExecutionHeld, Full, Invalid
from holdfast.execution.journal.entries import ENDED, Ended, Entry, ExecutionRow, Opened, Status
from holdfast.execution.journal.execution_id import PATH_BYTES_MAX, ExecutionId, checked_name, joined, step_key
from holdfast.execution.journal.execution_store import ExecutionStore, LiveJournal
from holdfast.execution.journal.recorded import Block, Recorded, StepRecord
from holdfast.journal.commit.ticket import UnitTicket
from holdfast.signals import Signal

NOTE_CHARS_MAX = 500

Prepare = Callable[[ExecutionRow], ExecutionRow]
"""Changes the row of a new execution before it is stored."""


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
        """Why the program is asked to stop: it looks before every step."""
        self.stopped: Closed | None = None
        """Why the program is asked to stop for now."""
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
        """End it; the first end counts, a later one is None and changes nothing.

        Where there is no room, a thread waits for it; a coroutine gets Full: it uses `store.when_room`.
        """
        return self.store.with_room(lambda: self._finish(status, payload, note))

    def _finish(self, status: Status, payload: bytes, note: str) -> UnitTicket | None:
        now = self.clock.now_us()
        with self.store.lock:
            row = self.row
            if row.status in ENDED:
                return None
            row = msgspec.structs.replace(row, status=status, updated_us=now, ended_us=now, note=note[:NOTE_CHARS_MAX])
            return self.store.change_row(self.journal, row, Ended(status, payload, now))

    def cancel(self, reason: str) -> None:
        """Ask the program to stop before its next step, for good."""
        self.cancel_reason = reason
        self.arrived.notify()

    def stop(self, reason: Closed) -> None:
        """Ask the program to stop before its next step; it can be gone on with later."""
        self.stopped = reason
        self.arrived.notify()

    def check_running(self) -> None:
        """Raise if the program was asked to stop: canceled, or the log is being closed."""
        if self.cancel_reason is not None:
            raise ExecutionCanceled(f"this execution was canceled: {self.cancel_reason} execution={self.id}")
        if self.stopped is not None:
            raise self.stopped.again()


class LiveExecutions:
    """The executions that are open in this process."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store
        self._live: dict[ExecutionId, tuple[LiveExecution, str]] = {}
        self._opening: dict[ExecutionId, str] = {}
        """Who is about to open which."""
        self.closed: Closed | None = None
        """Why none is opened any more."""

    def get(self, execution: ExecutionId) -> LiveExecution | None:
        """The one that is being run here."""
        held = self._live.get(execution)
        return None if held is None else held[0]

    def all(self) -> list[LiveExecution]:
        """All that are being run here."""
        return [live for live, _ in self._live.copy().values()]

    def open(self, execution: ExecutionId, kind: str, *, prepare: Prepare | None = None) -> LiveExecution:
        """Begin an execution, or go on with it; what was recorded is proved first.

        One that completed, failed or was aborted is running again; one that was canceled never is. `prepare` may change
        the row of a new one before it is stored. Whoever opens it must `release` it. May wait for the disk.
        """
        with self.claimed(execution, kind) as holder:
            blocks, journal = self.store.load(execution)
            begin = partial(self._begin, execution, kind, prepare, holder, blocks, journal)
            return self.store.with_room(begin)

    async def open_async(self, execution: ExecutionId, kind: str, *, prepare: Prepare | None = None) -> LiveExecution:
        """What `open` does, for coroutines: what it has to wait for is awaited."""
        store = self.store
        with self.claimed(execution, kind) as holder:
            while (before := store.leaving(execution)) is not None and await before.wait_async(store.timeout):
                pass
            blocks, journal = store.load(execution)
            begin = partial(self._begin, execution, kind, prepare, holder, blocks, journal)
            return await store.when_room(begin)

    @contextmanager
    def claimed(self, execution: ExecutionId, kind: str | None = None) -> Iterator[str]:
        """Keep an execution from everybody else for a moment; gives the name of the holder.

        Raises ExecutionHeld if it is being run, or claimed; with a kind, what speaks against opening it.
        """
        holder = _holder()
        with self.store.lock:
            held = self._live.get(execution)
            if held is not None or execution in self._opening:
                raise ExecutionHeld(
                    f"this execution is being run already execution={execution}",
                    holder=held[1] if held is not None else self._opening[execution],
                )
            if kind is not None:
                self._check(self.store.rows.get(execution), execution, kind)
            self._opening[execution] = holder
        try:
            yield holder
        finally:
            with self.store.lock:
                del self._opening[execution]

    def release(self, live: LiveExecution) -> None:
        """Its program is no longer running here; what it still writes is refused."""
        with self.store.lock:
            if self.get(live.id) is live:
                del self._live[live.id]
        self.store.leave(live.journal)

    def is_orphan(self, row: ExecutionRow) -> bool:
        """Whether it says that it is running, and nobody can be running it."""
        with self.store.lock:  # one that is opened leaves the one dictionary for the other
            return row.status == "running" and row.execution not in self._live and row.execution not in self._opening

    def close(self, reason: Closed) -> None:
        """Open none any more, and ask those that run to stop."""
        self.closed = reason
        for live in self.all():
            live.stop(reason)

    def _begin(
        self,
        execution: ExecutionId,
        kind: str,
        prepare: Prepare | None,
        holder: str,
        blocks: list[Block],
        journal: LiveJournal,
    ) -> LiveExecution:
        store = self.store
        now = store.clock.now_us()
        with store.lock:
            before = store.rows.get(execution)
            self._check(before, execution, kind)  # again: it may have been canceled while its journal was loaded
            row = _opened(before, execution, kind, now, store.epoch)
            if before is None and prepare is not None:
                row = prepare(row)
            live = LiveExecution(store, journal, Recorded(blocks), row, resumed=bool(blocks))
            live.opened = store.change_row(journal, row, Opened(store.epoch, now, row.generation))
            self._live[execution] = (live, holder)
        return live

    def _check(self, row: ExecutionRow | None, execution: ExecutionId, kind: str) -> None:
        """Raise what speaks against opening an execution."""
        if self.closed is not None:
            raise self.closed.again()
        if row is None:
            return
        if row.status == "canceled":
            raise ExecutionCanceled(f"this execution was canceled execution={execution}")
        if row.kind != kind:
            raise Invalid(
                f"this execution is a {row.kind!r}, not a {kind!r} execution={execution}", hint="open it under its kind"
            )


def _opened(before: ExecutionRow | None, execution: ExecutionId, kind: str, now: int, epoch: int) -> ExecutionRow:
    if before is None:
        return ExecutionRow(execution.bytes, kind, "running", now, now, epoch=epoch)
    generation = before.generation + (before.status in ENDED)
    return msgspec.structs.replace(
        before, status="running", updated_us=now, ended_us=0, epoch=epoch, generation=generation, note=""
    )


def _holder() -> str:
    """Who opens an execution, for whoever comes second."""
    loop = _get_running_loop()
    task = None if loop is None else current_task(loop)
    name = f"thread:{current_thread().name}"
    return name if task is None else f"{name} task:{task.get_name()}"
