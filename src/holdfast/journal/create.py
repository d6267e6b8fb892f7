"""A database made from what is known about a log, for rebuild and restore: rebuild from files, restore from a store.

It is filled beside its final place and proves itself like any other: stamps, counts, and the sum that the log's own row
vouches for. Entries that are brought along keep their sequence numbers, links, digests and key epochs, so the journal
goes on exactly where they end. Nothing is a log before its FORMAT is written, so a crash half-way leaves nothing but a
file that the next attempt removes.

Spaces live in a database and nowhere else: a new log has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.crypto import digests
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.journal.backend import Backend, create_backend
from holdfast.journal.state.partition import unsealed
from holdfast.journal.state.state_digest import total
from holdfast.model.control_rows import (
    EXPIRED,
    EpochRow,
    HeadRow,
    KeyRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    SegmentRow,
    ShipmentRow,
    ShippingRow,
    TopicRow,
    stamped,
)
from holdfast.model.entry import Entry


class KnownPartition(NamedTuple):
    """What is known about one partition."""

    rows: Sequence[SegmentRow] = ()
    first: int = 0
    """Where it begins, if it has no segments."""
    end: int | None = None
    """Where its tail ends, and the digest of the tail's last entry; None where nothing was brought along."""
    link: bytes = digests.NO_LINK
    slots: int = 0
    """Manifest objects on the store."""


class KnownTopic(NamedTuple):
    """What is known about one topic."""

    name: str
    partitions: tuple[KnownPartition, ...]
    schemas: tuple[tuple[bytes, bytes], ...] = ()
    """Fingerprint and definition of each version."""
    policy: tuple[int, int, int] | None = None
    codec: str = ""


class KnownKey(NamedTuple):
    """An idempotency key that is brought along."""

    partition_id: int
    record: int
    seq: int
    hash: bytes
    digest: bytes = b""
    """Of what was appended under it; empty where that is not known."""


class KnownTail(NamedTuple):
    """Entries that are brought along, and what is needed to decrypt them."""

    entries: Iterable[Entry] = ()
    """In the order of commits; partition ids as `partition_ids` gives them."""
    key_epochs: tuple[KeyEpoch, ...] = ()
    last_seq: int = 0
    last_group: int = 0
    keys: Iterable[KnownKey] = ()
    """In the order of commits; of equal ones the last counts."""
    keys_max: int = 0
    """The window: older ones are forgotten."""


class KnownStore(NamedTuple):
    """The store that the log was brought back from."""

    root: str
    owner: bytes
    epoch: int
    is_copy: bool


def partition_ids(topics: Sequence[KnownTopic]) -> dict[tuple[str, int], int]:
    """The ids that partitions will have."""
    places = [(topic.name, number) for topic in topics for number in range(len(topic.partitions))]
    return {place: partition_id for partition_id, place in enumerate(places, 1)}


def create_database(
    path: Path,
    vault: Vault,
    topics: Sequence[KnownTopic],
    clock: Clock,
    *,
    created_us: int | None = None,
    tail: KnownTail | None = None,
    store: KnownStore | None = None,
) -> NewDatabase:
    """Make the database of a log at a path where nothing is."""
    with create_backend(path, anew=True) as backend:
        filling = _Filling(backend, vault, clock, tail or KnownTail(), store)
        filling.fill(topics, created_us)
        keys = backend.count_keys()
    return NewDatabase(path, vault, keys, filling.shipping, filling.shipments)


class NewDatabase(NamedTuple):
    """A database that was made."""

    path: Path
    vault: Vault
    keys: int
    """How many idempotency keys it remembers."""
    shipping: ShippingRow | None
    shipments: Sequence[ShipmentRow]

    def claimed(self, epoch: int, slots: Mapping[int, int]) -> None:
        """Say under which claim the log is shipped, and how many manifest objects each partition has by its id."""
        assert self.shipping is not None
        with create_backend(self.path, anew=False) as backend:
            backend.store_shipping(stamped(self.shipping._replace(epoch=epoch), self.vault))
            rows = [row._replace(slots=slots[row.partition_id]) for row in self.shipments]
            backend.store_shipments([stamped(row, self.vault) for row in rows])


