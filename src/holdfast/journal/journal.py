"""The journal as one object: opening, appending, reading, closing.

It is closed: backend, queue, writer, vault and connections are its own, and its users work with these verbs. It knows
nothing of topics' users, files beside the database, or what happens to records afterwards. Everything that blocks is
bounded by a time-out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.crypto.keyring import Keyring
from holdfast.crypto.segment_key import MessageKeys, SegmentKey, SegmentKeyFacts
from holdfast.crypto.signatures import Signer
from holdfast.errors import Closed, HoldfastError, Invalid, Unavailable
from holdfast.journal.backend import Backend
from holdfast.journal.commit import owner_calls
from holdfast.journal.commit.forwarder import Forwarder, GroupLink
from holdfast.journal.commit.writer import Writer
from holdfast.journal.entry_reader import EntryReader, entries_after
from holdfast.journal.journal_context import JournalContext, News
from holdfast.journal.journal_stats import JournalCounters, JournalStats
from holdfast.journal.proving import recovery
from holdfast.journal.proving.catch_up import CatchUp
from holdfast.journal.proving.remembered_keys import RememberedKeys
from holdfast.journal.queue.group import Group, Make, OpenUnit, Operation, Run, Unit
from holdfast.journal.queue.queue import Queue
from holdfast.journal.queue.room_lines import RoomLines
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.segment_rows import SegmentRows
from holdfast.journal.session_access import SessionAccess
from holdfast.journal.sessions.session_table import SessionLimits, SessionTable
from holdfast.journal.space_access import SpaceAccess
from holdfast.journal.state.commit_counts import CommitCounts
from holdfast.journal.state.journal_state import JournalState
from holdfast.journal.state.operations import AddSchema, Control, CreateTopic, MarkShipped, RotateKey, SetPolicy
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.journal.state.spaces import Spaces
from holdfast.model.control_rows import DiskFailed, PolicyRow, SchemaRow, ShipmentRow, ShippingRow
from holdfast.model.entry import Entry
from holdfast.model.topic_name import check_name
from holdfast.model.trusted_time import TrustedTime
from holdfast.model.value_codec import recorded_codec
from holdfast.signals import Signal

__all__ = ["Group", "Journal", "JournalContext", "Make", "OpenUnit", "Operation", "Run", "Unit"]

logger = logging.getLogger("holdfast.journal")


class Journal:
    """One open journal: owned, shared with its owner, or only read."""

    def __init__(
        self,
        backend: Backend,
        recovered: recovery.RecoveredState,
        context: JournalContext,
        *,
        owned: bool,
        link: GroupLink | None = None,
    ) -> None:
        settings, clock = self.settings, self.clock = context.settings, context.clock
        self.path, self.problems = backend.path, tuple(recovered.problems)
        self._backend, self.require_place = backend, backend.require_place
        self.suspend, self.resume = backend.suspend, backend.resume
        self.durable_groups = backend.filed.durable_number
        """How many groups are durable, by the owner, for processes that share the log; None where there is no way."""
        known_us = recovered.row.created_us if owned else clock.now_us()  # only an owner removes anything
        self.trusted_time = TrustedTime(clock, known_us, round(settings.clock_jump_max_ms * 1000))
        sessions = SessionTable(recovered.vault, SessionLimits.of(settings), self.trusted_time.now_us)
        sessions.restore(recovered.sessions)
        spaces = Spaces(recovered.vault, recovered.spaces)
        self._state = JournalState(recovered.row, recovered.vault, recovered.topics, spaces, sessions)
        self.check_durability = self.shipping_state.check_durability
        self.segment_rows = SegmentRows(backend, recovered.vault)
        self._closed: Closed | None = None
        self.news: News | None = None
        """Of a log that is shared with its owner: who hears from it."""
        self.owned = owned
        """Whether this handle is the log's owner: it alone writes to the directory."""
        self._link = link
        queue = Queue(settings, clock, None if link is None else link.wake)
        self._writer: Writer | Forwarder | None = None
        if owned:
            self._writer = writer = Writer(backend, self._state, queue, settings, clock, self.trusted_time)
            self.keep_free = writer.keep_free
        elif link is not None:
            self._writer = Forwarder(queue, link, self._state.topics.by_id, settings, clock)
        self._catch_up = CatchUp(
            backend, self._state, self._recover, is_damaged=bool(self.problems), hears_owner=link is not None
        )
        self._use(queue)

    def _use(self, queue: Queue) -> None:
        # Appends go straight to the queue: a method in between would cost each of them its share.
        self._queue = queue
        self.submit, self.offer, self.put_runs, self.put_row = queue.submit, queue.offer, queue.put_runs, queue.put_row
        self.wait_for_room, self.when_room = queue.wait_for_room, RoomLines(queue).when_room
        self.hold, self.room = queue.hold, queue.room
        self.sessions = SessionAccess(self._backend, self._state, queue, self.trusted_time, owned=self.owned)
        self.spaces = SpaceAccess(self._backend, self._state, queue, self.settings, learns=self.owned)

    def start(self) -> None:
        """Begin to take records."""
        assert self._writer is not None
        self._writer.start()

    def refuse_writes(self) -> None:
        """Take none: this handle only reads."""
        self._queue.refuse(
            Invalid("this log is open for reading only", hint="open it without read_only=True to append"), finish=True
        )

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def link(self) -> GroupLink:
        """The way to the owner of a shared log; only where there is one."""
        assert self._link is not None
        return self._link

    @property
    def shared(self) -> bool:
        """Whether another handle, here or in another process, owns the log and writes for this one."""
        return self._link is not None

    @property
    def log_id(self) -> bytes:
        """The log's id: all its proofs depend on it."""
        return self._state.vault.log_id

    @property
    def created_us(self) -> int:
        """When the log was created."""
        return self._state.row.created_us

    @property
    def epoch(self) -> int:
        """The number of the present ownership."""
        return self._state.row.epoch

    @property
    def signer(self) -> Signer | None:
        """Who signs this log's objects on a store; None in a log without keys."""
        return self._state.vault.signer

    @property
    def read_only(self) -> bool:
        """Whether this handle only reads."""
        return self._writer is None

    @property
    def end(self) -> Closed | None:
        """Why nothing more will become durable through this handle; None while it may."""
        poison = self._writer.poison if self._writer is not None else None
        return self._closed or poison

    # -- topics -------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, tuple[Partition, ...]]:
        """The partitions of each topic, by its name."""
        return self._state.topics.partitions

    @property
    def partitions(self) -> Mapping[int, Partition]:
        """All partitions by their ids, but for those whose heads are lost; iterate over a copy, for more may come."""
        return self._state.topics.by_id

    def owns(self, partition: Partition) -> bool:
        """Whether a partition is one of this journal."""
        return self.partitions.get(partition.id) is partition

    @property
    def schemas(self) -> Mapping[str, tuple[SchemaRow, ...]]:
        """The versions of each typed topic's schema, oldest first."""
        return self._state.topics.schemas

    @property
    def codecs(self) -> Mapping[str, str]:
        """What the payloads of topics are, where they are not bytes: `json`, `text` or `msgpack`."""
        return self._state.topics.codecs

    @property
    def policies(self) -> Mapping[str, PolicyRow]:
        """The topics that have a retention policy of their own."""
        return self._state.topics.policies

    @property
    def topic_changes(self) -> Signal:
        """Notified when a topic was created or changed."""
        return self._state.topics.signal

    @property
    def has_changed_topics(self) -> bool:
        """Whether a topic was created or changed since the log was opened."""
        return self._state.topics.is_changed

    # -- appending ----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        first: int = 0,
        fingerprint: bytes = b"",
        definition: bytes = b"",
        codec: str = "",
    ) -> None:
        """Declare a topic, durably; a race with another caller is settled by the first one.

        Its partitions begin at `first`. With a schema's definition it is a typed one, with a codec one of values.
        """
        check_name(name)
        recorded_codec(codec)
        self.settings.check_topic(partitions, first, len(self.topics))
        request = owner_calls.CreateTopicCall(name, partitions, first, fingerprint, definition, codec)
        try:
            self._change("create_topic", request, CreateTopic(name, partitions, first, fingerprint, definition, codec))
        except Invalid:
            if name not in self.topics:
                raise

    def _change(self, call: str, request: msgspec.Struct, operation: Control) -> None:
        """Change something, durably; of a shared log its owner does it, and what it did is taken up."""
        if self._link is None:
            self.perform(operation)
        else:
            asking = owner_calls.Asking(self._link, self.clock)
            asking.ask(call, request, owner_calls.Nothing, self.settings.ack_timeout_ms / 1000)
            self.refresh()

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted with what others wait for while they have locks of theirs."""
        self._queue.refuse_second()
        self._catch_up.refuse_second()

    def refuse_within(self, owner: Journal) -> None:
        """Of a shared log, whose owner is here: refuse calls also of a thread that was interrupted in one of that."""
        has_turn, has_owner = self.link.turns._is_owned, owner._queue.lock._is_owned  # type: ignore[attr-defined]
        self._queue.refuse_within(lambda: has_turn() or has_owner())

    def add_schema(self, topic: str, version: int, fingerprint: bytes, definition: bytes) -> None:
        """Start a version of a typed topic's schema, durably."""
        request = owner_calls.AddSchemaCall(topic, version, fingerprint, definition)
        self._change("add_schema", request, AddSchema(topic, version, fingerprint, definition))

    def forget_producers(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """Let go of what is known about producers, durably; those that were known, and had nothing under way."""
        timeout = self.settings.ack_timeout_ms / 1000
        if self._link is not None:
            request = owner_calls.ForgetProducersCall(tuple(names))
            return self._link.call("forget_producers", request, owner_calls.ForgottenProducers, timeout).names
        return self.sessions.forget(names, timeout)

    def set_policy(self, topic: str, bytes_max: int, age_max_us: int, records_max: int) -> None:
        """Give a topic its own retention policy, durably."""
        request = owner_calls.SetPolicyCall(topic, bytes_max, age_max_us, records_max)
        self._change("set_policy", request, SetPolicy(topic, bytes_max, age_max_us, records_max))

    def commit(self, *operations: Control) -> UnitTicket:
        """Have control operations committed together, soon; never refused for fullness."""
        return UnitTicket(self._queue.put_control(list(operations)), self.settings.ack_timeout_ms / 1000)

    def transact(
        self,
        operations: list[Operation],
        *,
        records: int,
        size: int,
        scope: str | None = None,
        reissue: bool = False,
        timeout: float,
    ) -> UnitTicket:
        """Have records appended and spaces changed together or not at all; bounded like appends, in number and bytes.

        Waits for room at most `timeout` seconds, and never on an event loop; then raises Full. The runs know their
        receipts once the ticket is done. `scope` and `reissue`: see `Unit`.
        """
        if size > self.settings.queue_bytes_max:
            raise Invalid(f"a transaction is too large bytes={size}", hint="see journal.queue_bytes_max; split it")
        unit = self._queue.put_unit(operations, records, size, timeout, scope=scope, reissue=reissue)
        return UnitTicket(unit, timeout, "a transaction")

    def perform(self, *operations: Control) -> None:
        """Commit control operations together and wait for it."""
        self.settle(self.commit(*operations))

    def rotate(self, keyring: Keyring) -> None:
        """Encrypt under the keyring's current key from now on, durably; where another handle writes, know its keys."""
        self._state.vault.learn(keyring) if self.shared else self.perform(RotateKey(keyring))

    def settle(self, ticket: UnitTicket) -> None:
        """Wait for a unit and raise what became of it."""
        timeout = self.settings.ack_timeout_ms / 1000
        if not ticket.wait(timeout):
            raise Unavailable(f"the journal did not answer within {timeout:g} s", hint="the disk may be stalled")
        ticket.result()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything put so far is durable; raises if something since the last flush was not stored."""
        writer = self._writer
        if writer is None:  # nothing was put through a handle that only reads
            return
        if self.end is not None:
            raise self.end.again()
        seconds = self.settings.ack_timeout_ms / 1000 if timeout is None else timeout
        group = self._queue.barrier()
        if not group.wait(seconds):
            raise Unavailable(f"the journal did not flush within {seconds:g} s", hint="the disk may be stalled")
        failure = writer.offered_failure.take() or writer.poison
        if failure is not None:
            raise failure.again()

    # -- reading ------------------------------------------------------------------------------------------

    def reader(self, partition: Partition) -> EntryReader:
        """A reader of one partition's tail."""
        return EntryReader(self._backend, self._state.vault, partition, self.settings.entry_bytes_max)

    @property
    def commits(self) -> CommitCounts:
        """How far the writer is, for readers of entries in the order of commits."""
        assert isinstance(self._writer, Writer)
        return self._writer.commits

    def entries_after(self, seq: int, groups_max: int, bytes_max: int) -> tuple[list[Entry], bool]:
        """Committed entries behind a sequence number, in order, each proved; whole commits up to these limits.

        One commit comes in any case, however large. Also tells whether there is more.
        """
        return entries_after(self._backend, self.partitions, seq, groups_max, bytes_max, self.settings.entry_bytes_max)

    def bytes_after(self, seq: int) -> int:
        """Stored bytes of the entries behind a sequence number."""
        with self._backend.reading() as rows:
            return rows.bytes_after(seq)

    def ends_upto(self, seq: int) -> dict[Partition, int]:
        """Where each partition's entries end that were committed up to a sequence number, as far as they are here."""
        with self._backend.reading() as rows:
            ends = rows.ends_upto(seq)
        return {self.partitions[number]: end for number, end in ends.items() if number in self.partitions}

    def remembered_keys(self) -> RememberedKeys:
        """The idempotency keys of this journal, for shipping."""
        return RememberedKeys(self._backend, self._state.vault, self.partitions)

    def refresh(self, topic: str | None = None) -> None:
        """Of a handle that does not own: take up what the owner committed since, of one topic or of all."""
        if not self.owned and self._closed is None:
            self._catch_up.refresh(topic)

    def find_topics(self) -> None:
        """Of a handle that does not own: take up topics and schemas that are new, and nothing else."""
        if not self.owned and self._closed is None:
            self._catch_up.find_topics()

    def _recover(self) -> recovery.RecoveredState:
        vault = self._state.vault
        return recovery.recover(self._backend, vault.log_id, *vault.sources(), self.clock)

    def appended(self, partition: Partition) -> int:
        """The `appended` mark: durable, or waiting in the queue."""
        durable = partition.durable
        return max(durable + self._queue.waiting(partition), partition.durable)

    @property
    def pending_records(self) -> int:
        """Records that were accepted and are not durable yet."""
        return self._queue.depth()[0]

    @property
    def committed_records(self) -> int:
        """Records made durable through this handle."""
        return self._writer.counters.records if self._writer is not None else 0

    # -- sealing ------------------------------------------------------------------------------------------

    def notify_when_due(self, records: int, size: int) -> Signal:
        """A signal that notifies when a tail begins, and while one has this many records or bytes."""
        assert isinstance(self._writer, Writer)
        self._writer.due_records, self._writer.due_bytes = records, size
        return self._writer.due

    def tail_is_long(self) -> bool:
        """Whether the tail is on its way to its limit, so that something should be sealed."""
        return self._queue.tail.is_long

    def measure_tail(self, partition: Partition) -> None:
        """Count the bytes of a tail that was there when the log was opened."""
        with self._backend.reading() as rows:
            found = rows.tail_bytes(partition.id, partition.sealed.sealed_offset, partition.durable)
        before = max(0, found - partition.tail_bytes)
        self._queue.tail.bytes_found += before
        partition.tail_bytes_found = before

    def sealed_entries(self, partition: Partition, limit: int) -> int:
        """Entries that lie in segments and were not trimmed yet, counted up to a limit."""
        with self._backend.reading() as rows:
            return rows.entries_below(partition.id, partition.sealed.sealed_offset, limit)

    def segment_key(self, salt: bytes) -> SegmentKey | None:
        """The key for one attempt to write a segment, under a fresh salt; None without keys."""
        return self._state.vault.segment_key(salt)

    @property
    def segment_keys(self) -> Callable[[SegmentKeyFacts], SegmentKey] | None:
        """How readers of this log's segments find their keys; None in a log without keys."""
        return self._state.vault.segment_keys

    @property
    def message_keys(self) -> MessageKeys:
        """What encrypts and decrypts messages between processes that have this log's keys."""
        return self._state.vault.message_keys

    def disk_bytes(self) -> int:
        """What the journal takes on the disk: the database, its write-ahead log, files of groups."""
        return self._backend.filed.disk_bytes()

    # -- shipping -----------------------------------------------------------------------------------------

    @property
    def shipping(self) -> ShippingRow | None:
        """Where the log is shipped to, and how far it is; None when it never was."""
        return self._state.topics.shipping

    @property
    def shipping_state(self) -> ShippingState:
        """What anyone who waits for the store needs to know."""
        return self._state.topics.shipping_state

    def publish_shipping(self, shipping: ShippingRow) -> None:
        """Let everybody see how far the log is on its store, before that is written down."""
        self._state.topics.shipping = shipping

    def note_shipped(self, shipping: ShippingRow, shipments: Sequence[ShipmentRow]) -> UnitTicket:
        """Write down how far the log is on its store, with the next group; nobody has to wait for it."""
        return UnitTicket(
            self._queue.put_lazily([MarkShipped(shipping, shipments)]), self.settings.ack_timeout_ms / 1000
        )

    # -- lifetime -----------------------------------------------------------------------------------------

    def stats(self) -> JournalStats:
        """The journal at this moment."""
        writer, queue, ahead = self._writer, self._queue, self.trusted_time.ahead_seconds
        counters, poison = (JournalCounters(), None) if writer is None else (writer.counters, writer.poison)
        poisoned = None if poison is None else poison.message
        return counters.stats(queue.depth(), queue.drops.total, queue.refused, poisoned, ahead)

    @property
    def counters(self) -> JournalCounters | None:
        """What is counted of commits; None of a handle that only reads."""
        return None if self._writer is None else self._writer.counters

    def close(self, timeout: float) -> None:
        """Drain, stop the writer, close the database; raises if something accepted was not stored."""
        failure: HoldfastError | None = None
        if self._writer is not None:
            self._queue.refuse(Closed("the log is closed"), finish=True)
            if not self._writer.join(timeout):
                raise Unavailable(f"the journal did not drain within {timeout:g} s", hint="close() again to wait on")
            failure = self._writer.offered_failure.take()
            if not (isinstance(self._writer, Forwarder) and self._writer.lost_nothing):
                failure = failure or self._writer.poison
        try:
            self._backend.close()
        except (DiskFailed, HoldfastError) as error:
            failure = failure or Unavailable(
                f"the disk failed while closing path={self.path}",
                hint="everything acknowledged is kept; check the disk before opening the log again",
            )
            failure.__cause__ = failure.__cause__ or error
        if self.news is not None:
            self.news.stop()
        if self._link is not None:  # after our own connections: if we are the owner, too, its is the last one then
            failure = self._link.close(timeout) or failure
        self._closed = Closed("the log is closed")
        self._state.topics.ring_all()
        if failure is not None:
            raise failure.again()

    def drain(self, timeout: float) -> bool:
        """Wait until everything accepted is durable or refused; False when that takes longer."""
        return self._queue.barrier().wait(timeout)

    def forget(self) -> None:
        """In a forked child: refuse everything and never touch the parent's files."""
        self._closed = Closed("this log was opened before a fork", reason="forked")
        self._use(Queue(self.settings, self.clock))  # its lock may have been held by a thread that is not here
        self._queue.refuse(self._closed, finish=True)
        self._backend.leak()
