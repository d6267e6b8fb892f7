"""What steps cost: buffered ones beside the bare call, guarded ones beside an append, a resume of thousands.

- overhead: a step that is buffered, of a function that does nothing, less the call itself; blocking and awaiting.
- guarded: a guarded step, which is two commits one after the other, beside one acknowledged append to a topic.
- resume: opening an execution of 5000 finished steps and asking for each again, up to the last.

Fair and unfair: all of it in one thread, in a new log on a real disk. Overhead is that of the thread that asks; what
the writer does meanwhile on another core is in the rate, and in the processor time.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import holdfast
from bench import measure
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from holdfast import Log, Settings

BARE, BLOCKING, AWAITING = "bare call", "step, blocking", "step, awaiting"
APPEND, GUARDED = "append", "guarded step"
RESUMED = 5_000
OVERHEAD_US, RESUME_MS = 15.0, 50.0
_numbers = itertools.count()


def steps(scratch: Path, options: Options) -> Part:
    """All three."""
    contestants = [
        Contestant(BARE, _bare),
        Contestant(BLOCKING, partial(_in_log, scratch, _blocking)),
        Contestant(AWAITING, partial(_in_log, scratch, _awaiting)),
        Contestant(APPEND, partial(_in_log, scratch, _appends)),
        Contestant(GUARDED, partial(_in_log, scratch, _guarded)),
    ]
    measured = measure.interleave(contestants, options)
    resumes = [_in_log(scratch, _resume, 0.0) for _ in range(max(3, options.rounds))]
    claims = [
        measure.claim("overhead, blocking", _overhead_us(measured, BLOCKING), OVERHEAD_US, "us"),
        measure.claim("overhead, awaiting", _overhead_us(measured, AWAITING), OVERHEAD_US, "us"),
        measure.claim(f"resume of {RESUMED} steps", _median_ms(resumes, lambda one: one.seconds), RESUME_MS, "ms"),
        (
            f"on a machine that has other work to do, the processor time of all threads says more: blocking"
            f" {_cpu_us(measured, BLOCKING):.1f} us, awaiting {_cpu_us(measured, AWAITING):.1f} us, resume"
            f" {_median_ms(resumes, lambda one: one.cpu_seconds or 0.0):.1f} ms"
        ),
    ]
    return Part("steps", measured, [Bar(GUARDED, APPEND, 1 / 3)], claims, [APPEND])


def _median_ms(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return statistics.median(map(value, samples)) * 1e3


def _cpu_us(measured: Measured, name: str) -> float:
    return statistics.median(sample.cpu_us_per_row or 0.0 for sample in measured.samples[name])


def _overhead_us(measured: Measured, name: str) -> float:
    times = {one: statistics.median(1e6 / sample.rate for sample in measured.samples[one]) for one in (name, BARE)}
    return times[name] - times[BARE]


def _in_log(scratch: Path, run: Callable[[Log, float], Sample], seconds: float) -> Sample:
    # A bench runs more steps in one execution than a program should.
    settings = Settings.from_mapping({"executions": {"steps_max": 0}})
    with holdfast.open(scratch / f"log-{next(_numbers)}", settings=settings) as log:
        return run(log, seconds)


def _nothing(number: int) -> int:
    return number


async def _nothing_async(number: int) -> int:
    return number


def _bare(seconds: float) -> Sample:
    def run(count: int) -> None:
        for number in range(count):
            _nothing(number)

    return _repeated(BARE, run, seconds)


def _blocking(log: Log, seconds: float) -> Sample:
    with log.execution("bench") as ctx:

        def run(count: int) -> None:
            for number in range(count):
                ctx.step("step", _nothing, number)

        return _repeated(BLOCKING, run, seconds)


def _awaiting(log: Log, seconds: float) -> Sample:
    async def program() -> Sample:
        async with log.execution("bench") as ctx:
            begun, cpu, rows = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - begun < seconds:
                for number in range(500):
                    await ctx.step("step", _nothing_async, number)
                rows += 500
            return Sample(AWAITING, rows, time.perf_counter() - begun, cpu_seconds=time.process_time() - cpu)

    return asyncio.run(program())


def _repeated(name: str, run: Callable[[int], None], seconds: float) -> Sample:
    begun, cpu, rows = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begun < seconds:
        run(500)
        rows += 500
    return Sample(name, rows, time.perf_counter() - begun, cpu_seconds=time.process_time() - cpu)


def _appends(log: Log, seconds: float) -> Sample:
    topic = log.topic("bench")
    return measure.drive_threads(APPEND, [lambda: topic.append(b"record")], seconds)


def _guarded(log: Log, seconds: float) -> Sample:
    with log.execution("bench") as ctx:

        def step() -> None:
            ctx.step("step", _nothing, 1, effect="exactly_once_guarded", on_ambiguous="fail")

        return measure.drive_threads(GUARDED, [step], seconds)


def _resume(log: Log, _: float) -> Sample:
    with log.execution("bench") as ctx:
        for number in range(RESUMED):
            ctx.step("step", _nothing, number)
    begun, cpu = time.perf_counter(), time.process_time()
    with log.execution("bench", id=ctx.id) as again:
        for number in range(RESUMED):
            again.step("step", _nothing, number)
        return Sample("resume", RESUMED, time.perf_counter() - begun, cpu_seconds=time.process_time() - cpu)
