"""A run of a pipeline with nothing new: after a short history, and after one that is ten times longer.

The pipeline reads a topic and has three tables: one that is appended to, one by key, one of windows. Each step of the
history appends records in many segments and runs. Then nothing is new, and runs are measured: a new `Pipeline` each
time, in a session that is there, as a scheduler would start it; nothing is remembered from the run before. What is
measured is all of it: finding out how far the topic and the tables are, and that there is nothing to do.

Manifests and tables have checkpoints, so both histories cost a checkpoint and what is behind it. What would be unfair:
a second run of the same object, which knows the past already.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

import holdfast
from bench import measure, spark_session
from bench.measure import Measured, Options, Part
from holdfast import Settings
from pyspark_holdfast.pipeline.pipeline import Pipeline
from pyspark_holdfast.pipeline.table_definition import append, count, keyed, table, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHORT, TIMES = 3, 10
SEGMENTS_EACH, RECORDS_EACH = 100, 5
SECONDS_MAX, MORE_MAX = 3.0, 0.5


@table(inputs="orders", kind=append())
def plain(orders: DataFrame) -> DataFrame:
    """Records as they are."""
    return orders.select("offset", "timestamp", "value")


@table(inputs="orders", kind=keyed("id", order_by="offset"))
def latest(orders: DataFrame) -> DataFrame:
    """The newest record of some ids."""
    return orders.selectExpr("offset % 7 as id", "offset", "value")


@table(inputs="orders", kind=windowed("timestamp", "1h", values={"n": count()}))
def hourly(orders: DataFrame) -> DataFrame:
    """How many records there were."""
    return orders.select("timestamp")


def main(options: Options) -> None:
    """This part alone."""
    with measure.workspace(options) as scratch:
        facts = {**measure.machine(scratch), "pyspark": pyspark.__version__}
        with spark_session.running() as spark:
            made = part(spark, scratch, options)
    print(measure.report(made))
    measure.save_parts("idle_runs", [made], facts)


def part(spark: SparkSession, scratch: Path, options: Options) -> Part:
    """Both histories, in turns."""
    runs = {name: (1 if options.quick else SHORT) * times for name, times in (("short", 1), ("long", TIMES))}
    for name, number in runs.items():
        _live(spark, scratch / name, number)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds + 1):
        for name in runs:
            seconds[name].append(_idle(spark, scratch / name))
    short, long = (statistics.median(seconds[name][1:]) for name in runs)
    few, many = (f"{number} runs and {number * SEGMENTS_EACH:,} segments" for number in runs.values())
    first = ", ".join(f"{found[0]:.3f} s" for found in seconds.values())
    claims = [
        measure.claim(f"a run with nothing new, after {many}", long, SECONDS_MAX, "s"),
        measure.claim(f"what that is more than after {few}", long - short, MORE_MAX, "s"),
        f"medians {short:.3f} s and {long:.3f} s; the first ones {first}",
    ]
    return Part("a run with nothing new", Measured(), (), claims)


def _live(spark: SparkSession, place: Path, runs: int) -> None:
    """A history: records, segments, runs."""
    settings = Settings.from_mapping({"store": {"url": (place / "store").as_uri()}})
    with holdfast.open(place / "log", settings=settings) as log:
        orders = log.topic("orders")
        for number in range(runs):
            for segment in range(SEGMENTS_EACH):
                orders.append_batch([b"%d %d %d" % (number, segment, one) for one in range(RECORDS_EACH)])
                log.seal(timeout=600)
            log.ship(600)
            report = _pipeline(place).run(spark)
            if not report.is_fine or {one.outcome for one in report.tables} != {"written"}:
                raise RuntimeError(f"a run did not write its tables; report={report}")
            print(f"history {place.name}: run {number + 1}/{runs}, {report.seconds:.1f} s", flush=True)


def _idle(spark: SparkSession, place: Path) -> float:
    began = time.perf_counter()
    report = _pipeline(place).run(spark)
    seconds = time.perf_counter() - began
    if {one.outcome for one in report.tables} != {"unchanged"}:
        raise RuntimeError(f"there was something new; report={report}")
    return seconds


def _pipeline(place: Path) -> Pipeline:
    return Pipeline("bench", root=place / "store", tables=place / "tables", of=[plain, latest, hourly])
