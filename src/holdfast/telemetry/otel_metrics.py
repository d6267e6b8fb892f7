"""The same metrics as instruments of OpenTelemetry, where a program has loaded it; else nothing at all.

Levels and totals are observed when a reader collects: all logs of the process are sampled once for all instruments.
Durations are recorded where they are measured, per group commit, seal or object: OpenTelemetry has no histograms that
are observed. A recording costs as much as an append or two, so of thousands a second about a hundred are recorded,
every so many of them: quantiles hold, and counters say how many there were.

Instruments are made once; until a MeterProvider is set up they are OpenTelemetry's own proxies, which do nothing.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.caller import once
from holdfast.clock import SystemClock
from holdfast.telemetry import collecting
from holdfast.telemetry.metric import Metric, MetricPoint
from holdfast.telemetry.metric_list import METRICS
from holdfast.telemetry.spans import is_ready

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Observation

NAME = "holdfast"
_GAP_S, _EVERY_MAX = 0.01, 4096
"""Between two recordings of one histogram, about; and how many may go unrecorded between them."""

Record = Callable[[float], None]


class _Instruments:
    """All instruments of this process."""

    def __init__(self) -> None:
        from opentelemetry import metrics

        self._lock = RLock()
        self._seen: dict[Metric, list[MetricPoint]] = {}
        self._given_out: set[Metric] = set(METRICS)
        """Metrics reported from a sample. A reader asks all instruments one after the other: as soon as one is
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

    def _next(self, metric: Metric) -> list[MetricPoint]:
        with once(self._lock):
            if metric in self._given_out:
                self._seen, self._given_out = collecting.collect(), set()
            self._given_out.add(metric)
            return self._seen.get(metric, [])


_made: list[_Instruments] = []
_lock = RLock()


def is_loaded() -> bool:
    """Whether the program has loaded OpenTelemetry's metrics; setting up a provider does that."""
    return is_ready("opentelemetry.metrics")


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
    return {name: Recorder(made, attributes) for name, made in _made[0].durations.items()}


class Recorder:
    """Records every one of few durations, and every so many of many; used by one thread."""

    __slots__ = ("_at", "_attributes", "_every", "_histogram", "_left", "_monotonic")

    def __init__(
        self, histogram: Histogram, attributes: dict[str, str], monotonic: Callable[[], float] | None = None
    ) -> None:
        self._histogram = histogram
        self._attributes = attributes
        self._monotonic = monotonic or SystemClock().monotonic
        self._every = self._left = 1
        self._at = float("-inf")

    def __call__(self, seconds: float) -> None:
        """Something took so long. By count, not by the clock: slow ones are not more likely to be recorded."""
        self._left -= 1
        if self._left:
            return
        now = self._monotonic()
        gap, self._at = now - self._at, now
        if gap < _GAP_S:
            self._every = min(2 * self._every, _EVERY_MAX)
        elif gap > 4 * _GAP_S:
            self._every = max(1, self._every // 2)
        self._left = self._every
        self._histogram.record(seconds, self._attributes)
