"""The sources of metrics in this process, and their current values: points of all open logs, each once.

A log is watched while it lives and is open; nothing here keeps it alive. Another source with metrics of its own (a
server) defines them in `metric_list` and is watched in the same way. Two handles that report the same point are merged:
no point is reported twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from holdfast.errors import HoldfastError
from holdfast.telemetry.metric import Metric, MetricPoint, joined

Tell = Callable[[Any], Iterable[MetricPoint]]
"""What an owner has to tell; called with it."""

_watched: WeakKeyDictionary[object, Tell] = WeakKeyDictionary()
_lock = Lock()


def watch(owner: object, tell: Tell) -> None:
    """Tell of this one as long as it is there; `tell` must not hold on to it, and tells nothing once it is closed."""
    with _lock:
        _watched[owner] = tell


def watched() -> list[object]:
    """All who are watched."""
    with _lock:
        return list(_watched)


class LogIdentity(Protocol):
    """A log."""

    @property
    def id(self) -> str:
        """Its identity."""


def collect(logs: Iterable[LogIdentity] | None = None) -> dict[Metric, list[MetricPoint]]:
    """The points of these logs, or of all in this process, by metric; what cannot be read now is left out.

    Of a log that is shared, whatever this process has of it: its owner, its host, its clients.
    """
    ids = None if logs is None else {log.id for log in logs}
    found: dict[tuple[Metric, tuple[str, ...]], MetricPoint] = {}
    for owner in watched():
        if ids is not None and getattr(owner, "id", None) not in {None, *ids}:
            continue
        for point in _points(owner):
            if ids is not None and point.values[0] not in ids:
                continue
            key = (point.metric, point.values)
            before = found.get(key)
            found[key] = (
                point if before is None else point._replace(value=joined(point.metric.kind, before.value, point.value))
            )
    families: dict[Metric, list[MetricPoint]] = {}
    for (metric, _), point in found.items():
        families.setdefault(metric, []).append(point)
    return families


def _points(owner: object) -> list[MetricPoint]:
    with _lock:
        tell = _watched.get(owner)
    try:
        return [] if tell is None else list(tell(owner))
    except HoldfastError:  # it was closed just now, or its database cannot be read: the others are still reported
        return []


def forget_lock() -> None:
    """In a forked child: the lock may have been held by a thread that is not here."""
    global _lock  # noqa: PLW0603
    _lock = Lock()
