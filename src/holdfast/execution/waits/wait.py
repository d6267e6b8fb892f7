"""Waiting, for threads and event loops alike: one object that `result()` blocks on and that coroutines await.

A wait looks whether what it waits for is there, sleeps until something arrives or its time is up, and looks again. What
it finds is recorded by its creator (`look`), so that a later run finds the same. Nobody polls: an execution's signal
wakes it, and so does the clock. The wall clock may jump, and one that is set by hand does nothing else: `Waiters.tick`
looks at it now and then, and wakes whose time has come.

A program that should stop is woken and leaves (`LiveExecution.check`). A coroutine that is cancelled leaves, too; what
it had recorded by then (a timer that is armed) is found again.
"""

from __future__ import annotations

from _thread import RLock
from asyncio import get_running_loop
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.caller import once
from holdfast.clock import Clock
from holdfast.errors import Full
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.waits.handover import Handover

Value = TypeVar("Value")

_LONGEST_S = 60.0
"""One sleep; then it is looked again."""


class WaitResult(NamedTuple):
    """What a wait has come to."""

    value: Any = None
    error: Exception | None = None
    last: Handover | None = None
    """What must be durable before it is published."""


class Due(NamedTuple):
    """When a wait is over, if nothing else ends it."""

    wall_us: int
    monotonic: float | None = None
    """Of a time span: so long has passed here at the latest, even if the wall clock was set back."""

    def left(self, clock: Clock) -> float:
        """Seconds until then; 0 or less when it is over."""
        left = (self.wall_us - clock.now_us()) / 1e6
        return left if self.monotonic is None else min(left, self.monotonic - clock.monotonic())


class Waiters:
    """All who wait in one log, up to a number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: set[Wait[Any]] = set()
        self._lock = RLock()

    @contextmanager
    def counted(self, wait: Wait[Any]) -> Iterator[None]:
        """One of them, while it waits."""
        with once(self._lock):
            if len(self._waiting) >= self._most:
                raise Full(
                    f"{self._most} promises, signals and timers are waited for already",
                    hint="see executions.waiting_max",
                )
            self._waiting.add(wait)
        try:
            yield
        finally:
            self._waiting.discard(wait)

    def tick(self) -> None:
        """Wake those whose time has come by the wall clock."""
        for wait in self._waiting.copy():
            if wait.is_due:
                wait.live.arrived.notify()

    def __len__(self) -> int:
        return len(self._waiting)


class Wait(Generic[Value]):
    """Something that a program waits for. `result()` blocks; `await` does not."""

    def __init__(
        self,
        live: LiveExecution,
        waiters: Waiters,
        look: Callable[[bool], WaitResult | None],
        *,
        first: Sequence[Handover] = (),
        due: Due | None = None,
    ) -> None:
        """`look` says what has come, if anything has; it learns whether the time is up, and then says so.

        What comes `first` is durable before the wait begins.
        """
        self.live = live
        self._waiters = waiters
        self._look = look
        self._first = first
        self._due = due
        self._done: WaitResult | None = None

    @property
    def is_due(self) -> bool:
        """Whether its time is up."""
        return self._due is not None and self._due.left(self.live.clock) <= 0

    def result(self) -> Value:
        """Block until it is there; raises what it came to, ExecutionCanceled, and Full if too many wait."""
        self.begin()
        if not self._try():
            with self._waiters.counted(self):
                while not self._try():
                    self.live.arrived.sleep(self._try, self._pause())
        done = self._found()
        if done.last is not None:
            done.last.settle()
        value: Value = _given(done)
        return value

    def __await__(self) -> Generator[Any, None, Value]:
        for first in self._first:
            yield from first.settle_async().__await__()
        if not self._try():
            with self._waiters.counted(self):
                while not self._try():
                    future = self.live.arrived.future(get_running_loop(), self._pause())
                    if not self._try():  # look again: it may have come before we registered
                        yield from future
        done = self._found()
        if done.last is not None:
            yield from done.last.settle_async().__await__()
        value: Value = _given(done)
        return value

    def begin(self) -> None:
        """Write down, durably, what is waited for; waiting does that first."""
        for first in self._first:
            first.settle()

    def _try(self) -> bool:
        """Whether it is there, or the time is up; what was recorded comes before any wish that the program stop."""
        if self._done is None:
            self._done = self._look(False)
        if self._done is None:
            self.live.check()
            if self.is_due:
                self._done = self._look(True)
        return self._done is not None

    def _found(self) -> WaitResult:
        assert self._done is not None
        return self._done

    def _pause(self) -> float:
        return _LONGEST_S if self._due is None else min(_LONGEST_S, max(0.0, self._due.left(self.live.clock)))


def _given(done: WaitResult) -> Any:
    if done.error is not None:
        raise done.error
    return done.value
