"""The last step of the demo: Spark reads what is settled while a writer is still at work.

    python -m examples.demo_spark [--seconds 8] [--plot demo-marks.png]

A child process appends, seals and ships to a directory beside the log. Meanwhile Spark reads the store: a batch query
again and again, and a stream. Every answer must be a gapless prefix of the log, and marks must only grow. Then the
writer ends, the stream catches up, and what Spark has is compared with what was acknowledged, record by record.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import holdfast
from holdfast import Settings
from holdfast.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, PARTITIONS = "measurements", 2
MARKS = ("durable", "sealed", "settled")
LOOKS_MIN = 3


def now() -> float:
    """Seconds, the same in parent and child."""
    return SystemClock().now_us() / 1e6


class Moment(NamedTuple):
    """How far everything was at one time; records over all partitions."""

    seconds: float
    marks: dict[str, int]


def write(directory: Path) -> None:
    """The child: append until it is asked to end, telling each acknowledgement and the marks on standard output."""
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    settings = Settings.from_mapping({"segments": {"rows_max": 4_000}})
    with holdfast.open(directory / "spark-log", store=directory / "spark-store", settings=settings) as log:
        topic = log.topic(TOPIC, partitions=PARTITIONS)
        number = 0
        while not ending:
            payloads = [b"measurement %d" % each for each in range(number, number + 100)]
            receipts = topic.append_batch(payloads, partition=number // 100 % PARTITIONS)
            lines = [b"%d %d %s" % (r.partition, r.offset, p) for r, p in zip(receipts, payloads, strict=True)]
            sums = [sum(getattr(mark, name) for mark in log.marks(TOPIC)) for name in MARKS]
            lines.append(b"marks %.3f %d %d %d" % (now(), *sums))
            os.write(1, b"\n".join(lines) + b"\n")
            number += 100
            time.sleep(0.004)
        log.seal()
        log.ship(60)


def run(spark: SparkSession, directory: Path, seconds: float, plot: Path) -> bool:
    """Watch a writer with Spark; True when every answer was a gapless prefix, and in the end all of it."""
    import pyspark_holdfast

    notes, store, began = directory / "spark-acknowledged", str(directory / "spark-store"), now()
    with notes.open("wb") as stream:
        child = subprocess.Popen([sys.executable, __file__, "--write", str(directory)], stdout=stream)  # noqa: S603
    try:
        _until_settled(store)
        landed = directory / "spark-landed"
        query = _stream(spark, store, landed, directory / "spark-checkpoint").start()
        batches, streamed, gapless = _look(spark, store, landed, seconds)
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()
    query.processAllAvailable()
    query.stop()
    acknowledged, marks = _notes(notes)
    frame = spark.read.format("holdfast").option("topic", TOPIC).load(store)
    print(f"   settled at the end: {pyspark_holdfast.marks_of(frame)}")
    good = _compare(acknowledged, _records(frame), _records(spark.read.parquet(str(landed)))) and gapless
    _draw(plot, began, marks, batches, streamed)
    print(f"   marks over time: {plot}")
    return good


def _until_settled(store: str) -> None:
    """Until the store has something to read."""
    deadline = now() + 60
    while now() < deadline:
        try:
            if holdfast.read(store, TOPIC).count():
                return
        except holdfast.NotFound:
            pass
        time.sleep(0.1)
    raise TimeoutError("nothing was settled within a minute")


def _stream(spark: SparkSession, store: str, landed: Path, checkpoint: Path):  # type: ignore[no-untyped-def]
    def land(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(
            f"{landed}/batch={number:08d}"
        )  # a batch that comes again replaces itself

    rows = spark.readStream.format("holdfast").option("topic", TOPIC).load(store)
    return rows.writeStream.foreachBatch(land).option("checkpointLocation", str(checkpoint))


def _look(spark: SparkSession, store: str, landed: Path, seconds: float) -> tuple[list[Moment], list[Moment], bool]:
    """Ask again and again while the writer writes."""
    from pyspark.sql import functions as F  # noqa: N812

    import pyspark_holdfast

    batches, streamed, gapless, last = [], [], True, 0
    end = now() + seconds
    while now() < end or len(batches) < LOOKS_MIN:
        frame, asked = pyspark_holdfast.read(spark, store, TOPIC), now()
        rows = frame.groupBy("partition").agg(F.count("*"), F.min("offset"), F.max("offset")).collect()
        total = sum(row[1] for row in rows)
        gapless = gapless and all(row[2] == 0 and row[3] == row[1] - 1 for row in rows) and total >= last
        last = total
        batches.append(Moment(asked, {"batch": total}))
        there = [path for path in landed.glob("batch=*") if (path / "_SUCCESS").exists()]
        if there:
            count = spark.read.parquet(*map(str, there)).count()
            streamed.append(Moment(now(), {"stream": count}))
        print(f"   Spark, while the writer writes: batch {total:,} records, stream so far {len(there)} batches")
    return batches, streamed, gapless


def _notes(path: Path) -> tuple[Counter[tuple[int, int, bytes]], list[Moment]]:
    acknowledged: Counter[tuple[int, int, bytes]] = Counter()
    marks = []
    for line in path.read_bytes().splitlines():
        first, rest = line.split(b" ", 1)
        if first == b"marks":
            at, *sums = rest.split()
            marks.append(Moment(float(at), dict(zip(MARKS, map(int, sums), strict=True))))
        else:
            offset, payload = rest.split(b" ", 1)
            acknowledged[int(first), int(offset), payload] += 1
    return acknowledged, marks


def _records(frame: DataFrame) -> Counter[tuple[int, int, bytes]]:
    table = frame.select("partition", "offset", "value").toArrow()
    return Counter(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def _compare(
    acknowledged: Counter[tuple[int, int, bytes]],
    batch: Counter[tuple[int, int, bytes]],
    stream: Counter[tuple[int, int, bytes]],
) -> bool:
    print("   partition  acknowledged     batch    stream")
    for number in range(PARTITIONS):
        counts = [sum(n for place, n in each.items() if place[0] == number) for each in (acknowledged, batch, stream)]
        print(f"   {number:>9}  {counts[0]:>12,}  {counts[1]:>8,}  {counts[2]:>8,}")
    same = acknowledged == batch == stream
    print(f"   every record that was acknowledged is there, once, in batch and stream: {same}")
    return same


def _draw(plot: Path, began: float, marks: list[Moment], batches: list[Moment], streamed: list[Moment]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name in MARKS:
        axes.plot([m.seconds - began for m in marks], [m.marks[name] for m in marks], label=name)
    for name, moments, shape in (("batch", batches, "o"), ("stream", streamed, "x")):
        points = [(m.seconds - began, m.marks[name]) for m in moments]
        axes.plot([x for x, _ in points], [y for _, y in points], shape, label=f"Spark, {name}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("records")
    axes.set_title("What is durable, sealed and settled, and what Spark reads")
    axes.legend()
    figure.tight_layout()
    figure.savefig(plot, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Run this step alone; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long Spark watches the writer")
    parser.add_argument("--plot", type=Path, default=Path("demo-marks.png"), help="where to draw the marks")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write(options.write)
        return 0
    import pyspark_holdfast

    with tempfile.TemporaryDirectory() as temporary:
        print("   Spark starts …")
        spark = pyspark_holdfast.session("local[2]")
        good = run(spark, Path(temporary), options.seconds, options.plot)
        spark.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
