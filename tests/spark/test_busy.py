"""A writer at full speed, with sealing, shipping and retention, while batch and stream queries run beside it.

Every answer is a gapless stretch of each partition, of the right records; its beginning and its end only grow. The
stream gets every record once: its lease keeps retention behind it.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
import pyspark_holdfast
from holdfast.errors import NotFound
from tests.spark.busy_writer import PARTITIONS, PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Spans = dict[int, tuple[int, int]]
"""First and last offset by partition."""


@contextmanager
def writing(path: Path, store: Path, ends: list[int]) -> Iterator[None]:
    """A busy writer; afterwards `ends` says where its partitions end."""
    command = [sys.executable, "-m", "tests.spark.busy_writer", str(path), str(store)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        until_settled(store)
        yield
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=2 * PATIENCE)
        assert child.returncode == 0
        ends.extend(map(int, out.split()))
    finally:
        child.kill()
        child.wait()


def until_settled(store: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if holdfast.read(str(store), "busy").count():
                return
        except NotFound:
            pass
        time.sleep(0.2)
    raise AssertionError("nothing was settled within a minute")


def spans(frame: DataFrame) -> Spans:
    """What an answer covers; it has no hole, no double, and no wrong record."""
    from pyspark.sql import functions as F

    said = F.concat_ws(":", F.col("partition").cast("string"), F.col("offset").cast("string"))
    right = F.col("value").cast("string") == F.concat(said, F.lit("." * 40))
    rows = (
        frame.groupBy("partition")
        .agg(F.min("offset"), F.max("offset"), F.count("*"), F.count_distinct("offset"), F.min(right.cast("int")))
        .collect()
    )
    found = {}
    for partition, low, high, count, distinct, is_right in rows:
        assert count == distinct == high - low + 1
        assert is_right == 1
        found[partition] = (low, high)
    return found


def run(spark: SparkSession, directory: Path, seconds: float) -> int:
    """Ask until the time is up; how many answers there were."""
    store, ends = directory / "store", []  # type: tuple[Path, list[int]]
    streamed: list[Spans] = []

    def land(batch: Any, _number: int) -> None:
        streamed.append(spans(batch))

    source = spark.readStream.format("holdfast").options(topic="busy", reader="busy-test", leaseSeconds="60")
    answers, last = 0, dict.fromkeys(range(PARTITIONS), (0, -1))
    with writing(directory / "log", store, ends):
        query = (
            source.load(str(store))
            .writeStream.foreachBatch(land)
            .option("checkpointLocation", f"{directory}/check")
            .start()
        )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for load in (
                lambda: spark.read.format("holdfast").option("topic", "busy").load(str(store)),
                lambda: pyspark_holdfast.read(spark, str(store), "busy"),
            ):
                found = spans(load())
                for partition, (low, high) in last.items():
                    assert found[partition][0] >= low
                    assert found[partition][1] >= high
                last = found
                answers += 1
        assert query.isActive, query.exception()
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    # The stream: one stretch after the other, from the first record to the last, without a hole.
    for partition in range(PARTITIONS):
        parts = [each[partition] for each in streamed if partition in each]
        assert parts[0][0] == 0
        assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(parts))
        assert parts[-1][1] == ends[partition] - 1
    assert min(low for low, _ in last.values()) > 0, "retention retired nothing: this proved less than it says"
    return answers


@pytest.mark.timeout(200)
def test_every_answer_beside_a_busy_writer_is_a_gapless_prefix_and_marks_only_grow(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert run(spark, tmp_path, 15) >= 2


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_ten_minutes_beside_a_busy_writer(spark: SparkSession, tmp_path: Path) -> None:
    print(f"{run(spark, tmp_path, 600)} answers")
