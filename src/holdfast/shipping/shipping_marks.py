"""How far the log is on its store: published at once, written down with the next group of the journal.

The live marks stand in the partitions, for everybody to read; waiters are woken once for all that moved together. The
stored ones may lag: after a crash the shipper finds out from the store what it had already, and sends the rest again,
the same bytes under the same names. They fall only where the store has lost what it had acknowledged. Belongs to the
shipper's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from holdfast.errors import Closed, HoldfastError
from holdfast.journal.journal import Journal
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.operations import MarkShipped
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SHIPPING_TEXT_BYTES_MAX, ShipmentRow, ShippingRow
from holdfast.root.root_trust import RootTrust

_NOTED_S = 10.0
_TEXT_CHARACTERS_MAX = SHIPPING_TEXT_BYTES_MAX // 4


class ShippedMarks:
    """The marks `shipped` and `settled` of one log."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._changed: dict[Partition, None] = {}
        self._noted: UnitTicket | None = None
        self._acknowledged = self._shipping.shipped_seq
        self._is_noted = True
        self.changed = asyncio.Event()
        """Set while something is not written down."""

    @property
    def _shipping(self) -> ShippingRow:
        return shipping_of(self._journal)

    @property
    def shipped_seq(self) -> int:
        """Entries up to this one are on the store."""
        return self._shipping.shipped_seq

    @property
    def acknowledged_seq(self) -> int:
        """Entries up to this one were acknowledged as being on the store; also while it has lost some of them."""
        return max(self._acknowledged, self.shipped_seq)

    async def claimed(self, epoch: int) -> None:
        """The store's root is claimed under this number; returns when that is written down.

        A number that was used is not used again, also not on a store that has forgotten it.
        """
        self._say(self._shipping._replace(epoch=epoch))
        await self.noted()

    async def noted(self) -> None:
        """Return when what is known now is written down."""
        self.note()
        if self._noted is not None:
            await self._noted.wait_async(_NOTED_S)

    def fall(self, seq: int, shipments: Iterable[ShipmentRow]) -> None:
        """The store has lost something: the marks say again what is there."""
        by_id = self._journal.partitions
        for shipment in shipments:
            self._set(by_id[shipment.partition_id], shipment)
        if seq < self._shipping.shipped_seq:
            self._say(self._shipping._replace(shipped_seq=seq))

    def _say(self, shipping: ShippingRow) -> None:
        self._journal.publish_shipping(shipping)
        self._is_noted = False
        self.changed.set()

    def ship(self, ends: Mapping[Partition, int], seq: int) -> None:
        """Everything up to an entry is on the store, which is up to these offsets."""
        for partition, end in ends.items():
            shipment = shipment_of(partition)
            if end > shipment.shipped_offset:
                self._set(partition, shipment._replace(shipped_offset=end))
        if seq > self._shipping.shipped_seq:
            self._say(self._shipping._replace(shipped_seq=seq))
        self._journal.shipping_state.signal.notify()

    def settle(self, partition: Partition, slots: int, segments: int, end: int) -> None:
        """A segment's manifest object is on the store."""
        shipment = shipment_of(partition)
        shipped = max(shipment.shipped_offset, end)
        self._set(partition, ShipmentRow(partition.id, slots, segments, end, shipped))
        self._journal.shipping_state.signal.notify()

    def _set(self, partition: Partition, shipment: ShipmentRow) -> None:
        partition.shipment = shipment
        self._changed[partition] = None
        self._is_noted = False
        self.changed.set()

    def note(self) -> bool:
        """Have what changed written down with the next group; False while the last note is still on its way."""
        if self._is_noted:
            return True
        if self._noted is not None and not self._noted.done:
            return False
        changed, self._changed = self._changed, {}
        self._is_noted = True
        self.changed.clear()
        try:
            self._noted = self._journal.note_shipped(self._shipping, [shipment_of(partition) for partition in changed])
        except HoldfastError:  # the journal is closing or poisoned: the next open asks the store
            return True
        return True

    def note_now(self) -> None:
        """At the end: what is known is written down, if the journal still can."""
        self._journal.drain(1.0)
        self.note()
        self._journal.drain(1.0)


def attach(journal: Journal, root: str, owner: bytes, firsts: Mapping[Partition, int]) -> None:
    """Say where the log is shipped to from now on, durably; partitions that never were begin at these offsets."""
    shipping = ShippingRow(root, owner, 0, 0, 0)
    for partition in journal.partitions.values():
        partition.shipment = ShipmentRow(partition.id, 0, 0, firsts[partition], firsts[partition])
    # Before it is durable: topics that are created meanwhile must know that they are shipped.
    journal.publish_shipping(shipping)
    journal.perform(MarkShipped(shipping, [shipment_of(partition) for partition in journal.partitions.values()]))


def rebind(journal: Journal, root: str) -> None:
    """The root has moved, with all that was in it: say so, durably; the marks stay."""
    shipping = shipping_of(journal)._replace(root=root, alarm="", ended="", last_error="")
    journal.publish_shipping(shipping)
    journal.perform(MarkShipped(shipping, []))


def say(journal: Journal, **what: str | int) -> None:
    """Write down what shipping says about itself (`ShippingRow`), if that is news; nobody waits for it."""
    row = shipping_of(journal)
    values = {name: text[:_TEXT_CHARACTERS_MAX] if isinstance(text, str) else text for name, text in what.items()}
    news = row._replace(**values)  # type: ignore[arg-type]
    if news == row:
        return
    journal.publish_shipping(news)
    try:
        journal.note_shipped(news, [])
    except HoldfastError:
        pass  # the journal is closing or poisoned


def fenced_by(journal: Journal) -> Closed | None:
    """The error of appends to a log that was taken over; None for all others."""
    shipping = journal.shipping
    if shipping is None or not shipping.fenced:
        return None
    return Closed(
        f"another process has taken this log over store={shipping.root} epoch={shipping.fenced}",
        reason="fenced",
        hint="the log continues there; what was not shipped stays readable here (see holdfast status): append it there",
    )


def shipping_of(journal: Journal) -> ShippingRow:
    """Where a log is shipped to; every one that ships has such a row."""
    shipping = journal.shipping
    assert shipping is not None
    return shipping


def root_trust(journal: Journal) -> RootTrust:
    """Who vouches for the root that a log ships to."""
    return RootTrust.of_owner(journal.signer, journal.log_id.hex())


def shipped_partitions(journal: Journal) -> list[Partition]:
    """The partitions that go to the store: all but those of topics that another writer writes there."""
    return [partition for partition in list(journal.partitions.values()) if partition.refusal is None]


def shipment_of(partition: Partition) -> ShipmentRow:
    """How far a partition is on the store; every one of a log that is shipped has such a row."""
    shipment = partition.shipment
    assert shipment is not None
    return shipment
