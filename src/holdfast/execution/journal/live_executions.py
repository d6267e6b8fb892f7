"""The executions that are open in this process. One lives at a time for each execution.

One that is not in this register, and was opened under an earlier ownership of the log, has no program: it is an orphan.
"""

from __future__ import annotations

from asyncio import current_task
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Condition, current_thread

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, ExecutionCanceled, ExecutionHeld, Invalid, NotFound, Unavailable
from holdfast.execution.journal.commit_parts import LiveJournal
from holdfast.execution.journal.entries import ENDED, ExecutionRow, Opened
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.execution_record import Block, ExecutionRecord
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.signals import Signal

Prepare = Callable[[ExecutionRow], ExecutionRow]
"""Changes the row of a new execution before it is stored."""


class LiveExecutions:
    """The executions that are open in this process; the store's lock guards which they are, and whether it is over."""

    def __init__(self, store: ExecutionStore) -> None:
        self.store = store
        self._live: dict[ExecutionId, tuple[LiveExecution, str]] = {}
        self._opening: dict[ExecutionId, str] = {}
        """Who is about to open which, or changes it by hand."""
        self.closed: Closed | None = None
        """Why none is opened any more."""
        self._visited: set[ExecutionId] = set()
        """They are not running, and something from outside is being brought to them: opening one waits for that."""
        self._is_free = Condition(store.lock)
        self.changed = Signal()
        """Notified when an execution has ended, or is let go."""

    def get(self, execution: ExecutionId) -> LiveExecution | None:
        """The one that is being run here."""
        held = self._live.get(execution)
        return held and held[0]

    def all(self) -> list[LiveExecution]:
        """All that are being run here."""
        with self.store.lock:
            return [live for live, _ in self._live.values()]

    def open(
        self, execution: ExecutionId, kind: str, *, prepare: Prepare | None = None, is_work: bool = False
    ) -> LiveExecution:
        """Begin an execution, or go on with it; what was recorded is proved first.

        One that completed, failed or was aborted is running again; one that was canceled never is. `prepare` may change
        the row of a new one before it is stored. `is_work` refuses one that has ended meanwhile, and has nothing left
        to do. Its opener must `release` it. May wait for the disk.
        """
        with self._claimed(execution, kind):
            begin = partial(self._begin, kind, prepare, is_work, *self.store.take(execution))
            return self.store.with_room(begin)

    async def open_async(self, execution: ExecutionId, kind: str) -> LiveExecution:
        """What `open` does, for coroutines: what it has to wait for is awaited."""
        store = self.store
        with self._claimed(execution, kind):
            while (before := store.leaving(execution)) is not None and await before.wait_async(store.timeout):
                pass
            begin = partial(self._begin, kind, None, False, *store.take(execution))
            return await store.when_room(begin)

    @contextmanager
    def hold(self, execution: ExecutionId) -> Iterator[tuple[list[Block], LiveJournal]]:
        """Keep others away from an execution that nobody runs, to change it by hand; what was recorded is proved."""
        with self._claimed(execution, None):
            blocks, journal = self.store.take(execution)
            try:
                yield blocks, journal
            finally:
                self.store.leave(journal)

    @contextmanager
    def visit(self, execution: ExecutionId) -> Iterator[LiveExecution]:
        """An execution that is brought something from outside, whether it is being run here or not.

        If it is not, a program that wants to open it waits meanwhile: wait for what you write before you leave. If it
        is, it may be let go meanwhile. Raises NotFound, and Unavailable if others are at it for long.
        """
        store = self.store
        with once(store.lock):
            if not self._is_free.wait_for(lambda: self._is_settled(execution), store.timeout):
                raise Unavailable(f"this execution is busy execution={execution}", hint="try again")
            if execution not in store.rows:
                raise NotFound(f"there is no such execution execution={execution}", hint="it may have been pruned")
            live = self.get(execution)
            if live is None:
                self._visited.add(execution)
        if live:
            yield live
            return
        try:
            blocks, journal = store.take(execution)
            try:
                row = store.rows[execution]
                yield LiveExecution(store, journal, _recorded(blocks, row), row, resumed=True)
            finally:
                store.leave(journal)
        finally:
            with store.lock:
                self._visited.discard(execution)
                self._is_free.notify_all()
            self.changed.notify()

    def _is_settled(self, execution: ExecutionId) -> bool:
        return execution not in self._opening and execution not in self._visited

    def is_held(self, execution: ExecutionId) -> bool:
        """Whether it is being run, opened, or changed by hand in this process."""
        with self.store.lock:  # one that is opened leaves the one dictionary for the other
            return execution in self._live or execution in self._opening or execution in self._visited

    def release(self, live: LiveExecution) -> None:
        """Its program is no longer running here; what it still writes is refused."""
        with self.store.lock:
            if self.get(live.id) is live:
                del self._live[live.id]
        self.store.leave(live.journal)
        self.changed.notify()

    def is_orphan(self, row: ExecutionRow) -> bool:
        """Whether it says that it is running, and nobody can be running it."""
        return row.status == "running" and not self.is_held(row.execution)

    def close(self) -> None:
        """Open none any more, and ask those that run to leave off."""
        with self.store.lock:  # an opener is among them, or is refused
            self.closed, running = Closed("the log is being closed"), self.all()
        for live in running:
            live.suspend(self.closed.message)

    @contextmanager
    def _claimed(self, execution: ExecutionId, kind: str | None) -> Iterator[None]:
        """Be the only one who opens an execution of this kind, or (None) changes it by hand."""
        with once(self.store.lock):  # the writer takes it, too
            self._is_free.wait_for(lambda: execution not in self._visited, self.store.timeout)
            if self.is_held(execution):
                held = self._live.get(execution)
                raise ExecutionHeld(
                    f"this execution is being run already execution={execution}",
                    holder=held[1] if held is not None else self._opening.get(execution, "a message from outside"),
                )
            if kind is not None:
                self._check(self.store.rows.get(execution), execution, kind)
            self._opening[execution] = _holder()
        try:
            yield
        finally:
            with self.store.lock:
                self._opening.pop(execution, None)
                self._is_free.notify_all()
            self.changed.notify()

    def _begin(
        self, kind: str, prepare: Prepare | None, is_work: bool, blocks: list[Block], journal: LiveJournal
    ) -> LiveExecution:
        store, execution = self.store, journal.execution
        now = store.clock.now_us()
        with store.lock:
            before = store.rows.get(execution)
            self._check(before, execution, kind)  # again: it may have been canceled while its journal was loaded
            if is_work and (before is None or before.status in ENDED):
                raise ExecutionHeld(f"this execution has no work left execution={execution}", holder="nobody")
            row = _opened(before, execution, kind, now, store.epoch)
            if before is None and prepare is not None:
                row = prepare(row)
            live = LiveExecution(store, journal, _recorded(blocks, row), row, resumed=bool(blocks))
            live.opened = store.change_row(journal, row, Opened(store.epoch, now, row.generation))
            self._live[execution] = (live, self._opening[execution])
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


def _recorded(blocks: list[Block], row: ExecutionRow) -> ExecutionRecord:
    recorded = ExecutionRecord(blocks)
    if row.parent:  # where a fork's past ends, and with it whose keys its paths have, stands behind that past
        recorded.all()
    return recorded


def _opened(before: ExecutionRow | None, execution: ExecutionId, kind: str, now: int, epoch: int) -> ExecutionRow:
    if before is None:
        return ExecutionRow(execution.bytes, kind, "running", now, now, epoch=epoch, attempts=1)
    generation = before.generation + (before.status in ENDED)
    return msgspec.structs.replace(
        before,
        status="running",
        updated_us=now,
        ended_us=0,
        epoch=epoch,
        generation=generation,
        note="",
        attempts=before.attempts + 1,
    )


def _holder() -> str:
    """The opener of an execution, for a second one."""
    loop = _get_running_loop()
    task = None if loop is None else current_task(loop)
    name = f"thread:{current_thread().name}"
    return name if task is None else f"{name} task:{task.get_name()}"
