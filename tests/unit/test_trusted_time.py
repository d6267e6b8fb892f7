"""The time by which things are old: never later than what something else than the wall clock supports."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.trusted_time import JUMP_MAX_US, TimeCheckpoint, TrustedTime, newest_supported
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

DAY, DAY_US = 86_400, 86_400_000_000


def test_a_jump_is_believed_when_it_has_lasted_a_day():
    """Until then time goes on as if there were none."""
    clock = ManualClock()
    time = TrustedTime(clock, clock.now_us())
    before = time.now_us()
    clock.jump(400 * DAY)
    assert time.now_us() == before
    clock.advance(DAY - 1)
    assert (time.now_us(), time.ahead_seconds) == (before + DAY_US - 10**6, 400 * DAY)
    clock.advance(1)
    assert (time.now_us(), time.ahead_seconds) == (clock.now_us(), 0)


def test_nobody_waits_for_the_one_that_looks():
    """A signal handler may have interrupted it: the answer is right, and what is known stays the other's to change."""
    clock = ManualClock()
    time = TrustedTime(clock, clock.now_us())
    before = time.now_us()
    clock.jump(400 * DAY)
    with time._lock:
        assert (time.now_us(), time.ahead_seconds, time.known.time_us) == (before, 400 * DAY, before)
        clock.advance(2 * DAY)
        assert time.now_us() == before + 2 * DAY_US
    clock.advance(DAY)
    assert time.now_us() == before + 3 * DAY_US  # the jump was not noted while the other looked


def test_another_jump_begins_anew():
    """Time that a clock spent elsewhere does not count."""
    clock = ManualClock()
    time = TrustedTime(clock, clock.now_us())
    for _ in range(3):
        clock.jump(100 * DAY)
        time.now_us()
        clock.advance(DAY / 2)
        assert time.now_us() < clock.now_us() - 99 * DAY_US


def test_a_jump_that_is_taken_back_leaves_nothing(caplog):
    """It is logged once, and the clock is believed at once where it was right."""
    clock = ManualClock()
    time = TrustedTime(clock, clock.now_us())
    time.now_us()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        clock.jump(400 * DAY)
        for _ in range(3):
            time.now_us()
    assert [record.action for record in caplog.records] == ["clock_jump"]
    clock.jump(-400 * DAY)
    assert time.range_us() == (clock.now_us(), clock.now_us())


def test_what_is_stamped_by_a_clock_that_was_set_back_does_not_look_old():
    """The latest that it may be is never earlier than what is known."""
    clock = ManualClock()
    time = TrustedTime(clock, clock.now_us())
    right = time.now_us()
    clock.jump(-20_000 * DAY)
    assert time.range_us() == (clock.now_us(), right)


def test_a_jump_goes_on_when_the_log_is_opened_again():
    """A log that is opened briefly, day by day, removes in the end; one that is opened again at once does not."""
    clock = ManualClock()
    time = TrustedTime(clock, clock.now_us())
    clock.jump(400 * DAY)
    time.now_us()
    known = time.known
    assert known == TimeCheckpoint(clock.now_us() - 400 * DAY_US, clock.now_us(), 0)
    for later, is_believed in ((10, False), (DAY, True)):
        later_clock = ManualClock(known.jumped_us + later * 10**6)
        again = TrustedTime(later_clock, 0)
        again.recall(known)
        assert (again.now_us() == later_clock.now_us()) is is_believed


@given(st.integers(0, 4 * DAY_US), st.lists(st.integers(-1_000, 1_000), max_size=20))
def test_never_later_than_the_wall_clock(known, hours):
    """Whatever a clock does."""
    clock = ManualClock(2 * DAY_US)
    time = TrustedTime(clock, known)
    for n in hours:
        clock.jump(n * 3600)
        oldest, newest = time.range_us()
        assert oldest <= clock.now_us() <= newest
        clock.advance(1_800)


def test_stamps_support_what_comes_soon_after_them():
    """One that is far ahead supports nothing, until something came a day later still."""
    day = DAY_US
    assert newest_supported([], 9 * day) == 9 * day
    assert newest_supported([day, 2 * day], 3 * day) == 3 * day
    assert newest_supported([day, 2 * day], 400 * day) == 2 * day
    assert newest_supported([day, 400 * day], 400 * day + 1) == day
    assert newest_supported([day, 400 * day, 2 * day], 2 * day + 1) == 2 * day + 1
    assert newest_supported([day, 8 * day, 15 * day], 15 * day + 1) == 8 * day
    assert newest_supported([9 * day], day) == day
    assert day == JUMP_MAX_US
