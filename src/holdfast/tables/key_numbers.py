"""Rows by their keys: numbers for the keys of some rows, by which the same keys are found in other rows.

A key is one column or several. Nulls are values like others, as in SQL's GROUP BY: all rows without a key have the same
one. Floats are no keys: NaN and the two zeros have no answer that everybody expects. Nothing here knows what is done
with rows of the same key. All work is Arrow's, column by column; no row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid

_is = pa.types


class KeyNumbers:
    """The keys of `rows`, numbered from 0 in the order in which they first occur."""

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        self.of_rows: pa.ChunkedArray = self._numbered(rows)
        """The number of each row's key."""
        self.count = len(self._pairs[-1] if self._pairs else self._values[0])
        """How many keys there are."""

    def find(self, rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
        """The number of each row's key; null where it is none of ours."""
        numbers = pc.index_in(rows.column(self._names[0]), value_set=self._values[0])
        for name, values, pairs in zip(self._names[1:], self._values[1:], self._pairs, strict=True):
            found = pc.index_in(rows.column(name), value_set=values)
            numbers = pc.index_in(_paired(numbers, found, len(values)), value_set=pairs)
        return numbers

    def _numbered(self, rows: pa.Table) -> pa.ChunkedArray:
        """Number the keys, column by column: a number stands for all columns so far, so pairs never overflow."""
        numbers = None
        for name in self._names:
            values = pc.unique(rows.column(name))
            self._values.append(values)
            found = pc.index_in(rows.column(name), value_set=values)
            if numbers is None:
                numbers = found
                continue
            pairs = _paired(numbers, found, len(values))
            self._pairs.append(pc.unique(pairs))
            numbers = pc.index_in(pairs, value_set=self._pairs[-1])
        assert numbers is not None, "a key has a column at least"
        return numbers


def _paired(numbers: pa.Array, found: pa.Array, count: int) -> pa.Array:
    """Two numbers as one; null where one of them is."""
    return pc.add(pc.multiply(numbers.cast(pa.int64()), max(count, 1)), found.cast(pa.int64()))


def check_key(schema: pa.Schema, names: Sequence[str], what: str = "key") -> None:
    """Raise Invalid where columns are missing, or cannot be compared as keys."""
    for name in names:
        kind = column_type(schema, name, what)
        if _is.is_floating(kind) or not _is_scalar(kind):
            raise Invalid(
                f"a column of this type cannot be a key {what}={name} type={kind}",
                hint="use whole numbers, strings, bytes, decimals, dates or timestamps; cast it in the function",
            )


def check_order(schema: pa.Schema, names: Sequence[str], what: str = "order_by") -> None:
    """Raise Invalid where columns are missing, or have no order."""
    for name in names:
        kind = column_type(schema, name, what)
        if not _is_scalar(kind):
            raise Invalid(f"a column of this type has no order {what}={name} type={kind}", hint="name another column")


def column_type(schema: pa.Schema, name: str, what: str) -> pa.DataType:
    """The type of a column, or Invalid; `what` says what it was wanted for."""
    if schema.get_field_index(name) < 0:
        raise Invalid(
            f"the function's result has no such column {what}={name}",
            hint=f"select it in the function; it has: {', '.join(schema.names)}",
        )
    return schema.field(name).type


def _is_scalar(kind: pa.DataType) -> bool:
    return not (_is.is_nested(kind) or _is.is_null(kind))
