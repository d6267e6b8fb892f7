"""Connections to the embedded database, set up so that a commit means what it says; and what its errors mean.

Hazards, in the order in which they bite:

* The SQLite inside most Pythons is old enough to corrupt WAL databases; apsw brings its own.
* `synchronous=FULL` is what makes a commit survive power loss. Pragmas are read back, and a database that
  did not take them is not used.
* SQLite's automatic checkpoint ignores a failed fsync and would *try it again later*, when the kernel has
  already dropped the pages and answers success. So it is off; the writer checkpoints explicitly, and an
  error there is an error.
* A connection that is left to the garbage collector is closed at a bad moment; every way out closes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import apsw

from holdfast import disk
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.model.control_rows import DiskFailed

APPLICATION_ID = 0x48464C31
PAGE_BYTES = 4096
_BUSY_TIMEOUT_MS = 1000
_WRITER_PRAGMAS = (
    f"page_size={PAGE_BYTES}",
    "journal_mode=WAL",
    "synchronous=FULL",
    "fullfsync=ON",
    "checkpoint_fullfsync=ON",
    "wal_autocheckpoint=0",
    "cache_size=-16000",
    "temp_store=MEMORY",
)


def open_writer(path: Path) -> apsw.Connection:
    """The connection that writes."""
    return _open(path, apsw.SQLITE_OPEN_READWRITE, _make_durable)


def open_reader(path: Path, options: str = "") -> apsw.Connection:
    """A connection that only reads; with options of SQLite's own, as they stand in an address."""
    return _open(path, apsw.SQLITE_OPEN_READONLY, lambda connection, path: None, options)


def _open(
    path: Path, flags: int, prepare: Callable[[apsw.Connection, Path], None], options: str = ""
) -> apsw.Connection:
    name = str(path)
    if options:
        name, flags = f"file:{quote(os.fsencode(path))}?{options}", flags | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(name, flags=flags, statementcachesize=64)
    except apsw.Error as error:
        raise meaning(error, path) from error
    try:
        connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        _refuse_foreign(connection, path)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")
        prepare(connection, path)
    except apsw.Error as error:
        close_quietly(connection)
        raise meaning(error, path) from error
    except BaseException:
        close_quietly(connection)
        raise
    return connection


def _make_durable(connection: apsw.Connection, path: Path) -> None:
    for pragma in _WRITER_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    taken = [connection.pragma(name) for name in ("journal_mode", "synchronous", "wal_autocheckpoint")]
    if taken != ["wal", 2, 0]:
        raise Invalid(
            f"the database does not keep its write-ahead log durable path={path}",
            hint="put the log on a local file system; network file systems cannot hold it",
        )


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    """Before anything is changed: this is our database, or an empty file."""
    application = connection.pragma("application_id")
    if application != APPLICATION_ID and connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise Invalid(
            f"this is no database of this holdfast path={path}",
            hint="choose another directory; a log that holdfast wrote before its first release cannot be opened",
        )


def close_quietly(connection: apsw.Connection) -> None:
    """Close after an error, leaving the write-ahead log to recovery; the first error is the one to tell."""
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
    except apsw.Error:
        pass


def meaning(error: apsw.Error, path: Path) -> HoldfastError | DiskFailed:
    """What an error of SQLite means to us."""
    match error:
        case apsw.FullError():
            found: HoldfastError | DiskFailed = Unavailable(
                f"the disk is full; nothing was written path={path}", hint=disk.FULL_HINT
            )
        case apsw.BusyError() | apsw.LockedError():
            message = f"another program has locked the database path={path}"
            found = Unavailable(message, hint="let it finish, then try again")
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            found = Unavailable(f"cannot open the database path={path}", hint="check that it exists and may be read")
        case apsw.CorruptError() | apsw.NotADBError():
            found = Corrupt("the database file is damaged", path=str(path))
        case apsw.SQLError():  # our statements are right for this schema: then the schema is not
            found = Corrupt("the database's schema is damaged", path=str(path))
        case apsw.ConstraintError():
            hint = "this is a defect in holdfast or a damaged index"
            found = Invalid(f"the database refused a row: {error}", hint=hint)
        case _:
            found = DiskFailed(f"{type(error).__name__}: {error}")
    return found
