"""What requests cost at list price."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.shipping.cost import Counter, monthly_dollars, monthly_puts
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store.request_prices import PRICES, Request

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("timeout_ms", "puts", "dollars"), [(5, 518_400_000, 2592.00), (250, 10_368_000, 51.84), (5_000, 518_400, 2.592)]
)
def test_a_month_at_one_put_per_timeout(timeout_ms, puts, dollars):
    """5 ms costs $2,592, 250 ms $51.84, 5 s $2.59."""
    settings = ShippingSettings(batch_timeout_ms=timeout_ms)
    assert monthly_puts(settings) == puts
    assert monthly_dollars(settings) == pytest.approx(dollars)


@pytest.mark.parametrize(
    ("profile", "shown"), [("low-latency", "$2,592.00"), ("balanced", "$51.84"), ("economy", "$2.59")]
)
def test_each_profile_has_its_price(profile, shown):
    """Profiles differ by what they cost."""
    settings = ShippingSettings(**ShippingSettings.with_profile({"profile": profile}))
    assert f"${monthly_dollars(settings):,.2f}" == shown


def test_without_commit_batches_none_are_paid_for():
    """What is switched off costs nothing."""
    settings = ShippingSettings(commit_batches=False)
    assert (monthly_puts(settings), monthly_dollars(settings)) == (0, 0)


def test_the_counter_adds_up_by_kind():
    """A thousand of each, at the prices of the list."""
    counter = Counter()
    assert counter.dollars == 0
    for request in get_args(Request):
        counter.add(request, 1000)
    assert counter.requests == dict.fromkeys(get_args(Request), 1000)
    assert counter.dollars == pytest.approx(0.005 + 0.005 + 0.0004 + 0.0004)


@pytest.mark.parametrize(
    ("request_kind", "dollars"), [("put", 0.005), ("list", 0.005), ("get", 0.0004), ("head", 0.0004), ("delete", 0)]
)
def test_each_kind_has_its_own_price(request_kind, dollars):
    """Per thousand requests."""
    counter = Counter()
    for _ in range(1000):
        counter.add(request_kind)
    assert counter.dollars == pytest.approx(dollars)


def test_every_kind_has_a_price_and_no_other_is_counted():
    """A new kind of request cannot be free by accident."""
    assert set(PRICES) == set(get_args(Request))
    with pytest.raises(KeyError):
        Counter().add("patch")


def test_what_was_counted_cannot_be_changed_from_outside():
    """The counts are handed out as a copy."""
    counter = Counter()
    counter.requests["put"] = 5
    assert counter.dollars == 0
