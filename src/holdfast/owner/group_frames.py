"""Groups as frames: what a client forwards, packed without a loop over records, and taken apart by the owner.

Rows of a partition travel as one MessagePack array, which decodes in C into the very rows that the owner's queue takes.
Typed rows travel as the Arrow bytes that they are, and are neither copied nor looked at on the way in. What the owner
takes apart is checked first: sizes against the frame, types by the decoder, partitions against the log, and the few
things that a reader would stumble over (a kind that is no text, headers that do not decode).

The same frames come from clients of `holdfast.connect`, in bodies of HTTP. Those are no members: a `Screening` looks at
each item, hashes idempotency keys, hides keys of spaces, proves typed rows and refuses what the client may not write.
What it refuses is refused alone, and that is part of the answer; a frame that does not decode is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.journal_port import Operation, Run
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.forwarded import ForwardedProduced, ForwardedRows, ForwardedUnit, Item
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.stored_positions import SPACE as POSITIONS_SPACE
from holdfast.model.control_rows import ITEM_KEY_BYTES_MAX, SESSION_NAME_BYTES_MAX, SPACE_NAME_BYTES_MAX
from holdfast.model.record_columns import BadRecords as BadRecord
from holdfast.model.record_columns import Columns, EncodedRows, Extra, Row, decode_headers, decode_kind
from holdfast.model.topic_name import MEMBERS_WRITE, is_own
from holdfast.owner.wire import GROUP, BadFrame, begin_frame

Buffer = bytes | memoryview

_POSITIONS_SPACE, _USERS_SPACES = POSITIONS_SPACE.encode(), b"space/"

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_UNIQUE_BYTES = 32
_Unique = Annotated[bytes, msgspec.Meta(min_length=_UNIQUE_BYTES, max_length=_UNIQUE_BYTES)]
_RawKey = Annotated[bytes, msgspec.Meta(max_length=1_048_576)]
"""An idempotency key as its user gave it; members send its hash, with the digest of what it stands for."""
_Name = Annotated[bytes, msgspec.Meta(min_length=1, max_length=SPACE_NAME_BYTES_MAX)]
_Key = Annotated[bytes, msgspec.Meta(max_length=ITEM_KEY_BYTES_MAX)]
_Extra = tuple[bytes | None, bytes | None, bytes | None]


class _Rows(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    partition: int
    length: _Count


class _Columns(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    partition: int
    length: _Count


class _Encoded(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    partition: int
    count: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    time_min: _Int64
    time_max: _Int64
    schema: Annotated[bytes, msgspec.Meta(max_length=64)]
    key: _RawKey | None
    batch: _Count | None
    """The same number stands at all parts of one batch, and at no others of the unit."""
    length: _Count


class _Space(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    name: _Name
    drop: bool
    length: _Count


_UNREADABLE = (msgspec.MsgspecError, BadRecord, UnicodeDecodeError, RecursionError)
_KIND_BYTES_MAX = 255
_Part = _Rows | _Columns | _Encoded | _Space


class _Unit(msgspec.Struct, frozen=True, array_like=True, tag="u", gc=False):
    operations: list[_Part]
    scope: Annotated[str, msgspec.Meta(max_length=1024)] | None
    reissue: bool
    alone: bool


class _Produced(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    producer: Annotated[bytes, msgspec.Meta(min_length=1, max_length=SESSION_NAME_BYTES_MAX)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    start: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    item: _Rows | _Unit


class GroupHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a group's frame says of its body."""

    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    floor: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    items: list[_Rows | _Unit | _Produced]


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(GroupHead).decode
_rows = msgspec.msgpack.Decoder(list[tuple[bytes, _Int64, _Extra | None, _Unique | None]]).decode
_raw_rows = msgspec.msgpack.Decoder(list[tuple[bytes, _Int64, _Extra | None, _RawKey | None]]).decode
_columns = msgspec.msgpack.Decoder(tuple[list[bytes], list[_Int64], dict[int, _Extra]]).decode
_changes = msgspec.msgpack.Decoder(tuple[list[tuple[_Key, _Int64, bytes]], list[_Key]]).decode


