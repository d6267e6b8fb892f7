"""A log: one directory, one owner, its topics. Composition, nothing else.

`open` takes the directory's lock, recovers the journal and starts its writer; `close` drains it and lets go.
A handle that is forgotten warns; a forked child's copy closes what it inherited and refuses everything.
"""

from __future__ import annotations

import logging
import os
import warnings
from asyncio import to_thread
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import msgspec

from holdfast import process_lifetime
from holdfast.arguments import flag, path_of, seconds, store_address, text, whole
from holdfast.clock import Clock, SystemClock, check_clock
from holdfast.crypto.cipher import PayloadCipher, check_cipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.journal_stats import JournalStats
from holdfast.journal.state.partition import Partition
from holdfast.log import store_binding
from holdfast.log.maintenance import Maintenance
from holdfast.log.topic import Topic
from holdfast.log.topic_partitions import Partitions, no_topic
from holdfast.log.typed_topic import TypedTopic
from holdfast.log_directory import Directory
from holdfast.model.record import Marks
from holdfast.model.topic_name import check_name
from holdfast.reconcile.local_pass import ReconcileReport
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.retention.retention import RetentionReport
from holdfast.segments.retention.retention_plan import Policy
from holdfast.segments.segment_stats import SegmentStats
from holdfast.settings import Settings
from holdfast.shipping.shipping_stats import ShippingStats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from holdfast.channels.keeping.snapshot import ChannelData
    from holdfast.channels.keeping.storage import Migration
    from holdfast.channels.participant import Channels
    from holdfast.channels.wire.channel_keys import Keys
    from holdfast.reconcile.store_pass import StoreReconciler
    from holdfast.shipping.events import Subscription
    from holdfast.shipping.refill.store_loss import RebuildReport
    from holdfast.shipping.shipper import Shipper, Unshipped

logger = logging.getLogger("holdfast")

_CLAIM_S = 10.0


class Stats(msgspec.Struct, frozen=True):
    """The log at one moment: one part per stage."""

    journal: JournalStats
    segments: SegmentStats
    shipping: ShippingStats | None = None
    """None where no store is configured."""


def open_log(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    keyring: Keyring | str | None = None,
    cipher: PayloadCipher | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
) -> Log:
    """Open the log in a directory, creating it if it is not there.

    With a keyring (or a cipher of your own) everything that is written is encrypted; that is decided when a
    log is created and cannot be left out later. One process owns a log; `read_only=True` looks at it from
    another one, or looks at what is intact in a damaged one. It takes no lock and changes nothing in the directory,
    which may be on a read-only mount or belong to another user; what would write is Invalid.

    With a `store` (`s3://bucket/prefix`, `file:///directory` …; also `store.url` in the settings) everything is shipped
    there in order, beside the appends; the log opens and goes on while the store is away.

    >>> import holdfast, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with holdfast.open(directory) as log:
    ...         log.topic("orders").append(b"first").offset
    0
    """
    place = path_of(path)
    settings = Settings.given(settings)
    if store is not None:
        address = msgspec.structs.replace(settings.store, url=store_address(store))
        settings = msgspec.structs.replace(settings, store=address)
    keyring = _keyring(settings, Keyring.given(keyring), cipher if keyring is not None else check_cipher(cipher))
    return Log(
        Directory(place), settings, keyring, cipher, check_clock(clock) or SystemClock(), flag(read_only, "read_only")
    )  # fmt: skip


def _keyring(settings: Settings, keyring: Keyring | None, cipher: PayloadCipher | None) -> Keyring | None:
    if keyring is None and cipher is None and settings.crypto.keyring:
        return Keyring.from_reference(settings.crypto.keyring)
    if settings.crypto.encrypt and keyring is None and cipher is None:
        raise Invalid(
            "crypto.encrypt is set, but there is no key",
            hint="give keyring=…, or set crypto.keyring to 'env:NAME' or 'file:PATH'",
        )
    return keyring


