"""What a table is, put together from a checkpoint and the commits behind it, and compared with what they say it is.

A checkpoint is Delta's own, as others read it, too. It holds files and metadata, and not the run: that stands in the
commit of the same version, with the digest that proves the checkpoint. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from holdfast.errors import Corrupt, Invalid
from holdfast.publish.delta import actions, checkpoint_file
from holdfast.publish.delta.actions import LOCAL_TIMES, Metadata, Protocol, Provider, Remove, Txn
from holdfast.publish.delta.checkpoint_file import Kept
from holdfast.publish.delta.column_types import has_local_times
from holdfast.tables.data_file import DataFile
from holdfast.tables.table_commit import TableCommit, TableState, add, damaged, file_of
from holdfast.tables.table_run import TableRun
from holdfast.tables.untrusted_parquet import ParquetProfile, UntrustedFile

RETENTION = "delta.deletedFileRetentionDuration"
RETENTION_MS = 7 * 86_400_000
"""How long files that left a table are listed in checkpoints, by default."""
_INTERVAL = re.compile(r"interval ([0-9]{1,12}) seconds\Z")
_SNAPPY = 1
_CHECKPOINT = ParquetProfile(lambda _: checkpoint_file.SETTINGS, _SNAPPY)
FILES_MAX = 1_000_000
"""Of one table."""
_TXNS_MAX = 1_000
TOMBSTONES_MAX = 50_000
"""Files that are gone, in a checkpoint: only a VACUUM of others looks at them, and a busy table has very many."""


class TableReplay:
    """A table, commit by commit."""

    def __init__(self) -> None:
        self.version = -1
        self.checkpoint = -1
        self.run: TableRun | None = None
        self.protocol: Protocol | None = None
        self.metadata: Metadata | None = None
        self.files: dict[str, DataFile] = {}
        self.removed: dict[str, Remove] = {}
        """Lately, for readers of older versions: what other engines' VACUUM must not delete yet."""
        self.txns: dict[str, Txn] = {}
        self.state = TableState()
        self.check = ""

    def apply(self, version: int, commit: TableCommit, key: str) -> None:
        """Go on by one commit of ours; raises Corrupt where it does not follow."""
        expected = (0 if self.run is None else self.run.run) + 1
        if commit.run.run != expected:
            raise damaged(f"a run of the table is missing run={expected} found={commit.run.run}", key)
        if commit.info.previous != self.check:
            raise damaged("a commit of a table was replaced", key)
        try:
            removed = [self.files.pop(one.path) for one in commit.removed]
        except KeyError:
            raise damaged("a commit of a table does not follow the one before", key) from None
        self.files.update((file.path, file) for file in commit.files)
        self.removed.update((one.path, one) for one in commit.removed)
        self.txns.update((one.app_id, one) for one in commit.txns)
        if commit.protocol is not None and commit.metadata is not None:
            self.protocol, self.metadata = commit.protocol, commit.metadata
        self.state = self.state.plus(commit.files, removed)
        self._settle(version, commit, key)

    def prove(self, version: int, commit: TableCommit, key: str) -> None:
        """Hold what a checkpoint says against the commit of its version; raises Corrupt."""
        self.state = TableState().plus(self.files.values())
        self._settle(version, commit, key)
        self.checkpoint = version

    def note(self, version: int) -> None:
        """Go on by a commit that changes nothing."""
        self.version = version

    def _settle(self, version: int, commit: TableCommit, key: str) -> None:
        if self.protocol is None or self.metadata is None:
            raise damaged("a table has no metadata", key)
        require_known(self.protocol)
        digest = metadata_digest(self.protocol, self.metadata)
        said = commit.info.state
        if (self.state.files, self.state.rows, self.state.bytes, self.state.digest, digest) != (
            said.files,
            said.rows,
            said.bytes,
            said.digest,
            said.metadata,
        ):
            raise damaged("a table is not what its commit says that it is", key)
        if len(self.files) != said.files:
            raise damaged("a table has a file twice", key)
        self.version, self.run, self.state, self.check = version, commit.run, said, commit.info.check

    @property
    def retention_ms(self) -> int:
        """How long files that left the table are listed in checkpoints."""
        said = "" if self.metadata is None else self.metadata.configuration.get(RETENTION, "")
        found = _INTERVAL.match(said)
        return int(found[1]) * 1000 if found else RETENTION_MS

    # -- checkpoints ------------------------------------------------------------------------------------------

    def kept(self, since_ms: int) -> list[Kept]:
        """All that the table is, for a checkpoint; of files that are gone those that went since then."""
        assert self.protocol is not None
        assert self.metadata is not None
        late = list(self.removed.values())[-TOMBSTONES_MAX:]
        gone = (one for one in late if one.deletion_timestamp >= since_ms and one.path not in self.files)
        return [
            self.protocol,
            self.metadata,
            *self.txns.values(),
            *(add(file, data_change=False) for file in self.files.values()),
            *(msgspec.structs.replace(one, data_change=False) for one in gone),
        ]


