"""Backfills: rows computed again take their own place, in one commit, and nobody reads them twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import holdfast
from holdfast.errors import Invalid
from holdfast.tables.table_log import TableLog
from pyspark_holdfast.pipeline import RunReport, Table
from tests.spark.shop import TABLES, Shop, daily_large, expected, hourly, large, latest, order, paid, some_orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def no_spark() -> Any:
    raise AssertionError("there is nothing for Spark to do")


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop after two runs of all tables."""
    shop, random = Shop(tmp_path_factory.mktemp("ran")), Random(7)
    for _ in range(2):
        shop.sell(some_orders(random, 30))
        assert shop.pipeline().run(spark).is_fine
    return shop


def one(report: RunReport) -> Any:
    (found,) = report.tables
    assert not found.error, found
    return found


RANGES: list[dict[str, Any]] = [
    {},
    {"begin": 2},
    {"begin": 1, "end": 1},
    {"begin": '{"orders":{"0":3}}', "end": '{"orders":{"0":5}}'},
    {"begin": "2026-01-01T00:00:00Z"},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("range_", RANGES, ids=str)
@pytest.mark.parametrize("name", [one.name for one in TABLES])
def test_the_same_code_over_the_same_rows_changes_nothing(
    spark: SparkSession, ran: Shop, name: str, range_: dict[str, Any]
) -> None:
    pipeline, before = ran.pipeline(), DeltaTable(ran.tables / name).version()
    if name in ("large", "daily_large") and isinstance(range_.get("begin"), str):
        found = pipeline.backfill(name, no_spark, **range_).tables[0]
        assert "no offsets and times" in found.error
        return
    found = one(pipeline.backfill(name, spark, **range_))
    assert found.outcome == "written"
    assert ran.rows(name) == expected(ran.orders)[name]
    assert DeltaTable(ran.tables / name).version() == before + 1
    behind = {"paid": "large", "large": "daily_large"}.get(name)
    assert (f"had been read by {behind}" in found.note) == (behind is not None)
    report = pipeline.run(spark)  # nothing is read twice; a snapshot has nothing new either
    assert {table.outcome for table in report.tables} == {"unchanged"}, report
    assert ran.rows("large") == expected(ran.orders)["large"]


def doubled(table: Table) -> Table:
    """The same with corrected code: amounts are counted in another currency."""
    return replace(
        table, function=lambda frame: table.function(frame.selectExpr("* EXCEPT (amount)", "amount * 2 AS amount"))
    )


def test_corrected_code_corrects_rows_also_in_chains(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for step in range(3):
        shop.sell([order(number) for number in range(step * 20, step * 20 + 20)])
        assert shop.pipeline(paid, large).run(spark).is_fine
    corrected = shop.pipeline(doubled(paid), large)
    offsets = [row["_offset"] for row in shop.orders if row["id"] >= 20]
    assert min(offsets) == 10
    assert one(corrected.backfill("paid", spark, begin=2, end=2)).rows_in == 20
    rows = {row["id"]: row["amount"] for row in shop.rows("paid")}
    assert rows == {n: n * (2 if 20 <= n < 40 else 1) for n in range(60) if n % 3 != 1}
    shop.sell([order(60)])
    assert corrected.run(spark).is_fine
    assert {row["id"] for row in shop.rows("large")} == {50, 51, 53, 54, 56, 57, 59, 60}, "run 2 was not read again"
    assert one(corrected.backfill("large", spark, begin=2)).outcome == "written"
    assert {row["id"] for row in shop.rows("large")} == {n for n in rows if rows[n] >= 50} | {60}
    assert len(shop.rows("large")) == len({row["id"] for row in shop.rows("large")})


def test_runs_whose_commits_are_gone_are_computed_as_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old commits are removed in time. Readers that would get rows twice get an error."""
    shop = Shop(tmp_path)
    for step in range(3):
        shop.sell([order(50 + number) for number in range(step * 6, step * 6 + 6)])
        assert shop.pipeline(paid, large).run(spark, only=["paid"] if step else []).is_fine
    runs = TableLog.runs
    monkeypatch.setattr(TableLog, "runs", lambda self, most: runs(self, 2))
    pipeline = shop.pipeline(paid, large)
    refused = pipeline.backfill("paid", no_spark).tables[0]
    assert "table=large run=1 runs=1..2" in refused.error
    one(pipeline.backfill("paid", spark, begin=3))
    assert pipeline.run(spark, only="large").is_fine
    one(pipeline.backfill("paid", spark))
    assert shop.rows("paid") == expected(shop.orders)["paid"]
    assert {table.outcome for table in pipeline.run(no_spark).tables} == {"unchanged"}
    assert shop.rows("large") == expected(shop.orders)["large"]
    monkeypatch.undo()
    one(pipeline.backfill("large", spark, begin=2))  # which had read some of the runs that are one now
    assert shop.rows("large") == expected(shop.orders)["large"]


def test_corrected_code_corrects_keys_and_windows(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.sell([order(number) for number in range(40)])
    assert shop.pipeline(latest, hourly).run(spark).is_fine
    corrected = shop.pipeline(doubled(latest), doubled(hourly))
    some = {"begin": '{"orders":{"0":0}}', "end": '{"orders":{"0":5}}'}  # the orders 0, 2, 4, 6, 8
    one(corrected.backfill("latest", spark, **some))
    assert {row["id"]: row["amount"] for row in shop.rows("latest")} == {
        n: n * (2 if n in (0, 2, 4, 6, 8) else 1) for n in range(40)
    }
    one(corrected.backfill("hourly", spark, **some))
    twice = expected([{**row, "amount": 2 * row["amount"]} for row in shop.orders])["hourly"]
    assert shop.rows("hourly") == twice, "all of them are in the first hour"
    one(corrected.backfill("latest", spark))
    assert {row["id"]: row["amount"] for row in shop.rows("latest")} == {n: 2 * n for n in range(40)}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_runs_backfills_and_cleaning_in_any_order_end_alike(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """All kinds, in chains; whatever was computed again, with the same code, each row counts once."""
    for life in range(5):
        shop, random = Shop(tmp_path / str(life)), Random(seed + life)
        names = [one.name for one in TABLES]
        shop.sell(some_orders(random, 5))
        for _ in range(25):
            pipeline = shop.pipeline(keep=random.choice(["0s", "7d"]))
            match random.choice(["sell", "sell", "run", "some", "backfill", "backfill", "clean"]):
                case "sell":
                    shop.sell(some_orders(random, random.randrange(1, 30)), seals=random.randrange(1, 4))
                case "run":
                    assert pipeline.run(spark).is_fine
                case "some":
                    assert pipeline.run(spark, only=random.sample(names, 2)).is_fine
                case "backfill":
                    name = random.choice(names)
                    range_ = random.choice(
                        [*RANGES, {"begin": random.randrange(1, 9)}, {"end": random.randrange(1, 9)}]
                    )
                    found = pipeline.backfill(name, spark, **range_).tables[0]
                    fine = ("no offsets and times", "in the midst of the runs")
                    assert not found.error or any(words in found.error for words in fine), found
                case "clean":
                    pipeline.clean()
        assert shop.pipeline().run(spark).is_fine
        for name, rows in expected(shop.orders).items():
            assert not rows or shop.rows(name) == rows, (name, life)


def test_a_backfill_that_a_run_overtakes_begins_again(spark: SparkSession, tmp_path: Path) -> None:
    shop, calls = Shop(tmp_path), list[int]()
    shop.sell([order(number) for number in range(10)])
    assert shop.pipeline(paid).run(spark).is_fine
    shop.sell([order(number) for number in range(10, 20)])

    def slow(orders: DataFrame) -> DataFrame:
        calls.append(len(calls))
        if len(calls) == 1:
            assert shop.pipeline(paid).run(spark).is_fine
        return paid.function(orders)

    one(shop.pipeline(replace(paid, function=slow)).backfill("paid", spark))
    assert shop.rows("paid") == expected(shop.orders)["paid"]
    assert len(calls) == 3, "one run, then two"


def test_what_retention_has_removed_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that cannot be computed again stay; a table that is new begins with what is left."""
    shop = Shop(tmp_path)
    shop.sell([order(number) for number in range(10)])
    assert shop.pipeline(paid, hourly).run(spark).is_fine
    shop.sell([order(number) for number in range(10, 16)])
    with holdfast.open(shop.root) as log:
        log.set_retention("orders", records_max=1)
        assert log.retain().removed
    pipeline = shop.pipeline(paid, hourly, latest)
    assert pipeline.run(spark).is_fine
    assert {row["id"] for row in shop.rows("latest")} == set(range(10, 16))
    before = shop.rows("paid")
    for name in ("paid", "hourly"):
        found = pipeline.backfill(name, no_spark).tables[0]
        assert found.error_kind == "NotFound"
        assert "have expired topic=orders partition=0 offsets=0..4 first_left=5" in found.error
    assert shop.rows("paid") == before == expected(shop.orders)["paid"]
    one(pipeline.backfill("paid", spark, begin=2))
    assert shop.rows("paid") == before


def test_mistakes_are_reported(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.sell([order(1)])
    pipeline = shop.pipeline(paid, large, daily_large)
    with pytest.raises(Invalid, match="has no table 'piad', did you mean 'paid'"):
        pipeline.backfill("piad", no_spark)
    with pytest.raises(Invalid, match="no bound"):
        pipeline.backfill("paid", no_spark, begin="soon")
    assert "no run yet" in one(pipeline.backfill("paid", no_spark)).note
