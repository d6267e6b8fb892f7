"""Groups of clients, screened item by item before anything of them is queued.

What `owner/group_frames.py` takes apart is well formed. Here each item is held against the log and the caller's rights:
it may append to the partition's topic, the topic is of the right kind, nothing is larger than a record or a batch may
be, and rows are valid Arrow of a version of the topic's schema. What does not fit is refused alone. Idempotency keys
are hashed here, with the name of their topic, and keys of users' items hidden, where the log's keys are. A partition
that the caller may not append to is answered as one that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import Corrupt, Denied, Invalid
from holdfast.journal.journal import Operation, Run
from holdfast.journal.session_access import ForwardedUnit, check_producer
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.consumers.member_messages import members_of, scope_of
from holdfast.log.consumers.members import lost
from holdfast.log.consumers.stored_positions import SPACE as POSITIONS_SPACE
from holdfast.log.consumers.stored_positions import Place, StoredPosition, read_items
from holdfast.log.local_parts import parts_of
from holdfast.log.producers.producer import producer_key
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log.transactions.space import stored_name
from holdfast.model import frame
from holdfast.model.record_columns import BadRecords, Columns, EncodedRows, Row
from holdfast.model.topic_name import check_users
from holdfast.server.request_caller import SPACES, Caller
from holdfast.server.served import AnyKind, Served

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.journal.state.partition import Partition

_POSITIONS_SPACE = POSITIONS_SPACE.encode()
_CLOCKS_DIFFER_US = 24 * 3600 * 1_000_000


class _NamedRows(NamedTuple):
    """Rows of a unit that have an idempotency key."""

    topic: TypedTopic
    partition: Partition
    stored: pa.RecordBatch
    encoded: EncodedRows


class GroupScreening:
    """Looks at one group of one caller; used by one thread at a time."""

    def __init__(self, served: Served, caller: Caller) -> None:
        self._served = served
        self._caller = caller
        self._journal = parts_of(served.log).journal
        self._positions: list[ChangeSpace] = []
        """Positions of consumers in the unit that is being read …"""
        self._named: list[_NamedRows] = []
        """… and its rows with idempotency keys."""
        self._salt_is_in = False
        self.has_members = False
        """Whether positions of members are in it."""

    def partition(self, number: int) -> Partition:
        """A partition that the caller may append to."""
        found = self._journal.partitions.get(number)
        try:
            if found is not None:
                self._caller.require(("append",), found.topic)
        except Denied:
            found = None
        if found is None:
            raise Denied(
                f"this token does not allow append of this partition, or there is none token={self._caller.id}"
            )
        check_users(found.topic)
        return found

    def producer(self, producer: bytes, sequence: int, start: int) -> None:
        """Whether the caller may use this producer's name."""
        try:
            name = producer_key(producer.decode()).decode()
        except UnicodeDecodeError:
            raise Invalid("a producer has a name of printable characters", hint="log.producer('device-7')") from None
        check_producer(producer, sequence, start)
        self._served.require_producer(self._caller, name)
        self._served.sessions.enter(self._caller, producer, is_producer=True)

    # -- records ------------------------------------------------------------------------------------------

    def rows(self, partition: Partition, rows: list[Row]) -> list[Row]:
        """Plain records, their idempotency keys hashed."""
        topic = self._raw(partition, (row[0] for row in rows))
        if not any(unique is not None for _, _, _, unique in rows):
            return rows
        checks = topic._checks
        return [
            (payload, time, extra, None if key is None else checks.unique_record(key, payload, extra)[1])
            for payload, time, extra, key in rows
        ]

    def columns(self, partition: Partition, columns: Columns) -> Columns:
        """The same of a batch without keys."""
        self._raw(partition, columns.payloads)
        return columns

    def _raw(self, partition: Partition, payloads: Iterable[bytes]) -> Topic:
        """A topic of raw records, which has these for payloads: where it has a codec, that reads them."""
        topic = self._topic(partition)
        if not isinstance(topic, Topic):
            raise Invalid(f"topic {topic.name!r} is typed", hint="ask for it with schema=… or schema='latest'")
        if topic.codec is not None:
            for payload in payloads:
                topic.codec.encode(payload)
        return topic

    def _topic(self, partition: Partition) -> AnyKind:
        return self._served.topic(partition.topic)

    def encoded(self, partition: Partition, encoded: EncodedRows) -> EncodedRows:
        """Typed rows, proved."""
        topic = self._topic(partition)
        if not isinstance(topic, TypedTopic):
            raise Invalid(f"topic {topic.name!r} holds raw records", hint="ask for it without schema")
        proved, stored = _proved(topic, encoded)
        topic._checks.batch_size(len(encoded.body))
        if encoded.key is not None:
            proved.key, proved.batch = encoded.key, encoded.batch
            self._named.append(_NamedRows(topic, partition, stored, proved))
        return proved

    def _name_batches(self) -> None:
        """Hash the idempotency keys of a unit's rows, with all rows that each stands for."""
        named, self._named = self._named, []
        batches: dict[tuple[str, bytes | None, int], list[_NamedRows]] = {}
        for one in named:
            number = id(one.encoded if one.encoded.batch is None else one.encoded.batch)
            batches.setdefault((one.topic.name, one.encoded.key, number), []).append(one)
        for (_, key, _), parts in batches.items():
            parts[0].topic._name_parts(
                key or b"", [(one.partition.number, one.stored) for one in parts], [one.encoded for one in parts]
            )

    # -- units --------------------------------------------------------------------------------------------

    def space(self, change: ChangeSpace) -> Sequence[Operation]:
        """Changes of spaces as they are stored; positions of consumers come behind all others."""
        if change.name == _POSITIONS_SPACE:
            self._positions.append(change)
            return ()
        self._caller.require(("append",), SPACES)
        hidden = parts_of(self._served.log).hidden_keys
        name = stored_name(change.name.decode().removeprefix("space/"), self._journal)
        puts = [hidden.item(name, key, body) for key, _, body in change.puts]
        deletes = [hidden.stored_key(name, key) for key in change.deletes]
        made, _ = self._journal.spaces.checked(name, puts, deletes, drop=change.drop)
        salt = hidden.change() if puts and not self._salt_is_in else None
        if salt is None:
            return (made,)
        self._salt_is_in = True
        return (salt[0], made)

    def unit(self, unit: ForwardedUnit) -> ForwardedUnit:
        """A whole unit: within its limits, its keys hashed, with the positions that are committed with it."""
        changes, self._positions = self._positions, []
        self._name_batches()
        if not unit.operations and not changes:
            raise Invalid("a unit is empty", hint="send at least one operation")
        settings = self._journal.settings
        if unit.records > settings.batch_records_max or unit.size > max(
            settings.batch_bytes_max, settings.queue_bytes_max
        ):
            raise Invalid(f"the batch is too large records={unit.records} bytes={unit.size}", hint="send it in pieces")
        alone = unit.alone and all(isinstance(one, Run) and not one.keyed for one in unit.operations)
        tokens = members_of(unit.scope)
        unit = unit._replace(scope=None, reissue=False, alone=alone)
        return self._with_members(unit, changes, tokens or {}) if changes else unit

    def _with_members(self, unit: ForwardedUnit, changes: list[ChangeSpace], tokens: dict[bytes, int]) -> ForwardedUnit:
        """Positions that members of the client commit: of what it says only the numbers count, the rest is made here.

        Which of them still have their partitions the owner looks at next (`owner/consumer_calls.py`).
        """
        self.has_members = True
        operations = list(unit.operations)
        records, size = unit.records, unit.size
        for change in changes:
            for place, positions in self._positions_in(change).items():
                self._caller.require_consumer(*place)
                self._check_positions(place, positions)
                made, weight = parts_of(self._served.log).consumers.position_operations(place, positions)
                operations += made
                records, size = records + 1, size + weight
        scope = ",".join(scope_of(self._caller.own(token), turn) for token, turn in tokens.items())
        return unit._replace(operations=operations, records=records, size=size, scope=scope, alone=False)

    def _positions_in(self, change: ChangeSpace) -> dict[Place, dict[int, StoredPosition]]:
        try:
            known = read_items(change.puts)
        except Corrupt:
            raise Invalid("a consumer's position is malformed", hint="install the same version of holdfast") from None
        if change.deletes or change.drop or known.waits or not known.positions:
            raise Invalid("members commit positions, and nothing else", hint="this is a defect in holdfast")
        return known.positions

    def _check_positions(self, place: Place, positions: dict[int, StoredPosition]) -> None:
        """Nothing lies behind the end of its partition, or further in the future than clocks differ."""
        parts = {part.number: part for part in self._journal.topics.get(place[1], ())}
        if parts_of(self._served.log).consumers.members_if(place) is None:
            raise lost(place, sorted(positions))
        latest = self._served.clock.now_us() + _CLOCKS_DIFFER_US
        for number, kept in positions.items():
            part = parts.get(number)
            if part is None or kept.gone or kept.next > part.durable:
                raise Invalid(f"there is no such position partition={number}", hint="commit what was given out")
            if kept.at > latest:
                raise Invalid("the client's clock is more than a day ahead of the server's", hint="set one of them")

    def drop(self) -> None:
        """The item that was looked at last is refused."""
        self._positions, self._named = [], []


