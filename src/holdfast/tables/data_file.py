"""One data file of a table: written once, under a name that no other file ever has, and read piece by piece.

`FileWriter` runs in Spark's tasks, too. It writes to the machine's temporary folder and creates the object when a file
is whole: a file under its name is complete, whatever happened. A file counts only once a commit names it; those of
attempts that failed are garbage, found by the run in their name (`cleaning`). Since name and content belong together, a
`create` whose outcome is unknown is simply repeated.

Memory: the rows of one row group, and as much again while it is encoded.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.clock import Clock, SystemClock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.store.port import CHUNK_BYTES, AlreadyExists, Body, Store
from holdfast.store.repeated_create import until_known
from holdfast.tables import table_layout
from holdfast.tables.file_stats import floating, stats_text
from holdfast.tables.table_schema import normal
from holdfast.tables.untrusted_parquet import GROUP_BYTES, GROUP_ROWS, HINT, UntrustedFile, parquet_settings

FILE_BYTES = 128 * 2**20
"""A file is ended behind so many bytes."""
FILE_ROWS = 50_000_000
FILE_BYTES_MAX = 2**31
ROWS_UNKNOWN = -1
"""Of a file that no commit describes: one with deleted keys."""
_NAME_PAIR = "holdfast.file"
"""In a file's own metadata: what it is called."""
_WHOLE_BYTES = 4 * 2**20
"""Smaller files are read in one request."""


class DataFile(msgspec.Struct, frozen=True):
    """A file of a table."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    stats: str
    """As Delta's log has them."""
    bucket: str = ""
    """Which part of the table it is, for tables that are rewritten in parts."""
    modified_ms: int = 0
    run: int = 0
    """The run whose rows it has: the one that wrote it; or an older one, whose rows were computed again."""


# -- writing --------------------------------------------------------------------------------------------------


