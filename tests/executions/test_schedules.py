"""A schedule begins one execution for each point in time, and what was missed is done as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import Full, Invalid
from holdfast.execution.waits.schedules import Schedule
from holdfast.execution.work.calls import decode_call
from holdfast.testing import ManualClock
from tests.executions.test_cron import us
from tests.executions.waiting_room import open_log, room_of, wait_until

pytestmark = pytest.mark.disk

NIGHT = us(2026, 3, 1, 3)
DAY = 86_400


@pytest.fixture
def clock():
    return ManualClock(us(2026, 3, 1, 0))


def still_log(path: Path, **options):
    """A log that looks for schedules only on request."""
    log = open_log(path, **options)
    room_of(log).background.stop()
    return log


def tick(log) -> None:
    room_of(log).schedules.tick()


def began(log) -> list[int]:
    """The points in time that have an execution, in days after the first."""
    rows = room_of(log).store.rows.values()
    return sorted((row.due_us - NIGHT) // (DAY * 1_000_000) for row in rows)


def test_one_execution_begins_at_each_point_with_what_was_asked_for(tmp_path, clock):
    with open_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("nightly", "0 3 * * *", "report", "sales", queue="slow", priority=3, year=2026)
        clock.advance(2 * 3600)
        tick(log)
        assert began(log) == []
        clock.advance(3600)
        wait_until(lambda: began(log) == [0])  # nobody has to ask
        tick(log)
        clock.advance(DAY)
        wait_until(lambda: began(log) == [0, 1])
        row = next(iter(room_of(log).store.rows.values()))
        assert (row.kind, row.status, row.queue, row.priority, row.due_us) == ("report", "queued", "slow", 3, NIGHT)
        call = decode_call(row.input)
        assert (list(call.args), dict(call.kwargs)) == (["sales"], {"year": 2026})


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("run-once", [9]), ("run-all", list(range(10))), (3, [7, 8, 9]), (50, list(range(10)))],
)
def test_points_that_passed_while_nobody_had_the_log_are_treated_as_it_says(tmp_path, clock, missed, expected):
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("nightly", "0 3 * * *", "report", missed=missed)
    clock.advance(10 * DAY)
    with still_log(tmp_path / "log", clock=clock) as log:
        tick(log)
        tick(log)
        assert began(log) == expected
        clock.advance(3 * 3600)  # and the next one is on time
        tick(log)
        assert began(log) == [*expected, 10]


def test_one_that_is_due_now_is_all_that_run_once_needs(tmp_path, clock):
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("nightly", "0 3 * * *", "report", missed="run-once")
        clock.advance(10 * DAY + 3 * 3600)
        tick(log)
        assert began(log) == [10]


def test_no_more_than_so_many_are_made_up_for_and_years_of_them_are_no_work(tmp_path, clock, monkeypatch, caplog):
    monkeypatch.setattr("holdfast.execution.waits.schedules.MISSED_MAX", 20)
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("busy", "* * * * *", "report", missed="run-all", zone="Europe/Berlin")
        clock.advance(3 * 365 * DAY + 90)
        tick(log)
        assert len(began(log)) in (20, 21)
        assert "left out" in caplog.text


def test_a_clock_that_is_set_back_begins_nothing_twice_and_the_schedule_goes_on(tmp_path, clock, caplog):
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("nightly", "0 3 * * *", "report", missed="run-all")
        clock.advance(3 * DAY + 4 * 3600)
        tick(log)
        assert began(log) == [0, 1, 2, 3]
        clock.jump(-2 * DAY)
        for _ in range(3):
            tick(log)
            clock.advance(DAY)
        tick(log)
        assert began(log) == [0, 1, 2, 3, 4]
        assert "set back" in caplog.text


def test_a_clock_that_was_years_ahead_for_a_moment_does_not_end_a_schedule(tmp_path, clock):
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("nightly", "0 3 * * *", "report", missed="skip")
        clock.jump(20 * 365 * DAY)
        tick(log)
        clock.jump(-20 * 365 * DAY)
        tick(log)
        clock.advance(3 * 3600)
        tick(log)
        assert 0 in began(log)


def test_declaring_the_same_again_changes_nothing_and_something_else_begins_now(tmp_path, clock):
    with still_log(tmp_path / "log", clock=clock) as log:
        first = log.executions.schedule("nightly", "0 3 * * *", "report", missed="run-all")
    clock.advance(2 * DAY)
    with still_log(tmp_path / "log", clock=clock) as log:
        assert log.executions.schedule("nightly", "0 3 * * *", "report", missed="run-all") == first
        tick(log)
        assert began(log) == [0, 1]
        clock.advance(2 * DAY)
        changed = log.executions.schedule("nightly", "0 3 * * *", "report", "more", missed="run-all")
        assert changed.created_us == first.created_us
        tick(log)
        assert began(log) == [0, 1]
        clock.advance(DAY)
        tick(log)
        assert began(log) == [0, 1, 4]


def test_schedules_are_listed_and_taken_away_and_what_they_began_stays(tmp_path, clock):
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("b", "0 3 * * *", "report")
        log.executions.schedule("a", "@hourly", "report")
        assert [one.name for one in log.executions.schedules()] == ["a", "b"]
        assert log.executions.schedules()[0].next_us() == us(2026, 3, 1, 1)
        clock.advance(3600)
        tick(log)
        assert log.executions.unschedule("a")
        assert not log.executions.unschedule("a")
        clock.advance(3600)
        tick(log)
    with still_log(tmp_path / "log", clock=clock) as log:
        assert [one.name for one in log.executions.schedules()] == ["b"]
        assert len(room_of(log).store.rows) == 1


def test_one_schedule_that_cannot_begin_does_not_hold_up_the_others(tmp_path, clock, monkeypatch, caplog):
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("a", "0 3 * * *", "broken")
        log.executions.schedule("b", "0 3 * * *", "report")
        schedules, begin = room_of(log).schedules, room_of(log).schedules._begin

        def refuse(row):
            if row.kind == "broken":
                raise Full("no room for more")
            return begin(row)

        monkeypatch.setattr(schedules, "_begin", refuse)
        clock.advance(3 * 3600)
        tick(log)
        assert [row.kind for row in room_of(log).store.rows.values()] == ["report"]
        assert "no room for more" in caplog.text
        monkeypatch.setattr(schedules, "_begin", begin)
        tick(log)
        assert sorted(row.kind for row in room_of(log).store.rows.values()) == ["broken", "report"]


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        (("", "0 3 * * *", "report"), {}),
        (("n", "0 3 * *", "report"), {}),
        (("n", "0 3 * * *", "a/b"), {}),
        (("n", "0 3 * * *", "r"), {"zone": "Mars"}),
        (("n", "0 3 * * *", "r"), {"missed": "later"}),
        (("n", "0 3 * * *", "r"), {"missed": 0}),
        (("n", "0 3 * * *", "r"), {"missed": True}),
        (("n", "0 3 * * *", "r", object()), {}),
        (("n", "0 3 * * *", "r"), {"priority": 2**40}),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_stored(tmp_path, wrong, options):
    with still_log(tmp_path / "log") as log:
        with pytest.raises(Invalid):
            log.executions.schedule(*wrong, **options)
        assert log.executions.schedules() == []


def test_no_more_schedules_than_may(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.execution.waits.schedules.SCHEDULES_MAX", 2)
    with still_log(tmp_path / "log") as log:
        for name in ("a", "b"):
            log.executions.schedule(name, "@hourly", "report")
        with pytest.raises(Full):
            log.executions.schedule("c", "@hourly", "report")
        log.executions.schedule("b", "@daily", "report")


VICTIM = """
import os, sys
from pathlib import Path
from holdfast.testing import FaultyDisk, ManualClock
from tests.executions.test_schedules import NIGHT, room_of, still_log

