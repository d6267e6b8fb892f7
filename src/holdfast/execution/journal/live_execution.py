"""One execution that is being run here: what both kinds of context, promises, timers and signals stand on.

It says where a step stands (`place`), what was recorded there (`look`), and takes what happens (`write`). It knows
nothing of functions, effects or waiting. `LiveExecutions` hands them out.
"""

from __future__ import annotations

import logging
from _thread import RLock
from threading import Thread

import msgspec

from holdfast.caller import in_coroutine, once
from holdfast.errors import Closed, ExecutionCanceled, ExecutionHeld, Full, HoldfastError, Invalid
from holdfast.execution.journal.commit_parts import LiveJournal, Part
from holdfast.execution.journal.entries import (
    ENDED,
    Administered,
    Ended,
    Entry,
    ExecutionRow,
    PromiseResolved,
    SignalSent,
    Status,
    StepResult,
)
from holdfast.execution.journal.execution_id import PATH_BYTES_MAX, ExecutionId, checked_name, joined, step_key
from holdfast.execution.journal.execution_record import ExecutionRecord, StepRecord
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.folding import fold
from holdfast.execution.journal.journal_loss import LOSSES, ForgivingTicket, JournalLoss
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.signals import Signal

NOTE_CHARS_MAX = 500

_FROM_OUTSIDE = (PromiseResolved, SignalSent, Administered)
"""What others hand over: they get an error if it was not stored, whatever the program chose."""

logger = logging.getLogger("holdfast.executions")


class Suspension(BaseException):
    """The program is to leave off here, and is gone on with later. No error: programs that catch those must not see it.

    Raised before a step, when the log is being closed or a worker drains. The execution stays as it is.
    """


