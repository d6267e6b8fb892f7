"""Frames become tables: what delta-rs reads is what a plain Python model says, in any increments, on disk and on S3."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from holdfast import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.store import repeated_create
from holdfast.store.store_settings import StoreSettings
from pyspark_holdfast.pipeline import bucket_tasks, table_writing
from pyspark_holdfast.pipeline.bucket_tasks import BucketContents, MergeTask, TaskOutput, day_name, unpacked
from pyspark_holdfast.pipeline.table_columns import BUCKET, DELETED, configuration_of, latest_rule, stored_columns
from pyspark_holdfast.pipeline.table_definition import append, count, keyed, max_of, mean_of, min_of, sum_of, windowed
from pyspark_holdfast.pipeline.table_writing import bucket_days
from tests.spark.written_tables import WrittenTable, in_order
from tests.store.servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.store.servers import BUCKET as S3_BUCKET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "tenant string, id int, at long, name string, gone boolean"
LATEST = keyed(["tenant", "id"], order_by="at", delete="gone", buckets=5)
HOURLY = windowed(
    "ts",
    "1h",
    by="user",
    values={"n": count(), "total": sum_of("x"), "low": min_of("x"), "last": max_of("ts"), "mean": mean_of("x")},
)
EVENTS = "ts timestamp, user string, x int"

Row = tuple[Any, ...]


# -- rows as they come --------------------------------------------------------------------------------------


def test_all_types_arrive_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the session shows times in another zone, and gives texts to Arrow in another way."""
    frame = spark.sql(
        """select true as flag, 1Y as tiny, 2S as small, 3 as middle, 4L as large, float(1.5) as single,
        double('NaN') as number, 1.25BD as price, 'text' as text, X'00FF' as bytes, date'1969-12-31' as day,
        timestamp'2024-05-01 12:00:00.000001 UTC' as at, timestamp_ntz'2024-05-01 12:00:00' as wall,
        array(1, null) as list, map('k', array(2)) as pairs, named_struct('a', 1, 'b', named_struct('c', 'd')) as deep
        union all select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
        """
    )
    table = WrittenTable(tmp_path, append())
    large = "spark.sql.execution.arrow.useLargeVarTypes"
    with setting(spark, "spark.sql.session.timeZone", "Asia/Tokyo"), setting(spark, large, "true"):
        written = table.write(frame)

    assert (written.rows_in, written.rows_out, written.removed) == (2, 2, ())
    filled = next(row for row in table.rows() if row["flag"])
    assert math.isnan(filled.pop("number"))
    assert filled == {
        "flag": True,
        "tiny": 1,
        "small": 2,
        "middle": 3,
        "large": 4,
        "single": 1.5,
        "price": Decimal("1.25"),
        "text": "text",
        "bytes": b"\x00\xff",
        "day": dt.date(1969, 12, 31),
        "at": dt.datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=dt.UTC),
        "wall": dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None),
        "list": [1, None],
        "pairs": [("k", [2])],
        "deep": {"a": 1, "b": {"c": "d"}},
    }
    assert all(value is None for value in next(row for row in table.rows() if not row["flag"]).values())
    files = [str(tmp_path / "t" / file.path) for file in written.added]
    assert_frames_equal(spark.read.parquet(*files), frame)


def test_an_empty_frame_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = WrittenTable(tmp_path, append())
    table.write(spark.range(3))

    written = table.compute(spark.range(0))

    assert (written.added, written.rows_in, written.rows_out) == ((), 0, 0)


# -- the latest row -----------------------------------------------------------------------------------------


def changes(rng: random.Random, rows: int) -> list[Row]:
    """Rows with an order of their own each, in no order."""
    found = [
        (rng.choice(["a", "b", None]), rng.randrange(6), at, f"name {at}", rng.choice([True, False, False, None]))
        for at in range(rows)
    ]
    rng.shuffle(found)
    return found


def latest(rows: list[Row]) -> list[dict[str, Any]]:
    """The same in plain Python."""
    found = {(tenant, number): (at, name, gone) for tenant, number, at, name, gone in sorted(rows, key=lambda r: r[2])}
    return in_order(
        {"tenant": tenant, "id": number, "at": at, "name": name}
        for (tenant, number), (at, name, gone) in found.items()
        if not gone
    )