path, number = Path(sys.argv[1]), int(sys.argv[2])
def die(step, op, name):
    if step == number:
        os.kill(os.getpid(), 9)
with FaultyDisk(path) as disk:
    disk.on_step = die
    with still_log(path, clock=ManualClock(NIGHT)) as log:
        room_of(log).schedules.tick()
        print(len(disk.log))
"""


@pytest.mark.crash
def test_a_process_that_is_killed_at_any_step_begins_each_one_once(tmp_path, some):
    """Between the execution and the schedule's own row, above all."""

    def prepared(name: str) -> Path:
        with still_log(tmp_path / name, clock=ManualClock(NIGHT - 10)) as log:
            log.executions.schedule("nightly", "0 3 * * *", "report", "sales")
        return tmp_path / name

    def run(path: Path, number: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", VICTIM, str(path), str(number)]
        return subprocess.run(command, cwd=Path(__file__).parents[2], check=False, capture_output=True, text=True)

    rehearsal = run(prepared("rehearsal"), -1)
    assert rehearsal.returncode == 0, rehearsal.stderr
    for number in some(list(range(1, int(rehearsal.stdout) + 1)), 2):
        path = prepared(f"log{number}")
        assert run(path, number).returncode == -9
        with still_log(path, clock=ManualClock(NIGHT + 1)) as log:
            tick(log)
            assert began(log) == [0]


def test_the_disk_that_fails_between_both_commits_begins_it_once(tmp_path, monkeypatch):
    clock = ManualClock(NIGHT - 10)
    with still_log(tmp_path / "log", clock=clock) as log:
        log.executions.schedule("nightly", "0 3 * * *", "report")
        schedules = room_of(log).schedules
        put = schedules._put

        def fail(*_: object) -> None:
            raise Full("no room")

        monkeypatch.setattr(schedules, "_put", fail)
        clock.advance(20)
        tick(log)
        assert began(log) == [0]
        monkeypatch.setattr(schedules, "_put", put)
        clock.advance(20)
        tick(log)
        tick(log)
        assert began(log) == [0]


def test_the_id_of_a_point_in_time_is_what_the_format_says():
    """Another version must not begin it once more: format 0011."""
    schedule = Schedule("nightly", "0 3 * * *", "report", b"")
    assert str(schedule.execution(1772334000000000)) == "f11f7c6b-48ad-83d9-bd1f-49eeb171db64"
