"""The parts of a log at a server: what it is, how its verbs are called, what it refuses, and how it ends.

Durability is the server's: what is acknowledged survives power loss there. Time-outs count here; a record whose answer
did not come in time is OutcomeUnknown, is still sent until the server answers, and is written once. What belongs to the
process that has the log (channels, workers, keys) is refused with where to do it (`refused_verbs`).

Verbs that ask the server block; on an event loop each has an `_async` twin, or is called by `asyncio.to_thread`, and
warns where it is not.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast import process_lifetime
from holdfast.errors import HoldfastError
from holdfast.remote.http.exchange import Exchange, Question
from holdfast.remote.http.server_link import ServerLink
from holdfast.remote.refused_verbs import RefusedVerbs, refuse

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.execution.execution_room import ExecutionRoom
    from holdfast.execution.work.executions import Executions
    from holdfast.log.log_stats import Stats
    from holdfast.log.ports import MaintenancePort, StorePort
    from holdfast.remote.remote_catalog import RemoteCatalog
    from holdfast.remote.server_info import ServerInfo
    from holdfast.remote.writing.client_journal import ClientJournal
    from holdfast.settings import Settings

Result = TypeVar("Result")

_SLACK_S = 10.0
"""What an answer may take beside the waiting that was asked for."""
_PASS_S = 3600.0
"""What a pass over all files may take."""

logger = logging.getLogger("holdfast.remote")


class ServerIdentity:
    """Which log a server has."""

    is_owner = False
    """Never: the server's process does, or one that it shares the log with."""
    problems = ()
    """None that a client would know of: the server opened the log."""

    def __init__(self, exchange: Exchange, info: ServerInfo) -> None:
        self.url = self.place = str(exchange.address)
        self.id = info.log
        self.read_only = info.read_only

    @property
    def path(self) -> Path:
        """The directory is the server's."""
        refuse("path")


class ServerCalls:
    """Asks the server for verbs of the log, each once: where the answer is lost, nobody knows what became of it."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    def ask(self, name: str, request: msgspec.Struct, answer: type[Result], timeout: float = _PASS_S) -> Result:
        """What the server answers; it has so many seconds for what it does."""
        return self._link.call(name, request, answer, timeout + _SLACK_S)


def maintenance_of(calls: ServerCalls, timeout: float) -> MaintenancePort:
    """What keeps the server's log in order: the verbs of a member; `timeout` is for what takes no time."""
    from holdfast.owner.segment_verbs import MaintenanceProxy

    return MaintenanceProxy(calls, timeout)


def store_of(calls: ServerCalls, timeout: float, refused: RefusedVerbs, ships: bool) -> StorePort:
    """The store of the server's log."""
    from holdfast.owner.store_verbs import StoreProxy

    return StoreProxy(calls, timeout, refused, ships=ships)


def stats_of(exchange: Exchange, timeout: float) -> Stats:
    """Counters and levels of the server's log, as one frozen snapshot."""
    from holdfast.log.log_stats import Stats

    return exchange.ask(Question("GET", ("v1", "stats")), timeout).decoded(Stats)


class ServerExecutions:
    """The executions of a server's log."""

    def __init__(self, exchange: Exchange, timeout: float) -> None:
        self._exchange = exchange
        self._timeout = timeout

    def room_for(self, verb: str) -> ExecutionRoom:
        """None run here."""
        refuse(verb)

    def facade(self) -> Executions:
        """What users see of executions."""
        from holdfast.remote.remote_executions import executions_at

        return executions_at(self._exchange, self._timeout)


class ClientLifetime:
    """How a client's connection ends: closed, forgotten, forked, or with its process. Only the log holds it."""

    def __init__(self, journal: ClientJournal, catalog: RemoteCatalog, url: str, settings: Settings) -> None:
        self._journal = journal
        self._catalog = catalog
        self._url = url
        self._wait_seconds = settings.journal.close_timeout_ms / 1000
        self.is_open = True
        process_lifetime.keep(self)

    def enter(self) -> None:
        """The server has waited for its store."""

    def close(self, timeout: float | None = None) -> None:
        """End it; what was accepted is sent first. A second call does nothing."""
        if self.is_open:
            self.is_open = False
            process_lifetime.drop(self)
            self._journal.close(self._wait_seconds if timeout is None else timeout)

    def settle_at_exit(self) -> None:
        """The main thread has ended: send what is there, while threads can still be started."""
        try:
            self._journal.flush(self._wait_seconds)
        except HoldfastError as error:
            logger.error("sending at exit: %s", error.message, extra={"action": "open_at_exit"})

    def close_at_exit(self) -> None:
        """Nobody has closed it, and nobody will."""
        self._close_forgotten()

    def before_fork(self) -> None:
        """A child closes what it inherited; nothing must be let go before."""

    def after_fork(self) -> None:
        """The parent goes on."""

    def forget(self) -> None:
        """In a forked child: never touch what is the parent's."""
        self.is_open = False
        self._catalog.forget()
        self._journal.forget()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self._close_forgotten()

    def _close_forgotten(self) -> None:
        try:
            warnings.warn(f"unclosed connection to a log {self._url}", ResourceWarning, source=self, stacklevel=1)
        finally:
            try:
                self.close()
            except HoldfastError as error:  # nobody is left to catch it
                logger.error("closing a forgotten connection: %s", error.message, extra={"action": "close_failed"})
