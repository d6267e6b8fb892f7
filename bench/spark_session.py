"""The Spark that all parts of the bench share: one session with two cores, and its JVM gone at the end.

A first query costs a JVM and a Python worker seconds that no later one pays, and code that ran once is not compiled
yet: `warm` asks every question until it is warm, and compares what all contestants of a question answer. A contestant
that is quick because it is wrong has lost.

On a machine that others use, seconds say more about its scheduler than about us. So every sample has the processor time
of all processes of the session as well, and `costs` compares that.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.jvm import end_jvm

import pyspark_holdfast
from bench.measure import Bar, Contestant, Measured, Sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
MEMORY = "4g"
WARM_UPS = 2

Ask = Callable[[], object]


@contextmanager
def running() -> Iterator[SparkSession]:
    """A session as users get it from `pyspark_holdfast.session`; its JVM has ended afterwards."""
    session = pyspark_holdfast.session(f"local[{CORES}]", spark_driver_memory=MEMORY)
    session.sparkContext.setLogLevel("ERROR")  # every stream would warn of the same few things
    try:
        yield session
        session.stop()
    finally:
        end_jvm()


def warm(questions: Mapping[str, Mapping[str, Ask]], times: int = WARM_UPS) -> None:
    """Ask everything, unmeasured; contestants of one question must agree."""
    for question, contestants in questions.items():
        answers = {name: ask() for _ in range(times) for name, ask in contestants.items()}
        if len({repr(answer) for answer in answers.values()}) > 1:
            raise RuntimeError(f"contestants do not agree; question={question} answers={answers}")


def contestants(questions: Mapping[str, Mapping[str, Ask]], rows: int) -> list[Contestant]:
    """Every contestant of every question, in this order; a sample is one query over so many rows."""
    return [
        Contestant(name, partial(_sample, name, ask, rows))
        for asked in questions.values()
        for name, ask in asked.items()
    ]


def _sample(name: str, ask: Ask, rows: int, _seconds: float) -> Sample:
    cpu, began = cpu_seconds(), time.perf_counter()
    ask()
    seconds = time.perf_counter() - began
    spent = cpu_seconds()
    return Sample(name, rows, seconds, cpu_seconds=None if cpu is None or spent is None else spent - cpu)


def costs(measured: Measured, bars: Sequence[Bar]) -> list[str]:
    """Processor time against the rival's; where processors are the limit, rates of an idle machine have that ratio."""
    return [f"CPU, {bar.subject} against {bar.rival}: {_cost(measured, bar)}" for bar in bars]


def _cost(measured: Measured, bar: Bar) -> str:
    ours, theirs = (
        [sample.cpu_us_per_row or 0.0 for sample in measured.samples[name]] for name in (bar.subject, bar.rival)
    )
    if not all(ours):
        return "unknown"
    own, other = statistics.median(ours), statistics.median(theirs)
    return f"{own:.2f} and {other:.2f} us per row, {other / own:.2f} x"


# --- processors ----------------------------------------------------------------------------------------------


def cpu_seconds() -> float | None:
    """What this process and all that it started have spent: JVM, daemon, workers; None where the kernel keeps quiet.

    Workers that have ended count, too: whoever started them has their time.
    """
    try:
        found = dict(_processes())
    except OSError:
        return None
    known = {os.getpid()}
    for _ in found:  # at most one generation more each time
        grown = known | {process for process, (parent, _) in found.items() if parent in known}
        if grown == known:
            break
        known = grown
    ticks = sum(found[process][1] for process in known if process in found)
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Every process: its parent, and the ticks that it and its dead children have spent."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # it has just ended
        fields = text.rpartition(")")[2].split()
        yield int(entry.name), (int(fields[1]), sum(map(int, fields[11:15])))