def _proved(topic: TypedTopic, encoded: EncodedRows) -> tuple[EncodedRows, pa.RecordBatch]:
    """Rows, encoded and as a batch, proved to be valid Arrow of a version of the schema; in the newest."""
    from holdfast.segments.manifest.schema_versions import versions
    from holdfast.segments.typed.row_message import BadRows, message_of, sent_rows
    from holdfast.segments.typed.row_times import joined

    known = {version.fingerprint: version for version in versions(topic._journal, topic.name)}
    version = known.get(encoded.schema)
    if version is None:
        raise Invalid(f"topic {topic.name!r} has no such version of its schema", hint="ask for the topic again")
    try:
        count, times, message = frame.decode_typed(bytes(encoded.body))
        batch = sent_rows(message, version.stored)
    except (BadRecords, BadRows) as error:
        raise Invalid(f"the rows are malformed: {error}", hint="send them as holdfast's own client does") from None
    if batch.num_rows != count or not 1 <= count <= topic._journal.settings.batch_records_max:
        raise Invalid("the rows are not as many as they say, or too many", hint="send them in pieces")
    newest, stored = topic._conformed(batch)
    stamps = unpack_from(f"<{len(times) // 8}q", times)
    body = joined(frame.typed_head(count, bytes(times)), message_of(stored))
    return EncodedRows(count, min(stamps), max(stamps), body, newest.fingerprint), stored
