"""Topics that Spark writes: `df.write.format("holdfast")`, beside Spark's own Parquet write of the same DataFrame.

The DataFrame is read from a Parquet file in two parts, so that two tasks write. Both write all of it to a new place on
the same disk, and what they wrote is counted. Ours makes what any topic has: segments with hashes, chain and manifest,
in zstd, and the commit. Spark's write has its defaults (snappy); in brackets, with zstd, too.

- `typed`: seven columns as they are;
- `raw`: `key` and `value`, payloads of some 100 bytes.

The limit is a sink in Python that takes the same rows and throws them away (`[rows handed to Python]`): what Spark
needs to bring them there, before anybody has written a byte.

What would be unfair: a DataFrame in memory, where reading costs nobody anything and writing is all; or rows that only
one of the two has to shuffle. `--quick` has a fifth of the rows.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from bench import measure, spark_session
from bench.measure import Bar, Options, Part
from bench.order_rows import all_orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, ROWS_QUICK = 5_000_000, 1_000_000
AT_LEAST = 0.8
OURS, RIVAL, ZSTD = "format holdfast", "Spark's Parquet", "[Spark's Parquet, zstd]"
LIMIT = "[rows handed to Python]"

Write = Callable[["DataFrame", Path], None]


def main(options: Options) -> None:
    """This part alone."""
    with measure.workspace(options) as scratch:
        facts = {**measure.machine(scratch), "pyspark": pyspark.__version__, "pyarrow": pa.__version__}
        with spark_session.running() as spark:
            made = part(spark, scratch, options)
    print(measure.report(made))
    measure.save_parts("sink_speed", [made], facts)


def part(spark: SparkSession, scratch: Path, options: Options) -> Part:
    """All shapes, all ways, in turns."""
    rows = ROWS_QUICK if options.quick else ROWS
    frames = _frames(spark, scratch, rows)
    writes: dict[str, Write] = {
        OURS: _ours,
        RIVAL: lambda frame, place: frame.write.parquet(str(place)),
        ZSTD: lambda frame, place: frame.write.option("compression", "zstd").parquet(str(place)),
        LIMIT: _limit(spark),
    }
    counts: dict[str, Callable[[Path], int]] = {
        OURS: lambda place: _load(spark, place).count(),
        RIVAL: lambda place: spark.read.parquet(str(place)).count(),
        ZSTD: lambda place: spark.read.parquet(str(place)).count(),
    }
    questions = {
        shape: {f"{shape}: {name}": partial(_written, write, frame, scratch / "out") for name, write in writes.items()}
        for shape, frame in frames.items()
    }
    for shape, frame in frames.items():
        for name, write in writes.items():
            if name in counts:
                _check(counts[name], write, frame, scratch / f"check-{shape}", rows)
    measured = measure.interleave(spark_session.contestants(questions, rows), options)
    bars = [Bar(f"{shape}: {OURS}", f"{shape}: {RIVAL}", AT_LEAST) for shape in frames]
    return Part(f"{rows:,} rows into a topic", measured, bars, spark_session.costs(measured, bars))


def _frames(spark: SparkSession, scratch: Path, rows: int) -> dict[str, DataFrame]:
    orders, half = all_orders(rows), rows // 2
    for number in range(2):
        pq.write_table(orders.slice(number * half, half), scratch / f"part-{number}.parquet", row_group_size=250_000)
    files = [str(scratch / f"part-{number}.parquet") for number in range(2)]
    typed = spark.read.parquet(*files)
    raw = typed.selectExpr(
        "encode(cast(order_id as string), 'utf-8') as key", "encode(to_json(struct(*)), 'utf-8') as value"
    )
    return {"typed": typed, "raw": raw}


def _ours(frame: DataFrame, place: Path) -> None:
    frame.write.format("holdfast").mode("append").option("topic", "orders").save(str(place))


def _limit(spark: SparkSession) -> Write:
    """A sink that writes nothing; classes of a function travel as code, so that workers need not find this module."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Drain(DataSourceArrowWriter):
        def write(self, iterator):  # type: ignore[no-untyped-def]
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class DrainSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "drain"

        def writer(self, schema, overwrite):  # type: ignore[no-untyped-def]
            return Drain()

    spark.dataSource.register(DrainSource)

    def write(frame: DataFrame, place: Path) -> None:
        place.mkdir()
        frame.write.format("drain").mode("append").save(str(place))

    return write


def _load(spark: SparkSession, place: Path) -> DataFrame:
    return spark.read.format("holdfast").option("topic", "orders").load(str(place))


_numbers = itertools.count()


def _written(write: Write, frame: DataFrame, place: Path) -> None:
    """Write to a new place, which is gone afterwards: removing it is quick and the same for all."""
    here = place.with_name(f"{place.name}-{next(_numbers)}")
    write(frame, here)
    shutil.rmtree(here)


def _check(count: Callable[[Path], int], write: Write, frame: DataFrame, place: Path, rows: int) -> None:
    """Write once, unmeasured; all rows must be there."""
    write(frame, place)
    found = count(place)
    shutil.rmtree(place)
    if found != rows:
        raise RuntimeError(f"rows are missing; found={found} rows={rows}")
