"""The end of the demo: a pipeline makes two tables of what Spark has just read, and Polars reads one of them.

    python -m examples.demo_tables [--report demo-report.html]

The first run takes everything, the second only what was appended in between, the third finds nothing new. Each run is
one commit of a Delta table, so anybody who reads them sees whole runs. The page with plots is written by the pipeline.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from pyspark_holdfast.pipeline import Pipeline, count, max_of, table, windowed
from pyspark_holdfast.pipeline.builtin import bronze

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, MORE = "measurements", 500

measurements = bronze(TOPIC, called="measurements_bronze")
"""Every record, its payload as text, with its place in the log."""


@table(
    inputs="measurements_bronze",
    kind=windowed("_time", "1s", by="_partition", values={"records": count(), "last_offset": max_of("_offset")}),
)
def per_second(measurements: DataFrame) -> DataFrame:
    """How many records came in each second, by partition."""
    return measurements


def run(spark: SparkSession, directory: Path, report: Path) -> bool:
    """Run the pipeline three times; True when the tables have every record that is settled, once."""
    import polars

    store, tables = directory / "spark-store", directory / "tables"
    pipeline = Pipeline("demo", root=store, tables=tables, of=[measurements, per_second])
    good = _told(spark, pipeline, "everything")
    with holdfast.open(directory / "spark-log", store=store) as log:
        log.topic(TOPIC).append_batch([b"one more, number %d" % each for each in range(MORE)], partition=0)
        log.seal()
        log.ship(60)
    good = _told(spark, pipeline, f"{MORE} records more") and good
    good = _told(spark, pipeline, "nothing new") and good
    shutil.copyfile(tables / "_reports" / "index.html", report)
    print(f"   the report with its plots: {report}")
    made = polars.read_delta(str(tables / "per_second")).sort("window_start", "_partition")
    print("   Polars reads a table back, without Spark:")
    print("\n".join(f"   {line}" for line in str(made.tail(4)).splitlines()))
    settled = holdfast.read(store, TOPIC).count()
    places = polars.read_delta(str(tables / "measurements_bronze")).select("_partition", "_offset")
    same = made["records"].sum() == settled == places.height == places.n_unique()
    print(f"   settled {settled:,} records; both tables have each of them, once: {same}")
    return same and good


def _told(spark: SparkSession, pipeline: Pipeline, what: str) -> bool:
    began = time.perf_counter()
    report = pipeline.run(spark)
    seconds = time.perf_counter() - began
    words = ", ".join(
        f"{one.name} {one.outcome} ({one.rows_in:,} rows in, {one.rows:,} there)" for one in report.tables
    )
    print(f"   {what}: {words} in {seconds:.1f} s")
    for one in report.tables:
        if one.error:
            print(f"   {one.name}: {one.error}")
    return report.is_fine


def main() -> int:
    """Run this step alone, on a small log; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="where to put the page")
    options = parser.parse_args()
    import pyspark_holdfast

    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        with holdfast.open(directory / "spark-log", store=directory / "spark-store") as log:
            log.topic(TOPIC, partitions=2).append_batch([b"measurement %d" % each for each in range(1000)], partition=1)
            log.seal()
            log.ship(60)
        print("   Spark starts …")
        spark = pyspark_holdfast.session("local[2]")
        good = run(spark, directory, options.report)
        spark.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
