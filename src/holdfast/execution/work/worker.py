"""A worker: it takes queued executions and runs a function for each, so many at a time, until it is stopped.

One event loop does it all. Coroutine functions run on it; others in a thread each. At its start it goes on with all
executions of its queues that a process left without an end: nobody else can be running them, for this process owns the
log. Then it takes what is queued: the highest priority first, then the oldest.

How a run ends, and what becomes of the execution:

    the function returns            completed, with what it returned
    it raises                       queued again, later, while `retries` allow; then failed
    it was canceled                 canceled
    the worker stops, or the log    as it is; a worker goes on with it after its next start
    its program has changed         as it is, with a note; a worker tries again after its next start
    the process dies                as it is; after `attempts_max` such ends it is given up (aborted)

To stop (`stop`, SIGTERM, the end of a `with`, the log's closing) is to *drain*: nothing more is taken, steps that run
are finished, and each program leaves off before its next step. What does not leave off within `drain_timeout` seconds
is cancelled if it is a coroutine, and left alone if it is a thread; what it does then is not recorded.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import RLock
from asyncio.events import _get_running_loop
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from threading import Thread, current_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.arguments import seconds, texts, whole
from holdfast.caller import once
from holdfast.clock import SystemClock
from holdfast.errors import (
    Closed,
    Diverged,
    ExecutionCanceled,
    ExecutionHeld,
    HoldfastError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.execution.journal.entries import ExecutionRow
from holdfast.execution.work.rate_limit import RateLimit
from holdfast.execution.work.work_function import work_functions
from holdfast.execution.work.work_queue import DEFAULT
from holdfast.execution.work.work_run import ClaimedExecution, RetryPolicy
from holdfast.process_lifetime import at_end_signals
from holdfast.signals import Flag

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom

logger = logging.getLogger("holdfast.execution")

_IDLE_S = 60.0
_CONCURRENCY_MAX = 10_000
_HELD_S = 0.05
"""How long one is left alone that is held."""
_TROUBLE_S = 5.0
"""How long an execution is left alone whose journal could not be written."""

Functions = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]]


class Worker:
    """Runs executions of one log; `run()`, `await run_async()`, or `with worker:` in the background."""

    def __init__(
        self,
        room: ExecutionRoom,
        functions: Functions,
        *,
        concurrency: int = 8,
        rate: float | None = None,
        queues: Iterable[str] = (DEFAULT,),
        retries: int = 0,
        backoff: float = 1.0,
        attempts_max: int = 100,
        drain_timeout: float = 20.0,
    ) -> None:
        self._room = room
        self._functions = work_functions(functions)
        self._concurrency = _counted(concurrency, "concurrency", _CONCURRENCY_MAX)
        self._rate = RateLimit(rate)
        self._queues = frozenset(texts(queues, "queues", DEFAULT))
        self._policy = RetryPolicy(
            _counted(retries, "retries", 2**31, least=0),
            seconds(backoff, "backoff"),
            _counted(attempts_max, "attempts_max", 2**31),
        )
        self.drain_timeout = seconds(drain_timeout, "drain_timeout")
        self._monotonic = SystemClock().monotonic
        """Pauses are real time, whatever clock the log was given."""
        self._lock = RLock()
        self._is_serving = False
        self._is_stopping = False
        self._is_hurried = False
        self._failure: Closed | None = None
        """Why nothing more can be run."""
        self._ended = Flag()
        self._thread: Thread | None = None
        self._serving_thread: Thread | None = None
        self._runs: dict[asyncio.Task[None], ClaimedExecution] = {}
        self._threads: set[Thread] = set()
        self._left: deque[ExecutionRow] = deque()
        """Executions without an end that a process left."""
        self._later: list[tuple[float, ExecutionRow]] = []
        """Those whose journal could not be written, and when to go on with them."""

    @property
    def running(self) -> int:
        """How many executions it is running now."""
        return len(self._runs)

    # -- its life ---------------------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop()`, SIGTERM, SIGINT or the log's end, then drain; with `until_idle` also until all is done.

        Raises Closed if the log has failed (a broken disk): close it and open it again. Signals are caught in the main
        thread only. The second one does not wait for programs to leave off.
        """
        if _get_running_loop() is not None:
            raise Invalid("this would block the event loop", hint="use: await worker.run_async()")
        with at_end_signals(self._signaled):
            asyncio.run(self.run_async(until_idle=until_idle))

    async def run_async(self, *, until_idle: bool = False) -> None:
        """What `run` does, on the caller's loop, where its coroutine functions run, too; it catches no signals.

        Cancelling it cancels the coroutine functions that run, and leaves their executions as they are.
        """
        self._begin()
        try:
            await self._serve(until_idle)
            await self._drain()
            if self._failure is not None:
                raise self._failure.again()
        finally:
            for run in list(self._runs):
                run.cancel()
            await asyncio.gather(*self._runs, return_exceptions=True)
            self._end()

    def stop(self) -> None:
        """Ask it to drain; returns at once, from any thread. No program begins another step after that."""
        self._is_stopping = True
        self._suspend_all()
        self._room.queue.changed.notify()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; whether it has. Never waits for itself."""
        own = current_thread()
        if not self._is_serving or own is self._serving_thread or own in self._threads:
            return not self._is_serving
        return self._ended.wait(timeout)

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._run_beside, name="holdfast-worker", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _run_beside(self) -> None:
        try:
            asyncio.run(self.run_async())
        except HoldfastError as error:
            logger.error("a worker ended: %s", error.message, extra={"action": "worker_ended"})

    def _begin(self) -> None:
        with once(self._lock):
            if self._is_serving:
                raise Invalid("this worker is running already", hint="make another one with log.worker(…)")
            self._is_serving = True
        self._is_hurried = False
        self._failure = None
        self._ended.clear()
        self._serving_thread = current_thread()
        self._room.workers.add(self)

    def _end(self) -> None:
        self._room.workers.discard(self)
        self._serving_thread = None
        self._is_serving = self._is_stopping = False
        self._ended.set()

    def _signaled(self) -> None:
        if self._is_stopping:
            self._is_hurried = True
        self.stop()

    # -- taking -----------------------------------------------------------------------------------------------

    async def _serve(self, until_idle: bool) -> None:
        self._left = deque(self._orphans())
        while not self._is_stopping:
            if self._take():
                continue
            if until_idle and not self._runs and not self._left and not self._later:
                return
            future = self._room.queue.changed.future(asyncio.get_running_loop(), self._pause())
            if self._is_stopping or self._take():  # look again: it may have come before we registered
                future.cancel()
                continue
            await future

    def _orphans(self) -> list[ExecutionRow]:
        """Executions of these queues that nobody runs and that have no end, the oldest first."""
        rows = [
            row for row in self._room.store.rows.copy().values() if row.queue in self._queues and self._is_left(row)
        ]
        unknown = {row.kind for row in rows} - self._functions.keys()
        if unknown:
            logger.warning(
                "executions were left that no function here can resume kinds=%s",
                ", ".join(sorted(unknown)),
                extra={"action": "worker_unknown_kinds"},
            )
        return sorted((row for row in rows if row.kind in self._functions), key=lambda row: row.created_us)

    def _is_left(self, row: ExecutionRow) -> bool:
        """Whether it has no end and no program; it may be being changed by hand."""
        return row.status == "running" and self._room.live.get(row.execution) is None

    def _take(self) -> bool:
        """Begin to run the next one; whether there was one, and room for it."""
        clock = self._room.clock
        if len(self._runs) >= self._concurrency or self._rate.wait(clock.monotonic()) > 0:
            return False
        row = self._next_left() or self._room.queue.take(self._queues, self._functions, clock.now_us())
        if row is None:
            return False
        self._rate.take(clock.monotonic())
        taken = ClaimedExecution(self._room, row, self._functions[row.kind], self._policy)
        run = asyncio.get_running_loop().create_task(self._run(taken))
        self._runs[run] = taken
        run.add_done_callback(self._over)
        return True

    def _next_left(self) -> ExecutionRow | None:
        now = self._monotonic()
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        self._left.extend(row for _, row in due)
        while self._left:
            row: ExecutionRow | None = self._room.store.rows.get(self._left.popleft().execution)
            if row is not None and self._is_left(row):
                return row
            if row is not None:
                self._room.queue.add(row)
        return None

    def _pause(self) -> float:
        """Seconds until there may be something to do without a notification."""
        clock = self._room.clock
        waits = [_IDLE_S, self._rate.wait(clock.monotonic()) or _IDLE_S]
        waits += [due - self._monotonic() for due, _ in self._later]
        due_us = self._room.queue.due_us(self._queues, self._functions)
        if due_us is not None and len(self._runs) < self._concurrency:
            waits.append((due_us - clock.now_us()) / 1e6)
        return max(0.001, min(waits))

    # -- running ----------------------------------------------------------------------------------------------

    async def _run(self, taken: ClaimedExecution) -> None:
        """Run one; a failure is its own end, or is logged here, and never ends the worker."""
        try:
            if taken.function.is_async:
                await taken.run_async()
            else:
                await self._in_thread(taken)
        except ExecutionCanceled:
            pass
        except ExecutionHeld:
            # Another worker runs it, or it is changed by hand: then it may be waiting again in a moment.
            self._later.append((self._monotonic() + _HELD_S, taken.row))
        except Diverged as error:
            self._tell(taken, "an execution cannot continue, its program has changed: %s", error.message, logging.ERROR)
            await asyncio.to_thread(self._room.administration.note, taken.row.execution, error.message)
        except Closed as error:
            if self._room.live.closed is None:  # nobody has closed the log: it has failed
                self._failure = error
            self.stop()
        except (Unavailable, OutcomeUnknown) as error:
            self._tell(taken, "an execution is put off: %s", error.message, logging.WARNING)
            self._later.append((self._monotonic() + _TROUBLE_S, taken.row))
        except HoldfastError as error:
            self._tell(taken, "an execution cannot be run: %s", error.message, logging.ERROR)

    async def _in_thread(self, taken: ClaimedExecution) -> None:
        """Run it in a thread of its own; one that does not come back keeps neither the loop nor the process."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        context = copy_context()

        def body() -> None:
            error: BaseException | None = None
            try:
                context.run(taken.run)
            except BaseException as raised:
                error = raised
            self._threads.discard(current_thread())
            try:
                loop.call_soon_threadsafe(_resolve, done, error)
            except RuntimeError:  # the worker did not wait for it
                pass

        thread = Thread(target=body, name=f"holdfast-worker {taken.row.kind}", daemon=True)
        self._threads.add(thread)
        thread.start()
        await done

    def _over(self, run: asyncio.Task[None]) -> None:
        taken = self._runs.pop(run)
        if not run.cancelled() and (error := run.exception()) is not None:
            self._tell(taken, "an execution cannot be run: %s", type(error).__name__, logging.ERROR)
        self._room.queue.changed.notify()

    def _tell(self, taken: ClaimedExecution, words: str, reason: str, level: int) -> None:
        logger.log(
            level,
            words + " kind=%s execution=%s",
            reason,
            taken.row.kind,
            taken.row.execution,
            extra={"action": "worker_run", "execution": str(taken.row.execution), "kind": taken.row.kind},
        )

    # -- draining ---------------------------------------------------------------------------------------------

    def _suspend_all(self) -> None:
        for taken in self._runs.copy().values():
            taken.suspend()

    async def _drain(self) -> None:
        """Let programs leave off before their next step."""
        deadline = self._monotonic() + self.drain_timeout
        while self._runs and not self._is_hurried and (left := deadline - self._monotonic()) > 0:
            self._suspend_all()
            future = self._room.queue.changed.future(asyncio.get_running_loop(), min(left, 1.0))
            if self._runs and not self._is_hurried:
                await future
        if self._runs:
            logger.warning(
                "a worker ends before its programs have left off running=%d",
                len(self._runs),
                extra={"action": "worker_not_drained"},
            )


def _resolve(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    elif isinstance(error, Exception):
        done.set_exception(error)
    else:  # SystemExit and the like end the program that raised them, not the worker
        done.cancel()


def _counted(value: object, name: str, most: int, least: int = 1) -> int:
    number = whole(value, name)
    if not least <= number <= most:
        raise Invalid(f"{name} is between {least} and {most}", hint=f"for instance {name}=8")
    return number
