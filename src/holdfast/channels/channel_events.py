"""The events that a channel delivers to its application. Each event names its channel and its message and carries
what is needed.
"""

from __future__ import annotations

import msgspec

from holdfast.channels.wire.message import HistoryEntry


class MessageReady(msgspec.Struct, frozen=True, gc=False):
    """A message is delivered: everything that it depends on was delivered before."""

    channel_id: str
    message_id: str
    sender_id: str
    content: bytes
    lamport: int | None
    """None for an ephemeral message."""


class MessageSent(msgspec.Struct, frozen=True, gc=False):
    """A message of ours was acknowledged by a participant."""

    channel_id: str
    message_id: str


class MessageGivenUp(msgspec.Struct, frozen=True, gc=False):
    """A message of ours was sent as often as allowed, and nobody is known to have it."""

    channel_id: str
    message_id: str


class MissingDependencies(msgspec.Struct, frozen=True, gc=False):
    """A message names others that are not here. It waits for them, unless it is a sync message."""

    channel_id: str
    message_id: str
    missing: tuple[HistoryEntry, ...]
    """What it waits for."""


class DependenciesLost(msgspec.Struct, frozen=True, gc=False):
    """A message waited for these longer than `lost_after_ms`; it is delivered without them."""

    channel_id: str
    message_id: str
    lost: tuple[HistoryEntry, ...]
    """What it no longer waits for."""


class ResendDue(msgspec.Struct, frozen=True, gc=False):
    """A message of ours is not acknowledged: broadcast these bytes again."""

    channel_id: str
    message_id: str
    data: bytes
    """The bytes to broadcast."""
    attempt: int
    """How often it is sent again."""


class RepairReady(msgspec.Struct, frozen=True, gc=False):
    """A participant misses a message that we have: broadcast these bytes."""

    channel_id: str
    message_id: str
    data: bytes
    """The bytes to broadcast."""


class PeriodicSync(msgspec.Struct, frozen=True, gc=False):
    """Time to tell others what we know: broadcast these bytes."""

    channel_id: str
    data: bytes
    """The bytes to broadcast."""


Event = (
    MessageReady
    | MessageSent
    | MessageGivenUp
    | MissingDependencies
    | DependenciesLost
    | ResendDue
    | RepairReady
    | PeriodicSync
)
