"""Tables and what tests do to them: runs that are committed, the rows that must be there, and stores that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa

from holdfast.clock import Clock
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body, ObjectInfo, Store, StoreUnavailable
from holdfast.tables.data_file import DataFile, FileWriter, read_file
from holdfast.tables.table_log import TableChange, TableLog, TableSnapshot
from holdfast.tables.table_run import Position, Reason, TableRun
from holdfast.testing import ManualClock

NAME = "orders"
SCHEMA = pa.schema({"id": pa.int64(), "status": pa.string()})

Row = dict[str, Any]


class Died(BaseException):
    """The process is gone."""


class FaultyStore:
    """A store that counts requests and fails at one of them.

    `before` and `after`: the store is away for a moment, before or after it did what was asked (a lost reply); `die`
    and `die after`: so is the process.
    """

    def __init__(self, store: Store, fault: str = "", at: int = 0) -> None:
        self._store = store
        self.fault, self.at = fault, at
        self.steps = 0
        self.before_create: list[Callable[[], object]] = []

    @property
    def url(self) -> str:
        return self._store.url

    def _do(self, call: Callable[[], Any]) -> Any:
        self.steps += 1
        is_now = self.steps == self.at
        if is_now and self.fault == "before":
            raise StoreUnavailable("away")
        if is_now and self.fault == "die":
            raise Died
        result = call()
        if is_now and self.fault == "after":
            raise StoreUnavailable("away")
        if is_now and self.fault == "die after":
            raise Died
        return result

    def create(self, key: str, body: Body) -> None:
        if self.before_create:
            self.before_create.pop(0)()
        self._do(lambda: self._store.create(key, body))

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        return self._do(lambda: self._store.get(key, bytes_max))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do(lambda: self._store.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo | None:
        return self._do(lambda: self._store.head(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(self._do(lambda: [*self._store.list(prefix, after)]))

    def folders(self, prefix: str) -> Sequence[str]:
        return self._do(lambda: self._store.folders(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        self._do(lambda: self._store.delete(keys))

    def close(self) -> None:
        self._store.close()


class Made:
    """A run that is about to be committed."""

    def __init__(self, before: TableSnapshot, change: TableChange) -> None:
        self.before, self.change = before, change


class World:
    """One table, in a directory or elsewhere."""

    def __init__(self, path: Path, store: Store | None = None, clock: Clock | None = None) -> None:
        self.path = path
        self.clock = clock or ManualClock()
        self.store: Store = store or DirectoryStore(path, self.clock)

    @property
    def table(self) -> Path:
        return self.path / NAME

    @property
    def commits(self) -> Path:
        return self.table / "_delta_log"

    def commit_path(self, version: int) -> Path:
        return self.commits / f"{version:020d}.json"

    def log(self) -> TableLog:
        return TableLog(self.store, NAME, self.clock)

    def write(self, rows: Sequence[Row], schema: pa.Schema, run: int, bucket: str = "") -> tuple[DataFile, ...]:
        with FileWriter(self.store, NAME, schema, run, "ab", bucket, clock=self.clock) as writer:
            if rows:
                writer.write(pa.RecordBatch.from_pylist(list(rows), schema))
            return tuple(writer.finish())

    def made(
        self,
        rows: Sequence[Row] = (),
        schema: pa.Schema = SCHEMA,
        removed: Sequence[DataFile] = (),
        *,
        is_rewrite: bool = False,
        kind: str = "append",
        reason: Reason = "run",
        bucket: str = "",
        tombstones: dict[str, str] | None = None,
    ) -> Made:
        """The next run, up to the moment before its commit."""
        before = self.log().snapshot()
        number = 1 if before.run is None else before.run.run + 1
        run = TableRun(
            pipeline="nightly",
            table=NAME,
            kind=kind,
            run=number,
            reason=reason,
            reads={"raw": Position(source="log", marks={"0": 10 * number})},
            rows_in=len(rows),
            rows_out=len(rows),
            started_ms=1,
            tombstones=tombstones or {},
        )
        added = self.write(rows, schema, number, bucket)
        return Made(
            before, TableChange(run=run, schema=schema, added=added, removed=tuple(removed), is_rewrite=is_rewrite)
        )

    def run(self, *arguments: Any, **options: Any) -> TableSnapshot:
        """The next run, committed."""
        made = self.made(*arguments, **options)
        after = self.log().commit(made.before, made.change)
        assert after is not None
        return after

    def rows(self, version: int | None = None) -> list[Row]:
        """What we read."""
        snapshot = self.log().snapshot(version)
        return self.rows_of(snapshot)

    def rows_of(self, snapshot: TableSnapshot) -> list[Row]:
        found = [
            row
            for file in snapshot.files
            for batch in read_file(self.store, NAME, file, schema=snapshot.schema)
            for row in batch.to_pylist()
        ]
        return ordered(found)

    def delta(self, version: int | None = None) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self.table), version=version)

    def delta_rows(self, version: int | None = None) -> list[Row]:
        """What deltalake reads."""
        return ordered(self.delta(version).to_pyarrow_table().to_pylist())

    def polars_rows(self, version: int | None = None) -> list[Row]:
        return ordered(pl.scan_delta(str(self.table), version=version).collect().to_dicts())

    def files(self) -> dict[str, bytes]:
        return {
            found.relative_to(self.path).as_posix(): found.read_bytes()
            for found in self.path.rglob("*")
            if found.is_file()
        }


def ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=repr)
