"""Publishing topics: bringing each one's table to what is settled now.

A table shows a settled prefix of every partition, never more. Publishing is a difference: what our newest commit says
the table shows, and what manifests, expiries and rewrites say now. If nothing is new, nothing is written. Kill it at
any moment and run it again; run two at once: each row is in the table once.

What a table cannot hold (encrypted records, types that its format lacks) is refused before anything is written. A table
that another writer has changed is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.model.topic_name import is_name
from holdfast.publish.delta.column_types import DeltaColumns
from holdfast.publish.delta.commits import TableStanding
from holdfast.publish.delta.delta_log import ForeignCommit
from holdfast.publish.delta.delta_table import DeltaTable
from holdfast.publish.publication_report import PublicationReport, State
from holdfast.publish.settled_files import SettledFiles, require_plain
from holdfast.publish.table_change import Cursor, PartitionChange
from holdfast.publish.table_formats import table_format
from holdfast.root.batch_application import apply, is_applied
from holdfast.root.objects.documents import SinkBatchDocument, SinkTopicDocument, TopicDocument
from holdfast.root.objects.frontiers import behind, missing, newest_frontier
from holdfast.root.root_store import RootStore
from holdfast.root.sink_batches import end_of, newest_batch, read_batch
from holdfast.root.store_manifest import in_parallel, newest_topic
from holdfast.store import layout
from holdfast.suggestions import listed, meant

_ATTEMPTS = 50
_SEGMENTS_AT_ONCE = 50_000
_AT_ONCE_LEAST = 100
_ALL = 2**62

_LOST_HINT = (
    "the table shows what is there; open the log that ships here, or run `holdfast reconcile DIR --remote --fix` there,"
    " and publish again"
)


class Publisher:
    """Publishes the topics of one root. Used by one thread at a time."""

    def __init__(
        self, root: RootStore, clock: Clock, *, as_format: str = "delta", delete_after_ms: float, is_owner: bool = False
    ) -> None:
        """`delete_after_ms`: how long retired files stay, which new tables say to their readers; the log's owner says
        it again when it has changed.
        """
        self._format = table_format(as_format)
        self._root = root
        self._clock = clock
        self._keep, self._is_owner = int(delete_after_ms), is_owner
        self._log = ""

    def topics(self) -> list[str]:
        """The topics of the root that users made, by name."""
        return [name for name in self.all_topics() if not name.startswith("_")]

    def all_topics(self) -> list[str]:
        """All topics of the root, by name; those of channels and their like have an underscore in front."""
        return [name for name in self._root.folders(layout.TOPICS) if is_name(name)]

    def require_root(self) -> None:
        """Raise NotFound if there is no log here."""
        self._root.log()

    def require_publishable(self) -> str:
        """The log's id, if topics of this root can be published; raises Invalid, NotFound. Asks the store once."""
        if self._log:
            return self._log
        log = self._root.log()
        if self._root.trust.is_signed:
            raise Invalid(
                "an encrypted log cannot be published: no other reader can decrypt its topics",
                hint="read it with holdfast.read or Spark's format('holdfast') and a keyring",
            )
        self._log = log.log
        return self._log

    def publish(self, topic: str, *, dry_run: bool = False) -> PublicationReport:
        """Bring one topic's table up to date; raises Invalid, NotFound, Corrupt, Unavailable."""
        log = self.require_publishable()
        table = self._format(self._root, log, topic, self._clock)
        return _Publication(self._root, log, topic, table).run(self._keep, is_owner=self._is_owner, dry_run=dry_run)

    def is_published(self, topic: str) -> bool:
        """Whether a topic has a table here, from any writer."""
        return next(iter(self._root.list(layout.delta_folder(topic))), None) is not None

    def state(self, topic: str) -> PublicationReport | None:
        """How a topic's table stands; None where there is none."""
        if not self.is_published(topic):
            return None
        try:
            standing = self._format(self._root, self._root.log().log, topic, self._clock).look()
        except (Invalid, Corrupt) as error:
            return failed(topic, error)
        return report_of(self._root, topic, standing)

    def unpublish(self, topic: str, *, force: bool = False) -> int:
        """Remove a topic's table, and no data; returns how many objects went. With `force` also one that is not ours.

        Raises NotFound where there is none.
        """
        table = self._format(self._root, self._root.log().log, topic, self._clock)
        if not self.is_published(topic):
            raise NotFound(f"there is no published table topic={topic}", hint="holdfast status ROOT shows which are")
        if not force and not table.is_ours():
            raise Invalid(
                f"this table was not made by holdfast topic={topic}", hint="--force (force=True) removes its log anyway"
            )
        return table.remove()

    def attempt(self, topic: str, *, dry_run: bool = False) -> PublicationReport:
        """The same as `publish`, with a report where that raises; only a store that does not answer is still raised."""
        try:
            return self.publish(topic, dry_run=dry_run)
        except (Invalid, Corrupt, NotFound) as error:
            return failed(topic, error)


