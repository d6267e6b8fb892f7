"""A log that is open in this process, put together: of one that it owns, and of one that it shares with its owner."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path

from holdfast.crypto.keyring import Keyring
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.journal import Journal
from holdfast.log.consumers.log_consumers import LogConsumers
from holdfast.log.consumers.position_store import PositionStore
from holdfast.log.lifetime import Lifetime
from holdfast.log.local_parts import LocalParts
from holdfast.log.log import Log
from holdfast.log.log_channels import LogChannels
from holdfast.log.log_context import LogContext
from holdfast.log.log_executions import LogExecutions
from holdfast.log.log_stats import Stats
from holdfast.log.ports import LocalMaintenancePort, LocalStorePort, LogParts, TablesPort
from holdfast.log.telemetry.log_telemetry import LogTelemetry
from holdfast.log.topic_catalog import Catalog
from holdfast.log.transactions.hidden_keys import HiddenKeys


def put_together(
    context: LogContext,
    maintenance: LocalMaintenancePort,
    store: LocalStorePort,
    tables: TablesPort,
    positions: PositionStore,
) -> Log:
    """A log of these parts: an owner's own, or a member's, which ask the owner."""
    telemetry = LogTelemetry(context, maintenance, store)
    topics = Catalog(context, maintenance, store.require_free, telemetry.begin)
    consumers = LogConsumers(context, positions, topics.own)  # not by way of the log: nothing that it holds may hold it
    topics.open_consumer = consumers.open
    hidden_keys = HiddenKeys(context.journal)
    channels, executions = LogChannels(context, topics), LogExecutions(context, topics, hidden_keys)
    lifetime = Lifetime(context, topics, channels, consumers, executions, maintenance, store, tables, telemetry)

    def stats() -> Stats:
        return Stats(
            context.journal.stats(),
            maintenance.stats(),
            store.stats(),
            tables.stats(),
            consumers.stats(),
            executions.stats(),
        )

    log = Log(
        LogParts(
            context.settings,
            _Identity(context),
            context.journal,
            topics,
            hidden_keys,
            consumers,
            channels,
            executions,
            lambda: maintenance,
            lambda: store,
            _Keys(context.journal),
            stats,
            lifetime,
            to_thread,
            LocalParts(
                context, topics, hidden_keys, consumers, executions, maintenance, store, tables, telemetry, lifetime
            ),
        )
    )
    telemetry.watch(log)
    return log


class _Identity:
    """What a handle of this process is to its log."""

    def __init__(self, context: LogContext) -> None:
        self.path: Path = context.directory.path
        self.place = str(self.path)
        self._journal = context.journal

    @property
    def url(self) -> str:
        """None."""
        raise Invalid("this log is open in this process: it has a path, and no address", hint="see log.path")

    @property
    def id(self) -> str:
        """The log's identity."""
        return self._journal.log_id.hex()

    @property
    def read_only(self) -> bool:
        """Whether this handle only reads."""
        return self._journal.read_only

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log at the moment."""
        news = self._journal.news
        return self._journal.owned if news is None else news.owned_here() is not None

    @property
    def problems(self) -> tuple[Corrupt, ...]:
        """The damage that was found when it was opened."""
        return self._journal.problems


class _Keys:
    """The keys of a log, changed by its owner."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def rotate(self, keyring: Keyring) -> None:
        """Encrypt under this keyring's current key from now on."""
        keyring = Keyring.checked(keyring)
        if self._journal.news is not None:
            self._journal.news.rotate_key(keyring)
        else:
            self._journal.rotate(keyring)
