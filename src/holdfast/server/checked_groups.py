"""Groups that clients sent, checked item by item, as what the journal takes under a session's number.

What `remote/wire` decoded is only well formed. Here each item is held against the log: the topic is there and of the
right kind, the caller may append to it, the partition exists, nothing is larger than a record or a batch may be, and
rows are valid Arrow of a version of the topic's schema. An item that does not fit raises `ItemRefused` with its number;
then nothing of the whole group is written. Keys of users' items are hidden here, where the log's keys are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import unpack_from
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.journal import Operation, Run
from holdfast.journal.journal import Unit as QueuedUnit
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.session_access import ForwardedProduced, ForwardedRows, ForwardedUnit, check_producer
from holdfast.log.consumers.members import Committing
from holdfast.log.local_parts import parts_of
from holdfast.log.producers.producer import producer_key
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.transactions.space import stored_name
from holdfast.model import frame
from holdfast.model.record_columns import BadRecords, Columns, EncodedRows, Extra, Row, decode_headers
from holdfast.remote.wire.group_message import Consumed, GroupMessage, Produced, RecordsRun, RowsRun, SpaceChange, Unit
from holdfast.server.request_caller import Caller
from holdfast.server.served import AnyKind, Served

if TYPE_CHECKING:
    import pyarrow as pa

_ITEMS_MAX = 16_384
_KIND_BYTES_MAX = 255
_SPACES = "_spaces"

Forwardable = ForwardedRows | ForwardedUnit | ForwardedProduced


class ItemRefused(Exception):
    """An item of a group does not fit: which one, and why."""

    def __init__(self, index: int, error: HoldfastError) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


class _NamedRows(NamedTuple):
    """Rows of a unit that have an idempotency key."""

    topic: TypedTopic
    told: RowsRun
    stored: pa.RecordBatch
    encoded: EncodedRows


Take = Callable[[Consumed], Committing | None]
"""The position of a consumer's member, taken to be committed; None where nothing changes. Raises why it must not be."""


