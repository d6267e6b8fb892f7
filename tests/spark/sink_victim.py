"""A driver that streams from one topic of a root into another, until it is done or killed.

    python -m tests.spark.sink_victim ROOT OUTPUT [--worker-dies STEP] [--dies STEP]

From `in` to `out`, two segments a batch, what is available now. With `--worker-dies` the Python process that comes to a
step of the write is killed there, once, and its task is tried again; with `--dies` everything is, driver, JVM and
workers. `OUTPUT/worker-died` and `OUTPUT/died` say so. Standard output tells `done` at the end.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tests.spark.batch_limits import LIMIT, RUNS
from tests.spark.deadly_sink import deadly
from tests.spark.stream_victim import small_spark


def main(arguments: list[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("output")
    parser.add_argument("--worker-dies", default="")
    parser.add_argument("--dies", default="")
    asked = parser.parse_args(arguments)
    spark = small_spark(Path(tempfile.mkdtemp()))
    steps = {asked.worker_dies: Path(asked.output, "worker-died"), asked.dies: Path(asked.output, "died")}
    steps.pop("", None)
    spark.dataSource.register(deadly(steps, (asked.dies,)))
    options = {"topic": "in", **LIMIT}
    frame = spark.readStream.format("holdfast").options(**options).load(asked.root).select("id").repartition(2)
    writer = frame.writeStream.format("deadly").option("topic", "out")
    writer = writer.option("checkpointLocation", f"{asked.output}/checkpoint").trigger(availableNow=True)
    for _ in range(RUNS):
        writer.start(asked.root).awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
