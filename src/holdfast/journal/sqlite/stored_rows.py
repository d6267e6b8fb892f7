"""Rows as they come back from the database: nothing about them is taken for granted.

A damaged file can hold any value in any column: other types, text that is not UTF-8, blobs of a gigabyte. So values
that are too long are not even fetched, types are checked before anything is computed with them, and what does not fit
is `Corrupt`, never a TypeError somewhere later. Stamps and digests are checked by holders of the keys (`proofs`,
`entry_reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

import apsw

from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt
from holdfast.journal.groups.group_files import NUMBER_MAX, GroupFiles
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.model.control_rows import (
    ITEM_KEY_BYTES_MAX,
    SESSION_ANSWERS_BYTES_MAX,
    SHIPPING_TEXT_BYTES_MAX,
    SPACE_NAME_BYTES_MAX,
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
from holdfast.model.entry import Entry, GroupFileEntry

_LONGEST = 256
"""No id, hash, salt or stamp is longer; bodies have limits of their own."""

_LONG = {
    "definition": 16 * 2**20,
    "root": 4096,
    "name": SPACE_NAME_BYTES_MAX,
    "key": ITEM_KEY_BYTES_MAX,
    "answers": SESSION_ANSWERS_BYTES_MAX,
    **dict.fromkeys(("alarm", "ended", "last_error"), SHIPPING_TEXT_BYTES_MAX),
}
"""Columns that may be longer: as long as what is accepted, or a log that accepted it could not be opened again."""


class LastEntry(NamedTuple):
    """Where a partition's entries end."""

    first_offset: int
    count: int  # type: ignore[assignment]  # the column's name; nobody counts values in a row
    digest: bytes


class Counts(NamedTuple):
    """How many rows there are, and the highest numbers among them."""

    epoch: int
    key_epochs: int
    topics: int
    partitions: int
    entries: int
    last_seq: int
    segments: int
    schemas: int
    policies: int
    spaces: int


_TYPES: dict[type[object], dict[str, type]] = {
    row: get_type_hints(row)
    for row in (
        LogRow,
        EpochRow,
        TopicRow,
        HeadRow,
        KeyRow,
        KeyEpoch,
        LastEntry,
        Counts,
        Entry,
        GroupFileEntry,
        WatermarkRow,
        SegmentRow,
        SchemaRow,
        PolicyRow,
        ShippingRow,
        ShipmentRow,
        SpaceRow,
        ItemRow,
        SessionRow,
    )
}

Row = TypeVar(
    "Row",
    LogRow,
    EpochRow,
    TopicRow,
    HeadRow,
    KeyRow,
    KeyEpoch,
    LastEntry,
    Counts,
    WatermarkRow,
    SegmentRow,
    SchemaRow,
    PolicyRow,
    ShippingRow,
    ShipmentRow,
    SpaceRow,
    SessionRow,
)


_SEQ, _FIRST = 0, 2
_BODY_BYTES_MAX = 2**31
"""More than any body has."""
"""Columns of an entry."""
_NUMBERS = (
    "seq", "partition_id", "first_offset", "count", "group_number", "kind", "codec", "key_epoch", "time_min",
    "time_max",
)  # fmt: skip
ENTRY_COLUMNS = ", ".join((*_NUMBERS, "link", "digest"))
"""The columns of an entry before its body, as `Entry` has them."""


