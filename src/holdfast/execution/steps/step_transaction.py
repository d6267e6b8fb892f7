"""A step that is a transaction: what it appends and changes, and its result, are one commit.

After a crash all of it is there and the step is never run again, or nothing of it is there and it is run as if for the
first time: exactly once, inside the log. No intent is needed, and nothing is ambiguous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import isawaitable
from typing import Any, Protocol

from holdfast.errors import HoldfastError, Invalid
from holdfast.execution.steps.program_run import ProgramRun
from holdfast.execution.steps.step_handle import StepHandle
from holdfast.execution.steps.step_protocol import CommitFailed, StoredResult
from holdfast.journal.journal import Operation
from holdfast.journal.queue.ticket import UnitTicket

Put = Callable[[list[Operation], int, int, float], UnitTicket]
"""Hands operations over, with their records and bytes; waits for room so many seconds."""


class _Transaction(AbstractContextManager[Any], AbstractAsyncContextManager[Any], Protocol):
    """A transaction of the log."""


Begin = Callable[[Put | None], _Transaction]
"""Makes a transaction that hands over what it has in this way."""


class StepTransaction:
    """One step of this kind, about to be run."""

    def __init__(self, run: ProgramRun, step: StepHandle, fn: Callable[..., Any], *, is_async: bool = False) -> None:
        if run.begin_transaction is None:
            raise Invalid("there are no transactions here", hint="use log.execution(…) of an open log")
        self._run = run
        self._step = step
        self._fn = fn
        self._is_async = is_async
        self._begin: Begin = run.begin_transaction
        self._value: Any = None
        self._entry: Any = None
        self._beside: Any = None
        self._is_put = False

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with a transaction, and commit it with the step's result."""
        try:
            with self._begin(self._put) as tx:
                self._finish(self._fn(tx, *args, **kwargs))
        except HoldfastError as error:
            self._check_own(error)
            raise
        return self._given()

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """The same, for coroutines."""
        try:
            async with self._begin(self._put) as tx:
                if self._is_async:
                    value = await self._fn(tx, *args, **kwargs)
                else:
                    value = await asyncio.to_thread(self._fn, tx, *args, **kwargs)
                    value = await value if isawaitable(value) else value
                self._finish(value)
        except HoldfastError as error:
            self._check_own(error)
            raise
        return self._given()

    def _finish(self, value: Any) -> None:
        self._entry, self._value, self._beside = self._run.finished(self._step, value)

    def _put(self, operations: list[Operation], _records: int, size: int, timeout: float) -> UnitTicket:
        """Hand over the step's result with what belongs to the transaction."""
        if self._beside is not None:
            operations, size = [*operations, *self._beside.operations], size + self._beside.size
        ticket = self._run.live.hand_over(self._entry, operations, acked=True, alone=True, size=size, timeout=timeout)
        self._is_put = True
        return ticket

    def _check_own(self, error: HoldfastError) -> None:
        """What is raised once the function is through is about the commit, not about the step."""
        if self._entry is not None:
            raise CommitFailed(error)

    def _given(self) -> Any:
        return StoredResult(self._value) if self._is_put else self._value
