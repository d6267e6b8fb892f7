"""What waits for the writer: groups of records, bounded in number and bytes.

Callers put records into the open group under one short lock; the writer takes whole groups. A group is
closed to newcomers when it reaches its caps, and queued; what arrives during a commit gathers in the next.
The bounds cover everything that is not durable yet, the group being committed included. Beyond them a
buffered record is refused at once (False, counted, one warning per burst), and an acknowledged one waits
for room, never longer than its time-out, then raises `Full`: nothing was written. On an event loop nobody
waits: a blocked loop could never drain. Control units bypass the caps and are never refused for fullness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.caller import in_coroutine, interrupted
from holdfast.clock import Clock
from holdfast.errors import Closed, Full, HoldfastError, Unavailable
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.forwarded import ForwardedRows, ForwardedTicket, ForwardedUnit, ProducedUnit
from holdfast.journal.queue.group import Group, Make, OpenUnit, Operation, ProducerNumber, Run, Unit
from holdfast.journal.queue.offered_drops import OfferedDrops
from holdfast.journal.queue.queued_groups import IDLE, QueuedGroups
from holdfast.journal.queue.session_sending import SessionSend
from holdfast.journal.queue.ticket import Ticket
from holdfast.journal.queue.unsealed_tail import UnsealedTail
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Cells, Columns, EncodedRows, Extra, RowEncoder
from holdfast.signals import Wake


class Queue(QueuedGroups):
    """The bounded way from callers to the writer. One lock guards all of it, and the groups that are not taken.

    But for the tail, whose length the writer alone moves, and what was found at open, which the roller adds once.
    """

    def __init__(self, settings: JournalSettings, clock: Clock, wake: Wake | None = None) -> None:
        """`wake` rouses the taker of groups, where that does not sleep here, in `take`."""
        super().__init__(settings, wake)
        self._clock = clock
        self._hold: HoldfastError | None = None
        """Why no record is taken at the moment …"""
        self._holds: dict[str, HoldfastError] = {}
        """… and all such reasons, by their sources, which will withdraw them."""
        self.tail = UnsealedTail(settings.tail_bytes_max)
        self.drops = OfferedDrops()
        self.refused = 0

    # -- callers ------------------------------------------------------------------------------------------

    def submit(
        self,
        partition: Partition,
        payload: bytes,
        time: int,
        extra: Extra | None,
        unique: bytes | None,
        size: int,
        timeout: float,
        idempotency_key: bytes | None,
    ) -> Ticket:
        """Add one record; its ticket. `unique` is the hash of the idempotency key, and the digest of the record."""
        # What `_put` does, in place: of all verbs this one is called most, and each call costs a tenth of it.
        is_inside = self._is_inside  # calling it by way of the queue would be slower
        if is_inside():
            raise interrupted()
        with self._lock:
            group = self._open
            if group.records >= group.records_cap or group.bytes + size > group.bytes_cap:
                group = self._admit(1, size, timeout)
            run = group.runs.get(partition)
            if run is None:
                run = _run_for(group, partition)
            if extra is not None:
                run.extras = True
            if unique is not None:
                run.keyed, group.is_plain = True, False
            group.records += 1
            group.bytes += size
            rows = run.rows
            rows.append((payload, time, extra, unique))
            group.acked = True
            if self._asleep:
                self._rouse()
            return Ticket(run, len(rows) - 1, timeout, idempotency_key)

    def offer(
        self, partition: Partition, payload: bytes, time: int, extra: Extra | None, unique: bytes | None, size: int
    ) -> bool:
        """Add one buffered record, or refuse it at once."""
        try:
            self.refuse_second()
            with self._lock:
                run = self._put(partition, payload, time, extra, unique, size, 0)
                run.group.offered += 1
                if unique is not None:
                    run.offered.append(len(run.rows) - 1)
                if self._asleep == IDLE:
                    self._rouse()
        except Unavailable:
            self.drops.note()
            return False
        if self.drops.burst:
            self.drops.end_burst()
        return True

    def put_row(
        self, partition: Partition, cells: Cells, time: int, encoder: RowEncoder, size: int, timeout: float
    ) -> tuple[Run, int]:
        """Add one row of a typed topic to those that are encoded together; where it is."""
        if partition.refusal is not None:
            raise partition.refusal.again()
        if self._is_inside():
            raise interrupted()
        with self._lock:
            group = self._open
            run = group.runs.get(partition)
            joins = run is not None and run.takes(encoder, size, self._settings)
            needed = size if joins else size + encoder.overhead
            if group.records >= group.records_cap or group.bytes + needed > group.bytes_cap:
                needed = size + encoder.overhead
                group = self._admit(1, needed, timeout)
                joins = False
            if run is None or not joins:
                run = group.begin_rows(partition, encoder)
            group.records += 1
            group.bytes += needed
            run.cell_bytes += needed
            run.cells.append((cells, time))
            group.acked = True
            if self._asleep:
                self._rouse()
            return run, len(run.cells) - 1

    def put_runs(self, runs: Sequence[tuple[Partition, Columns | EncodedRows]], size: int, timeout: float) -> Unit:
        """Add records that commit together: one run per partition, as one unit."""
        records = sum(len(columns) for _, columns in runs)
        for partition, _ in runs:
            if partition.refusal is not None:
                raise partition.refusal.again()
        self.refuse_second()
        with self._lock:
            group = self._admit(records, size, timeout)
            unit = Unit.of(group, runs)
            group.records += records
            group.bytes += size
            self._place(group, unit)
        return unit

    def put_unit(
        self,
        operations: list[Operation],
        records: int,
        size: int,
        timeout: float,
        *,
        scope: str | None = None,
        reissue: bool = False,
        produced: ProducerNumber | None = None,
    ) -> Unit:
        """Add operations that commit together, bounded like records; runs among them get their group here."""
        counted = max(1, records)
        runs = [operation for operation in operations if isinstance(operation, Run)]
        if runs:
            _check_taken(run.partition for run in runs)
        self.refuse_second()
        with self._lock:
            group = self._admit(counted, size, timeout)
            unit = Unit(group, operations, scope=scope, reissue=reissue)
            unit.produced = produced
            for run in runs:
                run.group = group
            group.records += counted
            group.bytes += size
            self._place(group, unit)
        return unit

    def put_produced(
        self, produced: ProducerNumber, item: ForwardedRows | ForwardedUnit, timeout: float
    ) -> ProducedUnit:
        """Add what a producer sends from where the log is not owned: its owner knows what was written."""
        if isinstance(item, ForwardedUnit):
            operations, records = list(item.operations), item.records
        else:
            run = Run.unplaced(item.partition)
            run.rows, run.extras = item.rows, any(row[2] is not None for row in item.rows)
            operations, records = [run], len(item.rows)
        return ProducedUnit(self.put_unit(operations, records, item.size, timeout, produced=produced))

    def put_part(
        self,
        part: object,
        make: Make,
        partition: Partition | None,
        records: int,
        size: int,
        timeout: float,
        *,
        scope: str | None = None,
        reissue: bool = False,
        join: Unit | OpenUnit | None = None,
        alone: bool = False,
        acked: bool = True,
        others: Mapping[Partition, int] | None = None,
    ) -> Unit:
        """Add a part to a unit that gathers: to this one if the writer has not taken it, else to a new one.

        A `OpenUnit` knows which one that is, and whether it is the first; with `alone` it begins a new one.

        A part becomes durable, or is refused, with its whole unit. Where a record would have to wait for room, so does
        a part, and then it begins a unit of its own. One that is not `acked` is in no hurry, like an offered record.
        `others` are records for other partitions.
        """
        counted = max(1, records)
        if others:
            counted += sum(others.values())
            _check_taken(others)
        gathering = join if isinstance(join, OpenUnit) else None
        self.refuse_second()
        with self._lock:
            unit = join.joined(alone=alone) if isinstance(join, OpenUnit) else join
            group = self._open
            if (
                unit is None
                or unit.group is not group
                or self._refusal is not None
                or group.records + counted > group.records_cap
                or group.bytes + size > group.bytes_cap
            ):
                group = self._admit(counted, size, timeout)
                if gathering is not None:  # it may have gone on, or ended, while this one waited
                    gathering.joined()
                    reissue = gathering.unit is None
                unit = Unit(group, [], scope=scope, reissue=reissue, make=make)
                group.add(unit)
                if gathering is not None:
                    gathering.unit = unit
            unit.join(part, partition, records)
            if others:
                unit.promise(others)
            group.records += counted
            group.bytes += size
            if acked:
                group.acked = True
                if self._asleep:
                    self._rouse()
            elif self._asleep == IDLE:
                self._rouse()
        return unit

    def put_forwarded(self, sending: SessionSend, timeout: float) -> ForwardedTicket:
        """Add all that a session sends under one number to one group; or what is known about that number."""
        self.refuse_second()
        with self._lock:
            known = sending.known()  # before it waits for room …
            if known is None:
                admitted = self._admitted(sending, timeout)
                if isinstance(admitted, HoldfastError):
                    return sending.refused(admitted)
                group = admitted
                if timeout > 0:
                    known = sending.known()  # … and after: another thread may have sent it meanwhile
            if known is not None:
                return known
            forwarded = sending.place(group)
            group.records += sending.records
            group.bytes += sending.size
            group.acked = True
            if self._asleep:
                self._rouse()
            return forwarded

    def _admitted(self, sending: SessionSend, timeout: float) -> Group | HoldfastError:
        """A group with room; or why its records are refused, which is an answer to what was sent."""
        # Not inside the `with` above: an interrupt at the very line of a `try` would leave the lock held.
        try:
            return self._admit(sending.records, sending.size, timeout)
        except (Full, Closed):
            raise
        except HoldfastError as error:
            return error

    def end_gathering(self, gathering: OpenUnit, reason: HoldfastError) -> Unit | None:
        """Let it take no more parts; the last unit that it has, for those that wait for its end."""
        self.refuse_second()
        with self._lock:
            gathering.end = gathering.end or reason
            return gathering.unit

    def not_refused(self) -> None:
        """What was counted as refused is tried again: by a coroutine that waits in line."""
        with self._lock:
            self.refused -= 1

    def gave_up(self) -> None:
        """It has waited too long."""
        with self._lock:
            self.refused += 1

    def wait_for_room(self, size: int, timeout: float) -> bool:
        """Wait until a record of this size would be taken, or refused for good; False when that takes longer."""
        return self.room.sleep(lambda: self._may_go_on(1, size), timeout)

    def put_control(self, operations: list[Operation], *, scope: str | None = None, reissue: bool = False) -> Unit:
        """Add a control unit through the reserved lane: never refused for fullness."""
        self.refuse_second()
        with self._lock:
            unit = self._control(operations, scope, reissue)
            self._place(self._open, unit)
        return unit

    def put_lazily(self, operations: list[Operation]) -> Unit:
        """Add a control unit that is in no hurry: it goes with the next group, or after the flush interval."""
        self.refuse_second()
        with self._lock:
            unit = self._control(operations, None, False)
            self._open.add(unit)
            if self._asleep == IDLE:
                self._rouse()
        return unit

    def _control(self, operations: list[Operation], scope: str | None, reissue: bool) -> Unit:
        if self._refusal is not None:
            raise self._refusal.again()
        return Unit(self._open, operations, scope=scope, reissue=reissue)

    def barrier(self) -> Group:
        """The group whose end means that all that was put so far is settled; wakes the writer."""
        self.refuse_second()
        with self._lock:
            self._open.acked = True
            if self._asleep:
                self._rouse()
            return self._open

    def waiting(self, partition: Partition) -> int:
        """Records of this partition that are not durable yet."""
        with self._lock:
            groups = [*self._closed, self._open, *self._taken]
            return sum(
                item.records(partition) if isinstance(item, Unit) else len(item) * (item.partition is partition)
                for group in groups
                for item in group.items
            )

    def depth(self) -> tuple[int, int]:
        """Records and bytes that are not durable yet."""
        with self._lock:
            return self._pending_records + self._open.records, self._pending_bytes + self._open.bytes

    def refuse(self, refusal: HoldfastError, *, finish: bool) -> None:
        """Take nothing more; with `finish` the writer drains what is there and ends."""
        self.refuse_second()
        with self._lock:
            if self._refusal is None:
                self._refusal = refusal
            self._open.records_cap = 0  # the next record has to ask
            self._finishing = self._finishing or finish
            if self._asleep:
                self._rouse()
        if self._hurry_wake is not None:
            self._hurry_wake()
        self.room.notify()

    def hold(self, by: str, reason: HoldfastError | None) -> None:
        """Refuse records for this reason, or (None) withdraw it; control units pass."""
        self.refuse_second()
        with self._lock:
            self._holds.pop(by, None)
            if reason is not None:
                self._holds[by] = reason
            self._hold = next(iter(self._holds.values()), None)
            self._open.records_cap = 0  # the next record has to ask
        self.room.notify()

    def tail_moved(self, size: int) -> None:
        """By the writer, who alone counts them: so many bytes were added to the tail, or (negative) left it."""
        self.tail.bytes_since += size
        if size < 0:
            self.room.notify()

    # -- with the lock held -------------------------------------------------------------------------------

    def _put(
        self,
        partition: Partition,
        payload: bytes,
        time: int,
        extra: Extra | None,
        unique: bytes | None,
        size: int,
        timeout: float,
    ) -> Run:
        """Add one record as the last row of the run that is returned."""
        group = self._open
        if group.records >= group.records_cap or group.bytes + size > group.bytes_cap:
            group = self._admit(1, size, timeout)
        run = group.runs.get(partition)
        if run is None:
            run = _run_for(group, partition)
        if extra is not None:
            run.extras = True
        if unique is not None:
            run.keyed, group.is_plain = True, False
        group.records += 1
        group.bytes += size
        run.rows.append((payload, time, extra, unique))
        return run

    def _place(self, group: Group, unit: Unit) -> None:
        group.add(unit)
        group.acked = True
        if self._asleep:
            self._rouse()

    def _admit(self, records: int, size: int, timeout: float) -> Group:
        """The open group, with room for this; waits for room with the lock released."""
        deadline = -1.0
        while True:
            if self._refusal is not None or self._hold is not None:
                raise (self._refusal or self._hold).again()  # type: ignore[union-attr]  # one of them is there
            if self._fits(records, size):
                return self._group_with_room(records, size)
            self._open.acked = True  # the queue is full: lingering would only prolong that
            if self._asleep:
                self._rouse()
            if timeout <= 0 or in_coroutine():
                self.refused += timeout > 0
                raise self.tail.full("the queue to the journal is full; nothing was written")
            now = self._clock.monotonic()
            deadline = now + timeout if deadline < 0 else deadline
            if now >= deadline:
                self.refused += 1
                raise self.tail.full(f"no room in the queue to the journal within {timeout:g} s; nothing was written")
            self._lock.release()
            try:
                self.room.sleep(lambda: self._may_go_on(records, size), deadline - now)
            finally:
                self._lock.acquire()

    def _may_go_on(self, records: int, size: int) -> bool:
        return self._refusal is not None or self._hold is not None or self._fits(records, size)

    def _fits(self, records: int, size: int) -> bool:
        if self.tail.is_full:
            return False
        total_records = self._pending_records + self._open.records
        total_bytes = self._pending_bytes + self._open.bytes
        if not total_records:
            return True  # an empty queue takes anything that passed the size limits
        return (
            total_records + records <= self._settings.queue_records_max
            and total_bytes + size <= self._settings.queue_bytes_max
        )

    def _group_with_room(self, records: int, size: int) -> Group:
        settings, group = self._settings, self._open
        if group.records and (
            group.records + records > settings.group_records_max or group.bytes + size > settings.group_bytes_max
        ):
            self._closed.append(self._rotate())
            group = self._open
            if self._asleep:
                self._rouse()
        if not group.records:  # its first one: the caps of a new group are zero, so it comes this way
            group.since = self._clock.monotonic()
        group.records_cap = min(settings.group_records_max, settings.queue_records_max - self._pending_records)
        group.bytes_cap = min(settings.group_bytes_max, settings.queue_bytes_max - self._pending_bytes)
        return group


def _run_for(group: Group, partition: Partition) -> Run:
    """The run that takes this partition's next record, if it takes records."""
    if partition.refusal is not None:
        raise partition.refusal.again()
    return group.run_for(partition)


def _check_taken(partitions: Iterable[Partition]) -> None:
    """Raise why one of these takes no records any more."""
    for partition in partitions:
        if partition.refusal is not None:
            raise partition.refusal.again()
