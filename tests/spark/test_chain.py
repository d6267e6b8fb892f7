"""What is exactly-once for whom, when a batch is written again: the table of the how-to, by running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.logs import made

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BATCHES, ROWS = 4, 80


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("chain") / "log", partitions=1, seals=BATCHES, rows=ROWS // BATCHES)


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the sink had the batch, and before Spark had noted it."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def upstream(spark: SparkSession, root: Path, directory: Path, *, overwriting: bool) -> None:
    rows = spark.readStream.format("holdfast").options(topic="orders", maxSegmentsPerTrigger="1").load(str(root))

    def land(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{directory}/landed/batch={number}")

    writer = rows.writeStream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    if overwriting:
        query = writer.foreachBatch(land).start()
    else:
        query = writer.format("parquet").option("path", f"{directory}/landed").start()
    query.awaitTermination()


def downstream(spark: SparkSession, directory: Path) -> int:
    """How many rows a stream on these files has brought so far."""
    schema = spark.read.parquet(f"{directory}/landed").schema
    files = spark.readStream.schema(schema).parquet(f"{directory}/landed")
    writer = files.writeStream.format("parquet").option("path", f"{directory}/copied")
    writer.option("checkpointLocation", f"{directory}/further").trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(f"{directory}/copied").count()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("overwriting", [False, True])
def test_a_batch_that_is_written_again_counts_once_for_whom_the_how_to_says(
    spark: SparkSession, root: Path, tmp_path: Path, overwriting: bool
) -> None:
    upstream(spark, root, tmp_path, overwriting=overwriting)
    assert downstream(spark, tmp_path) == ROWS
    forget_last_commit(tmp_path / "checkpoint")
    upstream(spark, root, tmp_path, overwriting=overwriting)
    assert spark.read.parquet(f"{tmp_path}/landed").count() == ROWS
    # A stream of files knows files: only the sink that never writes a batch again may be followed by one.
    assert downstream(spark, tmp_path) == (ROWS + ROWS // BATCHES if overwriting else ROWS)
