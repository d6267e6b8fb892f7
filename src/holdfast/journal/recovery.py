"""Opening a journal: prove that what is stored is what was acknowledged, then take ownership.

SQLite has already undone what was not committed. What is left to prove is that nobody else changed it:
stamps of the control rows; as many topics, heads and entries as the log's own row says; heads that end
exactly where their entries end. A tail that is shorter than its head (lost entries) or longer (a head that
was put back) is refused, located and left untouched. Of the entries only the last one of each partition is
looked at; readers prove each entry that they read.

An owner is refused at the first problem. Whoever only looks is told all of them and may read what is left.

Taking ownership is one transaction: a new epoch, a new key epoch with a fresh salt, the log's row. It is
durable before the writer encrypts or acknowledges anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import apsw

from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES, PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import PLAIN, KeyEpoch, Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.sqlite import stored
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.state_digest import SUM_BYTES, total
from holdfast.journal.state.topic_registry import Topics
from holdfast.model.control_rows import (
    EpochRow,
    HeadRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    SegmentRow,
    ShipmentRow,
    ShippingRow,
    SpaceRow,
    TopicRow,
    WatermarkRow,
    stamped,
)

LOG_ID_BYTES = 16
_PARTITIONS_MAX, _OFFSETS_MAX = 65_536, 2**62
"""Numbers beyond these are damage, not partitions or offsets."""


Row = TypeVar("Row")


class Recovered:
    """A journal's stored state, and what is wrong with it."""

    def __init__(self, row: LogRow, vault: Vault, topics: Topics, problems: list[Corrupt]) -> None:
        self.row = row
        self.vault = vault
        self.topics = topics
        self.problems = problems
        self.spaces: dict[bytes, SpaceRow] = {}
        """All spaces, by their stored names; their items are proved when they are loaded."""


def recover(
    backend: Backend, log_id: bytes | None, keyring: Keyring | None, cipher: PayloadCipher | None, clock: Clock
) -> Recovered:
    """Read and prove the stored state, in one read transaction; `log_id` is None for a log being created."""
    keyed = keyring is not None or cipher is not None
    with backend.reading() as connection:
        problems: list[Corrupt] = []
        row = _log_row(connection, backend, log_id, problems)
        if row is None:
            new_id = log_id or clock.random_bytes(LOG_ID_BYTES)
            row = LogRow(
                new_id, clock.now_us(), int(keyed), 0, 0, 0, 0, 0, 1, 0, 0, bytes(SUM_BYTES), 0, 0, 0, 0, PLAIN, b""
            )
            if log_id is None:
                vault = Vault(row.log_id, keyring, cipher, clock.random_bytes)
                return Recovered(row, vault, Topics(row.log_id), [])
        _check_keyed(row, keyed)
        vault = _vault(backend, row, log_id, keyring, cipher, clock)
        examination = _Examination(connection, backend, row, vault, problems)
        if not problems:
            examination.examine_log(log_id)
        topics = examination.examine_topics()
        examination.examine_schemas(topics)
        examination.examine_seals(topics)
        examination.examine_tails(topics)
        examination.examine_shipping(topics)
    recovered = Recovered(row, vault, topics, problems)
    recovered.spaces = examination.spaces
    return recovered


def _log_row(
    connection: apsw.Connection, backend: Backend, log_id: bytes | None, problems: list[Corrupt]
) -> LogRow | None:
    try:
        row = stored.log_row(connection, backend.path)
    except Corrupt as damage:
        problems.append(damage)
        return None
    if row is None and log_id is not None:
        problems.append(Corrupt("the database has lost the log's own row", path=str(backend.path)))
    return row


def _vault(
    backend: Backend, row: LogRow, log_id: bytes | None, keyring: Keyring | None, cipher: PayloadCipher | None,
    clock: Clock,
) -> Vault:  # fmt: skip
    """The vault under the log's id. All proofs depend on it, so where FORMAT and the log's row differ, the one
    that proves the row is taken; if none does, the one in FORMAT.
    """
    known = dict.fromkeys((row.log_id, log_id or row.log_id))
    vaults = [Vault(one, keyring, cipher, clock.random_bytes) for one in known]
    for vault in vaults:
        vault.attach(lambda number: fetch_key_epoch(backend, number))
    for vault in vaults if len(vaults) > 1 else ():
        try:
            if vault.verify(row.key_epoch, row.message(), row.stamp):
                return vault
        except (Corrupt, Invalid):
            continue
    return vaults[-1]


