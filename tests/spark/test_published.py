"""A published topic, seen by four readers: the same rows, whatever is in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast
from tests.publish.worlds import World

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("x", pa.float64()), ("text", pa.string()), ("s", pa.struct([("y", pa.float32())]))])
VALUES = (math.nan, -0.0, math.inf, None, 5e-324)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """Raw topics with two partitions and with one, and typed ones with poisonous rows and without any."""
    made = World(tmp_path)
    for name, partitions in (("two", 2), ("one", 1)):
        topic = made.log.topic(name, partitions=partitions)
        topic.append(b"", partition=partitions - 1)
        topic.append(b"\xff", key=b"", kind="k", headers={"h": b""}, partition=0)
    typed = made.log.topic("poison", schema=SCHEMA, partitions=2)
    for at, value in enumerate(VALUES):
        row = {"x": value, "text": None if at % 2 else "", "s": None if at == 3 else {"y": value}}
        typed.append(row, partition=at % 2)
    made.log.topic("empty", schema=SCHEMA).append({"x": 1.0, "text": "gone", "s": None})
    made.settle()
    made.expire("empty", 0, 1)
    for name in ("two", "one", "poison", "empty"):
        made.publisher().publish(name)
    yield made
    made.close()


def shown(table: pa.Table) -> list[str]:
    """Rows in some order, as text: NaN is NaN, and -0.0 is not 0.0. Spark has two names of its own."""
    table = table.rename_columns(
        [{"value": "payload", "timestamp": "time"}.get(name, name) for name in table.column_names]
    )
    names = sorted(set(table.column_names) - {"topic", "_topic"})
    return sorted(repr([(name, row[name]) for name in names]) for row in table.to_pylist())


def test_four_readers_show_the_same_rows(world: World, spark: SparkSession) -> None:
    for name, rows in {"two": 2, "one": 2, "poison": len(VALUES), "empty": 0}.items():
        url = str(world.table(name))
        readers: dict[str, Callable[[], pa.Table]] = {
            "deltalake": lambda url=url: deltalake.DeltaTable(url).to_pyarrow_table(),
            "duckdb": lambda url=url: duckdb.from_arrow(
                deltalake.DeltaTable(url).to_pyarrow_dataset()
            ).to_arrow_table(),
            "polars": lambda url=url: pl.scan_delta(url, use_pyarrow=True).collect().to_arrow(),
            "spark": lambda name=name: spark.read.format("holdfast").option("topic", name).load(world.place).toArrow(),
        }
        expected = shown(holdfast.read(world.place, name, fail_on_data_loss=False).to_arrow())
        assert len(expected) == rows
        for reader, read in readers.items():
            assert shown(read()) == expected, (reader, name)
        # Polars' own reader takes partitions from names of folders, and gives null: all else is the same.
        own = pl.scan_delta(url).collect().to_arrow()
        partition = "partition" if "partition" in own.column_names else "_partition"
        assert own[partition].null_count == rows
        assert [shown(table.drop_columns([partition])) for table in (own, readers["polars"]())] == [
            shown(readers["deltalake"]().drop_columns([partition]))
        ] * 2
