"""What a session sends under one sequence number, and its place in a group.

All of it goes into one group, under one hold of the queue's lock: so it is durable as a whole, with the session's own
row, or not at all. Plain rows join the open run of their partition, so that the rows of all sessions of a group are one
entry; batches and transactions are units of their own. What cannot be taken is refused alone, and its refusal is part
of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.queue.group import Group, Operation, Run, Unit
from holdfast.journal.sessions.outcomes import Outcome, Outcomes, Refusal, Repeat, RunOutcome
from holdfast.journal.sessions.session_state import SessionState, refused_all
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Row


class ForwardedRows(NamedTuple):
    """Plain records of one partition; each may carry the hash of an idempotency key."""

    partition: Partition
    rows: list[Row]
    size: int


class ForwardedUnit(NamedTuple):
    """A batch (`alone`: its runs are entries of their own) or a transaction."""

    operations: list[Operation]
    records: int
    size: int
    scope: str | None = None
    reissue: bool = False
    alone: bool = False
    refusal: HoldfastError | None = None
    """Why the owner does not write it: it fails alone."""
    placed: list[Unit] | None = None
    """The unit that it became is added here."""


def forwarded_unit(unit: Unit, records: int, size: int) -> ForwardedUnit | ForwardedProduced:
    """A unit of another process, for the log's owner."""
    if unit.produced is None:
        return ForwardedUnit(unit.operations, records, size, unit.scope, unit.reissue, unit.alone)
    (*_, run) = runs = unit.runs()
    is_rows = len(runs) == 1 and run.columns is None
    item = (
        ForwardedRows(run.partition, run.rows, size)
        if is_rows
        else ForwardedUnit(unit.operations, records, size, alone=True)
    )
    return ForwardedProduced(*unit.produced, item)


class ForwardedProduced(NamedTuple):
    """What `log.producer(name)` sends through another session: under a number of its own."""

    producer: bytes
    sequence: int
    start: int
    item: ForwardedRows | ForwardedUnit


Item = ForwardedRows | ForwardedUnit | ForwardedProduced


class _Rows(NamedTuple):
    """Rows in a run: which ones, and where they begin."""

    run: Run
    start: int
    rows: list[Row]


class ForwardedTicket:
    """The promise of what a session sent under one number."""

    __slots__ = ("_outcomes", "_places", "_twin", "floor", "group", "items", "sequence", "session")

    def __init__(self, session: SessionState, sequence: int, floor: int, items: int) -> None:
        self.session = session
        self.sequence = sequence
        self.floor = floor
        self.items = items
        self.group: Group | None = None
        """Where it was placed; None: it was known already."""
        self._places: list[_Rows | Unit | HoldfastError | ForwardedTicket | Outcome] = []
        self._outcomes: Outcomes | None = None
        self._twin: ForwardedTicket | None = None
        """The one that came first, if this stands for the same."""

    @classmethod
    def known(cls, session: SessionState, sequence: int, outcomes: Outcomes) -> ForwardedTicket:
        """What became of a number that was sent before."""
        found = cls(session, sequence, 0, len(outcomes))
        found._outcomes = outcomes
        return found

    def again(self) -> ForwardedTicket:
        """The same, for a sender that repeats it."""
        twin = ForwardedTicket(self.session, self.sequence, self.floor, self.items)
        twin.group, twin._twin = self.group, self
        return twin

    # -- waiting ------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.group is None or self.group.done

    @property
    def is_lost(self) -> bool:
        """Whether a signal struck before any group knew of it; asked with the queue's lock held."""
        return self.group is None or not any(one is self for one in self.group.forwarded)

    def wait(self, timeout: float) -> bool:
        """Wait for the outcome, whatever it is; whether it is known."""
        group = self.group
        return group is None or group.done or group.wait(timeout)

    def outcomes(self) -> Outcomes:
        """What became of each item; it is done."""
        group = self.group
        if group is not None and group.error is not None:
            return self.refused(group.error)
        if self._twin is not None:
            return tuple(outcome.again() for outcome in self._twin.outcomes())
        if self._outcomes is None:
            return refused_all(self.items, _NOT_STORED)
        return self._outcomes

    # -- its place ----------------------------------------------------------------------------------------

    def begin(self, group: Group) -> None:
        """Let a group know of it, before its items are put there; by the queue, with its lock held.

        A signal may strike the main thread anywhere: so `settle` checks whether the records are there. A sender of
        more than one item is not a main thread.
        """
        self.group = group
        group.is_plain = False
        group.forwarded.append(self)

    def add(self, group: Group, item: ForwardedRows | ForwardedUnit) -> None:
        """Put one item into the group."""
        if isinstance(item, ForwardedRows):
            self._add_rows(group, item)
        else:
            self._add_unit(group, item)

    def alias(self, other: ForwardedTicket | Outcome | HoldfastError) -> None:
        """One item is known already, refused, or on its way under another number."""
        self._places.append(other)

    def _add_rows(self, group: Group, item: ForwardedRows) -> None:
        partition, rows, _ = item
        if partition.refusal is not None:
            self._places.append(partition.refusal)
            return
        run = group.run_for(partition)
        for _, _, extra, unique in rows:
            if extra is not None:
                run.extras = True
            if unique is not None:
                run.keyed = True
        self._places.append(_Rows(run, len(run.rows), rows))
        run.rows.extend(rows)

    def _add_unit(self, group: Group, item: ForwardedUnit) -> None:
        unit = Unit(group, item.operations, scope=item.scope, reissue=item.reissue)
        unit.alone = item.alone
        refused = (run.partition.refusal for run in unit.runs())
        refusal = item.refusal or next((reason for reason in refused if reason is not None), None)
        if refusal is not None:
            self._places.append(refusal)
            return
        for run in unit.runs():
            run.group = group
        self._places.append(unit)
        group.add(unit)
        if item.placed is not None:
            item.placed.append(unit)

    def withdraw(self, error: HoldfastError) -> None:
        """By the writer, before the group is staged: keep its records out, for this reason."""
        for place in self._places:
            if isinstance(place, _Rows):
                run, start, rows = place
                run.keyed = True
                for at in range(start, min(start + len(rows), len(run.rows))):
                    if run.rows[at] is rows[at - start]:
                        run.repeats[at] = error
            elif isinstance(place, Unit):
                place.fail(error)

    # -- its outcome --------------------------------------------------------------------------------------

    def settle(self) -> Outcomes:
        """What becomes of each item if the group commits, which is staged."""
        if self._twin is not None:
            return tuple(outcome.again() for outcome in self._twin.settle())
        if self._outcomes is None:
            self._outcomes = tuple(map(_outcome, self._places))
            if len(self._outcomes) < self.items:  # a signal struck before all were in
                self._outcomes += refused_all(self.items - len(self._outcomes), _NOT_STORED)
        return self._outcomes

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it was refused; it is settled."""
        return all(outcome.error is None and not any(run.refused for run in outcome.runs) for outcome in self.settle())

    def refused(self, error: HoldfastError) -> Outcomes:
        """The same refusal for every item."""
        return refused_all(self.items, error)

    def release(self) -> None:
        """Let go of records."""
        self._places = []


_NOT_STORED = Unavailable("the record was not stored", hint="append it again")


def _outcome(place: _Rows | Unit | HoldfastError | ForwardedTicket | Outcome) -> Outcome:
    if isinstance(place, _Rows):
        return _rows_outcome(place)
    if isinstance(place, Unit):
        return _unit_outcome(place)
    if isinstance(place, ForwardedTicket):
        return place.outcomes()[0] if place.done else place.settle()[0]
    return Outcome.refused(place) if isinstance(place, HoldfastError) else place


class ProducedUnit:
    """The promise of what a producer sent through a process that does not own the log."""

    __slots__ = ("_unit",)

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    @property
    def group(self) -> Group:
        """Where it was placed."""
        return self._unit.group

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.group.done

    def wait(self, timeout: float) -> bool:
        """Wait for the outcome, whatever it is; whether it is known."""
        return self.group.done or self.group.wait(timeout)

    def outcomes(self) -> Outcomes:
        """What became of it; it is done."""
        error = self._unit.error or self.group.error
        if error is not None:
            return refused_all(1, error)
        return (Outcome(None, tuple(_run_outcome(run, 0, run.count) for run in self._unit.runs())),)


Sent = ForwardedTicket | ProducedUnit
"""What a producer sent: in the owner's process, or in another."""


