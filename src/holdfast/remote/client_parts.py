"""The parts of a log at a server: what it is, its verbs as questions, what it refuses, and how it ends.

Durability is the server's: what is acknowledged survives power loss there. Time-outs count here; a record whose answer
did not come in time is OutcomeUnknown, is still sent until the server answers, and is written once. What belongs to the
process that has the log (channels, workers, keys) is refused with where to do it (`refused_verbs`).

Verbs that ask the server block; on an event loop each has an `_async` twin, or is called by `asyncio.to_thread`, and
warns where it is not.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import process_lifetime
from holdfast.errors import HoldfastError, Invalid
from holdfast.remote.http.exchange import JSON, Exchange, Question, ServerAnswer
from holdfast.remote.refused_verbs import refuse, refused

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.compaction.compactor import Progress
    from holdfast.execution.execution_room import ExecutionRoom
    from holdfast.execution.work.executions import Executions
    from holdfast.log.log_stats import Stats
    from holdfast.log.ports import Names
    from holdfast.log.upkeep.topic_retention import TopicRetention
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.remote.remote_catalog import RemoteCatalog
    from holdfast.remote.server_info import ServerInfo
    from holdfast.remote.writing.client_journal import ClientJournal
    from holdfast.segments.retention.retention_report import RetentionReport
    from holdfast.settings import Settings
    from holdfast.shipping.shipping_stats import Unshipped

_SLACK_S = 10.0
"""What an answer may take beside the waiting that was asked for."""
_RETAIN_S = 60.0
_PASS_S = 3600.0
"""What a pass over all files may take."""
_US = 1_000_000

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


class ServerVerbs:
    """What the server does for a log behind its appends, and with its store; each verb is a question."""

    def __init__(self, exchange: Exchange, timeout: float, *, remote: bool = False) -> None:
        """`timeout` is for what takes no time; `remote` says that the store is meant where both sides have a verb."""
        self._exchange = exchange
        self._timeout = timeout
        self._remote = remote
        self.last_report = refused("last_reconcile")
        self.subscribe = refused("subscribe")
        self.rebuild = refused("rebuild_store")

    def seal(self, topics: Names, timeout: float) -> None:
        """Seal everything that is durable now, of one topic or of all."""
        self._post("seal", {"topic": _only(topics), "timeout": timeout}, timeout)

    def retain(self, dry_run: bool) -> RetentionReport:
        """Apply retention now, or say what would be removed."""
        from holdfast.segments.retention.retention_report import RetentionReport

        return self._post("retain", {"dry_run": dry_run}, _RETAIN_S).decoded(RetentionReport)

    def compact(self, topics: Names, target: int, progress: Progress | None, *, dry_run: bool) -> CompactionReport:
        """Join small segment files."""
        from holdfast.compaction.compaction_report import CompactionReport

        if progress is not None:
            raise Invalid("progress cannot be watched over HTTP", hint="leave progress=… out")
        asked = {"topic": _only(topics), "target_size": target, "dry_run": dry_run}
        return self._post("compact", asked, _PASS_S).decoded(CompactionReport)

    def set_retention(self, topic: str, wanted: TopicRetention) -> None:
        """Give a topic a retention policy of its own, durably."""
        policy, consumers, limit = wanted
        body = {
            "bytes_max": policy.bytes_max,
            "age_max_s": None if policy.age_max_us is None else policy.age_max_us / _US,
            "records_max": policy.records_max,
            "wait_for": consumers,
            "wait_limit_s": None if limit.age_max_us is None else limit.age_max_us / _US,
            "wait_limit_bytes": limit.bytes_max,
        }
        content = msgspec.json.encode({name: value for name, value in body.items() if value is not None})
        place = ("v1", "topics", topic, "retention")
        self._exchange.ask(Question("PUT", place, body=content, headers={"Content-Type": JSON}), self._timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the files, or with the store."""
        from holdfast.reconcile.reconcile_report import ReconcileReport

        asked = {"remote": self._remote, "fix": fix, "deep": deep, "limit": limit}
        return self._post("reconcile", asked, _PASS_S).decoded(ReconcileReport)

    def wait_for_answer(self) -> None:
        """The server has waited for its store."""

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled on the store."""
        self._post("ship", {"timeout": timeout}, timeout)

    def unshipped(self) -> tuple[Unshipped, ...]:
        """Records that are durable at the server and not known to be on the store, by partition."""
        from holdfast.shipping.shipping_stats import Unshipped

        answer = self._exchange.ask(Question("GET", ("v1", "unshipped")), self._timeout)
        return answer.decoded(dict[str, tuple[Unshipped, ...]]).get("unshipped", ())

    def stats(self) -> Stats:
        """Counters and levels of the server's log, as one frozen snapshot."""
        from holdfast.log.log_stats import Stats

        return self._exchange.ask(Question("GET", ("v1", "stats")), self._timeout).decoded(Stats)

    def _post(self, verb: str, body: Mapping[str, Any], wait: float) -> ServerAnswer:
        question = Question(
            "POST", ("v1", verb), body=msgspec.json.encode(body), headers={"Content-Type": JSON}, again=False
        )
        return self._exchange.ask(question, wait + _SLACK_S)


def _only(topics: Names) -> str | None:
    """The topic that is meant; None for all."""
    return None if topics is None else topics[0]


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
