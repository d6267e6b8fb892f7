"""Between the files of groups and the database: what is in files alone, and how it gets here.

A group of plain records is durable once its frame is synced. Its rows follow later, many groups in one transaction, and
with every group that goes through the database itself, so that it never knows a group without those before it. Until
then readers see them as `late` rows.

Folding need not be durable. After a power cut the database may be as it was some groups ago; its own row says where the
files have the rest, and a file is not reused before the trimming of its last entry is durable.

Taking over goes in this order, with the database locked throughout: stop an old writer (`fence`), check what it left,
commit. A writer checks for the fence after each sync, and before it begins a file it checks in the locked database that
it is still the owner. So a group that it acknowledged is always found.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import apsw

from holdfast import disk
from holdfast.caller import once, refuse_second
from holdfast.errors import Closed, Corrupt
from holdfast.journal.groups.group_files import NUMBER_MAX, GroupFiles
from holdfast.journal.groups.group_frame import EncodedFrame, FramedSessions, encoded, padded
from holdfast.journal.groups.group_scan import GroupScan
from holdfast.journal.groups.group_writer import GroupFileEntries, GroupWriter, fence
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.journal.shared_number import SharedNumber
from holdfast.journal.sqlite.stored_rows import ENTRY_COLUMNS, FILED_PLACES, NEXT_PLACE
from holdfast.model.control_rows import HeadRow, LogRow
from holdfast.model.entry import Entry, GroupFileEntry

if TYPE_CHECKING:
    from holdfast.journal.sqlite.sqlite_backend import SqliteBackend

_FILED = f"typeof(file) = 'integer' AND file BETWEEN 1 AND {NUMBER_MAX}"
_USED = "SELECT group_file FROM log WHERE id=1 AND typeof(group_file) = 'integer'"
_LOOKS_MAX = 8
_FIRST_MAX = NUMBER_MAX // 2
_MOVED_MAX = 2**20
"""Bodies of so many bytes are moved into the database when a log is closed: it is all there is to a small one then."""


class GroupFileStore:
    """The groups of one log that are in files alone."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self._scan = GroupScan(GroupFiles(backend.path))
        self._scanning = RLock()
        self.files = self._scan.files
        self.late = UnfoldedRows()
        """Of an owner: what the database does not have yet. Readers ask for what is `found`."""
        self.writer: GroupWriter | None = None
        """The way to this owner's files; None before it owns them."""
        self._epoch = 0
        self._durable = 0
        """Of an owner: the newest group that is durable in a file, or was found when the log was opened."""
        self._shared_number: SharedNumber | None = None
        """The same, for processes that share the log."""
        self._telling = RLock()
        self.heard: Callable[[], SharedNumber | None] = lambda: None
        """Of a reader beside an owner: what that tells, if it does."""
        self._base = b""
        """The stamp of the database's own row, if that has the newest group …"""
        self._next_base: bytes | None = None
        """… and of the one that the open transaction stores."""
        self._proved_group, self._proof = 0, b""
        """The newest frame that this owner wrote."""
        self.remains: int | None = None
        """A file with so little left in it that this is better moved into the database."""

    def durable(self) -> tuple[int, int]:
        """For readers: an epoch, and how many groups its owner says are durable; (0, 0): nobody says.

        To be asked before a transaction begins: then each of them is in the database that it sees, or in a file.
        """
        heard = self.heard()
        return (0, 0) if heard is None else (heard.of, heard.value)

    def found(self, connection: apsw.Connection, durable: tuple[int, int]) -> UnfoldedRows:
        """For readers: what is durable in files and not in the database as its transaction sees it.

        The owner may have given a file away after that began. So where something is missing it begins anew.
        """
        late = self._look(connection, durable)
        for _ in range(_LOOKS_MAX):
            if late.damage is None:
                break
            connection.execute("COMMIT")
            durable = self.durable()
            connection.execute("BEGIN")
            before, late = late, self._look(connection, durable)
            if late is before:  # the database is as it was, and so are its files
                break
        return late

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted while it looked for what is in files alone."""
        refuse_second(self._scanning)

    def _look(self, connection: apsw.Connection, durable: tuple[int, int] = (0, 0)) -> UnfoldedRows:
        try:
            row = connection.execute(NEXT_PLACE).fetchone()
        except (apsw.SQLError, apsw.CorruptError):  # damaged, as others will find
            return UnfoldedRows()
        if row is None or [type(value) for value in row] != [bytes, int, int, int, int]:
            return UnfoldedRows()
        with once(self._scanning):
            self.files.log_id, epoch, groups, file, position = row
            # Groups that the database does not have are of the owner that it names: the next one begins with a commit.
            return self._scan.late(groups, file, position, durable[1] if durable[0] == epoch else None)

    def disk_bytes(self) -> int:
        """The size of the files, the database and its write-ahead log."""
        database = self._backend.path
        paths = (database, database.with_name(database.name + "-wal"), *map(self.files.path, self.files.numbers()))
        return sum(disk.size_of(path) for path in paths)

    # -- owning -------------------------------------------------------------------------------------------

    def take_over(self, random_bytes: Callable[[int], bytes]) -> None:
        """Begin the transaction in which ownership is taken: stop an old writer, and find what it left.

        The database stays locked until this owner's first commit, which takes up what was found.
        """
        backend = self._backend
        backend.run("BEGIN IMMEDIATE")
        with backend.translated():
            row = backend.connection.execute(NEXT_PLACE).fetchone()
        if row is not None and isinstance(row[0], bytes):
            self.files.log_id = row[0]
            fence(self.files, random_bytes)
            self.late = self._look(backend.connection)

    def next_number(self) -> int:
        """The number of the next file: higher than any that ever was.

        A reader keeps files open. One that was removed, and whose number another file got, it would take for that.
        """
        with self._backend.translated():
            stored = self._backend.connection.execute(f"SELECT max(file) FROM entries WHERE {_FILED}").get
            used = self._backend.connection.execute(_USED).get
        number = max([*self.files.numbers(), int(stored or 0), int(used or 0)]) + 1
        if number > _FIRST_MAX:  # beyond what is looked for after a crash, soon
            raise Corrupt(f"no log has so many files of groups number={number - 1}", path=str(self.files.folder))
        return number

    def own(self, row: LogRow, random_bytes: Callable[[int], bytes], bytes_max: int) -> None:
        """Prepare to write files of this owner's own; what earlier ones left and nobody needs is removed."""
        with self._backend.translated():
            sql = f"SELECT file, count(*), sum(size) FROM entries WHERE {_FILED} GROUP BY file"
            live = {number: GroupFileEntries(*held) for number, *held in self._backend.connection.execute(sql)}
        self._epoch, self._durable, self.files.log_id = row.epoch, row.groups, row.log_id
        self._base = row.stamp
        self.writer = GroupWriter(
            self.files,
            random_bytes,
            live,
            row.group_file,
            bytes_max,
            self._backend.require_place,
            self._prove_ownership,
        )
        self.writer.remove_unused()

    def _prove_ownership(self) -> None:
        """The new owner holds the write lock meanwhile: so this is before or after, never in between."""
        self._backend.run("BEGIN IMMEDIATE")
        try:
            self._check_epoch()
        finally:
            self._backend.rollback()

    def _check_epoch(self) -> None:
        self._backend.require_place()
        with self._backend.translated():
            found = self._backend.connection.execute("SELECT epoch FROM log WHERE id=1").get
        if found != self._epoch:
            raise Closed("another process has taken this log over", reason="fenced")

    # -- a group ------------------------------------------------------------------------------------------

    def framed(
        self,
        group: int,
        key_epoch: int,
        entries: Sequence[Sequence[object]],
        bodies: Sequence[bytes],
        prove: Callable[[bytes], bytes],
        sessions: FramedSessions | None = None,
    ) -> EncodedFrame | None:
        """A group as it will lie in the file that is being written; None where there is nothing, or too much for it."""
        writer = self.writer
        assert writer is not None
        if not entries:
            return None
        follows = (key_epoch, self._proof if self._proved_group == group - 1 else b"", self._base)
        frame = encoded(writer.salt, group, follows, entries, bodies, prove, sessions)
        return frame if padded(frame.length) <= writer.room else None

    @property
    def place(self) -> tuple[int, int]:
        """The file in which the next group may be, and where it begins there at the earliest."""
        return (0, 0) if self.writer is None else (self.writer.number, self.writer.used)

    def check_owned(self) -> None:
        """Before a group is written to a file: this log must still be ours."""
        assert self.writer is not None
        self.writer.check_owned()

    def append_group(
        self, group: int, frame: EncodedFrame, entries: Sequence[Entry], sessions: FramedSessions | None = None
    ) -> None:
        """Make a group durable in the file that is being written: this is the fsync."""
        writer = self.writer
        assert writer is not None
        file, at = writer.number, writer.used + frame.start
        writer.write(frame.buffers, padded(frame.length))
        filed = []
        for entry in entries:
            size = len(entry.body)
            filed.append(GroupFileEntry(*entry[:12], entry.schema, file, at, size))
            at += size
        self.late.add(group, filed)
        if sessions is not None:
            self.late.add_sessions(sessions.rows, sessions.gone, (sessions.count, sessions.sum))
        writer.add(len(filed), frame.length - frame.start)
        self._proved_group, self._proof, self._base = group, frame.proof, b""
        self._tell(group)

    def _tell(self, groups: int) -> None:
        """So many groups are durable: before anything about them is reported."""
        with once(self._telling):
            self._durable = groups
            if self._shared_number is not None:
                self._shared_number.raise_to(groups)

    def durable_number(self) -> SharedNumber | None:
        """Of an owner: how many groups are durable, for other processes to read; None where the system has no way."""
        with once(self._telling):
            if self._shared_number is None:
                self._shared_number = SharedNumber.create(self._epoch, self._durable)
            return self._shared_number

    # -- into the database --------------------------------------------------------------------------------

    def begun(self) -> None:
        """A transaction has begun: what is in files alone becomes part of it, if the log is still ours."""
        self._next_base = None
        if self.late.groups:
            self._check_epoch()
            self.insert(self.late.heads.values())

    def stored(self, row: LogRow) -> None:
        """The transaction that is open stores this row; the next frame follows it once that is committed."""
        self._next_base = row.stamp

    def committed(self) -> None:
        """The transaction that was open is committed: the database has everything."""
        if self._next_base is not None:
            self._base = self._next_base
        if self.late.groups:
            self.late = UnfoldedRows()

    def fold(self, row: LogRow) -> None:
        """Bring what is in files alone into the database, with this row; durable with the next commit there."""
        backend = self._backend
        backend.run("PRAGMA synchronous=NORMAL")
        try:
            backend.begin()
            backend.store_log(row, row.epoch)
            backend.commit()
        finally:
            backend.rollback()
            backend.run("PRAGMA synchronous=FULL")

    def insert(self, heads: Iterable[HeadRow]) -> None:
        """Bring entries that are in files alone into the database, inside a transaction, with the heads after them."""
        late = self.late
        self._backend.run_many(
            f"INSERT INTO entries ({ENTRY_COLUMNS}, body, schema, file, position, size)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,x'',?,?,?,?)",
            late.entries,
        )
        self._backend.store_heads(list(heads))
        if late.sessions:
            rows = [row for row in late.sessions.values() if row is not None]
            self._backend.store_sessions(rows, [name for name, row in late.sessions.items() if row is None])

    def leave(self, row: LogRow | None) -> None:
        """At a good end: the database has everything, durably; if it is little, bodies, too, and no file is left.

        `row` is the log's own row where something is in files alone.
        """
        if self.writer is None:
            return
        backend = self._backend
        backend.require_place()
        with backend.translated():
            filed = backend.connection.execute(f"SELECT sum(size) FROM entries WHERE {_FILED}").get or 0
        if row is not None or filed:
            backend.begin()
            self._check_epoch()
            is_little = filed + sum(entry.size for entry in self.late.entries) <= _MOVED_MAX
            moved = self._move_bodies(_FILED) if is_little else []
            if row is not None:
                backend.store_log(row, row.epoch)
            backend.commit()
            self.trimmed(moved)
        self.writer.close()

    # -- out of files -------------------------------------------------------------------------------------

    def trimmed(self, bodies: Sequence[tuple[int, int]]) -> None:
        """Bodies left these files, each of so many bytes (0: it was in none), durably."""
        gone: dict[int, GroupFileEntries] = {}
        for file, size in bodies:
            if file:
                before = gone.get(file, GroupFileEntries(0, 0))
                gone[file] = GroupFileEntries(before.entries + 1, before.bytes + size)
        if gone and self.writer is not None:
            self.writer.trimmed(gone)
            self.remains = self.writer.nearly_empty()

    def move_remains(self, row: LogRow | None) -> None:
        """Move that, so that the file can be used anew: a partition that is idle must not keep it from that.

        `row` is the log's own row where something is in files alone.
        """
        number, self.remains = self.remains, None
        self._backend.begin()
        self._check_epoch()
        moved = self._move_bodies(f"{_FILED} AND file={number}")
        if row is not None:
            self._backend.store_log(row, row.epoch)
        self._backend.commit()
        self.trimmed(moved)

    def _move_bodies(self, where: str) -> list[tuple[int, int]]:
        """Inside a transaction: bring bodies out of files into the database; returns the file and size of each."""
        with self._backend.translated():
            filed = list(self._backend.connection.execute(f"{FILED_PLACES} WHERE {where}"))
        if any(None in place for place in filed):  # as below
            return []
        bodies = [(self.files.body(*place), seq) for seq, *place in filed]
        if any(body is None for body, _ in bodies):  # its reader will report it
            return []
        self._backend.run_many("UPDATE entries SET body=?, file=0, position=0, size=0 WHERE seq=?", bodies)
        return [(file, size) for _, file, _, size in filed]
