"""A log: one directory, one owner, its topics. Composition, nothing else.

`open` takes the directory's lock, recovers the journal and starts its writer; `close` drains it and lets go.
A handle that is forgotten warns; a forked child's copy closes what it inherited and refuses everything.
"""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.directory import Directory
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.journal.journal import Journal
from holdfast.journal.stats import JournalStats
from holdfast.journal.topics import check_name
from holdfast.record import Marks
from holdfast.settings import Settings
from holdfast.topic import Topic

logger = logging.getLogger("holdfast")


class Stats(msgspec.Struct, frozen=True):
    """The log at one moment: one part per stage."""

    journal: JournalStats


def open_log(
    path: str | os.PathLike[str],
    *,
    store: str | None = None,
    settings: Settings | None = None,
    keyring: Keyring | None = None,
    cipher: PayloadCipher | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
) -> Log:
    """Open the log in a directory, creating it if it is not there.

    With a keyring (or a cipher of your own) everything that is written is sealed; that is decided when a
    log is created and cannot be left out later. One process owns a log; `read_only=True` looks at it from
    another one, or looks at what is intact in a damaged one.

    >>> import holdfast, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with holdfast.open(directory) as log:
    ...         log.topic("orders").append(b"first").offset
    0
    """
    if store is not None:
        raise Invalid("this version ships to no store", hint="leave store out; the log is durable on this machine")
    settings = Settings.load() if settings is None else settings
    keyring = _keyring(settings, keyring, cipher)
    return Log(Directory(Path(path).absolute()), settings, keyring, cipher, clock or SystemClock(), read_only)


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
        self._topics: dict[str, Topic] = {}
        self._lock = Lock()
        self._open = False
        opened = _look if read_only else _own
        self._journal = opened(directory, settings, keyring, cipher, clock)
        self._open = True
        _opened.add(self)

    @property
    def path(self) -> Path:
        """The log's directory."""
        return self._directory.path

    @property
    def id(self) -> str:
        """The log's identity, for ever."""
        return self._journal.row.log_id.hex()

    @property
    def problems(self) -> tuple[Corrupt, ...]:
        """Of a log opened with `read_only=True`: the damage that was found; an owner would have been refused."""
        return self._journal.problems

    def topic(self, name: str, *, partitions: int | None = None) -> Topic:
        """The topic of this name, created on first use with so many partitions (default 1)."""
        topic = self._topics.get(name)
        if topic is None:
            with self._lock:
                topic = self._topics[check_name(name)] = self._topic(name, partitions)
        if partitions is not None and partitions != topic.partitions:
            raise Invalid(
                f"topic {name!r} has {topic.partitions} partitions, not {partitions}",
                hint="the number of partitions is fixed when a topic is created",
            )
        return topic

    def _topic(self, name: str, partitions: int | None) -> Topic:
        journal = self._journal
        journal.refresh()
        if name not in journal.topics.partitions:
            if journal.read_only:
                raise NotFound(f"there is no topic {name!r}", hint="its owner creates it on first use")
            journal.create_topic(name, 1 if partitions is None else partitions)
        return Topic(name, journal.topics.partitions[name], journal, self._clock)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self._journal.refresh()
        return sorted(self._journal.topics.partitions)

    def marks(self, topic: str) -> tuple[Marks, ...]:
        """How far each partition of a topic got: appended, durable, sealed, shipped, settled."""
        self._journal.refresh()
        if topic not in self._journal.topics.partitions:
            raise NotFound(f"there is no topic {topic!r}", hint="log.topics() lists them")
        return self.topic(topic).marks()

    def rotate_key(self, keyring: Keyring) -> None:
        """Seal under this keyring's current key from now on; make it with `keyring.rotated('new-id')`."""
        self._journal.rotate(keyring)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is durable; raises if anything accepted was not stored."""
        self._journal.flush(timeout)

    def stats(self) -> Stats:
        """Counters and levels, as one frozen snapshot."""
        return Stats(journal=self._journal.stats())

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable and let go of the directory; closing again does nothing.

        Raises what kept accepted records from being stored, and Unavailable when the queue did not drain
        within `timeout` seconds (default: `journal.close_timeout_ms`); then it can be called again.
        """
        if not self._open:
            return
        patience = self.settings.journal.close_timeout_ms / 1000 if timeout is None else timeout
        try:
            self._journal.close(patience)
        finally:
            if self._journal.end is not None and self._journal.end.reason == "clean":
                self._let_go()

    def _let_go(self) -> None:
        self._open = False
        _opened.discard(self)
        self._directory.release()

    def _forget(self) -> None:
        """In a forked child."""
        self._open = False
        self._lock = Lock()
        self._journal.forget()
        self._directory.release()

    def __enter__(self) -> Self:
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
            warnings.warn(f"unclosed log {self._directory.path}", ResourceWarning, source=self, stacklevel=1)
            try:
                self.close()
            except HoldfastError as error:  # nobody is left to catch it
                logger.error("closing a forgotten log: %s", error.message, extra={"action": "close_failed"})

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r}, {'open' if self._open else 'closed'})"


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


_opened: weakref.WeakSet[Log] = weakref.WeakSet()


def _after_fork() -> None:
    for log in list(_opened):
        log._forget()
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)
