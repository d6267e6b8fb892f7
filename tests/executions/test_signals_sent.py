"""A signal is taken once, by its name, in the order of coming; that none came in time is remembered, too."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from holdfast.errors import ExecutionCanceled, Full, Invalid, NotFound, WaitTimedOut
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.waits.signal_wait import wait_for_signal
from holdfast.testing import ManualClock
from tests.executions.waiting_room import ID, Aside, open_log, room_of, running, wait_until

pytestmark = pytest.mark.disk


def signal(log, live, name="paid", timeout=None, **options):
    return wait_for_signal(live, room_of(log).waiters, live.place(name), name, timeout, **options)


def waiting(log, wait) -> Aside:
    before = len(room_of(log).waiters)
    thread = Aside(wait.result)
    wait_until(lambda: len(room_of(log).waiters) == before + 1)
    return thread


def test_a_signal_reaches_the_waiter_for_its_name(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        thread = waiting(log, signal(log, live))
        assert log.executions.signal(ID, "other", 0)
        assert log.executions.signal(str(ID), "paid", {"amount": 3})
        assert thread.result() == {"amount": 3}


def test_coroutines_await_it(tmp_path):
    async def program() -> list[object]:
        both = asyncio.gather(signal(log, live), signal(log, live))
        await log.executions.signal_async(ID, "paid", 1)
        await log.executions.signal_async(ID, "paid", 2)
        return sorted(await both)

    with open_log(tmp_path / "log") as log, running(log) as live:
        assert asyncio.run(program()) == [1, 2]


def test_signals_that_came_before_anybody_waited_are_taken_in_their_order_each_once(tmp_path):
    """Also while nobody ran the execution, and over restarts."""
    with open_log(tmp_path / "log") as log:
        with running(log):
            pass
        for number in range(3):
            log.executions.signal(ID, "paid", number)
        with running(log) as live:
            assert signal(log, live).result() == 0
        log.flush()
    with open_log(tmp_path / "log") as log:
        log.executions.signal(ID, "paid", 3)
        with running(log) as live:
            assert [signal(log, live).result() for _ in range(4)] == [0, 1, 2, 3]


def test_an_execution_that_waits_for_a_worker_takes_signals_already(tmp_path):
    with open_log(tmp_path / "log") as log:
        execution = log.executions.start("import")
        log.executions.signal(execution, "paid", 7)
        with running(log, execution, "import") as live:
            assert signal(log, live).result() == 7


def test_that_none_came_in_time_is_so_on_every_later_run(tmp_path):
    clock = ManualClock()
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            thread = waiting(log, signal(log, live, timeout=60))
            clock.advance(60)
            with pytest.raises(WaitTimedOut):
                thread.result()
        log.executions.signal(ID, "paid", "late")
        with running(log) as live:
            with pytest.raises(WaitTimedOut):
                signal(log, live, timeout=60).result()
            assert signal(log, live).result() == "late"


def test_a_time_out_counts_from_when_it_was_first_asked_for(tmp_path):
    clock = ManualClock()
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            signal(log, live, timeout=60).begin()
        clock.advance(59)
        with running(log) as live:
            thread = waiting(log, signal(log, live, timeout=60))
            clock.advance(1)
            with pytest.raises(WaitTimedOut):
                thread.result()


def test_one_that_is_there_when_the_time_is_up_is_taken(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        log.executions.signal(ID, "paid", 1)
        assert signal(log, live, timeout=0).result() == 1


def test_the_same_signal_sent_twice_is_sent_once(tmp_path):
    number = str(uuid4())
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            assert log.executions.signal(ID, "paid", 1, signal_id=number)
            assert not log.executions.signal(ID, "paid", 1, signal_id=number)
            assert signal(log, live).result() == 1
        log.flush()
        assert not log.executions.signal(ID, "paid", 1, signal_id=number)  # also after it was taken
        with running(log) as live:
            assert signal(log, live).result() == 1
            with pytest.raises(WaitTimedOut):
                signal(log, live, timeout=0).result()


def test_many_takers_and_senders_lose_none_and_take_none_twice(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        takers = [Aside(wait.result) for wait in [signal(log, live) for _ in range(40)]]
        senders = [
            Aside(lambda n=n: [log.executions.signal(ID, "paid", n * 10 + m) for m in range(10)]) for n in range(4)
        ]
        for sender in senders:
            assert sender.result() == [True] * 10
        assert sorted(taker.result() for taker in takers) == list(range(40))


def test_signals_go_to_executions_that_may_take_them(tmp_path):
    with open_log(tmp_path / "log") as log:
        with pytest.raises(NotFound):
            log.executions.signal(derived_id("tests", "nobody"), "paid")
        with running(log) as live:
            live.finish("completed").result()
        with pytest.raises(Invalid, match="has ended"):
            log.executions.signal(ID, "paid")
        other = log.executions.start("import")
        log.executions.cancel(other)
        with pytest.raises(ExecutionCanceled):
            log.executions.signal(other, "paid")
        for name in ("", "a/b", "x" * 201, None, "a\n"):
            with pytest.raises(Invalid):
                log.executions.signal(ID, name)


def test_no_more_signals_wait_than_may(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.execution.waits.delivery.SIGNALS_MAX", 2)
    with open_log(tmp_path / "log") as log, running(log) as live:
        log.executions.signal(ID, "paid", 1)
        log.executions.signal(ID, "paid", 2)
        with pytest.raises(Full):
            log.executions.signal(ID, "paid", 3)
        assert signal(log, live).result() == 1
        assert log.executions.signal(ID, "paid", 3)


def test_its_value_is_of_the_type_that_the_program_asks_for(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        log.executions.signal(ID, "paid", "text")
        with pytest.raises(Invalid, match="not of the requested type"):
            signal(log, live, returns=int).result()
