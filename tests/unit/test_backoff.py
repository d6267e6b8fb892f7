"""Backoff: jitter between nothing and a doubling, capped ceiling; what the store asks for is the least."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.shipping.lanes.backoff import RETRY_AFTER_MAX_S, delay

pytestmark = pytest.mark.unit


def longest(attempt, retry_after=0.0):
    return delay(attempt, base=0.1, cap=30.0, random=1.0, retry_after=retry_after)


def test_the_ceiling_doubles_up_to_the_cap():
    """0.1, 0.2, 0.4 … and never more than the cap."""
    assert [longest(n) for n in range(12)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30])


def test_jitter_is_full():
    """The delay is spread evenly from nothing to the ceiling."""
    assert [delay(2, 0.1, 30.0, random, 0.0) for random in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0, 0.1, 0.2, 0.4])


@pytest.mark.parametrize("attempt", [1000, 1024, 10_000, 10**18])
@pytest.mark.parametrize("base", [1e-3, 0.1, 1e12])
def test_the_ten_thousandth_attempt_does_not_overflow(attempt, base):
    """An outage of days ends in the cap, not in an error."""
    assert delay(attempt, base, 30.0, 0.5, 0.0) == 15.0


def test_the_store_is_not_asked_before_the_time_it_named():
    """Retry-After is the least, also above the cap; a longer jitter stays."""
    assert longest(0, retry_after=7.0) == 7.0
    assert longest(0, retry_after=60.0) == 60.0
    assert longest(9, retry_after=7.0) == 30.0


@pytest.mark.parametrize("asked", [300.1, 86_400.0, math.inf])
def test_a_store_cannot_stop_shipping_for_a_day(asked):
    """Retry-After is honoured up to five minutes."""
    assert longest(0, retry_after=asked) == RETRY_AFTER_MAX_S == 300


@pytest.mark.parametrize("asked", [-1.0, -math.inf, math.nan])
def test_nonsense_from_the_store_changes_nothing(asked):
    """A negative time or none at all is no time."""
    assert longest(1, retry_after=asked) == pytest.approx(0.2)


@given(
    st.integers(0, 20_000),
    st.floats(1e-4, 100),
    st.floats(100, 1e4),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1e6),
)
def test_every_delay_is_within_its_bounds(attempt, base, cap, random, retry_after):
    """At least what the store asked for (up to the limit), at most the ceiling or that."""
    asked = min(retry_after, RETRY_AFTER_MAX_S)
    waited = delay(attempt, base, cap, random, retry_after)
    assert asked <= waited <= max(asked, cap)
    assert waited <= max(asked, base * 2.0 ** min(attempt, 500))
