"""The background thread of a log's executions: due timers, schedules, retention.

Each task is registered with its interval (`every`); the first one starts the thread. A task runs in no other thread and
never concurrently with another; one that fails is logged and runs again at its next time. A task that takes long
delays the others, so each does a bounded piece of its work at a time.

Pauses use real time, whatever clock the log has: a manual clock must not stop the background work.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable
from threading import Thread, current_thread

from holdfast.caller import once
from holdfast.clock import SystemClock
from holdfast.signals import Flag

Task = Callable[[], None]

_LONGEST_S = 3600.0
_SHORTEST_S = 0.001
"""However late it is: no busy loop."""

logger = logging.getLogger("holdfast.executions")


class _Duty:
    """One task, its interval and its next time."""

    __slots__ = ("due", "interval", "name", "task")

    def __init__(self, name: str, task: Task, interval: float, due: float) -> None:
        self.name = name
        self.task = task
        self.interval = interval
        self.due = due


class Background:
    """Runs what has been registered until it is stopped."""

    def __init__(self) -> None:
        self._monotonic = SystemClock().monotonic
        self._duties: list[_Duty] = []
        self._lock = RLock()
        self._wake = Flag()
        self._is_over = False
        self._thread: Thread | None = None

    def every(self, interval_ms: int, name: str, task: Task) -> None:
        """Run a task at this interval, the first time at once."""
        with once(self._lock):
            self._duties.append(_Duty(name, task, interval_ms / 1000, self._monotonic()))
            if self._thread is None and not self._is_over:
                self._thread = Thread(target=self._work, name="holdfast-executions", daemon=True)
                self._thread.start()
        self._wake.set()

    def drop(self, name: str) -> None:
        """Look after this no more."""
        with once(self._lock):
            self._duties = [duty for duty in self._duties if duty.name != name]

    def soon(self, name: str) -> None:
        """Have the task of this name run next, whenever it would have been due."""
        with once(self._lock):
            for duty in self._duties:
                if duty.name == name:
                    duty.due = self._monotonic()
        self._wake.set()

    def stop(self) -> None:
        """Returns when the task that is running has ended; nothing runs afterwards."""
        with once(self._lock):
            self._is_over = True
        self._wake.set()
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, where the thread is not."""
        self._lock = RLock()
        self._is_over = True
        self._thread = None

    def _work(self) -> None:
        while not self._is_over:
            for duty in self._due():
                if self._stopped():
                    return
                try:
                    duty.task()
                except Exception as error:
                    logger.error(
                        "looking after executions failed and is tried again task=%s: %s",
                        duty.name,
                        error,
                        extra={"action": "execution_task_failed", "task": duty.name},
                        exc_info=error,
                    )
            self._wake.wait(self._pause())
            self._wake.clear()  # before looking whether it is over: the stopper says so first

    def _due(self) -> list[_Duty]:
        """Those whose time has come; their next interval begins now."""
        now = self._monotonic()
        with once(self._lock):
            found = [duty for duty in self._duties if duty.due <= now]
            for duty in found:
                duty.due = now + duty.interval
        return found

    def _stopped(self) -> bool:
        return self._is_over

    def _pause(self) -> float:
        with once(self._lock):
            first = min((duty.due for duty in self._duties), default=_LONGEST_S + self._monotonic())
        return min(_LONGEST_S, max(_SHORTEST_S, first - self._monotonic()))
