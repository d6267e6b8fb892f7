"""What is asked of the owner of a log, as values. Answers are what the verbs of a log return, or `Nothing`.

Who may ask for what stands in the table of verbs (`verbs.py`). Requests of verbs that have a route of their own, too,
are maps whose fields have defaults: the JSON of such a route is the same request.
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
SECONDS_MAX = 7 * 86_400.0
"""Who waits longer asks for this."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
_WAIT_S = 60.0


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    """A request that says no more than its name, or an answer that says that it was done."""


class PublicRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked for by people, too."""


# -- segments ---------------------------------------------------------------------------------------------


class SealTopics(PublicRequest, frozen=True):
    """Seal what is durable now."""

    topic: Name | Names | None = None
    """One topic, several, or all."""
    timeout: Seconds | None = None
    waits: bool = True


class Retain(PublicRequest, frozen=True):
    """Apply retention now."""

    dry_run: bool = False


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


class Compact(PublicRequest, frozen=True):
    """Join small segment files."""

    topic: Name | Names | None = None
    """One topic, several, or all."""
    target_size: int | Annotated[str, msgspec.Meta(max_length=64)] = "128MiB"
    dry_run: bool = False


class Reconcile(PublicRequest, frozen=True):
    """Compare the manifest with the files, or with the store."""

    remote: bool = False
    fix: bool = False
    deep: bool = False
    limit: int | None = None


class LastReport(msgspec.Struct, frozen=True, array_like=True):
    """The last complete pass of reconciliation."""

    report: ReconcileReport | None


# -- the store --------------------------------------------------------------------------------------------


class Ship(PublicRequest, frozen=True):
    """Wait until all that is sealed now is settled."""

    timeout: Seconds | None = None


class RebuildStore(PublicRequest, frozen=True):
    """Bring back what the store has lost."""

    accept_loss: bool = False
    timeout: Seconds | None = None


class ShippingNow(msgspec.Struct, frozen=True, array_like=True):
    """Shipping at this moment; None where no store is configured."""

    stats: ShippingStats | None


class UnshippedNow(msgspec.Struct, frozen=True):
    """What is durable and not known to be on the store."""

    unshipped: tuple[Unshipped, ...]


class RequireFree(msgspec.Struct, frozen=True, array_like=True):
    """Is a topic's name another writer's on the store?"""

    topic: Name


# -- marks ------------------------------------------------------------------------------------------------


class WatchMarks(msgspec.Struct, frozen=True, array_like=True):
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


class MarksMoved(msgspec.Struct, frozen=True, array_like=True):
    """The event `marks`: these topics have moved."""

    topics: Names
    shipments: Shipments | None = None


# -- keys -------------------------------------------------------------------------------------------------


class EncryptedKeys(msgspec.Struct, frozen=True, array_like=True):
    """A keyring, encrypted; of those that the owner tells, with a number."""

    body: bytes
    number: int = 0


class TookKeys(msgspec.Struct, frozen=True, array_like=True):
    """A member has them."""

    number: int
