"""The log of one pipeline's table: what the table is at each version, and the next commit.

    run ──► data files, named by nobody yet ──► one commit, create-only ──► now and then a checkpoint

A commit is one object with the rows' files and the position of the inputs, so a run that dies leaves the table as it
was before or as it is after. Two runs at once want the same version; one gets it, the other begins again. Reading costs
what is new since the last checkpoint. Only we write here: a foreign commit that changes anything is found, by every
read and every commit, and refused (`ForeignCommit`); notes, as a VACUUM leaves them, are passed over.

Everything in the log is untrusted: sizes are checked before reading, types while decoding, and what comes of it is held
against digests (`table_commit`). Holds no state: any number of threads and processes may use the same table.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.clock import Clock
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.model.trusted_time import newest_supported
from holdfast.publish.delta import actions, checkpoint_file
from holdfast.publish.delta.actions import Metadata, Provider, Txn
from holdfast.publish.delta.delta_log import ForeignCommit, is_checkpoint_due, version_of
from holdfast.store.port import Store
from holdfast.store.repeated_create import until_known
from holdfast.tables import table_commit, table_layout, table_schema
from holdfast.tables.data_file import DataFile
from holdfast.tables.file_stats import bounded_everywhere
from holdfast.tables.log_reading import LogReading
from holdfast.tables.table_cleaning import CleanReport, TableCleaner
from holdfast.tables.table_commit import TableCommit, TableCommitInfo, TableState
from holdfast.tables.table_replay import FILES_MAX, RETENTION, RETENTION_MS, metadata_digest, protocol_of
from holdfast.tables.table_run import TableRun

__all__ = ["CleanReport", "ForeignCommit", "TableChange", "TableLog", "TableSnapshot"]

_STAMPS = 100
"""Commits that are asked when they were written."""
_CONFIGURATION = {
    RETENTION: f"interval {RETENTION_MS // 1000} seconds",
    "delta.enableExpiredLogCleanup": "false",  # our own cleaning removes commits that nobody needs
}

logger = logging.getLogger("holdfast.tables")


class TableSnapshot(NamedTuple):
    """A table at a version."""

    version: int
    """-1: there is no table yet."""
    table_id: str
    schema: pa.Schema | None
    files: tuple[DataFile, ...]
    run: TableRun | None
    """The newest one."""
    configuration: dict[str, str]
    created_ms: int = 0
    state: TableState = TableState()
    checkpoint: int = -1
    """The one that this was read from; -1 for none."""
    check: str = ""
    """What the next commit must refer to."""


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a run makes of a table."""

    run: TableRun
    schema: pa.Schema
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    is_rewrite: bool = False
    """The same rows in other files: streams that follow the table see nothing new."""
    configuration: dict[str, str] = {}
    """What is new in the table's configuration."""


