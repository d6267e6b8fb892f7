"""How new rows join those that a table has: the latest row of each key, or values added up.

    merge = Merge(Latest(("id",), ("offset",)), changes)
    for batch in stored:
        write(merge.others(batch))         # rows of other keys go on as they are
    write(merge.rows())                    # and those of the changed keys, as they are now

Any split of the same rows into increments ends in the same rows (sums of floats: but for their last digits). Stored
rows pass batch by batch; in memory are the changes and the stored rows of their keys. Values in, values out: no file is
known here, and nothing is durable. What cannot be added up (a sum beyond its type) is Invalid, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.tables.key_numbers import KeyNumbers

DELETED = "__deleted"
"""Beside the columns of a keyed table while it is merged: whether a row says that its key is deleted; null says no."""

Function = Literal["sum", "min", "max"]
_is = pa.types


class Rule(Protocol):
    """What becomes of rows that have the same key."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key."""

    def reduced(self, rows: pa.Table) -> pa.Table:
        """One row per key. Of rows that are equal to the rule, the first counts."""


# -- the latest row -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Latest:
    """The row with the highest `order_by`, column by column; null and NaN are the lowest."""

    key: tuple[str, ...]
    order_by: tuple[str, ...]

    def reduced(self, rows: pa.Table) -> pa.Table:
        """See `Rule`."""
        numbers = KeyNumbers(rows, self.key)
        if numbers.count == len(rows):
            return rows
        order = [rows.column(name) for name in self.order_by]
        sorted_by = pa.table([numbers.of_rows, *order], [str(place) for place in range(len(order) + 1)])
        # Descending, so that nulls and NaN, which Arrow puts last, are the lowest. The sort is stable.
        directions = ["ascending", *("descending" for _ in order)]
        places = pc.sort_indices(sorted_by, sort_keys=list(zip(sorted_by.column_names, directions, strict=True)))
        return rows.take(places.filter(_firsts(_one(numbers.of_rows.take(places)))))


def tombstone_schema(schema: pa.Schema, rule: Latest) -> pa.Schema:
    """What is remembered of a deleted key: the key, and since when."""
    names = dict.fromkeys((*rule.key, *rule.order_by))
    return pa.schema([schema.field(name).with_nullable(True) for name in names])


