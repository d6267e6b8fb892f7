"""What a session sends under one sequence number, as values; and what became of it, filled in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.journal.commit.group import Group, Operation, Run, Unit
from holdfast.journal.sessions.outcomes import RunOutcome
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

    def unit(self, group: Group) -> Unit:
        """What it is in a group of the owner's."""
        unit = Unit(group, self.operations, scope=self.scope, reissue=self.reissue)
        unit.alone = self.alone
        for run in unit.runs():
            run.group = group
        if self.refusal is not None:
            unit.alone, unit.make = False, partial(_refuse, self.refusal)
        if self.placed is not None:
            self.placed.append(unit)
        return unit


def _refuse(reason: HoldfastError, _: Unit) -> list[Operation]:
    raise reason.again()


Item = ForwardedRows | ForwardedUnit


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
