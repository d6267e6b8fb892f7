"""Spark and bundles: executors without a key join encrypted segments, and the format reads what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast import Keyring, Settings
from pyspark_holdfast.jobs.compact import compact
from tests.segments.planting import wait_for
from tests.spark.logs import collected, fill, record, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return spark.read.format("holdfast").options(topic="orders", **options).load(str(root))


def test_spark_joins_encrypted_segments_and_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """The key was rotated half-way; only the driver has keys, for signing, and only readers open anything."""
    root, own = tmp_path / "store", Keyring.generate("k1")
    settings = Settings.from_mapping({"store": {"url": str(root)}, "disk": {"free_bytes_min": 0}})
    with holdfast.open(tmp_path / "log", keyring=own, settings=settings) as log:
        fill(log, seals=2)
        own = own.rotated("k2")
        log.rotate_key(own)
        for partition in (0, 1):
            batch = [record(40 + each, partition) for each in range(20)]
            log.topic("orders", partitions=2).append_batch(batch, partition=partition)
        log.seal("orders")
        log.ship(60)
        wait_for(lambda: all(marks.settled == marks.durable for marks in log.marks("orders")))
    own.save(tmp_path / "keyring")
    keyring = f"file:{tmp_path}/keyring"
    report = compact(spark, str(root), "orders", keyring=keyring, delete_after_ms=0)
    assert (report.files_before, report.files_after, report.problems) == (6, 2, report.problems)
    assert not report.problems
    holdfast.compact(str(root), keyring=keyring, delete_after_ms=0)  # what was replaced goes
    assert len(list(root.rglob("*.parquet"))) == 2
    frame = load(spark, root, keyring=keyring, minPartitions="4")
    assert collected(frame) == rows("orders", 2, 60)
    assert frame.where("offset >= 45 and offset < 50").count() == 10
    assert sum(each.rows for each in load(spark, root, encrypted="sealed").collect()) == 120
