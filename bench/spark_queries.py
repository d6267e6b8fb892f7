"""Three queries over all records, by Spark's own Parquet reader, by the fast path, and through the format.

- `count`: how many rows there are. Spark asks all footers; through the format offsets are chosen (`columns="offset"`),
  and manifests answer, but Spark still takes every row in hand to count it. Beside it, without a bar, the same answer
  from one row per segment (`emit=segments`).
- `filter`: the second and third quarter by time; number of rows, sum of offsets, last time. Spark's reader has the
  columns pruned and the filter pushed down to row groups; the format has two columns chosen, and the span as options.
- `scan`: crc32 of every payload, summed: no byte of a payload can be left out, and no reader can guess the answer.

One sample is one query with everything that belongs to it: finding files or manifests, planning, reading. Spark's own
reader is given the files of the same segments, in the page cache for everybody. It finds their schema itself, as it
does for everybody who writes `spark.read.parquet(…)`; what the answer to `count` costs where somebody tells it the
schema, stands beside it in brackets. What would be unfair: a query that asks for less of one contestant.

The format is the Python source here (`native=false`), as encrypted topics have it; `table_queries` has the format as
users write it. The encrypted log holds the same records; its rival is the plain one, through the format as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from bench import measure, spark_session, spark_time_split
from bench.measure import Bar, Measured, Options, Part
from bench.spark_logs import TOPIC, Logs
from bench.spark_session import Ask
from pyspark_holdfast.native import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NATIVE, FAST, FORMAT = "spark.read.parquet", "pyspark_holdfast.read", "format"
FAST_AT_LEAST = 0.9
FORMAT_AT_LEAST = {"count": 1.0, "filter": 0.9, "scan": 0.6}
SEALED, SEALED_AT_LEAST = "scan: format, encrypted", 0.7
COLUMNS = {"count": "offset", "filter": "offset,timestamp", "scan": "value"}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def part(spark: SparkSession, logs: Logs, options: Options) -> Part:
    """All queries, all ways, in turn."""
    questions = _questions(spark, logs)
    spark_session.warm(questions)
    measured = measure.interleave(spark_session.contestants(questions, logs.rows), options)
    bars = [
        *(Bar(_name(query, FAST), _name(query, NATIVE), FAST_AT_LEAST) for query in COLUMNS),
        *(Bar(_name(query, FORMAT), _name(query, NATIVE), least) for query, least in FORMAT_AT_LEAST.items()),
        Bar(SEALED, _name("scan", FORMAT), SEALED_AT_LEAST),
    ]
    missed = [bar.subject for bar in bars if measured.ratio(bar.subject, bar.rival) < bar.at_least]
    claims = [_seconds(measured), *spark_session.costs(measured, bars), *_explained(measured, missed, logs)]
    if any(name.endswith(FAST) for name in missed):
        claims.append(_planned(spark, logs))
    return Part(f"queries over {logs.rows:,} rows", measured, bars, claims)


def _name(query: str, way: str) -> str:
    return f"{query}: {way}"


def _natively(spark: SparkSession, logs: Logs) -> DataFrame:
    return spark.read.parquet(*logs.files).withColumnsRenamed({"time": "timestamp", "payload": "value"})


def _fast(spark: SparkSession, logs: Logs) -> DataFrame:
    return read(spark, str(logs.plain), TOPIC)


def _questions(spark: SparkSession, logs: Logs) -> dict[str, dict[str, Ask]]:
    files, keyring = logs.files, f"file:{logs.keyring}"
    schema = spark.read.parquet(files[0]).schema

    def through_format(place: str = str(logs.plain), **chosen: str) -> DataFrame:
        return spark.read.format("holdfast").options(topic=TOPIC, native="false", **chosen).load(place)

    since, before = (_EPOCH + timedelta(microseconds=us) for us in logs.half)
    queries: dict[str, Callable[[DataFrame], object]] = {
        "count": lambda rows: rows.count(),
        "filter": lambda rows: _filtered(rows, since, before),
        "scan": _scanned,
    }
    chosen = {query: {"columns": columns} for query, columns in COLUMNS.items()}
    chosen["filter"] |= {"startingTimestamp": since.isoformat(), "endingTimestamp": before.isoformat()}
    questions: dict[str, dict[str, Ask]] = {}
    for query, ask in queries.items():
        questions[query] = {
            _name(query, NATIVE): lambda ask=ask: ask(_natively(spark, logs)),  # type: ignore[misc]
            _name(query, FAST): lambda ask=ask: ask(_fast(spark, logs)),  # type: ignore[misc]
            _name(query, FORMAT): lambda ask=ask, query=query: ask(through_format(**chosen[query])),  # type: ignore[misc]
        }
    questions["count"] |= {
        "count: [spark.read.parquet with a schema]": lambda: spark.read.schema(schema).parquet(*files).count(),
        "count: [format, emit=segments]": lambda: _summed(through_format(emit="segments")),
    }
    questions["scan"][SEALED] = lambda: _scanned(
        through_format(str(logs.sealed), columns=COLUMNS["scan"], keyring=keyring)
    )
    return questions


def _filtered(rows: DataFrame, since: datetime, before: datetime) -> object:
    from pyspark.sql import functions as f

    chosen = rows.where((f.col("timestamp") >= f.lit(since)) & (f.col("timestamp") < f.lit(before)))
    return tuple(chosen.agg(f.count("*"), f.sum("offset"), f.max("timestamp")).first() or ())


def _scanned(rows: DataFrame) -> object:
    from pyspark.sql import functions as f

    return tuple(rows.agg(f.sum(f.crc32("value"))).first() or ())


def _summed(segments: DataFrame) -> object:
    from pyspark.sql import functions as f

    return (segments.agg(f.sum(f.col("end_offset") - f.col("start_offset"))).first() or (0,))[0]


# --- what it comes to ----------------------------------------------------------------------------------------


def _seconds(measured: Measured) -> str:
    told = ", ".join(f"{name} {_median(measured, name):.2f}" for name in measured.samples)
    return f"seconds, median: {told}"


def _median(measured: Measured, name: str) -> float:
    return statistics.median(sample.seconds for sample in measured.samples[name])


def _explained(measured: Measured, missed: list[str], logs: Logs) -> list[str]:
    """Where time goes in every query through the format that misses its bar."""
    options = {_name(query, FORMAT): _read_options(logs, query) for query in COLUMNS}
    options[SEALED] = {**_read_options(logs, "scan"), "path": str(logs.sealed), "keyring": f"file:{logs.keyring}"}
    return [
        spark_time_split.split(options[name]).told(name, _median(measured, name)) for name in missed if name in options
    ]


def _planned(spark: SparkSession, logs: Logs) -> str:
    """What the fast path and Spark by itself take until they know their tasks; from there on they do the same."""
    told = []
    for name, frame in ((FAST, _fast), (NATIVE, _natively)):
        began = time.perf_counter()
        rows = frame(spark, logs)
        found = time.perf_counter()
        tasks = rows._jdf.queryExecution().toRdd().getNumPartitions()
        planned = time.perf_counter()
        told.append(f"{name} finds its files in {found - began:.3f} s, plans {tasks} tasks in {planned - found:.3f} s")
    return "where time goes: " + "; ".join(told)


def _read_options(logs: Logs, query: str) -> dict[str, str]:
    given = {"path": str(logs.plain), "topic": TOPIC, "columns": COLUMNS[query]}
    if query == "filter":
        since, before = logs.half
        given |= {"startingTimestamp": str(since // 1000), "endingTimestamp": str(before // 1000)}
    return given
