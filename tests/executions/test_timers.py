"""A sleep ends when its stored time has come: not later for a restart, at once after downtime, whatever clocks did."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.errors import ExecutionCanceled, Invalid
from holdfast.execution.journal.entries import TimerArmed, TimerFired
from holdfast.execution.waits.timers import sleep, sleep_until
from holdfast.testing import ManualClock
from tests.executions.waiting_room import ID, Aside, open_log, room_of, running, wait_until

pytestmark = pytest.mark.disk

DAY = 86_400


def sleeping(log, live, seconds):
    return sleep(live, room_of(log).waiters, live.place("sleep"), seconds)


def until(log, live, when):
    return sleep_until(live, room_of(log).waiters, live.place("sleep"), when)


def asleep(log, wait) -> Aside:
    """A thread that waits, once it does."""
    before = len(room_of(log).waiters)
    thread = Aside(wait.result)
    wait_until(lambda: len(room_of(log).waiters) == before + 1)
    return thread


def timers(log) -> list[object]:
    log.flush()
    blocks = room_of(log).store.load(ID)[0]
    return [entry for block in blocks for entry in block() if isinstance(entry, TimerArmed | TimerFired)]


@pytest.fixture
def clock():
    return ManualClock()


def test_a_sleep_ends_when_the_time_has_come(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        thread = asleep(log, sleeping(log, live, 60))
        clock.advance(59)
        thread.thread.join(0.1)
        assert thread.thread.is_alive()
        clock.advance(1)
        assert thread.result() is None
        armed, fired = timers(log)
        assert armed.due_us - armed.at_us == 60_000_000
        assert fired.timer == armed.timer


def test_real_time_ends_it_without_anybody_looking(tmp_path):
    """The thread that looks after executions is not needed for that."""
    with open_log(tmp_path / "log", executions={"poll_interval_ms": 3_600_000}) as log, running(log) as live:
        assert sleeping(log, live, 0.05).result() is None
        assert sleeping(log, live, 0).result() is None
        assert until(log, live, datetime.now(UTC) + timedelta(seconds=0.05)).result() is None


def test_coroutines_sleep_side_by_side(tmp_path):
    async def program() -> None:
        await asyncio.wait_for(asyncio.gather(*(sleeping(log, live, 0.05) for _ in range(50))), 30)

    with open_log(tmp_path / "log") as log, running(log) as live:
        asyncio.run(program())
        assert len(timers(log)) == 100


def test_a_resumed_sleep_keeps_its_time(tmp_path, clock):
    """Whatever the program asks for now: half of the day has passed."""
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            wait = sleeping(log, live, DAY)
            wait.begin()
        clock.advance(DAY / 2)
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        thread = asleep(log, sleeping(log, live, DAY * 2))
        clock.advance(DAY / 2 - 1)
        thread.thread.join(0.1)
        assert thread.thread.is_alive()
        clock.advance(1)
        thread.result()
        assert len(timers(log)) == 2


def test_the_same_holds_for_a_point_in_time(tmp_path, clock):
    """The original went by the caller's new time."""
    first = clock.now_us() + 60_000_000
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            until(log, live, first).begin()
        with running(log) as live:
            thread = asleep(log, until(log, live, first + DAY * 1_000_000))
            clock.advance(60)
            thread.result()


def test_one_that_passed_while_nobody_had_the_log_fires_at_once(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        sleeping(log, live, 60).begin()
    clock.advance(DAY)
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        assert sleeping(log, live, 60).result() is None


def test_a_sleep_that_is_over_is_over_on_every_later_run(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            thread = asleep(log, sleeping(log, live, 60))
            clock.advance(60)
            thread.result()
        log.flush()
        clock.jump(-30 * DAY)
        with running(log) as live:
            assert sleeping(log, live, 60).result() is None
            assert len(timers(log)) == 2


def test_a_clock_that_is_set_back_does_not_make_a_span_longer(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        thread = asleep(log, sleeping(log, live, 60))
        clock.jump(-DAY)
        clock.advance(60)
        thread.result()


def test_nor_does_one_that_was_set_back_while_nobody_had_the_log(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        sleeping(log, live, 60).begin()
    clock.jump(-DAY)
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        thread = asleep(log, sleeping(log, live, 60))
        clock.advance(60)
        thread.result()


def test_a_point_in_time_is_the_wall_clocks(tmp_path, clock):
    """Set forward, it comes at once, though nobody's time has passed; set back, it comes later."""
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        soon = asleep(log, until(log, live, clock.now_us() + DAY * 1_000_000))
        clock.jump(DAY)
        soon.result()
        later = asleep(log, until(log, live, clock.now_us() + 60_000_000))
        clock.jump(-60)
        clock.advance(60)
        later.thread.join(0.1)
        assert later.thread.is_alive()
        clock.advance(60)
        later.result()


def test_a_program_that_is_canceled_does_not_sleep_on(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        thread = asleep(log, sleeping(log, live, DAY))
        log.executions.cancel(ID, "enough")
        with pytest.raises(ExecutionCanceled, match="enough"):
            thread.result()


def test_closing_the_log_wakes_its_sleepers_and_the_sleep_goes_on_later(tmp_path, clock):
    log = open_log(tmp_path / "log", clock=clock)
    live = room_of(log).live.open(ID, "tests")
    thread = asleep(log, sleeping(log, live, DAY))
    log.close()
    with pytest.raises(BaseException, match="being closed") as caught:
        thread.result()
    assert not isinstance(caught.value, Exception)  # programs that catch errors do not catch this
    with open_log(tmp_path / "log", clock=clock) as log, running(log) as live:
        thread = asleep(log, sleeping(log, live, DAY))
        clock.advance(DAY)
        thread.result()


@pytest.mark.parametrize("given", [None, "1", float("nan"), float("inf"), True])
def test_a_span_is_a_number(tmp_path, given):
    with open_log(tmp_path / "log") as log, running(log) as live, pytest.raises(Invalid, match="number of seconds"):
        sleeping(log, live, given)


@pytest.mark.parametrize("given", [None, "now", 1.5, True, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_point_in_time_has_a_zone(tmp_path, given):
    with open_log(tmp_path / "log") as log, running(log) as live, pytest.raises(Invalid):
        until(log, live, given)


@pytest.mark.parametrize("when", [-5, 0, datetime(1960, 1, 1, tzinfo=UTC)])
def test_times_before_all_times_have_passed(tmp_path, when):
    with open_log(tmp_path / "log") as log, running(log) as live:
        assert until(log, live, when).result() is None


def test_times_after_all_times_do_not_overflow(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        for wait in (until(log, live, 2**70), sleeping(log, live, 1e300), sleeping(log, live, 10**40)):
            wait.begin()
            assert wait._pause() == 60
