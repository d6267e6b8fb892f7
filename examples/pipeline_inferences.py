"""Calls of language models, with what they cost: a price list that changes, cost by hour and team, and latencies.

    python -m examples.pipeline_inferences [DIRECTORY]
    holdfast spark pipeline run examples/pipeline_inferences.py --root DIRECTORY/store --tables DIRECTORY/tables

Applications append a row for each call to the topic `inferences`, somebody else the prices to the topic `prices`. A
call costs what the model cost when it was made: a price that comes later does not change it. The pipeline runs twice;
models become cheaper in between, and a new one appears.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa

import holdfast
from pyspark_holdfast.pipeline import Pipeline, append, count, max_of, snapshot, sum_of, table, whole, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 5, 4, 8, tzinfo=UTC)
HOURS, CALLS_PER_HOUR = 3, 250
TEAMS = ("assistant", "assistant", "assistant", "search", "search", "support")
TIME = pa.timestamp("us", tz="UTC")
CALLS = pa.schema(
    [
        ("request_id", pa.string()),
        ("team", pa.string()),
        ("model", pa.string()),
        ("asked_at", TIME),
        ("tokens_in", pa.int64()),
        ("tokens_out", pa.int64()),
        ("latency_ms", pa.int64()),
        ("status", pa.string()),
    ]
)
PRICES = pa.schema(
    [("model", pa.string()), ("since", TIME), ("in_per_million", pa.float64()), ("out_per_million", pa.float64())]
)
PRICE_LIST = {
    0: [("small", 0, 0.25, 1.25), ("large", 0, 3.0, 15.0)],
    1: [("small", HOURS, 0.20, 1.0), ("vision", HOURS, 5.0, 20.0)],
}
"""By part: model, from which hour on, dollars for a million tokens in and out."""


# -- the tables ---------------------------------------------------------------------------------------------


@table(inputs=["inferences", whole("prices")], kind=append())
def inference_costs(inferences: DataFrame, prices: DataFrame) -> DataFrame:
    """Each call with its cost, at the price that held when it was made. A model without a price has no cost."""
    from pyspark.sql import functions as F  # noqa: N812

    calls = inferences.drop("_topic", "_time")
    held = prices.select(
        F.col("model").alias("priced"),
        "since",
        "in_per_million",
        "out_per_million",
        F.lead("since").over(_by_model()).alias("until"),
    )
    is_held = (
        (F.col("model") == F.col("priced"))
        & (F.col("asked_at") >= F.col("since"))
        & (F.col("until").isNull() | (F.col("asked_at") < F.col("until")))
    )
    cost = (F.col("tokens_in") * F.col("in_per_million") + F.col("tokens_out") * F.col("out_per_million")) / 1e6
    return calls.join(F.broadcast(held), is_held, "left").select(*calls.columns, cost.alias("dollars"))


def _by_model() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy("model").orderBy("since")


@table(
    inputs="inference_costs",
    kind=windowed(
        "asked_at",
        "1h",
        by=["team", "model"],
        values={
            "calls": count(),
            "tokens": sum_of("tokens"),
            "dollars": sum_of("dollars"),
            "slowest_ms": max_of("latency_ms"),
        },
    ),
)
def cost_by_hour(calls: DataFrame) -> DataFrame:
    """What each team spent on each model, by hour."""
    return calls.withColumn("tokens", calls.tokens_in + calls.tokens_out)


@table(inputs=whole("inference_costs"), kind=snapshot())
def latencies(calls: DataFrame) -> DataFrame:
    """How long calls took, by model: percentiles are not sums, so they are computed of all calls."""
    from pyspark.sql import functions as F  # noqa: N812

    return calls.groupBy("model").agg(
        F.count("*").alias("calls"),
        F.count_if(F.col("status") != "ok").alias("failed"),
        *[F.percentile("latency_ms", one / 100).alias(f"p{one}_ms") for one in (50, 95, 99)],
    )


TABLES = [inference_costs, cost_by_hour, latencies]


# -- something to read --------------------------------------------------------------------------------------


def calls(part: int) -> Iterator[dict[str, Any]]:
    """What applications ask in three hours; at the end of the second part there is a new model."""
    models = ("small", "small", "large") if part == 0 else ("small", "large", "vision")
    for number in range(part * HOURS * CALLS_PER_HOUR, (part + 1) * HOURS * CALLS_PER_HOUR):
        dice = crc32(b"call %d" % number)
        model, tokens_out = models[dice % 3], 20 + dice % 700
        seconds = number * 3600 // CALLS_PER_HOUR
        yield {
            "request_id": f"r-{number:06d}",
            "team": TEAMS[dice // 7 % len(TEAMS)],
            "model": model,
            "asked_at": START + timedelta(seconds=seconds, milliseconds=dice % 1000),
            "tokens_in": 200 + dice // 3 % 4000,
            "tokens_out": tokens_out,
            "latency_ms": 120 + tokens_out * (4 if model == "small" else 11) + dice % 90,
            "status": "ok" if dice % 41 else "timeout",
        }


def prices(part: int) -> list[dict[str, Any]]:
    """Prices that become known before a part."""
    return [
        {"model": model, "since": START + timedelta(hours=hour), "in_per_million": cost_in, "out_per_million": cost_out}
        for model, hour, cost_in, cost_out in PRICE_LIST[part]
    ]


def write(directory: Path, part: int) -> int:
    """Append prices and calls of a part, and ship them; returns how many calls."""
    with holdfast.open(directory / "log", store=directory / "store") as log:
        log.topic("prices", schema=PRICES).append(prices(part))
        rows = pa.Table.from_pylist(list(calls(part)), CALLS)
        log.topic("inferences", schema=CALLS, partitions=2, key="request_id").append(rows, time="asked_at")
        log.seal()
        log.ship(60)
    return int(rows.num_rows)


# -- run it -------------------------------------------------------------------------------------------------


def pipeline(directory: Path) -> Pipeline:
    """The pipeline over what was shipped."""
    return Pipeline("inferences", root=directory / "store", tables=directory / "tables", of=TABLES)


def run(directory: Path, spark: SparkSession) -> bool:
    """Two parts of a day, and a run after each; True when all went well."""
    from pyspark.sql import functions as F  # noqa: N812

    from pyspark_holdfast.pipeline import read_table

    good = True
    for part in (0, 1):
        rows = write(directory, part)
        report = pipeline(directory).run(spark)
        good = good and report.is_fine
        print(f"part {part + 1}: {rows} calls")
        for one in report.tables:
            print(f"  {one.name:<15} {one.outcome:<9} {one.rows_in:>4} rows in, {one.rows:>4} rows in the table")
    made = read_table(spark, directory / "tables" / "cost_by_hour")
    made.groupBy("team").agg(F.sum("calls").alias("calls"), F.round(F.sum("dollars"), 4).alias("dollars")).orderBy(
        "team"
    ).show()
    read_table(spark, directory / "tables" / "latencies").orderBy("model").show()
    return good


def main() -> int:
    """Write, run, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="where to keep it (default: a temporary directory)")
    options = parser.parse_args()
    import pyspark_holdfast

    with tempfile.TemporaryDirectory() as temporary:
        return 0 if run(options.directory or Path(temporary), pyspark_holdfast.session("local[2]")) else 1


if __name__ == "__main__":
    sys.exit(main())
