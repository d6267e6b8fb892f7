"""A keyed table that changes: 100,000 changed keys into ten million rows, beside deltalake's merge with the same data.

Both have the same rows in a table of their own on the same disk, and get the same changes in each round, all of them
keys that are there, spread evenly, with a higher `offset` each. Measured is everything from the changes to the commit:

- ours: a DataFrame of a Parquet file with the changes, `write_latest` as a pipeline's run does it, and the commit;
- deltalake: `merge` with `when_matched_update_all` where the offset is higher, `when_not_matched_insert_all`. It gets
  the changes as an Arrow table in memory, which is in its favour;
- with `--full`, in brackets: Spark alone, which joins table and changes and writes the whole table anew.

At the end both tables must have the same rows. What would be unfair: changes of a few files only, where either side
could leave most of the table alone; or a table whose files were just written by the same process in its page cache for
one side only: both were written before the first round.

`--quick` has two million rows and 20,000 changes: it shows that everything runs. What Spark costs for any job weighs
more there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
from tests.spark.written_tables import WrittenTable

from bench import measure, spark_session
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from bench.order_rows import all_orders, changed_orders
from pyspark_holdfast.pipeline.table_definition import keyed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, CHANGES = 10_000_000, 100_000
ROWS_QUICK, CHANGES_QUICK = 2_000_000, 20_000
AT_LEAST = 1.0
OURS, RIVAL, SPARK = "keyed table", "deltalake's merge", "[Spark's join, all rows anew]"


class Contest(NamedTuple):
    """One way to do it: `apply` is measured, `tidy` removes files that nobody reads any more, unmeasured."""

    apply: Callable[[int], object]
    tidy: Callable[[], object]


def main(options: Options) -> None:
    """This part alone."""
    with measure.workspace(options) as scratch:
        facts = {**measure.machine(scratch), "pyspark": pyspark.__version__, "deltalake": deltalake.__version__}
        with spark_session.running() as spark:
            made = part(spark, scratch, options)
    print(measure.report(made))
    measure.save_parts("upsert_speed", [made], facts)


def part(spark: SparkSession, scratch: Path, options: Options) -> Part:
    """Both, in turns."""
    rows, changes = (ROWS_QUICK, CHANGES_QUICK) if options.quick else (ROWS, CHANGES)
    orders = all_orders(rows)
    files = _changes(scratch, rows, changes, options.rounds + 1)
    ours, rival = _ours(spark, scratch, orders, files), _rival(scratch, orders, files)
    contestants = {OURS: ours, RIVAL: rival}
    if options.full:
        contestants[SPARK] = _spark_alone(spark, scratch, orders, files)
    for one in contestants.values():
        one.apply(0)  # a first run pays for what no later one does
        one.tidy()
    measured = measure.interleave([_contestant(name, one, changes) for name, one in contestants.items()], options)
    _check(scratch, rows)
    bars = [Bar(OURS, RIVAL, AT_LEAST)]
    return Part(
        f"{changes:,} changed keys into {rows:,} rows",
        measured,
        bars,
        [_seconds(measured), *spark_session.costs(measured, bars)],
    )


def _contestant(name: str, one: Contest, changes: int) -> Contestant:
    rounds = iter(range(1, 1000))

    def run(_seconds: float) -> Sample:
        number = next(rounds)
        cpu, began = spark_session.cpu_seconds(), time.perf_counter()
        one.apply(number)
        seconds, spent = time.perf_counter() - began, spark_session.cpu_seconds()
        one.tidy()
        return Sample(name, changes, seconds, cpu_seconds=None if cpu is None or spent is None else spent - cpu)

    return Contestant(name, run)


def _changes(scratch: Path, rows: int, changes: int, rounds: int) -> list[Path]:
    files = [scratch / f"changes-{number}.parquet" for number in range(rounds)]
    for number, file in enumerate(files):
        pq.write_table(changed_orders(rows, changes, number), file)
    return files


# --- contestants ---------------------------------------------------------------------------------------------


def _ours(spark: SparkSession, scratch: Path, orders: pa.Table, files: list[Path]) -> Contest:
    table = WrittenTable(scratch / "ours", keyed("order_id", order_by="offset"))
    pq.write_table(orders, scratch / "orders.parquet", row_group_size=500_000)
    table.write(spark.read.parquet(str(scratch / "orders.parquet")))

    return Contest(
        lambda number: table.write(spark.read.parquet(str(files[number]))), lambda: table.log.clean(keep_ms=0)
    )


def _rival(scratch: Path, orders: pa.Table, files: list[Path]) -> Contest:
    place = str(scratch / "rival")
    deltalake.write_deltalake(place, orders)
    tables = [pq.read_table(file) for file in files]

    def apply(number: int) -> None:
        table = deltalake.DeltaTable(place)
        merger = table.merge(tables[number], predicate="t.order_id = s.order_id", source_alias="s", target_alias="t")
        merger.when_matched_update_all("s.offset > t.offset").when_not_matched_insert_all().execute()

    def tidy() -> None:
        deltalake.DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False)

    return Contest(apply, tidy)


def _spark_alone(spark: SparkSession, scratch: Path, orders: pa.Table, files: list[Path]) -> Contest:
    from pyspark.sql import functions as f

    place = scratch / "alone"
    pq.write_table(orders, scratch / "alone-first.parquet", row_group_size=500_000)
    spark.read.parquet(str(scratch / "alone-first.parquet")).write.parquet(str(place))

    def apply(number: int) -> None:
        old, new = spark.read.parquet(str(place)), spark.read.parquet(str(files[number]))
        joined = old.alias("t").join(new.alias("s"), "order_id", "full_outer")
        newer = f.coalesce(f.col("s.offset") > f.col("t.offset"), f.col("t.offset").isNull())
        columns = [
            f.when(newer, f.col(f"s.{name}")).otherwise(f.col(f"t.{name}")).alias(name)
            for name in old.columns
            if name != "order_id"
        ]
        joined.select("order_id", *columns).write.parquet(f"{place}-new")
        shutil.rmtree(place)
        Path(f"{place}-new").rename(place)

    return Contest(apply, lambda: None)


# --- what it comes to ----------------------------------------------------------------------------------------


def _check(scratch: Path, rows: int) -> None:
    """A contestant that is quick because it is wrong has lost."""
    answers = [_sums(deltalake.DeltaTable(str(scratch / name))) for name in ("ours/t", "rival")]
    if answers[0] != answers[1] or answers[0][0] != rows:
        raise RuntimeError(f"the tables do not have the same rows; ours={answers[0]} rival={answers[1]}")


def _sums(table: deltalake.DeltaTable) -> tuple[int, ...]:
    found = table.to_pyarrow_table(columns=["order_id", "offset", "quantity"])
    products = pc.multiply(pc.bit_wise_and(found["order_id"], 0xFFFF), pc.bit_wise_and(found["offset"], 0xFFFF))
    return len(found), pc.sum(found["offset"]).as_py(), pc.sum(found["quantity"]).as_py(), pc.sum(products).as_py()


def _seconds(measured: Measured) -> str:
    told = (f"{name} {min(each.seconds for each in found):.2f}" for name, found in measured.samples.items())
    return "seconds, best: " + ", ".join(told)
