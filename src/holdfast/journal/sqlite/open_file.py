"""Opening a database file: by its owner, by a reader, or newly created, to be filled in one go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import disk
from holdfast.journal.sqlite.migrations import migrate, require_newest
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.model.control_rows import DiskFailed


def open_backend(path: Path, *, read_only: bool = False, beside: bool = False) -> SqliteBackend:
    """The database in this file, brought to the newest version; readers refuse an older one.

    `beside`: to be read in a process that may also own it.
    """
    backend = SqliteBackend(path, read_only=read_only, beside=beside)
    try:
        if read_only:
            require_newest(backend)
        else:
            migrate(backend)
    except BaseException:
        backend.close_quietly()
        raise
    return backend


@contextmanager
def create_backend(path: Path, *, anew: bool) -> Iterator[SqliteBackend]:
    """One transaction on a database that nobody uses yet; afterwards the one file holds all of it.

    `anew` replaces what an earlier attempt left.
    """
    if anew:
        _remove(path)
        disk.create_file(path, 0o600)
    backend = open_backend(path)
    try:
        # Nobody needs to take back a part of what nobody has seen: so it is written once, and synced by its commit.
        if anew:
            backend.set_journal_mode("memory")
        backend.begin()
        yield backend
        backend.commit()
        if anew:
            backend.set_journal_mode("wal")
        # Closing would do it, too, but says nothing when it fails; and only this one file is given its final name.
        backend.checkpoint(0)
    except BaseException:
        backend.abandon()
        raise
    finally:
        backend.close()
    if _beside(path, "-wal").exists():
        raise DiskFailed("the write-ahead log was not folded in")


def _remove(path: Path) -> None:
    """Remove a database with the files beside it."""
    for name in (path, _beside(path, "-wal"), _beside(path, "-shm")):
        disk.remove(name)


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)
