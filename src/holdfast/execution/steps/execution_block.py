"""The block of an execution: `with` and `async with`, from opening it to its end.

It returns from its beginning when the execution is durable, and from its end when all of it is. How it ends:

    normally                         completed
    with an exception                failed; the step that raised it is tried again when the execution is opened again
    canceled                         canceled, for good
    suspended, diverged              as it is: the next run with the right program continues; where no worker
                                     runs it, being suspended ends in Closed: the log is being closed
    cancelled task, Ctrl-C, exit     as it is
    the journal failed               as it is
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.arguments import flag
from holdfast.caller import in_coroutine
from holdfast.errors import Closed, Diverged, Full, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.execution.journal.entries import AttemptFailed, Status
from holdfast.execution.journal.execution_id import ExecutionId, checked_name, fresh_id, given_id
from holdfast.execution.journal.journal_loss import checked_policy
from holdfast.execution.journal.live_execution import LiveExecution, Suspension
from holdfast.execution.steps.async_context import AsyncContext
from holdfast.execution.steps.context import Context
from holdfast.execution.steps.program_run import ProgramRun, steps_behind
from holdfast.execution.steps.step_errors import encode_error, type_name
from holdfast.execution.steps.step_values import PLAIN
from holdfast.journal.queue.ticket import UnitTicket

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom

logger = logging.getLogger("holdfast.execution")

_JOURNAL_FAILED = (Closed, Unavailable, OutcomeUnknown)

Retry = Callable[[int, Exception], int | None]
"""When an execution is run again that was begun so often and failed like this; None if never."""


class ExecutionBlock:
    """An execution that is about to be run; use it with `with` or `async with`."""

    def __init__(
        self,
        room: ExecutionRoom,
        kind: str,
        *,
        id: object = None,
        always_replay: bool = False,
        on_journal_loss: str = "fail",
        retry: Retry | None = None,
    ) -> None:
        self._on_journal_loss = checked_policy(on_journal_loss)
        self._room = room
        self._kind = checked_name(kind, "kind")
        self._always_replay = flag(always_replay, "always_replay")
        self._retry = retry
        """Of a worker: what is its work, and not over, is opened, and may be queued again instead of having failed."""
        self._run: ProgramRun | None = None
        self.id: ExecutionId = fresh_id(room.clock) if id is None else given_id(id)
        """The execution's id."""

    # -- with -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Context:
        if in_coroutine():
            warnings.warn("this blocks the event loop; use: async with log.execution(…)", RuntimeWarning, stacklevel=2)
        live = self._opened()
        try:
            self._prepare(live)
            if live.opened is not None:
                live.opened.result()
        except BaseException:
            self._room.live.release(live)
            raise
        return Context(self._begun(live))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = self._over()
        try:
            ticket = self._ended(run, error)
            if ticket is not None:
                ticket.result()
        except HoldfastError as failure:
            self._not_stored(run, error, failure)
        finally:
            self._room.live.release(run.live)
        self._leave_off(error)

    # -- async with -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncContext:
        live = await self._opened_async()
        try:
            self._prepare(live)
            if live.opened is not None:
                await live.opened
        except BaseException:
            self._room.live.release(live)
            raise
        return AsyncContext(self._begun(live))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = self._over()
        try:
            try:
                ticket = self._ended(run, error)
            except Full:
                ticket = await self._room.store.when_room(lambda: self._ended(run, error))
            if ticket is not None:
                await ticket
        except HoldfastError as failure:
            self._not_stored(run, error, failure)
        finally:
            self._room.live.release(run.live)
        self._leave_off(error)

    def _leave_off(self, error: BaseException | None) -> None:
        """What makes a program leave off goes no further than its block: only a worker knows what it is."""
        if isinstance(error, Suspension) and self._retry is None:
            raise Closed(str(error), hint="the execution is as it was: open the log again, and resume it") from None

    async def _opened_async(self) -> LiveExecution:
        """Open it on the loop if nothing of it is stored; else in a thread, which waits for the disk."""
        if self.id not in self._room.store.rows:
            return await self._room.live.open_async(self.id, self._kind)
        opening = asyncio.get_running_loop().run_in_executor(None, self._opened)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._let_go)
            raise

    def _let_go(self, opening: asyncio.Future[LiveExecution]) -> None:
        """Its waiter was cancelled meanwhile."""
        if not opening.cancelled() and opening.exception() is None:
            self._room.live.release(opening.result())

    # -- both -------------------------------------------------------------------------------------------------

    def _opened(self) -> LiveExecution:
        return self._room.live.open(self.id, self._kind, is_work=self._retry is not None)

    def _prepare(self, live: LiveExecution) -> None:
        if self._on_journal_loss == "continue-undurable":
            live.continue_undurable()

    def _begun(self, live: LiveExecution) -> ProgramRun:
        self._run = ProgramRun(
            live,
            self._room.journal,
            self._room.waiters,
            always_replay=self._always_replay,
            begin_transaction=self._room.begin_transaction,
        )
        return self._run

    def _over(self) -> ProgramRun:
        run, self._run = self._run, None
        assert run is not None
        run.is_over = True
        return run

    def _ended(self, run: ProgramRun, error: BaseException | None) -> UnitTicket | None:
        """Write down how it ended; None if nothing is to be written."""
        status = _status(run, error)
        if status is None:
            flushed = run.flushed()
            return run.live.leave_off() if run.live.is_suspended else flushed
        if error is None:
            payload, _ = PLAIN.encode(run.result, "result")
            run.flushed()
            return run.live.finish(status, payload)
        self._try_again(run, error)
        if status == "failed" and (due := self._due(run, error)) is not None:
            return run.live.requeue(due, type_name(error))
        payload, _ = encode_error(error, "", self._room.settings.payload_bytes_max)
        return run.live.finish(status, payload, note=type_name(error))

    def _try_again(self, run: ProgramRun, error: BaseException) -> None:
        """The step that ended this run is tried again by the next one, unless that may happen twice."""
        now = run.clock.now_us()
        for step in steps_behind(error):
            if step.run is run and (not step.options.is_guarded or step.options.on_ambiguous == "rerun"):
                run.write(AttemptFailed(step.path, step.attempt, type_name(error), now, 0), acked=False)

    def _due(self, run: ProgramRun, error: BaseException) -> int | None:
        if self._retry is None or not isinstance(error, Exception):
            return None
        return self._retry(run.live.row.attempts, error)

    def _not_stored(self, run: ProgramRun, error: BaseException | None, failure: HoldfastError) -> None:
        """The end could not be stored: what the block raised matters more."""
        if error is None:
            raise failure
        if run.live.is_suspended:  # it has no end, and nothing was to be stored but that it left off
            return
        logger.warning(
            "the end of an execution could not be stored: %s",
            failure.message,
            extra={"action": "execution_end_lost", "execution": str(run.live.id), "reason": failure.message},
        )

    def __repr__(self) -> str:
        return f"ExecutionBlock({self._kind!r}, id={str(self.id)!r})"


def _status(run: ProgramRun, error: BaseException | None) -> Status | None:
    """How an execution ends that ends like this; None if it does not end."""
    if error is None:
        return "completed"
    if run.live.cancel_reason is not None:
        return None if run.live.is_suspended else "canceled"
    if not isinstance(error, Exception) or isinstance(error, Diverged):
        return None
    if isinstance(error, _JOURNAL_FAILED) and not steps_behind(error):
        return None
    return "failed"
