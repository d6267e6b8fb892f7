"""Tables that tests write as a pipeline does, one commit per frame, and read back with another engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from holdfast.clock import SystemClock
from holdfast.store.store_settings import StoreSettings
from holdfast.tables.table_log import TableChange, TableLog, TableSnapshot
from holdfast.tables.table_run import TableRun
from holdfast.tables.table_schema import grown
from pyspark_holdfast.pipeline.table_columns import configuration_of, stored_columns
from pyspark_holdfast.pipeline.table_definition import Keyed, Kind, Windowed
from pyspark_holdfast.pipeline.table_place import TablePlace
from pyspark_holdfast.pipeline.table_writing import WriteResult, write_latest, write_rows, write_windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class WrittenTable:
    """One table below a folder or a bucket."""

    def __init__(self, url: str | Path, kind: Kind, settings: StoreSettings | None = None, name: str = "t") -> None:
        self.url = url.as_uri() if isinstance(url, Path) else url
        self.kind, self.place = kind, TablePlace(self.url, settings or StoreSettings(), name)
        self.log = TableLog(self.place.store(), name, SystemClock())
        self.before: TableSnapshot = self.log.snapshot()

    def write(self, frame: DataFrame, **options: Any) -> WriteResult:
        """One run."""
        return self.commit(self.compute(frame, **options))

    def compute(self, frame: DataFrame, **options: Any) -> WriteResult:
        """What a run does before its commit."""
        self.before, kind = self.log.snapshot(), self.kind
        now = stored_columns(frame, kind)
        self.columns = now if self.before.schema is None else grown(self.before.schema, now)
        run = 1 + (self.before.run.run if self.before.run else 0)
        if isinstance(kind, Keyed):
            return write_latest(frame, self.place, kind, self.before, run, "n0nce", self.columns)
        if isinstance(kind, Windowed):
            return write_windows(frame, self.place, kind, self.before, run, "n0nce", self.columns, **options)
        return write_rows(frame, self.place, run, "n0nce", self.columns)

    def commit(self, written: WriteResult) -> WriteResult:
        """What makes it visible."""
        run = TableRun(
            pipeline="p",
            table="t",
            kind=self.kind.name,
            run=1 + (self.before.run.run if self.before.run else 0),
            reads={},
            rows_in=written.rows_in,
            rows_out=written.rows_out,
            started_ms=0,
            tombstones=written.tombstones,
        )
        change = TableChange(
            run=run,
            schema=self.columns,
            added=written.added,
            removed=written.removed,
            configuration=configuration_of(self.kind),
        )
        assert self.log.commit(self.before, change) is not None
        return written

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        """All rows, as delta-rs reads them."""
        table = DeltaTable(f"{self.url}/{self.place.name}", **options)
        return in_order(table.to_pyarrow_table().to_pylist())


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table have no order."""
    return sorted(rows, key=repr)
