"""Opening a log: check what the caller gave, recover the journal, and put the parts together.

An owner takes the directory's lock first. A reader takes no lock and changes nothing. If a part does not start, those
before it are stopped again and the directory is released: a log opens as a whole, or not at all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.arguments import flag, path_of, store_address
from holdfast.clock import Clock, SystemClock, check_clock
from holdfast.crypto.cipher import PayloadCipher, check_cipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.journal_context import JournalContext
from holdfast.journal.open_journal import open_owned, open_read_only
from holdfast.log.consumers.position_store import PositionStore
from holdfast.log.local_log import put_together
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.log_context import LogContext
from holdfast.log.upkeep.maintenance import Maintenance
from holdfast.log.upkeep.published_tables import PublishedTables
from holdfast.log.upkeep.store_binding import StoreBinding
from holdfast.log_directory import Directory
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.settings import Settings
from holdfast.telemetry import spans

logger = logging.getLogger("holdfast")


class OpenArguments(NamedTuple):
    """What a caller gave, checked."""

    directory: Directory
    settings: Settings
    keyring: Keyring | None
    cipher: PayloadCipher | None
    clock: Clock

    @property
    def journal(self) -> JournalContext:
        """What the journal needs of it."""
        return JournalContext(self.settings.journal, self.clock, self.keyring, self.cipher)


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
    """Open a log alone; what users call, with all that can be said about it, is `holdfast.open`."""
    reads = flag(read_only, "read_only")
    return open_asked(asked_for(path, store, settings, keyring, cipher, clock, read_only=reads), read_only=reads)


def asked_for(
    path: str | os.PathLike[str],
    store: str | os.PathLike[str] | None,
    settings: Settings | Mapping[str, Any] | None,
    keyring: Keyring | str | None,
    cipher: PayloadCipher | None,
    clock: Clock | None,
    *,
    read_only: bool,
) -> OpenArguments:
    """What a caller gave, checked; raises Invalid before anything is touched."""
    place = Path(os.path.realpath(path_of(path)))  # a link may be pointed elsewhere; the log stays where it is
    named = keyring.variable if isinstance(keyring, Keyring) else keyring
    if isinstance(given := settings, Settings) and not read_only:  # who only reads writes nothing in the clear
        given.check_is_complete(has_keys=(keyring or cipher) is not None, has_store=store is not None)
    settings = Settings.given(settings, named)
    if store is not None:
        address = msgspec.structs.replace(settings.store, url=store_address(store))
        settings = msgspec.structs.replace(settings, store=address)
    Directory(place).refuse_within(settings.store.directory)
    keyring = _keyring(settings, Keyring.given(keyring), cipher if keyring is not None else check_cipher(cipher))
    return OpenArguments(Directory(place), settings, keyring, cipher, check_clock(clock) or SystemClock())


def open_asked(arguments: OpenArguments, *, read_only: bool) -> Log:
    """Own the log, or only read it."""
    if read_only:
        return compose(arguments, _read(arguments))
    arguments.directory.own()
    return open_locked(arguments, arguments.directory)


def open_locked(arguments: OpenArguments, directory: Directory) -> Log:
    """Own the log in a directory whose lock is ours; where that fails, the lock is released."""
    arguments = arguments._replace(directory=directory)
    return compose(arguments, _own(arguments))


def _keyring(settings: Settings, keyring: Keyring | None, cipher: PayloadCipher | None) -> Keyring | None:
    if keyring is None and cipher is None and settings.crypto.keyring:
        return Keyring.from_reference(settings.crypto.keyring)
    if settings.crypto.encrypt and keyring is None and cipher is None:
        raise Invalid(
            "crypto.encrypt is set, but there is no key",
            hint="give keyring=…, or set crypto.keyring to 'env:NAME' or 'file:PATH'",
        )
    return keyring


def _own(arguments: OpenArguments) -> Journal:
    directory, settings = arguments.directory, arguments.settings
    try:
        log_id = directory.log_id()
        directory.create_database()
        with spans.span(spans.RECOVER, {}) as span:
            journal = open_owned(directory.database, log_id, arguments.journal)
            span.set_attribute("holdfast.topics", len(journal.topics))
            span.set_attribute("holdfast.epoch", journal.epoch)
        if log_id is None:
            try:
                directory.declare(journal.log_id)
            except BaseException:
                journal.close(settings.journal.close_timeout_ms / 1000)
                raise
    except BaseException:
        directory.release()
        raise
    return journal


def _read(arguments: OpenArguments) -> Journal:
    log_id = arguments.directory.require_log()
    return open_read_only(arguments.directory.database, log_id, arguments.journal)


def compose(arguments: OpenArguments, journal: Journal) -> Log:
    """Put the parts of a log together around its journal; where one does not start, all are ended again."""
    directory, settings = arguments.directory, arguments.settings
    manifest = Manifest(journal, directory.segments, key_index_bytes_max=settings.segments.key_index_bytes_max)
    context = LogContext(directory, settings, arguments.clock, journal, manifest)
    try:
        store = StoreBinding(context)  # first: where another store is bound, the log's own directory is none
        tables = PublishedTables(context)
        positions = PositionStore(context)
        maintenance = Maintenance(context, tables.before_removal, positions)
        try:
            store.start()
        except BaseException:
            maintenance.close(0)
            raise
        tables.start()
    except BaseException:
        with suppress(HoldfastError):  # what kept it from opening matters more
            journal.close(settings.journal.close_timeout_ms / 1000)
        directory.release()
        raise
    log = put_together(context, maintenance, store, tables, positions)
    maintenance.create_topic = parts_of(log).topics.own
    logger.info(
        "opened a log path=%s epoch=%d topics=%d",
        directory.path,
        journal.epoch,
        len(journal.topics),
        extra={"action": "opened", "path": str(directory.path), "log": log.id, "read_only": log.read_only},
    )
    return log