class TableLog:
    """One table."""

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._reading = LogReading(store, name)
        self._log = self._reading.log

    # -- reading ------------------------------------------------------------------------------------------------

    def snapshot(self, version: int | None = None) -> TableSnapshot:
        """The table as it is, or as it was at a version; raises NotFound for one that is gone, ForeignCommit, Corrupt.

        Where there is no table yet, the newest snapshot has version -1.
        """
        replay = self._reading.replay(version)
        metadata = replay.metadata
        if metadata is None:
            return TableSnapshot(-1, "", None, (), None, {})
        schema = table_schema.from_delta(metadata.schema_string, self._log.commit_key(replay.version))
        return TableSnapshot(
            replay.version,
            metadata.id,
            schema,
            tuple(replay.files.values()),
            replay.run,
            dict(metadata.configuration),
            metadata.created_time,
            replay.state,
            replay.checkpoint,
            replay.check,
        )

    def runs(self, most: int = 100) -> list[tuple[int, TableRun]]:
        """The newest runs and their versions, newest first."""
        found: list[tuple[int, TableRun]] = []
        for version, commit in self._reading.newest_first(self._reading.listing().last):
            found.append((version, commit.run))
            if len(found) >= most:
                break
        return found

    def version_of_run(self, run: int) -> int:
        """The version that a run made; raises NotFound."""
        listing = self._reading.listing()
        newest = next(self._reading.newest_first(listing.last), None)
        if newest is not None and 1 <= run <= newest[1].run.run:
            # Each run has one commit; only notes lie between them.
            upto = newest[0] - (newest[1].run.run - run)
            for version, commit in self._reading.newest_first(upto):
                if commit.run.run == run:
                    return version
                if commit.run.run < run:
                    break
        raise NotFound(
            f"the table has no such run (any more) table={self._name} run={run}",
            hint="`holdfast spark pipeline status` shows which there are",
        )

    # -- committing ---------------------------------------------------------------------------------------------

    def commit(self, before: TableSnapshot, change: TableChange) -> TableSnapshot | None:
        """Make a change visible, behind what `before` is; None where another writer committed first.

        Raises Invalid before anything is written. After StoreUnavailable the outcome is unknown: the next snapshot
        tells, by its run, and until then the files of this change must stay.
        """
        after, data = self._prepared(before, change)
        # A commit is known by its bytes: one whose reply was lost is found to be there.
        if not until_known(lambda: self._log.create(after.version, data)):
            return None
        if not self._follows(after):
            self._store.delete([self._log.commit_key(after.version)])
            return None
        if is_checkpoint_due(after.version, after.checkpoint, after.state.files) and self._checkpoint(after.version):
            return after._replace(checkpoint=after.version)
        return after

    def _prepared(self, before: TableSnapshot, change: TableChange) -> tuple[TableSnapshot, bytes]:
        self._require_next(before, change.run)
        now_ms = self._clock.now_us() // 1000
        schema = self._schema(before, change)
        metadata = self._metadata(before, change, schema, now_ms)
        protocol = protocol_of(metadata.schema_string)
        digest = metadata_digest(protocol, metadata)
        removed, files = _files_after(before, change)
        state = before.state.plus(change.added, removed)
        state = msgspec.structs.replace(state, metadata=digest)
        is_new = digest != before.state.metadata
        run = change.run
        commit = TableCommit(
            self._info(change, state, before.check, now_ms),
            protocol if is_new else None,
            metadata if is_new else None,
            (Txn(f"holdfast:{run.pipeline}:{self._name}", run.run, now_ms),),
            tuple(table_commit.remove(file, now_ms, data_change=not change.is_rewrite) for file in removed),
            tuple(table_commit.add(file, data_change=not change.is_rewrite) for file in change.added),
        )
        data, check = table_commit.encode(commit)
        after = TableSnapshot(
            before.version + 1,
            metadata.id,
            schema,
            files,
            run,
            metadata.configuration,
            metadata.created_time,
            state,
            before.checkpoint,
            check,
        )
        return after, data

    def _require_next(self, before: TableSnapshot, run: TableRun) -> None:
        expected = (0 if before.run is None else before.run.run) + 1
        if run.table != self._name or run.run != expected:
            raise Invalid(
                f"this is not the table's next run table={self._name} given={run.table}/{run.run} expected={expected}",
                hint="take a new snapshot, and continue from its run",
            )
        if before.run is not None and before.run.pipeline != run.pipeline:
            raise Invalid(
                f"the table belongs to another pipeline table={self._name} pipeline={before.run.pipeline}",
                hint=f"give this pipeline ({run.pipeline}) another place for its tables, or its table another name",
            )

    def _schema(self, before: TableSnapshot, change: TableChange) -> pa.Schema:
        now = table_schema.normal(change.schema)
        is_new = before.schema is None or (change.run.kind == "snapshot" and not _left(before, change))
        return now if is_new or before.schema is None else table_schema.grown(before.schema, now)

    def _metadata(self, before: TableSnapshot, change: TableChange, schema: pa.Schema, now_ms: int) -> Metadata:
        is_new = before.version < 0 or before.schema is None
        table = actions.table_id(self._clock.random_bytes(16)) if is_new else before.table_id
        configuration = {**_CONFIGURATION, **before.configuration, **change.configuration}
        configuration[actions.STATS_COLUMNS] = actions.stats_columns(bounded_everywhere(schema))
        return Metadata(
            table,
            self._name,
            f"a table of the pipeline {change.run.pipeline}; written by it alone",
            Provider(),
            table_schema.delta_text(schema),
            (),
            configuration,
            now_ms if is_new else before.created_ms,
        )

    def _info(self, change: TableChange, state: TableState, previous: str, now_ms: int) -> TableCommitInfo:
        mode = "Append" if not change.removed else "Overwrite"
        parameters = {"mode": mode, "added": str(len(change.added)), "removed": str(len(change.removed))}
        operation = "OPTIMIZE" if change.is_rewrite else "WRITE"
        return TableCommitInfo(
            now_ms,
            operation,
            parameters,
            actions.ENGINE,
            not change.removed,
            change.run,
            state,
            previous,
            self._clock.random_bytes(8).hex(),
        )

    def _follows(self, after: TableSnapshot) -> bool:
        """Whether a new commit is behind the others. For one that comes very late, the versions behind which it wants
        to be may have been cleaned, and its own place with them: what it wrote there, nobody would ever see.
        """
        version, since = after.version, max(after.version - 1, 0)
        found = [version_of(info) for info in self._log.listing(since).commits]
        if found != list(range(since, since + len(found))) or version not in found:
            return False
        for behind in range(version + 1, since + len(found)):
            try:
                commit = self._reading.commit(behind)
            except NotFound:
                return False
            except (Invalid, Corrupt):
                return True  # which the next one will find
            if commit is not None:
                return commit.info.previous == after.check
        return True

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoint(self, version: int) -> bool:
        """Write a checkpoint; a failure is logged and does no harm."""
        try:
            replay = self._reading.replay(version)
            kept = replay.kept(self._trusted_ms() - replay.retention_ms)
            data = checkpoint_file.encode(kept)
            self._log.create_checkpoint(version, data, checkpoint_file.hint(version, kept, len(data)))
        except HoldfastError as error:
            logger.warning(
                "cannot write a checkpoint of a table: %s",
                error.message,
                extra={"action": "table_checkpoint_failed", "table": self._name},
            )
            return False
        return True

    # -- cleaning -----------------------------------------------------------------------------------------------

    def clean(self, keep_ms: int) -> CleanReport:
        """Remove what no version of the last `keep_ms` needs, and what runs left that never committed.

        Raises ForeignCommit, Corrupt.
        """
        cleaning = TableCleaner(self._store, self._reading, self._name, self._trusted_ms())
        return cleaning.clean(keep_ms)

    def _trusted_ms(self) -> int:
        """The time by which things are old: of a clock that jumped, as far as the last commits support it."""
        written = [info.modified_us for info in self._log.listing().commits[-_STAMPS:]]
        return newest_supported(written, self._clock.now_us()) // 1000


