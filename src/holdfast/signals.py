"""Waiting without polling, for threads and event loops alike.

A signal is given by one thread (the writer) after it has changed what others wait for. Sleepers register first and
look again afterwards, so a signal between the two cannot be missed:

    sleeper:  register, then look, then sleep          writer:  change, then notify

No lock guards this: each step is one atomic operation of a deque or a dictionary. A sleeper may wake for nothing; it
must look again. Notifying costs two truth tests when nobody waits, one wake-up per sleeping thread, and one
`call_soon_threadsafe` per event loop, however many coroutines wait there.

A coroutine waits for a `future`, or, where many wait for the same and each wake-up counts, it parks: what it yields to
its task is a `WaitingTask`, a future-like object that asyncio allows for (`asyncio.isfuture`). All that are parked are
resumed one after the other in one callback of the loop; a future would need a callback each.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock, get_ident
from asyncio import AbstractEventLoop, Event, Future, TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from itertools import chain
from math import inf
from typing import Protocol

import msgspec


class Wake(Protocol):
    """How the taker of groups is notified that there may be one."""

    def release(self) -> None:
        """There may be one; a RuntimeError where that was said already does not matter."""

    def hurry(self) -> None:
        """A caller is about to block its thread until that is done."""


class Signal:
    """Wakes all who wait, each time `notify` is called."""

    __slots__ = ("_calls", "_loops", "_sleepers", "_threads")

    def __init__(self) -> None:
        self._sleepers: deque[LockType] = deque()
        self._calls: deque[Callable[[], object]] = deque()
        self._loops: dict[AbstractEventLoop, _Sleepers] = {}
        self._threads: dict[int, _Sleepers] = {}
        """The same by the thread that runs the loop, as a guess: to ask for the running loop may be a system call."""

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
        sleepers = self._sleepers_of(loop)
        future: Future[None] = loop.create_future()
        deadline = loop.time() + timeout
        sleepers.futures[future] = deadline
        if deadline < sleepers.due:
            self._set_timer(sleepers, deadline)
        return future

    def park(self, timeout: float, loop: AbstractEventLoop | None = None) -> WaitingTask:
        """What `future` does, cheaper, for a task of the running loop that yields it at once, or drops it.

        It is a guess that the loop is the one that parked last in this thread. The task that gets another loop's
        refuses it by a RuntimeError; then it tells which loop it is.
        """
        sleepers = None if loop is not None else self._threads.get(get_ident())
        if sleepers is None:
            sleepers = self._threads[get_ident()] = self._sleepers_of(loop or get_running_loop())
        loop = sleepers.loop
        deadline = loop.time() + timeout
        parked = WaitingTask(loop, deadline)
        sleepers.parked.append(parked)
        if deadline < sleepers.due:
            self._set_timer(sleepers, deadline)
        return parked

    def _sleepers_of(self, loop: AbstractEventLoop) -> _Sleepers:
        sleepers = self._loops.get(loop)
        if sleepers is None:
            sleepers = self._loops[loop] = _Sleepers(loop)
        return sleepers

    def notify(self, given_by: AbstractEventLoop | None = None) -> None:
        """Wake all who wait now; `given_by` says that this is a callback of that loop, which need not be woken.

        That a loop runs in this thread does not say so: a signal handler may have interrupted its sleep.
        """
        sleepers = self._sleepers
        for _ in range(len(sleepers)):
            try:
                sleepers.popleft().release()
            except IndexError:  # a sleeper timed out and left
                break
        if self._loops:
            for loop in list(self._loops):
                self._notify_loop(loop, given_by)
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # a concurrent notifier has taken it
                break
            call()

    def call(self, wake: Callable[[], object]) -> None:
        """Have something called at the next signal, once, by its sender: it must be short and never raise.

        For those who wait in a way of their own, for many things at once. Look again afterwards, as everybody does.
        """
        self._calls.append(wake)

    def _notify_loop(self, loop: AbstractEventLoop, given_by: AbstractEventLoop | None) -> None:
        waiting = self._loops.pop(loop, None)
        if waiting is not None:
            try:
                if loop is given_by:
                    loop.call_soon(self._wake, waiting)
                else:
                    loop.call_soon_threadsafe(self._wake, waiting)
            except RuntimeError:  # the loop was closed: nobody is waiting there
                pass

    def _wake(self, sleepers: _Sleepers) -> None:
        self._threads.pop(get_ident(), None)  # here and not by the notifier: nobody parks meanwhile
        sleepers.wake()

    def _set_timer(self, sleepers: _Sleepers, due: float) -> None:
        if sleepers.timer is not None:
            sleepers.timer.cancel()
        sleepers.due = due
        sleepers.timer = sleepers.loop.call_at(due, self._expire, sleepers)

    def _expire(self, sleepers: _Sleepers) -> None:
        """Wake those whose time is up; the others sleep on."""
        loop = sleepers.loop
        now = max(sleepers.due, loop.time())  # a loop may be early, by what its clock can tell apart
        over, parked = sleepers.split(now)
        if sleepers.futures or sleepers.parked:
            self._set_timer(sleepers, sleepers.first_deadline())
        elif self._loops.get(loop) is sleepers:
            # Nobody registers but on the loop itself, where this runs: nobody is lost here.
            self._loops.pop(loop, None)
            self._threads.pop(get_ident(), None)
        _wake(over)
        sleepers.resume(iter(parked))


class Flag:
    """What `threading.Event` is, for threads that a signal handler may interrupt in the middle of it.

    An Event has a lock. A handler that sets it while the thread that it interrupted sets it, or waits for it, never
    returns; another thread that sets it meanwhile waits for the handler, which may wait for that thread. This has none.
    """

    __slots__ = ("_is_set", "_signal")

    def __init__(self) -> None:
        self._is_set = False
        self._signal = Signal()

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set

    def set(self) -> None:
        """Let everybody go on who waits for it, now and from now on."""
        self._is_set = True
        self._signal.notify()

    def clear(self) -> None:
        """What comes from now on waits."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set, or the time is up; whether it is set."""
        return self._is_set or self._signal.sleep(self.is_set, -1 if timeout is None else max(0.0, timeout))


