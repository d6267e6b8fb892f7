"""What a server says of a topic: its partitions, marks and schemas; and how that gets into the partitions of this
client.

Marks that come late or in the wrong order do no harm: `durable` and `sealed` only move forward.
"""

from __future__ import annotations

from base64 import b64decode

import msgspec

from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.model.control_rows import SchemaRow, ShipmentRow, WatermarkRow
from holdfast.remote.http.exchange import ServerAnswer, not_understood
from holdfast.signals import Signal

_PARTITIONS_MAX = 100_000
_NO_CHAIN = bytes(32)


class MarksRow(msgspec.Struct, frozen=True):
    """How far a partition is, and where it begins."""

    appended: int
    durable: int
    sealed: int
    shipped: int | None
    settled: int
    first: int
    segments: int


class SchemaText(msgspec.Struct, frozen=True):
    """One version of a typed topic's schema, as the log keeps it."""

    fingerprint: str
    definition: str


class TopicState(msgspec.Struct, frozen=True):
    """One topic, as a client plans with it."""

    name: str
    partitions: int
    typed: bool
    codec: str
    key: str | None
    marks: tuple[MarksRow, ...]
    ids: tuple[int, ...]
    """Of each partition its id, by which groups name it."""
    schemas: tuple[SchemaText, ...]
    tag: str
    """Names these marks, for a client that waits until they have moved: what `known` takes."""

    @classmethod
    def parse(cls, answer: ServerAnswer) -> TopicState:
        """What a server answered, checked."""
        state = answer.decoded(cls)
        count = state.partitions
        if not 1 <= count <= _PARTITIONS_MAX or {len(state.marks), len({*state.ids}), len(state.ids)} != {count}:
            raise not_understood()
        return state

    def schema_rows(self) -> tuple[SchemaRow, ...]:
        """The versions of its schema as a journal has them."""
        try:
            return tuple(
                SchemaRow(0, number, bytes.fromhex(version.fingerprint), b64decode(version.definition), 0, 0, b"")
                for number, version in enumerate(self.schemas, 1)
            )
        except ValueError:
            raise not_understood() from None

    def new_partitions(self, log_id: bytes, shipping_state: ShippingState) -> tuple[Partition, ...]:
        """Its partitions, as this client knows them."""
        signal = Signal()
        parts = tuple(
            Partition(self.ids[number], self.name, number, log_id, signal, 0, shipping_state)
            for number in range(self.partitions)
        )
        for part, marks in zip(parts, self.marks, strict=True):
            apply(part, marks)
        return parts


def apply(part: Partition, marks: MarksRow) -> bool:
    """Take up the marks of one partition; whether any moved. With the journal's lock held: two threads may come."""
    before = (part.durable, part.sealed, part.shipment)
    part.durable = max(part.durable, marks.durable)
    if marks.sealed >= part.sealed.sealed_offset:
        part.sealed = WatermarkRow(part.id, marks.segments, marks.sealed, _NO_CHAIN, 0, marks.first, 0, b"")
    if marks.shipped is not None:
        part.shipment = ShipmentRow(part.id, 0, 0, marks.settled, marks.shipped)
    return before != (part.durable, part.sealed, part.shipment)