def take_ownership(backend: Backend, recovered: Recovered, clock: Clock) -> LogRow:
    """Start a new epoch; durable when this returns."""
    vault, row = recovered.vault, recovered.row
    backend.begin()
    try:
        if vault.keyed:
            key_epoch = vault.begin(row.key_epochs + 1, clock.random_bytes(SALT_BYTES))
            backend.insert_key_epoch(key_epoch)
            vault.enter(key_epoch)
        heads = total(vault.stamp, recovered.topics.stamps.values())
        # Without keys the epoch is 0, as is the count of key epochs.
        taken = row._replace(epoch=row.epoch + 1, key_epochs=vault.epoch, heads=heads, key_epoch=vault.epoch)
        taken = stamped(taken, vault)
        backend.insert_epoch(stamped(EpochRow(taken.epoch, clock.now_us(), os.getpid(), vault.epoch, b""), vault))
        if row.epoch:
            backend.store_log(taken, row.epoch)
        else:
            backend.insert_log(taken)
        backend.commit()
    except BaseException:
        backend.rollback()
        raise
    return taken


def fetch_key_epoch(backend: Backend, number: int) -> KeyEpoch | None:
    """A stored key epoch."""
    with backend.reading() as connection:
        return stored.key_epoch(connection, backend.path, number)


def _check_keyed(row: LogRow, keyed: bool) -> None:
    if row.keyed and not keyed:
        raise Invalid("this log is encrypted", hint="open it with keyring=Keyring.from_env(…) or from_file(…)")
    if keyed and not row.keyed:
        raise Invalid(
            "this log is not encrypted, but a key was given",
            hint="open it without keyring and cipher; encryption is chosen when a log is created",
        )


def _is_possible(row: ShipmentRow, partition: Partition) -> bool:
    sealed = partition.sealed
    return (
        0 <= row.settled_segments <= min(sealed.segments, row.slots)
        and row.settled_offset <= min(sealed.sealed_offset, row.shipped_offset)
        and row.shipped_offset <= partition.durable
    )


