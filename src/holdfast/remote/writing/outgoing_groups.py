"""Groups of the queue as what is sent, and what the server answered as what tickets look for. Pure but for the fill-in.

Everything here works on a group that the sender has taken: nobody else changes it any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.commit.group import Operation, Run
from holdfast.journal.commit.group import Unit as QueuedUnit
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model import frame
from holdfast.model.record_columns import Columns, Encoded
from holdfast.remote.wire.error_message import ErrorBody, raised
from holdfast.remote.wire.group_message import (
    Consumed,
    Item,
    ItemOutcome,
    RecordsRun,
    RowsRun,
    RunOutcome,
    SpaceChange,
    Unit,
)

_SPACE = b"space/"
_CONSUMED = b"consumed/"


class ConsumedOperation(ChangeSpace):
    """A position that is committed with a transaction; to the queue it is a change of a space like any other."""

    __slots__ = ("consumed",)

    def __init__(self, consumed: Consumed) -> None:
        super().__init__(_CONSUMED + f"{consumed.topic}/{consumed.consumer}/{consumed.member}".encode())
        self.consumed = consumed


def item_of(queued: Run | QueuedUnit) -> Item:
    """An item of a group as it is sent."""
    if isinstance(queued, Run):
        return _records(queued)
    return Unit([_operation(operation) for operation in queued.operations], queued.alone)


def _operation(operation: Operation) -> RecordsRun | RowsRun | SpaceChange | Consumed:
    if isinstance(operation, Run):
        return _rows(operation, operation.columns) if isinstance(operation.columns, Encoded) else _records(operation)
    if isinstance(operation, ConsumedOperation):
        return operation.consumed
    assert isinstance(operation, ChangeSpace)  # a client has no others
    puts = [(key, body) for key, _, body in operation.puts]
    return SpaceChange(operation.name.removeprefix(_SPACE).decode(), puts, list(operation.deletes), operation.drop)


def _records(run: Run) -> RecordsRun:
    columns = run.columns
    if columns is None:
        columns = Columns.of(run.rows, extras=run.extras)
    assert isinstance(columns, Columns)
    keys = [unique for _, _, _, unique in run.rows] if run.keyed else None
    return RecordsRun(run.partition.topic, run.partition.number, frame.encode(columns), keys)


def _rows(run: Run, rows: Encoded) -> RowsRun:
    place = run.partition
    return RowsRun(place.topic, place.number, bytes(rows.body), rows.schema, rows.key, rows.batch)


# -- what became of it ------------------------------------------------------------------------------------


def fill_in(
    queued: Sequence[Run | QueuedUnit], outcomes: Sequence[ItemOutcome], partitions: dict[str, tuple[Partition, ...]]
) -> None:
    """Let tickets see where everything is; ValueError where an answer does not fit what was sent."""
    if len(queued) != len(outcomes):
        raise ValueError("an answer has other items than what was sent")
    for item, outcome in zip(queued, outcomes, strict=True):
        _fill_item(item, outcome, partitions)


def _fill_item(item: Run | QueuedUnit, outcome: ItemOutcome, partitions: dict[str, tuple[Partition, ...]]) -> None:
    if outcome.error is not None:
        fail(item, error_in(outcome.error))
        return
    runs = [item] if isinstance(item, Run) else item.runs()
    if len(runs) != len(outcome.runs):
        raise ValueError("an answer has other runs than what was sent")
    for run, told in zip(runs, outcome.runs, strict=True):
        _fill_run(run, told, partitions[run.partition.topic])


def _fill_run(run: Run, told: RunOutcome, parts: tuple[Partition, ...]) -> None:
    count = len(run)
    if told.error is not None:
        run.error = error_in(told.error)
        return
    indexes = {place[0] for place in told.repeats} | {place[0] for place in told.refused}
    if not all(0 <= index < count for index in indexes) or (told.first < 0 and len(indexes) < count):
        raise ValueError("an answer has no place for a record")
    if told.slots is not None and len(told.slots) != count:
        raise ValueError("an answer has no place for a record")
    run.first, run.seq, run.repeated, run.slots = told.first, told.seq, told.repeated, told.slots
    for index, number, offset, seq in told.repeats:
        if not 0 <= number < len(parts):
            raise ValueError("an answer names a partition that is not there")
        run.repeats[index] = (parts[number], offset, seq)
    for index, error in told.refused:
        run.repeats[index] = error_in(error)


def fail(item: Run | QueuedUnit, error: HoldfastError) -> None:
    """Nothing of this item was written, or is known to be."""
    if isinstance(item, Run):
        item.error = error
    else:
        item.fail(error)


def error_in(told: ErrorBody) -> HoldfastError:
    """An error that the server told."""
    return raised(told) or Unavailable(f"the server failed kind={told.kind[:40]!r}", hint="its log says why")


def ends_of(queued: Sequence[Run | QueuedUnit]) -> list[tuple[Partition, int]]:
    """Behind which offsets the records are that were written just now."""
    runs = [run for item in queued for run in ([item] if isinstance(item, Run) else item.runs())]
    return [
        (run.partition, run.first + (len(run) if run.slots is None else max(run.slots, default=-1) + 1))
        for run in runs
        if run.first >= 0 and run.error is None and not run.repeated
    ]


def first_failure(queued: Sequence[Run | QueuedUnit]) -> HoldfastError | None:
    """Why some record was not stored, for those who hold no ticket."""
    for item in queued:
        if item.error is not None:
            return item.error
        if isinstance(item, Run):
            for known in item.repeats.values():
                if isinstance(known, HoldfastError):
                    return known
    return None
