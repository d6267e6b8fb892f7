"""Opening a journal: prove that what is stored is what was acknowledged, then take ownership.

SQLite has already undone what was not committed. What is left to prove is that nobody else changed it: `examination`
gives a verdict on every control row, and this module turns the rows into the live state of topics and partitions. Only
the last entry of each partition is checked; readers prove every entry that they read.

An owner is refused at the first problem, and nothing is touched. A reader gets all of them, and may read what is left.

Taking ownership is one transaction: groups that are in files alone, a new epoch, a new key epoch with a fresh salt, the
log's row. It is durable before the writer encrypts or acknowledges anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES, PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import PLAIN, Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend, ControlRows
from holdfast.journal.groups.preallocated_file import FRAMES_BEGIN
from holdfast.journal.proving import proved_groups
from holdfast.journal.proving.examination import GOOD, PARTITIONS_MAX, Examination, Verdict
from holdfast.journal.proving.proofs import LOG_ID_BYTES, OK, Proofs
from holdfast.journal.sessions.session_state import SessionState
from holdfast.journal.sessions.session_table import proved
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.state_digest import SUM_BYTES, total
from holdfast.journal.state.topic_registry import TopicRegistry
from holdfast.model.control_rows import (
    EpochRow,
    HeadRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    ShipmentRow,
    ShippingRow,
    SpaceRow,
    TopicRow,
    stamped,
)
from holdfast.model.entry import Entry, is_whole

_OFFSETS_MAX = 2**62
"""A number beyond this is damage, not an offset."""


class RecoveredState:
    """A journal's stored state, and what is wrong with it."""

    def __init__(self, row: LogRow, vault: Vault) -> None:
        self.row = row
        self.vault = vault
        self.topics = TopicRegistry(vault.log_id)
        self.problems: list[Corrupt] = []
        self.spaces: dict[bytes, SpaceRow] = {}
        """All spaces, by their stored names; their items are proved when they are loaded."""
        self.late_heads: list[HeadRow] = []
        """Heads of partitions that have entries in files alone."""
        self.sessions: list[SessionState] = []
        """Sessions of producers; of the next owner."""


def recover(
    backend: Backend,
    log_id: bytes | None,
    keyring: Keyring | None,
    cipher: PayloadCipher | None,
    clock: Clock,
    *,
    sessions: bool = False,
) -> RecoveredState:
    """Read and prove the stored state, in one read transaction; `log_id` is None for a log being created.

    The next owner asks for `sessions`: then nobody writes meanwhile, and files of groups are proved, too.
    """
    is_keyed = keyring is not None or cipher is not None
    with backend.tables() as tables:
        control = tables.control_rows(newest=1)
        row = control.log or _empty_row(log_id or clock.random_bytes(LOG_ID_BYTES), clock.now_us(), is_keyed=is_keyed)
        if control.log is None and log_id is None and not control.damage:
            return RecoveredState(row, Vault(row.log_id, keyring, cipher, clock.random_bytes))
        _check_keyed(row, is_keyed)
        proofs = Proofs(backend, control, log_id, keyring, cipher, clock.random_bytes)
        assert proofs.vault is not None
        proved_groups.take_in(control, tables, proofs)
        row = control.log or row
        recovered = RecoveredState(row, proofs.vault)
        recovered.late_heads = [head for head in control.heads if head.partition_id in tables.late.partitions]
        restoring = _Restoring(recovered.topics, control)
        for found, verdict in Examination(tables, control, proofs, log_id, is_opening=True).findings():
            recovered.problems += verdict.problems
            restoring.take(found, verdict)
        if sessions and not recovered.problems:
            try:
                recovered.sessions = proved(tables.sessions(), row, recovered.vault, str(backend.path))
            except Corrupt as damage:
                recovered.problems.append(damage)
            recovered.problems += lost_bodies(backend, recovered.topics.by_id)
    recovered.spaces = {space.name: space for space in control.spaces}
    return recovered


def lost_bodies(backend: Backend, partitions: Mapping[int, Partition]) -> Iterator[Corrupt]:
    """Files of groups that lack what the database has last of them.

    A file is written from its beginning to its end: so it has what comes before that, unless it was damaged there,
    which is found on reading.
    """
    with backend.reading() as rows:
        for number, partition_id, entry in rows.last_in_files():
            partition = partitions.get(partition_id)
            if isinstance(entry, Entry) and partition is not None and is_whole(partition.place, entry):
                continue
            yield Corrupt(
                f"a file of groups ends before what the database has of it file={number}",
                path=str(backend.filed.files.path(number)),
                topic=None if partition is None else partition.topic,
                hint="put the newest copy of the whole directory back; from a copy made piece by piece while its"
                " owner wrote, holdfast rebuild recovers what exists",
            )


