"""Waiting without polling, for threads and event loops alike.

A bell is rung by one thread (the writer) after it has changed what others wait for. Sleepers register
first and look again afterwards, so a ring between the two cannot be missed:

    sleeper:  register, then look, then sleep          ringer:  change, then ring

No lock guards this: each step is one atomic operation of a deque or a dictionary. A sleeper may wake for
nothing; it must look again. Ringing costs two truth tests when nobody waits, one wake-up per sleeping
thread, and one `call_soon_threadsafe` per event loop, however many coroutines wait there.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable


class Bell:
    """Wakes whoever waits, each time it is rung."""

    __slots__ = ("_loops", "_sleepers")

    def __init__(self) -> None:
        self._sleepers: deque[LockType] = deque()
        self._loops: dict[AbstractEventLoop, _Sleepers] = {}

    def sleep(self, happened: Callable[[], bool], timeout: float) -> bool:
        """Block this thread until a ring or the time-out; True when it has happened."""
        lock = allocate_lock()
        lock.acquire()
        self._sleepers.append(lock)
        if happened():
            return True
        if lock.acquire(timeout=timeout):
            return happened()
        try:
            self._sleepers.remove(lock)
        except ValueError:  # rung just now
            pass
        return happened()

    def future(self, loop: AbstractEventLoop, timeout: float) -> Future[None]:
        """A future of this loop that is done at the next ring or after the time-out, whichever is first.

        All futures of one loop share one timer and one wake-up. Cancelling a future cancels nothing else.
        """
        sleepers = self._loops.get(loop)
        if sleepers is None:
            sleepers = self._loops[loop] = _Sleepers()
            sleepers.timer = loop.call_later(timeout, self._expire, loop, sleepers)
        future: Future[None] = loop.create_future()
        sleepers.futures.append(future)
        return future

    def ring(self) -> None:
        """Wake all who wait now."""
        sleepers = self._sleepers
        for _ in range(len(sleepers)):
            try:
                sleepers.popleft().release()
            except IndexError:  # a sleeper timed out and left
                break
        if self._loops:
            for loop in list(self._loops):
                self._ring_loop(loop)

    def _ring_loop(self, loop: AbstractEventLoop) -> None:
        waiting = self._loops.pop(loop, None)
        if waiting is not None:
            try:
                loop.call_soon_threadsafe(waiting.wake)
            except RuntimeError:  # the loop was closed: nobody waits there any more
                pass

    def _expire(self, loop: AbstractEventLoop, sleepers: _Sleepers) -> None:
        if self._loops.get(loop) is sleepers:
            self._loops.pop(loop, None)
        sleepers.wake()


class _Sleepers:
    """The coroutines of one event loop that wait for the same ring."""

    __slots__ = ("futures", "timer")

    def __init__(self) -> None:
        self.futures: list[Future[None]] = []
        self.timer: TimerHandle | None = None

    def wake(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for future in self.futures:
            if not future.done():
                future.set_result(None)
