"""Reliable channels: causally ordered group messages over a transport that may lose, repeat and reorder.

The protocol is SDS (Scalable Data Sync) in the wire formats of both its implementations. It is a pure state machine
(`protocol`, `state`), with a thin rim: `channel` keeps and tells, `manager` has the operations and the timers.
`persistence` is the port to whatever keeps a channel; a log's own backend is `holdfast.channel_log`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.channels.bus import Bus, BusStats
    from holdfast.channels.channel import Channel, ChannelStats, PersistenceState
    from holdfast.channels.delivered import Delivered
    from holdfast.channels.events import (
        DependenciesLost,
        MessageGivenUp,
        MessageReady,
        MessageSent,
        MissingDependencies,
        PeriodicSync,
        RepairReady,
        ResendDue,
    )
    from holdfast.channels.manager import Channels
    from holdfast.channels.message import HistoryEntry, SdsMessage
    from holdfast.channels.persistence import Commit, MemoryPersistence, NoPersistence, Persistence
    from holdfast.channels.settings import ChannelSettings
    from holdfast.channels.snapshot import ChannelData, ChannelMeta, HistoryUpdate
    from holdfast.channels.steps import Received
    from holdfast.channels.transport import Link, LinkStats
    from holdfast.channels.udp import UdpStats, UdpTransport

_HOMES = {
    "Bus": "bus",
    "BusStats": "bus",
    "Channel": "channel",
    "ChannelData": "snapshot",
    "ChannelMeta": "snapshot",
    "ChannelSettings": "settings",
    "ChannelStats": "channel",
    "Channels": "manager",
    "Commit": "persistence",
    "Delivered": "delivered",
    "DependenciesLost": "events",
    "HistoryEntry": "message",
    "HistoryUpdate": "snapshot",
    "Link": "transport",
    "LinkStats": "transport",
    "MemoryPersistence": "persistence",
    "MessageGivenUp": "events",
    "MessageReady": "events",
    "MessageSent": "events",
    "MissingDependencies": "events",
    "NoPersistence": "persistence",
    "PeriodicSync": "events",
    "Persistence": "persistence",
    "PersistenceState": "channel",
    "Received": "steps",
    "RepairReady": "events",
    "ResendDue": "events",
    "SdsMessage": "message",
    "UdpStats": "udp",
    "UdpTransport": "udp",
}

__all__ = [
    "Bus",
    "BusStats",
    "Channel",
    "ChannelData",
    "ChannelMeta",
    "ChannelSettings",
    "ChannelStats",
    "Channels",
    "Commit",
    "Delivered",
    "DependenciesLost",
    "HistoryEntry",
    "HistoryUpdate",
    "Link",
    "LinkStats",
    "MemoryPersistence",
    "MessageGivenUp",
    "MessageReady",
    "MessageSent",
    "MissingDependencies",
    "NoPersistence",
    "PeriodicSync",
    "Persistence",
    "PersistenceState",
    "Received",
    "RepairReady",
    "ResendDue",
    "SdsMessage",
    "UdpStats",
    "UdpTransport",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.channels' has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.channels.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
