"""The whole Spark face against plain Parquet: the same program, the same answers, always.

Programs are random (`programs`): several questions to the same frames, opened in every way there is, under all settings
that could matter. The copy is written from what was appended, not from what was read. A program that fails is printed
with its number; `HOLDFAST_SEED=<number>` runs it first.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

import holdfast
import pyspark_holdfast
from holdfast.segments.file import segment_writer
from holdfast.store import layout
from holdfast.store.address import parse_url
from pyspark_holdfast.parquet_scan import plain_relation, rows_of
from pyspark_holdfast.pipeline import append, read_table
from tests import poison
from tests.sampling import Some
from tests.spark import logs
from tests.spark.programs import COLUMNS, PARTITIONS, PUSHING, ROWS, SECOND, Program, Source, program
from tests.spark.written_tables import WrittenTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
SEALS = 3

OLD = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.string()),
        ("value", pa.float64()),
        ("time", pa.int64()),
        ("headers", pa.list_(pa.string())),
        ("kind", pa.struct([("x", pa.int16()), ("y", pa.string())])),
        ("payload", pa.decimal128(12, 2)),
        ("start", pa.date32()),
    ]
)
NEW = pa.schema([*OLD, ("late", pa.int32())])
RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("kind", pa.string()),
    ]
)
TYPED = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_time", pa.timestamp("us", "UTC")),
        *NEW,
    ]
)


class World(NamedTuple):
    """One log, and plain copies of its topics."""

    root: Path
    copies: Path


def at(microseconds: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=microseconds)


def raw_row(partition: int, n: int) -> dict[str, Any]:
    record = logs.record(n, partition)
    headers = record.headers
    return {
        "topic": "orders",
        "partition": partition,
        "offset": n,
        "timestamp": at(logs.START_US + n * SECOND + partition),
        "key": record.key,
        "value": record.payload,
        "kind": record.kind,
        "headers": None if headers is None else [{"key": name, "value": value} for name, value in headers.items()],
    }


def typed_row(partition: int, n: int, *, is_late: bool) -> dict[str, Any]:
    """What the user appended: nothing in it is what the log says of it."""
    row = {
        "offset": (1000 + n, None, -n)[n % 3],
        "timestamp": None if n % 5 == 0 else at(logs.START_US + (n - 40) * SECOND),
        "topic": (f"x{n % 4}", None, "orders")[n % 3],
        "partition": (7, n, None)[n % 3],
        "key": ("", "x1", "größer", None)[n % 4],
        "value": (n / 2, float("nan"), None, -1.0)[n % 4],
        "time": (n, 1000 + n)[n % 2],
        "headers": (None, [], ["x", None], ["y", "x"])[n % 4],
        "kind": (None, {"x": n, "y": f"g{partition}"}, {"x": None, "y": None})[n % 3],
        "payload": None if n % 7 == 0 else Decimal(n) + Decimal("0.25"),
        "start": datetime.date(2026, 1, 1) + datetime.timedelta(days=n),
    }
    return {**row, "late": (n, None)[n % 2]} if is_late else row


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = tmp_path_factory.mktemp("differential")
    made = World(directory / "log", directory / "copies")
    made.copies.mkdir()
    each = ROWS // SEALS
    copied: list[dict[str, Any]] = []
    with holdfast.open(made.root) as log:
        logs.fill(log, partitions=PARTITIONS, seals=SEALS, rows=each)
        for n in range(ROWS):
            is_late = n >= ROWS - each
            topic = log.topic("typed", schema=NEW if is_late else OLD, partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                row, moment = typed_row(partition, n, is_late=is_late), logs.START_US + n * SECOND + partition
                topic.append([row], partition=partition, time=moment)
                copied.append({"_topic": "typed", "_partition": partition, "_offset": n, "_time": at(moment), **row})
            if n % each == each - 1:
                log.seal("typed")
    raw = [raw_row(partition, n) for partition in range(PARTITIONS) for n in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(raw, RAW), made.copies / "orders.parquet")
    pq.write_table(pa.Table.from_pylist(copied, TYPED), made.copies / "typed.parquet")
    return made


@pytest.fixture
def tables(spark: SparkSession, world: World) -> Iterator[None]:
    for topic in COLUMNS:
        spark.sql(f"CREATE TABLE table_{topic} USING holdfast OPTIONS (root '{world.root}', topic '{topic}')")
    yield
    for topic in COLUMNS:
        spark.sql(f"DROP TABLE table_{topic}")


# -- both sides -------------------------------------------------------------------------------------------


def ours(spark: SparkSession, world: World, source: Source, number: int) -> DataFrame:
    """A source, opened its way."""
    names = ",".join(source.columns)
    options = {"topic": source.topic, **logs.belonging(world.root, source.options)}
    if source.way == "table":
        return spark.table(f"table_{source.topic}")
    if source.way in ("native", "verified"):
        verify = {"verify": "hash"} if source.way == "verified" else {}
        fast = pyspark_holdfast.read(spark, world.root, columns=source.columns, **options, **verify)
        assert pyspark_holdfast.path_of(fast).path == ("native" if source.way == "native" else "format")
        return fast
    if source.way == "view":
        given = ", ".join(f"{name} '{value}'" for name, value in {**options, "columns": names}.items())
        view = f"CREATE OR REPLACE TEMPORARY VIEW ours_{number} USING holdfast"
        spark.sql(f"{view} OPTIONS (path '{world.root}', {given})")
        return spark.table(f"ours_{number}")
    reading = spark.read.format("holdfast").options(**options)
    if source.way == "schema":
        chosen = plain(spark, world, source._replace(keep="true")).schema.toDDL()
        return reading.schema(chosen).load(str(world.root))
    return reading.option("columns", names).load(str(world.root))


def plain(spark: SparkSession, world: World, source: Source) -> DataFrame:
    """The same of the copy."""
    copy = spark.read.parquet(str(world.copies / f"{source.topic}.parquet"))
    return copy.where(source.keep).select(*(f"`{name}`" for name in source.columns))


def answers(spark: SparkSession, asked: Program, frames: list[DataFrame], name: str) -> list[Any]:
    for number, frame in enumerate(frames):
        frame.createOrReplaceTempView(f"{name}_{number}")
    places = [
        f"table_{source.topic}" if name == "ours" and source.way == "table" else f"{name}_{number}"
        for number, source in enumerate(asked.sources)
    ]
    found = []
    for question in asked.questions:
        found.append(rows(spark.sql(question.format(*places))))
        if asked.is_cached and len(found) == 1:
            frames[0].cache()
    found += [rows(frame) for frame in frames]
    if asked.is_cached:
        frames[0].unpersist()
    return found


def rows(frame: DataFrame) -> tuple[list[str], list[str]]:
    """Types and rows, in no order; NaN is equal to itself here."""
    types = [field.dataType.simpleString() for field in frame.schema]
    return types, sorted(map(repr, frame.toArrow().to_pylist()))


@contextmanager
def under(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


RULE = "spark.holdfast.native"


def check(spark: SparkSession, world: World, seed: int, settings: Mapping[str, str] | None = None) -> int:
    """Run a program on both sides; how many questions were asked."""
    asked = program(seed)
    with under(spark, {**asked.settings, **(settings or {})}):
        expected = answers(spark, asked, [plain(spark, world, source) for source in asked.sources], "plain")
        frames = [ours(spark, world, source, number) for number, source in enumerate(asked.sources)]
        found = answers(spark, asked, frames, "ours")
    for one, other, question in zip(found, expected, [*asked.questions, *("all of it" for _ in frames)], strict=True):
        assert one == other, f"HOLDFAST_SEED={seed}\n{question}\n{asked}"
    return len(found)


# -- promises ---------------------------------------------------------------------------------------------


def first_seed(seed: int) -> int:
    return int(os.environ.get("HOLDFAST_SEED") or seed)


PROGRAMS = 8


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["offset", "timestamp", "partition"])
def test_a_column_under_a_name_of_the_logs_is_the_users(spark: SparkSession, world: World, name: str) -> None:
    """By itself, which needs no file where it is the log's, and in a condition."""
    source = Source("typed", "format", {}, "true", (name,))
    with under(spark, {PUSHING: "true"}):
        frame, copy = ours(spark, world, source, 0), plain(spark, world, source)
        known = copy.where(f"`{name}` IS NOT NULL").first()
        assert known is not None
        for condition in (f.lit(True), f.col(name) == f.lit(known[0]), f.col(name) >= f.lit(known[0])):
            assert rows(frame.where(condition)) == rows(copy.where(condition))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tables")
