"""Settings of shipping: every rule by name, all violations at once, profiles below what is set."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Invalid
from holdfast.shipping.shipping_settings import ESCALATIONS, PROFILES, ShippingSettings

pytestmark = pytest.mark.unit

MAY_BE_ZERO = {
    "claim_check_interval_ms",
    "target_pool_size",
    "max_retry_attempts",
    "delete_after_ms",
    "lease_delay_max_ms",
    "store_bytes_max",
    "store_age_max_ms",
}
NUMBERS = [f.name for f in msgspec.structs.fields(ShippingSettings) if f.type in {int, float}]
FLOATS = [f.name for f in msgspec.structs.fields(ShippingSettings) if f.type is float]


def problems_of(**values):
    with pytest.raises(Invalid) as caught:
        ShippingSettings(**values)
    assert "[shipping]" in caught.value.hint
    return caught.value.message.split("; ")


def test_the_documented_defaults_are_the_defaults():
    settings = ShippingSettings()
    assert settings.batch_timeout_ms == 5
    assert settings.max_retry_attempts == 3
    assert settings.retry_base_delay_ms == 100
    assert settings.pool_size == 2 * settings.max_in_flight_requests == 32
    assert (settings.batch_size_threshold, settings.batch_bytes_max) == (1000, 8 * 2**20)
    assert settings.escalation == "keep-trying"
    assert settings.delete_after_ms == 7 * 24 * 3600 * 1000


@pytest.mark.parametrize("value", [0, -1])
def test_batch_size_threshold_must_be_above_zero(value):
    """A batch holds at least one commit."""
    assert problems_of(batch_size_threshold=value) == [f"shipping.batch_size_threshold must be above zero, got {value}"]
    assert ShippingSettings(batch_size_threshold=1).batch_size_threshold == 1


@pytest.mark.parametrize("value", [0, -1])
def test_max_in_flight_requests_must_be_above_zero(value):
    """At least one request may be under way."""
    assert problems_of(max_in_flight_requests=value) == [
        f"shipping.max_in_flight_requests must be above zero, got {value}"
    ]
    assert ShippingSettings(max_in_flight_requests=1).pool_size == 2


@pytest.mark.parametrize("pool", [7, 1, -1])
def test_target_pool_size_must_hold_all_requests_in_flight(pool):
    """A pool smaller than what is under way is refused; an equal one is not."""
    (problem,) = problems_of(max_in_flight_requests=8, target_pool_size=pool)
    assert problem.startswith(f"shipping.target_pool_size must be at least max_in_flight_requests (8), got {pool}")
    assert ShippingSettings(max_in_flight_requests=8, target_pool_size=8).pool_size == 8


def test_target_pool_size_above_twice_the_requests_in_flight_is_an_error_that_says_why():
    """A pool beyond 2 × is refused, with the reason; exactly 2 × is not."""
    (problem,) = problems_of(max_in_flight_requests=8, target_pool_size=17)
    assert problem.startswith("shipping.target_pool_size must not exceed 2 × max_in_flight_requests (16), got 17")
    assert "more connections than that are never used" in problem
    assert ShippingSettings(max_in_flight_requests=8, target_pool_size=16).pool_size == 16


def test_target_pool_size_zero_is_twice_the_requests_in_flight():
    """Nobody needs to set the pool."""
    assert ShippingSettings(max_in_flight_requests=5, target_pool_size=0).pool_size == 10


@pytest.mark.parametrize("value", [0, -1, -0.5])
def test_batch_timeout_ms_must_be_above_zero(value):
    """Collecting takes some time."""
    assert problems_of(batch_timeout_ms=value) == [f"shipping.batch_timeout_ms must be above zero, got {value}"]
    assert ShippingSettings(batch_timeout_ms=0.1).batch_timeout_ms == 0.1


def test_max_retry_attempts_may_be_zero_and_not_negative():
    """Zero escalates at once."""
    assert ShippingSettings(max_retry_attempts=0).max_retry_attempts == 0
    assert problems_of(max_retry_attempts=-1) == ["shipping.max_retry_attempts must not be negative, got -1"]


@pytest.mark.parametrize("escalation", ESCALATIONS)
def test_retry_base_delay_ms_must_be_above_zero_if_retries_are_enabled(escalation):
    """Retries without a delay are refused, whatever comes after them."""
    (problem,) = problems_of(retry_base_delay_ms=0, escalation=escalation)
    assert problem.startswith("shipping.retry_base_delay_ms must be above zero")
    assert problems_of(retry_base_delay_ms=-1, escalation=escalation) == [
        "shipping.retry_base_delay_ms must not be negative, got -1"
    ]


@pytest.mark.parametrize("escalation", ["fail-appends", "abort"])
def test_retry_base_delay_ms_may_be_zero_if_nothing_is_ever_retried(escalation):
    """Where the first failure ends it, the delay has no meaning."""
    settings = ShippingSettings(max_retry_attempts=0, retry_base_delay_ms=0, escalation=escalation)
    assert settings.retry_base_delay_ms == 0


def test_keep_trying_counts_as_retrying():
    """Without retries before it, keep-trying still retries forever: it must not hammer the store."""
    (problem,) = problems_of(max_retry_attempts=0, retry_base_delay_ms=0, escalation="keep-trying")
    assert problem.startswith("shipping.retry_base_delay_ms must be above zero")


def test_retry_delay_max_ms_must_not_be_below_the_base():
    """The cap holds at least one base delay."""
    assert problems_of(retry_base_delay_ms=100, retry_delay_max_ms=99) == [
        "shipping.retry_delay_max_ms must be at least retry_base_delay_ms (100), got 99"
    ]
    assert ShippingSettings(retry_base_delay_ms=100, retry_delay_max_ms=100).retry_delay_max_ms == 100


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_may_be_negative(name):
    """Negative limits are refused, by name."""
    assert any(problem.startswith(f"shipping.{name} must ") for problem in problems_of(**{name: -1}))


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - MAY_BE_ZERO))
def test_zero_is_refused_where_it_means_nothing(name):
    """Zero is refused, by name, except where it is documented as a value."""
    assert any(problem.startswith(f"shipping.{name} must ") for problem in problems_of(**{name: 0}))


@pytest.mark.parametrize("name", sorted(MAY_BE_ZERO))
def test_zero_is_taken_where_it_is_a_value(name):
    """No retries, no grace, no limit on the store, and a pool of the usual size."""
    assert getattr(ShippingSettings(**{name: 0}), name) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", FLOATS)
def test_times_must_be_finite(name, value):
    """TOML can say nan and inf; no timer can."""
    assert f"shipping.{name} must be a finite number, got {value}" in problems_of(**{name: value})


def test_a_batch_is_not_larger_than_its_format():
    """A commit batch has an upper bound."""
    assert problems_of(batch_bytes_max=2**30 + 1) == ["shipping.batch_bytes_max must not exceed 1GiB"]
    assert ShippingSettings(batch_bytes_max=2**30).batch_bytes_max == 2**30


def test_names_must_be_known():
    """An unknown escalation or profile is refused with the list."""
    assert problems_of(escalation="hope") == [
        "shipping.escalation must be one of keep-trying, fail-appends, abort, got 'hope'"
    ]
    assert problems_of(profile="cheap") == [
        "shipping.profile must be one of low-latency, balanced, economy, got 'cheap'"
    ]


def test_all_violations_are_reported_at_once():
    """One error has one sentence per violation."""
    problems = problems_of(
        batch_size_threshold=0,
        batch_timeout_ms=0,
        max_retry_attempts=-1,
        max_in_flight_requests=4,
        target_pool_size=9,
        retry_base_delay_ms=0,
        escalation="hope",
        profile="cheap",
        batch_bytes_max=2**31,
        retry_delay_max_ms=-5,
        events_max=0,
    )
    named = sorted(problem.partition(" ")[0].removeprefix("shipping.") for problem in problems)
    assert named == [
        "batch_bytes_max",
        "batch_size_threshold",
        "batch_timeout_ms",
        "escalation",
        "events_max",
        "max_retry_attempts",
        "profile",
        "retry_delay_max_ms",
        "target_pool_size",
    ]


def test_the_low_latency_profile_is_the_defaults():
    """Naming it changes nothing but the name."""
    named = ShippingSettings(**ShippingSettings.with_profile({"profile": "low-latency"}))
    assert named == ShippingSettings(profile="low-latency")


def test_profiles_say_what_they_promise():
    """Each profile is its values; everything else keeps its default."""
    balanced = ShippingSettings(**ShippingSettings.with_profile({"profile": "balanced"}))
    assert balanced == ShippingSettings(
        profile="balanced",
        send_when_idle=False,
        batch_timeout_ms=250,
        batch_size_threshold=10_000,
        batch_bytes_max=8 * 2**20,
    )
    economy = ShippingSettings(**ShippingSettings.with_profile({"profile": "economy"}))
    assert economy == ShippingSettings(
        profile="economy",
        send_when_idle=False,
        batch_timeout_ms=5_000,
        batch_size_threshold=100_000,
        batch_bytes_max=32 * 2**20,
        max_in_flight_requests=4,
    )
    assert economy.pool_size == 8


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_set_wins_over_the_profile(profile):
    """An explicit value stays, also one that equals the default; the mapping given is not changed."""
    given = {"profile": profile, "batch_timeout_ms": 5, "max_in_flight_requests": "16"}
    kept = dict(given)
    values = ShippingSettings.with_profile(given)
    assert values["batch_timeout_ms"] == 5
    assert values["max_in_flight_requests"] == "16"
    assert values["profile"] == profile
    assert values["batch_size_threshold"] == PROFILES[profile]["batch_size_threshold"]
    assert given == kept


def test_without_a_profile_only_what_is_set_is_there():
    """No profile adds nothing."""
    assert ShippingSettings.with_profile({}) == {}
    assert ShippingSettings.with_profile({"profile": "", "events_max": 5}) == {"profile": "", "events_max": 5}


@pytest.mark.parametrize("profile", ["cheap", "Economy", 5, ["economy"], None])
def test_an_unknown_profile_is_invalid_with_the_list(profile):
    """A misspelt profile is never ignored."""
    with pytest.raises(Invalid, match="low-latency, balanced, economy") as caught:
        ShippingSettings.with_profile({"profile": profile})
    assert caught.value.hint


def test_settings_are_frozen_values():
    """They can be compared, stored and not changed; unknown names are refused."""
    settings = ShippingSettings(events_max=7)
    with pytest.raises(AttributeError):
        settings.events_max = 8  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(settings), type=ShippingSettings) == settings
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"event_max": 1}', type=ShippingSettings)
