"""The actions in the log of a topic's Delta table, derived from the root's manifests.

Our part of a commit (`PublishedState`) names the owner of the table and the cursor of every partition. Everything else
in the table follows from that and from the manifests. Pure; docs/formats/0008-delta.md.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.publish.delta.actions import (
    ENGINE,
    LOCAL_TIMES,
    STATS_COLUMNS,
    Add,
    Metadata,
    Protocol,
    Provider,
    Remove,
    Txn,
    moment,
    stats_columns,
)
from holdfast.publish.delta.column_types import DeltaColumns
from holdfast.publish.table_change import Cursor
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrites import InEffect
from holdfast.store import layout

FORMAT = 1
WRITER_FEATURE = ENGINE


class PublishedState(msgspec.Struct, frozen=True, kw_only=True):
    """Our own part of a commit: what the table shows after it."""

    format: int = FORMAT
    log: str
    topic: str
    table: str
    """The table's id."""
    created_ms: int
    metadata: str
    """Digest of the protocol and the metadata."""
    delete_after_ms: int
    """How long a reader of an older version may count on its files."""
    files: int
    rows: int
    bytes: int
    cursors: dict[str, Cursor]
    """By partition."""


def protocol(columns: DeltaColumns) -> Protocol:
    """Every reader may read; no writer but us knows the feature that it would have to know, so none may write.

    That keeps a VACUUM away, too: some delete whatever a table's log does not name, our manifests included.
    """
    if not columns.has_local_times:
        return Protocol(1, 7, None, (WRITER_FEATURE,))
    return Protocol(3, 7, (LOCAL_TIMES,), (WRITER_FEATURE, LOCAL_TIMES))


def metadata(columns: DeltaColumns, topic: str, table: str, created_ms: int, delete_after_ms: int) -> Metadata:
    """What the table is."""
    configuration = {
        "delta.deletedFileRetentionDuration": f"interval {-(-delete_after_ms // 1000)} seconds",
        "delta.enableExpiredLogCleanup": "false",
        STATS_COLUMNS: stats_columns([columns.offset, columns.time]),
    }
    return Metadata(
        table,
        topic,
        "a topic of a holdfast log; written by its owner alone",
        Provider(),
        columns.schema,
        (columns.partition,),
        configuration,
        created_ms,
    )


def add(file: InEffect, columns: DeltaColumns, *, data_change: bool) -> Add:
    """A file of the topic."""
    segment = file.segment
    return Add(
        _path(segment),
        {columns.partition: str(segment.partition)},
        segment.size,
        segment.sealed_us // 1000,
        data_change,
        stats(segment, columns),
        _tags(segment),
    )


def remove(file: InEffect, columns: DeltaColumns, now_ms: int, *, data_change: bool) -> Remove:
    """A file that is retired, or replaced."""
    segment = file.segment
    values = {columns.partition: str(segment.partition)}
    return Remove(_path(segment), now_ms, data_change, True, values, segment.size, _tags(segment))


def txn(log: str, topic: str, partition: int, settled: int, now_ms: int) -> Txn:
    """How far a partition is settled in this table."""
    return Txn(f"holdfast:{log}:{topic}:{partition}", settled, now_ms)


def stats(segment: SegmentDocument, columns: DeltaColumns) -> str:
    """How many rows a file has, and between which offsets and times; from the manifest, no file is opened."""
    least: dict[str, Any] = {columns.offset: segment.first}
    most: dict[str, Any] = {columns.offset: segment.end - 1}
    first, last = moment(segment.time_min), moment(segment.time_max)
    if first is not None and last is not None:
        least[columns.time], most[columns.time] = first, last
    nulls = {columns.offset: 0, columns.time: 0}
    found = {"numRecords": segment.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _path(segment: SegmentDocument) -> str:
    return segment.key.removeprefix(layout.table_folder(segment.topic))


def _tags(segment: SegmentDocument) -> dict[str, str]:
    return {"sha256": segment.sha256, "content": segment.content, "chain": segment.chain}
