"""The life of an execution in the journal: begun, held by one, written, ended."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from holdfast import Invalid, Unavailable
from holdfast.errors import ExecutionCanceled, ExecutionHeld
from holdfast.execution.journal.execution_id import derived_id, fresh_id, given_id
from tests.executions.by_hand import append, finish, live_of, opened, release, steps
from tests.executions.test_live_journal import result
from tests.executions.waiting_room import room_of
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk


# -- ids ------------------------------------------------------------------------------------------------------


def test_derived_ids_are_the_same_wherever_they_are_derived():
    """A domain and a payload have one id; lengths are framed, so that no two pairs run together."""
    assert derived_id("orders", "42") == derived_id("orders", b"42")
    assert derived_id("orders", "42").version == 8
    assert derived_id("order", "s42") != derived_id("orders", "42")
    assert str(derived_id("orders", "42")) == str(given_id(str(derived_id("orders", "42"))))


def test_fresh_ids_sort_by_time(open_log):
    """UUID version 7."""
    clock = room_of(open_log()).clock
    ids = [fresh_id(clock) for _ in range(3)]
    assert {one.version for one in ids} == {7}
    assert len(set(ids)) == 3


# -- open and end ---------------------------------------------------------------------------------------------


def test_opening_is_fresh_then_resumes(open_log):
    """The first time there is no past; after a restart there is."""
    log = open_log()
    execution = opened(log)
    assert not live_of(log, execution).resumed
    append(log, execution, result("a"))
    log.close()
    again = open_log()
    opened(again, execution=execution)
    assert live_of(again, execution).resumed


def test_one_owner_at_a_time(open_log):
    """The second opener learns who holds it; after a release it may."""
    log = open_log()
    execution = opened(log)
    with pytest.raises(ExecutionHeld) as caught:
        opened(log, execution=execution)
    assert caught.value.holder.startswith("thread:MainThread")
    release(log, execution)
    opened(log, execution=execution)


def test_two_threads_fight_and_one_wins(open_log):
    """The second one learns so, however close it is."""
    log = open_log()
    for _ in range(20):
        execution = fresh_id(room_of(log).clock)
        outcomes: list[str] = []
        start = threading.Barrier(4)

        def fight(execution: UUID = execution, start: threading.Barrier = start, out: list[str] = outcomes) -> None:
            start.wait()
            try:
                opened(log, execution=execution)
            except ExecutionHeld:
                out.append("held")
            else:
                out.append("won")

        threads = [threading.Thread(target=fight) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["held", "held", "held", "won"]


@pytest.mark.parametrize("status", ["completed", "failed", "aborted"])
def test_opening_it_again_un_finalizes_it(open_log, status):
    """An end is taken back when somebody goes on."""
    log = open_log()
    execution = opened(log)
    assert finish(log, execution, status)
    before = room_of(log).store.rows[execution]
    assert before.ended_us
    opened(log, execution=execution)
    row = room_of(log).store.rows[execution]
    assert (row.status, row.ended_us, row.generation) == ("running", 0, before.generation + 1)


def test_one_that_was_canceled_is_never_opened_again(open_log):
    """Not even after a restart."""
    log = open_log()
    execution = opened(log)
    finish(log, execution, "canceled")
    with pytest.raises(ExecutionCanceled):
        opened(log, execution=execution)
    log.close()
    with pytest.raises(ExecutionCanceled):
        opened(open_log(), execution=execution)


def test_the_first_end_sticks(open_log):
    """Later ones are silent."""
    log = open_log()
    execution = opened(log)
    live = live_of(log, execution)
    assert finish(log, execution, "failed")
    assert live.finish("completed") is None
    assert room_of(log).store.rows[execution].status == "failed"


def test_a_kind_is_for_good(open_log):
    """An execution is opened under the kind that it began with."""
    log = open_log()
    execution = opened(log, "import")
    release(log, execution)
    with pytest.raises(Invalid, match="'import'"):
        opened(log, "export", execution)


# -- append and read ------------------------------------------------------------------------------------------


def test_a_batch_is_all_or_nothing(open_log, monkeypatch):
    """A refused commit leaves nothing of it, and the execution is gone on with after it is opened again."""
    log = open_log()
    execution = opened(log)
    refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        append(log, execution, result("a"), result("b"))
    assert steps(log, execution) == []
    release(log, execution)
    opened(log, execution=execution)
    append(log, execution, result("a"), result("b"))
    assert steps(log, execution) == ["a", "b"]


def test_a_batch_is_bounded_and_what_is_taken_can_be_read(open_log):
    """Many large entries at once: taken as long as the topic can give them back, refused beyond, before anything."""
    log = open_log()
    execution = opened(log)
    taken = [result(str(number), bytes(1_000_000)) for number in range(15)]
    append(log, execution, *taken)
    with pytest.raises(Invalid, match="one commit"):
        append(log, execution, *[result(f"x{number}", bytes(1_000_000)) for number in range(20)])
    assert len(steps(log, execution)) == 15
    assert sum(len(record.payload) for record in log.topic("_executions").read()) > 15_000_000


def test_everything_flows_into_the_topic_in_the_same_commit(open_log):
    """Entries, rows and what was pruned are records of `_executions`, keyed by the execution."""
    log = open_log()
    execution = opened(log)
    append(log, execution, result("a"))
    finish(log, execution, "completed")
    records = list(log.topic("_executions").read())
    assert {record.key for record in records} == {str(execution).encode()}
    assert [record.kind for record in records] == ["entries", "status", "entries", "entries", "status"]