class FileWriter:
    """Writes rows into as many files as they need. Used by one thread; a context manager.

    `schema` is what the rows are made to: columns are taken by name, and those that a batch lacks are null. With
    `folder=table_layout.DELETED` files lie where no other engine looks.
    """

    def __init__(
        self,
        store: Store,
        table: str,
        schema: pa.Schema,
        run: int,
        nonce: str,
        bucket: str = "",
        rows_max: int = FILE_ROWS,
        bytes_max: int = FILE_BYTES,
        *,
        folder: str = table_layout.DATA,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._schema = normal(schema)
        self._run, self._bucket, self._folder = run, bucket, folder
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._clock = clock or SystemClock()
        # Two tasks may be given the same nonce, and an attempt runs twice: names differ all the same.
        self._nonce = f"{nonce}-{self._clock.random_bytes(6).hex()}"
        table_layout.table_folder(table)
        if run < 0 or table_layout.parse_file(self._path(0)) is None:
            raise Invalid(f"not a run or not a nonce run={run} nonce={nonce!r}", hint="digits and small letters")
        self._open: _OpenFile | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._done: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; raises Invalid where they do not fit."""
        rows = conformed(batch, self._schema)
        for start in range(0, rows.num_rows, GROUP_ROWS):
            self._take(rows.slice(start, GROUP_ROWS))

    def finish(self) -> list[DataFile]:
        """Store what is left; returns all files, in the order of their rows. None where there were no rows."""
        self._write_group()
        self._end_file()
        return self._done

    def close(self) -> None:
        """Let go of what was not finished. Files that were stored stay, as garbage."""
        if self._open is not None:
            self._open.abandon()
            self._open = None

    def _take(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if not self._waiting:
            return
        if self._open is None:
            self._open = _OpenFile(self._schema, self._path(len(self._done)))
        self._open.write(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._open.rows >= self._rows_max or self._open.size >= self._bytes_max:
            self._end_file()

    def _end_file(self) -> None:
        if self._open is None:
            return
        file, self._open = self._open, None
        try:
            self._done.append(self._stored(file))
        finally:
            file.abandon()

    def _stored(self, file: _OpenFile) -> DataFile:
        stats, rows, path = file.finish(), file.rows, file.path
        body = file.body()
        _create(self._store, table_layout.file_key(self._table, path), body)
        return DataFile(path, body.size, rows, stats, self._bucket, self._clock.now_us() // 1000, self._run)

    def _path(self, number: int) -> str:
        return table_layout.file_path(self._run, self._nonce, number, folder=self._folder)


class _OpenFile:
    """A file that is being written, in the machine's temporary folder."""

    def __init__(self, schema: pa.Schema, path: str) -> None:
        """`path` is what it will be called; it says so itself, so that no file can be taken for another one."""
        descriptor, name = tempfile.mkstemp(prefix="holdfast-", suffix=".parquet")
        os.close(descriptor)
        self.path = path
        self._local = Path(name)
        self._schema = schema
        self._collected: list[Any] = []
        settings = parquet_settings(schema)
        self._stream = pa.OSFile(name, "wb")
        self._writer = pq.ParquetWriter(self._stream, schema, metadata_collector=self._collected, **settings)
        self._floats = floating(schema)
        self.rows = 0

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write(self, group: pa.Table) -> None:
        for name, bounds in self._floats.items():
            bounds.add(group.column(name))
        self._writer.write_table(group, row_group_size=group.num_rows)
        self.rows += group.num_rows

    def finish(self) -> str:
        """End the file; returns its statistics."""
        self._writer.add_key_value_metadata({_NAME_PAIR: self.path})
        self._writer.close()
        self._stream.close()
        metadata = self._collected[0] if self._collected else pq.read_metadata(self._local)
        return stats_text(metadata, self._schema, self._floats)

    def body(self) -> Body:
        digest = hashlib.sha256()
        with self._local.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        return Body.file(self._local, self._local.stat().st_size, digest.digest())

    def abandon(self) -> None:
        """Close it as it is, and remove it."""
        self._writer.close()
        self._stream.close()
        self._local.unlink(missing_ok=True)


def _create(store: Store, key: str, body: Body) -> None:
    """Create an object whose name belongs to this content alone."""
    try:
        until_known(lambda: store.create(key, body))
    except AlreadyExists:
        pass  # ours, whose reply was lost


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with exactly these columns: taken by name, null where they are missing; raises Invalid."""
    if batch.schema.equals(schema):
        return batch
    unknown = [name for name in batch.schema.names if schema.get_field_index(name) < 0]
    if unknown:
        raise Invalid(
            f"rows have a column that the table has not column={unknown[0]!r}", hint="see `table_schema.grown`"
        )
    return pa.RecordBatch.from_arrays([_array(batch, column) for column in schema], schema=schema)


def _array(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    at = batch.schema.get_field_index(column.name)
    if at < 0:
        return pa.nulls(batch.num_rows, column.type)
    array = batch.column(at)
    if array.type.equals(column.type):
        return array
    try:
        return array.cast(column.type)
    except pa.ArrowException as error:
        raise Invalid(
            f"values of a column do not fit its type column={column.name!r} type={column.type}: {str(error)[:200]}",
            hint="cast the column in the table's function",
        ) from None


# -- reading --------------------------------------------------------------------------------------------------


def read_file(
    store: Store,
    table: str,
    file: DataFile,
    columns: Sequence[str] | pa.Schema | None = None,
    *,
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in batches, with these columns in this order; raises Corrupt, NotFound.

    With the table's `schema` (or with a schema as `columns`), columns that the file lacks are null, and one of another
    type is Corrupt. Without it, the file tells what it has, and an unknown name is Invalid.
    """
    key = table_layout.file_key(table, file.path)
    if isinstance(columns, pa.Schema):
        schema, columns = columns, columns.names
    found = _opened(store, key, file)
    if found.pairs.get(_NAME_PAIR.encode()) != file.path.encode():
        raise Corrupt("a data file is not the one that has this name", path=key, hint=HINT)
    if file.rows not in (ROWS_UNKNOWN, found.rows):
        raise Corrupt(
            f"a data file has another number of rows rows={found.rows} expected={file.rows}", path=key, hint=HINT
        )
    wanted = schema or found.schema
    if columns is not None:
        wanted = _chosen(wanted, columns)
    names = [name for name in wanted.names if found.schema.get_field_index(name) >= 0]
    for name in names:
        if not found.schema.field(name).type.equals(wanted.field(name).type):
            raise Corrupt(f"a data file has a column of another type column={name!r}", path=key, hint=HINT)
    for batch in found.batches(names or found.schema.names[:1]):
        yield _completed(batch, wanted)


def _opened(store: Store, key: str, file: DataFile) -> UntrustedFile:
    info = store.head(key)
    if info is None:
        raise NotFound(
            f"a data file of the table is gone key={key}",
            hint="an older version was cleaned, or the file was removed; read the newest version",
        )
    if info.size != file.size or not 0 < file.size <= FILE_BYTES_MAX:
        raise Corrupt(f"a data file has another size bytes={info.size} expected={file.size}", path=key, hint=HINT)
    if file.size > _WHOLE_BYTES:
        return UntrustedFile(key, file.size, lambda start, length: store.get_range(key, start, length))
    content = store.get(key, file.size)
    return UntrustedFile(key, file.size, lambda start, length: content[start : start + length])


def _chosen(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    missing = [name for name in names if schema.get_field_index(name) < 0]
    if missing:
        raise Invalid(f"the table has no such column column={missing[0]!r}", hint=f"it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in names])


def _completed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(wanted):
        return batch
    arrays = [
        batch.column(at)
        if (at := batch.schema.get_field_index(column.name)) >= 0
        else pa.nulls(batch.num_rows, column.type)
        for column in wanted
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
