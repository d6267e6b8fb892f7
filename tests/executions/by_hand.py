"""Executions written entry by entry, without a program: to bring a journal into a certain form."""

from __future__ import annotations

from uuid import UUID

from holdfast import Log
from holdfast.execution.journal.entries import Entry, Status, StepResult
from holdfast.execution.journal.execution_id import fresh_id
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.journal.folding import fold, unfolded
from holdfast.execution.journal.live_execution import LiveExecution
from tests.executions.waiting_room import room_of


def opened(log: Log, kind: str = "import", execution: UUID | None = None) -> UUID:
    """Begun, or gone on with, durably."""
    room = room_of(log)
    live = room.live.open(execution or fresh_id(room.clock), kind)
    assert live.opened is not None
    try:
        live.opened.result()
    except BaseException:
        room.live.release(live)
        raise
    return live.id


def live_of(log: Log, execution: UUID) -> LiveExecution:
    found = room_of(log).live.get(execution)
    assert found is not None
    return found


def append(log: Log, execution: UUID, *entries: Entry) -> None:
    """In one commit, durably."""
    live_of(log, execution).write(*entries).result()


def release(log: Log, execution: UUID) -> None:
    room_of(log).live.release(live_of(log, execution))


def finish(log: Log, execution: UUID, status: Status) -> bool:
    """Ended and released; whether this was its end."""
    ticket = live_of(log, execution).finish(status)
    if ticket is not None:
        ticket.result()
    release(log, execution)
    return ticket is not None


def fold_now(log: Log, execution: UUID) -> int:
    """How many entries were folded."""
    room = room_of(log)
    live = room.live.get(execution)
    if live is not None:
        room.store.drain()
        return fold(room.store, live.journal)
    with room.live.hold(execution) as (_, journal):
        return fold(room.store, journal)


def entries(log: Log, execution: UUID) -> list[Entry]:
    """All that is durable, folded ones as they were."""
    return list(unfolded(in_order(room_of(log).store.load(execution)[0])))


def steps(log: Log, execution: UUID) -> list[str]:
    """The paths of steps with a result."""
    return [entry.path for entry in entries(log, execution) if isinstance(entry, StepResult)]
