"""A glance: what a log's database says in the clear, read without a key and whatever its state.

One read transaction takes the control rows, so that they agree with each other while an owner writes on.
Nothing is verified here, salts and hashes of idempotency keys are not even read. What cannot be read
becomes a problem, and the rest is read on: this is for looking at damage, not for refusing it. A database
that another program or a newer holdfast wrote is still refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec

from holdfast.crypto import chain
from holdfast.directory import Directory
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.journal.migrations import check_version
from holdfast.journal.rows import DiskFailed, EpochRow, HeadRow, LogRow, TopicRow
from holdfast.journal.sqlite import SqliteBackend

_IDEMPOTENCY_SINCE = 2
_ALL = -1

T = TypeVar("T")


class KeyEpochRow(NamedTuple):
    """A key epoch without its salt."""

    number: int
    scheme: str
    key_id: str
    commitment: bytes


class Tail(NamedTuple):
    """Where the entries of a partition end."""

    end: int
    digest: bytes


class Glance(msgspec.Struct):
    """The control rows of a log, and what could not be read of them."""

    path: Path
    version: int = 0
    log: LogRow | None = None
    epochs: list[EpochRow] = []
    key_epochs: list[KeyEpochRow] = []
    topics: list[TopicRow] = []
    heads: list[HeadRow] = []
    tails: dict[int, Tail] = {}
    idempotency_keys: int = 0
    first_seq: int = 0
    last_seq: int = 0
    problems: list[Corrupt] = []


@contextmanager
def database(path: Path) -> Iterator[SqliteBackend]:
    """A log's database, for looking only."""
    try:
        backend = SqliteBackend(path, read_only=True)
        try:
            if not check_version(backend):
                raise Corrupt("the database is empty", path=str(path))
            yield backend
        finally:
            backend.close()
    except DiskFailed as error:
        raise Unavailable(f"cannot read the database path={path}", hint="check the disk") from error


@contextmanager
def looking(backend: SqliteBackend) -> Iterator[apsw.Connection]:
    """One short read transaction that ends well whatever damage was met in it; a COMMIT would fail once more."""
    connection = backend.connection
    try:
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if not connection.get_autocommit():
                connection.execute("ROLLBACK")
    except (apsw.BusyError, apsw.LockedError) as error:
        message = f"another program has locked the database path={backend.path}"
        raise Unavailable(message, hint="let it finish, then try again") from error


def glance(backend: SqliteBackend, newest: int | None = None) -> Glance:
    """Read the control rows; of epochs and key epochs only the `newest`."""
    seen = Glance(backend.path, check_version(backend))
    limit = _ALL if newest is None else newest
    with looking(backend) as connection:
        table = _Tables(connection, seen)
        rows = table.read("log", f"SELECT {_columns(LogRow)} FROM log", LogRow._make)
        seen.log = rows[0] if rows else None
        seen.epochs = table.newest("epochs", EpochRow, limit)
        seen.key_epochs = table.newest("key_epochs", KeyEpochRow, limit)
        seen.topics = table.read("topics", f"SELECT {_columns(TopicRow)} FROM topics ORDER BY id", TopicRow._make)
        seen.heads = table.read(
            "heads", f"SELECT {_columns(HeadRow)} FROM heads ORDER BY topic_id, number", HeadRow._make
        )
        seen.tails = {head.partition_id: tail for head in seen.heads for tail in table.tail(head.partition_id)}
        spans = table.read("entries", "SELECT min(seq), max(seq) FROM entries", tuple[int | None, ...])
        seen.first_seq, seen.last_seq = (n or 0 for n in spans[0]) if spans else (0, 0)
        if seen.version >= _IDEMPOTENCY_SINCE:
            counts = table.read("idempotency", "SELECT count(*) FROM idempotency", lambda row: int(row[0]))
            seen.idempotency_keys = sum(counts)
    if seen.log is None:
        seen.problems.append(Corrupt("the database has lost the log's own row", path=str(backend.path)))
    return seen


def is_keyed(directory: Path) -> bool:
    """Whether the log in a directory says that it is encrypted; False where nothing can be read."""
    try:
        with database(Directory(directory.absolute()).database) as backend, backend.reading() as connection:
            return bool(connection.execute("SELECT keyed FROM log").get)
    except (HoldfastError, DiskFailed):
        return False


def _columns(row: type[Any]) -> str:
    return ", ".join(row._fields)


class _Tables:
    """Reads rows of one transaction, noting what cannot be read."""

    def __init__(self, connection: apsw.Connection, seen: Glance) -> None:
        self._connection = connection
        self._seen = seen

    def newest(self, name: str, row: type[T], limit: int) -> list[T]:
        """The rows with the highest numbers, in order."""
        sql = f"SELECT {_columns(row)} FROM {name} ORDER BY number DESC LIMIT ?"
        return self.read(name, sql, lambda values: row(*values), (limit,))[::-1]

    def tail(self, partition_id: int) -> list[Tail]:
        """Where a partition's entries end; nothing if that cannot be read."""
        sql = "SELECT first_offset, count, digest FROM entries WHERE partition_id=? ORDER BY first_offset DESC LIMIT 1"
        failed = len(self._seen.problems)
        found = self.read("entries", sql, lambda row: Tail(row[0] + row[1], row[2]), (partition_id,))
        return found if found or len(self._seen.problems) > failed else [Tail(0, chain.NO_LINK)]

    def read(self, name: str, sql: str, make: Callable[[tuple[Any, ...]], T], values: tuple[int, ...] = ()) -> list[T]:
        """All rows that can be read."""
        rows: list[T] = []
        try:
            rows.extend(make(found) for found in self._connection.execute(sql, values))
        except (apsw.BusyError, apsw.LockedError):
            raise
        except (apsw.Error, UnicodeDecodeError):
            self._seen.problems.append(
                Corrupt(f"a table cannot be read to its end table={name}", path=str(self._seen.path))
            )
        return rows
