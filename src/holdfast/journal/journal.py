"""The journal as one object: opening, appending, reading, closing.

It owns the backend, the vault, the queue and the writer; it knows nothing of topics' users, files beside
the database, or what happens to records afterwards. Everything that blocks is bounded by a time-out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from holdfast import disk
from holdfast.clock import Clock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Closed, HoldfastError, Invalid, Unavailable
from holdfast.journal import recovery
from holdfast.journal.commit.commit_counts import Commits
from holdfast.journal.commit.group import NO_GROUP, Make, Operation, Run, Unit
from holdfast.journal.commit.queue import Queue
from holdfast.journal.commit.ticket import UnitTicket
from holdfast.journal.commit.writer import Writer
from holdfast.journal.entry_reader import Reader, taken_after
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.journal_stats import Counters, JournalStats
from holdfast.journal.sqlite.migrations import migrate, require_newest
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.journal.state import spaces
from holdfast.journal.state.operations import AddSchema, Control, CreateTopic, MarkShipped, RotateKey, SetPolicy
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import DiskFailed, ShipmentRow, ShippingRow
from holdfast.model.entry import Entry
from holdfast.model.record_columns import Columns
from holdfast.model.topic_name import check_name
from holdfast.signals import Signal

_FIRST_MAX = 2**53

logger = logging.getLogger("holdfast.journal")


class Journal:
    """One open journal: owned (`open_owned`) or looked at (`open_read_only`)."""

    def __init__(
        self, backend: SqliteBackend, recovered: recovery.Recovered, settings: JournalSettings, clock: Clock
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.row = recovered.row
        self.vault = recovered.vault
        self.topics = recovered.topics
        self.problems = tuple(recovered.problems)
        self._spaces = spaces.Spaces(recovered.vault, recovered.spaces)
        self.queue = Queue(settings, clock)
        self.clock = clock
        self._writer: Writer | None = None
        self._closed: Closed | None = None

    @classmethod
    def open_owned(
        cls,
        path: Path,
        log_id: bytes | None,
        settings: JournalSettings,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        clock: Clock,
    ) -> Journal:
        """Recover the journal in this file, take ownership and start the writer."""
        try:
            backend = SqliteBackend(path)
            try:
                migrate(backend)
                recovered = recovery.recover(backend, log_id, keyring, cipher, clock)
                if recovered.problems:
                    raise recovered.problems[0]
                recovered.row = recovery.take_ownership(backend, recovered, clock)
            except BaseException:
                _close_quietly(backend)
                raise
        except DiskFailed as error:
            raise Unavailable(
                f"the disk failed while opening path={path}",
                hint=disk.remedy_at(path.parent, "check the disk, then reopen"),
            ) from error
        journal = cls(backend, recovered, settings, clock)
        journal._writer = Writer(
            backend, recovered.vault, journal.queue, recovered.topics, journal._spaces, recovered.row, settings, clock
        )
        journal._writer.start()
        return journal

    @classmethod
    def open_read_only(
        cls,
        path: Path,
        log_id: bytes,
        settings: JournalSettings,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        clock: Clock,
    ) -> Journal:
        """Look at the journal in this file, which another process may own; damage is reported, not refused."""
        try:
            backend = SqliteBackend(path, read_only=True)
            try:
                require_newest(backend)
                backend.has_changed()  # from here on: what is recovered now need not be recovered again
                recovered = recovery.recover(backend, log_id, keyring, cipher, clock)
            except BaseException:
                _close_quietly(backend)
                raise
        except DiskFailed as error:
            raise Unavailable(f"cannot read the database path={path}", hint="check the disk") from error
        for problem in recovered.problems:
            logger.warning("damaged log: %s", problem.message, extra={"action": "damage", "path": str(path)})
        journal = cls(backend, recovered, settings, clock)
        journal.queue.refuse(
            Invalid("this log is open for reading only", hint="open it without read_only=True to append"), finish=True
        )
        return journal

    @property
    def read_only(self) -> bool:
        """Whether this handle only looks."""
        return self._writer is None

    @property
    def end(self) -> Closed | None:
        """Why nothing more will become durable through this handle; None while it may."""
        poison = self._writer.poison if self._writer is not None else None
        return self._closed or poison

    # -- appending ----------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int, first: int = 0, fingerprint: bytes = b"", definition: bytes = b""
    ) -> None:
        """Declare a topic, durably; a race with another caller is settled by whoever came first.

        Its partitions begin at offset `first`; with a schema's definition it is a typed one.
        """
        check_name(name)
        if not 1 <= partitions <= self.settings.partitions_max:
            raise Invalid(
                f"a topic has 1 to {self.settings.partitions_max} partitions, not {partitions}",
                hint="see journal.partitions_max",
            )
        if len(self.topics.partitions) >= self.settings.topics_max:
            raise Invalid(f"the log has {self.settings.topics_max} topics already", hint="see journal.topics_max")
        if not 0 <= first <= _FIRST_MAX:
            raise Invalid(f"a topic cannot begin at offset {first}", hint=f"give 0 to {_FIRST_MAX}")
        unit = self.queue.put_control([CreateTopic(name, partitions, first, fingerprint, definition)])
        try:
            self.settle(unit)
        except Invalid:
            if name not in self.topics.partitions:
                raise

    def add_schema(self, topic: str, version: int, fingerprint: bytes, definition: bytes) -> None:
        """Start a version of a typed topic's schema, durably."""
        self.perform(AddSchema(topic, version, fingerprint, definition))

    def set_policy(self, topic: str, bytes_max: int, age_max_us: int, records_max: int) -> None:
        """Give a topic its own retention policy, durably."""
        self.perform(SetPolicy(topic, bytes_max, age_max_us, records_max))

    def perform(self, *operations: Control) -> None:
        """Commit control operations together and wait for it."""
        self.settle(self.queue.put_control(list(operations)))

    def check_durability(self, durability: str) -> None:
        """Before anything is written: what a caller wants to wait for must be something that can come."""
        if durability not in ("durable", "shipped"):
            raise Invalid(f"unknown durability={durability!r}", hint="use 'durable' or 'shipped'")
        if durability == "shipped" and not self.topics.shipping_state.ships:
            raise Invalid("this log ships to no store", hint="open it with store='s3://bucket/prefix' or 'file:///…'")

    def rotate(self, keyring: Keyring) -> None:
        """Encrypt under the keyring's current key from now on; durable when this returns."""
        self.settle(self.queue.put_control([RotateKey(keyring)]))

    def note_shipped(self, shipping: ShippingRow, shipments: Sequence[ShipmentRow]) -> Unit:
        """Write down how far the log is on its store, with the next group; nobody has to wait for it."""
        return self.queue.put_with_next([MarkShipped(shipping, shipments)])

    def settle(self, unit: Unit) -> None:
        """Wait for a unit and raise what became of it."""
        timeout = self.settings.ack_timeout_ms / 1000
        if not unit.group.signal.sleep(unit.group.is_done, timeout):
            raise Unavailable(f"the journal did not answer within {timeout:g} s", hint="the disk may be stalled")
        unit.check_stored()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything put so far is durable; raises if something since the last flush was not stored."""
        writer = self._writer
        if writer is None:  # nothing was put through a handle that only looks
            return
        patience = self.settings.ack_timeout_ms / 1000 if timeout is None else timeout
        if writer.poison is not None:
            raise writer.poison.again()
        group = self.queue.barrier()
        if not group.signal.sleep(group.is_done, patience):
            raise Unavailable(f"the journal did not flush within {patience:g} s", hint="the disk may be stalled")
        failure, writer.failure = writer.failure, writer.poison
        if failure is not None:
            raise failure.again()

    # -- reading ------------------------------------------------------------------------------------------

    def reader(self, partition: Partition) -> Reader:
        """A reader of one partition's tail."""
        return Reader(self.backend, self.vault, partition, self.settings.entry_bytes_max)

    @property
    def commits(self) -> Commits:
        """How far the writer is, for whoever takes entries in the order of commits."""
        assert self._writer is not None
        return self._writer.commits

    def taken_after(self, seq: int, groups_max: int, bytes_max: int) -> tuple[list[Entry], bool]:
        """Committed entries behind a sequence number, in order, each proved; whole commits up to these limits.

        One commit comes in any case, however large. Also tells whether there is more.
        """
        return taken_after(self.backend, self.topics.by_id, seq, groups_max, bytes_max, self.settings.entry_bytes_max)

    def refresh(self) -> None:
        """Of a handle that only looks: take up what the owner committed since."""
        if self._writer is None and self._closed is None and self.backend.has_changed():
            recovered = recovery.recover(self.backend, self.vault.log_id, *self.vault.sources(), self.clock)
            # Versions of schemas before the rows that have them: others may be reading.
            self.topics.schemas.update(recovered.topics.schemas)
            for fresh in recovered.topics.by_id.values():
                known = self.topics.by_id.get(fresh.id)
                if known is None:
                    continue
                known.durable, known.link, known.sealed = fresh.durable, fresh.link, fresh.sealed
                known.shipment = fresh.shipment
            for name, partitions in recovered.topics.partitions.items():
                if name not in self.topics.partitions:
                    self.topics.publish(name, list(partitions))
            self.topics.policies.update(recovered.topics.policies)
            self.topics.shipping = recovered.topics.shipping
            self.row = recovered.row

    def appended(self, partition: Partition) -> int:
        """The `appended` mark: durable, or waiting in the queue."""
        durable = partition.durable
        return max(durable + self.queue.waiting(partition), partition.durable)

    @property
    def committed_records(self) -> int:
        """Records made durable through this handle."""
        return self._writer.counters.records if self._writer is not None else 0

    # -- spaces -------------------------------------------------------------------------------------------

    def change_space(
        self,
        name: str,
        puts: Sequence[spaces.Item] = (),
        deletes: Sequence[bytes] = (),
        *,
        drop: bool = False,
        append: tuple[Partition, Columns] | None = None,
        scope: str | None = None,
        reissue: bool = False,
        timeout: float,
    ) -> UnitTicket:
        """Put and delete items of a space, or drop it, in one commit with records that are appended.

        All of it becomes durable, or none; the ticket tells. Waits for room at most `timeout` seconds, and never on an
        event loop; then raises Full. `scope` and `reissue`: see `Unit`.
        """
        operations, size = self.space_change(name, puts, deletes, drop=drop, append=append)
        records = len(append[1]) if append is not None else 0
        if size > self.settings.queue_bytes_max:
            raise Invalid(f"a change is too large bytes={size}", hint="see journal.queue_bytes_max; make several of it")
        unit = self.queue.put_unit(operations, records, size, timeout, scope=scope, reissue=reissue)
        return UnitTicket(unit, timeout)

    def space_change(
        self,
        name: str,
        puts: Sequence[spaces.Item],
        deletes: Sequence[bytes],
        *,
        drop: bool = False,
        append: tuple[Partition, Columns] | None = None,
    ) -> tuple[list[Operation], int]:
        """The operations of a change, checked, and their bytes."""
        change, size = spaces.checked_change(name, puts, deletes, drop=drop)
        if append is None:
            return [change], size
        partition, columns = append
        return [change, Run(NO_GROUP, partition, columns)], size + self._append_size(columns)

    def gather(
        self,
        part: object,
        make: Make,
        *,
        append: tuple[Partition | None, int],
        size: int,
        scope: str | None = None,
        reissue: bool = False,
        join: UnitTicket | None = None,
        timeout: float,
    ) -> UnitTicket:
        """Hand over a part of a unit that is made when the writer comes to it (`Unit`), with so many records.

        `join` is the ticket of the unit that was asked for just before in this scope. If the writer has not taken that
        one, this part goes with it, and that ticket is returned. Waits for room like `change_space`.
        """
        before = None if join is None else join.unit
        unit = self.queue.put_part(part, make, *append, size, timeout, scope=scope, reissue=reissue, join=before)
        return join if join is not None and unit is before else UnitTicket(unit, timeout)

    def _append_size(self, columns: Columns) -> int:
        """The bytes of records that become one entry; more than a batch may have could not be read back."""
        size = columns.size()
        if size > self.settings.batch_bytes_max or len(columns) > self.settings.batch_records_max:
            raise Invalid(
                f"too many records for one change records={len(columns)} bytes={size}",
                hint="see journal.batch_bytes_max and journal.batch_records_max",
            )
        return size

    def load_space(self, name: str) -> list[spaces.Item]:
        """Key, number and body of all items of a space as it is committed, by number and key; each is proved.

        A space that is not there has no items.
        """
        backend, vault = self.backend, self.vault
        with backend.reading() as connection:
            found = spaces.load(connection, backend.path, vault, spaces.stored_name(name))
        if found is None:
            return []
        row, items = found
        weights = spaces.proved(vault, backend.path, row, items)
        if self._writer is not None:
            self._spaces.learn(row, weights)
        return spaces.opened(vault, backend.path, row, items)

    def spaces(self) -> list[str]:
        """The names of all spaces that are committed, sorted."""
        with self.backend.reading() as connection:
            return spaces.names(connection, self.backend.path, self.vault)

    # -- sealing ------------------------------------------------------------------------------------------

    def announce_ripe(self, records: int, size: int) -> Signal:
        """The signal that rings when a tail begins, and while one has this many records or bytes."""
        assert self._writer is not None
        self._writer.ripe_records, self._writer.ripe_bytes = records, size
        return self._writer.ripe

    # -- lifetime -----------------------------------------------------------------------------------------

    def stats(self) -> JournalStats:
        """The journal at this moment."""
        counters = self._writer.counters if self._writer is not None else Counters()
        poison = self._writer.poison if self._writer is not None else None
        records, size = self.queue.depth()
        return JournalStats(
            queue_records=records,
            queue_bytes=size,
            records_total=counters.records,
            bytes_total=counters.bytes,
            groups_total=counters.groups,
            entries_total=counters.entries,
            repeats_total=counters.repeats,
            offered_dropped_total=self.queue.offered_dropped,
            refused_total=self.queue.refused,
            failed_groups_total=counters.failed_groups,
            checkpoints_total=counters.checkpoints,
            commit_seconds=counters.histogram(),
            poisoned=None if poison is None else poison.message,
        )

    def close(self, timeout: float) -> None:
        """Drain, stop the writer, close the database; raises if something accepted was not stored."""
        failure: HoldfastError | None = None
        if self._writer is not None:
            self.queue.refuse(Closed("the log is closed"), finish=True)
            if not self._writer.join(timeout):
                raise Unavailable(f"the journal did not drain within {timeout:g} s", hint="close() again to wait on")
            failure = self._writer.failure
        try:
            self.backend.close()
        except (DiskFailed, HoldfastError) as error:
            failure = failure or Unavailable(
                f"the disk failed while closing path={self.backend.path}",
                hint="everything acknowledged is kept; check the disk before opening the log again",
            )
            failure.__cause__ = failure.__cause__ or error
        self._closed = Closed("the log is closed")
        self.topics.ring_all()
        if failure is not None:
            raise failure.again()

    def stop_taking(self) -> None:
        """Refuse records from now on; what was accepted, and control units, still pass."""
        self.queue.hold("closing", Closed("the log is closed"))

    def drain(self, timeout: float) -> bool:
        """Wait until everything accepted is durable or refused; False when that takes longer."""
        group = self.queue.barrier()
        return group.signal.sleep(group.is_done, timeout)

    def forget(self) -> None:
        """In a forked child: refuse everything and never touch the parent's files."""
        self._closed = Closed("this log was opened before a fork", reason="forked")
        self.queue = Queue(self.settings, self.clock)  # its lock may have been held by a thread that is not here
        self.queue.refuse(self._closed, finish=True)
        self.backend.leak()


def _close_quietly(backend: SqliteBackend) -> None:
    """Close after an error; the first error is the one to tell."""
    try:
        backend.abandon()
        backend.close()
    except Exception:
        logger.debug("closing after a failed open", exc_info=True)
