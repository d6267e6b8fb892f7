"""An event loop whose time jumps to the next timer instead of waiting for it.

An hour of outage takes as long as the work that is done in it. There are no sockets, no threads and no sleeping, and
nothing depends on the machine: one seed is one course of events. What would run in a thread runs on the loop, between
two moments that `thread_delays` says: when the work is done, and when the answer is there; cancelling the waiter does
not stop it, as it would not stop a thread.

Whatever asyncio would only log (an exception that nobody took, a task that was dropped) is kept in `complaints`.
A loop that has nothing left to wait for raises `Stalled` instead of hanging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeVar

Result = TypeVar("Result")
Delays = tuple[float, float]


class Stalled(AssertionError):
    """Everybody waits, and nothing will ever happen."""


class _NumberedTask(asyncio.Task[Any]):
    """A task that hashes to its number: sets of tasks (a TaskGroup has one) are walked in the same order every time."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """Virtual time, from 0 on, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._tasks_begun = 0
        self._selector = self  # BaseEventLoop asks it to wait; we jump
        self.thread_delays: Callable[[], Delays] = lambda: (0.0, 0.0)
        self.complaints: list[str] = []
        self.set_exception_handler(self._complain)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """Seconds since the beginning of this world."""
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Jump to the next timer."""
        if timeout is None:
            raise Stalled(f"everybody waits and nothing will ever happen at={self._now:g}")
        if timeout > 0:
            due: float = self._scheduled[0].when()  # type: ignore[attr-defined]
            self._now = max(self._now, min(due, self._now + timeout))
        return []

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """Do it here, a moment later."""
        future: asyncio.Future[Result] = self.create_future()
        before, after = self.thread_delays()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_later(after, _fail, future, error)
            else:
                self.call_later(after, _answer, future, result)

        self.call_later(before, work)
        return future

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else is there to be woken by."""

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')} {context.get('exception') or ''}")

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> Any:
        task = _NumberedTask(coro, loop=loop, **options)
        self._tasks_begun += 1
        task.number = self._tasks_begun
        return task


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run a world to its end; whatever is left over when it ends is an error."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(main(loop))
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert not left, f"tasks are left over: {left}"
        assert not loop.complaints, loop.complaints
        return result
    finally:
        _bury(loop)


class VirtualClock:
    """The loop's time as a `Clock`, and randomness from a seed."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self._loop = loop
        self._random = Random(seed)

    def now_us(self) -> int:
        """Wall-clock time, which here never jumps."""
        return 1_700_000_000_000_000 + round(self._loop.time() * 1e6)

    def monotonic(self) -> float:
        """The loop's own time."""
        return self._loop.time()

    def random_bytes(self, count: int) -> bytes:
        """The seed's next bytes."""
        return self._random.randbytes(count)


def _answer(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _bury(loop: VirtualLoop) -> None:
    """After a failure: end what still runs, so that the failure is all that is seen."""
    try:
        tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=3600))
    except Stalled:
        pass
    finally:
        loop.close()