# -- by a client ------------------------------------------------------------------------------------------


class PackedGroup:
    """A group that is ready to be sent, again and again if need be: only what it says of earlier answers changes."""

    __slots__ = ("_bodies", "_heads", "_length", "sequence")

    def __init__(self, sequence: int, items: list[Item]) -> None:
        self.sequence = sequence
        self._bodies: list[Buffer] = []
        self._heads = [_packed_item(item, self._bodies) for item in items]
        self._length = sum(map(len, self._bodies))

    def buffers(self, floor: int) -> list[Buffer]:
        """Its frame; all answers below `floor` have come."""
        return [begin_frame(GROUP, GroupHead(self.sequence, floor, self._heads), self._length), *self._bodies]


def _packed_item(item: Item, bodies: list[Buffer]) -> _Rows | _Unit | _Produced:
    if isinstance(item, ForwardedProduced):
        return _Produced(item.producer, item.sequence, item.start, _packed_plain(item.item, bodies))
    return _packed_plain(item, bodies)


def _packed_plain(item: ForwardedRows | ForwardedUnit, bodies: list[Buffer]) -> _Rows | _Unit:
    if isinstance(item, ForwardedRows):
        return _packed_rows(item.partition, item.rows, bodies)
    batches: dict[int, int] = {}
    parts = [_packed_part(operation, bodies, batches) for operation in item.operations]
    return _Unit(parts, item.scope, item.reissue, item.alone)


def _packed_rows(partition: Partition, rows: list[Row], bodies: list[Buffer]) -> _Rows:
    packed = _encode(rows)
    bodies.append(packed)
    return _Rows(partition.id, len(packed))


def _packed_part(operation: Operation, bodies: list[Buffer], batches: dict[int, int]) -> _Part:
    """`batches` numbers those of a unit whose parts lie in several partitions: one object stands for each."""
    if isinstance(operation, ChangeSpace):
        packed = _encode((operation.puts, operation.deletes))
        bodies.append(packed)
        return _Space(operation.name, operation.drop, len(packed))
    assert isinstance(operation, Run)  # the forwarder refuses all others
    columns, partition = operation.columns, operation.partition
    if columns is None:
        return _packed_rows(partition, operation.rows, bodies)
    if isinstance(columns, Columns):
        packed = _encode((columns.payloads, columns.times, columns.extras))
        bodies.append(packed)
        return _Columns(partition.id, len(packed))
    body = memoryview(columns.body).cast("B")
    bodies.append(body)
    return _Encoded(
        partition.id,
        columns.count,
        columns.time_min,
        columns.time_max,
        columns.schema,
        columns.key,
        None if columns.batch is None else batches.setdefault(id(columns.batch), len(batches)),
        len(body),
    )


# -- by the owner -----------------------------------------------------------------------------------------


class Screening(Protocol):
    """Looks at what a client sent that is no member of the log; raises why an item must not be written."""

    def partition(self, number: int) -> Partition:
        """A partition that the sender may append to."""

    def rows(self, partition: Partition, rows: list[Row]) -> list[Row]:
        """Plain records, their idempotency keys hashed."""

    def columns(self, partition: Partition, columns: Columns) -> Columns:
        """The same of a batch without keys."""

    def encoded(self, partition: Partition, encoded: EncodedRows) -> EncodedRows:
        """Typed rows, proved."""

    def space(self, change: ChangeSpace) -> Sequence[Operation]:
        """Changes of spaces as they are stored."""

    def unit(self, unit: ForwardedUnit) -> ForwardedUnit:
        """A whole unit, behind its operations."""

    def producer(self, producer: bytes, sequence: int, start: int) -> None:
        """Whether the sender may use this producer's name."""

    def drop(self) -> None:
        """The item that was looked at last is refused."""