def retention(keep_ms: int) -> dict[str, str]:
    """What the configuration of a table says to other engines, whose VACUUM keeps files as long as we do."""
    return {RETENTION: f"interval {-(-keep_ms // 1000)} seconds"}


def _left(before: TableSnapshot, change: TableChange) -> bool:
    """Whether files stay that were there before."""
    return bool({file.path for file in before.files} - {file.path for file in change.removed})


def _files_after(before: TableSnapshot, change: TableChange) -> tuple[list[DataFile], tuple[DataFile, ...]]:
    """The files that go, as they are in the table, and all that are there afterwards; raises Invalid."""
    there = {file.path: file for file in before.files}
    try:
        removed = [there.pop(file.path) for file in change.removed]
    except KeyError as error:
        raise Invalid(f"a file to remove is not in the table path={error}", hint="take a new snapshot") from None
    for file in change.added:
        _require_own(file, change.run.run)
        if file.path in there:
            raise Invalid(f"a file is in the table already path={file.path}", hint="each file is added once")
        there[file.path] = file
    if len(there) > FILES_MAX:
        raise Invalid(
            f"a table has too many files files={len(there)} max={FILES_MAX}",
            hint="let runs write fewer, larger files, or join those that are there in a run that rewrites them",
        )
    return removed, tuple(there.values())


def _require_own(file: DataFile, run: int) -> None:
    """A file's name carries the number of the run that adds it: by that, cleaning knows what is garbage."""
    name = table_layout.parse_file(file.path)
    try:
        same = table_commit.file_added(table_commit.add(file, data_change=True))
    except ValueError:
        same = None
    if same != file or name is None or name.run != run:
        raise Invalid(f"not a file of this run path={file.path} run={run}", hint="write it with FileWriter(run=…)")
