"""What runs in Spark's tasks when a table is written: rows come in as Arrow batches, files go to the store, and what
was written goes back to the driver, one row for each bucket.

Nothing is visible before the driver commits. An attempt that is repeated, overtaken or killed has written files under
names of its own, which nobody commits: they are garbage, found by the run in their name. Stored rows are read and
merged here, by Arrow; they never pass the JVM.

Memory: of a bucket, the changes (about twice their keys) and one row group of each file in turn. A bucket may be larger
than memory, the changes of one bucket in one run may not: more buckets help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from operator import itemgetter

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import errors
from holdfast.errors import Corrupt, Full, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.store.port import Store
from holdfast.tables import table_layout
from holdfast.tables.data_file import ROWS_UNKNOWN, DataFile, FileWriter, conformed, read_file
from holdfast.tables.merging import (
    Combine,
    Latest,
    Merge,
    MergeBuffer,
    Replacement,
    from_tombstones,
    live_and_deleted,
    tombstone_schema,
)
from pyspark_holdfast.error_reports import each_in_short, hush_closed_pipes
from pyspark_holdfast.pipeline.table_columns import BUCKET, ROWS, WINDOW_START
from pyspark_holdfast.pipeline.table_place import TablePlace

RESULT = "result binary"
"""The schema of what tasks give back: one `TaskResult`, packed, per row."""

_FILES_FEW = 8
_FILE_BYTES_LARGE = 32 * 2**20
_EPOCH = date(1970, 1, 1)


class TaskFailure(msgspec.Struct):
    """An error of ours on its way to the driver. Spark would make one of its own of it, with a traceback."""

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: HoldfastError) -> TaskFailure:
        """Pack an error."""
        kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
        return cls(kind, error.message, error.hint)

    def unpacked(self) -> HoldfastError:
        """The error, of the same kind."""
        return _KINDS.get(self.kind, HoldfastError)(self.message, hint=self.hint)


_KINDS: dict[str, type[HoldfastError]] = {one.__name__: one for one in (Corrupt, Full, Invalid, NotFound, Unavailable)}


class TaskResult(msgspec.Struct):
    """What was done to one bucket, or by one task."""

    added: list[DataFile] = []
    removed: list[str] = []
    """Paths of files whose rows are in others now, or gone."""
    rows_in: int = 0
    rows_out: int = 0
    bucket: str = ""
    tombstones: str | None = None
    """The file with the deleted keys of the bucket, as it is now; None if there are none."""
    failure: TaskFailure | None = None


@dataclass(frozen=True)
class TaskOutput:
    """Where files go, and what their names and columns are."""

    place: TablePlace
    run: int
    nonce: str
    columns: pa.Schema

    def writer(self, bucket: str = "") -> FileWriter:
        """A writer of rows."""
        return FileWriter(self.place.store(), self.place.name, self.columns, self.run, self.nonce, bucket)

    def tombstone_writer(self, columns: pa.Schema) -> FileWriter:
        """A writer of one file with deleted keys, where no other engine looks."""
        return FileWriter(
            self.place.store(),
            self.place.name,
            columns,
            self.run,
            self.nonce,
            rows_max=2**62,
            bytes_max=2**62,
            folder=table_layout.DELETED,
        )

    def batches_of(self, parts: Iterator[TaskResult]) -> Iterator[pa.RecordBatch]:
        """What goes back to the driver; at the first error of ours, that error."""
        hush_closed_pipes()
        try:
            for part in each_in_short(self.place, _within_memory(parts)):
                yield packed(part)
        except HoldfastError as error:
            yield packed(TaskResult(failure=TaskFailure.of(error)))


def _within_memory(parts: Iterator[TaskResult]) -> Iterator[TaskResult]:
    try:
        yield from parts
    except (MemoryError, pa.ArrowCapacityError, pa.ArrowInvalid) as error:
        if isinstance(error, pa.ArrowInvalid) and "overflow" not in str(error):
            raise
        raise Full(
            "the new rows of one bucket do not fit into memory",
            hint="give the table more buckets, Python workers more memory, or read fewer records in one run",
        ) from None


# -- rows as they come --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsTask:
    """Rows of append and snapshot tables."""

    output: TaskOutput

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark."""
        return self.output.batches_of(self._parts(batches))

    def _parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[TaskResult]:
        rows = 0
        with self.output.writer() as writer:
            for batch in batches:
                writer.write(batch)
                rows += batch.num_rows
            yield TaskResult(writer.finish(), rows_in=rows, rows_out=rows)


# -- rows that are merged -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BucketContents:
    """What a table has in one bucket."""

    files: tuple[DataFile, ...] = ()
    tombstones: str | None = None


