"""Pipelines on Spark: tables follow the topics of a root, run by run, each row exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import holdfast
from pyspark_holdfast.pipeline import (
    Pipeline,
    RunReport,
    Table,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = {"id": "int64", "status": "string", "amount": "int64", "at": "timestamp[us, UTC]"}


@table(inputs="orders")
def paid(orders: DataFrame) -> DataFrame:
    """Orders that were paid."""
    return orders.where("status = 'paid'").select("id", "amount", "_partition", "_offset")


@table
def large(paid: DataFrame) -> DataFrame:
    return paid.where("amount >= 50").select("id", "amount")


class Shop:
    """A log with orders, and a place for tables."""

    def __init__(self, folder: Path) -> None:
        self.log_path, self.tables = folder / "log", folder / "tables"
        self.number = 0

    def sell(self, count: int, partitions: int = 2) -> None:
        """More orders: each number once, two of three are paid."""
        with holdfast.open(self.log_path) as log:
            orders = log.topic("orders", partitions=partitions, schema=schema())
            for partition in range(partitions):
                rows = [order(self.number + each * partitions + partition) for each in range(count)]
                orders.append(rows, partition=partition)
            log.seal("orders")
        self.number += count * partitions

    def pipeline(self, *tables: Table, **more: Any) -> Pipeline:
        return Pipeline("shop", root=self.log_path, tables=self.tables, of=tables, **more)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What another reader of Delta tables sees."""
        return DeltaTable(self.tables / name).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]


def schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [("id", pa.int64()), ("status", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
    )


def order(number: int) -> dict[str, Any]:
    from datetime import UTC, datetime, timedelta

    return {
        "id": number,
        "status": ("paid", "new", "paid")[number % 3],
        "amount": number % 100,
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number),
    }


def paid_ids(upto: int) -> list[int]:
    return [number for number in range(upto) if order(number)["status"] == "paid"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def outcomes(report: RunReport) -> dict[str, str]:
    return {one.name: one.outcome for one in report.tables}


def test_a_table_follows_its_topic(spark: SparkSession, shop: Shop) -> None:
    pipeline = shop.pipeline(paid, large)
    for step in range(1, 4):
        shop.sell(20)
        report = pipeline.run(spark)
        assert outcomes(report) == {"paid": "written", "large": "written"}, report
        assert sorted(row["id"] for row in shop.rows("paid")) == paid_ids(shop.number)
        assert sorted(row["id"] for row in shop.rows("large")) == [n for n in paid_ids(shop.number) if n % 100 >= 50]
        assert [one.run for one in report.tables] == [step, step]
    report = pipeline.run(spark)
    assert outcomes(report) == {"paid": "unchanged", "large": "unchanged"}
