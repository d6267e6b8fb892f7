"""What is asked of the owner of a shared log, as values. Answers are what the verbs of a log return, or `Done`.

Every request but those of consumers may be made twice: a call that was under way when the owner died is made again, of
the next one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.journal.sessions.outcomes import Refusal
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.segments.retention.retention_plan import Policy
from holdfast.shipping.shipping_stats import ShippingStats, Unshipped

Name = Annotated[str, msgspec.Meta(max_length=256)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=100_000)]
Token = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
SECONDS_MAX = 7 * 86_400.0
"""Who waits longer asks for this."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    """A request that says no more than its name, or an answer that says that it was done."""


# -- segments ---------------------------------------------------------------------------------------------


class SealTopics(msgspec.Struct, frozen=True, array_like=True):
    """Seal what is durable now."""

    topics: Names | None
    """None: all of them."""
    timeout: Seconds
    waits: bool = True


class Retain(msgspec.Struct, frozen=True, array_like=True):
    """Apply retention now."""

    dry_run: bool


Limits = tuple[int | None, int | None, int | None]
"""Bytes, age in microseconds, records."""


def limits_of(policy: Policy) -> Limits:
    """The limits of a policy."""
    return policy.bytes_max, policy.age_max_us, policy.records_max


class SetRetention(msgspec.Struct, frozen=True, array_like=True):
    """Give a topic a retention policy of its own."""

    topic: Name
    policy: Limits
    consumers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)]
    limit: Limits


class Compact(msgspec.Struct, frozen=True, array_like=True):
    """Join small segment files."""

    topics: Names | None
    target: int
    dry_run: bool


class Reconcile(msgspec.Struct, frozen=True, array_like=True):
    """Compare the manifest with the files, or with the store."""

    remote: bool
    fix: bool
    deep: bool
    limit: int | None


class LastReport(msgspec.Struct, frozen=True, array_like=True):
    """The last complete pass of reconciliation."""

    report: ReconcileReport | None


# -- the store --------------------------------------------------------------------------------------------


class Ship(msgspec.Struct, frozen=True, array_like=True):
    """Wait until all that is sealed now is settled."""

    timeout: Seconds


class RebuildStore(msgspec.Struct, frozen=True, array_like=True):
    """Bring back what the store has lost."""

    accept_loss: bool
    timeout: Seconds


class ShippingNow(msgspec.Struct, frozen=True, array_like=True):
    """Shipping at this moment; None where no store is configured."""

    stats: ShippingStats | None


class UnshippedNow(msgspec.Struct, frozen=True, array_like=True):
    """What is durable and not known to be on the store."""

    spans: tuple[Unshipped, ...]


class RequireFree(msgspec.Struct, frozen=True, array_like=True):
    """Is a topic's name somebody else's on the store?"""

    topic: Name


# -- marks ------------------------------------------------------------------------------------------------


class Watch(msgspec.Struct, frozen=True, array_like=True):
    """Tell me when the partitions of these topics move, and (`shipping`) when the store has taken something."""

    topics: Names
    shipping: bool


class Shipments(msgspec.Struct, frozen=True, array_like=True):
    """How far partitions are on the store: of each its id, slots, settled segments, settled and shipped offset."""

    partitions: tuple[tuple[int, int, int, int, int], ...]
    refusal: Refusal | None = None
    """Why nobody should wait for the store at the moment."""


class AskMarks(msgspec.Struct, frozen=True, array_like=True):
    """How far is a topic on the store?"""

    topic: Name


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """The event `marks`: these topics have moved."""

    topics: Names
    shipments: Shipments | None = None
