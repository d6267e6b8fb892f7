"""A clock that is wrong for a moment: nothing that counts is removed for its age. A log that was closed: in the end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.segments.planting import TEN, fill

import holdfast
from holdfast import Log, Settings
from holdfast.testing import ManualClock

pytestmark = pytest.mark.disk

DAY = 86_400
PRODUCER = "till-1"


def open_at(tmp_path, clock: ManualClock, **journal: float) -> Log:
    settings = Settings.from_mapping(
        {"segments": TEN, "executions": {"keep_completed_ms": 7 * DAY * 1000}, "journal": journal}
    )
    return holdfast.open(tmp_path / "log", settings=settings, clock=clock)


def charge(log: Log, charged: list[str]) -> None:
    """A program with a guarded effect."""

    with log.execution("order", id=holdfast.execution_id("order", "1")) as ctx:
        ctx.step("charge", lambda: charged.append("now"), effect="exactly_once_guarded", on_ambiguous="fail")


def filled(log: Log, charged: list[str]) -> None:
    """One of each that is removed for its age."""
    charge(log, charged)
    fill(log, "orders", 3)
    log.set_retention("orders", age_max=timedelta(days=30))
    log.producer(PRODUCER).append("orders", b"x", sequence=1)


def left(log: Log, charged: list[str]) -> tuple[int, bool, int]:
    """How often it was charged, whether retention left all segments, how many sessions there are."""
    log.executions.prune()
    charge(log, charged)
    log.retain()
    another = log.producer("another")
    another.append("orders", b"y", sequence=another.next)  # sessions leave with a group that has one
    return len(charged), log._journal.topics["orders"][0].sealed.first_segment == 0, len(log._journal.sessions.all())


def test_a_log_that_is_open_when_the_clock_jumps_removes_nothing(tmp_path):
    """Neither executions nor segments nor sessions; `stats` says why."""
    clock, charged = ManualClock(seed=1), []
    with open_at(tmp_path, clock) as log:
        filled(log, charged)
        clock.jump(400 * DAY)
        assert left(log, charged) == (1, True, 2)
        assert log.stats().journal.clock_ahead_seconds == pytest.approx(400 * DAY)
        clock.jump(-400 * DAY)
        assert left(log, charged) == (1, True, 2)
        assert log.stats().journal.clock_ahead_seconds == 0


def test_a_log_that_is_opened_with_a_wrong_clock_removes_nothing(tmp_path):
    """Not even when that happens twice in a row, and not when the clock is right again."""
    clock, charged = ManualClock(seed=1), []
    with open_at(tmp_path, clock) as log:
        filled(log, charged)
    for jump in (400 * DAY, 4, -400 * DAY):
        clock.jump(jump)
        with open_at(tmp_path, clock) as log:
            assert left(log, charged) == (1, True, 2)


def test_a_log_that_is_rebuilt_with_a_wrong_clock_removes_nothing(tmp_path):
    """It was not created when its database was made anew."""
    clock, charged = ManualClock(seed=1), []
    with open_at(tmp_path, clock) as log:
        filled(log, charged)
    clock.jump(400 * DAY)
    holdfast.rebuild(tmp_path / "log", clock=clock)
    with open_at(tmp_path, clock) as log:
        assert left(log, charged)[:2] == (1, True)


def test_a_log_that_is_opened_with_a_clock_of_long_ago_removes_nothing_later(tmp_path):
    """What ended, was sealed or was used meanwhile is not old when the clock is right again."""
    clock, charged = ManualClock(seed=1), []
    open_at(tmp_path, clock).close()
    clock.jump(-400 * DAY)
    with open_at(tmp_path, clock) as log:
        filled(log, charged)
    clock.jump(400 * DAY)
    with open_at(tmp_path, clock) as log:
        assert left(log, charged) == (1, True, 2)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_clock_that_was_wrong_once_before_is_not_believed_for_that(tmp_path, is_killed):
    """Behind, right, and then ahead: two errors support nothing, also where the log was not closed in between."""
    clock, charged = ManualClock(seed=1), []
    with open_at(tmp_path, clock) as log:
        filled(log, charged)
    for place, jump in (("log", -400 * DAY), ("right", 400 * DAY), ("log", 400 * DAY)):
        clock.jump(jump)
        if is_killed and place == "right":
            continue  # nothing was written down while the clock was right
        with open_at(tmp_path, clock) as log:
            assert left(log, charged) == (1, True, 2)


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_log_that_was_closed_for_long_begins_to_remove(tmp_path, is_confirmed):
    """After a day, or at once where somebody says that the clock is right."""
    clock, charged = ManualClock(seed=1), []
    with open_at(tmp_path, clock) as log:
        filled(log, charged)
    clock = ManualClock(clock.now_us() + 400 * DAY * 10**6, seed=2)
    with open_at(tmp_path, clock, **({"clock_jump_max_ms": 1e13} if is_confirmed else {})) as log:
        if not is_confirmed:
            assert log.executions.prune(dry_run=True) == 0
            assert not log.retain(dry_run=True).removed
            clock.advance(DAY)
        assert left(log, charged) == (2, False, 1)