class WaitingTask(msgspec.Struct, eq=False):
    """A task that waits, as what it waits for: of a future it has what tasks ask for, and no more."""

    _loop: AbstractEventLoop
    deadline: float
    _asyncio_future_blocking: bool = True
    wakeup: Callable[[Future[None]], object] | None = None
    """Resumes the task, given a future that is done; None before it waits, and when it does no more."""
    context: Context | None = None

    def add_done_callback(self, wakeup: Callable[[Future[None]], object], *, context: Context) -> None:
        """By the task, as soon as it waits."""
        self.wakeup = wakeup
        self.context = context

    def cancel(self, msg: object = None) -> bool:
        """By the task that is cancelled: it is resumed with the cancellation, and nobody else is."""
        wakeup, self.wakeup = self.wakeup, None
        if wakeup is None:
            return False
        cancelled: Future[None] = self._loop.create_future()
        cancelled.cancel(msg)
        self._loop.call_soon(wakeup, cancelled, context=self.context)
        return True

    def __repr__(self) -> str:
        return f"<WaitingTask until={self.deadline:g}>"


class _Sleepers:
    """The coroutines of one event loop that wait for the same signal, each with a deadline of its own."""

    __slots__ = ("due", "futures", "loop", "parked", "timer")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.futures: dict[Future[None], float] = {}
        self.parked: list[WaitingTask] = []
        self.timer: TimerHandle | None = None
        self.due = inf
        """When the timer ends."""

    def wake(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        _wake(self.futures)
        self.resume(iter(self.parked))

    def resume(self, parked: Iterator[WaitingTask]) -> None:
        """Let each task run on to where it waits again, in this callback and in its own context."""
        done: Future[None] = self.loop.create_future()
        done.set_result(None)
        try:
            for one in parked:
                wakeup = one.wakeup
                if wakeup is not None:
                    one.wakeup = None
                    one.context.run(wakeup, done)  # type: ignore[union-attr]  # it came with the wake-up
        except BaseException:  # Ctrl-C in one of the tasks ends the loop's run: the next run finds the others
            self.loop.call_soon(self.resume, parked)
            raise

    def first_deadline(self) -> float:
        return min(chain(self.futures.values(), (one.deadline for one in self.parked)))

    def split(self, now: float) -> tuple[list[Future[None]], list[WaitingTask]]:
        """Take out those whose time is up; in the order of their deadlines, however late the loop is."""
        over = sorted((f for f, deadline in self.futures.items() if deadline <= now), key=self.futures.__getitem__)
        for future in over:
            del self.futures[future]
        parked = sorted((one for one in self.parked if one.deadline <= now), key=lambda one: one.deadline)
        if parked:
            self.parked = [one for one in self.parked if one.deadline > now]
        return over, parked


def _wake(sleepers: Iterable[Future[None]]) -> None:
    for future in sleepers:
        if not future.done():
            future.set_result(None)


async def until(event: Event, condition: Callable[[], bool]) -> None:
    """Wait, on one event loop, until something is so; the event is set when it may have become so."""
    while not condition():
        event.clear()
        if not condition():
            await event.wait()