def test_any_increments_end_in_the_latest_rows(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """With late rows, deleted keys that stay deleted, and keys that are null; another number of buckets in between."""
    rng = random.Random(seed)
    rows = changes(rng, 60)
    table = WrittenTable(tmp_path, LATEST)
    cuts = sorted(rng.sample(range(61), 3))
    for buckets, (begin, end) in zip((5, 5, 12, 2), zip([0, *cuts], [*cuts, 60], strict=True), strict=True):
        table.kind = keyed(["tenant", "id"], order_by="at", delete="gone", buckets=buckets)
        written = table.write(spark.createDataFrame(rows[begin:end], COLUMNS))
        assert written.rows_in == end - begin
        assert table.rows() == latest(rows[:end])
        names = {file.bucket for file in table.log.snapshot().files}
        assert names <= {str(number) for number in range(buckets)}

    again = table.write(spark.createDataFrame(rows, COLUMNS))

    assert table.rows() == latest(rows)
    assert again.tombstones.keys() <= {"0", "1"}


def test_files_without_changed_keys_stay(spark: SparkSession, tmp_path: Path) -> None:
    """New keys get a file of their own; a changed key costs the file that it is in; and small files are joined."""
    kind = keyed("id", order_by="at", buckets=1)
    table = WrittenTable(tmp_path, kind)
    row = lambda number, at: spark.createDataFrame([(number, at)], "id int, at int")  # noqa: E731
    first = table.write(row(1, 1))
    second = table.write(row(2, 1))
    assert (first.removed, second.removed) == ((), ())

    third = table.write(row(1, 2))
    assert [file.path for file in third.removed] == [file.path for file in first.added]

    for number in range(3, 12):
        table.write(row(number, 1))
    assert len(table.log.snapshot().files) <= 9
    assert [one["id"] for one in table.rows()] == sorted(range(1, 12), key=str)


def test_columns_that_are_added_are_null_in_rows_that_stay(spark: SparkSession, tmp_path: Path) -> None:
    table = WrittenTable(tmp_path, keyed("id", order_by="at", buckets=1))
    table.write(spark.createDataFrame([(1, 1), (2, 1)], "id int, at int"))

    table.write(spark.createDataFrame([(2, 2, "new")], "id int, at int, note string"))

    assert table.rows() == [{"id": 1, "at": 1, "note": None}, {"id": 2, "at": 2, "note": "new"}]


def test_deleted_keys_are_written_only_when_they_change(spark: SparkSession, tmp_path: Path) -> None:
    table = WrittenTable(tmp_path, keyed("id", order_by="at", delete="gone", buckets=1))
    row = lambda number, at, gone: spark.createDataFrame([(number, at, gone)], "id int, at int, gone boolean")  # noqa: E731
    first = table.write(row(1, 5, True)).tombstones
    assert table.write(row(2, 1, False)).tombstones == first
    assert table.write(row(1, 4, False)).tombstones.keys() == {"0"}
    assert [one["id"] for one in table.rows()] == [2]

    assert table.write(row(1, 6, False)).tombstones == {}
    assert [one["id"] for one in table.rows()] == [1, 2]


def test_rows_of_one_bucket_in_two_tasks_are_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Spark's optimizer comes to do: both tasks would write the stored rows."""
    monkeypatch.setattr(table_writing, "_by_bucket", lambda rows, _: rows)
    table = WrittenTable(tmp_path, keyed("id", order_by="id", buckets=1))

    with pytest.raises(HoldfastError, match="the rows of one bucket to two tasks"):
        table.write(spark.range(2))


# -- windows ------------------------------------------------------------------------------------------------


def events(rng: random.Random, rows: int) -> list[Row]:
    begin = dt.datetime(2024, 5, 1, 22, tzinfo=dt.UTC)
    minutes = [rng.randrange(5 * 60) for _ in range(rows)]
    return [
        (begin + dt.timedelta(minutes=at), rng.choice(["a", "b", None]), rng.choice([None, -3, 5, 7])) for at in minutes
    ]


def hours(rows: list[Row]) -> list[dict[str, Any]]:
    """The same in plain Python."""
    groups: dict[tuple[dt.datetime, str | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row[0].replace(minute=0), row[1]), []).append(row)
    found = []
    for (start, user), members in groups.items():
        xs = [x for _, _, x in members if x is not None]
        total = sum(xs) if xs else None
        found.append(
            {
                "window_start": start,
                "window_end": start + dt.timedelta(hours=1),
                "user": user,
                "n": len(members),
                "total": total,
                "low": min(xs, default=None),
                "last": max(at for at, _, _ in members),
                "mean": sum(xs) / len(xs) if xs else None,
                "mean_sum": total,
                "mean_count": len(xs),
            }
        )
    return in_utc(found)


def in_utc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_order(
        {key: value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value for key, value in row.items()}
        for row in rows
    )


def test_windows_are_corrected_by_rows_that_come_late(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Whatever the session's time zone is; rows without a time are in no window."""
    rng = random.Random(seed)
    rows = events(rng, 40)
    table = WrittenTable(tmp_path, HOURLY)
    for zone, (begin, end) in {"UTC": (0, 25), "Asia/Tokyo": (25, 40)}.items():
        with setting(spark, "spark.sql.session.timeZone", zone):
            frame = spark.createDataFrame([*rows[begin:end], (None, "a", 1)], EVENTS)
            assert table.write(frame).rows_in == end - begin
        assert in_utc(table.rows()) == hours(rows[:end])

    assert {file.bucket for file in table.log.snapshot().files} == {"2024-05-01", "2024-05-02"}


def test_windows_are_replaced_by_complete_ones(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """A backfill with the same rows changes nothing; with other rows, only windows of the range change, all of them."""
    rows = events(random.Random(seed), 40)
    table = WrittenTable(tmp_path, HOURLY)
    table.write(spark.createDataFrame(rows, EVENTS))
    everything = spark.createDataFrame(rows, EVENTS)

    table.write(everything, replacing=True)
    assert in_utc(table.rows()) == hours(rows)

    some = spark.createDataFrame(rows[:3], EVENTS)
    met = {row[0].replace(minute=0) for row in rows[:3]}
    # As if better code dropped all rows but those of one user: the windows of the range lose the others, entirely.
    table.write(everything.where("user = 'a'"), replacing=True, windows=some)
    left = [row for row in rows if row[0].replace(minute=0) not in met or row[1] == "a"]
    assert in_utc(table.rows()) == hours(left)


def test_times_without_a_zone_and_days_have_windows(spark: SparkSession, tmp_path: Path) -> None:
    kind = windowed("day", "7d", values={"n": count()})
    table = WrittenTable(tmp_path, kind)
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        table.write(spark.sql("select date'2024-05-01' as day union all select date'1969-12-31'"))
        table.write(spark.sql("select date'2024-05-01' as day"))

    starts = {row["window_start"].isoformat(): row["n"] for row in table.rows()}
    assert starts == {"2024-04-25T00:00:00": 2, "1969-12-25T00:00:00": 1}
    assert bucket_days(kind) == 224
    assert [day_name(0), day_name(-1), day_name(10**8)] == ["1970-01-01", "1969-12-31", "day100000000"]


def test_a_sum_that_does_not_fit_is_refused_and_nothing_is_visible(spark: SparkSession, tmp_path: Path) -> None:
    table = WrittenTable(tmp_path, windowed("ts", "1h", values={"total": sum_of("x")}))
    frame = spark.sql(f"select timestamp'2024-05-01 00:00:00 UTC' as ts, {2**63 - 1}L as x")
    table.write(frame)

    with pytest.raises(Invalid, match="a sum does not fit its column column=total") as refused:
        table.write(frame)

    assert "Traceback" not in str(refused.value)
    assert [row["total"] for row in table.rows()] == [2**63 - 1]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_sum_that_does_not_fit_within_one_run_is_refused_whatever_the_session_says(
    spark: SparkSession, tmp_path: Path, ansi: str
) -> None:
    """Whole numbers do not wrap around, and decimals do not become null; sums that fit are what they are."""
    large = f"select timestamp'2024-05-01 00:00:00 UTC' as ts, {2**63 - 1}L as x, {'9' * 38}BD as d, double('NaN') as n"
    values = {"total": sum_of("x"), "exact": sum_of("d"), "mean": mean_of("x"), "price": mean_of("d")}
    with setting(spark, "spark.sql.ansi.enabled", ansi):
        for name, value in values.items():
            table = WrittenTable(tmp_path, windowed("ts", "1h", values={name: value}), name=name)
            with pytest.raises(PySparkException, match="does not fit"):
                table.write(spark.sql(f"{large} union all {large}"))
            assert table.log.snapshot().version == -1
        table = WrittenTable(tmp_path, windowed("ts", "1h", values={**values, "nan": sum_of("n"), "n": count()}))
        table.write(
            spark.sql(
                f"{large} union all {large.replace('9223372036854775807L', 'cast(null as bigint)')}".replace(
                    "9" * 38 + "BD", "cast(null as decimal(38,0))"
                )
            )
        )
    (row,) = table.rows()
    assert (row["total"], row["exact"], row["mean_count"], row["n"]) == (2**63 - 1, None, 1, 2)
    assert math.isnan(row["nan"])


# -- definitions --------------------------------------------------------------------------------------------


def test_what_a_kind_cannot_do_is_refused_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("select 1 as id, 1.5D as x, array(1) as list, now() as ts, 'no' as gone, 1 as __bucket")
    plain = frame.drop("__bucket")
    refused: list[tuple[DataFrame, Any, str]] = [
        (plain, keyed("nope", order_by="id"), "no such column key=nope"),
        (plain, keyed("x", order_by="id"), "cannot be a key key=x"),
        (plain, keyed("id", order_by="list"), "has no order order_by=list"),
        (plain, keyed("id", order_by="x", delete="gone"), "must be a boolean delete=gone"),
        (plain, windowed("id", "1h", values={"n": count()}), "must be a timestamp time=id"),
        (plain, windowed("ts", "1h", by="x", values={"n": count()}), "cannot be a key by=x"),
        (plain, windowed("ts", "1h", values={"n": sum_of("nope")}), "no such column sum_of=nope"),
        (plain, windowed("ts", "1h", values={"n": max_of("list")}), "has no order max_of=list"),
        (plain, windowed("ts", "1h", by="id", values={"id": count()}), "would have one name column=id"),
        (plain, windowed("ts", "1h", values={"m": mean_of("x"), "m_sum": count()}), "one name column=m_sum"),
        (frame, append(), "needed for ourselves column=__bucket"),
    ]
    for given, kind, message in refused:
        with pytest.raises(Invalid, match=message):
            stored_columns(given, kind)
    assert not any(tmp_path.iterdir())


def test_another_rule_is_refused_for_rows_that_are_there(spark: SparkSession, tmp_path: Path) -> None:
    table = WrittenTable(tmp_path, keyed("id", order_by="at"))
    frame = spark.createDataFrame([(1, 1)], "id int, at int")
    table.write(frame)
    table.kind = keyed("id", order_by="id")

    with pytest.raises(Invalid, match="written with another order_by table=t order_by='id' stored='at'") as refused:
        table.write(frame)

    assert "new name" in refused.value.hint
    assert configuration_of(HOURLY)["holdfast.values"].startswith("n=count(),total=sum(x)")


# -- attempts, failures -------------------------------------------------------------------------------------


def test_tasks_that_run_twice_leave_garbage_and_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Only what the driver heard of is committed; the files of other attempts have other names, and go by cleaning."""
    table = WrittenTable(tmp_path, LATEST)
    table.write(spark.createDataFrame([("a", 1, 1, "old", False), ("b", 2, 1, "other", False)], COLUMNS))
    before, columns = table.log.snapshot(), table.columns
    (file, *_) = before.files
    task = MergeTask(
        TaskOutput(table.place, 2, "n0nce", columns),
        columns.append(pa.field(DELETED, pa.bool_())),
        {file.bucket: BucketContents((file,))},
        latest_rule(LATEST),
    )
    row = {"tenant": "z", "id": 9, "at": 5, "name": "twice", DELETED: False, BUCKET: int(file.bucket)}
    batch = pa.RecordBatch.from_pylist([row])
    attempts = [unpacked(one.column(0)[0].as_py() for one in task.run([batch])) for _ in range(2)]
    assert attempts[0][0].added[0].path != attempts[1][0].added[0].path

    table.write(spark.createDataFrame([("a", 1, 2, "new", False)], COLUMNS))
    expected = latest([("a", 1, 2, "new", False), ("b", 2, 1, "other", False)])
    assert table.rows() == expected
    cleaned = table.log.clean(keep_ms=0)

    left = {str(path.relative_to(tmp_path / "t")) for path in (tmp_path / "t" / "data").iterdir()}
    assert left == {file.path for file in table.log.snapshot().files}, cleaned
    assert table.rows() == expected


def test_a_task_that_fails_leaves_the_table_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    table = WrittenTable(tmp_path, append())
    table.write(spark.range(4))
    bad = spark.range(0, 4, 1, 4).selectExpr("if(id = 3, raise_error('bad row'), id) as id")

    with pytest.raises(Exception, match="bad row"):
        table.write(bad)

    assert [row["id"] for row in table.rows()] == [0, 1, 2, 3]
    assert table.log.snapshot().version == 0


@pytest.mark.parametrize(("harm", "kind"), [("flip", Corrupt), ("remove", NotFound)])
@pytest.mark.parametrize("folder", ["data", "_deleted"])
def test_a_damaged_file_is_reported_in_one_line(
    spark: SparkSession, tmp_path: Path, harm: str, kind: type[Exception], folder: str
) -> None:
    table = WrittenTable(tmp_path, keyed("id", order_by="at", delete="gone", buckets=1))
    frame = spark.createDataFrame([(1, 1, False), (2, 1, True)], "id int, at int, gone boolean")
    table.write(frame)
    (path,) = (tmp_path / "t" / folder).iterdir()
    content = bytearray(path.read_bytes())
    path.chmod(0o600)
    content[8:40] = b"\xff" * 32  # in the first page
    path.write_bytes(content) if harm == "flip" else path.unlink()

    with pytest.raises(kind) as caught:
        table.write(frame)

    assert path.name in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert table.log.snapshot().version == 0


def test_rows_too_large_for_memory_say_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def overflow(*_: object) -> Iterator[Any]:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        yield

    monkeypatch.setattr(bucket_tasks, "_pieces", overflow)
    table = WrittenTable(tmp_path, LATEST)
    task = MergeTask(
        TaskOutput(table.place, 1, "n", pa.schema([("id", pa.int8())])), pa.schema([]), {}, latest_rule(LATEST)
    )

    with pytest.raises(Exception, match=r"do not fit into memory(.|\n)*hint: give the table more buckets"):
        unpacked(one.column(0)[0].as_py() for one in task.run([]))


# -- S3 -----------------------------------------------------------------------------------------------------


def test_tables_on_s3(spark: SparkSession, tmp_path: Path, s3_server: S3Server, prefix: str, seed: int) -> None:
    """Executors find the store by what the place says, and the credentials by their reference alone."""
    secrets = tmp_path / "credentials"
    secrets.write_text(f"access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n")
    secrets.chmod(0o600)
    settings = StoreSettings(endpoint=s3_server.endpoint, region=REGION, credentials=f"file:{secrets}")
    table = WrittenTable(f"s3://{S3_BUCKET}/{prefix}", LATEST, settings)
    rows = changes(random.Random(seed), 30)
    for part in (rows[:20], rows[20:]):
        table.write(spark.createDataFrame(part, COLUMNS))

    options = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
    }
    assert table.rows(storage_options=options) == latest(rows)


def test_a_store_that_is_away_is_named_and_no_secret_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_create, "PAUSES_S", ())
    secrets = tmp_path / "credentials"
    secrets.write_text(f"access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n")
    secrets.chmod(0o600)
    settings = StoreSettings(endpoint="http://127.0.0.1:9", region=REGION, credentials=f"file:{secrets}", retries=0)
    task = bucket_tasks.RowsTask(
        TaskOutput(
            bucket_tasks.TablePlace("s3://nowhere/tables", settings, "t"), 1, "n", pa.schema([("id", pa.int64())])
        )
    )
    (result,) = task.run([pa.RecordBatch.from_pylist([{"id": 1}])])

    with pytest.raises(Exception, match=r"root=s3://nowhere/tables endpoint=http://127\.0\.0\.1:9") as caught:
        unpacked([result.column(0)[0].as_py()])

    assert SECRET_KEY not in str(caught.value)
    assert SECRET_KEY not in repr(task)


# -- large buckets ------------------------------------------------------------------------------------------


def test_a_bucket_passes_piece_by_piece(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of a merge sees more stored rows than a row group has, however many there are."""
    table = WrittenTable(tmp_path, keyed("id", order_by="at", buckets=1))
    rows = 600_000
    table.write(spark.range(rows).selectExpr("id", "0L as at"))
    (file,) = table.log.snapshot().files
    groups = pq.read_metadata(tmp_path / "t" / file.path).num_row_groups
    assert groups > 2
    seen = spy(monkeypatch)
    task = MergeTask(
        TaskOutput(table.place, 2, "n0nce", table.columns),
        table.columns.append(pa.field(DELETED, pa.bool_())),
        {"0": BucketContents((file,))},
        latest_rule(keyed("id", order_by="at")),
    )
    batch = pa.RecordBatch.from_pylist([{"id": 5, "at": 1, DELETED: False, BUCKET: 0}])
    (part,) = unpacked(one.column(0)[0].as_py() for one in task.run([batch]))

    assert sum(seen) == rows == sum(one.rows for one in part.added)
    assert max(seen) <= rows / (groups - 1)


def spy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each step passes."""
    seen: list[int] = []
    original: Callable[..., Any] = bucket_tasks.Merge.others

    def others(self: Any, rows: Any) -> Any:
        seen.append(len(rows))
        return original(self, rows)

    monkeypatch.setattr(bucket_tasks.Merge, "others", others)
    return seen


def assert_frames_equal(found: DataFrame, expected: DataFrame) -> None:
    """Spark's own reader sees the same; NaN, null and the order of maps included."""
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the session, for a while."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
