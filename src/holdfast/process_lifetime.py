"""Logs that are open, and what becomes of them when the process forks or ends without closing them; its end by signals.

A forked child forgets its parent's logs, or reopens those that are shared. When the interpreter ends, a log that is
still open is finished in two steps, a safety net for those who forgot to close it:

    settle    when the main thread has ended: what was queued is made durable, sealed and shipped. Python stops its
              executors right after this, so there is no later moment. It is skipped while other threads (not daemons)
              still run, because they may run for days
    close     after all of them and after the application's own `atexit` calls, which may still append: what is queued
              then is made durable, and the directory is released

Both are bounded by the time-outs in the settings. A process that is killed or calls `os._exit` runs neither.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import thread as executors
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

logger = logging.getLogger("holdfast")

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class OpenHandle(Protocol):
    """An open log, as seen from here."""

    def before_fork(self) -> None:
        """The process is about to fork: let go of what a child must not inherit."""

    def after_fork(self) -> None:
        """It has forked, and this is the parent: go on."""

    def forget(self) -> None:
        """In a forked child: never touch what is the parent's."""

    def settle_at_exit(self) -> None:
        """Make durable, seal and ship what is there; go on taking records."""

    def close_at_exit(self) -> None:
        """Make durable what is there, and let go."""


class Threads(executors.ThreadPoolExecutor):
    """An executor that still takes work after the main thread has ended, while other threads run.

    Python's own refuse it from then on. Here each call then gets a thread of its own. Where there was to be only one
    thread, or none can be started, the call is made at once.
    """

    def submit(
        self, call: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """As `Executor.submit`."""
        if not is_ending():
            try:
                return super().submit(call, *args, **kwargs)
            except RuntimeError:
                if not is_ending():  # this very one was shut down
                    raise
        future: Future[Result] = Future()
        if self._max_workers == 1:  # one call after the other
            _run(future, call, args, kwargs)
            return future
        try:
            threading.Thread(target=_run, args=(future, call, args, kwargs), name="holdfast-late", daemon=True).start()
        except RuntimeError:
            _run(future, call, args, kwargs)
        return future


def _run(future: Future[Any], call: Callable[..., Any], args: Any, kwargs: Any) -> None:
    try:
        future.set_result(call(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


_opened: WeakSet[OpenHandle] = WeakSet()
_state = {"registered": False, "ending": False}


def keep(log: OpenHandle) -> None:
    """A log is open."""
    _opened.add(log)
    if not _state["registered"]:
        _register()


def drop(log: OpenHandle) -> None:
    """It is closed."""
    _opened.discard(log)


def holding(handle: Result, log: object) -> Result:
    """What a caller got of a log, and may keep without it: the log stays open for as long as this is there.

    Only for what the log itself does not hold: else it would hold itself, and never end when it is forgotten.
    """
    handle._held_log = log  # type: ignore[attr-defined]  # by `vars` it would be slower from then on
    return handle


def let_go(handle: object) -> object:
    """The log that a handle was holding; for a block that ends, whose handle others may keep for its results."""
    return vars(handle).pop("_held_log", None)


def is_ending() -> bool:
    """Whether the interpreter has begun to end: executors take no more work, and threads may not be started."""
    return _state["ending"]


def _register() -> None:
    _state["registered"] = True
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
    _hook_exit()


def _hook_exit() -> None:
    # Called in reverse order: after the import of `executors`, which registers its own end in the same way.
    hook = getattr(threading, "_register_atexit", None)
    try:
        if hook is not None:
            hook(_settle_all)
    except RuntimeError:  # the main thread has ended already
        pass
    atexit.register(_close_all)


def _settle_all() -> None:
    try:
        if not _others_work():
            for log in list(_opened):
                _try(log.settle_at_exit)
    finally:
        _state["ending"] = True


def _others_work() -> bool:
    """Whether threads of the application still run; workers of executors do not count, they wait for us."""
    workers = set(getattr(executors, "_threads_queues", ()))
    here = threading.current_thread()
    return any(not (one is here or one.daemon or one in workers) for one in threading.enumerate())


def _close_all() -> None:
    for log in list(_opened):
        _try(log.close_at_exit)


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:  # the next log must be ended all the same
        logger.exception("ending with an open log", extra={"action": "exit_failed"})


def _before_fork() -> None:
    for log in list(_opened):
        _try(log.before_fork)


def _after_fork_in_parent() -> None:
    for log in list(_opened):
        _try(log.after_fork)


def _after_fork() -> None:
    inherited = list(_opened)
    _opened.clear()  # first: one that is shared opens anew
    _state["ending"] = False
    for log in inherited:
        log.forget()


@contextmanager
def at_end_signals(call: Callable[[], object]) -> Iterator[None]:
    """Call this at SIGTERM and SIGINT, instead of what was to happen before; in the main thread, where they arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(_number: int, _frame: FrameType | None) -> None:
        call()

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)
