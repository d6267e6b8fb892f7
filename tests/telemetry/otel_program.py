"""A program that appends, reads, seals, ships and restores with OpenTelemetry set up, as `test_otel` starts it.

OpenTelemetry takes one provider per process, so each case is a process of its own. Prints what it got, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast import telemetry

SECRET = "4111-1111-1111-1111"


class Collected:
    """OpenTelemetry's SDK, set up to keep everything in memory."""

    def __init__(self, *, sampled: bool = True) -> None:
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider, sampling
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider(sampler=sampling.ALWAYS_ON if sampled else sampling.ALWAYS_OFF)
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self._metrics]))
        self.tracer = trace.get_tracer("shop")

    def spans(self) -> list[dict[str, Any]]:
        for thread in threading.enumerate():
            if thread.name == "holdfast-spans":
                thread.join(30)
        return [
            {
                "name": span.name,
                "attributes": dict(span.attributes or {}),
                "why": span.status.description,
                "trace": f"{span.context.trace_id:032x}",
                "id": f"{span.context.span_id:016x}",
                "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
                "status": span.status.status_code.name,
                "events": len(span.events),
            }
            for span in self._spans.get_finished_spans()
        ]

    def metrics(self) -> list[dict[str, Any]]:
        data = self._metrics.get_metrics_data()
        return [
            {
                "name": metric.name,
                "unit": metric.unit,
                "about": metric.description,
                "kind": type(metric.data).__name__,
                "attributes": dict(point.attributes or {}),
                "value": getattr(point, "value", None),
                "count": getattr(point, "count", None),
                "bounds": list(getattr(point, "explicit_bounds", ())),
            }
            for one in ([] if data is None else data.resource_metrics)
            for scope in one.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]


def appends(place: Path) -> dict[str, Any]:
    """All ways to append, inside and outside of a recorded span."""
    collected = Collected()
    with holdfast.open(place) as log:
        orders, our_own = log.topic("orders"), log._topics.own("_own")
        orders.append(b"outside")
        with collected.tracer.start_as_current_span("request"):
            orders.append(SECRET.encode(), key="k", headers={"mine": b"1"}, idempotency_key="once")
            orders.append(b"foreign", headers={"traceparent": "mine", "tracestate": "mine"})
            orders.append_batch([b"one", holdfast.Record(b"two", headers={"mine": b"2"})])
            orders.offer(b"offered")
            with log.transaction() as tx:
                tx.append("orders", b"in a transaction")
                tx.append("orders", b"keyed", idempotency_key="t")
                tx.put("space", "k", b"v")
            our_own.append(b"own")
            orders.append(b"large", headers={"big": b"x" * (16 * 2**10 - 20)})
            list(orders.read(limit=2))
            orders.read().to_arrow()

            async def alike() -> None:
                await orders.append_async(b"async")

            asyncio.run(alike())
            orders.flush()
        with collected.tracer.start_as_current_span("again"):
            repeated = orders.append(SECRET.encode(), key="k", headers={"mine": b"1"}, idempotency_key="once").repeated
            try:
                orders.append("no bytes")  # type: ignore[arg-type]
            except holdfast.Invalid:
                pass
        found = [
            {
                "payload": record.payload.decode()[:20],
                "trace": telemetry.trace_id_of(record),
                "headers": {name: value.decode()[:60] for name, value in (record.headers or {}).items()},
            }
            for record in orders.read()
        ]
        for record in orders.read(limit=3):
            with telemetry.continued(record, "handle"):
                pass
        own = next(iter(our_own.read())).headers
        log.seal()
    return {"spans": collected.spans(), "records": found, "own": own, "repeated": repeated}


def unsampled(place: Path) -> dict[str, Any]:
    """A sampler that takes nothing: nothing is put into records either."""
    collected = Collected(sampled=False)
    with holdfast.open(place) as log, collected.tracer.start_as_current_span("request"):
        log.topic("orders").append(b"one")
        headers = next(iter(log.topic("orders").read())).headers
    return {"spans": collected.spans(), "headers": headers}


def later(place: Path) -> dict[str, Any]:
    """The provider is set up after the log was opened: from the next time that a topic is asked for."""
    with holdfast.open(place) as log:
        orders = log.topic("orders")
        plain = "submit" in vars(log._journal) and log._journal.submit.__name__ == "submit"
        before = log._journal.submit.__qualname__
        collected = Collected()
        log.topic("orders")
        with collected.tracer.start_as_current_span("request"):
            orders.append(b"one")
        after = log._journal.submit.__qualname__
        metrics = {one["name"] for one in collected.metrics()}
    return {"plain": plain, "before": before, "after": after, "spans": collected.spans(), "metrics": sorted(metrics)}


def always(place: Path) -> dict[str, Any]:
    """`telemetry.append_spans = always`: without a parent, too."""
    collected = Collected()
    with holdfast.open(place, settings={"telemetry": {"append_spans": "always", "trace_headers": False}}) as log:
        log.topic("orders").append(b"one")
        log.topic("typed", schema=pa.schema([("id", pa.int64())])).append({"id": 1})
        headers = next(iter(log.topic("orders").read())).headers
    return {"spans": collected.spans(), "headers": headers}


def pipe(place: Path) -> dict[str, Any]:
    """Everything behind the appends."""
    collected, store = Collected(), place.with_name("store")
    with holdfast.open(place, store=store) as log:
        orders = log.topic("orders", partitions=2)
        for _ in range(3):
            orders.append_batch([SECRET.encode()] * 10, partition=0)
            log.seal()
        log.ship()
        log.reconcile(deep=True)
        log.reconcile(remote=True)
        metrics = collected.metrics()
    holdfast.compact(str(store), "orders")
    holdfast.restore(store, place.with_name("restored"), copy=True)
    own = place.with_name("own")
    with holdfast.open(own, settings={"retention": {"records_max": 5}}) as log:
        for _ in range(3):
            log.topic("orders").append_batch([b"x"] * 10)
            log.seal()
        log.compact()
        log.retain()
    holdfast.rebuild(own)
    return {"spans": collected.spans(), "metrics": metrics, "after": collected.metrics()}


if __name__ == "__main__":
    report = {"appends": appends, "unsampled": unsampled, "later": later, "always": always, "pipe": pipe}[sys.argv[2]]
    print(json.dumps(report(Path(sys.argv[1])), default=repr))