def _unit_outcome(unit: Unit) -> Outcome:
    if unit.error is not None:
        return Outcome.refused(unit.error)
    runs = unit.runs()
    if any(len(run) and run.first < 0 and not run.repeats for run in runs):  # a signal struck before it was in
        return Outcome.refused(_NOT_STORED)
    return Outcome(None, tuple(_run_outcome(run, 0, len(run)) for run in runs))


def _rows_outcome(place: _Rows) -> Outcome:
    run, start, rows = place
    if run.error is not None:
        return Outcome.refused(run.error)
    end = start + len(rows)
    if end > len(run.rows) or run.rows[start] is not rows[0] or run.rows[end - 1] is not rows[-1]:
        return Outcome.refused(_NOT_STORED)  # a signal struck before they were in
    return Outcome(None, (_run_outcome(run, start, len(rows)),))


def _run_outcome(run: Run, start: int, count: int) -> RunOutcome:
    if run.repeated:
        return RunOutcome(run.partition.id, run.first, run.seq, count, repeated=True)
    if not run.repeats:  # what most of them are
        return RunOutcome(run.partition.id, run.first + start, run.seq, count)
    slots = run.slots
    first = run.first + (start if slots is None else slots[start]) if run.first >= 0 else -1
    repeats: list[Repeat] = []
    refused: list[tuple[int, Refusal]] = []
    for position in range(count):
        known = run.repeats.get(start + position)
        if isinstance(known, HoldfastError):
            refused.append((position, Refusal.of(known)))
        elif known is not None:
            partition, offset, seq = known
            repeats.append(Repeat(position, partition.id, offset, seq))
    return RunOutcome(run.partition.id, first, run.seq, count, repeats=tuple(repeats), refused=tuple(refused))


def fill(run: Run, outcome: RunOutcome, partitions: Mapping[int, Partition]) -> None:
    """Let a run of another process know what became of it, so that its tickets have their receipts."""
    run.first, run.seq, run.repeated = outcome.first, outcome.seq, outcome.repeated
    if outcome.repeated:
        run.partition = partitions[outcome.partition_id]
    if not (outcome.repeats or outcome.refused):
        return
    for position, partition_id, offset, seq in outcome.repeats:
        run.repeats[position] = (partitions[partition_id], offset, seq)
    for position, refusal in outcome.refused:
        run.repeats[position] = refusal.error()
    slots, kept = [], 0
    for position in range(outcome.count):
        slots.append(kept)
        kept += position not in run.repeats
    run.slots = slots
