"""What spans cost a step: where OpenTelemetry is not installed, where only its API is, and where a program listens.

Steps of one workflow in a new log each, as in `executions_rival`. "Not installed" is what a log finds out when it is
asked for executions; here it is told so. The provider takes every span and exports none: what an exporter costs is its
own business.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import holdfast
from bench import executions_rival, measure
from bench.measure import Contestant, Measured, Options, Part, Sample
from holdfast import Settings
from holdfast.telemetry import spans as telemetry

ABSENT, SILENT, TOLD = "steps, not installed", "steps, API alone", "steps, a provider"
_numbers = itertools.count()


def spans(scratch: Path, options: Options) -> Part:
    """All three, in turn."""
    if not telemetry.is_installed():
        return Part("spans", Measured(), claims=["not measured: OpenTelemetry is not installed"])
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("bench")
    ways: dict[str, dict[str, Callable[[], object]]] = {
        ABSENT: {"is_installed": lambda: False},
        SILENT: {},
        TOLD: {"tracer": lambda: tracer},
    }
    contestants = [Contestant(name, partial(sample, scratch, name, way)) for name, way in ways.items()]
    measured = measure.interleave(contestants, options)
    # By processor time: the code is the same, and rates of a busy machine differ by more than what is looked for.
    reached = cpu(measured, SILENT) / cpu(measured, ABSENT)
    claims = [measure.claim("processor time of a step with the API alone", reached, 1.03, "x that without it")]
    return Part("what spans cost", measured, claims=claims, references=[ABSENT])


def cpu(measured: Measured, name: str) -> float:
    return statistics.median(sample.cpu_us_per_row or 0.0 for sample in measured.samples[name])


def sample(scratch: Path, name: str, way: dict[str, Callable[[], object]], seconds: float) -> Sample:
    place = scratch / f"log-{next(_numbers)}"
    settings = Settings.from_mapping({"executions": {"steps_max": 0}})
    with ExitStack() as stack:
        for verb, instead in way.items():
            stack.enter_context(patch.object(telemetry, verb, instead))
        log = stack.enter_context(holdfast.open(place, settings=settings))
        return replace(executions_rival.one(log, seconds, guarded=False), name=name)