class Log:
    """An open log; use it as a context manager, or call `close()`."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        clock: Clock,
        read_only: bool,
    ) -> None:
        self.settings = settings
        self._directory = directory
        self._clock = clock
        self._topics: dict[str, Topic | TypedTopic] = {}
        self._lock = Lock()
        self._open = False
        self._store_reconciler: StoreReconciler | None = None
        self._channels: list[Channels] = []
        self._has_waited = True
        """For the store's first word; a coroutine that opens a log does that in `async with`, off its loop."""
        self._forgotten_records = 0
        """Records that were queued when the process began to end."""
        opened = _look if read_only else _own
        self._journal = opened(directory, settings, keyring, cipher, clock)
        self._manifest = Manifest(self._journal, directory.segments)
        try:
            self._shipper = store_binding.shipper_for(self._journal, self._manifest, settings, clock)
            self._maintenance = Maintenance(self._journal, self._manifest, directory, settings, clock)
            if self._shipper is not None:
                self._start_shipping(self._shipper)
        except BaseException:
            with suppress(HoldfastError):  # what kept it from opening matters more
                self._journal.close(settings.journal.close_timeout_ms / 1000)
            directory.release()
            raise
        self._open = True
        process_lifetime.keep(self)

    def _start_shipping(self, shipper: Shipper) -> None:
        try:
            self._has_waited = store_binding.start(shipper)
        except BaseException:
            shipper.close(0)
            self._maintenance.close(0)
            raise

    @property
    def path(self) -> Path:
        """The log's directory."""
        return self._directory.path

    @property
    def id(self) -> str:
        """The log's identity, for ever."""
        return self._journal.row.log_id.hex()

    @property
    def read_only(self) -> bool:
        """Whether this handle only looks: it reads and follows, and everything that would write is Invalid."""
        return self._journal.read_only

    @property
    def problems(self) -> tuple[Corrupt, ...]:
        """Of a log opened with `read_only=True`: the damage that was found; an owner would have been refused."""
        return self._journal.problems

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
        """The topic of this name, created on first use with so many partitions (default 1).

        With a `schema` it is a typed topic: its rows have these columns. A schema that only adds nullable columns
        to the present one starts a new version; any other change is Invalid. `schema="latest"` takes the topic
        as it is. `key` names the column whose value says to which partition a row of a new typed topic goes; rows with
        one value stay together, in order. `first_offset` is where the partitions of a new topic begin, for logs that
        continue another one.
        """
        topic = self._topics.get(name if isinstance(name, str) else check_name(name))
        if topic is None:
            with self._lock:
                topic = self._topics.get(name)
                if topic is None:
                    topic = self._topics[check_name(name)] = self._topic(name, schema, partitions, first_offset, key)
        if partitions is not None and partitions != topic.partitions:
            raise Invalid(
                f"topic {name!r} has {topic.partitions} partitions, not {partitions}",
                hint="the number of partitions is fixed when a topic is created",
            )
        self._check_kind(topic, schema)
        if key is not None:
            _check_key(topic, key)
        return topic

    def _topic(
        self,
        name: str,
        schema: pa.Schema | Literal["latest"] | None,
        partitions: int | None,
        first_offset: int,
        key: str | None,
    ) -> Topic | TypedTopic:
        journal = self._journal
        journal.refresh()
        if name not in journal.topics.partitions:
            if journal.read_only or schema == "latest":
                raise no_topic(name, journal.topics.partitions)
            count = 1 if partitions is None else whole(partitions, "partitions")
            self._create(name, schema, count, whole(first_offset, "first_offset"), key)
        parts = Partitions(name, journal.topics.partitions[name], journal, self._manifest, self._clock)
        typed = name in journal.topics.schemas
        return TypedTopic(name, parts, self._clock) if typed else Topic(name, parts, self._clock)

    def _create(
        self, name: str, schema: pa.Schema | None, partitions: int, first_offset: int, key: str | None
    ) -> None:  # fmt: skip
        if schema is None:
            if key is not None:
                raise _keyed_per_record()
            self._journal.create_topic(name, partitions, first_offset)
            return
        from holdfast.segments.typed.key_column import keyed

        declared = keyed(schema, key)
        self._journal.create_topic(name, partitions, first_offset, declared.fingerprint, declared.serialize())

    def _check_kind(self, topic: Topic | TypedTopic, schema: pa.Schema | Literal["latest"] | None) -> None:
        """A typed topic is asked for with a schema, and only that; a new version of it begins here."""
        if isinstance(topic, Topic):
            if schema is not None:
                raise Invalid(f"topic {topic.name!r} holds raw records", hint="ask for it without schema")
        elif schema is None:
            raise Invalid(f"topic {topic.name!r} is typed", hint="ask for it with schema=… or schema='latest'")
        elif schema != "latest":
            self._evolve(topic.name, schema)

    def _evolve(self, name: str, schema: pa.Schema) -> None:
        from holdfast.model.schema import declare, evolve
        from holdfast.segments.manifest.schema_versions import versions

        wanted = declare(schema)
        with self._lock:
            known = versions(self._journal, name)
            if any(version.fingerprint == wanted.fingerprint for version in known):
                return
            newer = evolve(known[-1], wanted)
            if newer is None:
                return
            if self._journal.read_only:
                raise Invalid("this log is open for reading only", hint="its owner starts new versions of a schema")
            self._journal.add_schema(name, len(known) + 1, newer.fingerprint, newer.serialize())
        self._maintenance.seal_soon(self._journal.topics.partitions[name])

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self._journal.refresh()
        return sorted(self._journal.topics.partitions)

    def marks(self, topic: str) -> tuple[Marks, ...]:
        """How far each partition of a topic got: appended, durable, sealed, shipped, settled."""
        self._journal.refresh()
        if check_name(topic) not in self._journal.topics.partitions:
            raise no_topic(topic, self._journal.topics.partitions)
        parts = self._journal.topics.partitions[topic]
        return Partitions(topic, parts, self._journal, self._manifest, self._clock).marks()

    # -- channels -----------------------------------------------------------------------------------------

    def channels(
        self,
        participant_id: str,
        *,
        topic: str | None = "_channels",
        retrieval_hint: Callable[[str, str], bytes | None] | None = None,
        recover: Literal["fail", "empty"] = "fail",
        keys: Keys | None = None,
        migrations: Mapping[int, Migration] | None = None,
    ) -> Channels:
        """The reliable channels of one participant, kept in this log; closed with it, or by `close()`.

        What happens in them is appended to `topic` in the same commits; None leaves that out. The other arguments are
        those of `Channels`, whose settings are the log's own under `channels`. `migrations` turn snapshots of unknown
        versions into ones of a known version, by version.
        """
        from holdfast.channels.keeping.log_backend import LogPersistence
        from holdfast.channels.participant import Channels

        if self._journal.read_only:
            raise Invalid("this log is open for reading only", hint="kept_channels() and kept_channel() look at them")
        partition = read = None
        if topic is not None:
            read = self.topic(topic, partitions=1).read
            partition = self._journal.topics.partitions[topic][0]
        settings = self.settings.channels
        most = min(settings.content_bytes_max, self.settings.journal.payload_bytes_max)
        with self._lock:
            self._channels = [one for one in self._channels if not one.closed]
            if any(one.participant_id == participant_id for one in self._channels):
                raise Invalid(
                    f"this participant's channels are open already participant={participant_id!r}",
                    hint="use those, or close() them first",
                )
            opened = Channels(
                participant_id,
                LogPersistence(
                    self._journal, participant_id, partition, migrations, settings.ack_timeout_ms, read=read
                ),
                settings=msgspec.structs.replace(settings, content_bytes_max=most),
                clock=self._clock,
                retrieval_hint=retrieval_hint,
                recover=recover,
                keys=keys,
            )
            self._channels.append(opened)
        return opened

    def kept_channels(self) -> list[tuple[str, str]]:
        """Participant and id of every channel that is kept in this log."""
        from holdfast.channels.keeping.log_backend import kept_channels

        return kept_channels(self._journal)

    def kept_channel(
        self, participant_id: str, channel_id: str, *, migrations: Mapping[int, Migration] | None = None
    ) -> ChannelData:
        """What is kept of a channel; nothing, if it is not kept here."""
        from holdfast.channels.keeping.log_backend import LogPersistence

        who, which = text(participant_id, "participant_id", "alice"), text(channel_id, "channel_id", "room")
        return LogPersistence(self._journal, who, migrations=migrations).load_channel(which)

    def _close_channels(self) -> None:
        for channels in self._channels:
            try:
                channels.close()
            except HoldfastError as error:  # what was acknowledged is kept; the journal tells what it could not store
                logger.error("closing channels: %s", error.message, extra={"action": "channels_close_failed"})

    # -- segments -----------------------------------------------------------------------------------------

    def seal(self, topic: str | None = None, *, timeout: float | None = None) -> None:
        """Seal everything that is durable now, of one topic or of all; returns when it lies in segments.

        Raises what kept it from being sealed, and Unavailable after `timeout` seconds (default: 60); the records
        are durable in any case.
        """
        self._maintenance.seal(self._parts(topic), 60.0 if timeout is None else seconds(timeout))

    def retain(self, *, dry_run: bool = False) -> RetentionReport:
        """Apply retention now; with `dry_run` only say what would go."""
        return self._maintenance.retain(flag(dry_run, "dry_run"))

    def set_retention(
        self, topic: str, *, bytes_max: int | None = None, age_max: timedelta | None = None,
        records_max: int | None = None,
    ) -> None:  # fmt: skip
        """Give a topic a retention policy of its own, durably; limits hold per partition, None is no limit.

        The oldest segments go while the rest holds `bytes_max` or `records_max`, and when they were sealed longer
        than `age_max` ago. It replaces what the settings say under `retention`.
        """
        self._parts(check_name(topic))
        if age_max is not None and not isinstance(age_max, timedelta):
            raise Invalid(
                f"age_max is a timedelta, not {type(age_max).__name__}", hint="for instance timedelta(days=7)"
            )
        policy = Policy(
            None if bytes_max is None else whole(bytes_max, "bytes_max"),
            None if age_max is None else age_max // timedelta(microseconds=1),
            None if records_max is None else whole(records_max, "records_max"),
        )
        self._journal.set_policy(topic, policy.bytes_max or 0, policy.age_max_us or 0, policy.records_max or 0)

    def reconcile(
        self, *, remote: bool = False, fix: bool = False, deep: bool = False, limit: int | None = None
    ) -> ReconcileReport:
        """Compare the manifest with the files, while everything goes on; returns what was found.

        `deep` reads and proves every file. `fix` removes what is provably garbage, moves what is not ours to
        `quarantine/`, and puts misplaced segments back. `limit` bounds the units of work (see
        `reconcile.unit_segments`): the report is then not `complete`, and the next call goes on where this one stopped.

        With `remote` the manifest is compared with the log's store instead, up to `settled`: segments, manifest
        objects, commit batches. `fix` then uploads what is missing or damaged there and proved here, and removes commit
        batches that say nothing any more.
        """
        limit = None if limit is None else whole(limit, "limit")
        fix, deep = flag(fix, "fix"), flag(deep, "deep")
        if flag(remote, "remote"):
            return self._reconciles_store().run(fix=fix, deep=deep, limit=limit)
        return self._maintenance.reconcile(fix=fix, deep=deep, limit=limit)

    def _reconciles_store(self) -> StoreReconciler:
        from holdfast.reconcile.store_pass import StoreReconciler

        shipper, settings = self._shipper, self.settings
        epoch = None if shipper is None else lambda: shipper.claim(_CLAIM_S)
        with self._lock:
            if self._store_reconciler is None:
                self._store_reconciler = StoreReconciler(
                    self._journal, self._manifest, settings.store, settings.reconcile, self._clock, epoch,
                    self.rebuild_store,
                )  # fmt: skip
            return self._store_reconciler

    @property
    def last_reconcile(self) -> ReconcileReport | None:
        """The report of the last complete pass over the log's own files, by whomever; None before the first."""
        return self._maintenance.last_reconcile

    def _parts(self, topic: str | None) -> list[Partition]:
        self._journal.refresh()
        known = self._journal.topics.partitions
        if topic is None:
            return [part for parts in known.values() for part in parts]
        if check_name(topic) not in known:
            raise no_topic(topic, known)
        return list(known[topic])

    # -- shipping -----------------------------------------------------------------------------------------

    def ship(self, timeout: float | None = None) -> None:
        """Wait until all that is sealed now is settled on the store.

        Raises Unavailable after `timeout` seconds (default: 60), and what ended shipping, if it ended. To have all
        records there, not only sealed ones, call `seal()` before, or wait for `ticket.shipped()`.
        """
        self._ships().ship(60.0 if timeout is None else seconds(timeout))

    def subscribe(self) -> Subscription:
        """What happens to commits from now on: `accepted` when they were sent, `shipped` when the store has them.

        Iterate it with `for` or `async for`. A slow consumer misses the oldest events and is told how many.
        """
        return self._ships().subscribe()

    def unshipped(self) -> tuple[Unshipped, ...]:
        """Records that are durable here and not known to be on the store, by partition.

        Of a log that another process has taken over these are the stranded ones: readable here, and only here.
        """
        return () if self._shipper is None else self._shipper.unshipped()

    def rebuild_store(self, *, accept_loss: bool = False, timeout: float | None = None) -> RebuildReport:
        """Bring back a store that was emptied, made anew or put back from an old copy, from what is here.

        Returns when it is known what is missing there, and shipping of it has begun; `ship()` waits for the rest. What
        retention removed here, and only the store had, cannot be brought back: then it is StoreForgot, which says what
        that is, and nothing is done, unless `accept_loss` gives it up. Raises Unavailable after `timeout` seconds
        (default: 60), and Closed if another process has taken the log over.
        """
        patience = 60.0 if timeout is None else seconds(timeout)
        return self._ships().rebuild(accept_loss=flag(accept_loss, "accept_loss"), timeout=patience)

    def _ships(self) -> Shipper:
        if self._journal.read_only:
            raise Invalid("this log is open for reading only", hint="its owner ships; open it without read_only=True")
        if self._shipper is None:
            raise Invalid("this log ships to no store", hint="open it with store='s3://bucket/prefix' or 'file:///…'")
        return self._shipper

    # -- the whole ----------------------------------------------------------------------------------------

    def rotate_key(self, keyring: Keyring) -> None:
        """Encrypt under this keyring's current key from now on; make it with `keyring.rotated('new-id')`."""
        self._journal.rotate(Keyring.checked(keyring))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is durable; raises if anything accepted was not stored."""
        self._journal.flush(None if timeout is None else seconds(timeout))

    def stats(self) -> Stats:
        """Counters and levels, as one frozen snapshot."""
        shipping = None if self._shipper is None else self._shipper.stats()
        return Stats(journal=self._journal.stats(), segments=self._maintenance.stats(), shipping=shipping)

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, seal it, ship it, and let go of the directory; closing again does nothing.

        What cannot be sealed in time stays in the journal, just as durable, and is sealed after the next open. What
        cannot be shipped within `shipping.drain_timeout_ms` stays here, too; `unshipped()` says what that is.
        Raises what kept accepted records from being stored, and Unavailable when the queue did not drain
        within `timeout` seconds (default: `journal.close_timeout_ms`); then it can be called again.
        """
        if not self._open:
            return
        patience = self.settings.journal.close_timeout_ms / 1000 if timeout is None else seconds(timeout)
        deadline = self._clock.monotonic() + patience
        self._close_channels()
        try:
            self._maintenance.close(patience)
            if self._shipper is not None:
                self._shipper.close(self.settings.shipping.drain_timeout_ms / 1000)
            # A seal that hangs may have used all the time; the writer has nothing left to do and ends at once.
            self._journal.close(max(patience / 10, deadline - self._clock.monotonic()))
        finally:
            if self._journal.end is not None and self._journal.end.reason == "clean":
                self._let_go()

    def _let_go(self) -> None:
        self._open = False
        if self._store_reconciler is not None:
            self._store_reconciler.close()
        process_lifetime.drop(self)
        self._directory.release()

    def _settle_at_exit(self) -> None:
        """By `lifetimes`: make durable, seal and ship what is there, while threads can still be started."""
        self._forgotten_records = self._journal.queue.depth()[0]
        self._maintenance.settle(self.settings.journal.close_timeout_ms / 1000)
        if self._shipper is not None:
            self._shipper.close(self.settings.shipping.drain_timeout_ms / 1000)

    def _close_at_exit(self) -> None:
        """By `lifetimes`: nobody has closed it, and nobody will."""
        queued = max(self._forgotten_records, self._journal.queue.depth()[0])
        if queued:
            logger.warning(
                "the process ends with an open log: %d records that were still queued are made durable now;"
                " close it (with holdfast.open(…) as log) path=%s", queued, self.path,
                extra={"action": "open_at_exit", "records": queued},
            )  # fmt: skip
        self._close_forgotten()

    def _forget(self) -> None:
        """By `lifetimes`, in a forked child."""
        self._open = False
        self._lock = Lock()
        for channels in self._channels:
            channels.forget()
        if self._shipper is not None:
            self._shipper.forget()
        self._maintenance.forget()
        self._journal.forget()
        self._directory.release()

    # -- asyncio ------------------------------------------------------------------------------------------

    async def seal_async(self, topic: str | None = None, *, timeout: float | None = None) -> None:
        """What `seal` does, for coroutines."""
        await to_thread(self.seal, topic, timeout=timeout)

    async def ship_async(self, timeout: float | None = None) -> None:
        """What `ship` does, for coroutines."""
        await to_thread(self.ship, timeout)

    async def flush_async(self, timeout: float | None = None) -> None:
        """What `flush` does, for coroutines."""
        await to_thread(self.flush, timeout)

    async def close_async(self, timeout: float | None = None) -> None:
        """What `close` does, for coroutines."""
        await to_thread(self.close, timeout)

    async def __aenter__(self) -> Self:
        return await to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_thread(self.__exit__, kind, error, trace)

    def __enter__(self) -> Self:
        if self._shipper is not None and not self._has_waited:
            self._has_waited = True
            try:
                store_binding.first_word(self._shipper)
            except HoldfastError:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError:
            if error is None:  # what the block raised matters more
                raise

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._close_forgotten()

    def _close_forgotten(self) -> None:
        try:
            warnings.warn(f"unclosed log {self._directory.path}", ResourceWarning, source=self, stacklevel=1)
        finally:
            try:
                self.close()
            except HoldfastError as error:  # nobody is left to catch it
                logger.error("closing a forgotten log: %s", error.message, extra={"action": "close_failed"})

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r}, {'open' if self._open else 'closed'})"


