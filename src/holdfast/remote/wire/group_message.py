"""One group on its way to a server, and what became of it: values, and their bytes (MessagePack).

A group is what gathered in a client's queue while the one before it was on its way: plain records, by partition, and
units (batches, transactions, with the positions of consumers that go with them). Records travel as the bodies of
entries do (`model/frame.py`): columns, so that a group of thousands costs little more than one. Items of spaces travel
with their own keys; it is the server that hides them.

The decoder takes what a stranger sent: only shapes and lengths are proved here. Whether a topic, a partition or a size
is right is for the server to say (`checked_groups`), before anything is queued.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import Invalid
from holdfast.remote.wire.error_message import ErrorBody

VERSION = 1


class RecordsRun(msgspec.Struct, array_like=True, tag="records", frozen=True):
    """Consecutive plain records of one partition."""

    topic: str
    partition: int
    frame: bytes
    keys: list[bytes | None] | None = None
    """For each record, where any has one: its idempotency key. The server hashes it, with the name of the topic."""


class RowsRun(msgspec.Struct, array_like=True, tag="rows", frozen=True):
    """Rows of a typed topic for one partition: times, and one Arrow record-batch message."""

    topic: str
    partition: int
    body: bytes
    schema: bytes
    """The fingerprint of the version of the schema that the message has."""
    key: bytes | None = None
    """The idempotency key, of these rows or of the whole batch …"""
    batch: int | None = None
    """… of which this is a part: the same number stands at all parts, which lie one behind the other in a unit."""


class SpaceChange(msgspec.Struct, array_like=True, tag="space", frozen=True):
    """Items put into a space and deleted from it; or the space dropped."""

    space: str
    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    drop: bool = False


class Consumed(msgspec.Struct, array_like=True, tag="consumed", frozen=True):
    """How far a member of a consumer, which the server keeps, got in partitions whose position changes."""

    topic: str
    consumer: str
    member: str
    position: dict[int, int]


class Unit(msgspec.Struct, array_like=True, tag="unit", frozen=True):
    """What is durable together or not at all."""

    operations: list[RecordsRun | RowsRun | SpaceChange | Consumed]
    alone: bool
    """Whether it is a batch: an entry, or one for each partition."""


class Produced(msgspec.Struct, array_like=True, tag="produced", frozen=True):
    """What a producer sends under a number of its own: a record, or a batch."""

    producer: bytes
    sequence: int
    start: int
    item: RecordsRun | Unit


Item = RecordsRun | Unit | Produced


class GroupMessage(msgspec.Struct, array_like=True, frozen=True):
    """One group."""

    version: int
    items: list[RecordsRun | Unit | Produced]


class RunOutcome(msgspec.Struct, array_like=True):
    """Where a run is; -1 where it has no place of its own."""

    topic: str
    partition: int
    count: int
    first: int = -1
    seq: int = -1
    repeated: bool = False
    repeats: list[tuple[int, int, int, int]] = []
    """Index, partition, offset and seq of records that were stored before."""
    refused: list[tuple[int, ErrorBody]] = []
    """Index of records whose idempotency key stands for something else."""


class ItemOutcome(msgspec.Struct, array_like=True):
    """What became of an item: its runs in order, or why nothing of it was written."""

    runs: list[RunOutcome] = []
    error: ErrorBody | None = None


class GroupOutcome(msgspec.Struct, array_like=True):
    """What became of a group, item by item."""

    items: list[ItemOutcome]


_group = msgspec.msgpack.Decoder(GroupMessage)
_outcome = msgspec.msgpack.Decoder(GroupOutcome)
_encoder = msgspec.msgpack.Encoder()


def encode_group(items: Sequence[Item]) -> bytes:
    """A group as bytes."""
    return _encoder.encode(GroupMessage(VERSION, list(items)))


def decode_group(body: bytes) -> GroupMessage:
    """Bytes as a group; Invalid where they are none."""
    try:
        group = _group.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Invalid("the body is not a group of records", hint="see docs/reference/http.md#groups") from None
    if group.version != VERSION:
        raise Invalid(
            f"unknown version of a group version={group.version}", hint="install the same version of holdfast"
        )
    if not group.items:
        raise Invalid("the group is empty", hint="send at least one item")
    return group


def consumed_in(group: GroupMessage) -> list[Consumed]:
    """The positions that a group commits."""
    units = (item for item in group.items if isinstance(item, Unit))
    return [one for unit in units for one in unit.operations if isinstance(one, Consumed)]


def encode_outcome(outcome: GroupOutcome) -> bytes:
    """An outcome as bytes."""
    return _encoder.encode(outcome)


def decode_outcome(body: bytes) -> GroupOutcome:
    """Bytes as an outcome; ValueError where they are none."""
    try:
        return _outcome.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not the outcome of a group") from error