class StoredRows:
    """Reads rows through one connection; a damaged row is reported, never guessed."""

    __slots__ = ("connection", "files", "late", "path")

    def __init__(self, connection: apsw.Connection, path: Path, files: GroupFiles, late: UnfoldedRows) -> None:
        self.connection = connection
        """For this room alone."""
        self.path = path
        self.files = files
        self.late = late
        """What is not in the database yet."""

    def key_epoch(self, number: int) -> KeyEpoch | None:
        """One key epoch."""
        return self._one(KeyEpoch, "key_epochs", "WHERE number=?", number)

    def key(self, key_hash: bytes) -> KeyRow | None:
        """One idempotency key."""
        return self._one(KeyRow, "idempotency", "WHERE hash=?", key_hash)

    def keys_behind(self, after: int, first_seq: int, last_seq: int, limit: int) -> Iterator[KeyRow | Corrupt]:
        """Idempotency keys behind an id whose records came with these commits, in the order of ids."""
        rest = "WHERE id>? AND seq>=? AND seq<=? ORDER BY id LIMIT ?"
        return self._many(KeyRow, "idempotency", rest, after, first_seq, last_seq, limit)

    def last_key_upto(self, seq: int) -> int:
        """Id of the newest idempotency key that came with this commit or before; 0 when there is none."""
        sql = "SELECT id FROM idempotency WHERE seq<=? ORDER BY id DESC LIMIT 1"
        found = self.connection.execute(sql, (seq,)).fetchone()
        return int(found[0]) if found else 0

    def first_key_seq(self) -> int | None:
        """The commit that brought the oldest idempotency key that is remembered; None when there is none."""
        found = self.connection.execute("SELECT seq FROM idempotency ORDER BY id LIMIT 1").fetchone()
        return int(found[0]) if found else None

    def newest_key_below(self, after: int, partition_id: int, record: int, batched: tuple[int, int]) -> int:
        """Of a partition's records below an offset the last commit that brought an idempotency key; 0 when none did.

        Keys up to an id do not count, nor those of a stretch of commits.
        """
        sql = (
            "SELECT coalesce(max(seq), 0) FROM idempotency"
            " WHERE id>? AND partition_id=? AND record<? AND NOT (seq>? AND seq<=?)"
        )
        found = self.connection.execute(sql, (after, partition_id, record, *batched)).fetchone()
        return int(found[0]) if found else 0

    def spaces(self) -> Iterator[SpaceRow | Corrupt]:
        """All spaces."""
        return self._many(SpaceRow, "spaces", "ORDER BY id")

    def space(self, name: bytes) -> SpaceRow | None:
        """One space; an index may be damaged, so its word that there is none is not trusted."""
        found = self._one(SpaceRow, "spaces", "WHERE name=?", name)
        return found or self._one(SpaceRow, "spaces NOT INDEXED", "WHERE CAST(name AS BLOB)=?", name)

    def space_items(self, space_id: int, body_bytes_max: int) -> Iterator[ItemRow]:
        """The items of a space, in no order; one that is not what it must be, or whose body is too long, is raised."""
        for values in self.connection.execute(_ITEMS, (space_id, body_bytes_max)):
            yield ItemRow._make(_checked_values(ItemRow, values, self.path, "space_items"))

    def space_item(self, space_id: int, key: bytes, body_bytes_max: int) -> ItemRow | None:
        """One item of a space; the caller must know whether there should be one."""
        values = self.connection.execute(f"{_ITEMS} AND key=?3", (space_id, body_bytes_max, key)).fetchone()
        return None if values is None else ItemRow._make(_checked_values(ItemRow, values, self.path, "space_items"))

    def segment(self, partition_id: int, number: int) -> SegmentRow | None:
        """One segment of the manifest."""
        return self._one(SegmentRow, "segments", "WHERE partition_id=? AND number=?", partition_id, number)

    def segment_holding(self, partition_id: int, offset: int) -> SegmentRow | None:
        """The last segment that begins at or before an offset."""
        rest = "WHERE partition_id=? AND first_offset<=? ORDER BY first_offset DESC LIMIT 1"
        return self._one(SegmentRow, "segments", rest, partition_id, offset)

    def segments(self, partition_id: int, start: int, stop: int) -> list[SegmentRow]:
        """Segments start..stop by number; a damaged one is raised."""
        rest = "WHERE partition_id=? AND number>=? AND number<? ORDER BY number"
        return self._all(SegmentRow, "segments", rest, partition_id, start, stop)

    def segments_in_state(self, state: int) -> list[SegmentRow]:
        """All segments in a state other than live, by partition and number; a damaged one is raised."""
        return self._all(SegmentRow, "segments", f"WHERE state={state:d} AND state != 1 ORDER BY partition_id, number")

    def entries_below(self, partition_id: int, offset: int, limit: int) -> int:
        """How many entries of a partition begin below an offset; counted up to a limit."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM entries WHERE partition_id=? AND first_offset<? LIMIT ?)"
        found = self.connection.execute(sql, (partition_id, offset, limit)).fetchone()
        return int(found[0]) if found else 0

    def tail_bytes(self, partition_id: int, start: int, end: int) -> int:
        """Stored bytes of the entries of a span."""
        rest = "WHERE partition_id=? AND first_offset>=? AND first_offset<?"
        found = self.connection.execute(f"{_BYTES} {rest}", (partition_id, start, end)).fetchone()
        stored = self._last(f"{rest} ORDER BY first_offset DESC LIMIT 1", partition_id, start, end)
        late = self.late.overlapping(partition_id, start, end)
        return int(found[0] if found else 0) + sum(entry.size for entry in late if entry.seq > stored)

    def bytes_after(self, seq: int) -> int:
        """Stored bytes of the entries behind a sequence number."""
        found = self.connection.execute(f"{_BYTES} WHERE seq > ?", (seq,)).fetchone()
        stored = self._last("ORDER BY seq DESC LIMIT 1")
        return int(found[0] if found else 0) + sum(entry.size for entry in self.late.after(max(seq, stored)))

    def ends_upto(self, seq: int) -> dict[int, int]:
        """Where each partition's entries end that were committed up to a sequence number and are still here."""
        sql = "SELECT partition_id, max(first_offset + count) FROM entries WHERE seq <= ? GROUP BY partition_id"
        ends = {int(partition): int(end) for partition, end in self.connection.execute(sql, (seq,))}
        for entry in tuple(self.late.entries):
            if entry.seq <= seq:
                ends[entry.partition_id] = max(ends.get(entry.partition_id, 0), entry.first + entry.count)
        return ends

    def _last(self, rest: str, *bound: int) -> int:
        """The number of the last entry that the database has."""
        found = self.connection.execute(f"SELECT seq FROM entries {rest}", bound).fetchone()
        return found[0] if found and type(found[0]) is int else 0

    def entries_after(self, seq: int, body_bytes_max: int) -> Iterator[Entry | int]:
        """Entries of all partitions in the order of commits; of one whose body is too long, only its number."""
        sql = f"{_ENTRIES} WHERE seq > ?2 ORDER BY seq"
        for values in self.connection.execute(sql, (body_bytes_max, seq)):
            if (entry := self._entry(values, _SEQ, body_bytes_max)) is None:
                return
            seq = entry if isinstance(entry, int) else entry.seq
            yield entry
        for late in self.late.after(seq):
            if (entry := self._late_entry(late, late.seq, body_bytes_max)) is None:
                return
            yield entry

    def last_in_files(self) -> Iterator[tuple[int, int, Entry | int | None]]:
        """Of each file of groups, the partition and the entry that the database has last of it.

        The entry is None where its body is gone, or a number where it is too long to be one.
        """
        sql = f"{_ENTRIES} WHERE seq IN (SELECT max(seq) FROM entries WHERE file > 0 GROUP BY file)"
        for values in self.connection.execute(sql, (0,)):
            file, partition_id = values[-3], values[1]
            if isinstance(file, int) and isinstance(partition_id, int):  # else the row itself is found to be damaged
                yield file, partition_id, self._entry(values, _SEQ, _BODY_BYTES_MAX)

    def entries(
        self, partition_id: int, span: tuple[int, int], body_bytes_max: int, limit: int, *, descending: bool
    ) -> Iterator[Entry | int]:
        """Entries that overlap the span; of one whose body is too long, only where it begins."""
        if descending:
            return islice(self._newest_first(partition_id, span, body_bytes_max), limit)
        return islice(self._oldest_first(partition_id, span, body_bytes_max), limit)

    def _oldest_first(self, partition_id: int, span: tuple[int, int], body_bytes_max: int) -> Iterator[Entry | int]:
        start, end = span
        for entry in self._stored(partition_id, span, body_bytes_max, "ASC"):
            if entry is None:
                return
            start = entry + 1 if isinstance(entry, int) else entry.first + entry.count
            yield entry
        for late in self.late.overlapping(partition_id, start, end):
            if (entry := self._late_entry(late, late.first, body_bytes_max)) is None:
                return
            yield entry

    def _newest_first(self, partition_id: int, span: tuple[int, int], body_bytes_max: int) -> Iterator[Entry | int]:
        start, end = span
        for late in reversed(self.late.overlapping(partition_id, start, end)):
            if (entry := self._late_entry(late, late.first, body_bytes_max)) is None:
                return
            end = late.first
            yield entry
        if start < end:
            for entry in self._stored(partition_id, (start, end), body_bytes_max, "DESC"):
                if entry is None:
                    return
                yield entry

    def _stored(
        self, partition_id: int, span: tuple[int, int], body_bytes_max: int, order: str
    ) -> Iterator[Entry | int | None]:
        """Entries of the database that overlap a span; None where a body is gone."""
        # The entry that holds the span's start begins at or before it: that one is looked up first.
        sql = (
            f"{_ENTRIES} WHERE partition_id=?2 AND first_offset >= coalesce((SELECT max(first_offset) FROM entries"
            " WHERE partition_id=?2 AND first_offset <= ?3), ?3)"
            f" AND first_offset < ?4 ORDER BY first_offset {order}"
        )
        for values in self.connection.execute(sql, (body_bytes_max, partition_id, *span)):
            entry = self._entry(values, _FIRST, body_bytes_max)
            if not isinstance(entry, Entry) or entry.first + entry.count > span[0]:  # else the start is in a file alone
                yield entry

    def _entry(self, values: Sequence[object], number_column: int, body_bytes_max: int) -> Entry | int | None:
        """An entry as it was stored; of one whose body is too long, that column; None if its body is gone."""
        file, position, size = values[-3:]
        if (file, position, size) == (0, 0, 0):
            number = values[number_column]
            if values[12] is None and type(number) is int:
                return number
            return Entry._make(_checked_values(Entry, values[:14], self.path, "entries"))
        columns = (*values[:12], values[13], file, position, size)
        filed = GroupFileEntry._make(_checked_values(GroupFileEntry, columns, self.path, "entries"))
        return self._late_entry(filed, filed.seq if number_column == _SEQ else filed.first, body_bytes_max)

    def _late_entry(self, filed: GroupFileEntry, number: int, body_bytes_max: int) -> Entry | int | None:
        if not 0 <= filed.size <= body_bytes_max:
            return number
        if not (0 < filed.file <= NUMBER_MAX and 0 < filed.position <= NUMBER_MAX):
            return None
        body = self.files.body(filed.file, filed.position, filed.size)
        return None if body is None else filed.entry(body)

    def _one(self, row: type[Row], table: str, rest: str, *bound: int | bytes) -> Row | None:
        values = self.connection.execute(f"SELECT {columns(row)} FROM {table} {rest}", bound).fetchone()
        return None if values is None else checked(row, values, self.path, table)

    def _all(self, row: type[Row], table: str, rest: str, *bound: int) -> list[Row]:
        found = self.connection.execute(f"SELECT {columns(row)} FROM {table} {rest}", bound)
        return [checked(row, values, self.path, table) for values in found]

    def _many(self, row: type[Row], table: str, rest: str, *bound: int) -> Iterator[Row | Corrupt]:
        for values in self.connection.execute(f"SELECT {columns(row)} FROM {table} {rest}", bound):
            try:
                yield checked(row, values, self.path, table)
            except Corrupt as damage:
                yield damage


