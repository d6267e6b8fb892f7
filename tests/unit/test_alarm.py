"""The alarm: at once, louder with age, never silent, never flooding."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from holdfast.shipping.alarm import Alarm, AlarmState
from holdfast.shipping.escalation import Escalation

pytestmark = pytest.mark.unit

MINUTE, HOUR = 60.0, 3600.0


@pytest.fixture
def lines():
    """The records that are logged, as a list that fills."""
    logged = []
    handler = logging.Handler()
    handler.emit = logged.append
    logger = logging.getLogger("holdfast.shipping")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield logged
    logger.removeHandler(handler)
    logger.setLevel(before)


def actions(lines):
    return [line.action for line in lines]


def failing(alarm, start, stop, step=10.0):
    """Attempts that fail from start to before stop; the times at which a standing alarm was due to be logged again."""
    due, now = [], start
    while now < stop:
        if alarm.due(now):
            due.append(now)
        alarm.raise_(now, "refused", "nobody answers")
        now += step
    return due


def test_without_a_failure_there_is_no_alarm(lines):
    """Quiet is quiet: nothing due, nothing to clear, nothing logged."""
    alarm = Alarm()
    assert alarm.state is None
    assert not alarm.due(1e9)
    alarm.remind(1e9)
    alarm.clear(1e9)
    assert lines == []


def test_the_first_failure_is_seen_and_logged_at_once(lines):
    """State and log line say why."""
    alarm = Alarm()
    alarm.raise_(500.0, "slow_down", "the store is busy")
    assert alarm.state == AlarmState(since=500.0, cause="slow_down", attempts=1, level=1, message="the store is busy")
    (line,) = lines
    assert (line.name, line.levelno, line.action) == ("holdfast.shipping", logging.WARNING, "shipping_alarm")
    assert (line.cause, line.attempts, line.alarm_level, line.seconds) == ("slow_down", 1, 1, 0.0)
    assert "the store is busy" in line.getMessage()


def test_further_failures_keep_the_beginning_and_tell_the_latest_cause():
    """Since when stays; why is the last word; attempts add up."""
    alarm = Alarm()
    alarm.raise_(0.0, "timeout", "no answer")
    alarm.raise_(5.0, "dns", "no such host")
    assert alarm.state == AlarmState(since=0.0, cause="dns", attempts=2, level=1, message="no such host")


@pytest.mark.parametrize(
    ("age", "level"),
    [(0, 1), (59.9, 1), (60, 2), (599, 2), (600, 3), (3599, 3), (3600, 4), (6 * HOUR, 5), (24 * HOUR, 6), (1e9, 6)],
)
def test_the_level_grows_with_age(age, level):
    """1 at once, 2 after a minute, 3 after ten, 4 after an hour and so on."""
    alarm = Alarm()
    alarm.raise_(1000.0, "reset", "gone")
    alarm.raise_(1000.0 + age, "reset", "gone")
    assert alarm.state.level == level


def test_the_log_gets_louder(lines):
    """Warning, then error, then critical."""
    alarm = Alarm()
    for now in (0.0, MINUTE, 20 * MINUTE, 2 * HOUR, 30 * HOUR):
        alarm.raise_(now, "reset", "gone")
    assert [line.levelname for line in lines] == ["WARNING", "ERROR", "ERROR", "CRITICAL", "CRITICAL"]


def test_it_is_reported_again_after_growing_pauses_of_at_most_an_hour(lines):
    """After 0, 1, 2, 4, 8, 16, 32 minutes, then every hour."""
    due = failing(Alarm(), 0.0, 6 * HOUR)
    logged = [line.seconds for line in lines]
    pauses = [(later - earlier) / MINUTE for earlier, later in pairwise(logged)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert logged == [0, *due]
    assert actions(lines) == ["shipping_alarm"] * len(logged)


def test_it_is_never_silent_while_attempts_hang(lines):
    """A reminder tells again without a new attempt, when it is due, at the level of its age."""
    alarm = Alarm()
    alarm.raise_(0.0, "timeout", "no answer")
    alarm.remind(59.0)
    assert len(lines) == 1
    alarm.remind(11 * MINUTE)
    assert [line.alarm_level for line in lines] == [1, 3]
    assert (alarm.state.level, alarm.state.attempts) == (3, 1)


def test_recovery_is_reported_once(lines):
    """With how long it took; afterwards nothing stands."""
    alarm = Alarm()
    failing(alarm, 0.0, 90.0)
    alarm.clear(100.0)
    alarm.clear(101.0)
    assert alarm.state is None
    assert not alarm.due(1e9)
    assert actions(lines) == ["shipping_alarm", "shipping_alarm", "shipping_recovered"]
    assert (lines[-1].seconds, lines[-1].attempts, lines[-1].levelno) == (100.0, 9, logging.INFO)


def test_a_new_alarm_after_a_long_one_is_reported_at_once(lines):
    """Hours of outage, logged once an hour at last, do not make the next one silent."""
    alarm = Alarm()
    failing(alarm, 0.0, 5 * HOUR)
    alarm.clear(5 * HOUR)
    lines.clear()
    soon = 5 * HOUR + MINUTE
    alarm.raise_(soon, "dns", "no such host")
    assert actions(lines) == ["shipping_alarm"]
    assert alarm.state == AlarmState(since=soon, cause="dns", attempts=1, level=1, message="no such host")


def test_an_alarm_that_comes_and_goes_does_not_flood(lines):
    """An hour of flapping every second: at most one alarm and one recovery a minute, and the state always true."""
    alarm = Alarm()
    for second in range(0, 3600, 2):
        alarm.raise_(float(second), "reset", "gone")
        assert alarm.state is not None
        alarm.clear(second + 1.0)
        assert alarm.state is None
    assert actions(lines) == ["shipping_alarm", "shipping_recovered"] * 60


def test_an_alarm_soon_after_another_is_reported_within_a_minute(lines):
    """Held back, not forgotten; and if it passes unsaid, so does its end."""
    alarm = Alarm()
    alarm.raise_(0.0, "reset", "gone")
    alarm.clear(1.0)
    lines.clear()
    alarm.raise_(2.0, "reset", "gone")
    alarm.clear(3.0)
    assert actions(lines) == []
    assert failing(alarm, 4.0, 200.0, step=1.0) == [60.0, 120.0]


def test_a_new_cause_is_reported_at_once_and_an_old_one_is_not(lines):
    """Missing credentials are logged now, and not when the slow store, which was logged, is due again."""
    alarm = Alarm()
    for now, cause in ((0.0, "slow_down"), (1.0, "slow_down"), (2.0, "credentials"), (3.0, "slow_down"), (4.0, "dns")):
        alarm.raise_(now, cause, f"because of {cause}")
    assert [line.cause for line in lines] == ["slow_down", "credentials", "dns"]
    alarm.clear(5.0)
    alarm.raise_(100.0, "dns", "again")
    assert [line.cause for line in lines if line.action == "shipping_alarm"][3:] == ["dns"]


def test_a_caller_that_sees_the_alarm_finds_appends_refused() -> None:
    """With `fail-appends` they are refused before it is seen, and taken again before it is gone."""
    held: list[bool] = []
    seen: list[tuple[bool, bool]] = []
    escalation = Escalation(
        "fail-appends",
        lambda reason: held.append(reason is not None),
        lambda: None,
        lambda state: seen.append((state is not None, held[-1])),
    )
    escalation.exhausted(0.0, "key", "timeout", "no answer")
    escalation.recovered(1.0, "key")
    assert seen == [(True, True), (False, False)]
