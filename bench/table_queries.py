"""Queries as users write them, `spark.read.format("holdfast")`, beside `spark.read.parquet` on the same files.

- `count`: how many rows there are;
- `column`: one column of eight, summed;
- `filter`: the second and third quarter by time; number of rows, sum of offsets, last time. The condition is in the
  query, not in options;
- `scan`: crc32 of every payload, summed: no byte can be left out;
- `join`: every record with one of ten thousand of a small topic, whose payload is measured: each side of a contestant
  is read the contestant's way, and whoever knows how small the small side is can send it to all tasks.

One sample is one query with all that belongs to it: `load`, which finds manifests or files and the schema, planning,
and reading. All files are in the page cache for everybody. Spark is not told a schema, as nobody tells it one. What
would be unfair: options that choose columns or times for the format, or a DataFrame that was loaded before.

Beside each, in brackets and without a bar, `pyspark_holdfast.read`. `python -m bench table_queries` runs this alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark

import pyspark_holdfast
from bench import material, measure, spark_logs, spark_session
from bench.measure import Bar, Measured, Options, Part
from bench.spark_logs import BEGIN_US, STEP_US, TOPIC
from bench.spark_session import Ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT_LEAST = {"count": 0.8, "column": 0.8, "filter": 0.9, "scan": 0.9, "join": 0.9}
FORMAT, NATIVE, FAST = "format", "spark.read.parquet", "[pyspark_holdfast.read]"
SMALL_ROWS = 10_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Load = Callable[[Path], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Tables:
    """Two closed logs: many records in eight segments, and few in one."""

    rows: int
    large: Path
    small: Path


@contextmanager
def tables(options: Options) -> Iterator[Tables]:
    """Both logs, made where they are not there yet; the large one is that of `script/bench spark`."""
    rows = spark_logs.ROWS_QUICK if options.quick else spark_logs.ROWS
    with spark_logs.place(options) as directory:
        large = partial(spark_logs.write, rows=rows, segments=spark_logs.SEGMENTS)
        small = partial(spark_logs.write, rows=SMALL_ROWS, segments=1)
        yield Tables(
            rows,
            spark_logs.kept(directory / f"plain-{rows}", large),
            spark_logs.kept(directory / f"plain-{SMALL_ROWS}", small),
        )


def part(spark: SparkSession, found: Tables, options: Options) -> Part:
    """All queries, all ways, in turn."""
    questions = _questions(spark, found)
    _check_paths(spark, found)
    spark_session.warm(questions)
    measured = measure.interleave(spark_session.contestants(questions, found.rows), options)
    bars = [Bar(f"{query}: {FORMAT}", f"{query}: {NATIVE}", least) for query, least in AT_LEAST.items()]
    return Part(
        f"the format as users write it, {found.rows:,} rows",
        measured,
        bars,
        [_seconds(measured), *spark_session.costs(measured, bars)],
    )


def main(options: Options) -> None:
    """This part alone."""
    with measure.workspace(options) as scratch, tables(options) as found:
        facts = {**measure.machine(scratch), "pyspark": pyspark.__version__, "pyarrow": pa.__version__}
        with spark_session.running() as spark:
            made = part(spark, found, options)
    print(measure.report(made))
    path = measure.save("table_queries", made.measured, facts, bars=made.bars, remarks=made.claims)
    print(f"saved as bench/results/{path.name}")


def _questions(spark: SparkSession, found: Tables) -> dict[str, dict[str, Ask]]:
    loads: dict[str, Load] = {
        NATIVE: partial(_natively, spark),
        FORMAT: partial(_through_format, spark),
        FAST: lambda root: pyspark_holdfast.read(spark, root, TOPIC),
    }
    queries: dict[str, Callable[[Load], object]] = {
        "count": lambda load: load(found.large).count(),
        "column": lambda load: _summed(load(found.large)),
        "filter": lambda load: _filtered(load(found.large), found.rows),
        "scan": lambda load: _scanned(load(found.large)),
        "join": lambda load: _joined(load(found.large), load(found.small)),
    }
    return {
        query: {f"{query}: {name}": partial(ask, load) for name, load in loads.items()}
        for query, ask in queries.items()
    }


def _natively(spark: SparkSession, root: Path) -> DataFrame:
    files = [str(file) for file in material.files(root)]
    return spark.read.parquet(*files).withColumnsRenamed({"time": "timestamp", "payload": "value"})


def _through_format(spark: SparkSession, root: Path) -> DataFrame:
    return spark.read.format("holdfast").option("topic", TOPIC).load(str(root))


def _check_paths(spark: SparkSession, found: Tables) -> None:
    """What is measured must be what is claimed."""
    taken = pyspark_holdfast.path_of(_through_format(spark, found.large))
    if taken.path != "native":
        raise RuntimeError(f"the format is not accelerated; reason={taken.reason}")


# --- queries -------------------------------------------------------------------------------------------------


def _summed(rows: DataFrame) -> object:
    from pyspark.sql import functions as f

    return tuple(rows.agg(f.sum("offset")).first() or ())


def _filtered(rows: DataFrame, count: int) -> object:
    from pyspark.sql import functions as f

    since, before = (_EPOCH + timedelta(microseconds=BEGIN_US + count // 4 * at * STEP_US) for at in (1, 3))
    chosen = rows.where((f.col("timestamp") >= f.lit(since)) & (f.col("timestamp") < f.lit(before)))
    return tuple(chosen.agg(f.count("*"), f.sum("offset"), f.max("timestamp")).first() or ())


def _scanned(rows: DataFrame) -> object:
    from pyspark.sql import functions as f

    return tuple(rows.agg(f.sum(f.crc32("value"))).first() or ())


def _joined(large: DataFrame, small: DataFrame) -> object:
    from pyspark.sql import functions as f

    few = small.select(f.col("offset").alias("number"), f.length("value").alias("bytes"))
    many = large.select((f.col("offset") % SMALL_ROWS).alias("number"), "timestamp")
    return tuple(many.join(few, "number").agg(f.count("*"), f.sum("bytes"), f.max("timestamp")).first() or ())


# --- what it comes to ----------------------------------------------------------------------------------------


def _seconds(measured: Measured) -> str:
    told = (
        f"{name} {statistics.median(each.seconds for each in found):.2f}" for name, found in measured.samples.items()
    )
    return "seconds, median: " + ", ".join(told)
