"""What the owner of a log has committed since, taken up by a handle of another process: as little as was requested.

Opening a log proves every control row. Doing that again after each of the owner's commits would make every read cost as
much as the log has topics and spaces. So a handle that does not own looks at the log's own row first: if it is as it
was, nothing has changed. Else it reads the rows of the requested partitions, what was added to the catalog, and where
the log is shipped to; whatever differs from what is known is proved by its stamp. A row that is not proved, or anything
else that does not fit, falls back to recovering the whole: what is to be said about damage is said there. Spaces are
not kept here at all: they are read, and proved, on demand.

Marks of a partition never go back here, whichever of two threads looked first.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable

from holdfast import caller
from holdfast.journal.backend import Backend, ControlTables
from holdfast.journal.proving.proofs import StampedRow
from holdfast.journal.proving.proved_groups import ProvedGroups
from holdfast.journal.proving.recovery import RecoveredState
from holdfast.journal.state.journal_state import JournalState
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import HeadRow, LogRow, PolicyRow, SchemaRow, ShipmentRow, TopicRow, WatermarkRow

_EVERYTHING = ""
"""Stands for all topics."""


class _Doubt(Exception):
    """Something does not fit: recover the whole."""


class CatchUp:
    """Keeps the state of a journal that another process owns up to date; any thread may ask, one lock guards it all."""

    def __init__(
        self,
        backend: Backend,
        state: JournalState,
        recover: Callable[[], RecoveredState],
        *,
        is_damaged: bool,
        hears_owner: bool,
    ) -> None:
        self._backend = backend
        self._state = state
        self._recover = recover
        self._is_damaged = is_damaged
        """What was damaged when it was opened is recovered as a whole each time."""
        self._hears_owner = hears_owner
        """Whether the owner tells how far partitions are on the store."""
        self._seen = {_EVERYTHING: state.row.groups}
        """At which group's end each topic was looked at."""
        self._groups = ProvedGroups()
        """Of groups that are in files alone: how far they were proved."""
        self._lock = RLock()

    def refresh(self, topic: str | None = None) -> None:
        """Take up what was committed since: how far this topic got, or (None) all of them; and new topics."""
        self.refuse_second()
        with self._lock:
            try:
                self._take_up(_EVERYTHING if topic is None else topic)
            except _Doubt:
                self._recover_all()

    def refuse_second(self) -> None:
        """Refuse a caller that was interrupted holding what another thread, catching up, may wait for."""
        caller.refuse_second(self._lock)
        self._backend.refuse_second()

    def find_topics(self) -> None:
        """Take up new topics and versions of schemas, and nothing else."""
        self.refuse_second()
        with self._lock:
            try:
                with self._backend.tables() as tables:
                    self._take_catalog(tables)
            except _Doubt:
                self._recover_all()

    def _take_up(self, topic: str) -> None:
        with self._backend.tables() as tables:
            row = self._take_catalog(tables)
            if max(self._seen.get(topic, -1), self._seen.get(_EVERYTHING, -1)) == row.groups:
                return
            if topic == _EVERYTHING:
                self._take_policies(tables)
                self._seen.clear()
            self._take_partitions(tables, topic)
            if tables.damage:
                raise _Doubt
        self._seen[topic] = row.groups

    def _recover_all(self) -> None:
        if not self._backend.has_changed() and self._seen.get(_EVERYTHING) == self._state.row.groups:
            return
        recovered = self._recover()
        self._state.topics.take_up(recovered.topics)
        self._state.row = recovered.row
        self._seen = {_EVERYTHING: recovered.row.groups}

    def _prove(self, row: StampedRow) -> None:
        if not self._state.vault.verify(row.key_epoch, row.message(), row.stamp):
            raise _Doubt

    def _prove_log(self, tables: ControlTables, row: LogRow) -> None:
        """Prove the log's own row; where groups are in files alone: the one in the database, then those groups."""
        stored, late = tables.stored_log_row(), tables.late
        if not late.proofs or stored is None:
            self._prove(row)
            return
        if stored.stamp != self._groups.base:
            self._prove(stored)
            self._groups = ProvedGroups.none(stored)
        proved = self._groups.go_on(late.proofs, stored.key_epoch, self._state.vault)
        if proved is None or proved.groups < late.groups:
            raise _Doubt
        self._groups = proved

    def _prove_head(self, tables: ControlTables, head: HeadRow) -> None:
        """Prove a head; one that follows from groups in files is proved with them."""
        if not (tables.late.proofs and head.partition_id in tables.late.partitions):
            self._prove(head)

    # -- topics, schemas, policies ------------------------------------------------------------------------

    def _take_catalog(self, tables: ControlTables) -> LogRow:
        topics, before, row = self._state.topics, self._state.row, tables.log_row()
        if row is None or self._is_damaged:
            raise _Doubt
        if row == before:
            return row
        self._prove_log(tables, row)
        shipping = tables.shipping_row()
        if shipping != topics.shipping:
            if shipping is None:
                raise _Doubt
            self._prove(shipping)
        if (row.topics, row.schemas, row.policies) != (before.topics, before.schemas, before.policies):
            self._take_schemas(tables, self._added(tables))
            self._take_policies(tables)
        if tables.damage:
            raise _Doubt
        topics.shipping, self._state.row = shipping, row
        return row

    def _added(self, tables: ControlTables) -> list[TopicRow]:
        topics = self._state.topics
        added = tables.rows("topics", TopicRow, "WHERE id>? ORDER BY id", max(topics.ids.values(), default=0))
        for topic in added:
            self._prove(topic)
        return added

    def _take_schemas(self, tables: ControlTables, added: list[TopicRow]) -> None:
        """Versions of schemas before the topics, and rows, that have them: others may be reading."""
        topics = self._state.topics
        names = {number: name for name, number in topics.ids.items()} | {topic.id: topic.name for topic in added}
        found: dict[str, tuple[SchemaRow, ...]] = {}
        for schema in tables.rows("schemas", SchemaRow, "ORDER BY topic_id, version"):
            name = names.get(schema.topic_id)
            if name is None or schema.version != len(found.get(name, ())) + 1:
                raise _Doubt
            known = topics.schemas.get(name, ())
            if schema not in known:
                self._prove(schema)
            found[name] = (*found.get(name, ()), schema)
        topics.schemas.update(found)
        for topic in added:
            self._adopt(tables, topic)

    def _adopt(self, tables: ControlTables, topic: TopicRow) -> None:
        heads = {head.number: head for head in tables.heads("WHERE topic_id=? ORDER BY number", topic.id)}
        if list(heads) != list(range(topic.partitions)) or topic.name in self._state.topics.partitions:
            raise _Doubt
        for head in tables.stored_heads("WHERE topic_id=? ORDER BY number", topic.id):
            self._prove(head)  # what follows from groups in files follows from these
        span = (heads[0].partition_id, heads[topic.partitions - 1].partition_id)
        marks = {mark.partition_id: mark for mark in tables.watermarks(*span)}
        shipments = {row.partition_id: row for row in tables.shipments(*span)}
        for mark in marks.values():
            self._prove(mark)
        for shipment in shipments.values():
            self._prove(shipment)
        path = str(self._backend.path)
        self._state.topics.adopt(topic, heads, marks, topic.partitions, path, shipments)

    def _take_policies(self, tables: ControlTables) -> None:
        topics = self._state.topics
        names = {number: name for name, number in topics.ids.items()}
        for policy in tables.rows("policies", PolicyRow, "ORDER BY topic_id"):
            name = names.get(policy.topic_id)
            if name is None:
                raise _Doubt
            if topics.policies.get(name) != policy:
                self._prove(policy)
                topics.policies[name] = policy

    # -- partitions ---------------------------------------------------------------------------------------

    def _take_partitions(self, tables: ControlTables, topic: str) -> None:
        topics = self._state.topics
        known = topics.by_id
        ids = list(known) if topic == _EVERYTHING else [part.id for part in topics.partitions.get(topic, ())]
        if not ids:
            return
        span = (min(ids), max(ids))
        marks = {mark.partition_id: mark for mark in tables.watermarks(*span)}
        shipments = {row.partition_id: row for row in tables.shipments(*span)}
        for head in tables.heads("WHERE partition_id BETWEEN ? AND ?", *span):
            part = known.get(head.partition_id)
            if part is not None:
                if head.next_offset > part.durable:
                    self._prove_head(tables, head)
                self._move(part, head, marks.get(part.id), shipments.get(part.id))

    def _is_news(self, found: ShipmentRow | None, known: ShipmentRow | None) -> bool:
        """Whether a stored row says more than is known: an owner's word is newer than what it has written down."""
        if known is None or not self._hears_owner:
            return found != known
        return (
            found is not None
            and found != known
            and found.shipped_offset >= known.shipped_offset
            and found.settled_offset >= known.settled_offset
        )

    def _move(self, part: Partition, head: HeadRow, mark: WatermarkRow | None, shipment: ShipmentRow | None) -> None:
        """Publish how far a partition is; its head is proved.

        In this order: readers meanwhile find each mark below the one before.

        What is sealed is looked at before what is durable only by those who then find the tail trimmed, and look again.
        """
        has_moved = False
        if head.next_offset > part.durable:
            part.link, part.durable, has_moved = head.link, head.next_offset, True
        if mark is not None and mark != part.sealed:
            self._prove(mark)
            if mark.sealed_offset >= part.sealed.sealed_offset:
                part.sealed, has_moved = mark, True
        if self._is_news(shipment, part.shipment):
            if shipment is not None:
                self._prove(shipment)
            part.shipment = shipment
            part.shipping_state.signal.notify()
        if has_moved:
            part.signal.notify()
