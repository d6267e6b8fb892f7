"""A shop whose orders pipelines read: a log, tables of it, and what must be in them, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as f

import holdfast
from pyspark_holdfast.pipeline import Pipeline, Table, count, keyed, max_of, mean_of, snapshot, sum_of, table, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = pa.schema(
    [("id", pa.int64()), ("status", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
COLUMNS = "id,status,amount,at,_partition,_offset"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


# -- tables: one of each kind on the topic, and one of each on a table ---------------------------------------------


@table(inputs="orders")
def paid(orders: DataFrame) -> DataFrame:
    """Orders that were paid."""
    return orders.where("status = 'paid'").select("id", "amount", "at", "_partition", "_offset")


@table(inputs="orders", kind=keyed("id", order_by=["at", "_partition", "_offset"], delete="gone", buckets=4))
def latest(orders: DataFrame) -> DataFrame:
    """The latest state of each order; those that were removed are not there."""
    return orders.selectExpr("id", "status", "amount", "at", "_partition", "_offset", "status = 'removed' AS gone")


@table(
    inputs="orders",
    kind=windowed("at", "1h", by="status", values={"n": count(), "sum": sum_of("amount"), "mean": mean_of("amount")}),
)
def hourly(orders: DataFrame) -> DataFrame:
    """By hour and status."""
    return orders


@table(inputs="orders", kind=snapshot())
def totals(orders: DataFrame) -> DataFrame:
    """All there is, in one row per status."""
    return orders.groupBy("status").agg(f.count("*").alias("n"), f.max("amount").alias("most"))


@table
def large(paid: DataFrame) -> DataFrame:
    """A table that reads a table."""
    return paid.where("amount >= 50")


@table(inputs="large", kind=windowed("at", "1d", values={"n": count(), "most": max_of("amount")}))
def daily_large(large: DataFrame) -> DataFrame:
    """A table that reads a table that reads a table."""
    return large


TABLES = (paid, latest, hourly, totals, large, daily_large)


# -- the shop ------------------------------------------------------------------------------------------------------


class Shop:
    """A log with orders, and a place for tables."""

    def __init__(self, folder: Path) -> None:
        self.root, self.tables = folder / "log", folder / "tables"
        self.orders: list[Row] = []
        """What was appended, with its partition and offset."""

    def sell(self, rows: Sequence[Row], partitions: int = 2, *, seals: int = 1) -> None:
        """Append orders, settled when this returns."""
        with holdfast.open(self.root) as log:
            topic = log.topic("orders", partitions=partitions, schema=SCHEMA)
            for at in range(seals):
                some = rows[at::seals]
                for partition in range(partitions):
                    mine = some[partition::partitions]
                    if mine:
                        self.note(mine, partition)
                        topic.append(mine, partition=partition)
                log.seal("orders")

    def note(self, rows: Sequence[Row], partition: int) -> None:
        """These were appended to a partition."""
        first = sum(row["_partition"] == partition for row in self.orders)
        self.orders += [{**row, "_partition": partition, "_offset": first + at} for at, row in enumerate(rows)]

    def pipeline(self, *tables: Table, **more: Any) -> Pipeline:
        """The tables of this shop, in a pipeline."""
        given = {"root": self.root, "tables": self.tables, "reports": False, **more}
        return Pipeline("shop", of=tables or TABLES, **given)

    def rows(self, name: str, tables: Path | None = None, version: int | None = None) -> list[Row]:
        """What another reader of Delta tables sees, sorted."""
        found = DeltaTable((tables or self.tables) / name, version=version).to_pyarrow_table()
        return in_order(found.to_pylist())

    def files(self, name: str) -> set[str]:
        """The names of the files that a table has."""
        paths = pa.table(DeltaTable(self.tables / name).get_add_actions()).column("path").to_pylist()
        return {Path(path).name for path in paths}


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows, sorted by all their values."""
    return sorted(rows, key=lambda row: [(name, value is not None, str(value)) for name, value in sorted(row.items())])


def order(number: int, *, status: str = "", minutes: int | None = None) -> Row:
    """An order: two of three are paid, a minute apart."""
    return {
        "id": number,
        "status": status or ("paid", "new", "paid")[number % 3],
        "amount": number % 100,
        "at": EPOCH + timedelta(minutes=number if minutes is None else minutes),
    }


def some_orders(random: Random, count: int) -> list[Row]:
    """Orders of few ids, so that keys occur often; some late, some removed; one at least is in every table."""
    found = []
    for at in range(count):
        status = random.choice(["new", "paid", "paid", "removed"]) if at else "paid"
        made = order(random.randrange(12), status=status, minutes=random.randrange(3000))
        found.append({**made, "amount": random.randrange(100) if at else random.randrange(50, 100)})
    return found


# -- what must be in the tables ------------------------------------------------------------------------------------


def expected(orders: Sequence[Row]) -> dict[str, list[Row]]:
    """The tables of these orders, computed in plain Python."""
    bought = [
        {name: row[name] for name in ("id", "amount", "at", "_partition", "_offset")}
        for row in orders
        if row["status"] == "paid"
    ]
    big = [row for row in bought if row["amount"] >= 50]
    found = {
        "paid": bought,
        "latest": _latest(orders),
        "hourly": _hourly(orders),
        "totals": _totals(orders),
        "large": big,
        "daily_large": _daily(big),
    }
    return {name: in_order(rows) for name, rows in found.items()}


def _latest(orders: Sequence[Row]) -> list[Row]:
    newest: dict[int, Row] = {}
    for row in orders:
        known = newest.get(row["id"])
        if known is None or _rank(row) > _rank(known):
            newest[row["id"]] = row
    return [row for row in newest.values() if row["status"] != "removed"]


def _rank(row: Row) -> tuple[Any, ...]:
    return row["at"], row["_partition"], row["_offset"]


def _hourly(orders: Sequence[Row]) -> list[Row]:
    groups: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    for row in orders:
        groups[row["at"].replace(minute=0, second=0, microsecond=0), row["status"]].append(row["amount"])
    return [
        {
            "window_start": start,
            "window_end": start + timedelta(hours=1),
            "status": status,
            "n": len(amounts),
            "sum": sum(amounts),
            "mean": sum(amounts) / len(amounts),
            "mean_sum": sum(amounts),
            "mean_count": len(amounts),
        }
        for (start, status), amounts in groups.items()
    ]


def _totals(orders: Sequence[Row]) -> list[Row]:
    groups: dict[str, list[int]] = defaultdict(list)
    for row in orders:
        groups[row["status"]].append(row["amount"])
    return [{"status": status, "n": len(amounts), "most": max(amounts)} for status, amounts in groups.items()]


def _daily(rows: Sequence[Row]) -> list[Row]:
    groups: dict[datetime, list[int]] = defaultdict(list)
    for row in rows:
        groups[row["at"].replace(hour=0, minute=0, second=0, microsecond=0)].append(row["amount"])
    return [
        {"window_start": day, "window_end": day + timedelta(days=1), "n": len(amounts), "most": max(amounts)}
        for day, amounts in groups.items()
    ]