def columns(row: type[object]) -> str:
    """The columns of a row, guarded."""
    return _COLUMNS[row]


def _spelled(row: type[object]) -> str:
    guarded = _exact if row in (SpaceRow, ItemRow, SessionRow) else _guarded
    return ", ".join(_number(name) if kind is int else guarded(name) for name, kind in _TYPES[row].items())


def _guarded(column: str) -> str:
    """A column that is not fetched when it is too long; text comes as bytes, to be decoded with care."""
    return f"CASE WHEN octet_length({column}) <= {_LONG.get(column, _LONGEST)} THEN CAST({column} AS BLOB) END"


def _exact(column: str) -> str:
    """The same for rows that are found by such a column: text of the same bytes would never be found again."""
    return f"CASE WHEN typeof({column}) = 'blob' THEN {_guarded(column)} END"


def _number(column: str) -> str:
    """A column that holds an integer, or nothing: whatever else stands there is not even converted."""
    return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END"


def checked(row: type[Row], values: Sequence[object], path: Path, table: str) -> Row:
    """The row; Corrupt where a value is not of the type that its column must have."""
    return row(*_checked_values(row, values, path, table))  # type: ignore[arg-type]


def _checked_values(row: type[object], values: Sequence[object], path: Path, table: str) -> list[object]:
    """The values with the types that their columns must have."""
    taken: list[object] = []
    for (name, kind), value in zip(_TYPES[row].items(), values, strict=True):
        found = _text(value) if kind is str else value
        if type(found) is not kind:
            raise Corrupt(f"a stored value is not what it must be table={table} column={name}", path=str(path))
        taken.append(found)
    return taken


