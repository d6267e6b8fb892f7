"""The trace of an append, in Spark: from the headers of records that a traced program wrote, by column and by SQL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_holdfast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SQL = "substring(string(get(filter(headers, h -> h.key = 'traceparent'), 0).value), 4, 32)"


def test_spark_finds_records_by_their_trace(spark: SparkSession, tmp_path: Path) -> None:
    """As OpenTelemetry's SDK gave it to the program; null where a record has none, or one that is not W3C's."""
    place = tmp_path / "log"
    command = [sys.executable, "-m", "tests.telemetry.otel_program", str(place), "appends"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    traces = {record["payload"]: record["trace"] for record in json.loads(done.stdout)["records"]}
    frame = spark.read.format("holdfast").option("topic", "orders").load(str(place))
    rows = frame.select("value", pyspark_holdfast.trace_id().alias("trace")).collect()
    assert {bytes(row["value"]).decode()[:20]: row["trace"] for row in rows} == traces
    assert len({trace for trace in traces.values() if trace}) == 1
    trace = next(trace for trace in traces.values() if trace)
    assert frame.where(pyspark_holdfast.trace_id() == trace).count() == sum(value == trace for value in traces.values())
    frame.createOrReplaceTempView("orders_told")
    by_sql = spark.sql(f"SELECT {SQL} AS trace, count(*) AS records FROM orders_told GROUP BY 1").collect()
    assert {row["trace"]: row["records"] for row in by_sql}[trace] == sum(value == trace for value in traces.values())


def test_the_query_of_the_docs_is_the_one_that_runs() -> None:
    """Word for word."""
    page = Path(__file__).parents[2] / "docs/howto/monitoring.md"
    assert SQL in page.read_text(encoding="utf-8")
    assert SQL in (pyspark_holdfast.trace_id.__doc__ or "")
