"""Access to the database for readers: nothing in its directory is changed, or need be writable.

SQLite reads a write-ahead log through the shared-memory file beside it, and makes one where there is none. A reader
makes nothing, so there are three ways, chosen by what is there:

    shared   a write-ahead log and its shared memory: both are read as they are, beside the owner if one is there
    frozen   no write-ahead log, or an empty one: the database is all there is, and is read as if it could not change
    copied   a write-ahead log without shared memory that may be read: both are copied to a private directory

Frozen and copied databases are read without locks. So the files are compared before and after: if they were replaced,
the way is chosen again, and what was read of a database that changed meanwhile does not count.

A copy is read through SQLite's own file layer: closing any other descriptor of a database drops the locks that this
process may have on it. It is removed when the last reader goes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

import apsw

from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.sqlite.connection import meaning, open_reader
from holdfast.model.control_rows import DiskFailed

_COPY_BYTES_MAX = 16 * 2**30
_FREE_BYTES_LEFT = 64 * 2**20
"""What a copy leaves free on the disk that takes it."""
_CHUNK_BYTES = 2**20
_TRIES = 3
_WAL_HEADER_BYTES = 32


class ReadOnlyAccess:
    """One way to a database, as its files are now."""

    def __init__(self, path: Path, *, beside: bool = False) -> None:
        """`beside`: in a process that may own the log itself, now or later, which must use the files in one way only.

        SQLite keeps one view of the shared memory in a process: if that only reads, an owner there could not write.
        """
        self.path = path
        self.beside = beside
        self._copy: Path | None = None
        self._choose()

    def _choose(self) -> None:
        self._seen = _Files.of(self.path)
        if self.beside:
            self._options = ""
            return
        self._options = "" if self._seen.rollback else "readonly_shm=1"
        if self._seen.is_frozen:
            self._options = "immutable=1"
        elif self._seen.wal and not self._seen.shm:
            self._take_copy()

    def connect(self) -> apsw.Connection:
        """A connection that only reads."""
        for _ in range(_TRIES):
            try:
                return open_reader(self._copy or self.path, self._options)
            except (HoldfastError, DiskFailed) as error:
                self._choose_again(error)
        return open_reader(self._copy or self.path, self._options)

    def _choose_again(self, error: HoldfastError | DiskFailed) -> None:
        """After a failure: what lies there now, if the owner came or left just then, or a copy of it."""
        is_closed = isinstance(error.__cause__, (apsw.CantOpenError, apsw.ReadOnlyError))
        if self._copy is None and _Files.of(self.path).kind != self._seen.kind:
            self._choose()
        elif is_closed and not self.beside and not self._is_lockless and os.access(self.path, os.R_OK):
            self._take_copy()  # there is shared memory, but it cannot be used from here
        else:
            raise self._explained(error) from error.__cause__

    def _explained(self, error: HoldfastError | DiskFailed) -> HoldfastError | DiskFailed:
        if not isinstance(error.__cause__, apsw.CantOpenError) or os.access(self.path, os.R_OK):
            return error
        return Unavailable(
            f"this user may not read the database path={self.path}",
            hint="read it as the user that owns it, or let others read durable.db, durable.db-wal and durable.db-shm",
        )

    def has_moved(self) -> bool:
        """Whether the files are others than they were, so that this is not the way any more."""
        return self._is_lockless and _Files.of(self.path) != self._seen

    def is_torn(self) -> bool:
        """Whether the database itself has changed since: what was read of it meanwhile does not count."""
        return self._is_lockless and self._copy is None and _Files.of(self.path).database != self._seen.database

    def close(self) -> None:
        """Remove the copy, if there is one; after the last connection."""
        if self._copy is not None:
            self._remove()

    @property
    def _is_lockless(self) -> bool:
        return not self.beside and (self._copy is not None or self._seen.is_frozen)

    # -- copying ------------------------------------------------------------------------------------------

    def _take_copy(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self._remove = weakref.finalize(self, _remove, folder, os.getpid())
        try:
            found = _copied(self.path, folder / self.path.name)
        except BaseException:
            self._remove()
            raise
        if found is None:  # its owner has just folded it in
            self._remove()
            self._choose()
        else:
            self._seen, self._copy, self._options = found, folder / self.path.name, ""


def _remove(folder: Path, pid: int) -> None:
    if pid == os.getpid():  # a forked child's exit must not take it from its parent
        shutil.rmtree(folder, ignore_errors=True)


class _Files(NamedTuple):
    """What lies there: enough of each file to tell whether it has changed."""

    database: tuple[int, int, int] | None
    wal: tuple[int, int, int] | None
    """None where there is none, or an empty one."""
    rollback: tuple[int, int, int] | None
    shm: bool

    @classmethod
    def of(cls, path: Path) -> _Files:
        wal, shm, rollback = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
        return cls(_stamp(path), _stamp(wal), _stamp(rollback), shm.exists())

    @property
    def kind(self) -> tuple[bool, ...]:
        """Which of the files are there."""
        return tuple(map(bool, self))

    @property
    def is_frozen(self) -> bool:
        """Whether the database is all there is."""
        return self.wal is None and self.rollback is None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None


def _copied(path: Path, target: Path) -> _Files | None:
    """Copy a database with its write-ahead log; returns what was copied; None if that log is gone."""
    wal, target_wal = (file.with_name(file.name + "-wal") for file in (path, target))
    for _ in range(_TRIES):
        before = _Files.of(path)
        _check_room(before, path, target.parent)
        try:
            head = _first_bytes(wal)
            _copy_database(path, target)
            shutil.copyfile(wal, target_wal)
            same_log = head == _first_bytes(wal) == _first_bytes(target_wal)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(
                f"cannot copy the database to read it path={path} to={target.parent}: {error.strerror}",
                hint="its write-ahead log can only be read in a copy here; let it be read, and TMPDIR have room",
            ) from error
        # A write-ahead log that only grew is whole as far as it goes: SQLite ignores what was not committed.
        if _Files.of(path).database == before.database and same_log:
            return before
    raise Unavailable(
        f"the database changes faster than it can be copied path={path}",
        hint="read it where its shared memory (durable.db-shm) may be read, too",
    )


def _check_room(files: _Files, path: Path, folder: Path) -> None:
    size = sum(stamp[1] for stamp in (files.database, files.wal) if stamp is not None)
    free = shutil.disk_usage(folder).free
    if size > _COPY_BYTES_MAX or size + _FREE_BYTES_LEFT > free:
        raise Unavailable(
            f"no room for a copy of the database path={path} bytes={size} free={free} to={folder}",
            hint="its write-ahead log can only be read in a copy here: set TMPDIR to a disk with room, or open the log"
            " once where its directory is writable",
        )


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:  # a write-ahead log has no locks that closing it could drop
        return file.read(_WAL_HEADER_BYTES)


def _copy_database(path: Path, target: Path) -> None:
    try:
        source = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    except apsw.Error as error:
        raise meaning(error, path) from error
    try:
        size = source.xFileSize()
        with target.open("wb") as file:
            for at in range(0, size, _CHUNK_BYTES):
                file.write(source.xRead(min(_CHUNK_BYTES, size - at), at))
    except apsw.Error as error:
        raise meaning(error, path) from error
    finally:
        source.xClose()
