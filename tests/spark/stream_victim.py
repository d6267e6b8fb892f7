"""A driver that streams until it is done or killed.

    python -m tests.spark.stream_victim ROOT OUTPUT [--die-after BATCH] [--kill-workers] [--files]

One JVM of its own and two queries over the topic `orders`, each with its checkpoint: into `OUTPUT/batches`, by
foreachBatch, one directory per batch id that a batch overwrites; and into `OUTPUT/files`, by Spark's own file sink.
Both take what is available now, two segments at a time. Standard output tells `batch N` when a batch of the first one
begins, which none does before both queries are at work, and `done` at the end.

With `--die-after` the whole session is killed, once, when that batch is in the sink and Spark does not know it yet.
With `--kill-workers` the first attempt of every task kills the Python workers beside it and then its own, in mid-batch;
the file sink is left out then, unless --files asks for it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from pyspark_holdfast.spark_session import java_options, session
from tests.spark.batch_limits import LIMIT, RUNS
from tests.spark.jvm import BRIEF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def processes() -> Iterator[tuple[int, int, int]]:
    """Every process of the machine that lives: its id, its parent, its session."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if fields[0] not in "ZX":  # dead, and nobody has asked after it
            yield int(folder.name), int(fields[1]), int(fields[3])


def kill_session(session: int) -> None:
    """kill -9 of everything that a victim started; Spark's workers are not in its process group.

    The first goes last: it may be the one that kills.
    """
    while alive := [pid for pid, _, own in processes() if own == session and pid != os.getpid()]:
        for pid in alive:
            kill(pid)
    if os.getsid(0) == session:
        kill(os.getpid())


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def kill_workers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does with its rows: hand them on; but the first attempt ends its worker and those beside it."""
    for batch in batches:
        yield batch
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            beside = [pid for pid, parent, _ in processes() if parent == os.getppid() and pid != os.getpid()]
            for pid in beside:
                kill(pid)
            kill(os.getpid())


def small_spark(directory: Path) -> SparkSession:
    """Spark with two threads, whose tasks may fail three times."""
    return session(
        "local[2,4]",
        spark_driver_extraJavaOptions=f"{BRIEF} {java_options(directory)}",
        spark_sql_adaptive_enabled="false",
        spark_driver_memory="1g",
    )


def until_initialized(query: StreamingQuery) -> None:
    """Wait until a query has its reader, or has failed.

    For every reader that it starts, Spark 4.3 puts the same four names into one map that all queries of a source share,
    without a lock (PythonStreamingSourceRunner.init, envVars). Two that do so at once may leave it with a wrong count,
    and then no task of either can be serialized: "Illegal size 5 of collection, expected 6". Only the first reader adds
    to it, so a driver that starts several queries waits for the first one.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.01)


def by_batch(frame: DataFrame, asked: Namespace, all_at_work: Event) -> DataStreamWriter:
    """The sink that is idempotent by batch id."""

    def land(rows: DataFrame, batch: int) -> None:
        all_at_work.wait()
        print(f"batch {batch}", flush=True)
        if asked.kill_workers:
            rows = rows.mapInArrow(kill_workers, rows.schema)
        rows.write.mode("overwrite").parquet(f"{asked.output}/batches/batch={batch:06d}")
        marker = Path(asked.output, "died")
        if batch == asked.die_after and not marker.exists():
            marker.write_text(str(batch))
            kill_session(os.getsid(0))

    return frame.writeStream.foreachBatch(land)


def main(arguments: list[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("output")
    parser.add_argument("--die-after", type=int, default=-1)
    parser.add_argument("--kill-workers", action="store_true")
    parser.add_argument("--files", action="store_true", help="write files, too, although workers are killed")
    asked = parser.parse_args(arguments)
    spark = small_spark(Path(tempfile.mkdtemp()))
    options = {"topic": "orders", **LIMIT}
    frame = spark.readStream.format("holdfast").options(**options).load(asked.root)
    frame = frame.select("partition", "offset", "value")
    all_at_work = Event()
    writers = {"batches": by_batch(frame, asked, all_at_work)}
    if asked.files or not asked.kill_workers:
        writers["files"] = frame.writeStream.format("parquet").option("path", f"{asked.output}/files")
    for _ in range(RUNS):
        queries = []
        for name, writer in writers.items():
            writer = writer.option("checkpointLocation", f"{asked.output}/checkpoint-{name}")
            queries.append(writer.trigger(availableNow=True).start())
            until_initialized(queries[-1])
        all_at_work.set()
        for query in queries:
            query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
