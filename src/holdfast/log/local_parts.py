"""The parts of a log that is open in this process, for those who host it: the owner of a shared log, a server, tools.

This is the one way past the log's face. Its callers know the journal's verbs and keep their rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import proxy

from holdfast.errors import Invalid
from holdfast.log.log import Log

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.log.consumers.log_consumers import LogConsumers
    from holdfast.log.lifetime import Lifetime
    from holdfast.log.log_context import LogContext
    from holdfast.log.log_executions import LogExecutions
    from holdfast.log.ports import LocalMaintenancePort, LocalStorePort, TablesPort
    from holdfast.log.telemetry.log_telemetry import LogTelemetry
    from holdfast.log.topic_catalog import Catalog
    from holdfast.log.transactions.hidden_keys import HiddenKeys


class LocalParts(NamedTuple):
    """What a log in this process is made of."""

    context: LogContext
    topics: Catalog
    hidden_keys: HiddenKeys
    consumers: LogConsumers
    executions: LogExecutions
    maintenance: LocalMaintenancePort
    store: LocalStorePort
    tables: TablesPort
    telemetry: LogTelemetry
    lifetime: Lifetime

    @property
    def journal(self) -> Journal:
        """Its journal."""
        return self.context.journal

    def beside(self) -> LocalParts:
        """The same for hosts that may outlive the log: it still ends when its users have forgotten it."""
        return self._replace(lifetime=proxy(self.lifetime))


def parts_of(log: object) -> LocalParts:
    """The parts of a log; Invalid where it is at a server."""
    local = log._local if isinstance(log, Log) else None
    if local is None:
        raise Invalid("this log is not open in this process", hint="open it here: holdfast.open(path)")
    return local


def become(log: Log, other: Log) -> None:
    """In a forked child: be a log that was opened there; topics that were got from this one become that one's."""
    parts_of(other).topics.take_over(parts_of(log).topics)
    log.__dict__ = other.__dict__
