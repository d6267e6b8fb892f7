"""The control rows of a database, table by table, even if it is damaged.

Opening a log fails at a table that cannot be read. Inspecting one goes on: what cannot be read is noted in `damage`.
Values are guarded as in `stored_rows`. Nothing is proved here; `examination` does that.

Of entries and segments only sums and ends are taken: there may be millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw
import msgspec

from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.journal.sqlite import stored_rows
from holdfast.journal.sqlite.stored_rows import Counts, LastEntry
from holdfast.model.control_rows import (
    LIVE,
    EpochRow,
    HeadRow,
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

Row = TypeVar(
    "Row",
    LogRow,
    EpochRow,
    TopicRow,
    HeadRow,
    KeyEpoch,
    LastEntry,
    WatermarkRow,
    SegmentRow,
    SchemaRow,
    PolicyRow,
    ShippingRow,
    ShipmentRow,
    SpaceRow,
    SessionRow,
)


class ControlRows(msgspec.Struct):
    """All control rows of a log at one moment, and what could not be read of them."""

    path: Path
    log: LogRow | None = None
    epochs: list[EpochRow] = []
    key_epochs: list[KeyEpoch] = []
    topics: list[TopicRow] = []
    heads: list[HeadRow] = []
    watermarks: dict[int, WatermarkRow] = {}
    schemas: list[SchemaRow] = []
    policies: list[PolicyRow] = []
    spaces: list[SpaceRow] = []
    shipping: ShippingRow | None = None
    shipments: dict[int, ShipmentRow] = {}
    """How far partitions are on the store."""
    damage: list[Corrupt] = []
    stored: LogRow | None = None
    """The log's own row as the database has it: `log` counts groups that are in files alone, too."""

    def shipment(self, partition_id: int) -> ShipmentRow | None:
        """How far a partition is on the store: not at all where that is lost; None where there is no store."""
        if self.shipping is None:
            return None
        mark = self.watermarks.get(partition_id)
        first = 0 if mark is None or mark.segments else mark.first_offset
        return self.shipments.get(partition_id, ShipmentRow(partition_id, 0, 0, first, first))

    @property
    def topic_names(self) -> dict[int, str]:
        """The names of topics, by id."""
        return {topic.id: topic.name for topic in self.topics}


class PartitionBytes(NamedTuple):
    """What a partition has in its tail and in segment files, and what of it has yet to be sent to its store."""

    tail: int = 0
    segments: int = 0
    unshipped: int = 0
    """Stored bytes of entries that are not on the store."""
    unsettled: int = 0
    """Bytes of segment files whose manifest object the store does not have."""


