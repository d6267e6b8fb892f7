"""What a table makes of a new row follows from that row: else ten runs would not end like one, and it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import holdfast
from holdfast.errors import Invalid
from holdfast.testing import run_table
from pyspark_holdfast.pipeline import Pipeline, append, count, keyed, read_table, snapshot, table, whole, windowed
from pyspark_holdfast.pipeline.table_definition import Kind
from pyspark_holdfast.pipeline.table_order import PlannedTable, ordered
from pyspark_holdfast.pipeline.table_update import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Made = Callable[[DataFrame, DataFrame], DataFrame]
ROWS = [{"id": n % 9, "g": n % 3, "v": None if n == 7 else n % 5, "s": f"{n % 4} x"} for n in range(24)]
NAMES = [{"g": g, "name": name} for g, name in ((0, "zero"), (1, "one"), (1, "uno"), (7, "seven"))]
CUTS = ((0, 7), (7, 24))


class Frames:
    """New rows, all or in the order of runs, and rows that are read as a whole."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.whole = spark.createDataFrame(pa.Table.from_pylist(NAMES))
        self.new = self.of(0, len(ROWS))

    def of(self, begin: int, end: int) -> DataFrame:
        schema = pa.schema([("id", pa.int64()), ("g", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
        return self.spark.createDataFrame(pa.Table.from_pylist(ROWS[begin:end], schema=schema))


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> Frames:
    return Frames(spark)


def planned(function: Made, kind: Kind | None = None, *, per_run: bool = False) -> PlannedTable:
    return ordered([table(inputs=["new", whole("names")], kind=kind, name="made", per_run=per_run)(function)])[0]


def in_runs(frames: Frames, one: PlannedTable) -> list[Any]:
    """The rows that runs add, one after the other."""
    made = [frame_of(one, [frames.of(*cut), frames.whole]) for cut in CUTS]
    return rows(reduce(DataFrame.union, made))


def at_once(frames: Frames, one: PlannedTable) -> list[Any]:
    return rows(frame_of(one, [frames.new, frames.whole]))


def rows(frame: DataFrame) -> list[Any]:
    return sorted(map(repr, frame.toArrow().to_pylist()))


# -- what is taken -----------------------------------------------------------------------------------------------


_more = F.udf(lambda value: None if value is None else value + 1, LongType())


def _sql(text: str) -> Made:
    """A query, on the names `new` and `names`."""

    def made(new: DataFrame, names: DataFrame) -> DataFrame:
        new.createOrReplaceTempView("single_new")
        names.createOrReplaceTempView("single_names")
        return new.sparkSession.sql(text.replace("NEW", "single_new").replace("NAMES", "single_names"))

    return made


TAKEN: dict[str, Made] = {
    "select": lambda new, _: new.select("id", (F.col("v") * 2).alias("v"), F.col("s").alias("t")),
    "where": lambda new, _: new.where("v > 1 OR v IS NULL"),
    "explode": lambda new, _: new.withColumn("e", F.explode(F.split("s", " "))),
    "pipes": _sql("FROM NEW |> WHERE v > 1 |> EXTEND id + 1 AS next |> SELECT id, next"),
    "explode nothing": lambda new, _: new.select("*", F.posexplode_outer(F.expr("IF(v > 2, array(v), null)"))),
    "lateral view": _sql("SELECT * FROM NEW LATERAL VIEW explode(array(id, v)) e AS x"),
    "melt": lambda new, _: new.melt(["id"], ["g", "v"], "what", "n"),
    "sliding windows": lambda new, _: new.select("id", F.window(F.timestamp_seconds("v"), "4 seconds", "2 seconds")),
    "function in Python": lambda new, _: new.withColumn("more", _more("v")),
    "encrypted alike": lambda new, _: new.select(
        F.expr("aes_encrypt(s, repeat('k', 16), 'CBC', 'PKCS', cast(lpad(id, 16, '0') as binary))").alias("c"),
        F.expr("aes_encrypt(s, repeat('k', 16), 'ECB')").alias("d"),
    ),
    "hash of a row": lambda new, _: new.where("pmod(xxhash64(id), 3) = 0"),
    "inner join": lambda new, names: new.join(names, "g"),
    "left join": lambda new, names: new.join(names, "g", "left"),
    "cross join": lambda new, names: new.crossJoin(names.select("name")),
    "right join, new at the right": lambda new, names: names.join(new, "g", "right"),
    "left semi join": lambda new, names: new.join(names, "g", "left_semi"),
    "left anti join": lambda new, names: new.join(names, "g", "left_anti"),
    "hint": lambda new, names: new.join(F.broadcast(names), "g"),
    "aggregate of a whole input": lambda new, names: new.join(names.groupBy("g").count(), "g"),
    "list of a whole input": lambda new, names: new.join(names.groupBy("g").agg(F.collect_list("name")), "g"),
    "latest of a whole input": lambda new, names: new.join(
        names.withColumn("r", F.row_number().over(Window.partitionBy("g").orderBy("name"))).where("r = 1"), "g"
    ),
    "constants": lambda new, _: new.join(new.sparkSession.createDataFrame([(1, "x")], "g long, x string"), "g"),
    "subquery over a whole input": _sql("SELECT *, (SELECT max(name) FROM NAMES) AS m FROM NEW"),
    "correlated subquery": _sql("SELECT * FROM NEW n WHERE EXISTS (SELECT 1 FROM NAMES o WHERE o.g = n.g)"),
    "IN": _sql("SELECT * FROM NEW WHERE g NOT IN (SELECT g FROM NAMES)"),
    "lateral join": _sql("SELECT * FROM NEW n, LATERAL (SELECT max(name) AS m FROM NAMES o WHERE o.g < n.g)"),
    "common expressions": _sql("WITH a AS (SELECT * FROM NEW), b AS (SELECT g, count(*) AS c FROM NAMES GROUP BY g)"
                               " SELECT * FROM a JOIN b USING (g)"),
    "union with itself": lambda new, _: new.where("v = 1").union(new.where("v < 3")),
    "order": lambda new, _: new.orderBy("v").repartition(3).sortWithinPartitions("id"),
    "alias": lambda new, names: new.alias("a").join(names.alias("b"), F.expr("a.g = b.g")).select("a.id", "b.name"),
    "filled": lambda new, _: new.na.fill({"v": -1}).dropna(),
    "cached": lambda new, _: new.select("id").cache(),
    "watermark": lambda new, _: new.select(F.timestamp_seconds("v").alias("t")).withWatermark("t", "1 hour"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAKEN)
def test_what_treats_rows_one_by_one_gives_in_runs_what_it_gives_at_once(frames: Frames, what: str) -> None:
    one = planned(TAKEN[what])
    found = at_once(frames, one)
    assert found
    assert in_runs(frames, one) == found


STEPS: dict[str, Made] = {
    "where": lambda frame, _: frame.where("v IS NULL OR v <> 2"),
    "columns": lambda frame, _: frame.withColumns({"v": F.col("v") + F.col("id"), "s": F.concat("s", F.lit("!"))}),
    "explode": lambda frame, _: frame.withColumn("s", F.explode(F.split("s", " "))),
    "join": lambda frame, names: frame.join(names, "g", "left").withColumn("s", F.coalesce("name", "s")).drop("name"),
    "semi": lambda frame, names: frame.join(names.where("g < 7"), "g", "left_semi"),
    "anti": lambda frame, names: frame.join(names.where("name = 'uno'"), "g", "left_anti"),
    "counted": lambda frame, names: frame.join(names.groupBy("g").count().withColumnRenamed("count", "n"), "g", "left")
    .withColumn("v", F.coalesce("n", "v")).drop("n"),
    "union": lambda frame, _: frame.unionByName(frame.where("v > 1")),
    "order": lambda frame, _: frame.orderBy("s").repartition(2),
    "python": lambda frame, _: frame.withColumn("v", _more("v")),
}  # fmt: skip


def test_random_pipelines_of_what_is_taken_end_in_runs_as_at_once(frames: Frames, seed: int) -> None:
    random = Random(seed)
    for _ in range(3):
        chosen = random.choices(sorted(STEPS), k=random.randrange(2, 6))

        def made(new: DataFrame, names: DataFrame, chosen: list[str] = chosen) -> DataFrame:
            return reduce(lambda frame, name: STEPS[name](frame, names), chosen, new).select("id", "g", "v", "s")

        one = planned(made)
        assert in_runs(frames, one) == at_once(frames, one), chosen


# -- what is refused ---------------------------------------------------------------------------------------------


class _Sum:
    """A table function that says at its end what it has seen."""

    def __init__(self) -> None:
        self.sum = 0

    def eval(self, value: int) -> Iterator[tuple[int]]:
        self.sum += value
        yield from ()

    def terminate(self) -> Iterator[tuple[int]]:
        yield (self.sum,)


def _table_function(new: DataFrame, _: DataFrame) -> DataFrame:
    new.sparkSession.udtf.register("single_sum", F.udtf(_Sum, returnType="n: long"))  # type: ignore[arg-type]
    return _sql("SELECT n FROM NEW, LATERAL single_sum(id)")(new, new)


def _ranked(new: DataFrame, _: DataFrame) -> DataFrame:
    return new.withColumn("r", F.row_number().over(Window.partitionBy("g").orderBy("id", "v", "s")))


DIFFERS: dict[str, tuple[Made, str, str]] = {
    "sums": (lambda new, _: new.groupBy("g").agg(F.sum("id")), "groupBy", "windowed"),
    "a sum of all": (lambda new, _: new.agg(F.sum("id")), "groupBy", "windowed"),
    "pivot": (lambda new, _: new.groupBy("g").pivot("s", ["0 x", "1 x"]).count(), "groupBy", "windowed"),
    "rollup": (lambda new, _: new.rollup("g").count(), "groupBy", "snapshot"),
    "distinct": (lambda new, _: new.select("g").distinct(), "distinct", "keyed"),
    "dropDuplicates": (lambda new, _: new.dropDuplicates(["g"]).select("g"), "dropDuplicates", "keyed"),
    "limit": (lambda new, _: new.orderBy("id").limit(3).select("id"), "limit", "snapshot"),
    "offset": (lambda new, _: new.orderBy("id", "v").offset(4).select("id"), "offset", "snapshot"),
    "window functions": (_ranked, "window function", "keyed"),
    "two topics": (lambda new, _: new.join(new.select("g"), "g"), "new rows with new rows", "whole"),
    "itself, semi": (lambda new, _: new.join(new.where("v = 1"), "g", "left_semi"), "new rows with", "snapshot"),
    "full join": (lambda new, names: new.join(names, "g", "full"), "FullOuter", "snapshot"),
    "right join": (lambda new, names: new.join(names, "g", "right"), "RightOuter", "snapshot"),
    "names that have rows": (lambda new, names: names.join(new, "g", "left_semi"), "LeftSemi", "snapshot"),
    "names that have none": (lambda new, names: names.join(new, "g", "left_anti"), "LeftAnti", "snapshot"),
    "union with all": (lambda new, names: new.select("g").union(names.select("g")), "union", "snapshot"),
    "intersect": (lambda new, _: new.select("g").intersect(new.select("g")), "intersect", "snapshot"),
    "except": (lambda new, _: new.select("id").subtract(new.select("v")), "except", "snapshot"),
    "only all": (lambda _, names: names, "no new rows", "snapshot"),
    "scalar subquery": (_sql("SELECT *, (SELECT max(id) FROM NEW) AS m FROM NEW"), "groupBy", "snapshot"),
    "IN subquery": (_sql("SELECT id FROM NEW WHERE id NOT IN (SELECT id FROM NEW WHERE v = 1)"), "subquery", "shot"),
    "EXISTS": (
        _sql("SELECT n.id FROM NEW n WHERE EXISTS (SELECT 1 FROM NEW o WHERE o.id = n.id AND o.v <> n.v)"),
        "subquery", "snapshot",
    ),
    "a common expression": (
        _sql("WITH a AS (SELECT g, count(*) AS c FROM NEW GROUP BY g) SELECT * FROM NEW JOIN a USING (g)"),
        "groupBy", "windowed",
    ),
    "applyInPandas": (
        lambda new, _: new.groupBy("g").applyInPandas(lambda rows: rows[["id"]].max().to_frame().T, "id long"),
        "applyInPandas", "snapshot",
    ),
    "mapInArrow": (
        lambda new, _: new.coalesce(1).mapInArrow(
            lambda batches: iter([pa.record_batch({"n": [sum(one.num_rows for one in batches)]})]), "n long"
        ),
        "mapInArrow", "arrow_udf",
    ),
    "mapInPandas": (
        lambda new, _: new.select("id").coalesce(1).mapInPandas(lambda some: (one.head(1) for one in some), "id long"),
        "mapInPandas", "pandas_udf",
    ),
    "a table function in Python": (_table_function, "table function in Python", "snapshot"),
    "checkpoint": (lambda new, _: new.groupBy("g").count().localCheckpoint(), "checkpoint", "VALUES"),
    "a number of the run": (lambda new, _: new.coalesce(1).withColumn("n", F.monotonically_increasing_id()),
                            "monotonically_increasing_id", "column of the record"),
    "ids": (lambda new, _: new.withColumn("n", F.expr("uuid()")), "uuid", "column of the record"),
    "the clock": (lambda new, _: new.withColumn("n", F.current_timestamp()), "the time", "time of the record"),
    "the clock, by a word": (lambda new, _: new.withColumn("n", F.lit("now").cast("timestamp")), "the time", "record"),
    "the same of a function": (lambda new, _: new.withColumn("n", F.expr("to_timestamp('now')")), "the time", "record"),
    "random": (lambda new, _: new.withColumn("n", F.rand()), "rand", "column of the record"),
    "encryption": (
        lambda new, _: new.withColumn("s", F.expr("nvl(aes_encrypt(s, repeat('k', 16)), 'x')")),
        "aes_encrypt", "iv",
    ),
    "random, of a whole input": (lambda new, names: new.join(names.withColumn("n", F.rand()), "g"), "rand", "column"),
}  # fmt: skip
MAY_DIFFER: dict[str, tuple[Made, str, str]] = {
    "sample": (lambda new, _: new.sample(0.5, seed=1), "sample", "where"),
    "sample, of a whole input": (lambda new, names: new.crossJoin(names.sample(0.5)), "sample", "where"),
    "tasks": (lambda new, _: new.withColumn("n", F.spark_partition_id()), "spark_partition_id", "column of the record"),
    "files": (lambda new, _: new.withColumn("n", F.input_file_name()), "input_file_name", "column of the record"),
    "the day": (lambda new, _: new.withColumn("n", F.current_date()), "the time", "time of the record"),
    "the day, by a word": (
        _sql("SELECT * FROM NEW WHERE g IN (SELECT g FROM NAMES WHERE date'2020-01-01' < 'yesterday')"),
        "the time",
        "time of the record",
    ),
    "the user": (lambda new, _: new.withColumn("n", F.current_user()), "user", "record"),
    "split at random": (lambda new, _: new.randomSplit([0.5, 0.5], seed=1)[0], "sample", "where"),
}


@pytest.mark.parametrize("what", [*DIFFERS, *MAY_DIFFER])
def test_what_looks_at_several_rows_is_refused_with_what_to_take_instead(frames: Frames, what: str) -> None:
    made, words, instead = {**DIFFERS, **MAY_DIFFER}[what]
    for kind in (append(), keyed("id", order_by="id"), windowed("at", "1h", values={"n": count()})):
        with pytest.raises(Invalid, match="depend on which rows come in the same run") as refused:
            frame_of(planned(made, kind), [frames.new, frames.whole])
        assert words in refused.value.message
        assert kind.name in refused.value.message
        assert instead in refused.value.hint
        assert "per_run=True" in refused.value.hint


@pytest.mark.parametrize("what", DIFFERS)
def test_what_is_refused_would_end_otherwise_in_runs_than_at_once(frames: Frames, what: str) -> None:
    """So nothing is refused for nothing. With per_run=True the author gets it."""
    one = planned(DIFFERS[what][0], per_run=True)
    assert in_runs(frames, one) != at_once(frames, one)


def test_names_of_files_are_refused_because_compaction_changes_them(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files"))
    found = spark.read.parquet(str(tmp_path / "files"))
    one = ordered([table(inputs="new", name="made")(lambda new: new.select("id", "_metadata.file_name"))])[0]
    with pytest.raises(Invalid, match="_metadata"):
        frame_of(one, [found])


def test_rows_of_an_rdd_are_refused_where_they_are_more_than_constants(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files"))
    found = spark.read.parquet(str(tmp_path / "files"))
    one = ordered([table(inputs="new", name="made")(lambda new: spark.createDataFrame(new.rdd, "id long"))])[0]
    with pytest.raises(Invalid, match="RDD") as refused:
        frame_of(one, [found])
    assert "createDataFrame" in refused.value.hint


def test_texts_that_a_collation_takes_for_equal_are_different_texts(frames: Frames) -> None:
    """Files know no collation: windows of new rows and of stored ones must be kept apart alike."""

    def made(new: DataFrame, _: DataFrame) -> DataFrame:
        some = new.select(F.explode(F.array(F.lit("a"), F.lit("A"))).alias("s"))
        some = some.select(F.collate("s", "UTF8_LCASE").alias("s"))
        return some.withColumn("in", F.struct("s"))

    by_name = windowed("at", "1h", by="s", values={"n": count()})
    found = frame_of(planned(made, by_name), [frames.new, frames.whole])
    counted = found.groupBy("s", "in").count().collect()
    assert sorted((row["s"], row["in"]["s"], row["count"]) for row in counted) == [("A", "A", 24), ("a", "a", 24)]


# -- in a pipeline -----------------------------------------------------------------------------------------------

ORDERS = {"orders": [{"id": 1, "cents": 5}, {"id": 2, "cents": 6}]}
MORE = {"orders": [{"id": 1, "cents": 7}]}


def test_a_table_that_would_differ_from_a_recomputation_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    @table(inputs="orders")
    def totals(orders: DataFrame) -> DataFrame:
        return orders.groupBy("id").agg(F.sum("cents").alias("cents"))

    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders", schema=pa.schema([("id", pa.int64()), ("cents", pa.int64())])).append(ORDERS["orders"])
        log.seal()
    pipeline = Pipeline("shop", root=tmp_path / "log", tables=tmp_path / "tables", of=[totals], reports=False)
    (report,) = pipeline.run(spark).tables
    assert report.outcome == "failed"
    assert "groupBy and aggregates" in report.error
    with pytest.raises(holdfast.NotFound):
        read_table(spark, pipeline.place_of("totals"))


def test_with_per_run_a_table_has_what_each_run_made_of_its_own_rows(spark: SparkSession) -> None:
    @table(inputs="orders", per_run=True)
    def totals(orders: DataFrame) -> DataFrame:
        return orders.agg(F.sum("cents").alias("cents"))

    found = run_table(totals, ORDERS, then=MORE, spark=spark)
    assert sorted(row["cents"] for row in found) == [7, 11]


def test_a_snapshot_is_always_made_of_all_rows(spark: SparkSession) -> None:
    @table(inputs="orders", kind=snapshot())
    def totals(orders: DataFrame) -> DataFrame:
        return orders.agg(F.sum("cents").alias("cents"))

    assert [row["cents"] for row in run_table(totals, ORDERS, then=MORE, spark=spark)] == [18]
    with pytest.raises(Invalid, match="a snapshot is always computed from all rows"):
        table(inputs="orders", kind=snapshot(), per_run=True, name="all")(lambda orders: orders)
