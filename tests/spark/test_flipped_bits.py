"""A bit that flips on a disk: the fast path's proof are the checksums of pages, verified by Spark's own reader."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pyspark_holdfast import read, read_stream
from tests.sampling import Some
from tests.spark.logs import collected, made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def segments(root: Path) -> list[Path]:
    return sorted(root.rglob("*.parquet"))


def flipped(path: Path, at: int, bit: int) -> bytes:
    """Flip one bit of a file, and give back what it was."""
    content = path.read_bytes()
    path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
    return content


def pages(path: Path) -> tuple[int, int]:
    """Where the pages of a Parquet file begin and end."""
    return 4, path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[-8:-4], "little")


def test_a_flipped_bit_is_an_error_and_never_another_row(spark: SparkSession, tmp_path: Path, some: Some[Any]) -> None:
    """Wherever it is in the pages of a file; by the fast path, and by its stream."""
    root = made(tmp_path / "log", partitions=1, seals=1, rows=200)
    (segment,) = segments(root)
    expected = collected(read(spark, root, "orders"))
    rng, failed = random.Random(os.environ.get("HOLDFAST_SEED", "12")), 0
    flips = [(rng.randrange(*pages(segment)), rng.randrange(8)) for _ in range(12)]
    chosen = some(flips, 4)
    for at, bit in chosen:
        content = flipped(segment, at, bit)
        try:
            assert collected(read(spark, root, "orders")) == expected, (at, bit)
        except (PySparkException, Py4JError):
            failed += 1
        segment.write_bytes(content)
    assert failed >= (8 if len(chosen) == 12 else 1)  # some bits mean nothing
    at = payload_page(segment)
    flipped(segment, at, 0)
    took: list[Any] = []
    stream = read_stream(spark, root, "orders").foreach_batch(lambda batch, _: took.append(collected(batch)))
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="CRC checksum verification failed"):
        query.awaitTermination(60)
    assert not took


def payload_page(path: Path) -> int:
    """A byte of the last page of payloads."""
    payloads = pq.read_metadata(path).row_group(0).column(5)
    return int(payloads.data_page_offset + payloads.total_compressed_size - 1)


def test_sessions_that_we_configure_notice_a_flipped_bit_by_whatever_reader_of_parquet(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = made(tmp_path / "log", partitions=1, seals=1)
    (segment,) = segments(root)
    assert spark.read.parquet(str(segment)).count() == 20
    flipped(segment, payload_page(segment), 0)
    with pytest.raises(Exception, match="CRC checksum verification failed"):
        spark.read.parquet(str(segment)).collect()
