"""The topics of a log and their partitions, as the writer stored them.

Created by the writer in a unit of its own; published only after the commit. Names are checked where they
enter: what is a valid name here is also a valid object key and directory name everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.clock import Clock
from holdfast.crypto import digests
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.state.operations import AddSchema, Change, CreateTopic, SetPolicy
from holdfast.journal.state.partition import Partition, unsealed
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.journal.state.state_digest import Vouched
from holdfast.model.control_rows import (
    HeadRow,
    PolicyRow,
    SchemaRow,
    ShipmentRow,
    ShippingRow,
    TopicRow,
    WatermarkRow,
    stamped,
)
from holdfast.signals import Signal


class TopicRegistry:
    """Names to partitions; read by everybody, changed by the writer."""

    def __init__(self, log_id: bytes) -> None:
        self._log_id = log_id
        self.ids: dict[str, int] = {}
        self.stamps: dict[Vouched, bytes] = {}
        """Stamps of the stored heads, watermarks, policies and spaces, as they were when the log was opened."""
        self.by_id: dict[int, Partition] = {}
        self.partitions: dict[str, tuple[Partition, ...]] = {}
        self.schemas: dict[str, tuple[SchemaRow, ...]] = {}
        """The versions of each typed topic's schema, oldest first."""
        self.codecs: dict[str, str] = {}
        """What the payloads of topics are, where they are not bytes."""
        self.policies: dict[str, PolicyRow] = {}
        self.shipping: ShippingRow | None = None
        """Where the log is shipped to; None when it never was."""
        self.shipping_state = ShippingState()
        self.signal = Signal()
        """Notified when a topic was created or changed."""
        self.is_changed = False
        """Whether that has happened since the log was opened."""

    def adopt(
        self,
        row: TopicRow,
        heads: dict[int, HeadRow],
        watermarks: dict[int, WatermarkRow],
        count: int,
        path: str,
        shipments: Mapping[int, ShipmentRow] | None = None,
    ) -> None:
        """Take a stored topic with its heads, by number; where one is lost, its partition says so when it is read."""
        created = []
        signal = Signal()
        for number in range(count):
            head = heads.get(number)
            partition_id = -1 if head is None else head.partition_id
            partition = Partition(
                partition_id, row.name, number, self._log_id, signal, shipping_state=self.shipping_state
            )
            if head is None:
                partition.damage = Corrupt("the partition's head is lost", path=path, topic=row.name, partition=number)
            else:
                partition.durable, partition.link = head.next_offset, head.link
                self.stamps["head", head.partition_id] = head.stamp
                watermark = watermarks.get(head.partition_id)
                if watermark is not None:
                    partition.sealed = watermark
                    self.stamps["watermark", head.partition_id] = watermark.stamp
                partition.shipment = (shipments or {}).get(head.partition_id)
            created.append(partition)
        self.ids[row.name] = row.id
        self.publish(row.name, created, row.codec)

    def store(self, backend: Backend, vault: Vault, operation: CreateTopic, clock: Clock) -> None:
        """Insert a topic, its heads and its first schema into the open transaction."""
        name, first = operation.name, operation.first
        topic_id, partition_id = backend.next_ids()
        topic = TopicRow(topic_id, name, operation.partitions, operation.codec, clock.now_us(), vault.epoch, b"")
        backend.insert_topic(stamped(topic, vault))
        signal = Signal()
        created = [
            Partition(partition_id + n, name, n, self._log_id, signal, first, self.shipping_state)
            for n in range(operation.partitions)
        ]
        if self.shipping is not None:
            rows = [stamped(ShipmentRow(p.id, 0, 0, first, first, vault.epoch), vault) for p in created]
            backend.store_shipments(rows)
            for partition, row in zip(created, rows, strict=True):
                partition.shipment = row
        drafts = [HeadRow(p.id, topic_id, p.number, first, digests.NO_LINK, vault.epoch, b"") for p in created]
        heads = [stamped(head, vault) for head in drafts]
        backend.insert_heads(heads)
        stamps: dict[Vouched, bytes] = {("head", head.partition_id): head.stamp for head in heads}
        for partition in created if first else ():
            partition.sealed = stamped(unsealed(partition.id, first)._replace(key_epoch=vault.epoch), vault)
            backend.store_watermark(partition.sealed)
            stamps["watermark", partition.id] = partition.sealed.stamp
        if operation.definition:
            operation.schema = self._insert_schema(
                backend, vault, topic_id, 1, operation.fingerprint, operation.definition, clock
            )
        self.ids[name] = topic_id
        operation.created = created
        operation.change = Change(
            topics=1, partitions=len(created), schemas=int(operation.schema is not None), stamps=stamps
        )

    def store_schema(self, backend: Backend, vault: Vault, operation: AddSchema, clock: Clock) -> None:
        """Insert the next version of a schema; a version that was taken first by another writer is refused."""
        versions = self.schemas[operation.topic]
        if operation.version != len(versions) + 1:
            raise Invalid("the topic's schema has changed meanwhile", hint="get the topic again")
        operation.schema = self._insert_schema(
            backend,
            vault,
            self.ids[operation.topic],
            operation.version,
            operation.fingerprint,
            operation.definition,
            clock,
        )
        operation.change = Change(schemas=1)

    def _insert_schema(
        self,
        backend: Backend,
        vault: Vault,
        topic_id: int,
        version: int,
        fingerprint: bytes,
        definition: bytes,
        clock: Clock,
    ) -> SchemaRow:
        row = SchemaRow(topic_id, version, fingerprint, definition, clock.now_us(), vault.epoch, b"")
        row = stamped(row, vault)
        backend.insert_schema(row)
        return row

    def store_policy(self, backend: Backend, vault: Vault, operation: SetPolicy) -> None:
        """Insert or replace a topic's retention policy."""
        topic_id = self.ids[operation.topic]
        row = PolicyRow(topic_id, operation.bytes_max, operation.age_max_us, operation.records_max, vault.epoch, b"")
        operation.policy = stamped(row, vault)
        backend.store_policy(operation.policy)
        stamps: dict[Vouched, bytes] = {("policy", topic_id): operation.policy.stamp}
        operation.change = Change(policies=int(operation.topic not in self.policies), stamps=stamps)

    def publish_change(self, operation: CreateTopic | AddSchema | SetPolicy) -> None:
        """Make what was stored visible."""
        match operation:
            case CreateTopic():
                if operation.schema is not None:
                    self.schemas[operation.name] = (operation.schema,)
                self.publish(operation.name, operation.created, operation.codec)
            case AddSchema() if operation.schema is not None:
                self.schemas[operation.topic] = (*self.schemas[operation.topic], operation.schema)
            case SetPolicy() if operation.policy is not None:
                self.policies[operation.topic] = operation.policy
        self.is_changed = True
        self.signal.notify()

    def publish(self, name: str, created: list[Partition], codec: str) -> None:
        """Make a stored topic visible."""
        if codec:
            self.codecs[name] = codec
        self.by_id.update({partition.id: partition for partition in created if partition.damage is None})
        self.partitions[name] = tuple(created)

    def take_up(self, fresh: TopicRegistry) -> None:
        """Of a handle that only reads: what the owner has committed since."""
        # Versions of schemas before the rows that have them: others may be reading.
        self.schemas.update(fresh.schemas)
        for partition in fresh.by_id.values():
            known = self.by_id.get(partition.id)
            if known is not None:
                known.durable, known.link, known.sealed = partition.durable, partition.link, partition.sealed
                known.shipment = partition.shipment
        for name, partitions in fresh.partitions.items():
            if name not in self.partitions:
                for partition in partitions:
                    partition.shipping_state = self.shipping_state
                self.publish(name, list(partitions), fresh.codecs.get(name, ""))
        self.ids.update(fresh.ids)
        self.policies.update(fresh.policies)
        self.shipping = fresh.shipping

    def ring_all(self) -> None:
        """Wake everybody who waits for any partition."""
        for partition in list(self.by_id.values()):
            partition.signal.notify()