def metadata_digest(protocol: Protocol, metadata: Metadata) -> str:
    """What stands for a table's protocol and metadata."""
    return blake3(actions.encode([protocol, metadata])).hexdigest()


def protocol_of(schema_text: str) -> Protocol:
    """Every reader may read, and every writer knows what is asked of it: an ordinary Delta table."""
    if not has_local_times(schema_text):
        return Protocol(1, 2)
    return Protocol(3, 7, (LOCAL_TIMES,), (LOCAL_TIMES,))


def require_known(protocol: Protocol) -> None:
    """Refuse (Invalid) a table that needs more than we know."""
    plain, local = protocol_of(""), protocol_of('"timestamp_ntz"')
    if protocol not in (plain, local):
        raise Invalid(
            f"the table needs features that pipelines do not support reader={protocol.min_reader_version} "
            f"writer={protocol.min_writer_version}",
            hint="its protocol was changed; only the pipeline may write to it: remove the table and run again",
        )


def read_checkpoint(data: bytes, key: str) -> TableReplay:
    """What a checkpoint says, before it is proved; raises Corrupt for one that we did not write."""
    file = UntrustedFile(key, len(data), lambda start, length: data[start : start + length], _CHECKPOINT)
    if (
        not file.schema.equals(checkpoint_file.checkpoint_schema())
        or file.rows > FILES_MAX + TOMBSTONES_MAX + _TXNS_MAX
    ):
        raise Corrupt("a checkpoint of a table is not ours", path=key)
    replay = TableReplay()
    try:
        for batch in file.batches(file.schema.names):
            _take(replay, batch)
    except (ValueError, TypeError, KeyError, pa.ArrowException):
        raise Corrupt("a checkpoint of a table makes no sense", path=key) from None
    if len(replay.txns) > _TXNS_MAX:
        raise Corrupt("a checkpoint of a table makes no sense", path=key)
    return replay


def _take(replay: TableReplay, batch: pa.RecordBatch) -> None:
    for row in _rows(batch, "protocol"):
        features = [None if row[name] is None else tuple(row[name]) for name in ("readerFeatures", "writerFeatures")]
        replay.protocol = Protocol(row["minReaderVersion"], row["minWriterVersion"], *features)
    for row in _rows(batch, "metaData"):
        replay.metadata = _metadata(row)
    for row in _rows(batch, "txn"):
        replay.txns[row["appId"]] = Txn(row["appId"], row["version"], row["lastUpdated"])
    for path, time_ms, size in _columns(batch, "remove", "path", "deletionTimestamp", "size"):
        replay.removed[path] = Remove(path, time_ms, False, True, {}, size, {})
    for file in _added(batch):
        replay.files[file.path] = file


def _rows(batch: pa.RecordBatch, kind: str) -> list[dict[str, Any]]:
    column = batch.column(kind)
    found: list[dict[str, Any]] = column.filter(column.is_valid()).to_pylist()
    return found


def _metadata(row: dict[str, Any]) -> Metadata:
    form = Provider(row["format"]["provider"], dict(row["format"]["options"]))
    return Metadata(
        row["id"],
        row["name"],
        row["description"],
        form,
        row["schemaString"],
        tuple(row["partitionColumns"]),
        dict(row["configuration"]),
        row["createdTime"],
    )


def _columns(batch: pa.RecordBatch, kind: str, *names: str) -> Iterator[tuple[Any, ...]]:
    """Some values of each action of a kind, column by column: there are many."""
    column = batch.column(kind)
    column = column.filter(column.is_valid())
    return zip(*(_texts(column, name) for name in names), strict=True)


def _texts(column: pa.Array, name: str) -> list[Any]:
    name, _, tag = name.partition(".")
    values = pc.struct_field(column, name)
    found: list[Any] = (pc.fill_null(pc.map_lookup(values, tag, "first"), "") if tag else values).to_pylist()
    return found


def _added(batch: pa.RecordBatch) -> Iterator[DataFile]:
    names = ("path", "size", "modificationTime", "stats", "tags.run", "tags.bucket")
    return (file_of(*row) for row in _columns(batch, "add", *names))
