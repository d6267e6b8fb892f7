"""Signals: values that come to an execution by name, each taken once, in the order of their coming.

A signal that nobody waits for yet is kept. Which of them a program got at which place is recorded, and so is that its
time was up: a later run gets the same, whatever came meanwhile.
"""

from __future__ import annotations

from typing import Any

from holdfast.arguments import text
from holdfast.caller import once
from holdfast.errors import WaitTimedOut
from holdfast.execution.journal.entries import SignalSent, SignalTaken
from holdfast.execution.journal.execution_id import checked_name
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.waits.handover import Handover
from holdfast.execution.waits.kind_check import check_kind
from holdfast.execution.waits.timers import armed, span_us
from holdfast.execution.waits.wait import Due, Wait, Waiters, WaitResult
from holdfast.execution.waits.wait_values import value_of


def signal_name(name: object) -> str:
    """A signal's name: text, not too long."""
    return checked_name(text(name, "a signal's name", "approved"), "signal")


def wait_for_signal(
    live: LiveExecution, waiters: Waiters, path: str, name: str, timeout: float | None = None, returns: Any = Any
) -> Wait[Any]:
    """The next signal of this name, to be waited for; WaitTimedOut after `timeout` seconds, for good."""
    record = check_kind(live, path, "signal")
    taken = None if record is None else record.signal
    due: Due | None = None
    first: list[Handover] = []
    if timeout is not None and taken is None:
        span = span_us(timeout)
        due, first = armed(live, path, live.clock.now_us() + span, span)
    return Wait(live, waiters, lambda is_due: _take(live, path, name, returns, is_due), first=first, due=due)


def _take(live: LiveExecution, path: str, name: str, returns: Any, is_due: bool) -> WaitResult | None:
    what = f"signal {path!r}"
    with once(live.exchange):
        record = live.look(path)
        if record is not None and record.signal is not None:
            return _given(live, record.signal, returns, what)
        sent = _next(live, name)
        if sent is not None:
            # Not waited for: whatever the program does with it is written behind this.
            taken = SignalTaken(path, sent.signal, live.clock.now_us())
            live.write_later(taken)
            live.recorded.add(taken)
            return WaitResult(value_of(sent.payload, returns, what))
        if not is_due:
            return None
        return _late(what)._replace(last=Handover(live, SignalTaken(path, b"", live.clock.now_us())))


def _next(live: LiveExecution, name: str) -> SignalSent | None:
    """The oldest of this name that nobody took."""
    return next(iter(live.recorded.untaken.get(name, {}).values()), None)


def _given(live: LiveExecution, taken: SignalTaken, returns: Any, what: str) -> WaitResult:
    if not taken.signal:
        return _late(what)
    live.recorded.all()
    return WaitResult(value_of(live.recorded.signals[taken.signal].payload, returns, what))


def _late(what: str) -> WaitResult:
    return WaitResult(error=WaitTimedOut(f"no {what} came in time"))
