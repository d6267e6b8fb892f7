"""What many segments cost: 240 tiny ones in a query, a hundred thousand in planning, and a history that is not needed.

- Tiny: one query through the format over 240 segments of ten records, all columns; beside it the same records in one
  segment, which is what Spark takes for any query.
- Planning: `load` and everything until Spark knows its tasks, over manifests of growing size; beside it the same
  without Spark, in this process. Nothing is kept from one sample to the next.
- Idle: what a trigger asks of the source when there is nothing new, with a short and with a long history behind it,
  for a query that read the last segments before, and for one that began at the end. It is measured in this process:
  Spark reports whole milliseconds, which is about what a whole trigger takes; its report stands beside.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench import measure, spark_session, spark_time_split
from bench.measure import Contestant, Measured, Options, Part, Sample
from bench.spark_logs import HISTORY_ROWS, TINY_ROWS, TINY_SEGMENTS, TOPIC, Logs
from pyspark_holdfast.source import HoldfastSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TINY, ONE = f"{TINY_SEGMENTS} tiny segments", "the same rows in one segment"
TINY_SECONDS = 0.5
PLANNING_SECONDS = 5.0
GROWTH_MAX = 1.5
"""How much more a segment may cost in the largest manifest than in the smallest, to be called linear; and an idle
trigger with the longest history than with the shortest, to be called independent of it."""
READ, BEGAN = "read before", "began at the end"
TRIGGERS, TRIGGERS_FIRST = 50, 5
"""Idle triggers that Spark reports, and those before them that do not count."""
TRIGGERS_SECONDS = 120.0
_NO_DATA_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


# --- tiny segments -------------------------------------------------------------------------------------------


def tiny(spark: SparkSession, logs: Logs, options: Options) -> Part:
    """A query over tiny segments, beside one over a single segment."""

    def ask(root: Path) -> object:
        from pyspark.sql import functions as f

        rows = spark.read.format("holdfast").options(topic=TOPIC, native="false").load(str(root))
        return tuple(rows.agg(f.count("*"), f.sum("offset"), f.sum(f.crc32("value"))).first() or ())

    # Payloads begin anew in every segment, so the two answers differ in their last part.
    questions = {TINY: {TINY: lambda: ask(logs.tiny)}, ONE: {ONE: lambda: ask(logs.one)}}
    spark_session.warm(questions, times=5)
    measured = measure.interleave(spark_session.contestants(questions, TINY_SEGMENTS * TINY_ROWS), options)
    seconds = {name: _median(measured, name) for name in (TINY, ONE)}
    claims = [measure.claim(f"a query over {TINY},", seconds[TINY], TINY_SECONDS, "s"), _told(measured)]
    if seconds[TINY] > TINY_SECONDS:
        found = spark_time_split.split({"path": str(logs.tiny), "topic": TOPIC})
        claims.append(found.told(TINY, seconds[TINY]))
    return Part("tiny segments", measured, (), claims)


# --- planning ------------------------------------------------------------------------------------------------


def planning(spark: SparkSession, logs: Logs, options: Options) -> Part:
    """Planning over manifests of growing size, with and without Spark."""
    contestants = []
    for size, root in logs.histories.items():
        contestants += [
            Contestant(_planned(size), partial(_sample, _planned(size), size, partial(_plan, spark, root))),
            Contestant(_alone(size), partial(_sample, _alone(size), size, partial(_plan_alone, root))),
        ]
    for contestant in contestants:
        contestant.run(0)
    measured = measure.interleave(contestants, options)
    small, *_, large = logs.histories
    growth = measured.median(_planned(small)) / measured.median(_planned(large))
    claims = [
        measure.claim(
            f"planning over {large:,} segments through the format,",
            _median(measured, _planned(large)),
            PLANNING_SECONDS * large / 100_000,
            "s",
        ),
        measure.claim(f"cost of a segment at {large:,} against {small:,}, linear means", growth, GROWTH_MAX, "x"),
        _told(measured),
    ]
    if "MISS" in claims[0] + claims[1]:
        claims.append(spark_time_split.planning({"path": str(logs.histories[large]), "topic": TOPIC}))
    return Part("planning", measured, (), claims)


def _planned(size: int) -> str:
    return f"plan {size:,} segments"


def _alone(size: int) -> str:
    return f"plan {size:,} segments without Spark"


def _plan(spark: SparkSession, root: Path) -> int:
    rows = spark.read.format("holdfast").options(topic=TOPIC, native="false").load(str(root))
    return int(rows._jdf.queryExecution().toRdd().getNumPartitions())


def _plan_alone(root: Path) -> int:
    source = HoldfastSource({"path": str(root), "topic": TOPIC})
    return len(source.reader(source.schema()).partitions())


def _sample(name: str, size: int, plan: Callable[[], int], _seconds: float) -> Sample:
    cpu, began = spark_session.cpu_seconds(), time.perf_counter()
    tasks = plan()
    seconds, spent = time.perf_counter() - began, spark_session.cpu_seconds()
    if not tasks:
        raise RuntimeError(f"nothing was planned; contestant={name}")
    return Sample(name, size, seconds, cpu_seconds=None if cpu is None or spent is None else spent - cpu)


# --- idle triggers -------------------------------------------------------------------------------------------


def idle(spark: SparkSession, logs: Logs, scratch: Path, options: Options) -> Part:
    """Triggers with nothing new, behind histories of different length."""
    contestants = [
        Contestant(_idle(size, way), partial(_idle_sample, _idle(size, way), root, _begin(size, way)))
        for way in (READ, BEGAN)
        for size, root in logs.histories.items()
    ]
    measured = measure.interleave(contestants, options)
    small, *_, large = logs.histories
    claims = []
    for way in (READ, BEGAN):
        ratio = _median(measured, _idle(large, way)) / _median(measured, _idle(small, way))
        text = f"an idle trigger of a query that {way}, {large:,} segments against {small:,}, independent means"
        claims.append(measure.claim(text, ratio, GROWTH_MAX, "x"))
    reported = _reported(spark, logs, scratch)
    told = [
        f"microseconds, median: {_told_us(measured)}",
        f"milliseconds of a whole trigger, as Spark says: {reported}",
    ]
    return Part("idle triggers", measured, (), [*claims, *told])


def _idle(size: int, way: str) -> str:
    return f"idle trigger, {size:,} segments, {way}"


def _begin(size: int, way: str) -> str:
    return "latest" if way == BEGAN else json.dumps({TOPIC: {"0": size * HISTORY_ROWS}})


def _options(begin: str) -> dict[str, str]:
    """Of offsets, no file is opened to read them: there is none."""
    return {"topic": TOPIC, "columns": "offset", "startingOffsets": begin}


def _idle_sample(name: str, root: Path, begin: str, seconds: float) -> Sample:
    """What a trigger asks of the source, over and over, once everything is read."""
    source = HoldfastSource({"path": str(root), **_options(begin)})
    reader = source.streamReader(source.schema())
    start, everything = reader.initialOffset(), ReadAllAvailable()
    end = reader.latestOffset(start, everything)
    reader.partitions(start, end)
    spent: list[float] = []
    give_up = time.perf_counter() + seconds / 2
    while time.perf_counter() < give_up:
        began = time.perf_counter()
        latest = reader.latestOffset(end, everything)
        spent.append(time.perf_counter() - began)
        if latest != end:
            raise RuntimeError(f"nothing new was to be found; contestant={name}")
    return Sample(name, 1, statistics.median(spent))  # a mean would tell who else wanted the processor


def _told_us(measured: Measured) -> str:
    return ", ".join(f"{name} {_median(measured, name) * 1e6:.0f}" for name in measured.samples)


def _reported(spark: SparkSession, logs: Logs, scratch: Path) -> str:
    """What Spark says that a whole trigger takes on average, once for each; it counts in milliseconds."""
    before = spark.conf.get(_NO_DATA_INTERVAL)
    spark.conf.set(_NO_DATA_INTERVAL, "0")  # report every trigger, also those without data
    try:
        told = []
        for size, root in logs.histories.items():
            stream = spark.readStream.format("holdfast").options(**_options(_begin(size, READ))).load(str(root))
            writer = stream.writeStream.format("noop").option("checkpointLocation", str(scratch / f"idle-{size}"))
            told.append(f"{size:,} segments {_trigger_ms(writer.start()):.1f}")
        return ", ".join(told)
    finally:
        spark.conf.set(_NO_DATA_INTERVAL, before or "10000")


def _trigger_ms(query: StreamingQuery) -> float:
    give_up = time.perf_counter() + TRIGGERS_SECONDS
    try:
        while time.perf_counter() < give_up and query.isActive:
            found = [report["durationMs"] for report in query.recentProgress if not report["numInputRows"]]
            if len(found) >= TRIGGERS + TRIGGERS_FIRST:
                return statistics.mean(float(spent["triggerExecution"]) for spent in found[TRIGGERS_FIRST:])
            time.sleep(0.1)
    finally:
        query.stop()
    raise query.exception() or TimeoutError("a query was not idle often enough")


def _median(measured: Measured, name: str) -> float:
    return statistics.median(sample.seconds for sample in measured.samples[name])


def _told(measured: Measured) -> str:
    """Seconds, and those of all processors; on an idle machine nothing takes longer than the latter."""
    told = (
        f"{name} {_median(measured, name):.3f} ({_median_cpu(samples)})" for name, samples in measured.samples.items()
    )
    return f"seconds, median (of processors): {', '.join(told)}"


def _median_cpu(samples: Sequence[Sample]) -> str:
    known = [sample.cpu_seconds for sample in samples if sample.cpu_seconds is not None]
    return f"{statistics.median(known):.3f}" if known else "unknown"
