"""The job of test_cluster.py, handed in with spark-submit: reads a root in batch and as a stream, tells what it saw.

spark-submit cluster_job.py ROOT TOPIC DIRECTORY [NAME=VALUE …]
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator


def read_and_tell(tasks: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[int, list[str]]]:
    """On a worker: read some tasks of the format; how many rows they had, and what this process has loaded for it."""
    for reader, task in tasks:
        rows = sum(batch.num_rows for batch in pickle.loads(reader).read(pickle.loads(task)))
        yield rows, sorted(sys.modules)


def main() -> None:
    """Read, and print one line of JSON."""
    from pyspark.sql import SparkSession

    from pyspark_holdfast import DefaultSource

    root, topic, directory, *pairs = sys.argv[1:]
    options = {"topic": topic, **dict(pair.split("=", 1) for pair in pairs)}
    spark = SparkSession.builder.getOrCreate()
    frame = spark.read.format("holdfast").options(**options).load(root)
    rows = [[row.partition, row.offset, bytes(row.value).hex()] for row in frame.repartition(2).collect()]
    limit = {} if spark.version < "4.2" else {"maxSegmentsPerTrigger": "2"}
    stream = spark.readStream.format("holdfast").options(**options, **limit).load(root)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{directory}/landed")
    )
    query.awaitTermination()
    landed = spark.read.parquet(f"{directory}/landed")
    source = DefaultSource({**options, "path": root})
    reader = source.reader(source.schema())
    tasks = [(pickle.dumps(reader), pickle.dumps(task)) for task in reader.partitions()]
    results = spark.sparkContext.parallelize(tasks, 2).mapPartitions(read_and_tell).collect()
    answer = {
        "master": spark.sparkContext.master,
        "executors": spark._jsc.sc().getExecutorMemoryStatus().size() - 1,
        "rows": sorted(rows),
        "streamed": sorted([row.partition, row.offset, bytes(row.value).hex()] for row in landed.collect()),
        "read_by_hand": sum(count for count, _ in results),
        "loaded": sorted({name for _, names in results for name in names}),
    }
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main()
