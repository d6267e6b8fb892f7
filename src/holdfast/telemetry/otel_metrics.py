"""The same metrics as instruments of OpenTelemetry, where a program has loaded it; else nothing at all.

Levels and totals are observed when a reader collects: all logs of the process are looked at once for all instruments.
Durations are recorded where they are measured, once per group commit, seal or object: OpenTelemetry has no histograms
that are observed. Instruments are made once; until a MeterProvider is set up they are OpenTelemetry's own proxies,
which do nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from holdfast.telemetry import collecting
from holdfast.telemetry.metric import Metric, Point
from holdfast.telemetry.metric_list import METRICS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Observation

NAME = "holdfast"

Record = Callable[[float], None]


class _Instruments:
    """All instruments of this process."""

    def __init__(self) -> None:
        from opentelemetry import metrics

        self._lock = Lock()
        self._seen: dict[Metric, list[Point]] = {}
        self._told: set[Metric] = set(METRICS)
        """Metrics that were told of what was seen. A reader asks all instruments one after the other: as soon as one is
        asked again, that is another round, and everything is looked at anew."""
        self._kept: list[Any] = []
        self.durations: dict[str, Histogram] = {}
        meter = metrics.get_meter(NAME)
        for metric in METRICS:
            about = (metric.unit, metric.about)
            if metric.kind == "histogram":
                self.durations[metric.name] = meter.create_histogram(
                    metric.name, *about, explicit_bucket_boundaries_advisory=metric.bounds
                )
                continue
            made = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            self._kept.append(made(metric.name, [partial(self._observe, metric)], *about))

    def _observe(self, metric: Metric, _: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        return [Observation(point.value, point.attributes) for point in self._next(metric)]  # type: ignore[arg-type]  # no histogram

    def _next(self, metric: Metric) -> list[Point]:
        with self._lock:
            if metric in self._told:
                self._seen, self._told = collecting.collect(), set()
            self._told.add(metric)
            return self._seen.get(metric, [])


_made: list[_Instruments] = []
_lock = Lock()


def is_loaded() -> bool:
    """Whether the program has loaded OpenTelemetry's metrics; whoever sets up a provider has."""
    return sys.modules.get("opentelemetry.metrics") is not None


def recorders(log_id: str, role: str) -> dict[str, Record]:
    """For each histogram, how a duration of this log is recorded; nothing where OpenTelemetry is not loaded.

    Makes the instruments of this process the first time.
    """
    if not is_loaded():
        return {}
    with _lock:
        if not _made:
            _made.append(_Instruments())
    attributes = {"holdfast.log": log_id, "holdfast.role": role}
    return {name: partial(_record, made, attributes) for name, made in _made[0].durations.items()}


def _record(histogram: Histogram, attributes: dict[str, str], seconds: float) -> None:
    histogram.record(seconds, attributes)
