"""Something that goes wrong again and again: logged at once, then less and less often, and once more when it is over.

A disk that is full fails every group and every seal, thousands of times. It must be reported, repeatedly, without a
line for each. Nothing here looks at a clock; times are seconds of one monotonic clock.
"""

from __future__ import annotations

from math import inf

_PAUSE_S, _PAUSE_MAX_S = 60.0, 3600.0


class Burst:
    """One kind of trouble; used by one thread."""

    __slots__ = ("_due", "_pause", "_told_at", "count")

    def __init__(self) -> None:
        self.count = 0
        """How often it happened since the last time all was well."""
        self._pause = _PAUSE_S
        self._due = self._told_at = -inf

    def again(self, now: float) -> bool:
        """It happened; whether to tell: the first time, and then after pauses of 1, 2, 4 … minutes, at most an hour."""
        self.count += 1
        if now < self._due:
            return False
        self._told_at, self._due = now, now + self._pause
        self._pause = min(2 * self._pause, _PAUSE_MAX_S)
        return True

    def over(self) -> int:
        """All is well: how often it had happened. The next time is logged at once, unless that is within a minute."""
        count, self.count = self.count, 0
        self._pause, self._due = _PAUSE_S, self._told_at + _PAUSE_S
        return count
