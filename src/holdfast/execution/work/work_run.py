"""One execution that a worker has taken: run once, from opening it to what becomes of it."""

from __future__ import annotations

import logging
from asyncio import to_thread
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import AmbiguousEffect, ExecutionCanceled, ExecutionHeld, UnsupportedEntryKind
from holdfast.execution.journal.entries import ExecutionRow
from holdfast.execution.journal.live_execution import Suspension
from holdfast.execution.steps.execution_block import ExecutionBlock
from holdfast.execution.work.work_function import WorkFunction

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom

logger = logging.getLogger("holdfast.execution")

_BACKOFF_MAX_S = 3_600.0
_FINAL = (ExecutionCanceled, AmbiguousEffect, UnsupportedEntryKind)
"""Trying again comes to the same."""


class RetryPolicy(NamedTuple):
    """How often an execution is tried again as a whole, and when."""

    retries: int
    backoff: float
    attempts_max: int

    def delay(self, attempts: int) -> float:
        """Seconds before the next attempt, after so many."""
        return min(_BACKOFF_MAX_S, self.backoff * 2.0 ** min(attempts - 1, 32))


class ClaimedExecution:
    """An execution in the hands of a worker."""

    def __init__(self, room: ExecutionRoom, row: ExecutionRow, function: WorkFunction, policy: RetryPolicy) -> None:
        self._room = room
        self.row = row
        self.function = function
        self._policy = policy
        self._is_suspended = False

    def run(self) -> None:
        """Run it in this thread."""
        if self._is_given_up():
            return
        try:
            with self._block() as ctx:
                self._suspend_if_asked()
                args, kwargs = self.function.arguments(self.row.input)
                ctx.set_result(self.function.call(ctx, *args, **kwargs))
        except Suspension:
            return
        except Exception as error:
            self._check(error)
        self._room.administration.announce(self.row.execution)

    async def run_async(self) -> None:
        """Run it on this loop."""
        if await to_thread(self._is_given_up):
            return
        try:
            async with self._block() as ctx:
                self._suspend_if_asked()
                args, kwargs = self.function.arguments(self.row.input)
                ctx.set_result(await self.function.call(ctx, *args, **kwargs))
        except Suspension:
            return
        except Exception as error:
            self._check(error)
        self._room.administration.announce(self.row.execution)

    def suspend(self) -> None:
        """Ask its program to leave off before its next step."""
        self._is_suspended = True
        self._suspend_if_asked()

    def _suspend_if_asked(self) -> None:
        if self._is_suspended and (live := self._room.live.get(self.row.execution)) is not None:
            live.suspend("the worker stops")

    def _block(self) -> ExecutionBlock:
        return ExecutionBlock(self._room, self.row.kind, id=self.row.execution, retry=self._retry_us)

    def _retry_us(self, attempts: int, error: Exception) -> int | None:
        """When to try again after this; None to give up."""
        if attempts > self._policy.retries or isinstance(error, _FINAL):
            return None
        return self._room.clock.now_us() + round(self._policy.delay(attempts) * 1e6)

    def _is_given_up(self) -> bool:
        """Whether it ended too often without an end: then it is aborted, and no worker takes it again."""
        if self.row.attempts < self._policy.attempts_max:
            return False
        note = f"it was begun {self.row.attempts} times and never came to an end"
        self._room.administration.abort(self.row.execution, note)
        return True

    def _check(self, error: Exception) -> None:
        """What the program raised is its end, if that is stored; anything else is for the worker."""
        row = self._room.store.rows.get(self.row.execution)
        if row is not None and row.status == "running":
            raise error
        if isinstance(error, ExecutionHeld | ExecutionCanceled):
            raise error
        logger.warning(
            "an execution failed: %s kind=%s execution=%s",
            type(error).__qualname__,
            self.row.kind,
            self.row.execution,
            extra={"action": "execution_failed", "execution": str(self.row.execution), "kind": self.row.kind},
        )
