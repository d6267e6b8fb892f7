"""Spark reading what is settled, beside Spark reading the same files by itself.

Each part has a module of its own that says what is measured and what would be unfair:

- `spark_queries`: count, filter and scan, through the format, by the fast path and natively; encrypted beside plain;
- `spark_streams`: `availableNow`, beside batch and beside Spark's own file source;
- `spark_many_segments`: tiny segments, planning over a hundred thousand, triggers with nothing new.

One session with two cores for everybody, contestants in alternating rounds after a warm-up; ratios count, figures are
this machine's. Whoever else uses the machine is part of every figure. Where a bar is missed, `spark_time_split` tells
what of it is ours. `--quick` reads a million rows and plans ten thousand segments: it shows that everything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark

from bench import measure, spark_logs, spark_many_segments, spark_queries, spark_session, spark_streams
from bench.measure import Options, Part
from bench.spark_logs import Logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(options: Options) -> None:
    """Run all parts, print tables and verdicts, keep the samples."""
    with measure.workspace(options) as scratch, spark_logs.made(options) as logs:
        facts = {**measure.machine(scratch), "pyspark": pyspark.__version__, "pyarrow": pa.__version__}
        facts |= {"rows": logs.rows, "spark_cores": spark_session.CORES}
        with spark_session.running() as spark:
            parts = [_told(run()) for run in _parts(spark, logs, scratch, options)]
    measure.conclude("spark", parts, facts)


def _parts(spark: SparkSession, logs: Logs, scratch: Path, options: Options) -> Sequence[Callable[[], Part]]:
    return (
        lambda: spark_queries.part(spark, logs, options),
        lambda: spark_streams.part(spark, logs, scratch, options),
        lambda: spark_many_segments.tiny(spark, logs, options),
        lambda: spark_many_segments.planning(spark, logs, options),
        lambda: spark_many_segments.idle(spark, logs, scratch, options),
    )


def _told(part: Part) -> Part:
    print(measure.report(part), "", sep="\n", flush=True)
    return part