def test_random_programs_give_what_they_give_on_a_plain_copy(
    spark: SparkSession, world: World, seed: int, is_sampled: bool
) -> None:
    """Read by Spark itself where it can, and through Python."""
    first, programs = first_seed(seed), PROGRAMS // 8 if is_sampled else PROGRAMS
    print(f"HOLDFAST_SEED={first}")
    asked = sum(
        check(spark, world, first + number, {RULE: rule}) for number in range(programs) for rule in ("true", "false")
    )
    assert asked >= 6 * programs


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("tables")
def test_thousands_of_random_programs_give_what_they_give_on_a_plain_copy(
    spark: SparkSession, world: World, seed: int
) -> None:
    first = first_seed(seed)
    print(f"HOLDFAST_SEED={first}")
    asked = sum(check(spark, world, first + number) for number in range(2000))
    print(f"{asked} answers, all equal")


# -- values by which readers skip rows ----------------------------------------------------------------------------

NAN = float("nan")
OURS = ("_topic", "_partition", "_offset", "_time")
ALWAYS = [
    poison.Condition("x", ">", (poison.INFINITE,)), poison.Condition("f", "=", (NAN,)),
    poison.Condition("x", "IN", (NAN, 9.0)), poison.Condition("x", "<=>", (NAN,)),
    poison.Condition("x", "<=", (poison.INFINITE,), is_negated=True), poison.Condition("s.y", ">", (1.8e307,)),
    poison.Condition("x", "=", (-0.0,)), poison.Condition("ms", "<", (poison.moment("2024-03-10 02:30:00.001500"),)),
    poison.Condition("day", ">", (datetime.date(1582, 10, 10),)),
    poison.Condition("at", "=", (poison.moment("1582-10-10 00:00:00"),)),
]  # fmt: skip
"""Those that have lost rows before."""


