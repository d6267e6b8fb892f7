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

from holdfast import loggers
from holdfast.loggers import StderrWarnings

if TYPE_CHECKING:
    from holdfast.compaction.compact_root import compact
    from holdfast.crypto.cipher import PayloadCipher
    from holdfast.crypto.keyring import Keyring
    from holdfast.errors import (
        Closed,
        Corrupt,
        Expired,
        Full,
        HoldfastError,
        Invalid,
        NotFound,
        OutcomeUnknown,
        Unavailable,
    )
    from holdfast.execution.journal.execution_id import derived_id as execution_id
    from holdfast.journal.queue.ticket import Ticket
    from holdfast.log.log import Log
    from holdfast.log.log_stats import Stats
    from holdfast.log.topics.reading import Reading
    from holdfast.log.topics.topic import Topic
    from holdfast.log.topics.typed_topic import TypedTopic
    from holdfast.log.upkeep.table_verbs import publish_tables, unpublish_tables
    from holdfast.model.record import Marks, Receipt, Record
    from holdfast.reader.settled_reading import SettledReading, read
    from holdfast.recovery.rebuild import rebuild
    from holdfast.recovery.restore import restore
    from holdfast.remote.connecting import connect
    from holdfast.settings import Settings
    from holdfast.sharing.opening import open_log as open

__version__ = "0.1.0.dev0"

_HOMES = {
    "Closed": "errors",
    "Corrupt": "errors",
    "Expired": "errors",
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
    "Receipt": "model.record",
    "Record": "model.record",
    "Settings": "settings",
    "SettledReading": "reader.settled_reading",
    "Stats": "log.log_stats",
    "Ticket": "journal.queue.ticket",
    "Topic": "log.topics.topic",
    "TypedTopic": "log.topics.typed_topic",
    "Unavailable": "errors",
    "compact": "compaction.compact_root",
    "connect": "remote.connecting",
    "execution_id": "execution.journal.execution_id:derived_id",
    "open": "sharing.opening:open_log",
    "publish_tables": "log.upkeep.table_verbs",
    "read": "reader.settled_reading",
    "rebuild": "recovery.rebuild",
    "restore": "recovery.restore",
    "unpublish_tables": "log.upkeep.table_verbs",
}

__all__ = [
    "Closed",
    "Corrupt",
    "Expired",
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
    "Receipt",
    "Record",
    "Settings",
    "SettledReading",
    "Stats",
    "Ticket",
    "Topic",
    "TypedTopic",
    "Unavailable",
    "compact",
    "connect",
    "execution_id",
    "open",
    "publish_tables",
    "read",
    "rebuild",
    "restore",
    "unpublish_tables",
]

loggers.own_all()
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
