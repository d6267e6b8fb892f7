"""The embedded backend: one SQLite file, `durable.db`, through apsw.

One connection writes; it is used by the writer's thread alone once that runs. Readers borrow read-only
connections, one short transaction per page, so that no reader pins the write-ahead log (`reader_connections`).

After any I/O error nothing more is written, not even by closing: `abandon` switches off the checkpoint that
close would do, and gives up the open transaction, or an owner that was displaced would keep its successor from
writing for as long as it lives. In a forked child the connections must never be closed, for that would write to the
parent's files: `leak` sees to it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import apsw

from holdfast import disk
from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Closed, Corrupt, Unavailable, refuse_to_travel
from holdfast.journal.sqlite.connection import PAGE_BYTES, meaning
from holdfast.journal.sqlite.control_tables import ControlTables
from holdfast.journal.sqlite.group_file_store import GroupFileStore
from holdfast.journal.sqlite.reader_connections import ReaderConnections
from holdfast.journal.sqlite.stored_rows import ENTRY_COLUMNS, StoredRows
from holdfast.log_directory import moved_away
from holdfast.model.control_rows import (
    DiskFailed,
    EpochRow,
    HeadRow,
    ItemRow,
    KeyRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    SegmentRow,
    SessionRow,
    ShipmentRow,
    ShippingRow,
    SpaceRow,
    TopicRow,
    WatermarkRow,
)
from holdfast.model.entry import Entry

_LOG = ", ".join(LogRow._fields)
_KEY = ", ".join(KeyRow._fields)
_SESSION = ", ".join(SessionRow._fields)
_SHIPPING = ", ".join(ShippingRow._fields)
_LOG_CHANGES = ", ".join(f"{name}=?" for name in LogRow._fields)


logger = logging.getLogger("holdfast.journal")


class SqliteBackend:
    """A journal in one SQLite file."""

    __reduce__ = refuse_to_travel

    def __init__(self, path: Path, *, read_only: bool = False, beside: bool = False) -> None:
        self.path = path
        self._wal_pages = 0
        self._seen: object = None
        self._read_only = read_only
        self._connections = ReaderConnections(path, read_only=read_only, beside=beside)
        self.connection.set_wal_hook(self._count_wal_pages)
        self._identity = disk.identity(path)
        self._ahead: tuple[int, int] | None = None
        """The write-ahead log of an owner, once it is there."""
        self._folds_at_end = False
        """The write-ahead log has lost its name: what it has must get into the database, or it is gone."""
        self.filed = GroupFileStore(self)
        """What is durable in files and not in the database yet."""
        self._rows = StoredRows(self.connection, path, self.filed.files, self.filed.late)
        """As the writer sees them."""

    # -- connections --------------------------------------------------------------------------------------

    @property
    def connection(self) -> apsw.Connection:
        """The backend's own: the writer's, or of a handle that only reads, one that reads."""
        return self._connections.own

    def require_place(self) -> None:
        """Raise where the database's name is no longer its own: the directory was moved away, replaced or removed.

        What is open stays open, wherever it went. But new files, segments above all, would come to the place that it
        had, perhaps into another log, and what they take the place of be removed here.
        """
        if disk.identity(self.path) != self._identity:
            raise moved_away(self.path.parent)
        if self._read_only:
            return
        ahead = disk.identity(place := self.path.with_name(f"{self.path.name}-wal"))
        self._ahead = self._ahead or ahead
        if ahead != self._ahead:
            self._folds_at_end = ahead is None  # else another process has begun one
            raise Closed(
                f"the database's write-ahead log was removed path={place}",
                reason="fenced",
                hint="close the log, which puts what it has into the database, and open it again",
            )

    def _count_wal_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted while it began to read."""
        self._connections.refuse_second()
        self.filed.refuse_second()

    @contextmanager
    def reading(self) -> Iterator[StoredRows]:
        """Rows as they are now: one short transaction on a read-only connection, during which nothing changes."""
        try:
            late = self.filed.late  # before the transaction begins: what is not here any more is in the database then
            durable = self.filed.durable()
            with self.translated(), self._connections.lent() as connection:
                if self._read_only:
                    late = self.filed.found(connection, durable)
                    self.require_place()  # files are found by their path; no record may be missed because of that
                yield StoredRows(connection, self.path, self.filed.files, late)
        except DiskFailed as error:
            raise Unavailable(f"cannot read the database path={self.path}", hint="check the disk") from error

    @contextmanager
    def tables(self, damage: list[Corrupt] | None = None, *, tolerant: bool = False) -> Iterator[ControlTables]:
        """The control tables as they are now, also of a damaged database."""
        with self.reading() as rows:
            yield ControlTables(rows.connection, self.path, damage, tolerant=tolerant, late=rows.late)

    def has_changed(self) -> bool:
        """Whether another process has committed anything since this was asked last."""
        with self.translated():
            version = self._connections.version()
        groups = 0
        if self._read_only:
            with self.reading() as rows:
                groups = rows.late.groups
        before, self._seen = self._seen, (version, groups)
        return self._seen != before

    def suspend(self, timeout: float) -> None:
        """Of a handle that only reads, before a fork: close all connections."""
        self._connections.suspend(timeout)

    def resume(self) -> None:
        """Read on."""
        self._connections.resume()

    def leak(self) -> None:
        """In a forked child: keep the parent's connections from ever being closed here."""
        self._connections.leak()

    def close(self) -> None:
        """Fold the write-ahead log in and close everything."""
        failed = self._connections.close()
        self.filed.files.close()
        if failed is not None:
            self._raise(failed)

    def check_open(self) -> None:
        """Raise why nothing can be read any more."""
        self._connections.check_open()

    def abandon(self) -> None:
        """Stop writing for good: closing will leave the write-ahead log to the next open's recovery, if it can find it.

        An open transaction ends: undoing one in a write-ahead log writes nothing, and lets go of the write lock.
        """
        if not self._folds_at_end:
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        try:
            if not self.connection.get_autocommit():
                self.connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # the cause is what is reported

    def close_quietly(self) -> None:
        """Close after an error, which is the one to tell."""
        try:
            self.abandon()
            self.close()
        except Exception:
            logger.debug("closing after a failed open", exc_info=True, extra={"action": "open_failed"})

    # -- transactions -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a group's transaction; what is in files alone becomes part of it."""
        self.run("BEGIN IMMEDIATE")
        self.filed.begun()

    def commit(self) -> None:
        """Make the transaction durable: this is the fsync."""
        self.run("COMMIT")
        self.filed.committed()

    def rollback(self) -> None:
        """Undo the transaction, if one is open."""
        if not self.transaction_ended():
            self.run("ROLLBACK")

    def transaction_ended(self) -> bool:
        """Whether no transaction is open: after some errors the database has undone it by itself."""
        return self.connection.get_autocommit()

    def savepoint(self) -> None:
        """Mark where a unit begins."""
        self.run("SAVEPOINT unit")

    def release(self) -> None:
        """Keep what the unit did."""
        self.run("RELEASE unit")

    def rollback_unit(self) -> None:
        """Undo what the unit did."""
        self.run("ROLLBACK TO unit")
        self.run("RELEASE unit")

    def set_journal_mode(self, mode: str) -> None:
        """How a transaction is undone; of a database that nobody else has open."""
        with self.translated():
            taken = self.connection.pragma("journal_mode", mode)
        if taken != mode:
            raise DiskFailed(f"the database did not accept the journal mode journal_mode={taken}")

    @property
    def wal_bytes(self) -> int:
        """How long the write-ahead log was after the last commit."""
        return self._wal_pages * PAGE_BYTES

    def checkpoint(self, wal_bytes: int) -> int:
        """Fold the write-ahead log into the database once it is that large; returns the pages it had."""
        if self.wal_bytes < wal_bytes:
            return 0
        pages = self._wal_pages
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.BusyError, apsw.LockedError):
            return 0
        except apsw.FullError:  # a write found no room, before any sync: the log has all of it, a later one goes on
            return 0
        except apsw.Error as error:
            raise DiskFailed("checkpoint failed") from error
        self._wal_pages = 0
        return pages

    # -- rows ---------------------------------------------------------------------------------------------

    def insert_entries(self, entries: Sequence[Entry]) -> None:
        """Add entries."""
        self.run_many(f"INSERT INTO entries ({ENTRY_COLUMNS}, body, schema) VALUES ({_marks(Entry)})", entries)

    def trim_entries(self, partition_id: int, upto: int, slice_max: int) -> list[tuple[int, int]]:
        """Remove a slice of a partition's oldest entries below an offset; returns the file and size of each."""
        oldest = "SELECT seq FROM entries WHERE partition_id=? AND first_offset<? ORDER BY first_offset LIMIT ?"
        sql = f"DELETE FROM entries WHERE seq IN ({oldest}) RETURNING file, size"
        with self.translated():
            return list(self.connection.execute(sql, (partition_id, upto, slice_max)))

    def insert_heads(self, heads: Sequence[HeadRow]) -> None:
        """Add the heads of new partitions."""
        self.run_many("INSERT INTO heads VALUES (?,?,?,?,?,?,?)", heads)

    def store_heads(self, heads: Sequence[HeadRow]) -> None:
        """Move heads."""
        rows = [(head.next_offset, head.link, head.key_epoch, head.stamp, head.partition_id) for head in heads]
        self.run_many("UPDATE heads SET next_offset=?, link=?, key_epoch=?, stamp=? WHERE partition_id=?", rows)

    def store_log(self, row: LogRow, epoch: int) -> None:
        """Rewrite the log's row, proving that `epoch` still owns the log, and that the log is where it was."""
        self.require_place()
        self.run(f"UPDATE log SET {_LOG_CHANGES} WHERE id=1 AND epoch=?", (*row, epoch))
        if self.connection.changes() != 1:
            raise Closed("another process has taken this log over", reason="fenced")
        self.filed.stored(row)

    def insert_log(self, row: LogRow) -> None:
        """Create the log's row."""
        self.run(f"INSERT INTO log (id, {_LOG}) VALUES (1, {_marks(LogRow)})", row)

    def insert_epoch(self, row: EpochRow) -> None:
        """Add an ownership."""
        self.run("INSERT INTO epochs VALUES (?,?,?,?,?)", row)

    def insert_key_epoch(self, epoch: KeyEpoch) -> None:
        """Add a key epoch."""
        values = (epoch.number, epoch.scheme, epoch.key_id, epoch.salt, epoch.commitment, epoch.stamp)
        self.run("INSERT INTO key_epochs VALUES (?,?,?,?,?,?)", values)

    def insert_topic(self, row: TopicRow) -> None:
        """Add a topic."""
        self.run("INSERT INTO topics VALUES (?,?,?,?,?,?,?)", row)

    def store_watermark(self, row: WatermarkRow) -> None:
        """Say how far a partition is sealed."""
        self.run(f"INSERT OR REPLACE INTO watermarks VALUES ({_marks(WatermarkRow)})", row)

    def insert_segment(self, row: SegmentRow) -> None:
        """Add a segment to the manifest."""
        self.run(f"INSERT INTO segments VALUES ({_marks(SegmentRow)})", row)

    def store_states(self, rows: Sequence[SegmentRow]) -> None:
        """Move segments to other states."""
        changes = [(row.state, row.key_epoch, row.stamp, row.partition_id, row.number) for row in rows]
        self.run_many("UPDATE segments SET state=?, key_epoch=?, stamp=? WHERE partition_id=? AND number=?", changes)

    def insert_schema(self, row: SchemaRow) -> None:
        """Add a version of a typed topic's schema."""
        self.run(f"INSERT INTO schemas VALUES ({_marks(SchemaRow)})", row)

    def store_policy(self, row: PolicyRow) -> None:
        """Set a topic's retention."""
        self.run(f"INSERT OR REPLACE INTO policies VALUES ({_marks(PolicyRow)})", row)

    def store_shipping(self, row: ShippingRow) -> None:
        """Say where the log is shipped to, and how far."""
        self.run(f"INSERT OR REPLACE INTO shipping (id, {_SHIPPING}) VALUES (1, {_marks(ShippingRow)})", row)

    def store_shipments(self, rows: Sequence[ShipmentRow]) -> None:
        """Say how far partitions are on the store."""
        self.run_many(f"INSERT OR REPLACE INTO shipments VALUES ({_marks(ShipmentRow)})", rows)

    def insert_spaces(self, rows: Sequence[SpaceRow]) -> None:
        """Add spaces."""
        self.run_many(f"INSERT INTO spaces VALUES ({_marks(SpaceRow)})", rows)

    def store_spaces(self, rows: Sequence[SpaceRow]) -> None:
        """Say what spaces add up to now."""
        changes = [(row.items, row.sum, row.key_epoch, row.stamp, row.id) for row in rows]
        self.run_many("UPDATE spaces SET items=?, sum=?, key_epoch=?, stamp=? WHERE id=?", changes)

    def drop_spaces(self, ids: Sequence[int]) -> None:
        """Remove spaces with all their items."""
        self.run_many("DELETE FROM space_items WHERE space_id=?", [(space_id,) for space_id in ids])
        self.run_many("DELETE FROM spaces WHERE id=?", [(space_id,) for space_id in ids])

    def store_items(self, rows: Sequence[ItemRow]) -> None:
        """Put items of spaces, over those with the same key."""
        self.run_many(
            f"INSERT INTO space_items VALUES ({_marks(ItemRow)}) ON CONFLICT (space_id, key) DO UPDATE"
            " SET number=excluded.number, key_epoch=excluded.key_epoch, body=excluded.body",
            rows,
        )

    def delete_items(self, places: Sequence[tuple[int, bytes]]) -> None:
        """Remove items, by space and key."""
        self.run_many("DELETE FROM space_items WHERE space_id=? AND key=?", places)

    def space_items(self, space_id: int, body_bytes_max: int) -> Generator[ItemRow, None, None]:
        """The items of a space as the writer sees them."""
        with self.translated():
            yield from self._rows.space_items(space_id, body_bytes_max)

    def segments(self, partition_id: int, start: int, stop: int) -> list[SegmentRow]:
        """Segments start..stop by number, as the writer sees them; a damaged one is raised."""
        with self.translated():
            return self._rows.segments(partition_id, start, stop)

    def store_sessions(self, rows: Sequence[SessionRow], gone: Sequence[bytes]) -> None:
        """Put sessions, over those with the same name, and forget others."""
        if gone:
            self.run_many("DELETE FROM sessions WHERE name=?", [(name,) for name in gone])
        self.run_many(
            f"INSERT INTO sessions ({_SESSION}) VALUES ({_marks(SessionRow)}) ON CONFLICT (name) DO UPDATE SET"
            " last=excluded.last, floor=excluded.floor, used_us=excluded.used_us, answers=excluded.answers,"
            " key_epoch=excluded.key_epoch",
            rows,
        )

    def insert_keys(self, rows: Sequence[KeyRow]) -> None:
        """Remember idempotency keys."""
        self.run_many(f"INSERT INTO idempotency ({_KEY}) VALUES ({_marks(KeyRow)})", rows)

    def store_key(self, row: KeyRow) -> None:
        """Remember an idempotency key; one that is known already is remembered anew."""
        self.run(f"INSERT OR REPLACE INTO idempotency ({_KEY}) VALUES ({_marks(KeyRow)})", row)

    def count_keys(self) -> int:
        """How many idempotency keys are remembered."""
        with self.translated():
            found = self.connection.execute("SELECT count(*) FROM idempotency").fetchone()
        return int(found[0]) if found else 0

    def trim_keys(self, upto: int, slice_max: int) -> None:
        """Forget a slice of the oldest idempotency keys, up to this id."""
        self.run(
            "DELETE FROM idempotency WHERE id IN (SELECT id FROM idempotency WHERE id <= ? ORDER BY id LIMIT ?)",
            (upto, slice_max),
        )

    def find_key(self, key_hash: bytes) -> KeyRow | None:
        """A remembered idempotency key."""
        with self.translated():
            return self._rows.key(key_hash)

    def next_ids(self) -> tuple[int, int]:
        """The ids of the next topic and of the next partition."""
        with self.translated():
            sql = "SELECT (SELECT coalesce(max(id), 0) FROM topics), (SELECT coalesce(max(partition_id), 0) FROM heads)"
            topic, partition = self.connection.execute(sql).fetchone() or (0, 0)
        return topic + 1, partition + 1

    # -- errors -------------------------------------------------------------------------------------------

    def run(self, sql: str, values: Sequence[object] = ()) -> None:
        """Execute a statement of this room on the writer's connection."""
        try:
            self._connections.own.execute(sql, values)
        except apsw.Error as error:
            self._raise(error)

    def run_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """The same, once for each row."""
        try:
            self._connections.own.executemany(sql, rows)
        except apsw.Error as error:
            self._raise(error)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise what SQLite's errors mean, for statements that are run on the connection directly."""
        try:
            yield
        except apsw.Error as error:
            self._raise(error)

    def _raise(self, error: apsw.Error) -> NoReturn:
        raise meaning(error, self.path) from error


_Stored = (
    LogRow
    | Entry
    | KeyRow
    | WatermarkRow
    | SegmentRow
    | SchemaRow
    | PolicyRow
    | ShippingRow
    | ShipmentRow
    | SpaceRow
    | ItemRow
    | SessionRow
)


def _marks(row: type[_Stored]) -> str:
    """A question mark for each column."""
    return ",".join("?" * len(row._fields))
