"""The statistics of a data file, as Delta's log has them: rows, and per column nulls, the least and the greatest value.

Engines skip files by them, so a wrong bound loses rows for their users, and a missing one only costs time. They come
from what Parquet's writer gathered in row groups; for floating columns it gathers nothing (`parquet.footer_bounds`), so
`FloatBounds` does. Left out are bounds that cannot be written exactly in JSON, or that engines understand differently:
columns with NaN (greatest for one engine, nothing for another), infinite values, years that have no four digits,
decimals of more digits than a double holds, booleans, bytes, and all that is nested. Zero is -0.0 as a lower bound and
0.0 as an upper one, since some engines put one before the other. Long texts are cut, and the greatest one gets the
highest letter behind the cut, so that it is a bound still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.publish.delta.actions import moment

if TYPE_CHECKING:
    import pyarrow.parquet as pq

COLUMNS_MAX = 32
"""As many columns as Delta looks at, by default."""
_TEXT_CHARS = 32
_HIGHEST = "\U0010ffff"
_DECIMAL_DIGITS_MAX = 15
_DAY_US = 86_400 * 10**6
_is = pa.types

Bound = Callable[[Any, bool], Any]
"""A value of Parquet as JSON has it, as a lower or an upper bound; None where there is none."""


class FloatBounds:
    """What the rows of one floating column have, gathered piece by piece."""

    def __init__(self) -> None:
        self.nulls = 0
        self.least: float | None = None
        self.most: float | None = None
        self.has_nan = False

    def add(self, values: pa.ChunkedArray) -> None:
        """Take values."""
        self.nulls += values.null_count
        self.has_nan = self.has_nan or bool(pc.any(pc.is_nan(values)).as_py())
        found = pc.min_max(values).as_py()
        if self.has_nan or found["min"] is None:
            return
        self.least = found["min"] if self.least is None else min(self.least, found["min"])
        self.most = found["max"] if self.most is None else max(self.most, found["max"])

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the greatest value; None where there is none, or no order that all engines share."""
        if self.has_nan or self.least is None or self.most is None:
            return None
        return self.least or -0.0, self.most or 0.0


def floating(schema: pa.Schema) -> dict[str, FloatBounds]:
    """Nothing yet, for each floating column that has statistics."""
    some = list(schema)[:COLUMNS_MAX]
    return {column.name: FloatBounds() for column in some if _is.is_floating(column.type) and "." not in column.name}


def bounded_everywhere(schema: pa.Schema) -> list[str]:
    """The columns that have bounds in every file with a value of them, but for years that have no four digits."""
    return [
        column.name
        for column in list(schema)[:COLUMNS_MAX]
        if "." not in column.name
        and not (_is.is_floating(column.type) or _is.is_string(column.type))
        and _bound(column.type) is not None
    ]


def stats_text(metadata: pq.FileMetaData, schema: pa.Schema, floats: Mapping[str, FloatBounds]) -> str:
    """The statistics of a file that was just written; `floats` are what its floating columns have."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls = {name: found.nulls for name, found in floats.items()}
    bounds = {name: found.bounds for name, found in floats.items()}
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    for at, name in _leaves(metadata, schema):
        found = [group.column(at).statistics for group in groups]
        if any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        filled = [one for one in found if one.num_values]
        if filled and all(one.has_min_max for one in filled):
            bounds[name] = min(_value(one, "min") for one in filled), max(_value(one, "max") for one in filled)
    for name, pair in bounds.items():
        bound = _bound(schema.field(name).type)
        if pair is None or bound is None:
            continue
        low, high = bound(pair[0], False), bound(pair[1], True)
        if low is not None and high is not None:
            least[name], most[name] = low, high
    found_text = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return msgspec.json.encode(found_text).decode()


def _leaves(metadata: pq.FileMetaData, schema: pa.Schema) -> list[tuple[int, str]]:
    """Columns that are no more than one column of Parquet, by its number there."""
    some = list(schema)[:COLUMNS_MAX]
    plain = {column.name for column in some if not _is.is_nested(column.type) and "." not in column.name}
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    return [(at, path) for at, path in enumerate(paths) if path in plain]


def _value(statistics: Any, side: str) -> Any:
    """Raw numbers, because Python has no time before the year 1; decoded texts and decimals."""
    raw = getattr(statistics, f"{side}_raw")
    return getattr(statistics, side) if isinstance(raw, bytes) else raw


def _bound(kind: pa.DataType) -> Bound | None:
    """How a column's bounds are written; None for types that have none here."""
    if _is.is_integer(kind) or _is.is_floating(kind):
        return lambda value, _: value if math.isfinite(value) else None
    if kind == pa.string():
        return lambda value, upper: _upper_text(value) if upper else value[:_TEXT_CHARS]
    if kind == pa.date32():
        return lambda value, _: _date(value)
    if _is.is_timestamp(kind):
        return lambda value, _: moment(value, "Z" if kind.tz else "")
    if _is.is_decimal(kind) and kind.precision <= _DECIMAL_DIGITS_MAX:
        return lambda value, _: _decimal(value, kind.scale)
    return None


def _upper_text(value: str) -> str | None:
    if len(value) <= _TEXT_CHARS:
        return value
    return value[:_TEXT_CHARS] + _HIGHEST if value[_TEXT_CHARS] != _HIGHEST else None


def _date(days: int) -> str | None:
    text = moment(days * _DAY_US, "")
    return None if text is None else text[:10]


def _decimal(value: Any, scale: int) -> msgspec.Raw | None:
    """A number with all its digits: JSON has no decimals, but its numbers are texts."""
    exact = value if isinstance(value, Decimal) else Decimal(int(value)).scaleb(-scale)
    return msgspec.Raw(f"{exact:f}".encode()) if exact.is_finite() else None
