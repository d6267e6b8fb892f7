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

from holdfast.stderr_warnings import StderrWarnings

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
    from holdfast.journal.commit.ticket import BatchTicket, ShippedTicket, Ticket
    from holdfast.log.log import Log, Stats
    from holdfast.log.open_log import open_log as open
    from holdfast.log.topics.reading import Reading
    from holdfast.log.topics.topic import Topic
    from holdfast.log.topics.typed_topic import TypedTopic
    from holdfast.model.record import Marks, Receipt, Record, Watermark
    from holdfast.reader.settled_reading import SettledReading, read
    from holdfast.reconcile.local_pass import ReconcileReport
    from holdfast.recovery.rebuild import RebuildReport, rebuild
    from holdfast.recovery.restore import restore
    from holdfast.recovery.restore_report import RestoredExpiry, RestoredPolicy, RestoreReport
    from holdfast.segments.retention.retention import RetentionReport
    from holdfast.settings import Settings
    from holdfast.shipping.events import Event, Subscription
    from holdfast.shipping.shipper import Unshipped

__version__ = "0.1.0"

_HOMES = {
    "BatchTicket": "journal.commit.ticket",
    "Clock": "clock",
    "Closed": "errors",
    "Corrupt": "errors",
    "Event": "shipping.events",
    "Full": "errors",
    "HoldfastError": "errors",
    "Invalid": "errors",
    "Keyring": "crypto.keyring",
    "Log": "log.log",
    "Marks": "model.record",
    "NotFound": "errors",
    "OutcomeUnknown": "errors",
    "PayloadCipher": "crypto.cipher",
    "Reading": "log.topics.reading",
    "RebuildReport": "recovery.rebuild",
    "Receipt": "model.record",
    "ReconcileReport": "reconcile.local_pass",
    "Record": "model.record",
    "RestoreReport": "recovery.restore_report",
    "RestoredExpiry": "recovery.restore_report",
    "RestoredPolicy": "recovery.restore_report",
    "RetentionReport": "segments.retention.retention",
    "Settings": "settings",
    "SettledReading": "reader.settled_reading",
    "ShippedTicket": "journal.commit.ticket",
    "Stats": "log.log",
    "Subscription": "shipping.events",
    "SystemClock": "clock",
    "Ticket": "journal.commit.ticket",
    "Topic": "log.topics.topic",
    "TypedTopic": "log.topics.typed_topic",
    "Unavailable": "errors",
    "Unshipped": "shipping.shipper",
    "Watermark": "model.record",
    "open": "log.open_log:open_log",
    "read": "reader.settled_reading",
    "rebuild": "recovery.rebuild",
    "restore": "recovery.restore",
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

logging.getLogger("holdfast").addHandler(StderrWarnings())


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
