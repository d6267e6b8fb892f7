"""Parts of a store's objects, requested before they are needed, so that a reading does not wait for each in turn.

One reading owns one `Prefetch` and closes it. It says which objects it will open, in order, and what it will read next
of the one that is open. As much is requested ahead as the limits allow: so many requests at once, and so many bytes
that are under way or waiting to be taken. What does not fit is fetched when its turn comes. Nothing here is proved or
decoded: the consumer of the bytes does that, as with all others.

Failures wait for their place: what went wrong ahead is raised when the reading gets there, and not before. A store that
was only unavailable is tried again then, with all the retries of the settings; ahead it is tried once.

Closing begins nothing new, forgets what came, and waits for nobody: it may run in the garbage collector, in any thread.
A request that is under way ends by itself, and its thread with it. Threads are daemons, so the end of the interpreter
does not wait for a store that hangs; it gives requests a moment, because they may be in code that must not be
interrupted. After a fork the child has none of this, and reads one part after the other.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from holdfast.clock import SystemClock
from holdfast.reader.object_bytes import ByteRange, fetch
from holdfast.store.port import Store, StoreUnavailable

_QUEUED = 2
"""Parts that are asked for or waiting to be taken, for each request that may be under way."""
_EXIT_SECONDS = 1.0

_monotonic = SystemClock().monotonic

_Job = tuple[ByteRange, "Future[memoryview]"]


class Prefetch:
    """What one reading has asked for. Used by one thread at a time."""

    def __init__(self, store: Store, parts: Iterable[ByteRange], *, requests_max: int, bytes_max: int) -> None:
        """`parts` are those that the reading will take, one after the other, whatever it takes in between."""
        self._store = store
        self._parts = iter(parts)
        self._next: ByteRange | None = next(self._parts, None)
        self._requests_max, self._bytes_max = requests_max, bytes_max
        self._futures: dict[ByteRange, Future[memoryview]] = {}
        self._bytes = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = 0
        self._pid = os.getpid()
        self._is_closed = False
        _open.add(self)

    def read(self, part: ByteRange) -> memoryview:
        """A part that was asked for, or one that is fetched now; raises FileNotFoundError or what the store says."""
        if part == self._next:
            self._next = next(self._parts, None)
        future = self._futures.pop(part, None) if self._is_ours() else None
        if future is not None:
            self._bytes -= part.size
        self._top_up()
        if future is None:
            return fetch(self._store, part)
        try:
            return future.result()
        except StoreUnavailable:
            return fetch(self._store, part)

    def announce(self, parts: Iterable[ByteRange]) -> None:
        """What will be read next of the object that is open: it goes before everything behind it."""
        for part in parts:
            if part not in self._futures and not (self._has_room(part, self._bytes_max) and self._ask(part)):
                return

    def forget(self, parts: Iterable[ByteRange]) -> None:
        """These are not needed after all."""
        for part in parts:
            if (future := self._futures.pop(part, None)) is not None and self._is_ours():
                self._bytes -= part.size
                future.cancel()

    def close(self) -> None:
        """Ask for nothing more; closing again does nothing."""
        if self._is_closed or not self._is_ours():
            return
        self._is_closed = True
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()
        try:
            while True:
                self._jobs.get_nowait()
        except Empty:
            pass
        for _ in range(self._threads):
            self._jobs.put(None)

    def _top_up(self) -> None:
        # Half of the bytes are for what is announced: that is needed first.
        while (
            (part := self._next) is not None
            and len(self._futures) < _QUEUED * self._requests_max
            and self._has_room(part, self._bytes_max // 2)
            and (part in self._futures or self._ask(part))
        ):
            self._next = next(self._parts, None)

    def _has_room(self, part: ByteRange, bytes_max: int) -> bool:
        return self._bytes + part.size <= bytes_max

    def _ask(self, part: ByteRange) -> bool:
        if not self._is_ours() or not self._has_thread():
            return False
        answer: Future[memoryview] = Future()
        self._futures[part] = answer
        self._bytes += part.size
        self._jobs.put((part, answer))
        return True

    def _has_thread(self) -> bool:
        """Start one more, up to the limit; False if there is none."""
        if self._threads < self._requests_max:
            work = threading.Thread(
                target=_work, args=(_asked_once(self._store), self._jobs), name="holdfast-prefetch", daemon=True
            )
            try:
                work.start()
            except RuntimeError:  # the interpreter ends, or the system has no more of them
                return self._threads > 0
            self._threads += 1
            _at_work.add(work)
        return True

    def _is_ours(self) -> bool:
        """Whether this is the process that asked: threads and locks of another one answer nothing."""
        return not self._is_closed and self._pid == os.getpid()


@contextmanager
def prefetching(store: Store, parts: Iterable[ByteRange], *, requests_max: int, bytes_max: int) -> Iterator[Prefetch]:
    """A `Prefetch` for the length of a `with`."""
    prefetch = Prefetch(store, parts, requests_max=requests_max, bytes_max=bytes_max)
    try:
        yield prefetch
    finally:
        prefetch.close()


def _asked_once(store: Store) -> Store:
    """The same store without repetitions: nobody may be waiting for the answer any more."""
    return store.without_retries() if isinstance(store, _Repeating) else store


@runtime_checkable
class _Repeating(Protocol):
    """A store that repeats what failed, and can be asked not to. Known by that: not every reader has S3's parts."""

    def without_retries(self) -> Store:
        """The same store, asked once for everything."""


# -- threads ----------------------------------------------------------------------------------------------


def _work(store: Store, jobs: SimpleQueue[_Job | None]) -> None:
    # Hazard: no reference to the Prefetch here, nor to an answer while waiting, or nobody could forget them.
    while _do_next(store, jobs):
        pass


def _do_next(store: Store, jobs: SimpleQueue[_Job | None]) -> bool:
    job = jobs.get()
    if job is None:
        return False
    part, answer = job
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(fetch(store, part))
        except BaseException as error:  # raised where the reading gets to this part
            answer.set_exception(error)
    return True


_open: WeakSet[Prefetch] = WeakSet()
_at_work: WeakSet[threading.Thread] = WeakSet()


def _at_exit() -> None:
    """Whatever is still open is closed, and requests get a moment to end."""
    for prefetch in list(_open):
        prefetch.close()
    give_up = _monotonic() + _EXIT_SECONDS
    for thread in list(_at_work):
        thread.join(max(0.0, give_up - _monotonic()))


atexit.register(_at_exit)
