"""Tasks at their intervals, the first time at once: in a thread, or on an event loop.

A task that fails is logged, and tried again when its next time comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from threading import Event, Lock, Thread, current_thread
from typing import Any, Generic, TypeVar

from holdfast.channels.channel_settings import ChannelSettings
from holdfast.clock import Clock

HURRY_INTERVAL_MS = 500
"""How often repairs are looked at in channels where somebody is far behind; elsewhere nothing is done."""
_SHORTEST_S = 0.001
"""However late it is: no busy loop."""

logger = logging.getLogger("holdfast.channels")

Sync = Callable[[], None]
Coro = Callable[[], Coroutine[Any, Any, None]]
Task = TypeVar("Task", Callable[[], None], Callable[[], Coroutine[Any, Any, None]])


class Schedule(Generic[Task]):
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

    def __init__(self, schedule: Schedule[Callable[[], None]]) -> None:
        self._schedule = schedule
        self._end = Event()
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


class Timers:
    """The three tasks of channels, at the intervals of their settings."""

    def __init__(self, settings: ChannelSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._lock = Lock()
        self._thread: PeriodicThread | None = None

    def start(self, buffers: Sync, repairs: Sync, sync: Sync, hurry: Sync) -> None:
        """From a thread of their own; starting again changes nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = PeriodicThread(self._schedule(buffers, repairs, sync, hurry))

    def stop(self) -> None:
        """Returns when the last task has ended."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    async def run(self, is_over: Callable[[], bool], buffers: Coro, repairs: Coro, sync: Coro, hurry: Coro) -> None:
        """On this event loop, until it is over, or cancelled."""
        await run_until(is_over, self._schedule(buffers, repairs, sync, hurry))

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock, self._thread = Lock(), None

    def _schedule(self, buffers: Task, repairs: Task, sync: Task, hurry: Task) -> Schedule[Task]:
        settings = self._settings
        tasks: list[tuple[int, Task]] = [
            (settings.buffer_sweep_interval_ms, buffers),
            (settings.repair_sweep_interval_ms, repairs),
            (settings.sync_interval_ms, sync),
            (HURRY_INTERVAL_MS, hurry),
        ]
        return Schedule(tasks, self._clock)


async def run_until(is_over: Callable[[], bool], schedule: Schedule[Callable[[], Coroutine[Any, Any, None]]]) -> None:
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
