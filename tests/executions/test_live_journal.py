"""The journal of an execution while it is written: order, failure, and who may write."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

import pytest

from holdfast import Full, Invalid, Log, Unavailable
from holdfast.errors import ExecutionCanceled, ExecutionHeld
from holdfast.execution.journal.entries import Entry, StepResult
from holdfast.execution.journal.execution_id import fresh_id
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.journal.live_execution import LiveExecution, Suspension
from tests.executions.waiting_room import room_of
from tests.failing_commits import refuse_next_commit
from tests.stalled import stalled

pytestmark = pytest.mark.disk


def begin(log: Log, execution: UUID | None = None, kind: str = "import") -> LiveExecution:
    room = room_of(log)
    return room.live.open(execution or fresh_id(room.clock), kind)


def result(path: str, payload: bytes = b"value") -> StepResult:
    return StepResult(path, path.encode().ljust(32, b"-"), "idempotent", payload, 1)


def entries(log: Log, execution: UUID) -> list[Entry]:
    return list(in_order(room_of(log).store.load(execution)[0]))


def paths(log: Log, execution: UUID) -> list[str]:
    return [entry.path for entry in entries(log, execution) if isinstance(entry, StepResult)]


def test_what_was_left_undone_is_settled_before_the_journal_is_written_on(open_log):
    """Entries that still wait for the writer are neither missed nor written over by the next opener."""
    log = open_log()
    live = begin(log)
    with stalled(log.topic("t")):
        live.write(result("first"), acked=False)
        room_of(log).live.release(live)
        opened = []
        opener = threading.Thread(target=lambda: opened.append(begin(log, live.id)))
        opener.start()
        opener.join(0.1)
        assert not opened  # it waits
    opener.join()
    opened[0].write(result("second")).result()
    assert paths(log, live.id) == ["first", "second"]
    assert opened[0].look("first") is not None


def test_a_coroutine_that_opens_it_awaits_that(open_log):
    """The event loop goes on while what was handed over before is settled."""
    log = open_log()
    live = begin(log)

    async def reopen() -> list[str]:
        ticks = []
        with stalled(log.topic("t")):
            live.write(result("first"), acked=False)
            room_of(log).live.release(live)
            opening = asyncio.create_task(room_of(log).live.open_async(live.id, "import"))
            for _ in range(5):
                await asyncio.sleep(0)
                ticks.append("tick")
            assert not opening.done()
        await (await opening).write(result("second"))
        return ticks

    assert asyncio.run(reopen()) == ["tick"] * 5
    assert paths(log, live.id) == ["first", "second"]


def test_who_was_released_writes_no_more(open_log):
    """A straggler of a program that is over cannot come between what the next one writes."""
    log = open_log()
    live = begin(log)
    room_of(log).live.release(live)
    with pytest.raises(ExecutionHeld, match="abandoned"):
        live.write(result("late"))
    begin(log, live.id)
    with pytest.raises(ExecutionHeld, match="abandoned"):
        live.write(result("later"))


def test_many_threads_write_in_the_order_in_which_they_came(open_log):
    """Each thread finds its entries in its own order, whatever the others do."""
    log = open_log()
    live = begin(log)

    def write(name: int) -> None:
        for number in range(200):
            ticket = live.write(result(f"{name}-{number}"), acked=number % 7 == 0)
        ticket.result()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.flush()
    found = paths(log, live.id)
    assert len(found) == 1600
    for name in range(8):
        assert [path for path in found if path.startswith(f"{name}-")] == [f"{name}-{at}" for at in range(200)]


def test_an_acknowledged_entry_has_all_before_it(open_log):
    """What is acknowledged is durable with everything that was handed over before."""
    log = open_log()
    live = begin(log)
    for number in range(50):
        live.write(result(f"buffered-{number}"), acked=False)
    live.write(result("acked")).result()
    assert paths(log, live.id) == [f"buffered-{number}" for number in range(50)] + ["acked"]


def test_nobody_goes_on_behind_a_hole(open_log, monkeypatch):
    """If a commit fails, whatever comes later of that execution fails with it, until it is reopened."""
    log = open_log()
    live, other = begin(log), begin(log)
    live.write(result("first")).result()
    refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
    lost = live.write(result("lost"), acked=False)
    with pytest.raises(Unavailable):
        live.write(result("with it")).result()
    with pytest.raises(Unavailable):
        lost.result()
    with pytest.raises(Unavailable):
        live.write(result("behind it")).result()
    other.write(result("of another")).result()  # nobody else is hurt
    room_of(log).live.release(live)
    again = begin(log, live.id)
    again.write(result("second")).result()
    assert paths(log, live.id) == ["first", "second"]


def test_a_row_falls_back_when_its_commit_fails(open_log, monkeypatch):
    """An end that was not stored is no end; a begin that was not stored is none."""
    log = open_log()
    live = begin(log)
    live.opened.result()
    refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
    ticket = live.finish("completed")
    with pytest.raises(Unavailable):
        ticket.result()
    assert live.row.status == "running"
    refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
    unborn = begin(log)
    with pytest.raises(Unavailable):
        unborn.opened.result()
    assert unborn.id not in room_of(log).store.rows


def test_a_row_that_finds_no_room_is_as_it_was(open_log):
    """Full means that nothing was handed over, of the row either."""
    log = open_log(journal={"queue_records_max": 2, "group_records_max": 2})
    live = begin(log)
    live.opened.result()

    async def finish() -> None:
        with stalled(log.topic("t")):
            live.write(result("1"), acked=False)
            live.write(result("2"), acked=False)
            with pytest.raises(Full):
                live.finish("completed")
            assert live.row.status == "running"

    asyncio.run(finish())
    live.finish("completed").result()
    assert live.row.status == "completed"


def test_a_thread_waits_for_room_without_keeping_others_from_deciding(open_log):
    """Who waits for room holds no lock: others look at rows meanwhile."""
    log = open_log(journal={"queue_records_max": 2, "group_records_max": 2})
    live = begin(log)
    live.opened.result()
    with stalled(log.topic("t")):
        live.write(result("1"), acked=False)
        live.write(result("2"), acked=False)
        thread = threading.Thread(target=live.finish, args=("completed",))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert room_of(log).store.lock.acquire(timeout=5)
        room_of(log).store.lock.release()
    thread.join()
    assert live.row.status == "completed"


def test_the_first_end_counts(open_log):
    """Later ends change nothing."""
    log = open_log()
    live = begin(log)
    assert live.finish("failed", note="because") is not None
    assert live.finish("completed") is None
    assert (live.row.status, live.row.note) == ("failed", "because")


def test_one_that_was_canceled_while_its_journal_was_loaded_is_not_opened(open_log, monkeypatch):
    """The decision is made again when the row is changed."""
    log = open_log()
    live = begin(log)
    room = room_of(log)
    room.live.release(live)
    take = room.store.take

    def canceled_meanwhile(execution: UUID):
        found = take(execution)
        with room.store.lock:
            live_row = room.store.rows[execution]
            row = type(live_row)(live_row.id, live_row.kind, "canceled", 0, 0)
            room.store.change_row(found[1], row)
        return found

    monkeypatch.setattr(room.store, "take", canceled_meanwhile)
    with pytest.raises(ExecutionCanceled):
        begin(log, live.id)


def test_what_is_too_large_is_refused_before_it_is_handed_over(open_log):
    """The size is checked first; the execution goes on."""
    log = open_log()
    live = begin(log)
    with pytest.raises(Invalid, match="too large"):
        live.write(result("large", bytes(2**20 + 100_000)))
    live.write(result("small")).result()
    assert paths(log, live.id) == ["small"]


def test_closing_the_log_ends_no_execution(open_log):
    """A program that runs when the log is closed is asked to stop, and can be gone on with."""
    log = open_log()
    live = begin(log)
    live.write(result("first")).result()
    log.close()
    with pytest.raises(Suspension):
        live.check()
    again = open_log()
    resumed = begin(again, live.id)
    assert resumed.resumed
    assert resumed.row.status == "running"
    assert resumed.look("first").result.payload == b"value"
