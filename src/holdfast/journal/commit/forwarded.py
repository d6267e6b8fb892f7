"""What a session sends under one sequence number, as values; and what became of it, filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.journal.commit.group import Operation, Run
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
