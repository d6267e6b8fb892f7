"""Groups of the queue as what is sent, and what the server answered as what tickets look for. Pure but for the fill-in.

Everything here works on a group that the sender has taken: nobody else changes it any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.queue.group import Operation, Run
from holdfast.journal.queue.group import Unit as QueuedUnit
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model import frame
from holdfast.model.record_columns import Columns, EncodedRows
from holdfast.remote.consuming.remote_committing import positions_in
from holdfast.remote.wire.error_message import ErrorBody, raised
from holdfast.remote.wire.group_message import (
    Consumed,
    Item,
    ItemOutcome,
    Produced,
    RecordsRun,
    RowsRun,
    RunOutcome,
    SpaceChange,
    Unit,
)

_SPACE = b"space/"
_POSITIONS = "_consumers"


def is_encoded(queued: Run | QueuedUnit) -> bool:
    """Whether an item can be sent; single rows of a typed topic are made one batch."""
    if isinstance(queued, Run):
        try:
            queued.encode()
        except HoldfastError as error:
            queued.fail(error)
            return False
    return True


def item_of(queued: Run | QueuedUnit) -> Item:
    """An item of a group as it is sent."""
    if isinstance(queued, Run):
        return (
            Unit([_rows(queued, queued.columns, {})], True)
            if isinstance(queued.columns, EncodedRows)
            else _records(queued)
        )
    batches: dict[int, int] = {}
    operations = [told for operation in queued.operations for told in _operations(operation, batches)]
    if queued.produced is None:
        return Unit(operations, queued.alone)
    runs = queued.runs()
    if len(runs) == 1 and runs[0].columns is None:
        return Produced(*queued.produced, _records(runs[0]))
    return Produced(*queued.produced, Unit(operations, True))


def _operations(
    operation: Operation, batches: dict[int, int]
) -> Sequence[RecordsRun | RowsRun | SpaceChange | Consumed]:
    """`batches` numbers the batches whose parts have an idempotency key in common."""
    if isinstance(operation, Run):
        rows = operation.columns
        return [_rows(operation, rows, batches) if isinstance(rows, EncodedRows) else _records(operation)]
    assert isinstance(operation, ChangeSpace)  # a client has no others
    positions = positions_in(operation)
    if positions is not None:
        return positions
    puts = [(key, body) for key, _, body in operation.puts]
    return [SpaceChange(operation.name.removeprefix(_SPACE).decode(), puts, list(operation.deletes), operation.drop)]


def _records(run: Run) -> RecordsRun:
    columns = run.columns
    if columns is None:
        columns = Columns.of(run.rows, extras=run.extras)
    assert isinstance(columns, Columns)
    keys = [unique for _, _, _, unique in run.rows] if run.keyed else None
    return RecordsRun(run.partition.topic, run.partition.number, frame.encode(columns), keys)


def _rows(run: Run, rows: EncodedRows, batches: dict[int, int]) -> RowsRun:
    place = run.partition
    batch = None if rows.batch is None else batches.setdefault(id(rows.batch), len(batches))
    return RowsRun(place.topic, place.number, bytes(rows.body), rows.schema, rows.key, batch)


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
        item.fail(error_in(outcome.error))
        return
    runs = [item] if isinstance(item, Run) else item.runs()
    if isinstance(item, QueuedUnit):  # positions that were committed with it are records, too, behind all others
        outcome = ItemOutcome([run for at, run in enumerate(outcome.runs) if at < len(runs) or run.topic != _POSITIONS])
    if not _is_about(runs, outcome.runs):
        if isinstance(item, QueuedUnit) and item.produced is not None:
            item.fail(item.produced.something_else())
            return
        raise ValueError("an answer has other runs than what was sent")
    for run, told in zip(runs, outcome.runs, strict=True):
        _fill_run(run, told, partitions[run.partition.topic])


def _is_about(runs: Sequence[Run], told: Sequence[RunOutcome]) -> bool:
    """Whether an answer is about these: of a producer's number it may be about what was sent under it before."""
    sent = [(run.partition.topic, len(run)) for run in runs]
    return sent == [(one.topic, one.count) for one in told]


def _fill_run(run: Run, told: RunOutcome, parts: tuple[Partition, ...]) -> None:
    count = len(run)
    indexes = {place[0] for place in told.repeats} | {place[0] for place in told.refused}
    numbers = {told.partition, *(place[1] for place in told.repeats)}
    if not all(0 <= index < count for index in indexes) or not all(0 <= number < len(parts) for number in numbers):
        raise ValueError("an answer names records or partitions that are not there")
    if told.first < 0 and len(indexes) < count:
        raise ValueError("an answer has no place for a record")
    if told.repeated:
        run.partition = parts[told.partition]
    run.first, run.seq, run.repeated = told.first, told.seq, told.repeated
    for index, number, offset, seq in told.repeats:
        run.repeats[index] = (parts[number], offset, seq)
    for index, error in told.refused:
        run.repeats[index] = error_in(error)
    if indexes:
        run.slots, kept = [], 0
        for index in range(count):
            run.slots.append(kept)
            kept += index not in indexes


def error_in(told: ErrorBody) -> HoldfastError:
    """An error that the server told."""
    return raised(told) or Unavailable(f"the server failed kind={told.kind[:40]!r}", hint="its log says why")


def ends_of(queued: Sequence[Run | QueuedUnit]) -> list[tuple[Partition, int]]:
    """Behind which offsets the records are that were written just now."""
    runs = [run for item in queued for run in ([item] if isinstance(item, Run) else item.runs())]
    return [
        (run.partition, run.first + len(run) - len(run.repeats))
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
