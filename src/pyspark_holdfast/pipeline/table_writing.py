"""How DataFrames become files of a table: in Spark's tasks, through Arrow. What comes back is what a commit will say.

Nothing is visible before that commit, and no file changes that a version of the table names. Only the results of
attempts that Spark counted come back, so a speculative or repeated task leaves garbage, never rows. What a run writes
is a function of its rows: a run that is repeated gives the same table.

Keyed tables are cut into buckets by a hash of the key, windowed ones by the day (UTC) of the window's start. Only
buckets that have new rows are read, and of those only files that hold a changed key are rewritten. The hash is Spark's
(`xxhash64`), so stored rows stay where they are as long as the number of buckets does; another number rewrites the
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampNTZType

from holdfast.errors import HoldfastError
from holdfast.tables.data_file import DataFile
from holdfast.tables.merging import DELETED, Combine, tombstone_schema
from pyspark_holdfast.pipeline.bucket_tasks import (
    RESULT,
    BucketContents,
    MergeTask,
    RowsTask,
    TaskOutput,
    TaskResult,
    unpacked,
)
from pyspark_holdfast.pipeline.stored_frames import stored_frame, tombstone_frame
from pyspark_holdfast.pipeline.table_columns import (
    BUCKET,
    ROWS,
    WINDOW_START,
    combine_rule,
    latest_rule,
    quoted,
    require_same_rule,
    stored_buckets,
    summed,
    windows_of,
)
from pyspark_holdfast.pipeline.table_definition import Keyed, Windowed
from pyspark_holdfast.pipeline.table_place import TablePlace
from pyspark_holdfast.versions.bucket_shuffle import by_number

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from holdfast.tables.table_log import TableSnapshot

__all__ = ["TablePlace", "WriteResult", "write_latest", "write_rows", "write_windows"]

_TASKS_PER_CORE = 2
"""Each Python task costs some 50 ms of processor time, whatever it does."""
_TASKS_MAX = 256
_DAY_MS = 86_400_000
_WINDOWS_LONG = 32
"""How many windows of a day or more share a bucket."""


class WriteResult(NamedTuple):
    """What a run wrote; belongs into one commit."""

    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    rows_in: int
    """Rows that the frame had."""
    rows_out: int
    """Rows that were added; of keyed and windowed tables, keys and windows that the rows were about."""
    tombstones: dict[str, str]
    """Of a keyed table, by bucket: the file with the deleted keys. All of them, also those of earlier runs."""


def write_rows(frame: DataFrame, place: TablePlace, run: int, nonce: str, schema: pa.Schema) -> WriteResult:
    """All rows of a frame as new files: append and snapshot."""
    task = RowsTask(TaskOutput(place, run, nonce, schema))
    return _written(_run(frame, task), ())


# -- keyed --------------------------------------------------------------------------------------------------


def write_latest(
    frame: DataFrame, place: TablePlace, kind: Keyed, before: TableSnapshot, run: int, nonce: str, schema: pa.Schema
) -> WriteResult:
    """The latest row of each key, of those that are there and those of a frame. `schema` is `stored_columns`, grown."""
    require_same_rule(before, kind, place.name)
    output = TaskOutput(place, run, nonce, schema)
    buried = before.run.tombstones if before.run is not None else {}
    if (not before.files and not buried) or stored_buckets(before) == kind.buckets:
        return _latest(_changes(frame, kind, schema), output, kind, before.files, buried)
    moved = _latest(_everything(frame, kind, output, before.files, buried), output, kind, (), {})
    written = _latest(_changes(frame, kind, schema), output, kind, moved.added, moved.tombstones)
    gone = {file.path for file in written.removed}
    kept = tuple(file for file in moved.added if file.path not in gone)
    return written._replace(added=(*kept, *written.added), removed=before.files)


def _latest(
    changes: DataFrame, output: TaskOutput, kind: Keyed, files: Sequence[DataFile], buried: Mapping[str, str]
) -> WriteResult:
    """Merge changes, which have the table's columns and `DELETED`, into these files."""
    bucket = f.pmod(f.xxhash64(*(f.col(quoted(name)) for name in kind.key)), f.lit(kind.buckets)).cast("int")
    incoming = output.columns.append(pa.field(DELETED, pa.bool_()))
    task = MergeTask(output, incoming, _stored(files, buried), latest_rule(kind))
    first_load = None if files else kind.buckets
    parts = _run(_by_bucket(changes.withColumn(BUCKET, bucket), first_load), task)
    still = dict(buried)
    for part in parts:
        still.pop(part.bucket, None)
        if part.tombstones is not None:
            still[part.bucket] = part.tombstones
    return _written(parts, files)._replace(tombstones=still)


def _changes(frame: DataFrame, kind: Keyed, schema: pa.Schema) -> DataFrame:
    deleted = f.lit(False) if kind.delete is None else f.col(quoted(kind.delete))
    return frame.select(*(f.col(quoted(name)) for name in schema.names), deleted.alias(DELETED))


