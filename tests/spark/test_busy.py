"""A writer at full speed, with sealing, shipping and retention, while batch and stream queries run beside it.

Every answer is a gapless stretch of each partition, of the right records; its beginning and its end only grow. The
stream gets every record once, from what is there when it begins: its lease keeps retention behind it.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
import pyspark_holdfast
from holdfast.errors import NotFound
from tests.spark.busy_writer import PARTITIONS, PATIENCE
from tests.spark.stream_victim import until_initialized

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Spans = dict[int, tuple[int, int]]
"""First and last offset by partition."""


@contextmanager
def writing(path: Path, store: Path, ends: list[int], pause: float) -> Iterator[None]:
    """A busy writer; afterwards `ends` says where its partitions end."""
    command = [sys.executable, "-m", "tests.spark.busy_writer", str(path), str(store), str(pause)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        until(lambda: is_settled(store), "something is settled")
        yield
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=2 * PATIENCE)
        assert child.returncode == 0
        ends.extend(map(int, out.split()))
    finally:
        child.kill()
        child.wait()


def is_settled(store: Path) -> bool:
    try:
        return holdfast.read(str(store), "busy").count() > 0
    except NotFound:
        return False


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)


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


def run(spark: SparkSession, directory: Path, seconds: float, lease_seconds: int = 60, pause: float = 0) -> int:
    """Ask until the time is up and retention has retired something; how many answers there were.

    A lease is renewed after a third of its time, and retention waits for that.
    """
    store, ends = directory / "store", []  # type: tuple[Path, list[int]]
    streamed: list[Spans] = []

    def land(batch: Any, _number: int) -> None:
        streamed.append(spans(batch))

    source = spark.readStream.format("holdfast").options(
        topic="busy", reader="busy-test", leaseSeconds=str(lease_seconds)
    )
    answers, last = 0, dict.fromkeys(range(PARTITIONS), (0, -1))
    with writing(directory / "log", store, ends, pause):
        query = (
            source.load(str(store))
            .writeStream.foreachBatch(land)
            .option("checkpointLocation", f"{directory}/check")
            .start()
        )
        until_initialized(query)
        until(lambda: bool(streamed) or not query.isActive, "the stream has begun")
        left = spans(spark.read.format("holdfast").option("topic", "busy").load(str(store)))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or min(low for low, _ in last.values()) == 0:
            assert query.isActive, query.exception()
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
    # The stream: one stretch after the other, from what retention had left to the last record, without a hole.
    for partition in range(PARTITIONS):
        parts = [each[partition] for each in streamed if partition in each]
        assert parts[0][0] <= left[partition][0]
        assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(parts))
        assert parts[-1][1] == ends[partition] - 1
    return answers


@pytest.mark.timeout(600)
def test_every_answer_beside_a_busy_writer_is_a_gapless_prefix_and_marks_only_grow(
    spark: SparkSession, tmp_path: Path, is_sampled: bool
) -> None:
    """In the gate the writer pauses, so that it does not take a processor of its own from all other tests."""
    run(spark, tmp_path, *((1, 6, 0.03) if is_sampled else (15, 60)))


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_ten_minutes_beside_a_busy_writer(spark: SparkSession, tmp_path: Path) -> None:
    print(f"{run(spark, tmp_path, 600)} answers")