class _Examination:
    """Looks at everything that is stored about a log and notes what is wrong."""

    def __init__(
        self, connection: apsw.Connection, backend: Backend, row: LogRow, vault: Vault, problems: list[Corrupt]
    ) -> None:
        self._connection = connection
        self._path = backend.path
        self._row = row
        self._vault = vault
        self._problems = problems
        self.spaces: dict[bytes, SpaceRow] = {}

    def examine_log(self, log_id: bytes | None) -> None:
        """The log's own row, its present ownership, and how many rows there should be."""
        row = self._row
        if log_id is not None and log_id != row.log_id:
            self._note("the database belongs to another log")
        if not self._proved(row):
            self._note("the log's own row does not match its stamp")
        with self._noting():
            epoch = stored.epoch(self._connection, self._path, row.epoch)
            if epoch is None or not self._proved(epoch):
                self._note(f"the present ownership is missing or does not match its stamp epoch={row.epoch}")
        found = stored.counts(self._connection, self._path)
        for name, count in zip(found._fields, found, strict=True):
            # Entries that were sealed are gone; the last of all may be among them.
            trimmed = name == "last_seq"
            wanted = row.next_seq - 1 if trimmed else getattr(row, name)
            if count > wanted or (count < wanted and not trimmed):
                self._note(f"rows are missing, or there are too many {name}={count} expected={wanted}")

    def examine_topics(self) -> Topics:
        """All topics with their heads, all spaces, and that the log's row vouches for them."""
        topics = Topics(self._vault.log_id)
        heads: dict[int, dict[int, HeadRow]] = {}
        for head in self._readable(stored.heads(self._connection, self._path)):
            heads.setdefault(head.topic_id, {})[head.number] = head
            if not self._proved(head):
                self._note("a head does not match its stamp", partition=head.number, offset=head.next_offset)
        watermarks, policies, self.spaces = self._watermarks(), self._policies(), self._spaces()
        stamps = [head.stamp for own in heads.values() for head in own.values()]
        stamps += [row.stamp for row in watermarks.values()] + [row.stamp for row in policies.values()]
        stamps += [row.stamp for row in self.spaces.values()]
        with self._noting():
            if self._row.epoch and total(self._vault.stamp_under(self._row.key_epoch), stamps) != self._row.heads:
                self._note("heads, watermarks, policies and spaces are not those that the log's own row vouches for")
        for topic in self._readable(stored.topics(self._connection, self._path)):
            own = heads.pop(topic.id, {})
            count = topic.partitions
            if not self._proved(topic):
                self._note("a topic does not match its stamp", topic=topic.name)
                count = 1 + max((number for number in own if number < _PARTITIONS_MAX), default=-1)
            if sorted(own) != list(range(count)):
                self._note("a topic has lost a partition's head", topic=topic.name)
            topics.adopt(topic, own, watermarks, count, str(self._path))
            if topic.id in policies:
                policy = policies.pop(topic.id)
                topics.policies[topic.name] = policy
                topics.stamps["policy", topic.id] = policy.stamp
        if heads:
            self._note("a head belongs to no topic")
        if policies:
            self._note("a retention policy belongs to no topic")
        topics.stamps.update({("space", row.id): row.stamp for row in self.spaces.values()})
        return topics

    def _watermarks(self) -> dict[int, WatermarkRow]:
        found = {}
        for row in self._readable(stored.watermarks(self._connection, self._path)):
            found[row.partition_id] = row
            if not self._proved(row):
                self._note("a watermark does not match its stamp", offset=row.sealed_offset)
        return found

    def _policies(self) -> dict[int, PolicyRow]:
        found = {}
        for row in self._readable(stored.policies(self._connection, self._path)):
            found[row.topic_id] = row
            if not self._proved(row):
                self._note("a retention policy does not match its stamp")
        return found

    def _spaces(self) -> dict[bytes, SpaceRow]:
        found = {}
        for row in self._readable(stored.spaces(self._connection, self._path)):
            found[row.name] = row
            if not self._proved(row):
                self._note("a space does not match its stamp")
        return found

    def examine_schemas(self, topics: Topics) -> None:
        """The schemas of typed topics."""
        names = {number: name for name, number in topics.ids.items()}
        for schema in self._readable(stored.schemas(self._connection, self._path)):
            name = names.get(schema.topic_id, "")
            known = topics.schemas.get(name, ())
            if not self._proved(schema) or schema.version != len(known) + 1 or not name:
                self._note("a schema does not match its stamp or its topic", topic=name or None)
                continue
            topics.schemas[name] = (*known, schema)

    def examine_seals(self, topics: Topics) -> None:
        """Every watermark ends where its newest segment ends, with that one's chain value."""
        for partition in topics.by_id.values():
            watermark = partition.sealed
            if watermark.segments:
                newest = None
                with self._noting():
                    newest = stored.segment(self._connection, self._path, partition.id, watermark.segments - 1)
                said = (watermark.sealed_offset, watermark.chain)
                if newest is None or not self._proved(newest) or (newest.end, newest.chain) != said:
                    self._note_at(partition, "the manifest does not end at its watermark", watermark.sealed_offset)
            if not watermark.first_offset <= watermark.sealed_offset <= partition.durable:
                self._note_at(partition, "a watermark lies beyond its head", watermark.sealed_offset)

    def examine_tails(self, topics: Topics) -> None:
        """Every head ends where its entries end, with the digest of the last one; all may be sealed and gone."""
        for partition in topics.by_id.values():
            last = None
            with self._noting():
                last = stored.last_entry(self._connection, self._path, partition.id)
            sealed = partition.sealed.sealed_offset
            end, digest = (sealed, partition.link) if last is None else (last.first_offset + last.count, last.digest)
            if (end, digest) == (partition.durable, partition.link):
                continue
            lost = end < partition.durable
            self._note(
                "the journal's tail is cut: entries below the head are missing"
                if lost
                else "a head was rolled back, or the last entry replaced",
                topic=partition.topic, partition=partition.number, offset=min(end, partition.durable),
            )  # fmt: skip
            if end < _OFFSETS_MAX:
                # Whoever reads on regardless sees all that is there; each entry is still proved.
                partition.durable = max(partition.durable, end)

    def examine_shipping(self, topics: Topics) -> None:
        """How far the log is on its store: never further than what is here."""
        with self._noting():
            topics.shipping = stored.shipping(self._connection, self._path)
        if topics.shipping is None:
            if any(True for _ in stored.shipments(self._connection, self._path)):
                self._note("the row that says where the log is shipped to is lost")
            return
        if not self._proved(topics.shipping) or topics.shipping.shipped_seq >= self._row.next_seq:
            self._note("what was shipped does not match its stamp, or is more than there is")
        for row in self._readable(stored.shipments(self._connection, self._path)):
            partition = topics.by_id.get(row.partition_id)
            if partition is None or not self._proved(row) or not _is_possible(row, partition):
                self._note("a shipment does not match its stamp or its partition", offset=row.settled_offset)
                continue
            partition.shipment = row
        for partition in topics.by_id.values():
            if partition.shipment is None:
                self._note_at(partition, "how far a partition is on the store is lost", partition.durable)
                first = partition.sealed.first_offset if not partition.sealed.segments else 0
                partition.shipment = ShipmentRow(partition.id, 0, 0, first, first)

    def _note_at(self, partition: Partition, message: str, offset: int) -> None:
        self._note(message, topic=partition.topic, partition=partition.number, offset=offset)

    def _proved(
        self,
        row: LogRow | EpochRow | TopicRow | HeadRow | WatermarkRow | SegmentRow | SchemaRow | PolicyRow | ShippingRow
        | ShipmentRow | SpaceRow,
    ) -> bool:  # fmt: skip
        """Whether a row has the stamp that it should have; a key epoch that is gone proves nothing."""
        try:
            return self._vault.verify(row.key_epoch, row.message(), row.stamp)
        except Corrupt:
            return False

    def _readable(self, rows: Iterator[Row | Corrupt]) -> Iterator[Row]:
        """The rows that are rows; the others are noted."""
        for row in rows:
            if isinstance(row, Corrupt):
                self._problems.append(row)
            else:
                yield row

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Corrupt as damage:
            self._problems.append(damage)

    def _note(
        self, message: str, *, topic: str | None = None, partition: int | None = None, offset: int | None = None
    ) -> None:
        self._problems.append(Corrupt(message, path=str(self._path), topic=topic, partition=partition, offset=offset))
