"""A program that runs an execution twice, as `test_spans` starts it: what OpenTelemetry got, as JSON."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any
from uuid import UUID

import holdfast
from holdfast.execution.journal.entries import StepResult

SECRET = "4111-1111-1111-1111"


def main(directory: str, case: str) -> None:
    if case == "absent":
        sys.modules.update(dict.fromkeys(("opentelemetry", "opentelemetry.trace", "opentelemetry.metrics")))  # type: ignore[arg-type]
    collected = Collected() if case == "provided" else None
    depths = []
    for turn in range(2):
        with holdfast.open(directory) as log:
            room = log._executions.room()
            live = room.live.open(UUID(int=7), "pay")
            live.look("charge")
            live.write(step(f"charge{turn}")).result(10)
            depths += [] if collected is None else [[name, depth] for name, depth in collected.depths(log.id)]
            if turn:
                live.finish("completed", SECRET.encode()).result(10)  # type: ignore[union-attr]
                log.executions.prune()
            is_plain = "write" not in vars(room.store)
        try:
            live.write(step("late"))
        except holdfast.Closed:
            pass
    for thread in threading.enumerate():
        if thread.name == "holdfast-spans":
            thread.join(10)
    report = {
        "is_plain": is_plain,
        "threads": [one.name for one in threading.enumerate() if one.name.startswith("holdfast")],
        "spans": [] if collected is None else collected.spans(),
        "depths": depths,
        "depths_after": [] if collected is None else list(collected.depths(None)),
        "is_loaded": any(name.startswith("opentelemetry") and module for name, module in sys.modules.items()),
    }
    print(json.dumps(report))


def step(path: str) -> StepResult:
    return StepResult(path, b"k", "idempotent", SECRET.encode(), 1)


class Collected:
    """OpenTelemetry's SDK, set up to keep everything in memory."""

    def __init__(self) -> None:
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self._metrics]))

    def spans(self) -> list[dict[str, Any]]:
        return [
            {
                "name": span.name,
                "attributes": dict(span.attributes or {}),
                "status": span.status.status_code.name,
                "why": span.status.description,
                "events": [str(event.attributes) for event in span.events],
            }
            for span in self._spans.get_finished_spans()
        ]

    def depths(self, log_id: object) -> list[tuple[str, object]]:
        """Names and values of what is measured, of this log or of any."""
        data = self._metrics.get_metrics_data()
        metrics = (
            []
            if data is None
            else [
                metric
                for one in data.resource_metrics
                for scope in one.scope_metrics
                for metric in scope.metrics
                if metric.name == "durable.journal.writer.queue_depth"
            ]
        )
        points = [(metric.name, point) for metric in metrics for point in metric.data.data_points]
        ids = {log_id} if log_id is not None else {(point.attributes or {}).get("holdfast.log") for _, point in points}
        return [(name, point.value) for name, point in points if (point.attributes or {})["holdfast.log"] in ids]


if __name__ == "__main__":
    main(*sys.argv[1:])
