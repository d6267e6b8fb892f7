"""Executions as they are stored, looked at by a process that has the log: all that is durable, and no more."""

from __future__ import annotations

import builtins
from asyncio import get_running_loop, to_thread
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock
from holdfast.errors import ExecutionCanceled, ExecutionError, Unavailable
from holdfast.execution.journal.entries import ENDED, ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.pruning import is_over
from holdfast.execution.work.administration import unknown
from holdfast.execution.work.calls import decode_outcome
from holdfast.execution.work.execution_views import (
    ExecutionDetails,
    ExecutionSummary,
    details,
    last_end,
    summary,
    unfolded,
)
from holdfast.signals import Signal

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom

_LOOK_AGAIN_S = 60.0
_NOTHING = object()


class StoredExecutions:
    """The executions that one log keeps."""

    def __init__(self, stored: Callable[[], ExecutionStore], room: Callable[[], ExecutionRoom]) -> None:
        self._stored = stored
        self._room = room

    @property
    def clock(self) -> Clock:
        """What time it is for them."""
        return self._stored().clock

    @property
    def payload_bytes_max(self) -> int:
        """How large a value may be."""
        return self._stored().settings.payload_bytes_max

    def list(self, statuses: frozenset[str] | None, kind: str | None, limit: int) -> builtins.list[ExecutionSummary]:
        """Executions, the newest first: of these statuses, of one kind; at most `limit`."""
        rows = [
            row
            for row in self._stored().rows.copy().values()
            if (statuses is None or row.status in statuses) and kind in (None, row.kind)
        ]
        rows.sort(key=lambda row: (row.created_us, row.id), reverse=True)
        return [summary(row) for row in rows[:limit]]

    def summary(self, execution: ExecutionId) -> ExecutionSummary:
        """One execution, without what happened in it."""
        return summary(_row(self._stored(), execution))

    def show(self, execution: ExecutionId, *, reveal: bool) -> ExecutionDetails:
        """All that is durable of one execution."""
        store = self._stored()
        blocks, _ = store.load(execution)
        return details(_row(store, execution), in_order(blocks), reveal=reveal)

    def prunable(self) -> int:
        """How many ended long enough ago to be removed."""
        store = self._stored()
        now = store.trusted_time.now_us()
        return sum(is_over(row, store.settings, now) for row in store.rows.copy().values())

    # -- waiting for the end ----------------------------------------------------------------------------------

    def result(self, execution: ExecutionId, timeout: float | None, returns: Any) -> Any:
        """Wait for an execution's end, and return what it returned, or raise what it raised."""
        deadline = self._deadline(timeout)
        while (value := self._ended(execution, returns)) is _NOTHING:
            pause = self._pause(deadline, execution)
            self._changed().sleep(lambda: self._has_ended(execution), pause)
        return value

    async def result_async(self, execution: ExecutionId, timeout: float | None, returns: Any) -> Any:
        """The same for coroutines."""
        deadline = self._deadline(timeout)
        while (value := await to_thread(self._ended, execution, returns)) is _NOTHING:
            future = self._changed().future(get_running_loop(), self._pause(deadline, execution))
            if not self._has_ended(execution):
                await future
        return value

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self.clock.monotonic() + timeout

    def _ended(self, execution: ExecutionId, returns: Any) -> Any:
        """What it came to, once that is durable; _NOTHING before."""
        store = self._stored()
        row = _row(store, execution)
        if row.status not in ENDED:
            return _NOTHING
        live = None if store.is_read_only else self._room().live.get(execution)
        if live is not None and live.ending is not None:
            live.ending.result()
        if row.status == "canceled":
            raise ExecutionCanceled(f"this execution was canceled execution={execution}: {row.note}")
        if row.status == "aborted":
            raise ExecutionError(f"this execution was given up execution={execution}: {row.note}")
        ended = last_end(list(unfolded(in_order(store.load(execution)[0]))))
        if ended is None or ended.status != row.status:
            return _NOTHING
        return decode_outcome(ended.payload, returns, is_error=row.status == "failed")

    def _has_ended(self, execution: ExecutionId) -> bool:
        return _row(self._stored(), execution).status in ENDED

    def _changed(self) -> Signal:
        return Signal() if self._stored().is_read_only else self._room().live.changed

    def _pause(self, deadline: float | None, execution: ExecutionId) -> float:
        """How long to wait before looking again; raises when the time is up."""
        store = self._stored()
        most = store.settings.poll_interval_ms / 1000 if store.is_read_only else _LOOK_AGAIN_S
        if deadline is None:
            return most
        left = deadline - store.clock.monotonic()
        if left <= 0:
            raise Unavailable(f"the execution has not ended in time execution={execution}", hint="wait longer")
        return min(most, left)


def _row(store: ExecutionStore, execution: ExecutionId) -> ExecutionRow:
    row: ExecutionRow | None = store.rows.get(execution)
    if row is None:
        raise unknown(execution)
    return row
