"""Reliable channels: causally ordered group messages over a transport that may lose, repeat and reorder.

The protocol is SDS (Scalable Data Sync) in the wire formats of both its implementations. It is a pure state machine
(`protocol`, `state`), with a thin rim: `channel` keeps and tells, `manager` has the operations and the timers.
`persistence` is the port to whatever keeps a channel; a log's own backend is `holdfast.channel_log`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.channels.channel import Channel, ChannelStats, PersistenceState
    from holdfast.channels.channel_events import (
        DependenciesLost,
        MessageGivenUp,
        MessageReady,
        MessageSent,
        MissingDependencies,
        PeriodicSync,
        RepairReady,
        ResendDue,
    )
    from holdfast.channels.channel_settings import ChannelSettings
    from holdfast.channels.delivered import Delivered
    from holdfast.channels.keeping.persistence import Commit, MemoryPersistence, NoPersistence, Persistence
    from holdfast.channels.keeping.snapshot import ChannelData, ChannelMeta, HistoryUpdate
    from holdfast.channels.participant import Channels
    from holdfast.channels.protocol.steps import Received
    from holdfast.channels.transport.bus import Bus, BusStats
    from holdfast.channels.transport.link import Link, LinkStats
    from holdfast.channels.transport.udp import UdpStats, UdpTransport
    from holdfast.channels.wire.message import HistoryEntry, SdsMessage

_HOMES = {
    "Bus": "transport.bus",
    "BusStats": "transport.bus",
    "Channel": "channel",
    "ChannelData": "keeping.snapshot",
    "ChannelMeta": "keeping.snapshot",
    "ChannelSettings": "channel_settings",
    "ChannelStats": "channel",
    "Channels": "participant",
    "Commit": "keeping.persistence",
    "Delivered": "delivered",
    "DependenciesLost": "channel_events",
    "HistoryEntry": "wire.message",
    "HistoryUpdate": "keeping.snapshot",
    "Link": "transport.link",
    "LinkStats": "transport.link",
    "MemoryPersistence": "keeping.persistence",
    "MessageGivenUp": "channel_events",
    "MessageReady": "channel_events",
    "MessageSent": "channel_events",
    "MissingDependencies": "channel_events",
    "NoPersistence": "keeping.persistence",
    "PeriodicSync": "channel_events",
    "Persistence": "keeping.persistence",
    "PersistenceState": "channel",
    "Received": "protocol.steps",
    "RepairReady": "channel_events",
    "ResendDue": "channel_events",
    "SdsMessage": "wire.message",
    "UdpStats": "transport.udp",
    "UdpTransport": "transport.udp",
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