def _everything(
    frame: DataFrame, kind: Keyed, output: TaskOutput, files: Sequence[DataFile], buried: Mapping[str, str]
) -> DataFrame:
    """What is stored, as changes of an empty table."""
    session, columns = frame.sparkSession, output.columns
    rows = stored_frame(session, output.place, files, columns).withColumn(DELETED, f.lit(False))
    if not buried:
        return rows
    deleted = tombstone_frame(
        session, output.place, list(buried.values()), tombstone_schema(columns, latest_rule(kind))
    )
    return rows.unionByName(deleted.withColumn(DELETED, f.lit(True)), allowMissingColumns=True)


# -- windowed -----------------------------------------------------------------------------------------------


def write_windows(
    frame: DataFrame,
    place: TablePlace,
    kind: Windowed,
    before: TableSnapshot,
    run: int,
    nonce: str,
    schema: pa.Schema,
    *,
    replacing: bool = False,
    windows: DataFrame | None = None,
) -> WriteResult:
    """The windows of a frame's rows, added to those that are there.

    With `replacing`, the frame has all rows of its windows, and what is there goes. With `windows`, only windows count
    that rows of this frame are in; they are replaced even where the first frame has no row of them.
    """
    require_same_rule(before, kind, place.name)
    changes = summed(frame, kind, **{ROWS: f.count(f.lit(1))})
    if windows is not None:
        changes = _replacing(changes, windows_of(windows, kind))
    rule, days = combine_rule(kind), bucket_days(kind)
    task = MergeTask(
        TaskOutput(place, run, nonce, schema),
        schema.append(pa.field(ROWS, pa.int64())),
        _stored(before.files, {}),
        Combine(rule.key, {**rule.values, ROWS: "sum"}, rule.means),
        days,
        replacing or windows is not None,
    )
    numbered = changes.withColumn(BUCKET, f.floor(_day(changes) / f.lit(days)).cast("int"))
    return _written(_run(_by_bucket(numbered), task), before.files)


def bucket_days(kind: Windowed) -> int:
    """How many days of a windowed table are one bucket: one, or as many as some windows have."""
    return 1 if kind.size_ms < _DAY_MS else _WINDOWS_LONG * -(-kind.size_ms // _DAY_MS)


def _replacing(changes: DataFrame, windows: DataFrame) -> DataFrame:
    """Only these windows; with a row for each of them that stands for no rows."""
    some = changes.join(windows.select(WINDOW_START), WINDOW_START, "left_semi")
    return some.unionByName(windows.withColumn(ROWS, f.lit(0).cast("bigint")), allowMissingColumns=True)


def _day(changes: DataFrame) -> Column:
    """Days since 1970, in UTC whatever the session's time zone is."""
    start = f.col(WINDOW_START)
    if isinstance(changes.schema[WINDOW_START].dataType, TimestampNTZType):
        return f.datediff(f.to_date(start), f.lit("1970-01-01").cast("date"))
    return f.floor(f.unix_seconds(start) / f.lit(_DAY_MS // 1000))


# -- tasks --------------------------------------------------------------------------------------------------


def _by_bucket(rows: DataFrame, buckets: int | None = None) -> DataFrame:
    """Rows of a bucket in one task, and in each task in the order of buckets.

    With `buckets`, each has a task of its own if there are not too many: large loads need no sort then.
    """
    if buckets is not None and buckets <= _TASKS_MAX:
        return by_number(rows, buckets, BUCKET, is_apart=True)
    tasks = _TASKS_PER_CORE * rows.sparkSession.sparkContext.defaultParallelism
    return by_number(rows, tasks, BUCKET, is_apart=False)


def _run(rows: DataFrame, task: RowsTask | MergeTask) -> list[TaskResult]:
    names = rows.columns  # not those of users on the way: `mapInArrow` does not find `a.b`
    numbered = rows.toDF(*map(str, range(len(names))))
    parts = unpacked(row[0] for row in numbered.mapInArrow(partial(_run_task, task, names), RESULT).collect())
    buckets = [part.bucket for part in parts if part.bucket]
    if len(set(buckets)) < len(buckets):  # two tasks would both have written its stored rows
        raise HoldfastError("Spark assigned the rows of one bucket to two tasks; nothing was committed")
    return parts


def _run_task(
    task: RowsTask | MergeTask, names: list[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return task.run(batch.rename_columns(names) for batch in batches)


def _stored(files: Sequence[DataFile], buried: Mapping[str, str]) -> dict[str, BucketContents]:
    """What each bucket has; without statistics, which tasks do not need."""
    found = {bucket: BucketContents((), path) for bucket, path in buried.items()}
    for file in files:
        here = found.get(file.bucket, BucketContents())
        found[file.bucket] = replace(here, files=(*here.files, msgspec.structs.replace(file, stats="")))
    return found


def _written(parts: Sequence[TaskResult], files: Sequence[DataFile]) -> WriteResult:
    gone = {path for part in parts for path in part.removed}
    return WriteResult(
        tuple(file for part in parts for file in part.added),
        tuple(file for file in files if file.path in gone),
        sum(part.rows_in for part in parts),
        sum(part.rows_out for part in parts),
        {},
    )
