"""Streams of one driver start at once, and one stream may be used twice: Spark shares what belongs to a source."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_holdfast
from tests.spark.logs import made

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

NAMES = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_LOCAL_DIRS", "SPARK_PYTHON_RUNTIME"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("many") / "log", seals=2)


def names_of(spark: SparkSession) -> set[str]:
    """What is in the map that belongs to the source, as Spark has it."""
    manager: Any = spark._jsparkSession.sessionState().dataSourceManager()  # type: ignore[attr-defined]
    return set(manager.lookupDataSource("holdfast").dataSourceCls().envVars())


def stream(spark: SparkSession, root: Path) -> DataFrame:
    return spark.readStream.format("holdfast").option("topic", "orders").load(str(root))


def start(frame: DataFrame, take: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_a_stream_puts_nothing_new_into_what_all_streams_share(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """Two that put something there at once can break the driver for good. A source that nobody used yet shows it."""
    fresh = spark.newSession()
    pyspark_holdfast.register(fresh)
    before = names_of(fresh)
    assert before >= NAMES
    counts: list[int] = []
    frames = [stream(fresh, root) for _ in range(2)]
    running = [
        start(frame, lambda batch, _: counts.append(batch.count()), tmp_path / f"checkpoint-{n}")
        for n, frame in enumerate(frames)
    ]
    for query in running:
        assert query.awaitTermination(100)
    assert counts == [80] * 2
    assert names_of(fresh) == before


def test_sessions_are_ready_before_their_first_stream(spark: SparkSession) -> None:
    """Whatever `configure` or `session` made, and every further session of it."""
    assert names_of(spark) >= NAMES
    assert names_of(spark.newSession()) >= NAMES


def test_one_stream_may_be_used_twice(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """By several queries, with other filters each, and by one query twice."""
    rows = stream(spark, root)
    found: dict[str, list[int]] = {"low": [], "all": [], "twice": []}
    frames = {"low": rows.where("offset < 10"), "all": rows, "twice": rows.where("partition = 1").union(rows)}
    for name, frame in frames.items():
        query = start(frame, lambda batch, _, name=name: found[name].append(batch.count()), tmp_path / name)  # type: ignore[misc]
        assert query.awaitTermination(100)
    assert found == {"low": [20], "all": [80], "twice": [120]}


DRIVER = """
import sys, pyspark_holdfast
root, directory = sys.argv[1:]
spark = pyspark_holdfast.session("local[2]")
rows = [spark.readStream.format("holdfast").option("topic", "orders").load(root) for _ in range(8)]
writers = [each.writeStream.format("parquet").option("path", f"{directory}/{n}").option(
    "checkpointLocation", f"{directory}/checkpoint-{n}").trigger(availableNow=True) for n, each in enumerate(rows)]
for query in [writer.start() for writer in writers]:
    query.awaitTermination()
print([spark.read.parquet(f"{directory}/{n}").count() for n in range(8)])
spark.stop()
"""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_eight_streams_start_at_once_in_many_drivers(root: Path, tmp_path: Path) -> None:
    """Without the names about one driver in ten breaks here."""
    for number in range(20):
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(root), str(tmp_path / str(number))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert str([80] * 8) in done.stdout, done.stderr[-3000:]
