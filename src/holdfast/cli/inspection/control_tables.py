"""A glance: what a log's database says in the clear, read without a key and whatever its state.

One read transaction takes the control rows, so that they agree with each other while an owner writes on.
Nothing is verified here, salts and hashes of idempotency keys are not even read. What cannot be read
becomes a problem, and the rest is read on: this is for looking at damage, not for refusing it. A database
that another program or a newer holdfast wrote is still refused; one of an older holdfast is read as it is.

Of the manifest only sums are taken here: it may have a million rows (`manifest` shows them, page by page).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw
import msgspec

from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.journal.sqlite.migrations import check_version
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.log_directory import Directory
from holdfast.model.control_rows import (
    DiskFailed,
    EpochRow,
    HeadRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    ShipmentRow,
    ShippingRow,
    TopicRow,
    WatermarkRow,
)

_IDEMPOTENCY_SINCE = 2
SEGMENTS_SINCE = 3
"""The version of the database that brought segments, schemas and policies."""
SHIPPING_SINCE = 4
"""The version that brought the store: where the log is shipped to, and how far."""
SPACES_SINCE = 5
"""The version that brought spaces."""
SHIPPING_STATE_SINCE = 6
"""The version that remembers what shipping says about itself."""
_COUNTED_SINCE = dict.fromkeys(("segments", "schemas", "policies"), SEGMENTS_SINCE) | {"spaces": SPACES_SINCE}
_ALL = -1

UNREADABLE = (apsw.Error, UnicodeDecodeError, msgspec.ValidationError)
"""What a damaged row raises: from SQLite, from text that is none, from columns that are of another type."""

Row = TypeVar("Row")


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


class Kept(NamedTuple):
    """What a partition has in its tail and in segment files, and what of it has yet to be sent to its store."""

    tail_bytes: int = 0
    segment_bytes: int = 0
    unshipped_bytes: int = 0
    """Stored bytes of entries that are not on the store."""
    unsettled_bytes: int = 0
    """Bytes of segment files whose manifest object the store does not have."""


class _Last(msgspec.Struct, array_like=True):
    first_offset: int
    count: int
    digest: bytes


class _Number(NamedTuple):
    number: int | None


class Glance(msgspec.Struct):
    """The control rows of a log, and what could not be read of them."""

    path: Path
    version: int = 0
    log: LogRow | None = None
    epochs: list[EpochRow] = []
    key_epochs: list[KeyEpochRow] = []
    topics: list[TopicRow] = []
    heads: list[HeadRow] = []
    tails: dict[int, Tail | None] = {}
    """Where the entries of a partition end; None where there are none; partitions whose entries cannot be read lack."""
    watermarks: dict[int, WatermarkRow] = {}
    schemas: list[SchemaRow] = []
    policies: list[PolicyRow] = []
    shipping: ShippingRow | None = None
    shipments: dict[int, ShipmentRow] = {}
    """How far partitions are on the store; empty where the log is shipped to none."""
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
    limit = _ALL if newest is None else max(1, newest)  # one key epoch at least: it proves the key
    with looking(backend) as connection:
        table = _Tables(connection, seen)
        seen.log = next(iter(table.read_log()), None)
        seen.epochs = table.read("epochs", EpochRow, "ORDER BY number DESC LIMIT ?", limit)[::-1]
        seen.key_epochs = table.read("key_epochs", KeyEpochRow, "ORDER BY number DESC LIMIT ?", limit)[::-1]
        seen.topics = table.read("topics", TopicRow, "ORDER BY id")
        seen.heads = table.read("heads", HeadRow, "ORDER BY topic_id, number")
        seen.tails = {head.partition_id: tail for head in seen.heads for tail in table.tail(head.partition_id)}
        seen.first_seq, seen.last_seq = table.number("entries", "min(seq)"), table.number("entries", "max(seq)")
        if seen.version >= _IDEMPOTENCY_SINCE:
            seen.idempotency_keys = table.number("idempotency", "count(*)")
        if seen.version >= SEGMENTS_SINCE:
            marks = table.read("watermarks", WatermarkRow, "ORDER BY partition_id")
            seen.watermarks = {row.partition_id: row for row in marks}
            seen.schemas = table.read("schemas", SchemaRow, "ORDER BY topic_id, version")
            seen.policies = table.read("policies", PolicyRow, "ORDER BY topic_id")
        if seen.version >= SHIPPING_SINCE:
            seen.shipping = next(iter(table.read_shipping()), None)
            seen.shipments = table.shipments() if seen.shipping is not None else {}
    if seen.log is None:
        seen.problems.append(Corrupt("the database has lost the log's own row", path=str(backend.path)))
    return seen


def kept(backend: SqliteBackend, seen: Glance) -> dict[int, Kept]:
    """The sizes of tails and segments, by partition; this goes through the manifest once."""
    with looking(backend) as connection:
        table = _Tables(connection, seen)
        return {head.partition_id: table.kept(head.partition_id) for head in seen.heads}


def is_keyed(directory: Path) -> bool:
    """Whether the log in a directory says that it is encrypted; False where nothing can be read."""
    try:
        with database(Directory(directory.absolute()).database) as backend, backend.reading() as connection:
            return bool(connection.execute("SELECT keyed FROM log").get)
    except (HoldfastError, DiskFailed):
        return False


class _Tables:
    """Reads rows of one transaction, noting what cannot be read."""

    def __init__(self, connection: apsw.Connection, seen: Glance) -> None:
        self._connection = connection
        self._seen = seen

    def read(self, name: str, row: type[Row], rest: str = "", *values: int) -> list[Row]:
        """The rows of a table, by its columns, that can be read."""
        return self._select(name, row, f"SELECT {', '.join(row.__annotations__)} FROM {name} {rest}", values)

    def read_log(self) -> list[LogRow]:
        """The log's own row; what an older database does not count yet is zero."""
        version = self._seen.version
        columns = ["0" if version < _COUNTED_SINCE.get(name, 0) else name for name in LogRow.__annotations__]
        return self._select("log", LogRow, f"SELECT {', '.join(columns)} FROM log", ())

    def read_shipping(self) -> list[ShippingRow]:
        """Where the log is shipped to; what an older database does not remember yet is zero or empty."""
        later = {} if self._seen.version >= SHIPPING_STATE_SINCE else ShippingRow._field_defaults
        kept = ("key_epoch", "stamp")
        columns = [repr(later[name]) if name in later and name not in kept else name for name in ShippingRow._fields]
        return self._select("shipping", ShippingRow, f"SELECT {', '.join(columns)} FROM shipping", ())

    def shipments(self) -> dict[int, ShipmentRow]:
        """How far each partition is on the store; one that was made after the marks were written last is not at all."""
        found = {row.partition_id: row for row in self.read("shipments", ShipmentRow, "ORDER BY partition_id")}
        for head in self._seen.heads:
            mark = self._seen.watermarks.get(head.partition_id)
            first = 0 if mark is None or mark.segments else mark.first_offset
            found.setdefault(head.partition_id, ShipmentRow(head.partition_id, 0, 0, first, first))
        return found

    def kept(self, partition_id: int) -> Kept:
        """What a partition has in its tail and, beyond what retention removed, in segments."""
        mark = self._seen.watermarks.get(partition_id)
        sealed, first = (0, 0) if mark is None else (mark.sealed_offset, mark.first_segment)
        sums = [self._stored_bytes(partition_id, sealed)]
        if self._seen.version >= SEGMENTS_SINCE:
            sums.append(self._file_bytes(partition_id, first))
        shipment = self._seen.shipments.get(partition_id)
        if shipment is not None:
            sums.append(self._stored_bytes(partition_id, shipment.shipped_offset))
            sums.append(self._file_bytes(partition_id, max(first, shipment.settled_segments)))
        return Kept(*sums)

    def _stored_bytes(self, partition_id: int, offset: int) -> int:
        where = "partition_id=? AND first_offset>=?"
        return self._sum("entries", "coalesce(sum(length(body)), 0)", where, partition_id, offset)

    def _file_bytes(self, partition_id: int, number: int) -> int:
        where = "partition_id=? AND number>=? AND state=1"
        return self._sum("segments", "coalesce(sum(size), 0)", where, partition_id, number)

    def _sum(self, name: str, what: str, where: str, *values: int) -> int:
        found = self._select(name, _Number, f"SELECT {what} FROM {name} WHERE {where}", values)
        return sum(row.number or 0 for row in found)

    def number(self, name: str, what: str) -> int:
        """A number about a table; 0 if there is none."""
        return sum(row.number or 0 for row in self._select(name, _Number, f"SELECT {what} FROM {name}", ()))

    def tail(self, partition_id: int) -> list[Tail | None]:
        """Where a partition's entries end, or that it has none; nothing if that cannot be read."""
        rest = "WHERE partition_id=? ORDER BY first_offset DESC LIMIT 1"
        known = len(self._seen.problems)
        found: list[Tail | None] = [
            Tail(row.first_offset + row.count, row.digest) for row in self.read("entries", _Last, rest, partition_id)
        ]
        return found if found or len(self._seen.problems) > known else [None]

    def _select(self, name: str, row: type[Row], sql: str, values: tuple[int, ...]) -> list[Row]:
        rows: list[Row] = []
        try:
            for found in self._connection.execute(sql, values):
                rows.append(msgspec.convert(found, row))  # noqa: PERF401 - what came before an error is kept
        except (apsw.BusyError, apsw.LockedError):
            raise
        except UNREADABLE:
            self._seen.problems.append(
                Corrupt(f"a table cannot be read to its end table={name}", path=str(self._seen.path))
            )
        return rows
