"""The golden table of a pipeline (docs/formats/0009-tables.md): each kind of commit once, a checkpoint, a note."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

from holdfast.publish.delta import delta_log
from holdfast.store.directory import DirectoryStore
from holdfast.tables.data_file import FileWriter, read_file
from holdfast.tables.table_layout import DELETED
from holdfast.tables.table_log import TableChange, TableLog, TableSnapshot
from holdfast.tables.table_run import Position, TableRun
from holdfast.testing.manual_clock import ManualClock

NAME = "orders_now"
NARROW = pa.schema({"order_id": pa.int64(), "status": pa.string(), "amount": pa.decimal128(12, 2)})
WIDE = pa.schema([*NARROW, pa.field("at", pa.timestamp("us", "UTC")), pa.field("tags", pa.list_(pa.string()))])
NOTE = b'{"commitInfo":{"timestamp":1,"operation":"VACUUM START","operationParameters":{}}}\n'


def make_table(path: Path) -> None:
    """Write the table, and what must be read of it beside it."""
    path.mkdir(parents=True)
    clock = ManualClock()
    store = DirectoryStore(path, clock)
    with patch.object(delta_log, "_CHECKPOINT_LEAST", 4):
        _write(store, clock, path)
    log = TableLog(store, NAME, clock)
    versions = [described(log.snapshot(version), store) for version in range(log.snapshot().version + 1)]
    (path / "expected.json").write_text(json.dumps(versions, indent=1) + "\n")


def _write(store: DirectoryStore, clock: ManualClock, path: Path) -> None:
    def run(rows: list[dict[str, Any]], schema: pa.Schema, removed: int, **given: Any) -> None:
        log = TableLog(store, NAME, clock)
        before = log.snapshot()
        number = 1 + (before.run.run if before.run else 0)
        with FileWriter(store, NAME, schema, number, "a1b2", str(number % 2), clock=clock) as writer:
            writer.write(pa.RecordBatch.from_pylist(rows, schema)) if rows else None
            added = tuple(writer.finish())
        made = TableRun(
            pipeline="shop",
            table=NAME,
            kind="keyed",
            run=number,
            rows_in=len(rows),
            rows_out=len(rows),
            started_ms=clock.now_us() // 1000,
            code="0123456789abcdef",
            reads={
                "orders": Position(source="5f" * 16, marks={"0": 10 * number}, begins={"0": 5}),
                "prices": Position(source="table-1", version=number, run=number),
            },
            **{name: value for name, value in given.items() if name != "is_rewrite"},
        )
        change = TableChange(
            run=made,
            schema=schema,
            added=added,
            removed=before.files[:removed],
            is_rewrite=given.get("is_rewrite", False),
            configuration={"holdfast.buckets": "2"},
        )
        assert log.commit(before, change) is not None
        clock.advance(60)

    def rows(first: int, schema: pa.Schema) -> list[dict[str, Any]]:
        values = {"status": "open", "tags": ["new", None]}
        return [{name: values.get(name) for name in schema.names} | {"order_id": first + at} for at in range(3)]

    run(rows(0, NARROW), NARROW, 0)
    run([], NARROW, 0)
    run(rows(10, WIDE), WIDE, 0)
    with FileWriter(
        store, NAME, pa.schema({"order_id": pa.int64()}), 4, "a1b2", "0", folder=DELETED, clock=clock
    ) as keys:
        keys.write(pa.record_batch({"order_id": [7]}))
        deleted = keys.finish()[0].path
    run(rows(20, WIDE), WIDE, 1, tombstones={"0": deleted})
    run(rows(10, WIDE), WIDE, 1, is_rewrite=True, reason="rewrite")
    (path / NAME / "_delta_log" / f"{5:020d}.json").write_bytes(NOTE)
    run(rows(30, WIDE), WIDE, 0, reason="backfill")


def described(snapshot: TableSnapshot, store: DirectoryStore) -> dict[str, Any]:
    """What a version is: rows, run, columns, state."""
    rows = [
        row
        for file in snapshot.files
        for batch in read_file(store, NAME, file, schema=snapshot.schema)
        for row in batch.to_pylist()
    ]
    run = snapshot.run
    assert run is not None
    assert snapshot.schema is not None
    return {
        "version": snapshot.version,
        "table": snapshot.table_id,
        "rows": sorted(map(repr, rows)),
        "run": run.run,
        "reason": run.reason,
        "reads": {name: msgspec.to_builtins(one) for name, one in run.reads.items()},
        "tombstones": run.tombstones,
        "columns": [f"{column.name}: {column.type}" for column in snapshot.schema],
        "digest": snapshot.state.digest,
        "metadata": snapshot.state.metadata,
        "check": snapshot.check,
    }
