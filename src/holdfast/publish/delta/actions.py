"""Delta's actions, as the protocol spells them, and a commit as bytes: one action per line.

A commit begins with `commitInfo`, in which the protocol leaves room for the writer. There stands what we need to know
to go on: whose table it is, and the cursor of every partition (`Published`). Whatever else a table holds follows from
that and from the root's own manifests. Pure; docs/formats/0008-delta.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.publish.delta.column_types import Columns
from holdfast.publish.table_change import Cursor
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrites import InEffect
from holdfast.store import layout

FORMAT = 1
ENGINE = WRITER_FEATURE = "holdfast"
_LOCAL_TIMES = "timestampNtz"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999: what is written as text can be read everywhere."""


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Protocol(_Action, frozen=True, omit_defaults=True):
    """What a reader and a writer must know."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class Provider(_Action, frozen=True):
    """The format of the files."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class Metadata(_Action, frozen=True):
    """What a table is."""

    id: str
    name: str
    description: str
    format: Provider
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    created_time: int


class Add(_Action, frozen=True):
    """A file belongs to the table from now on."""

    path: str
    partition_values: dict[str, str]
    size: int
    modification_time: int
    data_change: bool
    stats: str
    tags: dict[str, str]


class Remove(_Action, frozen=True):
    """A file belongs to the table no longer."""

    path: str
    deletion_timestamp: int
    data_change: bool
    extended_file_metadata: bool
    partition_values: dict[str, str]
    size: int
    tags: dict[str, str]


class Txn(_Action, frozen=True):
    """How far an application got."""

    app_id: str
    version: int
    last_updated: int


class Published(msgspec.Struct, frozen=True, kw_only=True):
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


class CommitInfo(_Action, frozen=True):
    """Who committed, and what for."""

    timestamp: int
    operation: str
    operation_parameters: dict[str, str]
    engine_info: str
    is_blind_append: bool
    holdfast: Published


# -- making them --------------------------------------------------------------------------------------------


def protocol(columns: Columns) -> Protocol:
    """Every reader may read; no writer but us knows the feature that it would have to know, so none may write.

    That keeps a VACUUM away, too: some delete whatever a table's log does not name, our manifests included.
    """
    if not columns.has_local_times:
        return Protocol(1, 7, None, (WRITER_FEATURE,))
    return Protocol(3, 7, (_LOCAL_TIMES,), (WRITER_FEATURE, _LOCAL_TIMES))


def metadata(columns: Columns, topic: str, table: str, created_ms: int, delete_after_ms: int) -> Metadata:
    """What the table is."""
    configuration = {
        "delta.deletedFileRetentionDuration": f"interval {-(-delete_after_ms // 1000)} seconds",
        "delta.enableExpiredLogCleanup": "false",
    }
    return Metadata(
        table, topic, "a topic of a holdfast log; written by its owner alone", Provider(), columns.schema,
        (columns.partition,), configuration, created_ms,
    )  # fmt: skip


def add(file: InEffect, columns: Columns, *, data_change: bool) -> Add:
    """A file of the topic."""
    segment = file.segment
    return Add(
        _path(segment), {columns.partition: str(segment.partition)}, segment.size, segment.sealed_us // 1000,
        data_change, stats(segment, columns), _tags(segment),
    )  # fmt: skip


def remove(file: InEffect, columns: Columns, now_ms: int, *, data_change: bool) -> Remove:
    """A file that is retired, or replaced."""
    segment = file.segment
    values = {columns.partition: str(segment.partition)}
    return Remove(_path(segment), now_ms, data_change, True, values, segment.size, _tags(segment))


def txn(log: str, topic: str, partition: int, settled: int, now_ms: int) -> Txn:
    """How far a partition is settled in this table."""
    return Txn(f"holdfast:{log}:{topic}:{partition}", settled, now_ms)


def stats(segment: SegmentDocument, columns: Columns) -> str:
    """How many rows a file has, and between which offsets and times; from the manifest, no file is opened."""
    least: dict[str, Any] = {columns.offset: segment.first}
    most: dict[str, Any] = {columns.offset: segment.end - 1}
    if _YEARS_US[0] <= segment.time_min <= segment.time_max <= _YEARS_US[1]:
        least[columns.time], most[columns.time] = _iso(segment.time_min), _iso(segment.time_max)
    nulls = {columns.offset: 0, columns.time: 0}
    found = {"numRecords": segment.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _iso(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _path(segment: SegmentDocument) -> str:
    return segment.key.removeprefix(layout.table_folder(segment.topic))


def _tags(segment: SegmentDocument) -> dict[str, str]:
    return {"sha256": segment.sha256, "content": segment.content, "chain": segment.chain}


# -- bytes --------------------------------------------------------------------------------------------------

_NAMES = {
    CommitInfo: "commitInfo", Protocol: "protocol", Metadata: "metaData", Txn: "txn", Remove: "remove", Add: "add",
}  # fmt: skip
_encoder = msgspec.json.Encoder()


def encode(actions: Iterable[_Action]) -> bytes:
    """A commit."""
    return b"".join(b'{"%b":%b}\n' % (_NAMES[type(one)].encode(), _encoder.encode(one)) for one in actions)
