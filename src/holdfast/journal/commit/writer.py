"""The writer: one thread that turns groups into commits.

It owns the only writing connection and all heads. For each group it begins a transaction, stages the runs
and units in order of arrival, stores entries, heads and the log's counters, and commits: that is the fsync.
Only then are the marks published, then the group, and with it every ticket in it.

Failing alone. A run that cannot be packed or encrypted, and a unit whose operations fail, get no offset; the
rest of the group commits. Units run behind a savepoint, but for those that only change spaces and append plain records:
they fail before they have changed anything. Records that such units append to a partition are gathered into one entry,
whose failure is the whole group's; each run learns its place in it.

Failing together. A full or locked disk refuses the whole group, nothing was written, and the next group is
tried as if nothing had happened. Everything else that goes wrong while storing *poisons* the writer: an
fsync is never tried again, waiters of a group whose commit failed learn that its outcome is unknown, all
others and all later callers get `Closed(reason="poisoned")`. A defect in this very thread ends the same way: nobody is
left waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from threading import Thread

from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.journal.backend import Backend
from holdfast.journal.commit import manifest_changes
from holdfast.journal.commit.commit_alarms import CommitAlarms
from holdfast.journal.commit.next_row import filed_row, next_row
from holdfast.journal.commit.session_commits import SessionCommits
from holdfast.journal.commit.staging import Staging
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.journal_stats import JournalCounters
from holdfast.journal.queue.group import Group, Make, Operation, Run, Unit
from holdfast.journal.queue.offered_failure import OfferedFailure
from holdfast.journal.queue.queue import Queue
from holdfast.journal.queue.unsealed_tail import UnsealedTail
from holdfast.journal.state.commit_counts import CommitCounts
from holdfast.journal.state.journal_state import JournalState
from holdfast.journal.state.operations import (
    AddSchema,
    ChangeSpace,
    CreateTopic,
    Expire,
    ForgetSessions,
    MarkSegments,
    MarkShipped,
    RotateKey,
    Seal,
    SetPolicy,
    Trim,
)
from holdfast.journal.state.stamped_heads import stamp_late
from holdfast.journal.state.state_digest import StateDigest, Vouched
from holdfast.model.control_rows import LogRow, stamped
from holdfast.model.record_columns import EncodedRows
from holdfast.model.trusted_time import TrustedTime
from holdfast.signals import Signal

_KEYS_TRIMMED_PER_GROUP = 1000
_NEVER = 2**63
_LATE_ENTRIES_MAX = 256
"""So many entries may be in files alone: the more, the cheaper the groups, and the longer an open after a crash."""
_FOLD_S = 1.0
"""For so long: what the database does not name, it cannot miss when the end of the files is cut off."""
_FRAME_BYTES, _ITEM_BYTES, _RECORD_BYTES = 2048, 1024, 32
"""More than a frame needs beside payloads: for itself, for each entry with its head, for each record."""

logger = logging.getLogger("holdfast.journal")


class Writer:
    """The thread that commits."""

    def __init__(
        self,
        backend: Backend,
        state: JournalState,
        queue: Queue,
        settings: JournalSettings,
        clock: Clock,
        trusted_time: TrustedTime,
    ) -> None:
        self._backend = backend
        self._state = state
        self._vault = state.vault
        self._topics = state.topics
        self._queue = queue
        self._digest = StateDigest(state.vault, state.topics.stamps)
        self._settings = settings
        self._clock = clock
        self._sessions = SessionCommits(state.sessions, queue.lock, trusted_time)
        self._broken: dict[str, HoldfastError] = {}
        """Causal scopes in which a unit failed, with the cause."""
        self.counters = JournalCounters()
        self._alarms = CommitAlarms(clock, settings.tail_bytes_max)
        self.poison: Closed | None = None
        self.offered_failure = OfferedFailure()
        self._fold_at = _LATE_ENTRIES_MAX
        """When so many entries are in files alone, their rows are brought into the database …"""
        self._fold_due = clock.monotonic() + _FOLD_S
        """… or when it is so late, and there is one."""
        self._in_doubt = False
        """A commit was asked for and has not answered."""
        self.due = Signal()
        """Notified when a tail begins, and while one has reached these sizes:"""
        self.due_records = self.due_bytes = _NEVER
        self.commits = CommitCounts(state.row.next_seq - 1)
        self.on_stored: Callable[[int], None] | None = None
        """Called with the bytes of each group that was stored: by the guard of the disk."""
        self._thread = Thread(target=self._work, name="holdfast-writer", daemon=True)

    def keep_free(self, size: int, on_stored: Callable[[int], None]) -> UnsealedTail:
        """Prepare no file that leaves less than this free, and say of each group how many bytes it has."""
        if self._backend.filed.writer is not None:
            self._backend.filed.writer.keep_free = size
        self.on_stored = on_stored
        return self._queue.tail

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; False if it goes on."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        group: Group | None = None
        try:
            while (group := self._queue.take(group, self._idle())) is not None:
                self._commit(group)
                # From here to the next `take` those who were woken wait for the interpreter: little may happen.
                if self._has_chores():
                    self._queue.complete(group)
                    group = None
                    self._do_chores()
            self._tidy(self._backend.filed.leave)
        except BaseException as error:
            self._die(error, group)

    def _idle(self) -> tuple[float, Callable[[], None]] | None:
        """What is to be done when no group comes for a while: what is in files alone is known to the database then."""
        return (_FOLD_S, self._do_chores) if self._backend.filed.late.entries else None

    def _must_fold(self) -> bool:
        late = len(self._backend.filed.late.entries)
        return late >= self._fold_at or (late > 0 and self._clock.monotonic() >= self._fold_due)

    def _has_chores(self) -> bool:
        is_large = self._backend.wal_bytes >= self._settings.checkpoint_bytes
        return is_large or self._must_fold() or self._backend.filed.remains is not None

    def _do_chores(self) -> None:
        """What keeps files and database in shape; nobody waits for it but the next group."""
        filed = self._backend.filed
        if self._must_fold():
            self._tidy(filed.fold)
        if filed.remains is not None:
            self._tidy(filed.move_remains)
        if self._backend.checkpoint(self._settings.checkpoint_bytes):
            self.counters.checkpoints += 1

    def _tidy(self, work: Callable[[LogRow], None] | Callable[[LogRow | None], None]) -> None:
        """Bring groups out of files into the database; a full or locked one gets them later: they are durable."""
        row = self._folded_row()
        try:
            work(row)  # type: ignore[arg-type]  # folding has something to fold
            self._fold_at, self._fold_due = _LATE_ENTRIES_MAX, self._clock.monotonic() + _FOLD_S
            if row is not None:
                self._state.row = row
                self._digest.accept()
        except Unavailable as error:
            self._backend.rollback()
            self._fold_at = len(self._backend.filed.late.entries) + _LATE_ENTRIES_MAX
            self._fold_due = inf
            self._alarms.stay_in_files(error)

    def _folded_row(self) -> LogRow | None:
        """The log's own row as the database gets it with all that is in files alone; None where that is nothing."""
        stamps = stamp_late(self._backend.filed.late, self._topics, self._vault)
        if not stamps:
            return None
        file, position = self._backend.filed.place
        row = self._state.row._replace(heads=self._digest.propose(stamps), group_file=file, group_position=position)
        return stamped(row, self._vault)

    # -- one group ----------------------------------------------------------------------------------------

    def _commit(self, group: Group) -> None:
        if not (group.items or group.forwarded):  # a barrier
            group.finish()
            return
        started = self._clock.monotonic()
        before = self._state.row
        staging = Staging(self._backend, self._state)
        if group.forwarded:
            self._sessions.prepare(group)
        try:
            row = self._commit_to_file(group, staging) if self._fits_file(group) else None
            if row is None:
                row = self._commit_to_database(group, staging)
        except Unavailable as error:
            self._in_doubt = False
            self._refuse(group, error)
            return
        self._in_doubt = False
        if self._alarms.is_refusing:
            self._alarms.stored()
        self._state.row = row
        if not staging.is_plain:
            staging.spaces.accept()
            if staging.sessions is not None:
                self._sessions.accept(group, staging.sessions)
            for unit in staging.units:
                self._publish(unit)
        if staging.heads:
            self._publish_heads(staging, started)
            self.commits.publish(row.next_seq - 1, staging.bytes)
        now = self._clock.monotonic()
        entries = row.next_seq - before.next_seq
        queued = now - group.since if group.records else None
        self.counters.committed(staging.records, staging.bytes, entries, staging.repeats, now - started, queued)
        group.finish()

    def _commit_to_database(self, group: Group, staging: Staging) -> LogRow:
        """Store a group of anything, with all that is in files alone; returns the log's row."""
        late = stamp_late(self._backend.filed.late, self._topics, self._vault)
        self._backend.begin()
        if not staging.is_full:
            for item in group.items:
                self._stage(item, staging)
        staging.flush()
        if group.forwarded or staging.forgets_sessions:
            staging.sessions = self._sessions.stage(group)
        row = self._store(staging, late)
        self._in_doubt = True
        self._backend.commit()
        self._digest.accept()
        return row

    def _fits_file(self, group: Group) -> bool:
        """Whether a file of groups takes this one: records without idempotency keys, and nothing else.

        The first group of a key epoch goes through the database: what follows its row is proved by the same key.
        """
        files = self._backend.filed.writer
        if (
            files is None
            or self._vault.epoch != self._state.row.key_epoch
            or not (group.is_plain or all(map(_is_plain, group.items)))
        ):
            return False
        return files.has_place(
            _FRAME_BYTES + group.bytes + _RECORD_BYTES * group.records + _ITEM_BYTES * len(group.items)
        )

    def _commit_to_file(self, group: Group, staging: Staging) -> LogRow | None:
        """Make a group durable in a file; None where it turned out that there is nothing to store, or too much.

        Its rows reach the database later, with those of other groups.
        """
        for item in group.items:
            if isinstance(item, Run):
                self._stage(item, staging)
            else:
                self._stage_batch(item, staging)
        staging.is_full = True
        if group.forwarded:
            staging.sessions = self._sessions.stage(group)
        row = filed_row(self._state.row, staging)
        filed = self._backend.filed
        frame = filed.framed(row.groups, row.key_epoch, *staging.framed(), self._vault.prove, staging.sessions)
        if frame is None:
            return None
        filed.check_owned()
        self._in_doubt = True
        filed.append_group(row.groups, frame, staging.entries, staging.sessions)
        return row

    def _stage_batch(self, unit: Unit, staging: Staging) -> None:
        """Records that commit together or not at all, in a group that no transaction holds together."""
        if unit.error is not None:  # it was withdrawn
            return
        saved = staging.snapshot()
        try:
            for run in unit.runs():
                staging.add(run)
        except HoldfastError as error:
            staging.restore(saved)
            self._fail_unit(unit, error)

    def _publish_heads(self, staging: Staging, now: float) -> None:
        is_due = False
        added = 0
        for partition, (next_offset, link, size) in staging.heads.items():
            begins = partition.advance(next_offset, link, size, now)
            full = partition.tail_records >= self.due_records or partition.tail_size >= self.due_bytes
            is_due = is_due or begins or full
            added += size
        self._queue.tail_moved(added)
        is_long = self._queue.tail.is_long
        if is_due or is_long:
            self.due.notify()
        if is_long or self._alarms.is_tail_long:
            self._alarms.tail(self._queue.tail.size)
        if self.on_stored is not None:
            self.on_stored(added)

    def _stage(self, item: Run | Unit, staging: Staging) -> None:
        if isinstance(item, Run):
            staging.settle()
            try:
                staging.add(item)
            except HoldfastError as error:
                item.error = error
                if item.group.offered:
                    self.offered_failure.note(error)
            else:
                self.offered_failure.note_refused(item)
        elif item.error is not None:  # it was withdrawn
            pass
        elif item.scope is not None and item.scope in self._broken and not item.reissue:
            item.fail(self._broken[item.scope])
        elif item.make is not None and not self._made(item, item.make):
            pass
        elif item.is_light:
            self._stage_light(item, staging)
        else:
            self._stage_unit(item, staging)

    def _made(self, unit: Unit, make: Make) -> bool:
        """Let a unit that gathered say what it consists of; whether it could."""
        try:
            unit.operations = make(unit)
        except HoldfastError as error:
            self._fail_unit(unit, error)
        except Exception as error:  # a caller's code: its failure is that of what it was to make
            failure = Unavailable("a change could not be made; nothing of it was written", hint="see the cause")
            failure.__cause__ = error
            self._fail_unit(unit, failure)
        else:
            for run in unit.runs():
                run.group = unit.group
        return unit.error is None

    def _stage_unit(self, unit: Unit, staging: Staging) -> None:
        staging.flush()
        saved = staging.snapshot([op.name for op in unit.operations if isinstance(op, ChangeSpace)])
        self._backend.savepoint()
        try:
            for operation in unit.operations:
                self._apply(operation, staging)
            unit.check_repeats()
            staging.flush()
        except HoldfastError as error:
            if self._backend.transaction_ended():  # the database undid all of it: this is not the unit's own failure
                raise
            self._backend.rollback_unit()
            staging.restore(saved)
            self._fail_unit(unit, error)
        else:
            self._backend.release()
            staging.units.append(unit)
            self._restore_scope(unit)

    def _stage_light(self, unit: Unit, staging: Staging) -> None:
        """Changes of spaces, with or without records: all that may fail is done before anything is staged."""
        spaces = staging.spaces
        try:
            prepared = [
                spaces.prepare(operation, staging.encrypt) if isinstance(operation, ChangeSpace) else None
                for operation in unit.operations
            ]
        except HoldfastError as error:
            if self._backend.transaction_ended():
                raise
            self._fail_unit(unit, error)
            return
        for operation, encrypted in zip(unit.operations, prepared, strict=True):
            if encrypted is not None:
                spaces.apply(operation, encrypted)  # type: ignore[arg-type]  # it was prepared
            else:
                staging.gather(operation)  # type: ignore[arg-type]  # a run: nothing else is light
        self._restore_scope(unit)

    def _restore_scope(self, unit: Unit) -> None:
        if unit.scope is not None:
            self._broken.pop(unit.scope, None)

    def _fail_unit(self, unit: Unit, error: HoldfastError) -> None:
        unit.fail(error)
        if unit.scope is not None:
            self._broken[unit.scope] = error

    def _store(self, staging: Staging, late: dict[Vouched, bytes]) -> LogRow:
        """Store what is staged; `late` are the stamps of heads that come with it out of files."""
        if not staging.is_plain:
            staging.spaces.store()
        if staging.sessions is not None:
            self._backend.store_sessions(staging.sessions.rows, staging.sessions.gone)
        heads = staging.head_rows(self._topics.ids)
        if heads:
            self._backend.store_heads(heads)
        stamps: dict[Vouched, bytes] = {("head", head.partition_id): head.stamp for head in heads}
        row = next_row(self._state.row, staging, late | stamps, self._digest.propose, self._backend.filed.place)
        row = stamped(row, self._vault)
        if staging.keys:
            self._backend.trim_keys(row.keys - self._settings.idempotency_keys_max, _KEYS_TRIMMED_PER_GROUP)
        self._backend.store_log(row, row.epoch)
        return row

    def _apply(self, operation: Operation, staging: Staging) -> None:
        backend, vault = self._backend, self._vault
        match operation:
            case Run():
                staging.add(operation)
            case ChangeSpace():
                staging.spaces.apply(operation, staging.spaces.prepare(operation, staging.encrypt))
            case CreateTopic():
                self._topics.store(backend, vault, operation, self._clock)
            case AddSchema():
                self._topics.store_schema(backend, vault, operation, self._clock)
            case SetPolicy():
                self._topics.store_policy(backend, vault, operation)
            case RotateKey(keyring=keyring):
                number = self._state.row.key_epochs + 1
                operation.epoch = vault.begin(number, self._clock.random_bytes(SALT_BYTES), keyring)
                backend.insert_key_epoch(operation.epoch)
            case ForgetSessions():
                staging.forgets_sessions = True
            case Seal() | Trim() | Expire() | MarkSegments() | MarkShipped():
                manifest_changes.apply(backend, vault, operation)

    def _publish(self, unit: Unit) -> None:
        """Make what a unit's operations did visible; it is durable."""
        for operation in unit.operations:
            match operation:
                case CreateTopic() | AddSchema() | SetPolicy():
                    self._topics.publish_change(operation)
                case RotateKey(keyring=keyring, epoch=epoch) if epoch is not None:
                    self._vault.enter(epoch, keyring)
                case Seal(partition=partition, watermark=watermark, size=size) if watermark is not None:
                    partition.seal(watermark, size)
                    self._queue.tail_moved(-size)
                    self.commits.seals.notify()
                case Expire(partition=partition, watermark=watermark) if watermark is not None:
                    partition.seal(watermark, 0)
                case Trim(bodies=bodies):
                    self._backend.filed.trimmed(bodies)

    # -- when it goes wrong -------------------------------------------------------------------------------

    def _refuse(self, group: Group, error: Unavailable) -> None:
        """The disk would not take this group: nothing of it was written."""
        self._backend.rollback()
        if group.offered:
            self.offered_failure.note(error)
        self.counters.failed_groups += 1
        for item in group.items:
            if isinstance(item, Unit) and item.scope is not None:
                self._broken[item.scope] = error
        if group.forwarded:
            self._sessions.reject(group, error)
        group.finish(error)
        self._alarms.refused(group.records, error)

    def _die(self, error: BaseException, group: Group | None) -> None:
        reason = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        poison = (
            error if isinstance(error, Closed) else Closed(f"the journal stopped writing: {reason}", reason="poisoned")
        )
        poison.__cause__ = error if poison is not error else error.__cause__
        self.poison = poison
        self._backend.abandon()
        abandoned = self._queue.abandon(poison)
        if group is not None and not group.done:
            group.finish(_unknown(poison) if self._in_doubt else poison)
            self._queue.complete(group)
        for waiting in abandoned:
            waiting.finish(poison)
        self._topics.ring_all()
        logger.critical("journal poisoned: %s", reason, extra={"action": "poisoned", "reason": reason}, exc_info=error)


def _is_plain(item: Run | Unit) -> bool:
    """A run, or a batch, that nobody gave an idempotency key."""
    if isinstance(item, Run):
        return not item.keyed and not (isinstance(item.columns, EncodedRows) and item.columns.key is not None)
    return item.alone and all(isinstance(operation, Run) and _is_plain(operation) for operation in item.operations)


def _unknown(poison: Closed) -> OutcomeUnknown:
    unknown = OutcomeUnknown("the commit failed and may or may not be durable", hint=poison.hint)
    unknown.__cause__ = poison
    return unknown
