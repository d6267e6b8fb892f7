"""Passes that stop at a limit and go on with the next call: one of each kind is remembered."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar

from holdfast.errors import Invalid


class _Report(Protocol):
    @property
    def complete(self) -> bool: ...


Report = TypeVar("Report", bound=_Report)
Report_co = TypeVar("Report_co", bound=_Report, covariant=True)


class Going(Protocol[Report_co]):
    """A pass under way."""

    def run(self, limit: int | None) -> Report_co:
        """Do so many units more, or all."""

    def end(self) -> None:
        """Let go of what it holds."""


class Unfinished(Generic[Report]):
    """What was begun and not finished, by kind (with repairs or not, deep or not)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._passes: dict[tuple[bool, bool], Going[Report]] = {}

    def run(self, kind: tuple[bool, bool], begin: Callable[[], Going[Report]], limit: int | None) -> Report:
        """A whole pass; or, with a limit, so many units of one, going on where the last one of its kind stopped."""
        if limit is not None and limit <= 0:
            raise Invalid(f"limit must be above zero, got {limit}", hint="leave it out for a whole pass")
        with self._lock:
            going = self._passes.pop(kind, None) or begin()
        try:
            report = going.run(limit)
        except BaseException:
            going.end()
            raise
        if not report.complete:
            with self._lock:
                left_over = self._passes.get(kind)
                self._passes[kind] = going
            if left_over is not None:
                left_over.end()
        return report

    def reset(self) -> None:
        """Forget them."""
        with self._lock:
            passes, self._passes = list(self._passes.values()), {}
        for going in passes:
            going.end()
