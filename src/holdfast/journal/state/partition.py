"""A partition's live state: where its next record goes, how far it is sealed, what waits to be sealed.

Only the writer thread changes it, and only after the commit that stored it; everybody may read. `durable` and `link`
are the head; `sealed` is one immutable row, replaced as a whole, so readers see numbers that belong together, without a
lock. The tail is what is durable and not sealed yet.
"""

from __future__ import annotations

from holdfast.crypto import digests
from holdfast.errors import Corrupt, HoldfastError, refuse_to_travel
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.model.control_rows import ShipmentRow, WatermarkRow
from holdfast.model.entry import Place
from holdfast.signals import Signal

_NO_CHAIN = bytes(32)


def unsealed(partition_id: int, first: int = 0) -> WatermarkRow:
    """The watermark of a partition that was never sealed and begins at this offset."""
    return WatermarkRow(partition_id, 0, first, _NO_CHAIN, 0, first, 0, b"")


class Partition:
    """The live state of one partition of one topic."""

    __slots__ = (
        "damage",
        "durable",
        "id",
        "link",
        "number",
        "place",
        "refusal",
        "sealed",
        "shipment",
        "shipping_state",
        "signal",
        "tail_bytes",
        "tail_bytes_found",
        "tail_since",
        "topic",
    )  # fmt: skip

    __reduce__ = refuse_to_travel

    def __init__(
        self,
        partition_id: int,
        topic: str,
        number: int,
        log_id: bytes,
        signal: Signal,
        first: int = 0,
        shipping_state: ShippingState | None = None,
    ) -> None:
        self.id = partition_id
        self.topic = topic
        self.number = number
        self.place = Place(log_id, topic, number)
        self.durable = first
        self.link = digests.NO_LINK
        self.sealed = unsealed(partition_id, first)
        self.tail_bytes = 0
        """Bytes of entries that were stored and not sealed since the log was opened."""
        self.tail_bytes_found = 0
        """Bytes of the tail that was there when the log was opened; the roller measures them."""
        self.tail_since = 0.0
        """When the tail began, on the monotonic clock."""
        self.damage: Corrupt | None = None
        """Why nothing can be read here, for those who read a damaged log."""
        self.refusal: HoldfastError | None = None
        """Why nothing is appended here any more, and nothing shipped: another writer writes this topic on the store."""
        self.shipment: ShipmentRow | None = None
        """How far it is on the store; the shipper replaces it. None: no store, what is sealed is settled."""
        self.shipping_state = shipping_state or ShippingState()
        self.signal = signal
        """Notified after `durable` or `sealed` moved; all partitions of a topic share one."""

    def advance(self, durable: int, link: bytes, size: int, now: float) -> bool:
        """Publish a committed head; True when this is where the tail begins."""
        begins = self.durable == self.sealed.sealed_offset
        if begins:
            self.tail_since = now
        self.tail_bytes += size
        self.link = link
        self.durable = durable
        self.signal.notify()
        return begins

    def seal(self, row: WatermarkRow, size: int) -> None:
        """Publish a committed watermark; `size` bytes have left the tail."""
        self.tail_bytes -= size
        self.sealed = row
        self.signal.notify()

    @property
    def settled(self) -> int:
        """Everything below lies in segments whose manifest object the store has; without a store, in segments."""
        shipment = self.shipment
        return self.sealed.sealed_offset if shipment is None else shipment.settled_offset

    @property
    def shipped(self) -> int:
        """Everything below is on the store; without one nothing is."""
        shipment = self.shipment
        return 0 if shipment is None else shipment.shipped_offset

    @property
    def tail_records(self) -> int:
        """Records that are durable and not sealed."""
        return self.durable - self.sealed.sealed_offset

    @property
    def tail_size(self) -> int:
        """Stored bytes of those records."""
        return max(0, self.tail_bytes_found + self.tail_bytes)
