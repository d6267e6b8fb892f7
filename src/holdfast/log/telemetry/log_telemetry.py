"""The telemetry of an open log: what is read of it when values are collected, spans of its appends, durations.

It ends with the log. Durations go to OpenTelemetry as they are measured, once the program has loaded
it; everything else is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.log.local_parts import parts_of
from holdfast.log.log_context import LogContext
from holdfast.log.log_stats import Stats
from holdfast.log.telemetry.append_spans import AppendSpans
from holdfast.telemetry import collecting, otel_metrics
from holdfast.telemetry.metric import MetricPoint
from holdfast.telemetry.metric_list import LogSample, points

if TYPE_CHECKING:
    from holdfast.journal.journal_stats import Timings
    from holdfast.log.log import Log
    from holdfast.log.ports import LocalMaintenancePort, LocalStorePort


class LogTelemetry:
    """What one open log tells."""

    def __init__(self, context: LogContext, maintenance: LocalMaintenancePort, store: LocalStorePort) -> None:
        self._context = context
        self._maintenance = maintenance
        self._store = store
        self._spans = AppendSpans(context.journal, context.settings.telemetry)
        self._is_recorded = False

    @property
    def role(self) -> str:
        """What this process is to the log."""
        journal = self._context.journal
        if journal.read_only:
            return "reader"
        return "owner" if journal.owned else "client"

    def begin(self) -> None:
        """Tell OpenTelemetry from now on, if the program has set it up; called when a log or a topic is opened."""
        self._spans.begin()
        if not self._is_recorded and otel_metrics.is_loaded():
            self._is_recorded = True
            recorders = otel_metrics.recorders(self._context.journal.log_id.hex(), self.role)
            for name, timings in self._timings().items():
                timings.observer = recorders[name]

    def _timings(self) -> dict[str, Timings]:
        """All that is measured, by the name of its metric."""
        found: dict[str, Timings] = {}
        journal = self._context.journal.counters
        if journal is not None:
            found |= {"holdfast.commit.duration": journal.commits, "holdfast.append.duration": journal.appends}
        if self._context.journal.owned and self._maintenance.counters is not None:
            found["holdfast.seal.duration"] = self._maintenance.counters.durations
        if self._context.journal.owned and self._store.counters is not None:
            found["holdfast.ship.put.duration"] = self._store.counters.durations
        return found

    def seen(self, log: Log) -> LogSample:
        """The log at this moment."""
        journal = self._context.journal
        # A client asks nobody: what it would get is its owner's, which tells it itself, and may not answer.
        stats = Stats(journal.stats(), None) if self.role == "client" else log.stats()  # type: ignore[arg-type]
        topics = sorted(journal.topics, key=lambda name: min(part.id for part in journal.topics[name]))
        marks = {name: log.marks(name) for name in topics}
        return LogSample(log.id, self.role, stats, marks, self._context.settings)

    def forget(self) -> None:
        """In a forked child."""
        self._spans.forget()
        collecting.forget_lock()

    def watch(self, log: Log) -> None:
        """Report this log from now on, whenever values are collected."""
        self.begin()
        collecting.watch(log, _points)


def _points(log: Log) -> Iterator[MetricPoint]:
    if log.is_open:
        yield from points(parts_of(log).telemetry.seen(log))
