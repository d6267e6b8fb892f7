"""`run_table`: a table on a handful of records gives what the pipeline gives, kind by kind, run after run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from holdfast import Invalid, Record
from holdfast.testing import run_table
from pyspark_holdfast.pipeline import append, count, keyed, snapshot, sum_of, table, topic, whole, windowed
from pyspark_holdfast.pipeline.builtin import bronze

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@table(inputs="orders", kind=keyed("id", order_by="_offset", delete="gone"))
def orders_now(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id", "status", "_offset", "status = 'deleted' AS gone")


@table(inputs="orders", kind=windowed("at", "1h", by="shop", values={"n": count(), "cents": sum_of("cents")}))
def revenue(orders: DataFrame) -> DataFrame:
    return orders


@table(inputs=["orders", whole("prices")], kind=append())
def priced(orders: DataFrame, prices: DataFrame) -> DataFrame:
    return orders.select("id", "item").join(prices.select("item", "price"), "item")


@table(inputs=whole("priced"), kind=snapshot())
def total(priced: DataFrame) -> DataFrame:
    return priced.selectExpr("count(*) AS n", "sum(price) AS price")


def test_the_latest_row_of_each_key_and_none_of_a_deleted_one(spark: SparkSession) -> None:
    rows = run_table(
        orders_now,
        {"orders": [{"id": "a", "status": "new"}, {"id": "b", "status": "new"}]},
        then=[
            {"orders": [{"id": "a", "status": "paid"}, {"id": "c", "status": "new"}]},
            {"orders": [{"id": "b", "status": "deleted"}]},
        ],
        spark=spark,
    )
    assert [(row["id"], row["status"]) for row in rows] == [("a", "paid"), ("c", "new")]


def test_windows_that_late_rows_correct(spark: SparkSession) -> None:
    def order(minutes: int, cents: int | None) -> dict[str, object]:
        return {"at": NOON + timedelta(minutes=minutes), "shop": "x", "cents": cents}

    first, late = [order(5, 100), order(65, 10)], [order(59, 1), order(61, None)]
    rows = run_table(revenue, {"orders": first}, then={"orders": late}, spark=spark)
    assert [(row["window_start"], row["n"], row["cents"]) for row in rows] == [
        (NOON, 2, 101),
        (NOON + timedelta(hours=1), 2, 10),
    ]
    assert rows == run_table(revenue, {"orders": [*first, *late]}, spark=spark)  # in one run


def test_inputs_that_are_whole_and_tables_beside(spark: SparkSession) -> None:
    prices = [{"item": "pen", "price": 2.5}, {"item": "ink", "price": 4.0}]
    first = {"orders": [{"id": 1, "item": "pen"}], "prices": prices}
    then = {"orders": [{"id": 2, "item": "ink"}, {"id": 3, "item": "ink"}]}
    assert run_table(priced, first, then=then, spark=spark) == [
        {"item": "ink", "id": 2, "price": 4.0},
        {"item": "ink", "id": 3, "price": 4.0},
        {"item": "pen", "id": 1, "price": 2.5},
    ]
    assert run_table(total, first, then=then, beside=[priced], spark=spark) == [{"n": 3, "price": 10.5}]
    rows = {"priced": [{"price": 1.5}, {"price": 2.0}]}
    assert run_table(total, rows, spark=spark) == [{"n": 2, "price": 3.5}]  # as if it were a topic


def test_raw_records_in_all_the_ways_in_which_they_are_given(spark: SparkSession) -> None:
    given = ["text", b"bytes", Record(b"record", key=b"k"), {"value": "dict", "key": "k", "kind": "x", "time": NOON}]
    rows = run_table(bronze("events"), {"events": given}, spark=spark)
    found = [(row["value"], row["_key"], row["_kind"]) for row in rows]
    assert found == [("text", None, None), ("bytes", None, None), ("record", b"k", None), ("dict", b"k", "x")]
    assert rows[-1]["_time"] == NOON


def test_times_of_rows_are_given_beside_their_columns(spark: SparkSession) -> None:
    @table(inputs=topic("orders"))
    def times(orders: DataFrame) -> DataFrame:
        return orders.select("id", "_time")

    rows = run_table(times, {"orders": [{"id": 1, "_time": NOON}]}, spark=spark)
    assert rows == [{"id": 1, "_time": NOON}]


def test_no_rows_at_all(spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.string()), ("status", pa.string())])
    assert run_table(orders_now, {"orders": []}, schemas={"orders": schema}, spark=spark) == []


def test_what_the_function_raises_is_raised_and_nothing_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @table(inputs="orders")
    def broken(orders: DataFrame) -> DataFrame:
        raise KeyError("of the user")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyError, match="of the user"):
        run_table(broken, {"orders": [{"id": 1}]}, spark=spark)
    assert not list(tmp_path.glob("holdfast-table-*"))


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ({"ordres": [{"id": "a"}]}, "did you mean 'orders'"),
        ({}, "records of an input are missing input=orders"),
        ({"orders": []}, "neither rows nor records"),
        ({"orders": [{"id": "a"}, b"x"]}, "neither rows nor records"),
        ({"orders": [{"id": "a"}, {"id": 1}]}, "differ in their types"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_spark_starts(records, complaint) -> None:
    with pytest.raises(Invalid, match=complaint) as refused:
        run_table(orders_now, records)
    assert refused.value.hint
