"""Rows as they come back from the database: nothing about them is taken for granted.

A damaged file can hold any value in any column: other types, text that is not UTF-8, blobs of a gigabyte.
So values that are too long are not even fetched, types are checked before anything is computed with them,
and what does not fit is `Corrupt`, never a TypeError somewhere later. Stamps and digests are checked by
whoever has the keys (`proofs`, `entry_reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

import apsw

from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt
from holdfast.model.control_rows import (
    ITEM_KEY_BYTES_MAX,
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
    ShipmentRow,
    ShippingRow,
    SpaceRow,
    TopicRow,
    WatermarkRow,
)
from holdfast.model.entry import Entry

_LONGEST = 256
"""No id, hash, salt or stamp is longer; bodies have limits of their own."""

_LONG = {
    "definition": 16 * 2**20, "root": 4096, "name": SPACE_NAME_BYTES_MAX, "key": ITEM_KEY_BYTES_MAX,
    **dict.fromkeys(("alarm", "ended", "last_error"), SHIPPING_TEXT_BYTES_MAX),
}  # fmt: skip
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
        LogRow, EpochRow, TopicRow, HeadRow, KeyRow, KeyEpoch, LastEntry, Counts, Entry, WatermarkRow, SegmentRow,
        SchemaRow, PolicyRow, ShippingRow, ShipmentRow, SpaceRow, ItemRow,
    )
}  # fmt: skip

Row = TypeVar(
    "Row", LogRow, EpochRow, TopicRow, HeadRow, KeyRow, KeyEpoch, LastEntry, Counts, WatermarkRow, SegmentRow,
    SchemaRow, PolicyRow, ShippingRow, ShipmentRow, SpaceRow,
)  # fmt: skip


_NUMBERS = (
    "seq", "partition_id", "first_offset", "count", "group_number", "kind", "codec", "key_epoch", "time_min",
    "time_max",
)  # fmt: skip
ENTRY_COLUMNS = ", ".join((*_NUMBERS, "link", "digest"))
"""The columns of an entry before its body, as `Entry` has them."""


class StoredRows:
    """Reads rows through one connection; a damaged row is reported, never guessed."""

    __slots__ = ("connection", "path")

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self.connection = connection
        """For this room alone."""
        self.path = path

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
        """One item of a space; whoever asks must know whether there should be one."""
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
        sql = f"SELECT coalesce(sum(octet_length(body)), 0) FROM entries {rest}"
        found = self.connection.execute(sql, (partition_id, start, end)).fetchone()
        return int(found[0]) if found else 0

    def entries_after(self, seq: int, body_bytes_max: int, limit: int) -> Iterator[Entry | int]:
        """Entries of all partitions in the order of commits; of one whose body is too long, only its number."""
        body = "CASE WHEN octet_length(body) <= ?2 THEN CAST(body AS BLOB) END"
        sql = f"SELECT {_ENTRY}, {body}, {_guarded('schema')} FROM entries WHERE seq > ?1 ORDER BY seq LIMIT ?3"
        for values in self.connection.execute(sql, (seq, body_bytes_max, limit)):
            if values[-2] is None and type(values[0]) is int:
                yield values[0]
            else:
                yield Entry._make(_checked_values(Entry, values, self.path, "entries"))

    def bytes_after(self, seq: int) -> int:
        """Stored bytes of the entries behind a sequence number."""
        sql = "SELECT coalesce(sum(octet_length(body)), 0) FROM entries WHERE seq > ?"
        found = self.connection.execute(sql, (seq,)).fetchone()
        return int(found[0]) if found else 0

    def ends_upto(self, seq: int) -> dict[int, int]:
        """Where each partition's entries end that were committed up to a sequence number and are still here."""
        sql = "SELECT partition_id, max(first_offset + count) FROM entries WHERE seq <= ? GROUP BY partition_id"
        return {int(partition): int(end) for partition, end in self.connection.execute(sql, (seq,))}

    def entries(
        self,
        partition_id: int,
        span: tuple[int, int],
        body_bytes_max: int,
        limit: int,
        *,
        descending: bool,
    ) -> Iterator[Entry | int]:
        """Entries that overlap the span; of one whose body is too long, only where it begins."""
        order = "DESC" if descending else "ASC"
        # The entry that holds the span's start begins at or before it: that one is looked up first.
        sql = (
            f"SELECT {_ENTRY}, CASE WHEN octet_length(body) <= ?4 THEN CAST(body AS BLOB) END, {_guarded('schema')}"
            " FROM entries WHERE partition_id=?1 AND first_offset >= coalesce((SELECT max(first_offset) FROM entries"
            " WHERE partition_id=?1 AND first_offset <= ?2), ?2)"
            f" AND first_offset < ?3 ORDER BY first_offset {order} LIMIT ?5"
        )
        for values in self.connection.execute(sql, (partition_id, *span, body_bytes_max, limit)):
            if values[-2] is None and type(values[2]) is int:
                yield values[2]
            else:
                yield Entry._make(_checked_values(Entry, values, self.path, "entries"))

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


def columns(row: type[object], lacking: frozenset[str] = frozenset()) -> str:
    """The columns of a row, guarded; those that an older database lacks are zero or empty."""
    return _spelled(row, lacking) if lacking else _COLUMNS[row]


def _spelled(row: type[object], lacking: frozenset[str] = frozenset()) -> str:
    guarded = _exact if row in (SpaceRow, ItemRow) else _guarded
    return ", ".join(
        ("0" if kind is int else "x''") if name in lacking else _number(name) if kind is int else guarded(name)
        for name, kind in _TYPES[row].items()
    )


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
_ENTRY = ", ".join([*map(_number, _NUMBERS), _guarded("link"), _guarded("digest")])
_ITEM = ", ".join([_number("space_id"), _exact("key"), _number("number"), _number("key_epoch")])
_ITEMS = (
    f"SELECT {_ITEM}, CASE WHEN octet_length(body) <= ?2 THEN CAST(body AS BLOB) END FROM space_items WHERE space_id=?1"
)
