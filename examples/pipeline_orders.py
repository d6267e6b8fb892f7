"""A shop's orders, from events to tables: what each order is now, revenue by hour, and a summary for the day.

    python -m examples.pipeline_orders [DIRECTORY]
    holdfast spark pipeline run examples/pipeline_orders.py --root DIRECTORY/store --tables DIRECTORY/tables

Every change of an order is a row of the topic `orders`. The pipeline runs after each of two days. The second day brings
payments for orders of the first: those rows of `revenue` are corrected, all others stay as they are.
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
from pyspark_holdfast.pipeline import Pipeline, count, keyed, snapshot, sum_of, table, whole, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 3, 2, tzinfo=UTC)
ORDERS_PER_DAY = 400
COUNTRIES = ("AT", "CH", "DE", "DE", "DE", "FR", "FR", "NL")
SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.string(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("country", pa.string()),
        pa.field("status", pa.string()),
        pa.field("cents", pa.int64()),
        pa.field("ordered_at", pa.timestamp("us", tz="UTC")),
        pa.field("changed_at", pa.timestamp("us", tz="UTC")),
    ]
)


# -- the tables ---------------------------------------------------------------------------------------------


@table(inputs="orders", kind=keyed("order_id", order_by=["changed_at", "_offset"], delete="is_test"))
def orders_now(orders: DataFrame) -> DataFrame:
    """What each order is now. Orders that somebody only tried out are deleted."""
    return orders.selectExpr(
        "order_id",
        "customer",
        "country",
        "status",
        "cents",
        "ordered_at",
        "changed_at",
        "_offset",
        "status = 'test' AS is_test",
    )


@table(
    inputs="orders",
    kind=windowed("ordered_at", "1h", by="country", values={"orders": count(), "cents": sum_of("cents")}),
)
def revenue(orders: DataFrame) -> DataFrame:
    """What was paid, by country and by the hour in which it was ordered, however late the payment came."""
    return orders.where("status = 'paid'").select("ordered_at", "country", "cents")


@table(inputs=whole("orders_now"), kind=snapshot())
def summary(orders: DataFrame) -> DataFrame:
    """Orders by day and status, as they are now."""
    from pyspark.sql import functions as F  # noqa: N812

    by_day = orders.groupBy("status", F.to_date("ordered_at").alias("day"))
    return by_day.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))


TABLES = [orders_now, revenue, summary]


# -- something to read --------------------------------------------------------------------------------------


def changes(day: int) -> Iterator[dict[str, Any]]:
    """What happens on a day, in order. Some orders are paid on the next one, some are cancelled."""
    begun = [order for each in (day - 1, day) if each >= 0 for order in _orders(each)]
    found = [change for order in begun for change in _life(order) if (change["changed_at"] - START).days == day]
    yield from sorted(found, key=lambda change: (change["changed_at"], change["order_id"]))


def _orders(day: int) -> Iterator[dict[str, Any]]:
    for number in range(day * ORDERS_PER_DAY, (day + 1) * ORDERS_PER_DAY):
        dice = crc32(b"order %d" % number)
        yield {
            "order_id": f"o-{number:05d}",
            "customer": f"c-{dice % 97:03d}",
            "country": COUNTRIES[dice % len(COUNTRIES)],
            "cents": 500 + dice % 20_000,
            "ordered_at": START + timedelta(days=day, seconds=dice % 86_400),
        }


def _life(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Placed; then paid after some hours and shipped, or cancelled; a few are tests."""
    dice = crc32(order["order_id"].encode())
    at = order["ordered_at"]
    yield {**order, "status": "placed", "changed_at": at}
    paid = at + timedelta(minutes=dice % 1_440)
    if dice % 50 == 0:
        yield {**order, "status": "test", "changed_at": at + timedelta(minutes=5)}
    elif dice % 11 == 0:
        yield {**order, "status": "cancelled", "changed_at": paid}
    else:
        yield {**order, "status": "paid", "changed_at": paid}
        yield {**order, "status": "shipped", "changed_at": paid + timedelta(hours=6)}


def write(directory: Path, day: int) -> int:
    """Append a day's changes, and ship them; returns how many."""
    with holdfast.open(directory / "log", store=directory / "store") as log:
        orders = log.topic("orders", schema=SCHEMA, partitions=2, key="order_id")
        rows = list(changes(day))
        orders.append(pa.Table.from_pylist(rows, SCHEMA), time="changed_at")
        log.seal()
        log.ship(60)
    return len(rows)


# -- run it -------------------------------------------------------------------------------------------------


def pipeline(directory: Path) -> Pipeline:
    """The pipeline over what was shipped."""
    return Pipeline("shop", root=directory / "store", tables=directory / "tables", of=TABLES)


def run(directory: Path, spark: SparkSession) -> bool:
    """Two days, and a run after each; True when all went well."""
    from pyspark_holdfast.pipeline import read_table

    good = True
    for day in (0, 1):
        rows = write(directory, day)
        report = pipeline(directory).run(spark)
        good = good and report.is_fine
        print(f"day {day + 1}: {rows} changes of orders")
        for one in report.tables:
            print(f"  {one.name:<10} {one.outcome:<9} {one.rows_in:>5} rows in, {one.rows:>4} rows in the table")
        made = read_table(spark, directory / "tables" / "revenue").where("window_start < '2026-03-03'")
        orders, cents = made.selectExpr("sum(orders)", "sum(cents)").collect()[0]
        print(f"  paid for orders of the first day so far: {orders} orders, {cents / 100:,.2f} EUR")
    read_table(spark, directory / "tables" / "summary").orderBy("day", "status").show()
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
