"""The roller's pace: while records are being appended it rests between pieces of work, so that they have precedence.

Sealing and appending share the interpreter, the disk and the database. Sealing has time, appends have none: after each
piece of work the roller rests `segments.idle_ratio` times as long as the work took, unless nothing was appended
meanwhile. It rests less where sealing would fall behind by it; the roller says so.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.journal.journal import Journal
from holdfast.signals import Flag

_REST_MAX_S = 0.1


class Pace:
    """When to rest, and for how long."""

    def __init__(self, journal: Journal, idle_ratio: Callable[[], float], clock: Clock) -> None:
        self._journal = journal
        self._idle_ratio = idle_ratio
        self._clock = clock
        self._woken = Flag()
        self.begin()

    def begin(self) -> None:
        """A piece of work begins."""
        self._since = self._clock.monotonic()
        self._committed = self._journal.committed_records

    def rest(self) -> None:
        """A piece of work is done; the next one begins after the rest."""
        worked = self._clock.monotonic() - self._since
        ratio = self._idle_ratio()
        if ratio and self._journal.committed_records != self._committed:
            self._woken.clear()
            self._woken.wait(min(worked * ratio, _REST_MAX_S))
        self.begin()

    def hurry(self) -> None:
        """End a rest: something has become urgent."""
        self._woken.set()
