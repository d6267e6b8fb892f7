"""Timers: an execution sleeps until a time that is stored, and sleeps on to that same time when it is resumed.

The time is durable before the sleep begins. One that passed while no process had the log fires at once. A sleep of so
many seconds ends when the wall clock says so, and after that many seconds at the latest, whatever was done to the
clock; a sleep until a time ends when the wall clock gets there. Who fires twice, after a crash, fires the same.
"""

from __future__ import annotations

from datetime import datetime
from math import isfinite

from holdfast.errors import Invalid
from holdfast.execution.journal.entries import TimerArmed, TimerFired
from holdfast.execution.journal.execution_id import inner_id
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.waits.handover import Handover
from holdfast.execution.waits.kind_check import check_kind
from holdfast.execution.waits.wait import Due, Wait, Waiters, WaitResult

_LAST_US = 2**62
_SECONDS_MAX = 1e11


def span_us(seconds: object) -> int:
    """So many seconds, in microseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
        raise Invalid("a time span is a number of seconds", hint="for instance 2.5, or 86400 for a day")
    return round(min(max(seconds, 0), _SECONDS_MAX) * 1e6)


def time_us(when: object) -> int:
    """A point in time, in microseconds since 1970; a datetime needs a time zone."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise Invalid(
                "this time has no time zone", hint="for instance datetime.now(timezone.utc) + timedelta(days=1)"
            )
        return _bounded(round(when.timestamp() * 1e6))
    if isinstance(when, int) and not isinstance(when, bool):
        return _bounded(when)
    raise Invalid("a time is a datetime with a time zone, or microseconds since 1970", hint="see sleep_until")


def _bounded(us: int) -> int:
    return min(max(us, 0), _LAST_US)


def armed(live: LiveExecution, path: str, due_us: int, span: int | None) -> tuple[Due, list[Handover]]:
    """When the timer at a path is due, and what arms it if it was not armed before; what was stored wins."""
    record = live.look(path)
    timer = None if record is None else record.timer
    first: list[Handover] = []
    if timer is None:
        timer = TimerArmed(path, inner_id(live.id, path, "timer").bytes, _bounded(due_us), live.clock.now_us())
        first.append(Handover(live, timer))
    until = None if span is None else live.clock.monotonic() + span / 1e6
    return Due(timer.due_us, until), first


def fired(live: LiveExecution, path: str) -> TimerFired:
    """The time of the timer at this path has come."""
    return TimerFired(path, inner_id(live.id, path, "timer").bytes, live.clock.now_us())


def sleep(live: LiveExecution, waiters: Waiters, path: str, seconds: object) -> Wait[None]:
    """Wait for so many seconds."""
    span = span_us(seconds)
    return _sleep(live, waiters, path, live.clock.now_us() + span, span)


def sleep_until(live: LiveExecution, waiters: Waiters, path: str, when: object) -> Wait[None]:
    """Wait for a point in time."""
    return _sleep(live, waiters, path, time_us(when), None)


def _sleep(live: LiveExecution, waiters: Waiters, path: str, due_us: int, span: int | None) -> Wait[None]:
    check_kind(live, path, "timer")
    due, first = armed(live, path, due_us, span)

    def look(is_due: bool) -> WaitResult | None:
        record = live.look(path)
        if record is not None and record.timer_fired is not None:
            return WaitResult()
        if not is_due:
            return None
        # Not waited for: if it is lost, the next run finds the time passed, and fires again.
        live.write_later(fired(live, path))
        return WaitResult()

    return Wait(live, waiters, look, first=first, due=due)
