"""The tables of a declarative pipeline: orders as they come, those that were paid, and revenue by country.

Spark finds the format `holdfast` by itself; nothing is registered here, and must not be: Spark refuses it in pipelines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()
ROOT = os.environ["ORDERS_ROOT"]


@dp.table(comment="Every change of an order, as it was settled.", format="parquet")
def order_changes() -> DataFrame:
    """A stream: each run goes on where the last one ended."""
    return spark.readStream.format("holdfast").option("topic", "orders").load(ROOT)


@dp.table(comment="Payments.", format="parquet")
def payments() -> DataFrame:
    """A stream on that table."""
    changes = spark.readStream.table("order_changes")
    return changes.where("status = 'paid'").select("order_id", "country", "cents", "ordered_at")


@dp.materialized_view(comment="What was paid, by country.", format="parquet")
def revenue_by_country() -> DataFrame:
    """Computed anew in each run."""
    return (
        spark.read.table("payments").groupBy("country").agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )
