"""The alarm of a store that fails: raised at once, louder with age, repeated, cleared by success.

`keep-trying` may go on for days, so it must be reported, repeatedly, without a line per attempt. The state is there for
`stats()` from the first moment; the log gets a line at once and then after pauses of 1, 2, 4 … minutes, at most an
hour; a new cause is reported at once. An alarm that comes and goes is reported once a minute at most, with its
recovery. Nothing here retries, waits or looks at a clock; times are seconds of one monotonic clock. Messages are those
of our own errors and hold no secrets.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from math import inf

import msgspec

from holdfast.store.port import Cause

logger = logging.getLogger("holdfast.shipping")

_MINUTE = 60.0
_PAUSE_MAX_S = 60 * _MINUTE
_LEVELS_S = (0.0, _MINUTE, 10 * _MINUTE, 60 * _MINUTE, 6 * 60 * _MINUTE, 24 * 60 * _MINUTE)
"""Ages at which the level grows: 1 at once, then after a minute, ten minutes, an hour, six hours, a day."""

_SEVERITIES = (logging.WARNING, logging.ERROR, logging.ERROR, logging.CRITICAL)
"""By level; the last one holds for all above."""


class AlarmState(msgspec.Struct, frozen=True):
    """An alarm at the moment of the last attempt."""

    since: float
    """When it was raised, in seconds of the monotonic clock."""
    cause: Cause
    """Why the last attempt failed."""
    attempts: int
    """Attempts that failed since it was raised."""
    level: int
    """1 at once, 2 after a minute, 3 after ten minutes, 4 after an hour, 5 after six hours, 6 after a day."""
    message: str
    """What the store said."""


class Alarm:
    """One alarm, raised and cleared by one thread; any thread may look at its state."""

    __slots__ = ("_causes", "_due_at", "_is_logged", "_pause", "_state", "_told_at")

    def __init__(self) -> None:
        self._state: AlarmState | None = None
        self._told_at = self._due_at = -inf
        self._pause = _MINUTE
        self._is_logged = False
        self._causes: set[Cause] = set()
        """Why attempts failed since the alarm was raised."""

    @property
    def state(self) -> AlarmState | None:
        """What is wrong; None when nothing is."""
        return self._state

    def raise_(self, now: float, cause: Cause, message: str) -> None:
        """An attempt failed; logs when that is due, and at once when it failed for a new reason."""
        before = self._state
        if before is not None and cause not in self._causes:
            self._due_at = now
        self._causes.add(cause)
        since, attempts = (now, 0) if before is None else (before.since, before.attempts)
        self._state = AlarmState(since, cause, attempts + 1, _level(now - since), message)
        self.remind(now)

    def remind(self, now: float) -> None:
        """Log again if that is due, also where no attempt has ended meanwhile."""
        state = self._state
        if state is None or not self.due(now):
            return
        self._state = state = msgspec.structs.replace(state, level=_level(now - state.since))
        self._told_at, self._due_at, self._is_logged = now, now + self._pause, True
        self._pause = min(2 * self._pause, _PAUSE_MAX_S)
        self._tell(state, now - state.since)

    def due(self, now: float) -> bool:
        """Whether an alarm stands that should be logged now."""
        return self._state is not None and now >= self._due_at

    def clear(self, now: float) -> None:
        """An attempt succeeded. Recovery is logged if the alarm was."""
        state, is_logged = self._state, self._is_logged
        if state is None:
            return
        self._state, self._is_logged = None, False
        self._causes.clear()
        # The next alarm is a new one and logged at once, unless this one was logged within the last minute.
        self._pause, self._due_at = _MINUTE, self._told_at + _MINUTE
        if is_logged:
            logger.info(
                "shipping continues after %.0f s and %d failed attempts",
                now - state.since,
                state.attempts,
                extra={"action": "shipping_recovered", "seconds": now - state.since, "attempts": state.attempts},
            )

    @staticmethod
    def _tell(state: AlarmState, age: float) -> None:
        logger.log(
            _SEVERITIES[min(state.level, len(_SEVERITIES)) - 1],
            "shipping is held up for %.0f s, %d failed attempts: %s",
            age,
            state.attempts,
            state.message,
            extra={
                "action": "shipping_alarm",
                "cause": state.cause,
                "attempts": state.attempts,
                "alarm_level": state.level,
                "seconds": age,
            },
        )


def _level(age: float) -> int:
    return max(1, bisect_right(_LEVELS_S, age))