@pytest.fixture(scope="module")
def poisoned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Views of the same rows, in few rows per file, on every path that leads to Spark."""
    directory = tmp_path_factory.mktemp("poisoned")
    roots = {name: directory / name for name in ("log", "compacted")}
    for root in roots.values():
        with holdfast.open(directory / "writer" / root.name, store=root.as_uri()) as log:
            topic = log.topic("t", schema=poison.SCHEMA)
            for first in range(0, poison.COUNT, 4):
                topic.append(poison.TABLE.slice(first, 4))
                log.seal("t")
            log.ship(30)
    holdfast.compact(str(roots["compacted"]))
    reading = spark.read.format("holdfast").option("topic", "t")
    accelerated = reading.load(str(roots["log"]))
    spread = accelerated.drop(*OURS).repartition(8)
    spread.write.format("holdfast").mode("append").option("topic", "t").save(str(directory / "sink"))
    table = WrittenTable(directory / "tables", append())
    table.write(spread)
    files = (roots["log"] / layout.table_folder("t")).glob("*/segments/*.parquet")
    views = {
        "accelerated": accelerated,
        "read": pyspark_holdfast.read(spark, roots["log"], "t"),
        "files": spark.read.parquet(*map(str, files)),
        "compacted": reading.load(str(roots["compacted"])),
        "sunk": reading.load(str(directory / "sink")),
        "kept": read_table(spark, directory / "tables" / "t"),
        "python": reading.option("native", "false").load(str(roots["log"])),
    }
    for name in ("accelerated", "read", "compacted", "sunk"):
        taken = pyspark_holdfast.path_of(views[name])
        assert taken.path == "native", (name, taken.reason)
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"poisoned_{name}")
    spark.sql(f"CREATE TABLE poisoned_table USING holdfast OPTIONS (root '{roots['log']}', topic 't')")
    yield [*(f"poisoned_{name}" for name in views), "poisoned_table"]
    spark.sql("DROP TABLE poisoned_table")


@pytest.mark.timeout(3600)
def test_no_bound_excludes_a_row_that_a_plain_list_would_give(
    spark: SparkSession, poisoned: list[str], some: Some[Any], seed: int
) -> None:
    """NaN, zeros, infinities, times before calendars changed, long texts: any condition, on every path."""
    rows = poison.TABLE.to_pylist()
    for view in some(poisoned, 4):
        asked = [*ALWAYS, *some(poison.conditions(seed), 6, full=150)]
        if view == "poisoned_files":  # Spark alone looks for these ten days at other days
            asked = [one for one in asked if not poison.is_in_gap(one)]
        for first in range(0, len(asked), 40):
            check_conditions(spark, view, asked[first : first + 40], rows)


def test_a_session_that_filters_row_by_row_loses_none(spark: SparkSession, poisoned: list[str]) -> None:
    """Parquet's own filter of rows, which a session may switch on, takes -0.0 for another number than 0.0."""
    row_by_row = {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
    }
    with under(spark, row_by_row):
        for view in ("poisoned_accelerated", "poisoned_kept"):
            check_conditions(spark, view, ALWAYS, poison.TABLE.to_pylist())


