"""Groups in line: the side that takes them, a writer or a forwarder. Callers bring records on the other, `Queue`.

A writer sleeps here, in `take`; a forwarder has its own way to sleep, is woken by its `wake` when there may be a group,
and checks by `poll`. Either sleeps in one of two ways: *idle* (anything wakes it) and *lingering* (only buffered
records are there; an acknowledged one, a full group or closing wakes it, else the flush interval does).
"""

from __future__ import annotations

from _thread import LockType, RLock, allocate_lock
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.caller import innermost, interrupted
from holdfast.errors import HoldfastError
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.group import Group
from holdfast.signals import Signal, Wake

AWAKE, IDLE, LINGERING = 0, 1, 2


class QueuedGroups:
    """Groups that wait, the one that is open, and those that were taken and are not settled; one lock guards them.

    The holder of the lock may be interrupted at any step by a signal handler, or by the collector (`__del__`), that
    uses the log in the same thread. It would wait forever for what only it can let go of, or change what is half
    changed. So the lock knows its thread, in one step with being taken, and who comes a second time is refused.
    """

    def __init__(self, settings: JournalSettings, wake: Wake | None) -> None:
        self._settings = settings
        self.lock = self._lock = innermost(RLock())
        self._is_inside: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        """Whether this thread has the lock already: then it was interrupted with it, and calls a second time."""
        self._sleep = allocate_lock()
        self._sleep.acquire()
        self._wake: Wake | LockType = self._sleep if wake is None else wake
        self._hurry_wake = None if wake is None else wake.hurry
        self._asleep = AWAKE
        self._closed: deque[Group] = deque()
        self._open = Group(0, 0, self._hurry)
        self._taken: list[Group] = []
        """Groups that are being committed, or are on their way to the owner; a writer has one at a time."""
        self._pending_records = 0
        self._pending_bytes = 0
        """Records and bytes of all groups but the open one: queued or being committed."""
        self.room = Signal()
        """Notified when there may be room for more."""
        self._refusal: HoldfastError | None = None
        self._finishing = False

    def take(self, done: Group | None = None, idle: tuple[float, Callable[[], None]] | None = None) -> Group | None:
        """The next group to commit; waits for one. None when the queue is finished and empty.

        `done` is the one before, if it was not said yet that it is settled: one lock for both. `idle` is what to do,
        once, where nothing comes for so many seconds.
        """
        lingered = False
        while True:
            with self._lock:
                if done is not None:
                    self._settle(done)
                    done = None
                group = self._next(lingered=lingered)
                if group is not None or self._asleep == AWAKE:
                    return group
                is_lingering = self._asleep == LINGERING
                pause = -1 if idle is None else idle[0]
                timeout = self._settings.flush_interval_ms / 1000 if is_lingering else pause
            is_roused = self._sleep.acquire(timeout=timeout)
            lingered = is_lingering and not is_roused
            if not is_roused:
                self._end_linger()
            if idle is not None and not (is_roused or lingered):
                idle[1]()
                idle = None

    def poll(self, *, lingered: bool = False) -> Group | None:
        """The next group if one is due; for a taker that sleeps elsewhere and is roused by the wake.

        With `lingered`, what is in no hurry is due, too. Where there is none, see `is_lingering` and `is_finished`.
        """
        with self._lock:
            return self._next(lingered=lingered)

    @property
    def is_lingering(self) -> bool:
        """Whether there is something that is in no hurry, and nothing else."""
        return self._asleep == LINGERING

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to take, and nothing will come."""
        with self._lock:
            return self._finishing and not (self._closed or self._open.items or self._open.acked)

    def put_back(self, taken: Sequence[Group]) -> None:
        """Only these were taken: a signal struck the taker of another one. It comes again, before all others."""
        with self._lock:
            lost = [one for one in self._taken if one not in taken and one is not self._open and not one.done]
            self._closed.extendleft(reversed([one for one in lost if one not in self._closed]))
            self._taken = [*taken]
            pending = [*self._closed, *taken]
            self._pending_records = sum(group.records for group in pending)
            self._pending_bytes = sum(group.bytes for group in pending)

    def complete(self, group: Group) -> None:
        """The group is settled: what it held makes room."""
        with self._lock:
            self._settle(group)

    def _settle(self, group: Group) -> None:
        if group not in self._taken:  # a signal struck the thread that said so before
            return
        self._taken.remove(group)
        self._pending_records -= group.records
        self._pending_bytes -= group.bytes
        self.room.notify()  # the thread that it wakes waits for the lock

    def abandon(self, refusal: HoldfastError) -> list[Group]:
        """Take nothing more and hand over all that waits; used when the writer cannot go on."""
        with self._lock:
            self._refusal = refusal
            groups = [*self._closed, self._open]
            self._pending_records -= sum(group.records for group in self._closed)
            self._pending_bytes -= sum(group.bytes for group in self._closed)
            self._closed.clear()
            self._open = Group(0, 0, self._hurry)
            self._open.finish(refusal)  # nobody takes it: who waits for a barrier from now on waits for nothing
        self.room.notify()
        return groups

    def refuse_second(self) -> None:
        """Refuse this call, if its thread was interrupted in the middle of another one."""
        if self._is_inside():
            raise interrupted()

    def _hurry(self) -> None:
        """A thread is about to block until a group is done: not one that keeps it from being taken."""
        self.refuse_second()
        if self._hurry_wake is not None:
            self._hurry_wake()

    def refuse_within(self, has_other: Callable[[], bool]) -> None:
        """Refuse calls also where a thread was interrupted with something else that groups need on their way."""
        is_owned = self._lock._is_owned  # type: ignore[attr-defined]
        self._is_inside = lambda: is_owned() or has_other()

    # -- with the lock held -------------------------------------------------------------------------------

    def _next(self, *, lingered: bool) -> Group | None:
        """Take a group; where there is none, say in which way to sleep, or stay awake: nothing will come."""
        self._asleep = AWAKE
        if self._closed:
            self._taken.append(self._closed[0])
            return self._closed.popleft()
        group = self._open
        if group.items or group.acked:
            if group.acked or self._finishing or lingered:
                self._taken.append(group)
                return self._rotate()
            self._asleep = LINGERING
        elif not self._finishing:
            self._asleep = IDLE
        return None

    def _rouse(self) -> None:
        # In this order, and forgiving: a caller interrupted in between leaves a writer that wakes all the same.
        try:
            self._wake.release()
        except RuntimeError:  # it was roused already
            pass
        self._asleep = AWAKE

    def _end_linger(self) -> None:
        """The time is over; a caller may have woken us at that very moment."""
        with self._lock:
            self._asleep = AWAKE
            self._sleep.acquire(blocking=False)

    def _rotate(self) -> Group:
        group = self._open
        self._pending_records += group.records
        self._pending_bytes += group.bytes
        self._open = Group(0, 0, self._hurry)
        return group