class _Filling:
    """One database while it is filled, inside one transaction."""

    def __init__(self, backend: Backend, vault: Vault, clock: Clock, tail: KnownTail, store: KnownStore | None) -> None:
        self._backend = backend
        self._clock = clock
        self._now = clock.now_us()
        self._tail = tail
        self._store = store
        self.vault = vault
        self.shipping: ShippingRow | None = None
        self.shipments: list[ShipmentRow] = []
        self._stamps: list[bytes] = []
        self._segments = self._schemas = self._policies = self._partitions = 0

    def fill(self, topics: Sequence[KnownTopic], created_us: int | None) -> None:
        """Write everything."""
        backend, vault = self._backend, self.vault
        self._begin_keys()
        ids = partition_ids(topics)
        for topic_id, topic in enumerate(topics, 1):
            self._fill_topic(topic_id, topic)
            for number, partition in enumerate(topic.partitions):
                self._fill_partition(topic_id, ids[topic.name, number], number, partition)
        entries, keys = self._fill_tail(), self._fill_keys()
        rows = (row for topic in topics for partition in topic.partitions for row in partition.rows)
        epoch = 1 + max((row.epoch for row in rows), default=0)
        backend.insert_epoch(stamped(EpochRow(epoch, self._now, os.getpid(), vault.epoch, b""), vault))
        row = LogRow(
            vault.log_id,
            self._now if created_us is None else created_us,
            int(vault.keyed),
            epoch,
            vault.epoch,
            len(topics),
            self._partitions,
            entries,
            self._tail.last_seq + 1,
            self._tail.last_group,
            keys,
            total(vault.stamp, self._stamps),
            self._segments,
            self._schemas,
            self._policies,
            0,
            0,
            0,
            0,
            b"",
            vault.epoch,
            b"",
        )
        backend.insert_log(stamped(row, vault))

    def _begin_keys(self) -> None:
        """Keep the key epochs of what is brought along, each proved, and begin a new one."""
        vault, brought = self.vault, self._tail.key_epochs
        if not vault.keyed:
            return
        known = {epoch.number: epoch for epoch in brought}
        vault.attach(known.get)
        for epoch in brought:
            vault.cipher(epoch.number)
            self._backend.insert_key_epoch(epoch)
        fresh = vault.begin(1 + max(known, default=0), self._clock.random_bytes(SALT_BYTES))
        self._backend.insert_key_epoch(fresh)
        vault.enter(fresh)

    def _fill_topic(self, topic_id: int, topic: KnownTopic) -> None:
        backend, vault = self._backend, self.vault
        draft = TopicRow(topic_id, topic.name, len(topic.partitions), topic.codec, self._now, vault.epoch, b"")
        backend.insert_topic(stamped(draft, vault))
        for version, (fingerprint, definition) in enumerate(topic.schemas, 1):
            schema = SchemaRow(topic_id, version, fingerprint, definition, self._now, vault.epoch, b"")
            backend.insert_schema(stamped(schema, vault))
            self._schemas += 1
        if topic.policy is not None:
            policy = stamped(PolicyRow(topic_id, *topic.policy, vault.epoch, b""), vault)
            backend.store_policy(policy)
            self._stamps.append(policy.stamp)
            self._policies += 1

    def _fill_partition(self, topic_id: int, partition_id: int, number: int, partition: KnownPartition) -> None:
        backend, vault, rows = self._backend, self.vault, partition.rows
        self._partitions += 1
        self._segments += len(rows)
        for row in rows:
            backend.insert_segment(stamped(row._replace(partition_id=partition_id, key_epoch=vault.epoch), vault))
        sealed = rows[-1].end if rows else partition.first
        end = sealed if partition.end is None else partition.end
        head = stamped(HeadRow(partition_id, topic_id, number, end, partition.link, vault.epoch, b""), vault)
        backend.insert_heads([head])
        self._stamps.append(head.stamp)
        if rows or partition.first:
            mark = unsealed(partition_id, partition.first)
            if rows:
                live = ((row.number, row.first_offset) for row in rows if row.state != EXPIRED)
                first = next(live, (len(rows), sealed))
                mark = mark._replace(
                    segments=len(rows),
                    sealed_offset=sealed,
                    chain=rows[-1].chain,
                    first_segment=first[0],
                    first_offset=first[1],
                )
            watermark = stamped(mark._replace(key_epoch=vault.epoch), vault)
            backend.store_watermark(watermark)
            self._stamps.append(watermark.stamp)
        if self._store is not None:
            shipment = ShipmentRow(partition_id, partition.slots, len(rows), sealed, end, vault.epoch)
            self.shipments.append(shipment)
            backend.store_shipments([stamped(shipment, vault)])

    def _fill_tail(self) -> int:
        """Insert the entries; returns how many."""
        if self._store is not None:
            store = self._store
            self.shipping = ShippingRow(
                store.root,
                store.owner,
                store.epoch,
                self._tail.last_seq,
                int(store.is_copy),
                key_epoch=self.vault.epoch,
            )
            self._backend.store_shipping(stamped(self.shipping, self.vault))
        count = 0
        for entry in self._tail.entries:
            self._backend.insert_entries([entry])
            count += 1
        return count

    def _fill_keys(self) -> int:
        """Insert the idempotency keys, as many as the window holds; returns the last one's id."""
        last = 0
        for last, key in enumerate(self._tail.keys, 1):
            digest = self.vault.hash_cipher(self.vault.epoch).encrypt(key.digest)
            draft = KeyRow(last, key.hash, key.partition_id, key.record, key.seq, digest, self.vault.epoch, b"")
            self._backend.store_key(stamped(draft, self.vault))
        if last > self._tail.keys_max:
            self._backend.trim_keys(last - self._tail.keys_max, last)
        return last
