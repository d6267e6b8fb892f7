"""Streams over all records with `availableNow`, two segments to a trigger, into a sink that only counts on rows coming.

- through the format, beside a batch read through the format into the same sink (`noop`, all columns);
- the fast path's twin, beside Spark's own file source over the folder of the same files, both with `foreachBatch` and
  the same function, which sends every batch to `noop`. Both bring the columns of the files, and no others.

A sample begins before the query is started and ends when it has ended: the first trigger of a query, its checkpoint on
the disk and all commits are in it. Every query has a checkpoint of its own, in a new directory. That all rows came is
checked once, unmeasured, with a function that counts.
"""

from __future__ import annotations

import statistics
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench import measure, spark_session, spark_time_split
from bench.measure import Bar, Measured, Options, Part
from bench.spark_logs import SEGMENTS, TOPIC, Logs
from bench.spark_session import Ask
from pyspark_holdfast.native_stream import NativeStream, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AT_ONCE = 2
BATCH, STREAM = "batch: format", "stream: format"
FILES, TWIN = "stream: Spark's file source", "stream: pyspark_holdfast.read_stream"
IN_FILES = ("offset", "timestamp", "key", "kind", "headers", "value")
"""The columns that files have: the file source cannot bring more."""
STREAM_AT_LEAST, TWIN_AT_LEAST = 0.5, 0.8
SECONDS_MAX = 600


def part(spark: SparkSession, logs: Logs, scratch: Path, options: Options) -> Part:
    """Batch and streams in turn."""
    asked = _Streams(spark, logs, scratch)
    asked.check()
    contestants: dict[str, Ask] = {BATCH: asked.batch, STREAM: asked.stream, FILES: asked.files, TWIN: asked.twin}
    questions = {"stream": contestants}
    spark_session.warm(questions, times=1)
    measured = measure.interleave(spark_session.contestants(questions, logs.rows), options)
    bars = [Bar(STREAM, BATCH, STREAM_AT_LEAST), Bar(TWIN, FILES, TWIN_AT_LEAST)]
    told = ", ".join(f"{name} {_median(measured, name):.2f}" for name in contestants)
    claims = [
        f"seconds, median: {told}; {SEGMENTS // AT_ONCE} triggers",
        *spark_session.costs(measured, bars),
        *asked.explained(measured, bars),
    ]
    return Part(f"streams over {logs.rows:,} rows", measured, bars, claims)


def _median(measured: Measured, name: str) -> float:
    return statistics.median(sample.seconds for sample in measured.samples[name])


def _swallow(batch: DataFrame, _number: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


class _Streams:
    """The ways to take all records once."""

    def __init__(self, spark: SparkSession, logs: Logs, scratch: Path) -> None:
        self._spark, self._logs, self._scratch = spark, logs, scratch
        self._root = str(logs.plain)
        self._schema = spark.read.parquet(logs.files[0]).schema
        self._checkpoints = count()
        self._durations: dict[str, list[dict[str, int]]] = {}
        self._outside: dict[str, float] = {}
        """Seconds of a query outside of its triggers: Spark starts a Python process for each of ours."""

    def batch(self) -> None:
        rows = self._spark.read.format("holdfast").options(topic=TOPIC, native="false").load(self._root)
        rows.write.format("noop").mode("overwrite").save()

    def stream(self) -> None:
        self._run(STREAM, self._rows().writeStream.format("noop"))

    def files(self) -> None:
        self._run(FILES, self._from_files().writeStream.foreachBatch(_swallow))

    def twin(self) -> None:
        self._run(TWIN, self._from_twin().foreach_batch(_swallow))

    def check(self) -> None:
        """All ways bring all rows."""
        seen: list[int] = []

        def note(batch: DataFrame, _number: int) -> None:
            seen.append(batch.count())

        for name, writer in (
            (STREAM, self._rows().writeStream.foreachBatch(note)),
            (FILES, self._from_files().writeStream.foreachBatch(note)),
            (TWIN, self._from_twin().foreach_batch(note)),
        ):
            seen.clear()
            self._run(name, writer)
            if sum(seen) != self._logs.rows or len(seen) != SEGMENTS // AT_ONCE:
                raise RuntimeError(f"a stream brought other batches than wanted; contestant={name} rows={seen}")

    def explained(self, measured: Measured, bars: list[Bar]) -> list[str]:
        """Where time goes in streams that miss their bars: what Spark says of their triggers, and our own part."""
        missed = [bar for bar in bars if measured.ratio(bar.subject, bar.rival) < bar.at_least]
        names = [name for bar in missed for name in (bar.subject, bar.rival) if name in self._durations]
        lines = [f"where time goes, {name}, s: {self._triggers(name)}" for name in names]
        if any(bar.subject == STREAM for bar in missed):
            found = spark_time_split.split({"path": self._root, "topic": TOPIC})
            lines.append(found.told(STREAM, _median(measured, STREAM)))
        return lines

    def _triggers(self, name: str) -> str:
        steps = sorted({step for trigger in self._durations[name] for step in trigger})
        total = {step: sum(trigger.get(step, 0) for trigger in self._durations[name]) / 1000 for step in steps}
        told = ", ".join(f"{step} {seconds:.2f}" for step, seconds in total.items())
        return f"{told}; outside of triggers {self._outside[name]:.2f}"

    def _rows(self) -> DataFrame:
        options = {"topic": TOPIC, "maxSegmentsPerTrigger": str(AT_ONCE)}
        return self._spark.readStream.format("holdfast").options(**options).load(self._root)

    def _from_files(self) -> DataFrame:
        folder = str(Path(self._logs.files[0]).parent)
        return self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", AT_ONCE).parquet(folder)

    def _from_twin(self) -> NativeStream:
        return read_stream(self._spark, self._root, TOPIC, columns=IN_FILES, maxSegmentsPerTrigger=AT_ONCE)

    def _run(self, name: str, writer: DataStreamWriter) -> None:
        """One query from its start to its end; what Spark says of the triggers of the last one is kept."""
        place = self._scratch / f"checkpoint-{next(self._checkpoints)}"
        began = time.perf_counter()
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        if not query.awaitTermination(SECONDS_MAX):
            query.stop()
            raise TimeoutError(f"a stream did not end; contestant={name}")
        seconds = time.perf_counter() - began
        self._durations[name] = [dict(progress["durationMs"]) for progress in query.recentProgress]
        self._outside[name] = seconds - sum(spent["triggerExecution"] for spent in self._durations[name]) / 1000
