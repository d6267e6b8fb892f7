"""Who is calling: a coroutine, whose event loop must not be blocked, or a caller that may block.

That a loop runs in this thread is not enough to know. In a notebook, and in Python's asynchronous prompt, one always
runs, but the code of a cell is not a coroutine: nothing else happens before it has ended, and it may block. So the
caller's frames are checked, nearest first.
"""

from __future__ import annotations

import sys
from _thread import RLock
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_OPTIMIZED
from types import FrameType
from typing import Protocol, TypeVar
from weakref import ReferenceType, ref

from holdfast.errors import Unavailable

Result = TypeVar("Result")


class InThread(Protocol):
    """How a call that blocks is made for a coroutine."""

    def __call__(self, call: Callable[[], Result], /) -> Awaitable[Result]:
        """What it returns."""


def in_coroutine() -> bool:
    """Whether this is called, directly or through functions, by a coroutine or a callback of the running loop."""
    return _get_running_loop() is not None and _is_in_coroutine(sys._getframe(1))


def _is_in_coroutine(frame: FrameType | None) -> bool:
    while frame is not None:
        flags = frame.f_code.co_flags
        if not flags & CO_OPTIMIZED:  # not a function: a module, or a cell, even one that awaits something
            return False
        if flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
            return True
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "asyncio":
            return True  # a callback
        frame = frame.f_back
    return True


def interrupted() -> Unavailable:
    """The refusal of a call that came in the middle of another one, in the same thread."""
    return Unavailable(
        "this thread was interrupted while it used the log: this call did nothing",
        hint="in a signal handler or __del__, note what is to be written, and append it afterwards",
    )


_innermost: tuple[ReferenceType[RLock], ...] = ()
"""Locks of queues: others wait for them with locks of their own held, and their holders wait for none. Replaced as a
whole, by the holder of `_registering`, and read by anybody."""
_registering = RLock()


def innermost(lock: RLock) -> RLock:
    """A lock whose holder must not wait for another one: the holder of that may be waiting for this."""
    global _innermost  # noqa: PLW0603  one for the process, as its threads are
    if _registering._is_owned():  # type: ignore[attr-defined]
        raise interrupted()
    with _registering:
        _innermost = (*(one for one in _innermost if one() is not None), ref(lock))
    return lock


def refuse_inside() -> None:
    """Raise Unavailable where this thread was interrupted with an innermost lock."""
    for reference in _innermost:
        lock = reference()
        if lock is not None and lock._is_owned():  # type: ignore[attr-defined]
            raise interrupted()


def refuse_second(lock: RLock) -> None:
    """Raise Unavailable where this thread has the lock: a signal handler, or the collector, interrupted it with it.

    Such a lock knows its thread in one step with being taken, so there is no moment in which nobody could tell. So it
    is where the thread has an innermost one: another thread may have this lock, and wait for that.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise interrupted()
    refuse_inside()


def once(lock: RLock) -> RLock:
    """The lock, for `with`, after `refuse_second`: taking it is one step, which a signal cannot tear apart."""
    refuse_second(lock)
    return lock
