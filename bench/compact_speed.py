"""Compaction beside Spark's own way to make few files of many, and reading many tiny segments before and after it.

- Writing: a root of hundreds of segments, compacted by `holdfast.compact` (this process alone) and by the job on Spark;
  beside them `spark.read.parquet(files).repartition(n).write.parquet(…)` on the same files, into as many files as
  compaction makes. Ours keep the order of rows, read with all proofs, prove what they wrote row by row, and sync it;
  Spark's does none of that. Each sample works on a root of its own, whose files are links to the same ones.
- Reading: all columns of thousands of segments of a few records each through the format, as users write it, before and
  after compaction: `load`, planning and reading. Beside each Spark's own Parquet reader on the same files.

All files are in the page cache. `python -m bench compact_speed` runs this alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark

import holdfast
from bench import material, measure, spark_logs, spark_session
from bench.measure import Bar, Options, Part
from bench.spark_logs import BEGIN_US, STEP_US, TOPIC
from holdfast import Record, Settings
from pyspark_holdfast.jobs import compact as job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS, SEGMENTS_QUICK = 400, 100
SEGMENT_ROWS = 5_000
TINY, TINY_QUICK = 5_000, 1_000
TINY_ROWS = 10
TARGET = "32MiB"
AT_LEAST_WRITING, AT_LEAST_READING = 1.2, 10.0
LOCAL, JOB, SPARK = "holdfast.compact", "job on Spark", "spark repartition"
BEFORE, AFTER = "format: tiny segments", "format: compacted"
PLAIN_BEFORE, PLAIN_AFTER = "[parquet: tiny segments]", "[parquet: compacted]"


@dataclass(frozen=True, slots=True)
class Roots:
    """Two roots: many segments that are worth joining, and very many tiny ones."""

    many: Path
    rows: int
    tiny: Path
    tiny_rows: int


@contextmanager
def roots(options: Options) -> Iterator[Roots]:
    """Both, made where they are not there yet."""
    segments, tiny = (SEGMENTS_QUICK, TINY_QUICK) if options.quick else (SEGMENTS, TINY)
    with spark_logs.place(options) as directory:
        yield Roots(
            spark_logs.kept(directory / f"shipped-{segments}", partial(_write, segments=segments, rows=SEGMENT_ROWS)),
            segments * SEGMENT_ROWS,
            spark_logs.kept(directory / f"shipped-tiny-{tiny}", partial(_write, segments=tiny, rows=TINY_ROWS)),
            tiny * TINY_ROWS,
        )


def _write(path: Path, *, segments: int, rows: int) -> None:
    """A root that a log ships to, of so many segments."""
    payloads = material.payloads(rows)
    settings = Settings.from_mapping(
        {"store": {"url": str(path)}, "segments": material.QUIET, "disk": {"free_bytes_min": 0}}
    )
    log_directory = path.with_name(path.name + "-log")
    shutil.rmtree(log_directory, ignore_errors=True)
    with holdfast.open(log_directory, settings=settings) as log:
        topic = log.topic(TOPIC)
        for segment in range(segments):
            began = BEGIN_US + segment * rows * STEP_US
            topic.append_batch([Record(body, time=began + i * STEP_US) for i, body in enumerate(payloads)])
            log.seal(timeout=600)
        log.ship(600)
    shutil.rmtree(log_directory)


# --- writing -------------------------------------------------------------------------------------------------


def writing(spark: SparkSession, found: Roots, options: Options, scratch: Path) -> Part:
    """Many segments into few files, three ways."""
    numbers = count()
    outputs = holdfast.compact(str(found.many), target_size=TARGET, dry_run=True).files_after

    def compacted(name: str) -> object:
        root = _linked(found.many, scratch / f"compact-{next(numbers)}")
        report = (
            holdfast.compact(str(root), target_size=TARGET)
            if name == LOCAL
            else job.compact(spark, str(root), target_size=TARGET)
        )
        shutil.rmtree(root)
        return report.rewritten_rows

    def rewritten() -> object:
        target = scratch / f"spark-{next(numbers)}"
        spark.read.parquet(*_files(found.many)).repartition(outputs).write.parquet(str(target))
        shutil.rmtree(target)
        return found.rows

    questions = {"writing": {SPARK: rewritten, LOCAL: partial(compacted, LOCAL), JOB: partial(compacted, JOB)}}
    spark_session.warm(questions, 1)
    measured = measure.interleave(spark_session.contestants(questions, found.rows), options)
    bars = [Bar(LOCAL, SPARK, AT_LEAST_WRITING), Bar(JOB, SPARK, AT_LEAST_WRITING)]
    claims = spark_session.costs(measured, bars)
    return Part(
        f"{len(_files(found.many))} segments, {found.rows:,} rows, into {outputs} files", measured, bars, claims
    )


def _linked(root: Path, target: Path) -> Path:
    """The same root under another name: its files are the same ones, and nobody changes a file."""
    shutil.copytree(root, target, copy_function=os.link)
    return target


def _files(root: Path) -> list[str]:
    return [str(file) for file in sorted(root.glob(f"topics/{TOPIC}/*/segments/*.parquet"))]


# --- reading -------------------------------------------------------------------------------------------------


def reading(spark: SparkSession, found: Roots, options: Options, scratch: Path) -> Part:
    """All rows of tiny segments, before and after."""
    after = _linked(found.tiny, scratch / "tiny-compacted")
    report = holdfast.compact(str(after), delete_after_ms=0)
    holdfast.compact(str(after), delete_after_ms=0)
    before_files, after_files = _files(found.tiny), _files(after)

    def read(frame: DataFrame) -> object:
        frame.write.format("noop").mode("overwrite").save()
        return None

    def load(root: Path) -> DataFrame:
        return spark.read.format("holdfast").option("topic", TOPIC).load(str(root))

    questions = {
        "before": {
            BEFORE: lambda: read(load(found.tiny)),
            PLAIN_BEFORE: lambda: read(spark.read.parquet(*before_files)),
        },
        "after": {AFTER: lambda: read(load(after)), PLAIN_AFTER: lambda: read(spark.read.parquet(*after_files))},
    }
    spark_session.warm(questions, 1)
    measured = measure.interleave(spark_session.contestants(questions, found.tiny_rows), options)
    title = f"reading {report.files_before:,} tiny segments, {report.files_after} after, {found.tiny_rows:,} rows"
    return Part(title, measured, [Bar(AFTER, BEFORE, AT_LEAST_READING)])


def main(options: Options) -> None:
    """Both parts."""
    with measure.workspace(options) as scratch, roots(options) as found:
        facts = {**measure.machine(scratch), "pyspark": pyspark.__version__, "pyarrow": pa.__version__}
        with spark_session.running() as spark:
            parts = [make(spark, found, options, scratch) for make in (writing, reading)]
    for part, name in zip(parts, ("compact_writing", "compact_reading"), strict=True):
        print(measure.report(part))
        path = measure.save(name, part.measured, facts, bars=part.bars, remarks=part.claims)
        print(f"saved as bench/results/{path.name}")