class CheckedGroup:
    """Makes what the journal takes of what one caller sent."""

    def __init__(self, served: Served, caller: Caller, take: Take | None = None) -> None:
        """Without `take` positions are left out: nothing of the group is going to be written."""
        self._served = served
        self._take = take
        self.taken: list[tuple[Committing, list[QueuedUnit]]] = []
        """Positions that were taken, and the unit that each will be in."""
        self._caller = caller
        self._journal = parts_of(served.log).journal
        self._named: list[_NamedRows] = []
        self._salt_is_in = False

    def items(self, message: GroupMessage) -> list[Forwardable]:
        """All items, checked; raises ItemRefused for the first that does not fit."""
        if len(message.items) > _ITEMS_MAX:
            raise Invalid(f"a group has up to {_ITEMS_MAX} items", hint="send several groups")
        found: list[Forwardable] = []
        for index, item in enumerate(message.items):
            try:
                found.append(self._produced(item) if isinstance(item, Produced) else self._item(item))
            except HoldfastError as error:
                raise ItemRefused(index, error) from None
        return found

    def _item(self, item: RecordsRun | Unit) -> ForwardedRows | ForwardedUnit:
        return self._unit(item) if isinstance(item, Unit) else self._rows_item(item)

    def _produced(self, told: Produced) -> ForwardedProduced:
        try:
            producer_key(told.producer.decode())
        except UnicodeDecodeError:
            raise Invalid("a producer has a name of printable characters", hint="log.producer('device-7')") from None
        check_producer(told.producer, told.sequence, told.start)
        self._served.require_producer(self._caller, told.producer.decode())
        self._served.sessions.enter(self._caller, told.producer, is_producer=True)
        return ForwardedProduced(told.producer, told.sequence, told.start, self._item(told.item))

    # -- plain records ------------------------------------------------------------------------------------

    def _rows_item(self, run: RecordsRun) -> ForwardedRows:
        topic = self._raw(run.topic)
        partition = topic._partitions.explicit(run.partition)
        rows, size = _rows(topic, run, self._journal.settings.group_records_max)
        return ForwardedRows(partition, rows, size)

    def _raw(self, name: str) -> Topic:
        topic = self._topic(name)
        if not isinstance(topic, Topic):
            raise Invalid(f"topic {name!r} is typed", hint="ask for it with schema=… or schema='latest'")
        return topic

    def _topic(self, name: str) -> AnyKind:
        self._caller.require_append(name)
        return self._served.topic(name)

    # -- units --------------------------------------------------------------------------------------------

    def _unit(self, unit: Unit) -> ForwardedUnit:
        settings = self._journal.settings
        operations: list[Operation] = []
        records = size = 0
        for told in unit.operations:
            if isinstance(told, Consumed):
                continue
            made, weight = self._operations(told)
            operations += made
            size += weight
            records += sum(len(one) for one in made if isinstance(one, Run))
        self._name_batches()
        consumed = [told for told in unit.operations if isinstance(told, Consumed)]
        if not operations and not consumed:
            raise Invalid("a unit is empty", hint="send at least one operation")
        if records > settings.batch_records_max or size > max(settings.batch_bytes_max, settings.queue_bytes_max):
            raise Invalid(f"the batch is too large records={records} bytes={size}", hint="send it in pieces")
        alone = unit.alone and all(isinstance(one, Run) and not one.keyed for one in operations)
        made_of = ForwardedUnit(operations, records, size, alone=alone)
        return self._with_positions(made_of, consumed) if consumed else made_of

    def _with_positions(self, unit: ForwardedUnit, consumed: list[Consumed]) -> ForwardedUnit:
        """Positions come last. Where one must not be committed, the unit is refused alone, and that is its answer."""
        placed: list[QueuedUnit] = []
        for told in consumed:
            self._caller.require_consumer(told.consumer, told.topic)
            try:
                committing = None if self._take is None else self._take(told)
            except HoldfastError as error:
                return unit._replace(refusal=error)
            if committing is not None:
                self.taken.append((committing, placed))
                unit = unit._replace(
                    operations=[*unit.operations, *committing.operations],
                    records=unit.records + committing.records,
                    size=unit.size + committing.size,
                    alone=False,
                )
        return unit._replace(placed=placed)

    def queued(self) -> None:
        """The group is in the queue, or never will be: those whose positions were taken are told."""
        for committing, placed in self.taken:
            if placed:
                committing.queued(UnitTicket(placed[0], 0.0))
            else:
                committing.failed()
        self.taken = []

    def _operations(self, told: RecordsRun | RowsRun | SpaceChange) -> tuple[list[Operation], int]:
        if isinstance(told, SpaceChange):
            return self._space_change(told)
        run, size = self._records_run(told) if isinstance(told, RecordsRun) else self._rows_run(told)
        return [run], size

    def _records_run(self, told: RecordsRun) -> tuple[Run, int]:
        topic = self._raw(told.topic)
        partition = topic._partitions.explicit(told.partition)
        rows, size = _rows(topic, told, self._journal.settings.batch_records_max)
        extras = any(row[2] is not None for row in rows)
        if told.keys is None:
            return Run.unplaced(partition, Columns.of(rows, extras=extras)), size
        run = Run.unplaced(partition)
        run.rows, run.extras, run.keyed = rows, extras, True
        return run, size

    def _rows_run(self, told: RowsRun) -> tuple[Run, int]:
        topic = self._topic(told.topic)
        if not isinstance(topic, TypedTopic):
            raise Invalid(f"topic {told.topic!r} holds raw records", hint="ask for it without schema")
        encoded, stored = _encoded(topic, told)
        if told.key is not None:
            self._named.append(_NamedRows(topic, told, stored, encoded))
        return Run.unplaced(topic._partitions.explicit(told.partition), encoded), topic._checks.batch_size(
            len(told.body)
        )

    def _name_batches(self) -> None:
        """Hash the idempotency keys of a unit's rows, with all rows that each stands for."""
        named, self._named = self._named, []
        batches: dict[tuple[str, bytes | None, int], list[_NamedRows]] = {}
        for at, one in enumerate(named):
            number = -1 - at if one.told.batch is None else one.told.batch
            batches.setdefault((one.topic.name, one.told.key, number), []).append(one)
        for (_, key, _), parts in batches.items():
            parts[0].topic._name_parts(
                key or b"", [(one.told.partition, one.stored) for one in parts], [one.encoded for one in parts]
            )

    def _space_change(self, told: SpaceChange) -> tuple[list[Operation], int]:
        self._caller.require(("append",), _SPACES)
        hidden, spaces = parts_of(self._served.log).hidden_keys, self._journal.spaces
        name = stored_name(told.space, self._journal)
        puts = [hidden.item(name, key, body) for key, body in told.puts]
        change, size = spaces.checked(
            name, puts, [hidden.stored_key(name, key) for key in told.deletes], drop=told.drop
        )
        salt = hidden.change() if puts and not self._salt_is_in else None
        if salt is None:
            return [change], size
        self._salt_is_in = True
        return [salt[0], change], size + salt[1]