@dataclass(frozen=True)
class MergeTask:
    """Rows of keyed and windowed tables, bucket by bucket."""

    output: TaskOutput
    incoming: pa.Schema
    """The columns that rows come with: the table's, and some that are not stored."""
    stored: dict[str, BucketContents]
    """By the name of a bucket."""
    rule: Latest | Combine
    days: int = 0
    """Of a windowed table: how many days a bucket has."""
    is_replacing: bool = False
    """Whether windows take the place of stored ones, instead of being added to them."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark, with rows in the order of their buckets."""
        return self.output.batches_of(self._parts(batches))

    def _parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[TaskResult]:
        for number, pieces in groupby(_pieces(batches, self.incoming), itemgetter(0)):
            yield self._changed(number, (rows for _, rows in pieces))

    def _changed(self, number: int, pieces: Iterator[pa.Table]) -> TaskResult:
        part = TaskResult(bucket=day_name(number * self.days) if self.days else str(number))
        stored = self.stored.get(part.bucket, BucketContents())
        merge = self._merge(pieces, part)
        with self._graves() as graves, self.output.writer(part.bucket) as writer:
            is_same = self._pass_tombstones(merge, stored.tombstones, graves)
            for batch in self._other_rows(merge, stored.files, part.removed):
                writer.write(batch)
            live, deleted = self._result(merge)
            _write(writer, live)
            part.added = writer.finish()
            part.tombstones = stored.tombstones
            if not is_same or len(deleted):
                _write(graves, deleted)
                part.tombstones = next((file.path for file in graves.finish()), None)
        part.rows_out = len(live) + len(deleted)
        return part

    def _merge(self, pieces: Iterator[pa.Table], part: TaskResult) -> Merge | Replacement:
        changes = MergeBuffer(self.rule)
        for rows in pieces:
            changes.add(rows)
            part.rows_in += pc.sum(rows.column(ROWS)).as_py() if self.days else len(rows)
        if self.is_replacing:
            return Replacement((WINDOW_START,), changes.rows())
        return Merge(self.rule, changes.rows())

    def _result(self, merge: Merge | Replacement) -> tuple[pa.Table, pa.Table]:
        """Rows as they are now, and keys that are deleted now."""
        rows = merge.rows()
        if isinstance(self.rule, Latest):
            return live_and_deleted(rows, self.output.columns, self.rule)
        # A window that only says that it is replaced stands for no rows.
        found = rows.filter(pc.greater(rows.column(ROWS), 0)) if self.is_replacing else rows
        return found.select(self.output.columns.names), found.slice(0, 0)

    # -- what is stored -------------------------------------------------------------------------------------

    def _other_rows(
        self, merge: Merge | Replacement, files: Sequence[DataFile], removed: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Stored rows that stay as they are, of files that are written anew; `removed` gets their paths.

        Those are files with rows that change; and small ones, where there are many.
        """
        small = _FILE_BYTES_LARGE if len(files) > _FILES_FEW else 0
        for file in files:
            rows = self._read(file, self.output.columns.names)
            first = next(rows, None)  # most files that change tell it here, and are read once then
            if first is not None and (file.size < small or self._is_touched(merge, file, first)):
                removed.append(file.path)
                yield merge.others(first)
                yield from map(merge.others, rows)

    def _is_touched(self, merge: Merge | Replacement, file: DataFile, first: pa.RecordBatch) -> bool:
        return merge.is_touched(first) or any(map(merge.is_touched, self._read(file, merge.key)))

    def _read(self, file: DataFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        output = self.output
        return read_file(output.place.store(), output.place.name, file, names, schema=output.columns)

    # -- deleted keys ---------------------------------------------------------------------------------------

    def _graves(self) -> FileWriter:
        """The deleted keys of a bucket as they will be; nothing is stored of them unless it is finished."""
        rule = self.rule
        columns = tombstone_schema(self.output.columns, rule) if isinstance(rule, Latest) else self.output.columns
        return self.output.tombstone_writer(columns)

    def _pass_tombstones(self, merge: Merge | Replacement, path: str | None, graves: FileWriter) -> bool:
        """Tombstones of other keys go on, those of changed keys into the merge; returns whether there were none."""
        if path is None or not isinstance(self.rule, Latest):
            return True
        columns, met = tombstone_schema(self.output.columns, self.rule), 0
        for batch in read_path(self.output.place.store(), self.output.place.name, path, columns):
            others = merge.others(from_tombstones(batch)).select(columns.names)
            met += len(batch) - len(others)
            graves.write(others)
        return met == 0


def read_path(store: Store, table: str, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file of which only the path is known."""
    info = store.head(table_layout.file_key(table, path))
    return read_file(store, table, DataFile(path, info.size if info else 0, ROWS_UNKNOWN, ""), columns)


def day_name(day: int) -> str:
    """A bucket of a windowed table by its first day, counted from 1970."""
    try:
        return (_EPOCH + timedelta(days=day)).isoformat()
    except OverflowError:
        return f"day{day}"  # beyond what Python can write as a date


def _pieces(batches: Iterable[pa.RecordBatch], incoming: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """Rows with the number of their bucket, which they leave behind."""
    for batch in batches:
        runs = pc.run_end_encode(batch.column(BUCKET))
        rows = pa.Table.from_batches([conformed(batch.drop_columns([BUCKET]), incoming)])
        begin = 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield number, rows.slice(begin, end - begin)
            begin = end


def _write(writer: FileWriter, rows: pa.Table) -> None:
    for batch in rows.to_batches():
        writer.write(batch)


def packed(part: TaskResult) -> pa.RecordBatch:
    """What a task gives back, as Spark takes it."""
    return pa.record_batch([pa.array([msgspec.msgpack.encode(part)], pa.binary())], names=["result"])


def unpacked(results: Iterable[bytes | bytearray]) -> list[TaskResult]:
    """What tasks gave back; raises what they could not do."""
    parts = [msgspec.msgpack.decode(bytes(result), type=TaskResult) for result in results]
    for part in parts:
        if part.failure is not None:
            raise part.failure.unpacked()
    return parts