def _check_key(topic: Topic | TypedTopic, key: str) -> None:
    if isinstance(topic, Topic):
        raise _keyed_per_record()
    if topic.key != key:
        has = "no key column" if topic.key is None else f"the key column {topic.key!r}"
        raise Invalid(
            f"topic {topic.name!r} has {has}, not {key!r}", hint="the key column is fixed when a topic is created"
        )


def _keyed_per_record() -> Invalid:
    return Invalid("a raw topic has no key column", hint="give each record its key: topic.append(payload, key=…)")


def _own(
    directory: Directory, settings: Settings, keyring: Keyring | None, cipher: PayloadCipher | None, clock: Clock
) -> Journal:
    directory.own()
    try:
        log_id = directory.log_id()
        directory.create_database()
        journal = Journal.open_owned(directory.database, log_id, settings.journal, keyring, cipher, clock)
        if log_id is None:
            try:
                directory.declare(journal.row.log_id)
            except BaseException:
                journal.close(settings.journal.close_timeout_ms / 1000)
                raise
    except BaseException:
        directory.release()
        raise
    return journal


def _look(
    directory: Directory, settings: Settings, keyring: Keyring | None, cipher: PayloadCipher | None, clock: Clock
) -> Journal:
    log_id = directory.require_log()
    return Journal.open_read_only(directory.database, log_id, settings.journal, keyring, cipher, clock)
