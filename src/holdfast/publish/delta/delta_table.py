"""A topic as a Delta table: what stands in its log, and the next commit.

    manifests ──► changes (`table_change`) ──► one commit, create-only ──► now and then a checkpoint

A commit is one object, so a process that dies leaves the table as it was before or as it is after. Two that publish at
once want the same version; one gets it, the other looks again. A checkpoint only says again what commits and manifests
say: when one cannot be written, the next one is. Used by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from blake3 import blake3

from holdfast.clock import Clock
from holdfast.errors import Corrupt, HoldfastError, NotFound
from holdfast.publish.delta import actions, checkpoint_file, topic_actions
from holdfast.publish.delta.actions import CommitInfo, Remove
from holdfast.publish.delta.checkpoint_file import Kept
from holdfast.publish.delta.column_types import DeltaColumns, raw_columns, typed_columns
from holdfast.publish.delta.commits import DeltaCommits, TableStanding
from holdfast.publish.delta.delta_log import is_checkpoint_due
from holdfast.publish.delta.topic_actions import PublishedState
from holdfast.publish.settled_files import SettledFiles
from holdfast.publish.table_change import Cursor, PartitionChange, difference
from holdfast.root.numbered_objects import numbered
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, TopicDocument
from holdfast.root.rewrites import InEffect, read_rewrites
from holdfast.root.root_contents import versions
from holdfast.store import layout
from holdfast.store.port import Store

_DELETED_AT_ONCE = 500

logger = logging.getLogger("holdfast.publish")


class DeltaTable:
    """The Delta table of one topic."""

    def __init__(self, store: Store, log: str, topic: str, clock: Clock) -> None:
        self._store = store
        self._log = log
        self._topic = topic
        self._clock = clock
        self._commits = DeltaCommits(store, log, topic)
        self.standing = TableStanding()
        """Where the table stood when it was last looked at, or committed to."""

    # -- what stands there --------------------------------------------------------------------------------

    def look(self) -> TableStanding:
        """Where the table stands now; raises ForeignCommit, Corrupt."""
        self.standing = self._commits.standing()
        return self.standing

    def columns(self, topic: TopicDocument) -> DeltaColumns:
        """The columns of the topic in this format; raises Invalid for what it has no word for."""
        schemas = versions(topic)
        return typed_columns(schemas[-1].stored) if schemas else raw_columns()

    # -- committing ---------------------------------------------------------------------------------------

    def commit(
        self, columns: DeltaColumns, changes: Sequence[PartitionChange], delete_after_ms: int | None
    ) -> bool | None:
        """Make the table show these changes, behind what `look` saw.

        True if it does, False if another writer committed meanwhile, None if there is nothing to commit. A new table
        keeps retired files for `delete_after_ms`, an older one too if that is given.
        """
        now_ms = self._clock.now_us() // 1000
        before = self.standing.published or self._new(now_ms)
        keep = before.delete_after_ms if delete_after_ms is None else delete_after_ms
        header = [
            topic_actions.protocol(columns),
            topic_actions.metadata(columns, self._topic, before.table, before.created_ms, keep),
        ]
        digest = blake3(actions.encode(header)).hexdigest()
        if digest == before.metadata:
            header = []
        if not header and not changes:
            return None
        after = _after(before, changes, digest, keep)
        version = self.standing.version + 1
        moved = [
            topic_actions.txn(self._log, self._topic, c.partition, c.after.settled, now_ms)
            for c in changes
            if c.after.settled > _cursor(before, c.partition).settled
        ]
        lines = (_info(after, changes, now_ms), *header, *moved, *_files(changes, columns, now_ms))
        if not self._commits.objects.create(version, actions.encode(lines)):
            return False
        self.standing = TableStanding(version, version, after, self.standing.checkpoint)
        return True

    def _new(self, now_ms: int) -> PublishedState:
        table = actions.table_id(self._clock.random_bytes(16))
        return PublishedState(
            log=self._log,
            topic=self._topic,
            table=table,
            created_ms=now_ms,
            metadata="",
            delete_after_ms=0,
            files=0,
            rows=0,
            bytes=0,
            cursors={},
        )

    # -- checkpoints --------------------------------------------------------------------------------------

    def is_checkpoint_due(self) -> bool:
        """Whether there were enough commits since the last one."""
        standing = self.standing
        if standing.published is None or standing.own != standing.version:
            return False
        return is_checkpoint_due(standing.version, standing.checkpoint, standing.published.files)

    def checkpoint(self, columns: DeltaColumns, partitions: Mapping[int, SettledFiles]) -> None:
        """Write a checkpoint of what was committed last; a failure is logged and does no harm."""
        try:
            self._checkpoint(columns, partitions)
        except HoldfastError as error:
            logger.warning(
                "cannot write a checkpoint of a table: %s",
                error.message,
                extra={"action": "table_checkpoint_failed", "topic": self._topic},
            )

    def _checkpoint(self, columns: DeltaColumns, partitions: Mapping[int, SettledFiles]) -> None:
        standing = self.standing
        assert standing.published is not None
        kept = self._kept(standing.published, columns, partitions)
        data = checkpoint_file.encode(kept)
        hint = checkpoint_file.hint(standing.version, kept, len(data))
        self._commits.objects.create_checkpoint(standing.version, data, hint)
        self.standing = standing._replace(checkpoint=standing.version)

    def _kept(
        self, published: PublishedState, columns: DeltaColumns, partitions: Mapping[int, SettledFiles]
    ) -> list[Kept]:
        now_ms = self._clock.now_us() // 1000
        keep = published.delete_after_ms
        kept: list[Kept] = [
            topic_actions.protocol(columns),
            topic_actions.metadata(columns, self._topic, published.table, published.created_ms, keep),
        ]
        for text, cursor in published.cursors.items():
            partition = int(text)
            files = partitions.get(partition) or SettledFiles(self._store, self._log, self._topic, partition)
            kept.append(topic_actions.txn(self._log, self._topic, partition, cursor.settled, now_ms))
            now = files.shown(cursor)
            kept += [topic_actions.add(file, columns, data_change=False) for file in now]
            kept += self._tombstones(partition, files, now, cursor, columns, now_ms, keep)
        return kept

    def _tombstones(
        self,
        partition: int,
        files: SettledFiles,
        now: Sequence[InEffect],
        cursor: Cursor,
        columns: DeltaColumns,
        now_ms: int,
        keep_ms: int,
    ) -> list[Remove]:
        """Files that went from the table so lately that readers of an older version may still need them."""
        if not cursor.expired and not cursor.rewrites:
            return []
        since_us = (now_ms - keep_ms) * 1000
        rewrites = read_rewrites(self._store, self._log, self._topic, partition)[: cursor.rewrites]
        older = Cursor(
            cursor.slot,
            cursor.number,
            cursor.settled,
            cursor.chain,
            self._expired_before(partition, since_us),
            sum(rewrite.rewritten_us < since_us for rewrite in rewrites),
        )
        gone = difference(partition, files.shown(older), now, cursor, is_rewrite=False).removed
        return [topic_actions.remove(file, columns, now_ms, data_change=False) for file in gone]

    def _expired_before(self, partition: int, time_us: int) -> int:
        """What was retired before a time."""
        for key in reversed(numbered(self._store, layout.expired_folder(self._topic, partition))):
            try:
                document = documents.decode(self._store.get(key), key, ExpiredDocument)
            except (Corrupt, NotFound):
                continue
            if document.expired_us < time_us:
                return document.upto
        return 0

    # -- the end ------------------------------------------------------------------------------------------

    def is_ours(self) -> bool:
        """Whether the table began with a commit of ours, whatever came after it."""
        return self._commits.is_ours()

    def remove(self) -> int:
        """Remove the table's log, newest first, so that what is left at any moment is an older table; returns how many
        objects went. No data is touched.
        """
        count = 0
        while keys := [info.key for info in self._store.list(layout.delta_folder(self._topic))]:
            # Hints and checkpoints before the commits that they stand for.
            keys.sort(key=lambda key: _or(layout.parse_delta_commit(key), 2**63), reverse=True)
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._store.delete(keys[start : start + _DELETED_AT_ONCE])
            count += len(keys)
        return count


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _cursor(published: PublishedState, partition: int) -> Cursor:
    return published.cursors.get(str(partition), Cursor())


def _after(before: PublishedState, changes: Iterable[PartitionChange], digest: str, keep: int) -> PublishedState:
    """What the table shows after some changes."""
    cursors, files, rows, size = dict(before.cursors), before.files, before.rows, before.bytes
    for change in changes:
        cursors[str(change.partition)] = change.after
        files += len(change.added) - len(change.removed)
        rows += _sum(change.added, "rows") - _sum(change.removed, "rows")
        size += _sum(change.added, "size") - _sum(change.removed, "size")
    return msgspec.structs.replace(
        before, metadata=digest, delete_after_ms=keep, cursors=cursors, files=files, rows=rows, bytes=size
    )


def _sum(files: Iterable[InEffect], what: str) -> int:
    return sum(getattr(file.segment, what) for file in files)


def _info(after: PublishedState, changes: Sequence[PartitionChange], now_ms: int) -> CommitInfo:
    added, removed = sum(len(c.added) for c in changes), sum(len(c.removed) for c in changes)
    is_rewrite = any(change.is_rewrite for change in changes)
    parameters = {"mode": "Append", "added": str(added), "removed": str(removed)}
    operation = "OPTIMIZE" if is_rewrite else "WRITE"
    return CommitInfo(now_ms, operation, parameters, actions.ENGINE, not removed, after)


def _files(
    changes: Iterable[PartitionChange], columns: DeltaColumns, now_ms: int
) -> Iterable[actions.Add | actions.Remove]:
    for change in changes:
        for file in change.removed:
            yield topic_actions.remove(file, columns, now_ms, data_change=not change.is_rewrite)
        for file in change.added:
            yield topic_actions.add(file, columns, data_change=not change.is_rewrite)
