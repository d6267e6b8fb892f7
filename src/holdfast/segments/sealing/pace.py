"""The roller's pace: while records are being appended it rests between pieces of work, so that they have precedence.

Sealing and appending share the interpreter, the disk and the database. Sealing has time, appends have none: after each
piece of work the roller rests as long as the work took (times `segments.idle_ratio`), unless nothing was appended
meanwhile, somebody waits for the seal, or the tail is on its way to its limit. Then it works without a rest.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from holdfast.clock import Clock
from holdfast.journal.journal import Journal

_REST_MAX_S = 0.1


class Pace:
    """When to rest, and for how long."""

    def __init__(self, journal: Journal, idle_ratio: float, clock: Clock, is_urgent: Callable[[], bool]) -> None:
        self._journal = journal
        self._idle_ratio = idle_ratio
        self._clock = clock
        self._is_urgent = is_urgent
        self._woken = Event()
        self.begin()

    def begin(self) -> None:
        """A piece of work begins."""
        self._since = self._clock.monotonic()
        self._committed = self._journal.committed_records

    def rest(self) -> None:
        """A piece of work is done; the next one begins after the rest."""
        worked = self._clock.monotonic() - self._since
        if self._journal.committed_records != self._committed and not self._is_urgent():
            self._woken.clear()
            self._woken.wait(min(worked * self._idle_ratio, _REST_MAX_S))
        self.begin()

    def hurry(self) -> None:
        """End a rest: something has become urgent."""
        self._woken.set()