def _empty_row(log_id: bytes, created_us: int, *, is_keyed: bool) -> LogRow:
    return LogRow(
        log_id,
        created_us,
        int(is_keyed),
        0,
        0,
        0,
        0,
        0,
        1,
        0,
        0,
        bytes(SUM_BYTES),
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        b"",
        PLAIN,
        b"",
    )


def take_ownership(backend: Backend, recovered: RecoveredState, clock: Clock, *, files: bool) -> LogRow:
    """Start a new epoch, in the transaction that `take_over` began; durable when this returns.

    With `files` the next group may be in a file of groups.
    """
    vault, row = recovered.vault, recovered.row
    try:
        backend.filed.insert(recovered.late_heads)
        if vault.keyed:
            key_epoch = vault.begin(row.key_epochs + 1, clock.random_bytes(SALT_BYTES))
            backend.insert_key_epoch(key_epoch)
            vault.enter(key_epoch)
        heads = total(vault.stamp, recovered.topics.stamps.values())
        # Without keys the epoch is 0, as is the count of key epochs.
        taken = row._replace(
            epoch=row.epoch + 1,
            key_epochs=vault.epoch,
            heads=heads,
            group_file=backend.filed.next_number() if files else 0,
            group_position=FRAMES_BEGIN if files else 0,
            key_epoch=vault.epoch,
        )
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


def _check_keyed(row: LogRow, keyed: bool) -> None:
    if row.keyed and not keyed:
        raise Invalid("this log is encrypted", hint="open it with keyring=Keyring.from_env(…) or from_file(…)")
    if keyed and not row.keyed:
        raise Invalid(
            "this log is not encrypted, but a key was passed",
            hint="open it without keyring and cipher; encryption is chosen when a log is created",
        )


class _Restoring:
    """Turns control rows into the live state of topics and partitions, as far as their verdicts allow."""

    def __init__(self, topics: TopicRegistry, control: ControlRows) -> None:
        self._topics = topics
        self._control = control
        self._names = control.topic_names
        self._heads: dict[int, dict[int, HeadRow]] = {}
        for head in control.heads:
            self._heads.setdefault(head.topic_id, {})[head.number] = head
        topics.shipping = control.shipping
        topics.stamps.update({("space", space.id): space.stamp for space in control.spaces})

    def take(self, row: object, verdict: Verdict) -> None:
        """One row."""
        match row:
            case TopicRow():
                self._take_topic(row, is_proved=verdict.stamp is OK)
            case SchemaRow() if verdict == GOOD:
                name = self._names[row.topic_id]
                known = self._topics.schemas.get(name, ())
                if row.version == len(known) + 1:
                    self._topics.schemas[name] = (*known, row)
            case PolicyRow() if row.topic_id in self._names:
                self._topics.policies[self._names[row.topic_id]] = row
                self._topics.stamps["policy", row.topic_id] = row.stamp
            case HeadRow() if verdict.end is not None and verdict.end < _OFFSETS_MAX:
                # A reader that continues regardless sees all that exists; each entry is still proved.
                if (partition := self._topics.by_id.get(row.partition_id)) is not None:
                    partition.durable = max(partition.durable, verdict.end)
            case ShipmentRow() if verdict == GOOD and row.partition_id in self._topics.by_id:
                self._topics.by_id[row.partition_id].shipment = row
            case ShippingRow():
                self._ship_nothing()

    def _take_topic(self, row: TopicRow, *, is_proved: bool) -> None:
        own = self._heads.get(row.id, {})
        count = row.partitions
        if not is_proved:
            row = row._replace(codec="")
            count = 1 + max((number for number in own if number < PARTITIONS_MAX), default=-1)
        self._topics.adopt(row, own, self._control.watermarks, count, str(self._control.path))

    def _ship_nothing(self) -> None:
        """Until its own row says how far it is, no partition is on the store at all."""
        for partition in self._topics.by_id.values():
            first = partition.sealed.first_offset if not partition.sealed.segments else 0
            partition.shipment = ShipmentRow(partition.id, 0, 0, first, first)
