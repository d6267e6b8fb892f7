"""Tasks at their intervals, the first time at once: in a thread, or on an event loop.

A task that fails is logged, and tried again when its next time comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar

from holdfast.clock import Clock
from holdfast.signals import Flag

HURRY_INTERVAL_MS = 500
"""How often repairs are looked at in channels where a participant is far behind; elsewhere nothing is done."""
_SHORTEST_S = 0.001
"""However late it is: no busy loop."""

logger = logging.getLogger("holdfast.channels")

Task = TypeVar("Task", Callable[[], None], Callable[[], Coroutine[Any, Any, None]])


class TaskSchedule(Generic[Task]):
    """Which tasks are due, and how long none will be."""

    def __init__(self, tasks: Sequence[tuple[int, Task]], clock: Clock) -> None:
        """Each task with its interval in milliseconds; those without one never come."""
        self._tasks: list[tuple[float, Task]] = [
            (interval_ms / 1000, task) for interval_ms, task in tasks if interval_ms
        ]
        self._clock = clock
        self._due = [clock.monotonic()] * len(self._tasks)

    def due(self) -> Iterator[Task]:
        """Those whose time has come; it begins anew when they are taken."""
        now = self._clock.monotonic()
        for number, (interval, task) in enumerate(self._tasks):
            if self._due[number] <= now:
                self._due[number] = now + interval
                yield task

    def pause(self) -> float:
        """Seconds until the next one is due."""
        return max(_SHORTEST_S, min(self._due) - self._clock.monotonic())


class PeriodicThread:
    """A thread that runs a schedule until it is stopped."""

    def __init__(self, schedule: TaskSchedule[Callable[[], None]]) -> None:
        self._schedule = schedule
        self._end = Flag()
        self._thread = Thread(target=self._work, name="holdfast-channels", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last task has ended."""
        self._end.set()
        if self._thread is not current_thread():  # a callback may close the channels
            self._thread.join()

    def _work(self) -> None:
        while not self._end.is_set():
            for task in self._schedule.due():
                if self._end.is_set():
                    return
                try:
                    task()
                except Exception as error:
                    _note(error)
            self._end.wait(self._schedule.pause())


async def run_until(
    is_over: Callable[[], bool], schedule: TaskSchedule[Callable[[], Coroutine[Any, Any, None]]]
) -> None:
    """Run a schedule on this event loop until it is over, or cancelled."""
    while not is_over():
        for task in schedule.due():
            if is_over():
                return
            try:
                await task()
            except Exception as error:
                _note(error)
        await asyncio.sleep(schedule.pause())


def _note(error: Exception) -> None:
    logger.error(
        "a periodic task failed and is tried again: %s", error, extra={"action": "channel_task_failed"}, exc_info=error
    )
