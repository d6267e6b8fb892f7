"""Pipelines on Spark: tables follow the topics of a root, run by run, each row exactly once."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import holdfast
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid, NotFound
from pyspark_holdfast.pipeline import Pipeline, RunReport, keyed, read_table, table, topic
from pyspark_holdfast.pipeline.builtin import health
from tests.spark.shop import (
    COLUMNS,
    SCHEMA,
    TABLES,
    Shop,
    expected,
    in_order,
    large,
    latest,
    order,
    paid,
    some_orders,
    totals,
)
from tests.store import shipped_logs
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def outcomes(report: RunReport) -> dict[str, str]:
    """What came of each table; errors in full."""
    return {one.name: one.error or one.outcome for one in report.tables}


def no_spark() -> Any:
    raise AssertionError("there is nothing for Spark to do")


# -- increments ------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_increments_end_like_one_run(
    spark: SparkSession, shop: Shop, tmp_path: Path, seed: int, is_sampled: bool
) -> None:
    """Of all kinds, in chains, with late rows and keys that come again; every version is that of whole runs."""
    random, pipeline = Random(seed), shop.pipeline()
    seen: dict[str, list[list[dict[str, Any]]]] = {one.name: [] for one in TABLES}
    for step in range(2 if is_sampled else 5):
        shop.sell(some_orders(random, random.randrange(1, 40)), seals=random.randrange(1, 3))
        some = random.sample([one.name for one in TABLES], 3) if step == 3 else ()
        report = pipeline.run(spark, only=some)
        assert report.is_fine, outcomes(report)
        for name, rows in expected(shop.orders).items():
            if name in (some or seen) and (name not in ("large", "daily_large") or not some):
                assert shop.rows(name) == rows, name
                seen[name].append(rows)
    if not is_sampled:
        assert pipeline.run(spark).is_fine
    for name, rows in expected(shop.orders).items():
        assert shop.rows(name) == rows, name
    assert set(outcomes(pipeline.run(no_spark)).values()) == {"unchanged"}
    at_once = shop.pipeline(tables=tmp_path / "at-once")
    some = ["paid", "latest", "large"] if is_sampled else list(seen)
    assert set(outcomes(at_once.run(spark, only=some)).values()) == {"written"}
    for name in some:
        assert shop.rows(name, tmp_path / "at-once") == shop.rows(name), name
    if is_sampled:  # one run is one version
        for name, versions in seen.items():
            assert [shop.rows(name, version=number) for number in range(len(versions))] == versions, name
        first = read_table(spark, pipeline.place_of("latest"), run=1)
        assert in_order(first.toArrow().to_pylist()) == seen["latest"][0]


def test_what_a_table_reads_may_grow(spark: SparkSession, shop: Shop) -> None:
    """A new column of a topic becomes one of the table; rows of before have nulls. Losing one is refused."""
    everything = table(inputs="orders", name="everything")(lambda orders: orders.drop("_time"))
    pipeline = shop.pipeline(everything)
    shop.sell([order(1)])
    assert pipeline.run(spark).is_fine
    with holdfast.open(shop.root) as log:
        grown = log.topic("orders", partitions=2, schema=SCHEMA.append(pa.field("coupon", pa.string())))
        grown.append([{**order(2), "coupon": "x"}], partition=0)
        log.seal()
    assert pipeline.run(spark).is_fine
    rows = [(row["id"], row["coupon"]) for row in shop.rows("everything")]
    assert sorted(rows) == [(1, None), (2, "x")]
    first = read_table(spark, pipeline.place_of("everything"), version=0)
    assert "coupon" not in first.columns
    fewer = shop.pipeline(table(inputs="orders", name="everything")(lambda orders: orders.select("id")))
    with holdfast.open(shop.root) as log:
        log.topic("orders", schema="latest").append([order(3)], partition=0)
        log.seal()
    report = fewer.run(spark)
    assert report.tables[0].error_kind == "Invalid"
    assert "is missing from its new rows" in report.tables[0].error
    assert len(shop.rows("everything")) == 2


SESSIONS = {
    "wrapping": {"spark.sql.ansi.enabled": "false", "spark.sql.storeAssignmentPolicy": "LEGACY"},
    "half an hour": {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "capitals": {"spark.sql.caseSensitive": "true", "spark.sql.legacy.timeParserPolicy": "LEGACY"},
    "adaptive": {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.forceApply": "true",
        "spark.sql.adaptive.forceOptimizeSkewedJoin": "true",
        "spark.sql.shuffle.partitions": "7",
    },
    "rebased": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    },
    "row by row": {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
        "spark.sql.codegen.wholeStage": "false",
    },
    "arrow": {
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    },
}
ALL_AT_ONCE = {name: value for settings in SESSIONS.values() for name, value in settings.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("settings", [ALL_AT_ONCE, *SESSIONS.values()], ids=["all at once", *SESSIONS])
def test_tables_are_the_same_whatever_the_session_says(
    spark: SparkSession, shop: Shop, settings: dict[str, str], seed: int
) -> None:
    """Users run pipelines in sessions of their own, with settings of their own."""
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    pipeline, random = shop.pipeline(*TABLES, *health("orders")), Random(seed)
    shop.sell(some_orders(random, 30), seals=2)
    for _ in range(2):
        shop.sell(some_orders(random, 20))
        report = pipeline.run(session)
        assert report.is_fine, outcomes(report)
    for name, rows in expected(shop.orders).items():
        assert shop.rows(name) == rows, name
    assert all(row["hour"].minute == 0 for row in shop.rows("health"))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_table_that_fails_stops_only_those_behind_it(spark: SparkSession, shop: Shop) -> None:
    def broken(orders: DataFrame) -> DataFrame:
        raise ValueError("no such thing")

    shop.sell([order(number) for number in range(10)])
    pipeline = shop.pipeline(replace(paid, function=broken), large, latest)
    report = pipeline.run(spark)
    assert {one.name: one.outcome for one in report.tables} == {
        "paid": "failed",
        "large": "skipped",
        "latest": "written",
    }
    assert report.tables[0].error.startswith("ValueError: no such thing")
    assert not report.is_fine
    assert set(outcomes(shop.pipeline(paid, large, latest).run(spark)).values()) == {"written", "unchanged"}
    assert shop.rows("large") == expected(shop.orders)["large"]


def test_a_run_that_another_one_overtakes_begins_again(spark: SparkSession, shop: Shop) -> None:
    """While it computes, another process commits the same rows, and more: each row is there once."""
    shop.sell([order(number) for number in range(10)])
    other, calls = shop.pipeline(paid, latest), list[int]()

    def slow(orders: DataFrame) -> DataFrame:
        calls.append(len(calls))
        if len(calls) == 1:
            shop.sell([order(number) for number in range(10, 20)])
            assert other.run(spark).is_fine
        return paid.function(orders)

    report = shop.pipeline(replace(paid, function=slow)).run(spark)
    assert outcomes(report) == {"paid": "unchanged"}
    assert shop.rows("paid") == expected(shop.orders)["paid"]
    files = {path.name for path in (shop.tables / "paid" / "data").iterdir()}
    assert files == shop.files("paid"), "the slower one has removed its own"


def test_many_pipelines_run_at_once_in_one_session(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """Through the Python source, whose queries share more than they should: each its own rows."""
    shop.sell([order(number) for number in range(20)])
    places = [tmp_path / f"tables-{number}" for number in range(3)]
    pipelines = [shop.pipeline(paid, tables=place, options={"native": "false"}) for place in places]
    with ThreadPoolExecutor(len(pipelines)) as threads:
        reports = list(threads.map(lambda pipeline: pipeline.run(spark), pipelines))
    assert [outcomes(report) for report in reports] == [{"paid": "written"}] * len(places)
    for place in places:
        assert shop.rows("paid", place) == expected(shop.orders)["paid"]


def test_another_log_under_the_same_name_is_refused(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.sell([order(1)])
    assert shop.pipeline(paid).run(spark).is_fine
    other = Shop(tmp_path / "other")
    other.sell([order(2), order(3)])
    report = shop.pipeline(paid, root=other.root).run(no_spark)
    assert "belongs to another log" in report.tables[0].error
    service = shop.pipeline(paid)  # the same one, run again and again, keeps its root open
    assert service.run(no_spark).is_fine
    kept = shop.root.rename(tmp_path / "kept")
    other.root.rename(shop.root)
    assert "belongs to another log" in service.run(no_spark).tables[0].error
    shop.root.rename(other.root)
    kept.rename(shop.root)
    assert service.run(no_spark).is_fine
    report = shop.pipeline(replace(paid, kind=keyed("id", order_by="_offset"))).run(no_spark)
    assert "of another kind" in report.tables[0].error
    report = Pipeline("other", root=shop.root, tables=shop.tables, of=[paid], reports=False).run(no_spark)
    assert "belongs to pipeline 'shop'" in report.tables[0].error


def test_a_root_that_has_less_than_a_table_has_read_is_refused(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """An older copy: rows do not go from tables that read all of it, either."""
    shop.sell([order(1)])
    copytree(shop.root, tmp_path / "older")
    shop.sell([order(2)])
    assert shop.pipeline(paid, totals).run(spark).is_fine
    shop.root.rename(tmp_path / "newer")
    (tmp_path / "older").rename(shop.root)
    for one in shop.pipeline(paid, totals).run(no_spark).tables:
        assert "the table has read more than the root has" in one.error, one.name


def test_a_signal_lets_the_table_at_work_come_to_its_commit(spark: SparkSession, shop: Shop) -> None:
    shop.sell([order(number) for number in range(3)])

    def signalled(orders: DataFrame) -> DataFrame:
        os.kill(os.getpid(), signal.SIGTERM)
        return paid.function(orders)

    report = shop.pipeline(replace(paid, function=signalled), large, latest).run_every(3600, spark)
    assert report is not None
    assert outcomes(report) == {"paid": "written"}
    assert shop.rows("paid") == expected(shop.orders)["paid"]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_only_what_commits_name_is_read(spark: SparkSession, shop: Shop) -> None:
    """A file that a killed run left is in no answer; a file that is missing is an error, not fewer rows."""
    shop.sell([order(number) for number in range(12)])
    pipeline = shop.pipeline(paid)
    assert pipeline.run(spark).is_fine
    rows = expected(shop.orders)["paid"]
    data = shop.tables / "paid" / "data"
    (file,) = data.iterdir()  # few rows, one file
    garbage = data / file.name.replace("0000000001-", "0000000002-dead")
    garbage.write_bytes(file.read_bytes())
    place = pipeline.place_of("paid")
    assert in_order(read_table(spark, place).toArrow().to_pylist()) == rows == shop.rows("paid")
    assert read_table(spark, f"{shop.tables}/paid", run=1).count() == len(rows)
    for wrong in ({"run": 2}, {"version": 7}):
        with pytest.raises(NotFound):
            read_table(spark, place, **wrong)
    with pytest.raises(Invalid):
        read_table(spark, place, run=1, version=0)
    with pytest.raises(NotFound, match="no table here"):
        read_table(spark, shop.tables / "nothing")
    file.rename(file.with_suffix(".gone"))
    with pytest.raises(NotFound, match="is gone"):
        read_table(spark, place)


def test_status_needs_no_spark(spark: SparkSession, shop: Shop) -> None:
    shop.sell([order(number) for number in range(10)])
    pipeline = shop.pipeline(paid, large, keep="30d")
    report = pipeline.run(spark, only="paid")
    (one,) = report.tables
    properties = DeltaTable(shop.tables / "paid").metadata().configuration
    assert properties["delta.deletedFileRetentionDuration"] == f"interval {30 * 86400} seconds", "for VACUUM of others"
    assert (one.rows_in, one.rows_out, one.rows, one.run, one.version) == (10, 7, 7, 1, 0)
    assert (one.inputs[0].begin, one.inputs[0].end, one.inputs[0].lag) == ({"0": 0, "1": 0}, {"0": 5, "1": 5}, 0)
    assert one.columns["at"] == "timestamp"
    shop.sell([order(number) for number in range(10, 14)])
    first, second = pipeline.status()
    assert (first.run, first.rows, first.lag, first.kind, first.description) == (1, 7, 4, "append", paid.description)
    assert (second.version, second.run, second.inputs[0].lag) == (-1, 0, 1)


# -- places --------------------------------------------------------------------------------------------------------


def test_an_encrypted_log_on_a_store_and_tables_beside_it(
    spark: SparkSession, tmp_path: Path, prefix: str, s3_server: S3Server
) -> None:
    """Keys by reference, credentials by reference; retention waits for what a run reads; tasks read the tables."""
    secrets, keys = tmp_path / "credentials", tmp_path / "keyring"
    secrets.write_text(f"access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n")
    secrets.chmod(0o600)
    Keyring.generate().save(keys)
    store = {"endpoint": s3_server.endpoint, "region": REGION, "credentials": f"file:{secrets}"}
    root = f"s3://{BUCKET}/{prefix}/log"
    leases: list[int] = []

    def counting(orders: DataFrame) -> DataFrame:
        leases.append(sum(1 for _ in s3_server.client().list(f"{prefix}/log/leases/")))
        return latest.function(orders)

    options = {"keyring": f"file:{keys}", **store}
    of = [replace(latest, function=counting), replace(paid, inputs=(topic("orders", columns=COLUMNS),)), large]
    pipeline = Pipeline("shop", root=root, tables=f"s3://{BUCKET}/{prefix}/tables", of=of, options=options)
    rows = [order(number) for number in range(30)]
    shop = Shop(tmp_path)
    settings = shipped_logs.settings(s3_server.endpoint)
    with holdfast.open(tmp_path / "log", store=root, settings=settings, keyring=Keyring.from_file(keys)) as log:
        orders = log.topic("orders", partitions=1, schema=SCHEMA)
        for step in range(2):
            orders.append(rows[step * 15 : step * 15 + 15])
            log.seal()
            log.ship(60)
            shop.note(rows[step * 15 : step * 15 + 15], 0)
            report = pipeline.run(spark)
            assert report.is_fine, outcomes(report)
            for name in ("latest", "paid", "large"):
                found = read_table(spark, pipeline.place_of(name), store=store).toArrow().to_pylist()
                assert in_order(found) == expected(shop.orders)[name], name
    assert leases == [1, 1]
    assert not list(s3_server.client().list(f"{prefix}/log/leases/"))
    assert [one.lag for one in pipeline.status()] == [0, 0, 0]
    assert [*s3_server.client().list(f"{prefix}/tables/_reports/runs/")]
    wrong = pipeline.changed(options={**options, "keyring": ""}, tables=f"s3://{BUCKET}/{prefix}/other").run(spark)
    assert not wrong.is_fine
