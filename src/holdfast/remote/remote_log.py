"""A log over HTTP, with the face of one that is open here: the same verbs, results, tickets and errors.

Durability is the server's: what is acknowledged survives power loss there. Time-outs count here; a record whose answer
did not come in time is OutcomeUnknown, is still sent until the server answers, and is written once. What belongs to the
process that has the log (channels, workers, keys) is refused with where to do it (`refused_verbs`).

Verbs that ask the server block; on an event loop each has an `_async` twin, or is called by `asyncio.to_thread`, and
warns where it is not.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, cast, overload

import msgspec

from holdfast import process_lifetime
from holdfast.arguments import flag, seconds, whole
from holdfast.clock import Clock
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.log.consumers.consumer_status import ConsumerStatus
from holdfast.log.log import Log, patience
from holdfast.log.log_stats import Stats
from holdfast.log.producers.producer import Producer, ProducerStatus, forget, producers_of
from holdfast.log.transactions.space import Space, space_names
from holdfast.log.transactions.transaction import Transaction
from holdfast.model.record import Durability, Marks
from holdfast.model.topic_name import check_name
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.remote.consuming.opening_consumers import ConsumerOpening
from holdfast.remote.http.exchange import JSON, Answer, Exchange, Question
from holdfast.remote.own_thread import awaited
from holdfast.remote.refused_verbs import refuse
from holdfast.remote.remote_catalog import RemoteCatalog
from holdfast.remote.remote_executions import RemoteExecutions
from holdfast.remote.server_info import ServerInfo
from holdfast.remote.shipped_waiting import shipping_state_of
from holdfast.remote.writing.remote_journal import RemoteJournal
from holdfast.remote.writing.remote_spaces import PlainKeys
from holdfast.segments.retention.retention import RetentionReport
from holdfast.settings import Settings

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.execution.journal.journal_loss import OnJournalLoss
    from holdfast.log.topics.topic import Topic
    from holdfast.log.topics.typed_topic import TypedTopic
    from holdfast.shipping.shipping_stats import Unshipped

_SLACK_S = 10.0
"""What an answer may take beside the waiting that was asked for."""

Result = TypeVar("Result")

logger = logging.getLogger("holdfast.remote")


class RemoteLog(Log):
    """A log at a server; get it with `holdfast.connect(url)`, use it as a context manager, or call `close()`."""

    def __init__(self, exchange: Exchange, info: ServerInfo, settings: Settings, clock: Clock) -> None:
        journal_settings = info.journal_settings(settings.journal)
        self.settings = msgspec.structs.replace(settings, journal=journal_settings)
        self._exchange = exchange
        self._info = info
        state, signal = shipping_state_of(ships=info.ships, timeout=info.shipped_timeout_ms / 1000)
        self._remote = RemoteJournal(exchange, journal_settings, clock, state, bytes.fromhex(info.log))
        self._catalog = RemoteCatalog(exchange, self._remote)
        self._catalog.open_consumer = ConsumerOpening(exchange, self._remote).open
        signal.listen = self._catalog.listen
        self._plain_keys = cast("Any", PlainKeys())
        self._timeout = journal_settings.ack_timeout_ms / 1000
        self._ending = _Ending(self._remote, self._catalog, str(exchange.address), self.settings)

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """Not over HTTP: the directory is the server's."""
        refuse("path")

    @property
    def url(self) -> str:
        """The server's address."""
        return str(self._exchange.address)

    @property
    def id(self) -> str:
        """The log's identity, for ever."""
        return self._info.log

    @property
    def read_only(self) -> bool:
        """Whether the server only reads this log."""
        return self._info.read_only

    @property
    def is_owner(self) -> bool:
        """Never: the server's process does, or one that it shares the log with."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._ending.is_open

    @property
    def problems(self) -> tuple[Corrupt, ...]:
        """None that a client would know of: the server opened the log."""
        return ()

    @overload
    def topic(self, name: str, *, partitions: int | None = None, first_offset: int = 0) -> Topic: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        schema: pa.Schema | Literal["latest"],
        partitions: int | None = None,
        key: str | None = None,
        first_offset: int = 0,
    ) -> TypedTopic: ...
    def topic(
        self,
        name: str,
        *,
        schema: pa.Schema | Literal["latest"] | None = None,
        partitions: int | None = None,
        key: str | None = None,
        first_offset: int = 0,
    ) -> Topic | TypedTopic:
        """The topic of this name, created on first use with so many partitions (default 1), if the token allows that.

        The arguments are those of `Log.topic`. A handle is kept: asking again asks nobody.
        """
        return self._catalog.handle(self._catalog.topic(name, schema, partitions, key, first_offset), self)

    def topics(self) -> list[str]:
        """The names of all topics that the token allows to see, sorted."""
        return self._catalog.names()

    def marks(self, topic: str) -> tuple[Marks, ...]:
        """How far each partition of a topic got: appended, durable, sealed, shipped, settled."""
        return self._catalog.known(topic).marks()

    # -- transactions -------------------------------------------------------------------------------------

    def transaction(self, *, timeout: float | None = None, durability: Durability = "durable") -> Transaction:
        """Appends to any topics, changes of spaces and positions of consumers that commit together, or not at all.

        Gathered here, sent as one request when the block ends; see `Log.transaction`.
        """
        journal = cast("Any", self._remote)
        made = Transaction(journal, self._catalog, self._plain_keys, timeout=timeout, durability=durability)
        return process_lifetime.holding(made, self)

    def space(self, name: str) -> Space:
        """The space of this name: small state, kept beside the records, that can change with them in one commit."""
        return process_lifetime.holding(Space(name, cast("Any", self._remote), self._plain_keys), self)

    def spaces(self) -> list[str]:
        """The names of all spaces that were got with `space` and have had an item, sorted."""
        return space_names(cast("Any", self._remote))

    # -- producers ----------------------------------------------------------------------------------------

    def producer(self, name: str, *, start: int = 1) -> Producer:
        """The producer of this name: `producer.append(topic, payload, sequence=1)` writes each number once."""
        return process_lifetime.holding(Producer(name, cast("Any", self._remote), self._catalog, start=start), self)

    def producers(self) -> list[ProducerStatus]:
        """How far all producers are, those that were used longest ago first."""
        return producers_of(cast("Any", self._remote))

    def forget_producer(self, name: str) -> None:
        """Let go of a producer, durably: one of that name begins anew. NotFound where none is known and idle."""
        forget(cast("Any", self._remote), name)

    # -- consumers ----------------------------------------------------------------------------------------

    def consumers(self, topic: str | None = None) -> list[ConsumerStatus]:
        """How far all consumers are, or those of one topic: what is committed, and how many records they lag behind."""
        query = () if topic is None else (("topic", check_name(topic)),)
        answer = self._exchange.ask(Question("GET", ("v1", "consumers"), query), self._timeout)
        return answer.decoded(_Consumers).consumers

    def forget_consumer(self, name: str, topic: str) -> None:
        """Let go of a consumer's position in a topic, durably; NotFound where there is none, Invalid while it is used.

        Nothing waits for it any more, and one of that name begins anew.
        """
        place = ("v1", "topics", check_name(topic), "consumers", name)
        self._exchange.ask(Question("DELETE", place, again=False), self._timeout)

    # -- executions ---------------------------------------------------------------------------------------

    @property
    def executions(self) -> RemoteExecutions:
        """The durable executions of this log: look at them, start some for workers, signal them, settle promises."""
        return process_lifetime.holding(RemoteExecutions(self._exchange, self._timeout), self)

    # -- segments and shipping ----------------------------------------------------------------------------

    def seal(self, topic: str | None = None, *, timeout: float | None = None) -> None:
        """Seal everything that is durable now, of one topic or of all; returns when it is in segments."""
        wait = patience(timeout)
        self._post("seal", {"topic": None if topic is None else check_name(topic), "timeout": wait}, wait)

    def retain(self, *, dry_run: bool = False) -> RetentionReport:
        """Apply retention now; with `dry_run` only say what would be removed."""
        return self._post("retain", {"dry_run": flag(dry_run, "dry_run")}, patience(None)).decoded(RetentionReport)

    def compact(
        self,
        topic: str | None = None,
        *,
        target_size: int | str = "128MiB",
        dry_run: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> CompactionReport:
        """Join small segment files of a log without a store into few of about `target_size`; all topics, or one."""
        from holdfast.compaction.compaction_report import CompactionReport

        if progress is not None:
            raise Invalid("progress cannot be watched over HTTP", hint="leave progress=… out")
        asked = {"topic": topic, "target_size": target_size, "dry_run": flag(dry_run, "dry_run")}
        return self._post("compact", asked, 3600).decoded(CompactionReport)

    def set_retention(
        self,
        topic: str,
        *,
        bytes_max: int | None = None,
        age_max: timedelta | None = None,
        records_max: int | None = None,
        wait_for: Iterable[str] = (),
        wait_limit: timedelta | int | None = None,
    ) -> None:
        """Give a topic a retention policy of its own, durably; limits hold per partition, None is no limit."""
        limit_s = wait_limit.total_seconds() if isinstance(wait_limit, timedelta) else None
        body = {
            "bytes_max": bytes_max,
            "age_max_s": None if age_max is None else age_max.total_seconds(),
            "records_max": records_max,
            "wait_for": list(wait_for),
            "wait_limit_s": limit_s,
            "wait_limit_bytes": wait_limit if isinstance(wait_limit, int) else None,
        }
        content = msgspec.json.encode({name: value for name, value in body.items() if value is not None})
        place = ("v1", "topics", check_name(topic), "retention")
        self._exchange.ask(Question("PUT", place, body=content, headers={"Content-Type": JSON}), self._timeout)

    def reconcile(
        self, *, remote: bool = False, fix: bool = False, deep: bool = False, limit: int | None = None
    ) -> ReconcileReport:
        """Compare the manifest with the files, or (`remote`) with the store; returns what was found."""
        asked = {
            "remote": flag(remote, "remote"),
            "fix": flag(fix, "fix"),
            "deep": flag(deep, "deep"),
            "limit": None if limit is None else whole(limit, "limit"),
        }
        return self._post("reconcile", asked, 3600).decoded(ReconcileReport)

    def ship(self, timeout: float | None = None) -> None:
        """Wait until all that is sealed now is settled on the store."""
        wait = patience(timeout)
        self._post("ship", {"timeout": wait}, wait)

    def unshipped(self) -> tuple[Unshipped, ...]:
        """Records that are durable at the server and not known to be on the store, by partition."""
        from holdfast.shipping.shipping_stats import Unshipped

        answer = self._exchange.ask(Question("GET", ("v1", "unshipped")), self._timeout)
        return answer.decoded(dict[str, tuple[Unshipped, ...]]).get("unshipped", ())

    # -- the whole ----------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued here so far is durable; raises if anything accepted was not stored."""
        self._remote.flush(None if timeout is None else seconds(timeout))

    def stats(self) -> Stats:
        """Counters and levels of the server's log, as one frozen snapshot."""
        return self._exchange.ask(Question("GET", ("v1", "stats")), self._timeout).decoded(Stats)

    def close(self, timeout: float | None = None) -> None:
        """Wait until the server has everything queued here, and let go of it; closing again does nothing.

        What it does not take within `timeout` seconds (default: `journal.close_timeout_ms`) is given up, and raises
        Unavailable: a server that is away for good keeps nobody from ending. Tickets tell what became of each record.
        """
        self._ending.close(None if timeout is None else seconds(timeout))

    def _post(self, verb: str, body: Mapping[str, Any], wait: float) -> Answer:
        question = Question(
            "POST", ("v1", verb), body=msgspec.json.encode(body), headers={"Content-Type": JSON}, again=False
        )
        return self._exchange.ask(question, wait + _SLACK_S)

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await awaited(call)

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        return f"RemoteLog({self.url!r}, {'open' if self._ending.is_open else 'closed'})"

    # -- what needs the log itself ------------------------------------------------------------------------

    def channels(
        self,
        participant_id: str,
        *,
        topic: str | None = "_channels",
        retrieval_hint: Callable[[str, str], bytes | None] | None = None,
        recover: Literal["fail", "empty"] = "fail",
        keys: Any = None,
        migrations: Mapping[int, Any] | None = None,
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("channels")

    def kept_channels(self) -> NoReturn:
        """Not over HTTP."""
        refuse("kept_channels")

    def kept_channel(
        self, participant_id: str, channel_id: str, *, migrations: Mapping[int, Any] | None = None
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("kept_channel")

    def execution(
        self,
        kind: str,
        *,
        id: UUID | str | None = None,
        always_replay: bool = False,
        on_journal_loss: OnJournalLoss = "fail",
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("execution")

    def worker(
        self,
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]],
        *,
        concurrency: int = 8,
        rate: float | None = None,
        queues: Iterable[str] = ("default",),
        retries: int = 0,
        backoff: float = 1.0,
        attempts_max: int = 100,
        drain_timeout: float = 20.0,
    ) -> NoReturn:
        """Not over HTTP."""
        refuse("worker")

    @property
    def last_reconcile(self) -> NoReturn:
        """Not over HTTP."""
        refuse("last_reconcile")

    def subscribe(self) -> NoReturn:
        """Not over HTTP."""
        refuse("subscribe")

    def rebuild_store(self, *, accept_loss: bool = False, timeout: float | None = None) -> NoReturn:
        """Not over HTTP."""
        refuse("rebuild_store")

    def rotate_key(self, keyring: Keyring) -> NoReturn:
        """Not over HTTP."""
        refuse("rotate_key")


class _Ending:
    """How a client ends: closed, forgotten, forked, or with its process. Only the log holds it."""

    def __init__(self, journal: RemoteJournal, catalog: RemoteCatalog, url: str, settings: Settings) -> None:
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


class _Consumers(msgspec.Struct):
    consumers: list[ConsumerStatus]