class GroupReader:
    """Takes frames of groups apart, for one owner; with a `screening` those of one sender who is no member."""

    def __init__(
        self, partitions: Mapping[int, Partition], settings: JournalSettings, screening: Screening | None = None
    ) -> None:
        self._partitions = partitions
        self._settings = settings
        self._screening = screening

    def read(self, head: memoryview, body: memoryview, *, keeps: bool) -> tuple[GroupHead, list[Item]]:
        """The items of a group; with `keeps` the body's memory stays as it is, and need not be copied."""
        read = self._item if self._screening is None else self._screened
        try:
            group = _head(head)
            pieces = _Pieces(body)
            items = [read(item, pieces, keeps=keeps) for item in group.items]
        except _UNREADABLE as error:
            raise BadFrame("a group does not decode") from error
        pieces.check_end()
        if not items:
            raise BadFrame("a group without items")
        return group, items

    def _screened(self, item: _Rows | _Unit | _Produced, pieces: _Pieces, *, keeps: bool) -> Item:
        """An item of a client that is no member; what must not be written, as its refusal."""
        end = pieces.at + _length(item)
        refusal: HoldfastError
        try:
            return self._item(item, pieces, keeps=keeps)
        except HoldfastError as error:
            refusal = error
        except (*_UNREADABLE, BadFrame) as error:
            refusal = Invalid(f"an item is malformed: {_said(error)}", hint="send it as holdfast's own client does")
        pieces.at = end
        assert self._screening is not None
        self._screening.drop()
        return ForwardedUnit([], 0, 0, refusal=refusal)

    def _item(self, item: _Rows | _Unit | _Produced, pieces: _Pieces, *, keeps: bool) -> Item:
        if not isinstance(item, _Produced):
            return self._plain(item, pieces, keeps=keeps)
        if self._screening is not None:
            self._screening.producer(item.producer, item.sequence, item.start)
        plain = self._plain(item.item, pieces, keeps=keeps)
        if isinstance(plain, ForwardedUnit) and not all(map(_is_users_run, plain.operations)):
            raise _not_theirs()  # a position among them would be looked at by nobody
        return ForwardedProduced(item.producer, item.sequence, item.start, plain)

    def _plain(self, item: _Rows | _Unit, pieces: _Pieces, *, keeps: bool) -> ForwardedRows | ForwardedUnit:
        if isinstance(item, _Rows):
            partition, rows = self._rows(item, pieces)
            if is_own(partition.topic):
                raise _not_theirs()
            return ForwardedRows(partition, rows, item.length)
        if not item.operations:
            raise BadFrame("a unit without operations")
        batches: dict[int, bytes] = {}
        operations = [one for part in item.operations for one in self._operations(part, pieces, batches, keeps=keeps)]
        records = sum(len(one) for one in operations if isinstance(one, Run))
        size = sum(part.length for part in item.operations)
        unit = ForwardedUnit(operations, records, size, item.scope, item.reissue, item.alone)
        return unit if self._screening is None else self._screening.unit(unit)

    def _operations(
        self, part: _Part, pieces: _Pieces, batches: dict[int, bytes], *, keeps: bool
    ) -> Sequence[Operation]:
        screening = self._screening
        match part:
            case _Rows():
                partition, rows = self._rows(part, pieces)
                run = Run.unplaced(partition)
                run.rows = rows
                run.extras = any(row[2] is not None for row in rows)
                run.keyed = any(row[3] is not None for row in rows)
                return (run,)
            case _Columns():
                partition, columns = self._partition(part.partition), self._columns(pieces.take(part.length))
                if screening is not None:
                    columns = screening.columns(partition, columns)
                return (Run.unplaced(partition, columns),)
            case _Encoded():
                return (self._encoded(part, pieces.take(part.length), batches, keeps=keeps),)
            case _Space():
                if part.name != _POSITIONS_SPACE and not part.name.startswith(_USERS_SPACES):
                    raise _not_theirs()
                puts, deletes = _changes(pieces.take(part.length))
                change = ChangeSpace(part.name, tuple(puts), tuple(deletes), part.drop)
                return (change,) if screening is None else screening.space(change)

    def _encoded(self, part: _Encoded, body: memoryview, batches: dict[int, bytes], *, keeps: bool) -> Run:
        partition, screening = self._partition(part.partition), self._screening
        if screening is None and part.key is not None and len(part.key) != _UNIQUE_BYTES:
            raise BadFrame("this is no hash of an idempotency key")
        encoded = EncodedRows(part.count, part.time_min, part.time_max, body if keeps else bytes(body), part.schema)
        encoded.key = part.key
        if part.batch is not None:  # one object for all parts of a batch: by that the writer knows them
            encoded.batch = batches.setdefault(part.batch, bytes(bytearray(part.key or b"")))
        return Run.unplaced(partition, encoded if screening is None else screening.encoded(partition, encoded))

    def _rows(self, item: _Rows, pieces: _Pieces) -> tuple[Partition, list[Row]]:
        screening = self._screening
        rows: list[Row] = (_rows if screening is None else _raw_rows)(pieces.take(item.length))
        if not rows:
            raise BadFrame("a run without rows")
        if item.length > self._settings.payload_bytes_max:  # else none of them can be too large
            self._check_payloads([row[0] for row in rows])
        for extra in [row[2] for row in rows if row[2] is not None]:
            self._check_extra(extra)
        partition = self._partition(item.partition)
        return partition, rows if screening is None else screening.rows(partition, rows)

    def _columns(self, packed: memoryview) -> Columns:
        payloads, times, extras = _columns(packed)
        if not payloads or len(payloads) != len(times) or any(not 0 <= at < len(payloads) for at in extras):
            raise BadFrame("columns do not fit each other")
        if len(packed) > self._settings.payload_bytes_max:
            self._check_payloads(payloads)
        for extra in extras.values():
            self._check_extra(extra)
        return Columns(payloads, times, extras)

    def _check_payloads(self, payloads: list[bytes]) -> None:
        if max(map(len, payloads)) > self._settings.payload_bytes_max:
            raise BadFrame("a payload is too large")

    def _check_extra(self, extra: Extra) -> None:
        key, kind, headers = extra
        if key is not None and len(key) > self._settings.key_bytes_max:
            raise BadFrame("a key is too large")
        if kind is not None and not (len(kind) <= _KIND_BYTES_MAX and decode_kind(kind)):
            raise BadFrame("a kind is text of 1 to 255 bytes")
        if headers is not None:
            if len(headers) > self._settings.headers_bytes_max:
                raise BadFrame("headers are too large")
            decode_headers(headers)

    def _partition(self, number: int) -> Partition:
        if self._screening is not None:
            return self._screening.partition(number)
        partition = self._partitions.get(number)
        if partition is None:
            raise BadFrame("a partition that this log does not have")
        if is_own(partition.topic) and partition.topic not in MEMBERS_WRITE:
            raise _not_theirs()
        return partition


def _is_users_run(operation: Operation) -> bool:
    """All that a producer sends."""
    return isinstance(operation, Run) and not is_own(operation.partition.topic)


def _length(item: _Rows | _Unit | _Produced) -> int:
    """How much of the body an item takes."""
    plain = item.item if isinstance(item, _Produced) else item
    return plain.length if isinstance(plain, _Rows) else sum(part.length for part in plain.operations)


def _said(error: Exception) -> str:
    """Why something does not decode; a decoder's own words may quote what was sent."""
    return str(error) if isinstance(error, (BadFrame, BadRecord)) else "its types are others"


def _not_theirs() -> BadFrame:
    """Of what holdfast keeps for itself members write `MEMBERS_WRITE` alone, and the space of positions, in units."""
    return BadFrame("a change of what members do not write")


class _Pieces:
    """A body, taken piece by piece."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self.at = 0

    def take(self, length: int) -> memoryview:
        end = self.at + length
        if end > len(self._body):
            raise BadFrame("a body is shorter than its head says")
        piece, self.at = self._body[self.at : end], end
        return piece

    def check_end(self) -> None:
        if self.at != len(self._body):
            raise BadFrame("a body is longer than its head says")
