"""Executions that wait to be run, in the order in which workers take them. In memory: rows are the truth.

Of those whose time has come, the one with the highest priority goes first, and among equals the oldest. What is taken
out here may have been canceled or taken meanwhile: the worker that takes it reads its row again.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Collection
from heapq import heappop, heappush

from holdfast.caller import once
from holdfast.execution.journal.entries import ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.signals import Signal

DEFAULT = "default"
"""The queue of those who name none."""

Look = Callable[[ExecutionId], ExecutionRow | None]
"""The row of an execution as it is now."""


class _Lane:
    """Executions of one kind in one queue."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, int, int, bytes]] = []
        """Priority (the highest is the smallest number here), time of creation, number, id."""
        self.later: list[tuple[int, int, bytes]] = []
        """Time before which it does not run, number, id."""


class WorkQueue:
    """All executions of a log that are queued."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._number = 0
        """Of the last one that was added: those of one microsecond keep their order."""
        self._lock = RLock()
        self.changed = Signal()
        """Notified when something was added."""

    def add(self, row: ExecutionRow) -> None:
        """One more; a row that is not queued, or waits for nobody's worker, is left out."""
        if row.status == "queued" and row.queue:
            with once(self._lock):
                lane = self._lanes.setdefault((row.queue, row.kind), _Lane())
                self._number += 1
                heappush(lane.later, (row.due_us, self._number, row.id))
            self.changed.notify()

    def take(self, queues: Collection[str], kinds: Collection[str], now_us: int) -> ExecutionRow | None:
        """The next one for a worker of these queues that has functions of these kinds."""
        with once(self._lock):
            while True:
                lanes = [lane for lane in self._chosen(queues, kinds) if self._ripen(lane, now_us)]
                if not lanes:
                    return None
                *_, body = heappop(min(lanes, key=lambda lane: lane.ready[0]).ready)
                row = self._queued(body)
                if row is not None:
                    return row

    def due_us(self, queues: Collection[str], kinds: Collection[str]) -> int | None:
        """When the next one that has to wait may run; None if none waits."""
        with once(self._lock):
            return min((lane.later[0][0] for lane in self._chosen(queues, kinds) if lane.later), default=None)

    def _chosen(self, queues: Collection[str], kinds: Collection[str]) -> list[_Lane]:
        return [lane for (queue, kind), lane in self._lanes.items() if queue in queues and kind in kinds]

    def _ripen(self, lane: _Lane, now_us: int) -> bool:
        """Move those whose time has come; whether any is ready."""
        while lane.later and lane.later[0][0] <= now_us:
            _, number, body = heappop(lane.later)
            row = self._queued(body)
            if row is not None and row.due_us > now_us:  # it was put off meanwhile
                heappush(lane.later, (row.due_us, number, row.id))
            elif row is not None:
                heappush(lane.ready, (-row.priority, row.created_us, number, row.id))
        return bool(lane.ready)

    def _queued(self, body: bytes) -> ExecutionRow | None:
        row = self._look(ExecutionId(bytes=body))
        return row if row is not None and row.status == "queued" else None
