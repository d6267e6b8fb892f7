"""holdfast: an embedded durable log for Python. What it acknowledges survives power loss.

    import holdfast

    with holdfast.open("data") as log:
        receipt = log.topic("orders").append(b"first", key=b"c-42")

Names are loaded when they are first used, so that importing holdfast costs next to nothing and a reader
never drags in a writer.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.last_resort import LastResort

if TYPE_CHECKING:
    from holdfast.clock import Clock, SystemClock
    from holdfast.crypto.cipher import PayloadCipher
    from holdfast.crypto.keyring import Keyring
    from holdfast.errors import (
        Closed,
        Corrupt,
        Full,
        HoldfastError,
        Invalid,
        NotFound,
        OutcomeUnknown,
        Unavailable,
    )
    from holdfast.journal.ticket import BatchTicket, ShippedTicket, Ticket
    from holdfast.log import Log, Stats
    from holdfast.log import open_log as open
    from holdfast.reading import Reading
    from holdfast.rebuilding import RebuildReport, rebuild
    from holdfast.record import Marks, Receipt, Record, Watermark
    from holdfast.restored import RestoredExpiry, RestoredPolicy, RestoreReport
    from holdfast.restoring import restore
    from holdfast.segments.reconcile import ReconcileReport
    from holdfast.segments.retention import RetentionReport
    from holdfast.settings import Settings
    from holdfast.settled.reading import SettledReading, read
    from holdfast.shipping.events import Event, Subscription
    from holdfast.shipping.persistence import Unshipped
    from holdfast.topic import Topic
    from holdfast.typed_topic import TypedTopic

__version__ = "0.1.0"

_HOMES = {
    "BatchTicket": "journal.ticket",
    "Clock": "clock",
    "Closed": "errors",
    "Corrupt": "errors",
    "Event": "shipping.events",
    "Full": "errors",
    "HoldfastError": "errors",
    "Invalid": "errors",
    "Keyring": "crypto.keyring",
    "Log": "log",
    "Marks": "record",
    "NotFound": "errors",
    "OutcomeUnknown": "errors",
    "PayloadCipher": "crypto.cipher",
    "Reading": "reading",
    "RebuildReport": "rebuilding",
    "Receipt": "record",
    "ReconcileReport": "segments.reconcile",
    "Record": "record",
    "RestoreReport": "restored",
    "RestoredExpiry": "restored",
    "RestoredPolicy": "restored",
    "RetentionReport": "segments.retention",
    "Settings": "settings",
    "SettledReading": "settled.reading",
    "ShippedTicket": "journal.ticket",
    "Stats": "log",
    "Subscription": "shipping.events",
    "SystemClock": "clock",
    "Ticket": "journal.ticket",
    "Topic": "topic",
    "TypedTopic": "typed_topic",
    "Unavailable": "errors",
    "Unshipped": "shipping.persistence",
    "Watermark": "record",
    "open": "log:open_log",
    "read": "settled.reading",
    "rebuild": "rebuilding",
    "restore": "restoring",
}

__all__ = [
    "BatchTicket",
    "Clock",
    "Closed",
    "Corrupt",
    "Event",
    "Full",
    "HoldfastError",
    "Invalid",
    "Keyring",
    "Log",
    "Marks",
    "NotFound",
    "OutcomeUnknown",
    "PayloadCipher",
    "Reading",
    "RebuildReport",
    "Receipt",
    "ReconcileReport",
    "Record",
    "RestoreReport",
    "RestoredExpiry",
    "RestoredPolicy",
    "RetentionReport",
    "Settings",
    "SettledReading",
    "ShippedTicket",
    "Stats",
    "Subscription",
    "SystemClock",
    "Ticket",
    "Topic",
    "TypedTopic",
    "Unavailable",
    "Unshipped",
    "Watermark",
    "open",
    "read",
    "rebuild",
    "restore",
]

logging.getLogger("holdfast").addHandler(LastResort())


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    value = getattr(import_module(f"holdfast.{module}"), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
