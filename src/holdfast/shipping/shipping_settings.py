"""What can be set about shipping, with defaults, profiles and bounds in one place.

A profile is a name for values that fit together; it is nothing but those values, and whatever is set beside it wins. It
is applied where settings are read (`with_profile`), since a finished value cannot distinguish a default from a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from holdfast.errors import Invalid

_DAY_MS = 24 * 3600 * 1000.0
_BATCH_BYTES_LIMIT = 2**30
_HINT = "correct these settings under [shipping]; all problems are listed"

ESCALATIONS = ("keep-trying", "fail-appends", "abort")
"""What can be done when a batch has failed `max_retry_attempts` times again."""

PROFILES: dict[str, dict[str, int | float]] = {
    "low-latency": {
        "batch_timeout_ms": 5,
        "batch_size_threshold": 1_000,
        "batch_bytes_max": 8 * 2**20,
        "max_in_flight_requests": 16,
    },
    "balanced": {
        "send_when_idle": False,
        "batch_timeout_ms": 250,
        "batch_size_threshold": 10_000,
        "batch_bytes_max": 8 * 2**20,
    },
    "economy": {
        "send_when_idle": False,
        "batch_timeout_ms": 5_000,
        "batch_size_threshold": 100_000,
        "batch_bytes_max": 32 * 2**20,
        "max_in_flight_requests": 4,
    },
}
"""The values that each profile stands for; `low-latency` spells out the defaults."""

_MAY_BE_ZERO = (
    "claim_check_interval_ms",
    "delete_after_ms",
    "lease_delay_max_ms",
    "store_bytes_max",
    "store_age_max_ms",
    "max_retry_attempts",
    "retry_base_delay_ms",
)
_NO_NUMBERS = ("profile", "commit_batches", "send_when_idle", "escalation", "rebuild_store")
_OWN_RULES = ("target_pool_size", "retry_delay_max_ms")


class ShippingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The loop that ships: when batches go, how many at once, and what happens when the store fails.

    >>> ShippingSettings(max_in_flight_requests=4).pool_size
    8
    """

    profile: str = ""
    """A name for a set of values: `low-latency`, `balanced` or `economy`; what is set beside it wins."""

    commit_batches: bool = True
    """Ship commits soon, in batches of their own; otherwise only sealed segments are shipped."""

    send_when_idle: bool = True
    """Send the first commit at once when nothing is under way; otherwise never more than one batch per
    `batch_timeout_ms`, unless a threshold is reached.
    """

    batch_timeout_ms: float = 5
    """How long after the last batch was sent more commits are collected, while requests are under way."""

    batch_size_threshold: int = 1_000
    """Group commits after which a batch is sent without waiting longer."""

    batch_bytes_max: int = 8 * 2**20
    """Stored bytes after which a batch is sent without waiting longer; one larger group commit travels alone. At most
    1 GiB.
    """

    max_in_flight_requests: int = 16
    """Commit batches under way at once; beyond that commits wait in the journal."""

    target_pool_size: int = 0
    """Connections kept open (S3); 0 = 2 × `max_in_flight_requests`. Not below `max_in_flight_requests`, not above
    twice that.
    """

    max_retry_attempts: int = 3
    """How often a failed batch is sent again before `escalation` applies; 0 = it applies at once."""

    retry_base_delay_ms: float = 100
    """The longest wait before the first retry; it doubles with each further one. Above zero wherever failed batches
    are sent again.
    """

    retry_delay_max_ms: float = 30_000
    """The longest wait before any retry, unless the store itself asks for more."""

    escalation: str = "keep-trying"
    """When retries are exhausted: `keep-trying` with a growing alarm, `fail-appends`, or `abort` the process."""

    rebuild_store: bool = False
    """Restore a store that was emptied, or replaced by an old copy, from what is here, without asking. Never where
    something would be given up, and never over another log's.
    """

    claim_check_interval_ms: float = 1_000
    """How often an owner looks for its own claim while it ships, to find out that the store was emptied; 0 = before
    every acknowledgement."""

    request_timeout_ms: float = 30_000
    """How long one request of the shipper may take before its outcome counts as unknown."""

    connect_timeout_ms: float = 5_000
    """How long opening a connection may take."""

    heartbeat_interval_ms: float = 15_000
    """How long a connection may be idle before it is probed."""

    drain_timeout_ms: float = 10_000
    """How long close() waits for what is under way; the rest stays in the log and is shipped after the next open."""

    shipped_timeout_ms: float = 30_000
    """How long `ticket.shipped()` and `durability="shipped"` wait for the store."""

    checkpoint_every: int = 1_000
    """Manifest objects of a partition after which a checkpoint is written."""

    delete_after_ms: float = 7 * _DAY_MS
    """How long objects stay on the store after they expired there."""

    lease_delay_max_ms: float = 30 * _DAY_MS
    """How much longer readers' leases can keep them; beyond that they go, even under a lease."""

    store_bytes_max: int = 0
    """Bytes of segments that each partition keeps on the store; 0 = all."""

    store_age_max_ms: float = 0
    """How long a segment is kept on the store after it was sealed; 0 = forever."""

    events_max: int = 1_024
    """Events that a subscription holds for a slow consumer; beyond that the oldest are dropped and counted."""

    def __post_init__(self) -> None:
        problems = [*_bad_numbers(self), *_bad_names(self), *_bad_pool(self), *_bad_retries(self)]
        if self.batch_bytes_max > _BATCH_BYTES_LIMIT:
            problems.append("shipping.batch_bytes_max must not exceed 1GiB")
        if problems:
            raise Invalid("; ".join(problems), hint=_HINT)

    @property
    def pool_size(self) -> int:
        """Connections kept open."""
        return self.target_pool_size or 2 * self.max_in_flight_requests

    @classmethod
    def with_profile(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What is set explicitly, on top of what its profile says.

        >>> ShippingSettings(**ShippingSettings.with_profile({"profile": "economy"})).batch_timeout_ms
        5000
        """
        profile = values.get("profile", "")
        if profile == "":
            return dict(values)
        if not isinstance(profile, str) or profile not in PROFILES:
            raise Invalid(_one_of("profile", profile, tuple(PROFILES)), hint=_HINT)
        return {**PROFILES[profile], **values}


def _bad_numbers(settings: ShippingSettings) -> list[str]:
    problems = []
    for name, value in msgspec.structs.asdict(settings).items():
        if name in _NO_NUMBERS:
            continue
        if not isfinite(value):
            problems.append(f"shipping.{name} must be a finite number, got {value}")
        elif name in _MAY_BE_ZERO and value < 0:
            problems.append(f"shipping.{name} must not be negative, got {value}")
        elif name not in _MAY_BE_ZERO and name not in _OWN_RULES and value <= 0:
            problems.append(f"shipping.{name} must be above zero, got {value}")
    return problems


def _bad_names(settings: ShippingSettings) -> list[str]:
    problems = []
    if settings.profile and settings.profile not in PROFILES:
        problems.append(_one_of("profile", settings.profile, tuple(PROFILES)))
    if settings.escalation not in ESCALATIONS:
        problems.append(_one_of("escalation", settings.escalation, ESCALATIONS))
    return problems


def _bad_pool(settings: ShippingSettings) -> list[str]:
    pool, in_flight = settings.target_pool_size, settings.max_in_flight_requests
    if not pool:
        return []
    problems = []
    if pool < in_flight or pool < 0:
        problems.append(
            f"shipping.target_pool_size must be at least max_in_flight_requests ({in_flight}), got {pool}: "
            "every request under way needs a connection"
        )
    if pool > 2 * in_flight:
        problems.append(
            f"shipping.target_pool_size must not exceed 2 × max_in_flight_requests ({2 * in_flight}), got {pool}: "
            "more connections than that are never used"
        )
    return problems


def _bad_retries(settings: ShippingSettings) -> list[str]:
    base, longest = settings.retry_base_delay_ms, settings.retry_delay_max_ms
    problems = []
    # keep-trying retries forever, whatever max_retry_attempts says: without a delay it would hammer the store.
    is_retrying = settings.max_retry_attempts > 0 or settings.escalation == "keep-trying"
    if is_retrying and base == 0:
        problems.append("shipping.retry_base_delay_ms must be above zero where failed batches are sent again, got 0")
    if longest < base:
        problems.append(f"shipping.retry_delay_max_ms must be at least retry_base_delay_ms ({base}), got {longest}")
    return problems


def _one_of(name: str, value: object, known: tuple[str, ...]) -> str:
    return f"shipping.{name} must be one of {', '.join(known)}, got {value!r}"