class ControlTables:
    """The tables of a database inside one read transaction; `tolerant` means to go on after what cannot be read."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        damage: list[Corrupt] | None = None,
        *,
        tolerant: bool = False,
        late: UnfoldedRows | None = None,
    ) -> None:
        self.late = UnfoldedRows() if late is None else late
        """What is in files alone, and counts as if it were here."""
        self.connection = connection
        self.path = path
        self.damage = [] if damage is None else damage
        self._unreadable = apsw.Error if tolerant else ()
        self._stored: LogRow | None = None
        self._is_log_read = False

    def control_rows(self, newest: int | None = None) -> ControlRows:
        """All control rows; of epochs and key epochs only the `newest`, but one at least (None: all)."""
        limit = -1 if newest is None else max(1, newest)
        if self.late.damage is not None:
            self.damage.append(self.late.damage)
        return ControlRows(
            self.path,
            self.log_row(),
            self.rows("epochs", EpochRow, "ORDER BY number DESC LIMIT ?", limit)[::-1],
            self.rows("key_epochs", KeyEpoch, "ORDER BY number DESC LIMIT ?", limit)[::-1],
            self.rows("topics", TopicRow, "ORDER BY id"),
            self.heads("ORDER BY topic_id, number"),
            {row.partition_id: row for row in self.rows("watermarks", WatermarkRow, "ORDER BY partition_id")},
            self.rows("schemas", SchemaRow, "ORDER BY topic_id, version"),
            self.rows("policies", PolicyRow, "ORDER BY topic_id"),
            self.rows("spaces", SpaceRow, "ORDER BY id"),
            self.shipping_row(),
            {row.partition_id: row for row in self.rows("shipments", ShipmentRow, "ORDER BY partition_id")},
            self.damage,
            self.stored_log_row(),
        )

    def log_row(self) -> LogRow | None:
        """The log's own row."""
        stored = self.stored_log_row()
        return None if stored is None else self.late.row_after(stored)

    def stored_log_row(self) -> LogRow | None:
        """The same as the database has it: without groups that are in files alone, and with its stamp."""
        if not self._is_log_read:  # what is wrong with it is reported once
            self._stored, self._is_log_read = next(iter(self.rows("log", LogRow, "WHERE id=1")), None), True
        return self._stored

    def shipping_row(self) -> ShippingRow | None:
        """Where the log is shipped to."""
        return next(iter(self.rows("shipping", ShippingRow, "WHERE id=1")), None)

    def heads(self, rest: str, *bound: int) -> list[HeadRow]:
        """Some of the heads, as they are now."""
        return list(map(self.late.head_after, self.stored_heads(rest, *bound)))

    def stored_heads(self, rest: str, *bound: int) -> list[HeadRow]:
        """The same as the database has them."""
        return self.rows("heads", HeadRow, rest, *bound)

    def watermarks(self, first: int, last: int) -> list[WatermarkRow]:
        """How far the partitions with these ids are sealed."""
        return self.rows("watermarks", WatermarkRow, "WHERE partition_id BETWEEN ? AND ?", first, last)

    def shipments(self, first: int, last: int) -> list[ShipmentRow]:
        """How far the partitions with these ids are on the store."""
        return self.rows("shipments", ShipmentRow, "WHERE partition_id BETWEEN ? AND ?", first, last)

    def rows(self, table: str, row: type[Row], rest: str, *bound: int) -> list[Row]:
        """The rows of a table that can be read and are what they must be; the others are damage."""
        found: list[Row] = []
        with self._reading(table):
            for values in self.connection.execute(f"SELECT {stored_rows.columns(row)} FROM {table} {rest}", bound):
                try:
                    found.append(stored_rows.checked(row, values, self.path, table))
                except Corrupt as damage:
                    self.damage.append(damage)
        return found

    def last_entry(self, partition_id: int) -> LastEntry | None:
        """Where a partition's entries end; None where there are none."""
        if (late := self.late.last(partition_id)) is not None:
            return LastEntry(late.first, late.count, late.digest)
        rest = "WHERE partition_id=? ORDER BY first_offset DESC LIMIT 1"
        return next(iter(self.rows("entries", LastEntry, rest, partition_id)), None)

    def sessions(self) -> list[SessionRow]:
        """All sessions of producers."""
        late = self.late.sessions
        stored = [row for row in self.rows("sessions", SessionRow, "ORDER BY rowid") if row.name not in late]
        return [*stored, *(row for row in late.values() if row is not None)]

    def segment(self, partition_id: int, number: int) -> SegmentRow | None:
        """One segment of the manifest."""
        rows = self.rows("segments", SegmentRow, "WHERE partition_id=? AND number=?", partition_id, number)
        return next(iter(rows), None)

    def segments(self, partition_id: int, start: int, stop: int, limit: int) -> list[SegmentRow]:
        """Segments start..stop by number, up to a limit."""
        rest = "WHERE partition_id=? AND number>=? AND number<? ORDER BY number LIMIT ?"
        return self.rows("segments", SegmentRow, rest, partition_id, start, stop, limit)

    def counts(self) -> Counts | None:
        """How many rows there are, by walking the smallest index; None where they cannot be counted."""
        parts = [f"(SELECT {what} FROM {table})" for table, what in _COUNTED]
        try:
            values = self.connection.execute(f"SELECT {', '.join(parts)}").fetchone()
            counts = stored_rows.checked(Counts, values or (), self.path, "sqlite_schema")
            if not self.late.entries:
                return counts
            return counts._replace(entries=counts.entries + len(self.late.entries), last_seq=self.late.entries[-1].seq)
        except (apsw.BusyError, apsw.LockedError):
            raise
        except self._unreadable:
            for table, what in dict(_COUNTED).items():  # one of them cannot be read: say which
                self.number(table, what)
            return None

    def number(self, table: str, what: str, where: str = "1", *bound: int) -> int:
        """A number about a table; 0 if there is none."""
        found: object = 0
        with self._reading(table):
            found = self.connection.execute(f"SELECT {what} FROM {table} WHERE {where}", bound).get
        return found if isinstance(found, int) else 0

    def bytes_of(self, partition_id: int, control: ControlRows) -> PartitionBytes:
        """What a partition has in its tail and, beyond what retention removed, in segments."""
        mark, shipment = control.watermarks.get(partition_id), control.shipment(partition_id)
        sealed, first = (0, 0) if mark is None else (mark.sealed_offset, mark.first_segment)
        here = (self._entry_bytes(partition_id, sealed), self._segment_bytes(partition_id, first))
        if shipment is None:
            return PartitionBytes(*here)
        unsettled = self._segment_bytes(partition_id, max(first, shipment.settled_segments))
        return PartitionBytes(*here, self._entry_bytes(partition_id, shipment.shipped_offset), unsettled)

    def key_uses(self, control: ControlRows) -> tuple[Counter[str], Counter[str]]:
        """How many entries and how many live segments there are under each key, by its name."""
        names = {epoch.number: epoch.key_id for epoch in control.key_epochs}
        entries, segments = Counter[str](), Counter[str]()
        for number, count in self.connection.execute("SELECT key_epoch, count(*) FROM entries GROUP BY key_epoch"):
            entries[names.get(number, "")] += count
        for entry in self.late.entries:
            entries[names.get(entry.key_epoch, "")] += 1
        sql = f"SELECT key_id, count(*) FROM segments WHERE state={LIVE} GROUP BY key_id"
        segments.update(dict(self.connection.execute(sql)))
        return entries, segments

    def _entry_bytes(self, partition_id: int, offset: int) -> int:
        what, where = "coalesce(sum(octet_length(body) + size), 0)", "partition_id=? AND first_offset>=?"
        late = (entry for entry in self.late.entries if entry.partition_id == partition_id and entry.first >= offset)
        return self.number("entries", what, where, partition_id, offset) + sum(entry.size for entry in late)

    def _segment_bytes(self, partition_id: int, number: int) -> int:
        what, where = "coalesce(sum(size), 0)", f"partition_id=? AND number>=? AND state={LIVE}"
        return self.number("segments", what, where, partition_id, number)

    @contextmanager
    def _reading(self, table: str) -> Iterator[None]:
        """If this goes on after damage, a table that cannot be read is noted; one that is locked is no damage."""
        try:
            yield
        except (apsw.BusyError, apsw.LockedError):
            raise
        except self._unreadable:
            self.damage.append(Corrupt(f"a table cannot be read to its end table={table}", path=str(self.path)))


_COUNTED = (
    ("epochs", "coalesce(max(number), 0)"), ("key_epochs", "coalesce(max(number), 0)"), ("topics", "count(*)"),
    ("heads", "count(*)"), ("entries", "count(*)"), ("entries", "coalesce(max(seq), 0)"), ("segments", "count(*)"),
    ("schemas", "count(*)"), ("policies", "count(*)"), ("spaces", "count(*)"),
)  # fmt: skip
