"""What telemetry costs appends: without it, with OpenTelemetry not set up, and with everything on.

Four logs are open at once, and take turns at appends by 64 coroutines. "Without" has the parts taken out that tell of a
log; "off" is a program that has not set up OpenTelemetry, as most have not; "on" has a provider of tracers and one
of meters, is collected by OpenTelemetry and by Prometheus every 30,000 appends (about a second's), and appends outside
of recorded spans; "1 % in spans" has every hundredth append in one. Judged by processor time, the medians of many short
turns in changing order: rates of a busy machine differ by more than what is looked for.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import holdfast
from bench import measure
from bench.measure import PAYLOAD, Measured, Options, Part
from holdfast import Topic
from holdfast.log.telemetry.log_telemetry import LogTelemetry
from holdfast.telemetry import otel_metrics, render, spans

WITHOUT, OFF, ON, SPANS = "without", "off", "on", "on, 1 % in spans"
TASKS, APPENDS = 64, 100
"""With one append in a hundred within a span, where there are any."""
COLLECT_EVERY = 30_000


def main(options: Options) -> None:
    """All four, in turns."""
    with measure.workspace(options) as scratch:
        facts = measure.machine(scratch)
        part = telemetry(scratch, options)
        print(measure.report(part), flush=True)
    measure.conclude("telemetry", [part], facts)


def telemetry(scratch: Path, options: Options) -> Part:
    """What appends cost each way."""
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    reader, tracer = InMemoryMetricReader(), TracerProvider().get_tracer("bench")
    metrics.set_meter_provider(MeterProvider([reader]))
    ways = {
        WITHOUT: [patch.object(LogTelemetry, "begin", lambda self: None)],
        OFF: [patch.object(spans, "is_loaded", lambda: False), patch.object(otel_metrics, "is_loaded", lambda: False)],
        ON: [patch.object(spans, "tracer", lambda: tracer)],
        SPANS: [patch.object(spans, "tracer", lambda: tracer)],
    }
    with ExitStack() as logs:
        topics = {
            name: logs.enter_context(_opened(scratch / str(at), way)) for at, (name, way) in enumerate(ways.items())
        }
        turns = taken(topics, tracer, lambda: (reader.get_metrics_data(), render()), options)
    middles = {name: statistics.median(found) for name, found in turns.items()}
    claims = [
        measure.claim(
            f"processor time of an append, {name}", middles[name] / middles[WITHOUT], bound, "x that without telemetry"
        )
        for name, bound in ((OFF, 1.01), (ON, 1.03))
    ]
    told = [f"{name}: {middle * 1e6:.2f} us of processor time per append" for name, middle in middles.items()]
    return Part("what telemetry costs", Measured(), claims=[*told, *claims])


@contextmanager
def _opened(place: Path, way: list[Any]) -> Iterator[Topic]:
    """A topic of a log that was opened in this way; from then on, what was found at opening holds."""
    with ExitStack() as stack:
        for one in way:
            stack.enter_context(one)
        log = holdfast.open(place, settings=holdfast.Settings())
        topic = log.topic("bench")
    with log:
        yield topic


def taken(
    topics: dict[str, Topic], tracer: Any, collect: Callable[[], object], options: Options
) -> dict[str, list[float]]:
    """Seconds of processor time per append, turn by turn; collecting counts where somebody collects."""
    turns: dict[str, list[float]] = {name: [] for name in topics}
    costs = []
    orders = itertools.cycle(itertools.permutations(topics))
    with asyncio.Runner() as runner:
        for topic in topics.values():
            runner.run(turn(topic, None))
        for _ in range(max(24, int(options.rounds * options.seconds * 24))):
            for name in next(orders):
                turns[name].append(runner.run(turn(topics[name], tracer if name == SPANS else None)))
        for _ in range(20):
            begun = time.process_time()
            collect()
            costs.append(time.process_time() - begun)
    share = statistics.median(costs) / len(topics) / COLLECT_EVERY  # of one log among those that are open
    return {name: [one + share * (name in (ON, SPANS)) for one in found] for name, found in turns.items()}


async def turn(topic: Topic, tracer: Any) -> float:
    """Appends by coroutines that wait for each of them."""
    begun = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASKS):
            tasks.create_task(_appending(topic, tracer))
    return (time.process_time() - begun) / TASKS / APPENDS


async def _appending(topic: Topic, tracer: Any) -> None:
    for number in range(APPENDS):
        if tracer is None or number:
            await topic.append_async(PAYLOAD)
        else:
            with tracer.start_as_current_span("request"):
                await topic.append_async(PAYLOAD)
