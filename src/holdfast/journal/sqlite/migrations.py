"""The database's schema, as numbered SQL files, each applied once, in one transaction of its own.

`PRAGMA user_version` says how far a database is and changes inside the same transaction as the schema, so a
crash leaves the old version or the new one. A database from a newer holdfast is refused.
"""

from __future__ import annotations

import logging
from importlib.resources import files

import apsw

from holdfast.errors import Corrupt, Invalid, other_version
from holdfast.journal.sqlite.connection import APPLICATION_ID
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend

logger = logging.getLogger("holdfast.journal")


def migrations() -> list[tuple[int, str]]:
    """All migrations, as (version, SQL), in order."""
    folder = files("holdfast.journal.sqlite") / "schema"
    scripts = sorted(
        (item.name, item.read_text(encoding="utf-8")) for item in folder.iterdir() if item.name.endswith(".sql")
    )
    return [(int(name[:4]), script) for name, script in scripts]


def newest_version() -> int:
    """The version that this code writes."""
    return migrations()[-1][0]


def check_version(backend: SqliteBackend) -> int:
    """The database's version; refuses what is not ours or newer than this code."""
    newest = newest_version()
    with backend.translated():
        version = int(backend.connection.pragma("user_version") or 0)
        ours = backend.connection.pragma("application_id") == APPLICATION_ID
    if version > newest:
        raise other_version("log", path=backend.path, version=version, known=newest)
    if ours and not version:
        raise Corrupt("the database lost its version", path=str(backend.path))
    return version


def require_newest(backend: SqliteBackend) -> None:
    """For readers: an older database is refused, since only its owner may upgrade it."""
    version, newest = check_version(backend), newest_version()
    if not version:
        raise Corrupt("the database has lost all its tables", path=str(backend.path))
    if version < newest:
        raise Invalid(
            f"this log was written by an older holdfast path={backend.path} version={version} known={newest}",
            hint="open it once without read_only=True: that upgrades it; of one that is not writable, open a copy",
        )


def migrate(backend: SqliteBackend) -> None:
    """Bring the database to the newest version, one transaction per step."""
    version = check_version(backend)
    for number, script in migrations():
        if number <= version:
            continue
        backend.begin()
        try:
            with backend.translated():
                backend.connection.execute(script)
                backend.connection.execute(f"PRAGMA user_version={number}")
                backend.connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            backend.commit()
        except BaseException:
            _undo(backend)
            raise
        if version:
            logger.info(
                "upgraded %s to version %d", backend.path, number, extra={"action": "migrate", "version": number}
            )


def _undo(backend: SqliteBackend) -> None:
    try:
        if not backend.connection.get_autocommit():
            backend.connection.execute("ROLLBACK")
    except apsw.Error:  # the first error is the one to tell
        pass
