"""Runs again and again, until it is stopped; and how a signal says it.

The first SIGTERM or SIGINT lets the table that is being written come to its commit, and ends then. The second one ends
at once: what was not committed is as if it had never begun. After a run with a failure the next one waits, longer each
time, up to five minutes: an unreachable store is not helped by a request each second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event  # noqa: TID251  # an Event of the caller's

from holdfast.errors import Invalid
from holdfast.process_lifetime import at_end_signals
from holdfast.quantity import parse_seconds
from holdfast.signals import Flag
from pyspark_holdfast.pipeline.run_report import RunReport

_PAUSE_MAX = 300.0


def repeat(run: Callable[[], RunReport], seconds: float, stop: Event | Flag) -> RunReport | None:
    """Run until `stop` is set; returns the report of the last run. A new run begins `seconds` after the last began."""
    from holdfast.clock import SystemClock

    clock, failures, report = SystemClock(), 0, None
    while not stop.is_set():
        begun = clock.monotonic()
        report = run()
        failures = 0 if report.is_fine else failures + 1
        stop.wait(max(0.0, pause_after(failures, seconds) - (clock.monotonic() - begun)))
    return report


def pause_after(failures: int, seconds: float) -> float:
    """How long after the beginning of a run the next one begins, after so many failures in a row.

    >>> [pause_after(failures, 30) for failures in (0, 1, 2, 9)]
    [30, 60, 120, 300.0]
    """
    return seconds if not failures else max(seconds, min(_PAUSE_MAX, max(seconds, 1) * 2 ** min(failures, 30)))


def interval_of(seconds: float | str) -> float:
    """An interval, as a number of seconds or as text such as "30s"; raises Invalid."""
    found = parse_seconds(seconds) if isinstance(seconds, str) else float(seconds)
    if not 0 <= found < 10**9:
        raise Invalid(f"this is no interval seconds={seconds}", hint='give seconds, as 30 or "30s"')
    return found


@contextmanager
def stopping(stop: Event | Flag) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`, a second one raises KeyboardInterrupt; in the main thread, where they arrive."""

    def interrupted() -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with at_end_signals(interrupted):
        yield