def test_a_driver_whose_zone_has_left_out_a_day_loses_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """Samoa had no 2011-12-30, and Spark hands conditions with it over as if they had the next day."""
    days = [datetime.date(2011, 12, 29) + datetime.timedelta(days=n) for n in range(4)]
    with holdfast.open(tmp_path) as log:
        for day in days:
            log.topic("t", schema=pa.schema([("day", pa.date32())])).append([{"day": day}])
            log.seal("t")
    found = spark.read.format("holdfast").option("topic", "t").load(str(tmp_path))
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone("Pacific/Apia"))
    try:
        for asked in ("day > date'2011-12-30'", "day >= date'2011-12-30'", "day IN (date'2011-12-30')"):
            expected = spark.createDataFrame(pa.table({"day": days})).where(asked)
            assert found.where(asked).count() == expected.count() > 0, asked
    finally:
        zones.setDefault(before)


@pytest.mark.parametrize("formats", ["parquet", "orc", ""])
def test_columns_of_any_name_are_filtered_whatever_the_session_pushes_down(
    spark: SparkSession, tmp_path: Path, formats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing nested is pushed down, Spark hands names over without quotes."""
    monkeypatch.setattr(segment_writer, "bounded_columns", lambda _: True)
    names = ["w-x", "größe 2", "back`tick", "a.b", "X"]
    with holdfast.open(tmp_path) as log:
        topic = log.topic("t", schema=pa.schema([(name, pa.float64()) for name in names]))
        topic.append([dict.fromkeys(names, 1.0), dict.fromkeys(names, NAN)])
        log.seal()
    found = spark.read.format("holdfast").option("topic", "t").load(str(tmp_path))
    with under(spark, {"spark.sql.optimizer.nestedPredicatePushdown.supportedFileSources": formats}):
        for name in names:
            assert found.where(f"`{name.replace('`', '``')}` > 9.5").count() == 1, name


def test_bounds_of_other_writers_exclude_no_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow leaves NaN out of the bounds that it writes by itself; Spark, left alone, skips rows by them."""
    monkeypatch.setattr(segment_writer, "bounded_columns", lambda _: True)
    root = tmp_path / "log"
    with holdfast.open(tmp_path / "writer", store=root.as_uri()) as log:
        topic = log.topic("t", schema=poison.SCHEMA)
        for first in range(0, poison.COUNT, 4):
            topic.append(poison.TABLE.slice(first, 4))
            log.seal("t")
        log.ship(30)
    pq.write_table(poison.TABLE, tmp_path / "file", row_group_size=4, write_page_index=True)
    accelerated = spark.read.format("holdfast").option("topic", "t").load(str(root))
    columns = accelerated.drop(*OURS).schema
    size = {"file": (tmp_path / "file").stat().st_size}
    views = {
        "accelerated": accelerated,
        "read": pyspark_holdfast.read(spark, root, "t"),
        "file": rows_of(spark, plain_relation(spark, parse_url(tmp_path.as_uri()), size, columns)),
    }
    asked = [condition for condition in ALWAYS if condition.path != "ms"]
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"bounded_{name}")
        check_conditions(spark, f"bounded_{name}", asked, poison.TABLE.to_pylist())
    assert spark.read.parquet(str(tmp_path / "file")).where("x > double('Infinity')").count() == 0
    assert scanned(views["read"].where("_offset = 5")) == 4  # other conditions skip as ever


def scanned(frame: DataFrame) -> int:
    """How many rows Spark takes from files for this frame."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    return sum(int(leaves.apply(at).metrics().apply("numOutputRows").value()) for at in range(leaves.size()))


def check_conditions(spark: SparkSession, view: str, asked: list[poison.Condition], rows: list[dict[str, Any]]) -> None:
    """All of them in one query, each with a scan of its own."""
    each = [condition.sql(poison.spark_literal) for condition in asked]
    queries = (f"SELECT {number} AS number, id FROM {view} WHERE {one}" for number, one in enumerate(each))
    found: dict[int, list[int]] = {number: [] for number in range(len(asked))}
    for row in spark.sql(" UNION ALL ".join(queries)).toArrow().to_pylist():
        found[row["number"]].append(row["id"])
    for number, condition in enumerate(asked):
        assert sorted(found[number]) == condition.ids(rows), (view, each[number])
