"""The time by which retention removes what is old.

A wall clock may be wrong by years for a few seconds, and what was removed meanwhile does not come back: an execution
that is forgotten runs again, with all its effects. So nothing is removed for its age by the wall clock alone. All who
remove ask here, and get the wall clock's time only where something else supports it:

- while a log is open, the monotonic clock: it says how much time has passed;
- when it is opened, the time that was written down when it was open last (`journal.time_keeper`);
- for tables at a root, when its last commits were written, as their store says (`newest_supported`);
- for compaction of a root and retention of sinks' topics, when segments were sealed (`root.root_time`).

Up to a limit (`journal.clock_jump_max_ms`, a day) the clock may be ahead of these. Further ahead, it has *jumped*:
that is logged, and until the jump is believed, time goes on here as if there were none. It is believed when the clock
has stayed there for as long as the limit, with the log open; or when the log is opened again that much later, by a
clock that has gone on. So a log that was closed for 400 days begins to remove a day later, and a clock that is wrong
for less than a day removes nothing. The same is true of a clock that was set back; nothing is ever removed by a time
that is later than the wall clock, and nothing is stamped with one that is earlier than what is known, since it would
look old when the clock is set right.

What becomes due, such as timers of executions and schedules, follows the wall clock; it fires early, and is not lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from holdfast.clock import Clock

JUMP_MAX_US = 86_400_000_000
"""How far ahead a clock may be, where nobody has set another limit."""
_CLOSED_LONG_US = 30 * 86_400_000_000
"""A log that was closed for less is nothing to warn of."""

logger = logging.getLogger("holdfast")


class TimeCheckpoint(NamedTuple):
    """What is written down for the next time."""

    time_us: int
    """A time that has certainly come."""
    jumped_us: int = 0
    """What the wall clock said, while that was not believed; else 0 …"""
    waited_us: int = 0
    """… and for how long it had stayed there."""


class _TimeState(NamedTuple):
    """What is known about the time; replaced, never changed."""

    time_us: int
    """A time that has certainly come …"""
    at: float
    """… and when that was known (monotonic)."""
    jump: tuple[int, float] | None = None
    """How far the clock is ahead, and since when (monotonic), while that is not believed."""
    is_first: bool = True
    """Nobody has looked yet: what is found now happened while the log was closed."""

    def expected_us(self, at: float) -> int:
        """The time that it should be at this moment."""
        return self.time_us + round((at - self.at) * 1e6)


class TrustedTime:
    """The time of one open log. Any thread may ask, a signal handler too: nobody waits for anybody here.

    What is known is one value. A thread with `_lock` replaces it; one that does not get it at once answers by what is
    known now, and leaves the looking to the one that has it.
    """

    def __init__(self, clock: Clock, known_us: int, jump_max_us: int = JUMP_MAX_US) -> None:
        """`known_us` is a time that has certainly come."""
        self._clock = clock
        self._jump_max_us = jump_max_us
        self._lock = Lock()
        self._known = _TimeState(known_us, clock.monotonic())
        self.recalled = TimeCheckpoint(known_us)
        """What was written down when the log was opened."""

    def now_us(self) -> int:
        """The time by which things are old; never later than the wall clock."""
        return self.range_us()[0]

    def range_us(self) -> tuple[int, int]:
        """The earliest and the latest that it may be: what is removed is old by the one, and stamped with the other."""
        known, wall_us, at = self._look()
        expected_us = wall_us if known.jump is None else known.expected_us(at)
        return min(wall_us, expected_us), max(wall_us, expected_us)

    @property
    def ahead_seconds(self) -> float:
        """How far the wall clock is from the time that is believed; 0 while it is believed."""
        known, _, _ = self._look()
        return 0.0 if known.jump is None else known.jump[0] / 1e6

    @property
    def known(self) -> TimeCheckpoint:
        """What to write down now."""
        known, wall_us, at = self._look()
        if known.jump is None:
            return TimeCheckpoint(known.expected_us(at))
        return TimeCheckpoint(known.expected_us(at), wall_us, round((at - known.jump[1]) * 1e6))

    def recall(self, known: TimeCheckpoint) -> None:
        """Go on with what was written down when the log was open last; before anybody asks."""
        wall_us, at = self._clock.now_us(), self._clock.monotonic()
        self.recalled, time_us = known, max(self._known.time_us, known.time_us)
        ahead_us, waited_us = wall_us - time_us, known.waited_us + wall_us - known.jumped_us
        is_same_way = (known.jumped_us > time_us) == (ahead_us > 0)
        goes_on = known.jumped_us and is_same_way and waited_us >= known.waited_us and abs(ahead_us) > self._jump_max_us
        self._known = _TimeState(time_us, at, (ahead_us, at - waited_us / 1e6) if goes_on else None)
        if goes_on and waited_us < self._jump_max_us:
            self._warn(self._known, ahead_us)

    def _look(self) -> tuple[_TimeState, int, float]:
        """What is known now that a thread has looked, and the clocks at that moment."""
        wall_us, at = self._clock.now_us(), self._clock.monotonic()
        is_ours = self._lock.acquire(blocking=False)
        try:
            before = self._known
            known = self._seen(before, wall_us, at)
            if is_ours:
                self._known = known
        finally:
            if is_ours:
                self._lock.release()
        if is_ours and known.jump is not None and (before.jump is None or known.jump[1] != before.jump[1]):
            self._warn(before, known.jump[0])
        elif is_ours and known.jump is None and before.jump is not None:
            logger.info("the clock is believed again", extra={"action": "clock_believed"})
        return known, wall_us, at

    def _seen(self, known: _TimeState, wall_us: int, at: float) -> _TimeState:
        """What is known when the clocks say this. Pure."""
        ahead_us = wall_us - known.expected_us(at)
        if abs(ahead_us) <= self._jump_max_us:
            return _TimeState(wall_us, at, is_first=False)
        jump = known.jump
        if jump is None or abs(ahead_us - jump[0]) > self._jump_max_us:
            jump = ahead_us, at
        if (at - jump[1]) * 1e6 >= self._jump_max_us:  # it has lasted long enough
            return _TimeState(wall_us, at, is_first=False)
        return known._replace(jump=jump, is_first=False)

    def _warn(self, before: _TimeState, ahead_us: int) -> None:
        is_usual = before.is_first and 0 < ahead_us < _CLOSED_LONG_US
        logger.log(
            logging.INFO if is_usual else logging.WARNING,
            "the clock is %.0f s %s what this log knows: nothing is removed for its age until it has stayed there for"
            " %.0f s. If it is wrong, set it; if it is right, wait, or open the log once with a higher"
            " journal.clock_jump_max_ms",
            abs(ahead_us) / 1e6,
            "ahead of" if ahead_us > 0 else "behind",
            self._jump_max_us / 1e6,
            extra={"action": "clock_jump", "seconds": ahead_us / 1e6},
        )


def newest_supported(stamps_us: Iterable[int], wall_us: int, jump_max_us: int = JUMP_MAX_US) -> int:
    """The time of a process that runs briefly: the wall clock's, as far as earlier times support it. Pure.

    `stamps_us` are when things were written, in the order in which they were. Each supports those that are not more
    than the limit away. Further away begins a jump, which is believed when something came that much later still.
    """
    known_us: int | None = None
    jumped_us: int | None = None
    for stamp_us in (*stamps_us, wall_us):
        if jumped_us is not None and stamp_us - jumped_us >= jump_max_us:
            known_us = jumped_us
        if known_us is None or abs(stamp_us - known_us) <= jump_max_us:
            known_us, jumped_us = stamp_us, None
        elif jumped_us is None or known_us == jumped_us or stamp_us < jumped_us:
            jumped_us = stamp_us
    return wall_us if known_us is None else min(known_us, wall_us)