def from_tombstones(rows: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """Tombstones as rows that delete."""
    return rows.append_column(DELETED, pa.repeat(pa.scalar(True), len(rows)))


def live_and_deleted(rows: pa.Table, schema: pa.Schema, rule: Latest) -> tuple[pa.Table, pa.Table]:
    """Rows as a table has them, and tombstones of those that delete."""
    deleted = pc.fill_null(rows.column(DELETED), False)
    gone = rows.filter(deleted).select(tombstone_schema(schema, rule).names)
    return rows.filter(pc.invert(deleted)).select(schema.names), gone


# -- values added up ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Combine:
    """Values of the same key put together, as SQL's aggregates do: nulls do not count."""

    key: tuple[str, ...]
    values: Mapping[str, Function]
    means: tuple[str, ...] = ()
    """Columns that are made from `<name>_sum` and `<name>_count`, which are among the values."""

    def reduced(self, rows: pa.Table) -> pa.Table:
        """See `Rule`."""
        numbers = KeyNumbers(rows, self.key)
        if numbers.count < len(rows):
            rows = self._folded(rows, numbers)
        for name in self.means:
            place, kind = rows.schema.get_field_index(name), rows.schema.field(name).type
            made = mean(rows.column(f"{name}_sum"), rows.column(f"{name}_count"), kind, name)
            rows = rows.set_column(place, rows.schema.field(name), made)
        return rows

    def _folded(self, rows: pa.Table, numbers: KeyNumbers) -> pa.Table:
        """Neighbours of one key become one row, until no key has two."""
        order = pc.sort_indices(numbers.of_rows)
        rows, codes = rows.take(order), _one(numbers.of_rows.take(order))
        while len(codes) > numbers.count:
            left, right = _pairs(codes)
            rows, codes = self._joined(rows, left, right), codes.take(left)
        return rows

    def _joined(self, rows: pa.Table, left: pa.Array, right: pa.Array) -> pa.Table:
        kept = rows.take(left)
        for name, function in self.values.items():
            place = rows.schema.get_field_index(name)
            joined = combined(function, kept.column(place), rows.column(place).take(right), name)
            kept = kept.set_column(place, rows.schema.field(place), joined)
        return kept


def combined(function: Function, left: pa.ChunkedArray, right: pa.ChunkedArray, name: str = "") -> pa.ChunkedArray:
    """Two columns as one, row by row; where one has null, the other counts."""
    both = _added(left, right, name) if function == "sum" else _extreme(function, left, right)
    return pc.coalesce(both, left, right)


def mean(total: pa.ChunkedArray, count: pa.ChunkedArray, kind: pa.DataType, name: str = "") -> pa.ChunkedArray:
    """Sums by counts; null where nothing was counted. Decimals are rounded as Spark does: half away from zero."""
    some = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
    if not _is.is_decimal(kind):
        return pc.divide(total.cast(pa.float64(), safe=False), some.cast(pa.float64(), safe=False)).cast(kind)
    exact = pc.divide(total.cast(_wide(total.type)), some.cast(pa.decimal256(19, 0)))
    try:
        return pc.round(exact, ndigits=kind.scale, round_mode="half_towards_infinity").cast(kind)
    except pa.ArrowInvalid:
        raise _unfit("mean", name, kind) from None


def _added(left: pa.ChunkedArray, right: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = left.type
    try:
        if _is.is_decimal(kind):
            return pc.add(left.cast(_wide(kind)), right.cast(_wide(kind))).cast(kind)
        return pc.add_checked(left, right)
    except pa.ArrowInvalid:
        raise _unfit("sum", name, kind) from None


def _unfit(what: str, name: str, kind: pa.DataType) -> Invalid:
    return Invalid(
        f"a {what} does not fit its column column={name} type={kind}",
        hint="cast the column that is added up to a decimal or a double in the table's function",
    )


def _extreme(function: Function, left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    greater = pc.greater(left, right)
    if _is.is_floating(left.type):
        greater = pc.or_(greater, pc.is_nan(left))  # NaN is the greatest, as in Spark
    return pc.if_else(greater, left, right) if function == "max" else pc.if_else(greater, right, left)


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.decimal256(38, kind.scale)


def _pairs(codes: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Of sorted numbers: the places of every second row of each, and those of the rows behind, null where none is."""
    places, firsts = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1), len(codes))), 1), _firsts(codes)
    begins = pc.cumulative_max(pc.if_else(firsts, places, 0))
    is_left = pc.equal(pc.bit_wise_and(pc.subtract(places, begins), 1), 0)
    has_more = pa.concat_arrays([pc.invert(firsts).slice(1), pa.array([False])])
    behind = pc.if_else(has_more, pc.add(places, 1), pa.scalar(None, pa.int64()))
    return places.filter(is_left), behind.filter(is_left)


def _firsts(codes: pa.Array) -> pa.Array:
    """Of sorted numbers: where each begins."""
    if not len(codes):
        return pa.array([], pa.bool_())
    changes = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
    return pa.concat_arrays([pa.array([True]), changes])


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column of numbers in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


# -- merging ------------------------------------------------------------------------------------------------


class Merge:
    """New rows, and the stored ones that have their keys."""

    def __init__(self, rule: Rule, changes: pa.Table) -> None:
        """`changes` have all columns that there are; stored rows may have fewer, which are null then."""
        self.key = rule.key
        self._rule = rule
        self._changes = rule.reduced(changes)
        self._keys = KeyNumbers(self._changes, rule.key)
        self._met: list[pa.Table] = []

    def is_touched(self, keys: pa.RecordBatch | pa.Table) -> bool:
        """Whether one of these rows has a key of the changes. Only the key's columns are looked at."""
        found = self._keys.find(keys)
        return bool(found.null_count < len(found))

    def others(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Stored rows of other keys; those of the changes' keys are kept here until `rows`."""
        is_ours = self._keys.find(rows).is_valid()
        met = rows.filter(is_ours)
        if not len(met):
            return rows
        self._met.append(pa.table(met) if isinstance(met, pa.RecordBatch) else met)
        return rows.filter(pc.invert(is_ours))

    def rows(self) -> pa.Table:
        """One row for each key of the changes. Of equal rows, the new one counts."""
        if not self._met:
            return self._changes
        return self._rule.reduced(pa.concat_tables([self._changes, *self._met], promote_options="default"))


class Replacement:
    """New rows that take the place of all stored ones that are equal to one of them in some columns."""

    def __init__(self, key: tuple[str, ...], rows: pa.Table) -> None:
        self.key = key
        self._rows = rows
        self._keys = KeyNumbers(rows, key)

    def is_touched(self, keys: pa.RecordBatch | pa.Table) -> bool:
        """Whether one of these rows is replaced. Only the key's columns are looked at."""
        found = self._keys.find(keys)
        return bool(found.null_count < len(found))

    def others(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Stored rows that stay."""
        return rows.filter(self._keys.find(rows).is_null())

    def rows(self) -> pa.Table:
        """The new rows."""
        return self._rows


class Gathering:
    """Rows of one bucket as they come, reduced now and then: in memory are about twice the keys, not all rows."""

    def __init__(self, rule: Rule, rows_least: int = 200_000) -> None:
        self._rule, self._rows_least = rule, rows_least
        self._tables: list[pa.Table] = []
        self._pending, self._limit = 0, rows_least

    def add(self, rows: pa.Table) -> None:
        """Take rows; later ones count where the rule finds none of them greater."""
        self._tables.append(rows)
        self._pending += len(rows)
        if self._pending >= self._limit:
            reduced = self.rows()
            self._tables, self._pending = [reduced], len(reduced)
            self._limit = max(self._rows_least, 2 * len(reduced))

    def rows(self) -> pa.Table:
        """One row per key."""
        return self._rule.reduced(pa.concat_tables(reversed(self._tables)))