def _text(value: object) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else None
    except UnicodeDecodeError:
        return None


_COLUMNS = {row: _spelled(row) for row in _TYPES}
_ENTRIES = (
    f"SELECT {', '.join([*map(_number, _NUMBERS), _guarded('link'), _guarded('digest')])},"
    f" CASE WHEN octet_length(body) <= ?1 THEN CAST(body AS BLOB) END, {_guarded('schema')},"
    f" {', '.join(map(_number, ('file', 'position', 'size')))} FROM entries"
)
"""Bodies up to ?1 bytes."""
NEXT_PLACE = (
    f"SELECT {_guarded('log_id')}, {', '.join(map(_number, ('epoch', 'groups', 'group_file', 'group_position')))}"
    " FROM log WHERE id=1"
)
"""The log's id, who owns it, how many groups the database has, and where the next one may be in a file."""
FILED_PLACES = f"SELECT {', '.join(map(_number, ('seq', 'file', 'position', 'size')))} FROM entries"
_BYTES = "SELECT coalesce(sum(octet_length(body) + size), 0) FROM entries"
_ITEM = ", ".join([_number("space_id"), _exact("key"), _number("number"), _number("key_epoch")])
_ITEMS = (
    f"SELECT {_ITEM}, CASE WHEN octet_length(body) <= ?2 THEN CAST(body AS BLOB) END FROM space_items WHERE space_id=?1"
)
