"""Waiting without polling, for threads and event loops alike.

A signal is given by one thread (the writer) after it has changed what others wait for. Sleepers register first and
look again afterwards, so a signal between the two cannot be missed:

    sleeper:  register, then look, then sleep          writer:  change, then notify

No lock guards this: each step is one atomic operation of a deque or a dictionary. A sleeper may wake for nothing; it
must look again. Notifying costs two truth tests when nobody waits, one wake-up per sleeping thread, and one
`call_soon_threadsafe` per event loop, however many coroutines wait there.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from math import inf


class Signal:
    """Wakes all who wait, each time `notify` is called."""

    __slots__ = ("_loops", "_sleepers")

    def __init__(self) -> None:
        self._sleepers: deque[LockType] = deque()
        self._loops: dict[AbstractEventLoop, _Sleepers] = {}

    def sleep(self, happened: Callable[[], bool], timeout: float) -> bool:
        """Block this thread until the next signal or the time-out; True when it has happened."""
        lock = allocate_lock()
        lock.acquire()
        self._sleepers.append(lock)
        if happened():
            return True
        if lock.acquire(timeout=timeout):
            return happened()
        try:
            self._sleepers.remove(lock)
        except ValueError:  # notified just now
            pass
        return happened()

    def future(self, loop: AbstractEventLoop, timeout: float) -> Future[None]:
        """A future of this loop that is done at the next signal or after its own time-out, whichever is first.

        All futures of one loop share one wake-up, and one timer, set for the first of their deadlines. Cancelling a
        future cancels nothing else.
        """
        sleepers = self._loops.get(loop)
        if sleepers is None:
            sleepers = self._loops[loop] = _Sleepers()
        future: Future[None] = loop.create_future()
        deadline = loop.time() + timeout
        sleepers.futures[future] = deadline
        if deadline < sleepers.due:
            self._set_timer(loop, sleepers, deadline)
        return future

    def notify(self) -> None:
        """Wake all who wait now."""
        sleepers = self._sleepers
        for _ in range(len(sleepers)):
            try:
                sleepers.popleft().release()
            except IndexError:  # a sleeper timed out and left
                break
        if self._loops:
            for loop in list(self._loops):
                self._notify_loop(loop)

    def _notify_loop(self, loop: AbstractEventLoop) -> None:
        waiting = self._loops.pop(loop, None)
        if waiting is not None:
            try:
                loop.call_soon_threadsafe(waiting.wake)
            except RuntimeError:  # the loop was closed: nobody is waiting there
                pass

    def _set_timer(self, loop: AbstractEventLoop, sleepers: _Sleepers, due: float) -> None:
        if sleepers.timer is not None:
            sleepers.timer.cancel()
        sleepers.due = due
        sleepers.timer = loop.call_at(due, self._expire, loop, sleepers)

    def _expire(self, loop: AbstractEventLoop, sleepers: _Sleepers) -> None:
        """Wake those whose time is up; the others sleep on."""
        now = max(sleepers.due, loop.time())  # a loop may be early, by what its clock can tell apart
        # A loop that is late meets several at once; they end in the order of their deadlines all the same.
        over = sorted(
            (f for f, deadline in sleepers.futures.items() if deadline <= now), key=sleepers.futures.__getitem__
        )
        for future in over:
            del sleepers.futures[future]
        _wake(over)
        if sleepers.futures:
            self._set_timer(loop, sleepers, min(sleepers.futures.values()))
        elif self._loops.get(loop) is sleepers:
            # A future is only added on the loop itself, where this runs: nobody is lost here.
            self._loops.pop(loop, None)


class _Sleepers:
    """The coroutines of one event loop that wait for the same signal, each with a deadline of its own."""

    __slots__ = ("due", "futures", "timer")

    def __init__(self) -> None:
        self.futures: dict[Future[None], float] = {}
        self.timer: TimerHandle | None = None
        self.due = inf
        """When the timer ends."""

    def wake(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        _wake(self.futures)


def _wake(sleepers: Iterable[Future[None]]) -> None:
    for future in sleepers:
        if not future.done():
            future.set_result(None)