class _Totals(NamedTuple):
    commits: int = 0
    added: int = 0
    removed: int = 0

    def plus(self, changes: Sequence[PartitionChange]) -> _Totals:
        added, removed = sum(len(c.added) for c in changes), sum(len(c.removed) for c in changes)
        return _Totals(self.commits + 1, self.added + added, self.removed + removed)


class _Publication:
    """One topic, brought up to date once."""

    def __init__(self, root: RootStore, log: str, topic: str, table: DeltaTable) -> None:
        self._root = root
        self._log = log
        self._topic = topic
        self._table = table
        self._files: dict[int, SettledFiles] = {}
        self._batch: SinkBatchDocument | None = None
        """Of a sink's topic: the one that the table will end with."""
        self._is_sinks = False
        self._totals = _Totals()

    def run(self, keep: int, *, is_owner: bool, dry_run: bool) -> PublicationReport:
        """Raises Corrupt where less is settled than was once, when the table shows what there is."""
        frontier = None  # the log's owner puts back what is missing
        if not is_owner and not dry_run:
            frontier = newest_frontier(self._root, self._log)  # before the manifests
        report = self._publish(keep, is_owner=is_owner, dry_run=dry_run)
        there = {(self._topic, int(number)): end for number, end in report.settled.items()}
        for one in behind(frontier, there):
            if one.topic == self._topic:
                raise missing(one, self._root, _LOST_HINT)
        return report

    def _publish(self, keep: int, *, is_owner: bool, dry_run: bool) -> PublicationReport:
        for _ in range(_ATTEMPTS):
            # The table before the topic: what others have committed is not newer than what is read here.
            standing = self._table.look()
            self._files.clear()
            topic = self._look(dry_run=dry_run)
            columns = self._table.columns(topic)
            cursors = dict(standing.published.cursors) if standing.published else {}
            changes = self._changes(topic, cursors)
            if dry_run:
                return self._foretold(topic, cursors, changes, standing)
            if self._commit(topic, columns, changes, keep if is_owner or standing.published is None else None):
                break
        else:
            raise Unavailable(
                f"others keep publishing this topic topic={self._topic}", hint="one publisher is enough; try again"
            )
        if self._table.is_checkpoint_due():
            self._table.checkpoint(columns, self._files)
        return self._report(self._table.standing)

    def _commit(
        self, topic: TopicDocument, columns: DeltaColumns, changes: list[PartitionChange], keep: int | None
    ) -> bool:
        """Commit all that is new, step by step; False where another writer committed meanwhile."""
        while (done := self._table.commit(columns, changes, keep)) is not None:
            if not done:
                return False
            self._totals = self._totals.plus(changes)
            published = self._table.standing.published
            assert published is not None
            changes = self._changes(topic, published.cursors)
        return True

    def _foretold(
        self, topic: TopicDocument, cursors: dict[str, Cursor], changes: list[PartitionChange], standing: TableStanding
    ) -> PublicationReport:
        """What would be committed."""
        is_new = standing.published is None
        while changes:
            self._totals = self._totals.plus(changes)
            cursors.update({str(change.partition): change.after for change in changes})
            changes = self._changes(topic, cursors)
        if is_new and not self._totals.commits:
            self._totals = self._totals.plus(())
        return self._report(standing)

    def _report(self, standing: TableStanding) -> PublicationReport:
        report = report_of(self._root, self._topic, standing)
        commits, added, removed = self._totals
        state: State = "published" if commits else "unchanged"
        return msgspec.structs.replace(report, state=state, commits=commits, added=added, removed=removed)

    def _changes(self, topic: TopicDocument, cursors: Mapping[str, Cursor]) -> list[PartitionChange]:
        """One step of every partition: rows that are new or retired first, rewrites once there are none of those."""
        most = max(_AT_ONCE_LEAST, _SEGMENTS_AT_ONCE // topic.partitions)
        if isinstance(topic, SinkTopicDocument):
            most = _ALL  # half of a batch is never shown, however long the backlog is
        found = in_parallel(
            lambda number: self._of(number).change(cursors.get(str(number), Cursor()), most), range(topic.partitions)
        )
        changes = [change for change in found if change is not None]
        for change in changes:
            require_plain(change, self._topic)
        return [change for change in changes if not change.is_rewrite] or changes

    def _of(self, partition: int) -> SettledFiles:
        if partition not in self._files:
            end = end_of(self._batch, partition) if self._is_sinks else None
            self._files[partition] = SettledFiles(self._root, self._log, self._topic, partition, end)
        return self._files[partition]

    def _look(self, *, dry_run: bool) -> TopicDocument:
        """The topic as it is now; of a sink's, up to its newest batch, whose manifest objects are there then. Where
        nothing may be written, up to the one before it, whose manifest objects are there anyway.
        """
        topic = self._document()
        self._is_sinks = isinstance(topic, SinkTopicDocument)
        if not self._is_sinks:
            return topic
        self._batch = newest_batch(self._root, self._log, self._topic)
        if not dry_run:
            apply(self._root, self._batch)
        elif self._batch is not None and not is_applied(self._root, self._batch):
            before = self._batch.number - 1
            self._batch = None if before < 0 else read_batch(self._root, self._log, self._topic, before)
        return self._document()  # again: a version with room for the batch came before it

    def _document(self) -> TopicDocument:
        document = newest_topic(self._root, self._log, self._topic)
        if document is None:
            known = [name for name in self._root.folders(layout.TOPICS) if is_name(name)]
            raise NotFound(
                f"there is no topic {self._topic!r} at this root{meant(self._topic, known)} store={self._root.url}",
                hint=listed(known) if known else "there are none; nothing is settled yet",
            )
        return document


def report_of(root: RootStore, topic: str, standing: TableStanding) -> PublicationReport:
    """A table as it stands."""
    place = f"{root.url.rstrip('/')}/{layout.table_folder(topic).rstrip('/')}"
    published = standing.published
    if published is None:
        return PublicationReport(topic=topic, state="unchanged", table=place)
    settled = {partition: max(cursor.settled, 0) for partition, cursor in published.cursors.items()}
    return PublicationReport(
        topic=topic,
        state="unchanged",
        table=place,
        version=standing.version,
        files=published.files,
        rows=published.rows,
        bytes=published.bytes,
        settled=settled,
    )


def failed(topic: str, error: HoldfastError) -> PublicationReport:
    """The report where publishing raised."""
    state: State = "damaged" if isinstance(error, Corrupt) else "refused"
    if isinstance(error, ForeignCommit):
        state = "foreign"
    return PublicationReport(topic=topic, state=state, reason=error.message, hint=error.hint)
