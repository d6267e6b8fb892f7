"""A log: its face, the same at every distance. Each verb checks its arguments and hands them to a part.

A log that is open here is put together by `local_log`, of a directory that this process owns or shares; one at a server
by `remote/connecting`. What differs between them is in the parts (`ports`), and nowhere else.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

from holdfast.arguments import flag, patience, seconds, whole
from holdfast.errors import Invalid
from holdfast.log.async_verbs import AsyncVerbs
from holdfast.log.ports import TopicRequest
from holdfast.model.topic_name import check_name
from holdfast.model.value_codec import CodecName, codec_of
from holdfast.process_lifetime import holding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from uuid import UUID

    import pyarrow as pa

    from holdfast.channels.keeping.snapshot import ChannelData
    from holdfast.channels.keeping.storage import Migration
    from holdfast.channels.participant import Channels
    from holdfast.channels.wire.channel_keys import Keys
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.crypto.keyring import Keyring
    from holdfast.errors import Corrupt
    from holdfast.execution.journal.journal_loss import OnJournalLoss
    from holdfast.execution.steps.execution_block import ExecutionBlock
    from holdfast.execution.work.executions import Executions
    from holdfast.execution.work.worker import Worker
    from holdfast.log.consumers.consumer_status import ConsumerStatus
    from holdfast.log.log_stats import Stats
    from holdfast.log.ports import LogParts, MaintenancePort, StorePort
    from holdfast.log.producers.producer import Producer, ProducerStatus
    from holdfast.log.topics.topic import Topic
    from holdfast.log.topics.typed_topic import TypedTopic
    from holdfast.log.topics.value_topic import ValueTopic
    from holdfast.log.transactions.space import Space
    from holdfast.log.transactions.transaction import Transaction
    from holdfast.model.record import Durability, Marks
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.segments.retention.retention_report import RetentionReport
    from holdfast.shipping.events import Subscription
    from holdfast.shipping.refill.store_loss import StoreRebuildReport
    from holdfast.shipping.shipping_stats import Unshipped

_CHANNELS_TOPIC = "_channels"


class Log(AsyncVerbs):
    """An open log, here or at a server; use it as a context manager, or call `close()`."""

    def __init__(self, parts: LogParts) -> None:
        self.settings = parts.settings
        self._identity = parts.identity
        self._journal = parts.journal
        self._topics = parts.topics
        self._item_keys = parts.item_keys
        self._consumers = parts.consumers
        self._channels = parts.channels
        self._executions = parts.executions
        self._open_maintenance = parts.maintenance
        self._open_store = parts.store
        self._keys = parts.keys
        self._stats = parts.stats
        self._lifetime = parts.lifetime
        self._in_thread = parts.in_thread
        self._local = parts.local

    @property
    def path(self) -> Path:
        """The log's directory. Invalid over HTTP: it is the server's."""
        return self._identity.path

    @property
    def url(self) -> str:
        """The server's address. Invalid of a log that is open here: it has a path."""
        return self._identity.url

    @property
    def id(self) -> str:
        """The log's identity, forever."""
        return self._identity.id

    @property
    def read_only(self) -> bool:
        """Whether this handle only reads and follows; everything that would write is Invalid."""
        return self._identity.read_only

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log: of a shared one, whether it does so at the moment, for all of them."""
        return self._identity.is_owner

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed yet."""
        return self._lifetime.is_open

    @property
    def problems(self) -> tuple[Corrupt, ...]:
        """Of a log opened with `read_only=True`: the damage that was found; an owner would have been refused."""
        return self._identity.problems

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
    @overload
    def topic(
        self, name: str, *, codec: CodecName | Any, partitions: int | None = None, first_offset: int = 0
    ) -> ValueTopic: ...
    def topic(
        self,
        name: str,
        *,
        schema: pa.Schema | Literal["latest"] | None = None,
        codec: CodecName | Any = None,
        partitions: int | None = None,
        key: str | None = None,
        first_offset: int = 0,
    ) -> Topic | TypedTopic:
        """The topic of this name, created on first use with so many partitions (default 1).

        With a `schema` it is a typed topic: its rows have these columns. A schema that only adds nullable columns
        to the present one starts a new version; any other change is Invalid. `schema="latest"` takes the topic
        as it is. `key` names the column whose value says to which partition a row of a new typed topic goes; rows with
        one value stay together, in order. `first_offset` is where the partitions of a new topic begin, for logs that
        continue another one. The topic keeps the log open for as long as anybody has it.

        With a `codec` it takes values, and its records have them: "json", "text", "msgpack", or a type (a dataclass, a
        `msgspec.Struct`, a pydantic model, …), which is JSON, read as that type. The name is recorded with the topic;
        a type is not. Without a codec a new topic holds bytes, and one that is there is as it was made.
        """
        wanted = codec_of(codec)
        if wanted is not None and schema is not None:
            raise Invalid("a topic has a schema or a codec", hint="columns: schema=…; a value per record: codec=…")
        asked = TopicRequest(name, schema, partitions, key, first_offset, wanted)
        return self._topics.handle(self._topics.topic(asked), self)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._topics.names()

    def marks(self, topic: str) -> tuple[Marks, ...]:
        """How far each partition of a topic got: appended, durable, sealed, shipped, settled."""
        return self._topics.known(topic).marks()

    # -- transactions -------------------------------------------------------------------------------------

    def transaction(self, *, timeout: float | None = None, durability: Durability = "durable") -> Transaction:
        """Appends to any topics, changes of spaces and positions of consumers that commit together, or not at all.

            with log.transaction() as tx:           # or: async with
                order = tx.append("orders", b"two chairs", key="c-42")
                tx.put("stock", "chairs", b"12")
            print(order.receipt.offset)

        The block is left once all of it survives power loss, with `durability="shipped"` once its records survive the
        loss of this machine. If it raises, nothing is written. For `timeout` and what is raised see `Topic.append`.
        """
        from holdfast.log.transactions.transaction import Transaction

        made = Transaction(self._journal, self._topics, self._item_keys, timeout=timeout, durability=durability)
        return holding(made, self)

    def space(self, name: str) -> Space:
        """The space of this name: small state, kept beside the records, that can change with them in one commit."""
        from holdfast.log.transactions.space import Space

        return holding(Space(name, self._journal, self._item_keys), self)

    def spaces(self) -> list[str]:
        """The names of all spaces that were got with `space` and have had an item, sorted."""
        from holdfast.log.transactions.space import space_names

        return space_names(self._journal)

    # -- producers ----------------------------------------------------------------------------------------

    def producer(self, name: str, *, start: int = 1) -> Producer:
        """The producer of this name: `producer.append(topic, payload, sequence=1)` writes each number once.

        A producer that is not sure whether one was written sends it again, and gets the original receipt.
        """
        from holdfast.log.producers.producer import Producer

        return holding(Producer(name, self._journal, self._topics, start=start), self)

    def producers(self) -> list[ProducerStatus]:
        """How far all producers are, those that were used longest ago first; also with `read_only=True`."""
        from holdfast.log.producers.producer import producers_of

        return producers_of(self._journal)

    def forget_producer(self, name: str) -> None:
        """Let go of a producer, durably: one of that name begins anew. NotFound where none is known and idle."""
        from holdfast.log.producers.producer import forget

        forget(self._journal, name)

    # -- consumers ----------------------------------------------------------------------------------------

    def consumers(self, topic: str | None = None) -> list[ConsumerStatus]:
        """How far all consumers are, or those of one topic: what is committed, and how many records they lag behind.

        Also of a log that another process owns, with `read_only=True`. A consumer itself comes from its topic:
        `topic.consumer(name)`.
        """
        return self._consumers.status(None if topic is None else check_name(topic))

    def forget_consumer(self, name: str, topic: str) -> None:
        """Let go of a consumer's position in a topic, durably; NotFound where there is none, Invalid while it is used.

        Nothing waits for it any more, and one of that name begins anew.
        """
        self._consumers.forget_consumer(name, topic)

    # -- channels -----------------------------------------------------------------------------------------

    def channels(
        self,
        participant_id: str,
        *,
        topic: str | None = _CHANNELS_TOPIC,
        retrieval_hint: Callable[[str, str], bytes | None] | None = None,
        recover: Literal["fail", "empty"] = "fail",
        keys: Keys | None = None,
        migrations: Mapping[int, Migration] | None = None,
    ) -> Channels:
        """The reliable channels of one participant, kept in this log; closed with it, or by `close()`.

        What happens in them is appended to `topic` in the same commits; None leaves that out. The other arguments are
        those of `Channels`, whose settings are the log's own under `channels`. `migrations` maps a version of snapshots
        that this library does not know to a function that makes a known one of it.
        """
        return self._channels.open(participant_id, topic, retrieval_hint, recover, keys, migrations)

    def kept_channels(self) -> list[tuple[str, str]]:
        """Participant and id of every channel that is kept in this log."""
        return self._channels.kept()

    def kept_channel(
        self, participant_id: str, channel_id: str, *, migrations: Mapping[int, Migration] | None = None
    ) -> ChannelData:
        """What is kept of a channel; nothing, if it is not kept here."""
        return self._channels.load(participant_id, channel_id, migrations)

    # -- executions ---------------------------------------------------------------------------------------

    def execution(
        self,
        kind: str,
        *,
        id: UUID | str | None = None,
        always_replay: bool = False,
        on_journal_loss: OnJournalLoss = "fail",
    ) -> ExecutionBlock:
        """A durable execution: a program whose finished steps are never run again. Use `with` or `async with`.

            with log.execution("import", id=holdfast.execution_id("import", "2026-11-16")) as ctx:
                rows = ctx.step("download", download, "2026-11-16")
                ctx.step("charge", charge, rows, effect="exactly_once_guarded", on_ambiguous="fail")

        The same id goes on where the last run stopped: what it recorded is given back without running it. Without an
        id a new one is made. Raises ExecutionHeld while another process or thread runs it, ExecutionCanceled if it was
        canceled. `always_replay` also compares each step with its own record. `on_journal_loss` says what becomes of
        the program when its journal cannot be written: it fails, or goes on without.
        """
        room = self._executions.room_for("execution")
        from holdfast.execution.steps.execution_block import ExecutionBlock

        made = ExecutionBlock(room, kind, id=id, always_replay=always_replay, on_journal_loss=on_journal_loss)
        return holding(made, self)

    @property
    def executions(self) -> Executions:
        """The durable executions of this log: look at them, start some for workers, change them by hand.

            for execution in log.executions.list(status="failed"):
                print(execution.id, execution.kind, execution.note)

        Of a log that is open for reading only, too: its owner is asked to make the changes.
        """
        return holding(self._executions.facade(), self)

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
    ) -> Worker:
        """A worker that runs these functions for executions that are started (`log.executions.start`), by their kind.

            log.worker([import_orders]).run()       # until SIGTERM

        Each function gets a context, then what its execution was started with; coroutine functions run on the worker's
        loop, others in threads, `concurrency` at a time, at most `rate` begun per second. At its start it goes on with
        what earlier processes left. One that fails is tried again `retries` times, after `backoff` seconds, doubled
        each time; one that was begun `attempts_max` times without an end is given up. A worker that is stopped lets
        programs leave off before their next step, for `drain_timeout` seconds.
        """
        room = self._executions.room_for("worker")
        from holdfast.execution.work.worker import Worker

        return holding(
            Worker(
                room,
                functions,
                concurrency=concurrency,
                rate=rate,
                queues=queues,
                retries=retries,
                backoff=backoff,
                attempts_max=attempts_max,
                drain_timeout=drain_timeout,
            ),
            self,
        )

    # -- segments -----------------------------------------------------------------------------------------

    @property
    def _maintenance(self) -> MaintenancePort:
        return self._open_maintenance()

    def seal(self, topic: str | None = None, *, timeout: float | None = None) -> None:
        """Seal everything that is durable now, of one topic or of all; returns when it is in segments.

        Raises what kept it from being sealed, and Unavailable after `timeout` seconds (default: 60); the records
        are durable in any case.
        """
        self._maintenance.seal(_names(topic), patience(timeout))

    def retain(self, *, dry_run: bool = False) -> RetentionReport:
        """Apply retention now; with `dry_run` only say what would be removed."""
        return self._maintenance.retain(flag(dry_run, "dry_run"))

    def compact(
        self,
        topic: str | None = None,
        *,
        target_size: int | str = "128MiB",
        dry_run: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> CompactionReport:
        """Join small segment files of a log without a store into few of about `target_size`; all topics, or one.

        Records, offsets and marks stay as they are. Every file is compared with what it replaces before it counts;
        a reader sees the files from before or those from after. Replaced files go `shipping.delete_after_ms`
        later. A log that ships leaves its own files alone: `holdfast.compact` compacts its store. A log that was
        compacted here cannot be given a store any more.

            print(log.compact().files_after)
        """
        from holdfast.compaction.compact_root import target_bytes

        dry_run = flag(dry_run, "dry_run")
        return self._maintenance.compact(_names(topic), target_bytes(target_size), progress, dry_run=dry_run)

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
        """Give a topic a retention policy of its own, durably; limits hold per partition, None is no limit.

        The oldest segments are removed while the rest still holds `bytes_max` or `records_max`, and once they were
        sealed longer than `age_max` ago. This replaces what the settings say under `retention`.

        With `wait_for`, a segment stays until these consumers have committed past it, but never longer than
        `wait_limit` after it was sealed (a timedelta), or while the rest still holds so many bytes (an int).
        """
        from holdfast.log.upkeep.topic_retention import TopicRetention

        wanted = TopicRetention.asked_for(bytes_max, age_max, records_max, wait_for, wait_limit)
        self._maintenance.set_retention(check_name(topic), wanted)

    def reconcile(
        self, *, remote: bool = False, fix: bool = False, deep: bool = False, limit: int | None = None
    ) -> ReconcileReport:
        """Compare the manifest with the files, while the log is in use; returns what was found.

        `deep` reads and proves every file. `fix` removes what is provably garbage, moves what is not ours to
        `quarantine/`, and puts misplaced segments back. `limit` bounds the units of work (see
        `reconcile.unit_segments`): the report is then not `complete`, and the next call goes on where this one stopped.

        With `remote` the manifest is compared with the log's store instead, up to `settled`: segments, manifest
        objects, commit batches. `fix` then uploads what is missing or damaged there and proved here, and removes commit
        batches that are no longer needed.
        """
        limit = None if limit is None else whole(limit, "limit")
        fix, deep = flag(fix, "fix"), flag(deep, "deep")
        if flag(remote, "remote"):
            return self._store.reconcile(fix=fix, deep=deep, limit=limit)
        return self._maintenance.reconcile(fix=fix, deep=deep, limit=limit)

    @property
    def last_reconcile(self) -> ReconcileReport | None:
        """The report of the last complete pass over the log's own files; None before the first."""
        return self._maintenance.last_report()

    # -- shipping -----------------------------------------------------------------------------------------

    @property
    def _store(self) -> StorePort:
        return self._open_store()

    def ship(self, timeout: float | None = None) -> None:
        """Wait until all that is sealed now is settled on the store.

        Raises Unavailable after `timeout` seconds (default: 60), and what ended shipping, if it ended. To have all
        records there, not only sealed ones, call `seal()` first, or wait for `ticket.shipped()`.
        """
        self._store.ship(patience(timeout))

    def subscribe(self) -> Subscription:
        """What happens to commits from now on: `accepted` when they were sent, `shipped` when the store has them.

        Iterate it with `for` or `async for`. A slow consumer misses the oldest events and learns how many.
        """
        return self._store.subscribe()

    def unshipped(self) -> tuple[Unshipped, ...]:
        """Records that are durable here and not known to be on the store, by partition.

        If another process has taken the log over, they are stranded: they can be read here, and nowhere else.
        """
        return self._store.unshipped()

    def rebuild_store(self, *, accept_loss: bool = False, timeout: float | None = None) -> StoreRebuildReport:
        """Fill a store again that was emptied, created anew or replaced by an old copy, from what is here.

        Returns when it is known what is missing there and shipping it has begun; `ship()` waits for the rest. What
        retention removed here, so that only the store had it, cannot be brought back. Then this raises StoreForgot,
        which says what that is, and does nothing, unless `accept_loss` gives it up. Raises Unavailable after `timeout`
        seconds (default: 60), and Closed if another process has taken the log over.
        """
        return self._store.rebuild(accept_loss=flag(accept_loss, "accept_loss"), timeout=patience(timeout))

    # -- the whole ----------------------------------------------------------------------------------------

    def rotate_key(self, keyring: Keyring) -> None:
        """Encrypt under this keyring's current key from now on; make it with `keyring.rotated('new-id')`.

        All processes that share the log have the new key when this returns. Put the keyring where processes that are
        started later find it: this does not.
        """
        self._keys.rotate(keyring)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is durable; raises if anything accepted was not stored."""
        self._journal.flush(None if timeout is None else seconds(timeout))

    def stats(self) -> Stats:
        """Counters and levels, as one frozen snapshot."""
        return self._stats()

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, seal it, ship it, and let go of the directory; closing again does nothing.

        What cannot be sealed in time stays in the journal, just as durable, and is sealed after the next open. What
        cannot be shipped within `shipping.drain_timeout_ms` stays here, too; `unshipped()` says what that is.
        Raises what kept accepted records from being stored, and Unavailable when the queue did not drain
        within `timeout` seconds (default: `journal.close_timeout_ms`); then it can be called again.
        """
        self._lifetime.close(None if timeout is None else seconds(timeout))

    def __repr__(self) -> str:
        return f"Log({self._identity.place!r}, {'open' if self._lifetime.is_open else 'closed'})"


def _names(topic: str | None) -> tuple[str, ...] | None:
    return None if topic is None else (check_name(topic),)