def _rows(topic: Topic, run: RecordsRun, most: int) -> tuple[list[Row], int]:
    """Plain records, each checked by the topic's limits."""
    try:
        columns = frame.decode(run.frame)
    except BadRecords as error:
        raise Invalid(f"the records are malformed: {error}", hint="send them as holdfast's own client does") from None
    count = len(columns)
    if not 1 <= count <= most:
        raise Invalid(f"a run has 1 to {most} records, not {count}", hint="send them in pieces")
    keys = [None] * count if run.keys is None else run.keys
    if len(keys) != count:
        raise Invalid("each record has a key or none", hint="send them as holdfast's own client does")
    topic._checks.batch_size(0, max(map(len, columns.payloads)))
    extras = dict(_extras(topic, columns))
    rows: list[Row] = [
        (payload, time, extras.get(at), _unique(topic, key, payload, extras.get(at)))
        for at, (payload, time, key) in enumerate(zip(columns.payloads, columns.times, keys, strict=True))
    ]
    return rows, columns.size()


def _unique(topic: Topic, key: bytes | None, payload: bytes, extra: Extra | None) -> bytes | None:
    return None if key is None else topic._checks.unique_record(key, payload, extra)[1]


def _extras(topic: Topic, columns: Columns) -> Iterator[tuple[int, Extra]]:
    for at, (key, kind, headers) in columns.extras.items():
        if key is None and kind is None and headers is None:
            continue
        try:
            text = None if kind is None else kind.decode()
            named: Any = None if headers is None else decode_headers(headers)
        except (UnicodeDecodeError, BadRecords):
            raise Invalid("a record's kind or headers are malformed", hint="kinds are text, headers a map") from None
        yield at, topic._checks.extras(key, text, named, 0)[0]


def _encoded(topic: TypedTopic, told: RowsRun) -> tuple[EncodedRows, pa.RecordBatch]:
    """Rows, encoded and as a batch, proved to be valid Arrow of a version of the schema; in the newest."""
    from holdfast.segments.manifest.schema_versions import versions
    from holdfast.segments.typed.row_message import BadRows, message_of, sent_rows
    from holdfast.segments.typed.row_times import joined

    known = {version.fingerprint: version for version in versions(topic._journal, topic.name)}
    version = known.get(told.schema)
    if version is None:
        raise Invalid(f"topic {topic.name!r} has no such version of its schema", hint="get the topic again")
    try:
        count, times, message = frame.decode_typed(told.body)
        batch = sent_rows(message, version.stored)
    except (BadRecords, BadRows) as error:
        raise Invalid(f"the rows are malformed: {error}", hint="send them as holdfast's own client does") from None
    if batch.num_rows != count or not 1 <= count <= topic._journal.settings.batch_records_max:
        raise Invalid("the rows are not as many as they say, or too many", hint="send them in pieces")
    newest, stored = topic._conformed(batch)
    stamps = unpack_from(f"<{len(times) // 8}q", times)
    body = joined(frame.typed_head(count, bytes(times)), message_of(stored))
    return EncodedRows(count, min(stamps), max(stamps), body, newest.fingerprint), stored
