"""A group of the queue as what is forwarded to the owner of the log, and what came of it, as tickets look for it.

The caller has taken the group out of the queue: nothing else changes it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.journal.queue.forwarded import ForwardedRows, ForwardedUnit, Item, fill, forwarded_unit
from holdfast.journal.queue.group import Run, Unit
from holdfast.journal.queue.offered_failure import OfferedFailure
from holdfast.journal.sessions.outcomes import Outcomes, RunOutcome
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns


def forwarded(group_items: Sequence[Run | Unit]) -> tuple[list[Item], list[Run | Unit]]:
    """What is forwarded of a group's items, and which of them that stands for; the others have failed, or are empty."""
    items: list[Item] = []
    taken: list[Run | Unit] = []
    for one in group_items:
        item = _item(one)
        if item is not None:
            items.append(item)
            taken.append(one)
    return items, taken


def _item(one: Run | Unit) -> Item | None:
    """What is forwarded of an item; None where it has failed here already, or there is nothing to it."""
    try:
        if isinstance(one, Run):
            return _forwarded_run(one)
        if one.make is not None:
            one.operations, one.make = one.make(one), None
        _refuse_own(one)
    except HoldfastError as error:
        one.fail(error)
        return None
    except Exception as error:  # a caller's code: its failure is that of what it was to make
        failure = Unavailable("a change could not be made; nothing of it was written", hint="see the cause")
        failure.__cause__ = error
        one.fail(failure)
        return None
    for run in one.runs():
        run.group = one.group
    return _forwarded(one)


def fill_in(
    taken: Sequence[Run | Unit],
    outcomes: Outcomes,
    partitions: Mapping[int, Partition],
    failure: OfferedFailure,
    *,
    offered: bool,
) -> HoldfastError | None:
    """Give each run its place, each unit its failure; an answer that does not fit is the failure of all."""
    if len(outcomes) != len(taken):
        return Unavailable("the owner's answer is not one to what it was asked", hint="see the owner's log")
    for one, outcome in zip(taken, outcomes, strict=True):
        if outcome.error is not None:
            error = outcome.error.error()
            one.fail(error)
            if offered and isinstance(one, Run):
                failure.note(error)
            continue
        runs = one.runs() if isinstance(one, Unit) else [one]
        if isinstance(one, Unit) and one.produced is not None and not is_about(runs, outcome.runs, partitions):
            one.fail(one.produced.something_else())
            continue
        for run, found in zip(runs, outcome.runs, strict=False):
            fill(run, found, partitions)
            failure.note_refused(run)
    return None


def is_about(runs: Sequence[Run], found: Sequence[RunOutcome], partitions: Mapping[int, Partition]) -> bool:
    """Whether an answer is about these: of a producer's number it may be about what was sent under it before."""
    known = [(partitions.get(one.partition_id), one.count) for one in found]
    sent = [(run.partition.topic, len(run)) for run in runs]
    return sent == [(None if partition is None else partition.topic, count) for partition, count in known]


def _forwarded_run(run: Run) -> Item | None:
    """Records as they are; single rows of a typed topic are encoded here, once for all."""
    run.encode()
    if run.columns is None:
        return ForwardedRows(run.partition, run.rows, 0) if run.rows else None
    return ForwardedUnit([run], len(run), _size(run), alone=True)


def _forwarded(unit: Unit) -> Item:
    records = size = 0
    for operation in unit.operations:
        if isinstance(operation, Run):
            records += len(operation)
            size += _size(operation)
        elif isinstance(operation, ChangeSpace):
            size += sum(len(key) + len(body) for key, _, body in operation.puts) + sum(map(len, operation.deletes))
    return forwarded_unit(unit, records, size)


def _size(run: Run) -> int:
    columns = run.columns
    if columns is None:
        return sum(len(row[0]) for row in run.rows)
    return columns.size() if isinstance(columns, Columns) else len(columns.body)


def _refuse_own(unit: Unit) -> None:
    """Operations that only an owner may ask for are not forwarded."""
    for operation in unit.operations:
        if not isinstance(operation, (Run, ChangeSpace)):
            raise Invalid(
                f"only the owner of a shared log does this: {type(operation).__name__}", hint="ask it, by a call"
            )