class LiveExecution:
    """One execution, open. Its program may have several threads: `_lock` guards places, `pending` and the folding."""

    def __init__(
        self,
        store: ExecutionStore,
        journal: LiveJournal,
        recorded: ExecutionRecord,
        row: ExecutionRow,
        *,
        resumed: bool,
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
        self.is_suspended = False
        """Whether it is to leave off, to be gone on with, rather than to end."""
        self.has_left_off = False
        """Whether its program knows: whatever it does then, it did not come to its end."""
        self.ending: UnitTicket | None = None
        """Of the commit that ended it."""
        self.loss: JournalLoss | None = None
        """Where the program goes on without a journal (`continue_undurable`): whether it has to."""
        self.pending: list[Entry] = []
        """Entries that found no room, and that nobody waits for."""
        self.exchange = RLock()
        """Held by a thread that brings something from outside, or takes it: each thing counts once."""
        self.brought: dict[bytes, UnitTicket] = {}
        """Promises and signals that came from outside in this run and are not known to be durable."""
        self._occurrences: dict[tuple[str, str], int] = {}
        self._lock = RLock()
        self._steps = 0
        self._folding: Thread | None = None
        self._fold_again = 0
        """At which step to fold once more."""

    @property
    def row(self) -> ExecutionRow:
        """What is known of it now."""
        return self.store.rows[self.id]

    # -- steps ------------------------------------------------------------------------------------------------

    def place(self, name: str, parent: str = "", what: str = "step") -> str:
        """The path of the next step of this name in this scope; called in program order, before anything is awaited."""
        checked_name(name, what)
        with once(self._lock):
            number = self._occurrences[parent, name] = self._occurrences.get((parent, name), 0) + 1
            self._steps += 1
            steps = self._steps
        most = self.store.settings.steps_max
        if most and 10 * (steps - self.journal.folded_steps) >= 9 * most:
            self._fold_soon(steps, most)
        path = joined(parent, name, number)
        if len(path) > PATH_BYTES_MAX:
            raise Invalid(f"the path of a step is up to {PATH_BYTES_MAX} bytes", hint="shorten names, or nest less")
        return path

    def _fold_soon(self, steps: int, most: int) -> None:
        """Near the limit: have what is finished folded, and wait for it at the limit (coroutines go on), or refuse."""
        with once(self._lock):
            begin = self._folding is None or (not self._folding.is_alive() and steps >= self._fold_again)
            if begin:
                self._fold_again = steps + most // 10
                self._folding = Thread(target=self._fold, name="holdfast-fold", daemon=True)
                self._folding.start()
            folding = self._folding
        if steps - self.journal.folded_steps <= most:
            return
        if folding is not None and not in_coroutine():
            folding.join(self.store.timeout)
        is_busy = folding is not None and folding.is_alive()
        if steps - self.journal.folded_steps > most and not is_busy:
            raise Full(
                f"an execution has up to {most} steps that are not folded execution={self.id}",
                hint="see executions.steps_max; continue in another execution",
            )

    def _fold(self) -> None:
        try:
            self.store.drain()
            fold(self.store, self.journal)
        except (Closed, ExecutionHeld):  # it is over before it was folded
            pass
        except HoldfastError as error:
            logger.warning(
                "a long execution could not be folded execution=%s: %s",
                self.id,
                error.message,
                extra={"action": "execution_fold_failed", "execution": str(self.id)},
            )

    def key(self, path: str, effect: str, operation: bytes) -> bytes:
        """The fingerprint of what a step at this path is asked to do."""
        origin = self.recorded.origins.get(path)
        return step_key(self.id if origin is None else ExecutionId(bytes=origin), path, effect, operation)

    def look(self, path: str) -> StepRecord | None:
        """What was recorded at a path, by this run or an earlier one."""
        return self.recorded.look(path)

    def write(self, *entries: Entry, acked: bool = True) -> UnitTicket:
        """Hand entries over, in order; the ticket tells when they are durable."""
        ticket = self.hand_over(*entries, acked=acked)
        for entry in entries:
            self.recorded.add(entry)
        return ticket

    def write_later(self, entry: Entry) -> None:
        """Hand an entry over that nobody waits for; where there is no room for it, it goes with the next one."""
        try:
            self.hand_over(entry, acked=False)
        except Full:
            with once(self._lock):
                self.pending.append(entry)

    def hand_over_result(self, result: StepResult) -> None:
        """What `hand_over` does with one result that nobody waits for."""
        if self.pending or self.loss is not None:
            self.hand_over(result, acked=False)
        else:
            self.store.write_result(self.journal, result)

    def hand_over(
        self, *parts: Part, acked: bool = True, alone: bool = False, size: int = 0, timeout: float | None = None
    ) -> UnitTicket:
        """What `write` does, for entries that nobody in this run will look for; arguments as `ExecutionStore.write`."""
        with once(self._lock):  # each goes with one of those who write at the same time
            pending, self.pending = self.pending, []
        is_from_outside = parts and isinstance(parts[0], _FROM_OUTSIDE)  # others get an error if it was not stored
        loss = None if is_from_outside else self.loss
        try:
            ticket = self.store.write(
                self.journal, *pending, *parts, acked=acked, alone=alone, size=size, timeout=timeout
            )
        except BaseException as error:
            if loss is None or not isinstance(error, LOSSES) or _may_wait(error):
                with once(self._lock):
                    self.pending = pending + self.pending
                raise
            loss.note(error)
            return ForgivingTicket.lost(loss)
        return ticket if loss is None else ForgivingTicket.of(ticket, loss, self.store.timeout)

    # -- loss of its journal ----------------------------------------------------------------------------------

    def continue_undurable(self) -> None:
        """From now on: if the journal cannot be written, go on without it, with a warning."""
        self.loss = loss = JournalLoss(self.id)
        if self.opened is not None:
            self.opened = ForgivingTicket.of(self.opened, loss, self.store.timeout)

    @property
    def is_undurable(self) -> bool:
        """Whether the journal was lost, and nothing more of this run is recorded."""
        return self.loss is not None and self.loss.cause is not None

    # -- its end ----------------------------------------------------------------------------------------------

    def finish(self, status: Status, payload: bytes = b"", note: str = "") -> UnitTicket | None:
        """End it; the first end counts, a later one is None and changes nothing.

        A program that was asked to leave off and did not complete has no end yet: None, too. Where there is no room, a
        thread waits for it; a coroutine gets Full: it uses `store.when_room`.
        """
        try:
            ticket = self.store.with_room(lambda: self._finish(status, payload, note[:NOTE_CHARS_MAX]))
        except LOSSES as error:
            if self.loss is None or _may_wait(error):
                raise
            self.loss.note(error)
            return None
        if ticket is not None and self.loss is not None:
            return ForgivingTicket.of(ticket, self.loss, self.store.timeout)
        return ticket

    def _finish(self, status: Status, payload: bytes, note: str) -> UnitTicket | None:
        now = self.store.trusted_time.range_us()[1]
        with self.store.lock:
            row = self.row
            if row.status in ENDED or self._has_no_end(status):
                return None
            row = msgspec.structs.replace(row, status=status, updated_us=now, ended_us=now, note=note)
            self.ending = self.store.change_row(self.journal, row, Ended(status, payload, now))
            return self.ending

    def _has_no_end(self, status: Status) -> bool:
        """Whether it was asked to leave off, and did: a program that went on after that has missed a step."""
        return self.is_suspended and status != "canceled" and (status != "completed" or self.has_left_off)

    def requeue(self, due_us: int, note: str) -> UnitTicket | None:
        """Queue it again, to be run as a whole from this time on, instead of ending it; None if it has ended."""
        note = note[:NOTE_CHARS_MAX]
        entry = Administered("retried", note, self.clock.now_us())
        return self.store.with_room(lambda: self._change(entry, status="queued", due_us=due_us, note=note))

    def leave_off(self) -> UnitTicket | None:
        """It leaves off because it was asked to: that does not count as an attempt."""
        return self.store.with_room(lambda: self._change(attempts=max(0, self.row.attempts - 1)))

    def _change(self, *entries: Entry, **fields: object) -> UnitTicket | None:
        with self.store.lock:
            row = self.row
            if row.status in ENDED:
                return None
            row = msgspec.structs.replace(row, updated_us=self.clock.now_us(), **fields)
            return self.store.change_row(self.journal, row, *entries)

    def cancel(self, reason: str) -> None:
        """Ask the program to stop before its next step."""
        self.cancel_reason = reason
        self.arrived.notify()

    def suspend(self, reason: str) -> None:
        """Ask the program to leave off before its next step; it can be gone on with."""
        self.is_suspended = True
        self.cancel(reason)

    def check(self) -> None:
        """Raise if the program is asked to stop."""
        if self.cancel_reason is None:
            return
        if self.is_suspended and self.row.status not in ENDED:
            self.has_left_off = True
            raise Suspension(self.cancel_reason)
        raise ExecutionCanceled(f"{self.cancel_reason} execution={self.id}")


def _may_wait(error: HoldfastError) -> bool:
    """Whether there may be room later: a coroutine was not made to wait for it."""
    return isinstance(error, Full) and in_coroutine()
