"""Records of the topic `_executions` as rows: a record holds a block of entries, and each entry is a row.

What is in a block is known to `holdfast.execution.journal.entries`, and decoded by Spark's tasks with it. Nothing is
left out: a record that does not decode, as one of a newer holdfast, is a row that says so (`_problem`). Payloads stay
behind, only their sizes are shown; so do texts of errors, which may name what a payload held: their types are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.execution.journal.entries import Entry, ExecutionRow, decode_any_block, decode_row
from pyspark_holdfast.error_reports import hush_closed_pipes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_US = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_time", _US),
        ("_entry", pa.int32()),
        ("execution_id", pa.string()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("effect", pa.string()),
        ("at", _US),
        ("started_at", _US),
        ("due_at", _US),
        ("attempt", pa.int32()),
        ("is_error", pa.bool_()),
        ("detail", pa.string()),
        ("wait_id", pa.string()),
        ("bytes", pa.int64()),
        ("execution_kind", pa.string()),
        ("status", pa.string()),
        ("queue", pa.string()),
        ("priority", pa.int32()),
        ("created_at", _US),
        ("ended_at", _US),
        ("generation", pa.int32()),
        ("entries", pa.int64()),
        ("parent_id", pa.string()),
        ("_problem", pa.string()),
    ]
)
"""Of the table `execution_events`."""

_READ = ["partition", "offset", "timestamp", "key", "kind", "value"]
_EMPTY: dict[str, Any] = dict.fromkeys(COLUMNS.names)
_SAID = ("policy", "action", "name", "note")
"""Fields of entries that say more, and are no payload."""


def events(records: DataFrame) -> DataFrame:
    """Records of the topic with a row for each entry."""
    from pyspark.sql.types import StructField, StructType

    from pyspark_holdfast.types import spark_type

    schema = StructType([StructField(column.name, spark_type(column.type, column.name)) for column in COLUMNS])
    return records.select(*_READ).mapInArrow(_decoded, schema)


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Called by Spark, with records."""
    hush_closed_pipes()
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64())  # as numbers: datetimes are slow, and end in the year 9999
        plain = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)
        rows = [row for record in plain.to_pylist() for row in rows_of(record)]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def rows_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one record, given by its columns; its time in microseconds."""
    place = {
        **_EMPTY,
        "_partition": record["partition"],
        "_offset": record["offset"],
        "_time": record["timestamp"],
        "_entry": 0,
        "execution_id": (record["key"] or b"").decode("utf-8", "replace"),
        "at": record["timestamp"],
    }
    try:
        if record["kind"] == "pruned":
            yield {**place, "kind": "pruned"}
        elif record["kind"] == "status":
            yield {**place, **_of_row(decode_row(record["value"]))}
        else:
            block = decode_any_block(record["value"])
            for at, entry in enumerate(block.entries):
                yield {**place, "_entry": at, "seq": block.first + at, **_of_entry(entry)}
    except HoldfastError as error:
        yield {**place, "kind": "unknown", "bytes": len(record["value"]), "_problem": str(error)}


def _of_row(row: ExecutionRow) -> dict[str, Any]:
    """A change of status."""
    return {
        "kind": "status",
        "execution_kind": row.kind,
        "status": row.status,
        "queue": row.queue or None,
        "priority": row.priority,
        "created_at": row.created_us,
        "at": row.updated_us,
        "ended_at": row.ended_us or None,
        "due_at": row.due_us or None,
        "generation": row.generation,
        "attempt": row.attempts,
        "entries": row.entries,
        "bytes": row.size,
        "parent_id": str(UUID(bytes=row.parent)) if row.parent else None,
        "detail": row.note or None,
    }


def _of_entry(entry: Entry) -> dict[str, Any]:
    """One entry: kinds that are added later have their columns by the names of their fields."""
    said = next((text for name in _SAID if (text := getattr(entry, name, None))), None)
    error = getattr(entry, "error", None)
    version = getattr(entry, "version", None)
    waits_for = next((found for name in ("promise", "timer", "signal") if (found := getattr(entry, name, None))), None)
    payload = getattr(entry, "payload", None)
    return {
        "kind": re.sub(r"(?<!^)(?=[A-Z])", "_", type(entry).__name__).lower(),
        "path": getattr(entry, "path", None),
        "effect": getattr(entry, "effect", None),
        "at": entry.at_us,
        "started_at": getattr(entry, "started_us", 0) or None,
        "due_at": getattr(entry, "due_us", 0) or getattr(entry, "retry_us", 0) or None,
        "attempt": getattr(entry, "attempts", None) or getattr(entry, "attempt", None),
        "is_error": getattr(entry, "is_error", None),
        "detail": error_type(error) if error else str(version) if version is not None else said,
        "wait_id": waits_for.hex() if waits_for else None,
        "bytes": len(payload) if payload is not None else None,
        "status": getattr(entry, "status", None),
        "generation": getattr(entry, "generation", None),
    }


def error_type(text: str) -> str:
    """What kind of error a text tells of: the part before the first colon, if that is a name."""
    name = text.partition(":")[0].partition("(")[0].strip()
    return name if re.fullmatch(r"[\w.]{1,200}", name) else "error"
