"""Rows that are appended one by one: checked and copied in the caller's thread, encoded together when they are stored.

Making Arrow data of a single row costs a hundred times what its part of a batch costs. So a row of plain values is only
checked here, column by column, and kept as a tuple; what a group gathers becomes one batch (`encode`). Plain are
Python's own types, exactly: what Arrow reads of them is known, and the same whatever stands beside them. Everything
else (NumPy's scalars, subclasses, what would be refused) is None: `conform` takes it alone, or says what is wrong.

What is taken here, `conform` would take as well and store as the same; a test compares them. Compiled once per schema;
pure, and safe for any number of threads.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from struct import pack
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa

from holdfast.model import frame
from holdfast.model.arrow import arrow_types
from holdfast.model.arrow.plain_arrays import moment_of
from holdfast.model.record_columns import Cells, EncodedRows
from holdfast.model.schema import TopicSchema
from holdfast.segments.typed import stored_batch
from holdfast.segments.typed.python_rows import read_whole, wide_type
from holdfast.segments.typed.row_message import message_of
from holdfast.segments.typed.row_times import joined

_is = pa.types

_BYTES_MAX = 64 * 1024
"""A larger row gains nothing by company."""
_ENTRY_BYTES, _FIELD_BYTES = 1024, 320
"""More than an Arrow message takes for itself, and for each field: places and padding of three buffers."""

Take = Callable[[Any, list[int]], Any]
"""Checks and copies a value that is not None; notes how many bytes it takes beyond its fixed ones."""


class _NotPlain(Exception):
    """Not a value that is taken here."""


class SingleRows:
    """Takes and encodes rows of one schema."""

    def __init__(self, schema: TopicSchema) -> None:
        self._schema = schema
        self._columns: list[tuple[str, bool, Take]] = [
            (column.name, not column.nullable, _take(column.type)) for column in schema.declared
        ]
        self._wide = [wide_type(column.type) for column in schema.stored]
        self._is_plain = self._wide == schema.stored.types
        """What Arrow makes of the values is what is stored."""
        self._fixed = sum(_fixed_bytes(column.type) for column in schema.stored)
        self.overhead = _ENTRY_BYTES + _FIELD_BYTES * sum(_fields(column.type) for column in schema.stored)

    def taken(self, row: dict[str, Any]) -> tuple[Cells, int] | None:
        """A copy of a row's values and about how many bytes they take; None where `conform` must see the row."""
        sizes, cells = [self._fixed], []
        try:
            for name, required, take in self._columns:
                value = row.get(name)
                if value is not None:
                    value = take(value, sizes)
                elif required:
                    return None
                cells.append(value)
        except (_NotPlain, UnicodeEncodeError):
            return None
        size = sum(sizes)
        return (tuple(cells), size) if size <= _BYTES_MAX and self._schema.names.issuperset(row) else None

    def value(self, cells: Cells, column: str) -> Any:
        """What a row has in a column."""
        return cells[self._schema.declared.get_field_index(column)]

    def moment(self, cells: Cells, column: str) -> int | None:
        """A row's time from one of its columns; None where it has none there."""
        known = column in self._schema.names  # any text may be asked for, also such as Arrow cannot look up
        value = self.value(cells, column) if known else None
        return moment_of(value) if type(value) is dt.datetime else None

    def encode(self, rows: Sequence[tuple[Cells, int]]) -> EncodedRows:
        """Rows with their times, as the body of one entry."""
        cells, times = zip(*rows, strict=True)
        found = [read_whole(values, wide) for values, wide in zip(zip(*cells, strict=True), self._wide, strict=True)]
        if self._is_plain:  # nothing to convert, and no slice, of which Arrow might write what it cannot read
            message = pa.RecordBatch.from_arrays(found, schema=self._schema.stored).serialize()
        else:
            message = message_of(stored_batch.assemble(self._schema, found, len(rows)))
        first, last = min(times), max(times)
        stamps = pack("<q", first) if first == last else pack(f"<{len(times)}q", *times)
        body = joined(frame.typed_head(len(rows), stamps), message)
        return EncodedRows(len(rows), first, last, body, self._schema.fingerprint)


@lru_cache(maxsize=1024)
def single_rows(schema: TopicSchema) -> SingleRows:
    """What takes rows of this schema: one for all handles of a topic, so that their rows come together."""
    return SingleRows(schema)


def _fixed_bytes(kind: pa.DataType) -> int:
    """No less than a value takes that holds nothing."""
    if _is.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * _fixed_bytes(kind.value_type)
    if _is.is_struct(kind):
        return 1 + sum(_fixed_bytes(child.type) for child in kind)
    return 1 + (int(kind.byte_width) if _is.is_fixed_size_binary(kind) or _is.is_decimal(kind) else 8)


def _fields(kind: pa.DataType) -> int:
    return 1 + sum(_fields(child.type) for child in arrow_types.inner(kind))


# -- values, by type --------------------------------------------------------------------------------------


def _take(kind: pa.DataType) -> Take:
    """How values of a declared type are taken."""
    kind = arrow_types.storage(kind)
    if _is.is_dictionary(kind):
        return _take(kind.value_type)
    make = next((make for fits, make in _TAKERS if fits(kind)), None)
    return _none if make is None else make(kind)


def _none(value: Any, sizes: list[int]) -> Any:
    raise _NotPlain


def _exactly(cls: type) -> Callable[[pa.DataType], Take]:
    def take(value: Any, sizes: list[int]) -> Any:
        if type(value) is not cls:
            raise _NotPlain
        return value

    return lambda kind: take


def _integer(kind: pa.DataType) -> Take:
    bits = kind.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if _is.is_signed_integer(kind) else (0, 2**bits)

    def take(value: Any, sizes: list[int]) -> int:
        if type(value) is not int or not low <= value < high:
            raise _NotPlain
        return value

    return take


def _double(kind: pa.DataType) -> Take:
    def take(value: Any, sizes: list[int]) -> float:
        if type(value) is float:
            return value
        if type(value) is not int or abs(value) > 2**53:
            raise _NotPlain
        return float(value)

    return take


def _single(kind: pa.DataType) -> Take:
    def take(value: Any, sizes: list[int]) -> float:
        if type(value) is int and abs(value) <= 2**24:
            return float(value)
        if type(value) is not float or (math.isfinite(value) and abs(value) > 3.4e38):
            raise _NotPlain
        return value

    return take


def _decimal(kind: pa.DataType) -> Take:
    whole, scale = kind.precision - kind.scale, kind.scale

    def take(value: Any, sizes: list[int]) -> Decimal:
        if type(value) is not Decimal or not value.is_finite():
            raise _NotPlain
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or -exponent > scale or len(digits) + exponent > whole:
            raise _NotPlain
        return value

    return take


def _text(kind: pa.DataType) -> Take:
    def take(value: Any, sizes: list[int]) -> str:
        if type(value) is not str:
            raise _NotPlain
        sizes.append(len(value) if value.isascii() else len(value.encode()))
        return value

    return take


def _binary(kind: pa.DataType) -> Take:
    def take(value: Any, sizes: list[int]) -> bytes:
        if type(value) is not bytes:
            raise _NotPlain
        sizes.append(len(value))
        return value

    return take


def _fixed_binary(kind: pa.DataType) -> Take:
    width = kind.byte_width

    def take(value: Any, sizes: list[int]) -> bytes:
        if type(value) is UUID:
            value = value.bytes
        if type(value) is not bytes or len(value) != width:
            raise _NotPlain
        return value

    return take


_FINER = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""How many microseconds a unit must not cut off."""


def _timestamp(kind: pa.DataType) -> Take:
    step, is_zoned = _FINER[kind.unit], kind.tz is not None
    low, high = (1679, 2261) if kind.unit == "ns" else (2, 9998)

    def take(value: Any, sizes: list[int]) -> dt.datetime:
        if type(value) is not dt.datetime or not low <= value.year <= high:
            raise _NotPlain
        zone = value.tzinfo
        # Only these are known to answer always, and always the same.
        if (zone is None) is is_zoned or (zone is not None and type(zone) not in (dt.timezone, ZoneInfo)):
            raise _NotPlain
        if step > 1 and moment_of(value) % step:
            raise _NotPlain
        return value

    return take


def _time(kind: pa.DataType) -> Take:
    step = _FINER[kind.unit]

    def take(value: Any, sizes: list[int]) -> dt.time:
        if type(value) is not dt.time or value.tzinfo is not None or value.microsecond % step:
            raise _NotPlain
        return value

    return take


def _duration(kind: pa.DataType) -> Take:
    step, days = _FINER[kind.unit], 100_000 if kind.unit == "ns" else 100_000_000

    def take(value: Any, sizes: list[int]) -> dt.timedelta:
        if type(value) is not dt.timedelta or abs(value.days) > days or value.microseconds % step:
            raise _NotPlain
        return value

    return take


def _inside(field: pa.Field) -> Take:
    """How values within others are taken, where None is one of them."""
    plain, nullable = _take(field.type), field.nullable

    def take(value: Any, sizes: list[int]) -> Any:
        if value is not None:
            return plain(value, sizes)
        if not nullable:
            raise _NotPlain
        return None

    return take


def _list(kind: pa.DataType) -> Take:
    item, width = _inside(kind.value_field), _fixed_bytes(kind.value_type)
    length = kind.list_size if _is.is_fixed_size_list(kind) else None

    def take(value: Any, sizes: list[int]) -> list[Any]:
        if type(value) not in (list, tuple) or (length is not None and len(value) != length):
            raise _NotPlain
        sizes.append(width * len(value))
        return [item(one, sizes) for one in value]

    return take


def _struct(kind: pa.DataType) -> Take:
    children = [(child.name, _inside(child)) for child in kind]
    names = frozenset(name for name, _ in children)

    def take(value: Any, sizes: list[int]) -> dict[str, Any]:
        if type(value) is not dict or not names.issuperset(value):
            raise _NotPlain
        return {name: child(value.get(name), sizes) for name, child in children}

    return take


def _map(kind: pa.DataType) -> Take:
    key, item = _take(kind.key_type), _inside(kind.item_field)
    width = _fixed_bytes(kind.key_type) + _fixed_bytes(kind.item_type)

    def take(value: Any, sizes: list[int]) -> list[tuple[Any, Any]]:
        entries: Any = value.items() if type(value) is dict else value
        if type(value) not in (dict, list, tuple):
            raise _NotPlain
        sizes.append(width * len(value))
        taken = []
        for entry in entries:
            if type(entry) is not tuple or len(entry) != 2:
                raise _NotPlain
            taken.append((key(entry[0], sizes), item(entry[1], sizes)))
        return taken

    return take


# The order counts: the first that fits. Half floats are Arrow's to round.
_TAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Take]], ...] = (
    (_is.is_boolean, _exactly(bool)),
    (_is.is_integer, _integer),
    (_is.is_float64, _double),
    (_is.is_float32, _single),
    (_is.is_decimal, _decimal),
    (lambda kind: kind in arrow_types.TEXTS, _text),
    (_is.is_fixed_size_binary, _fixed_binary),
    (lambda kind: kind in arrow_types.BINARIES, _binary),
    (_is.is_date, _exactly(dt.date)),
    (_is.is_timestamp, _timestamp),
    (_is.is_time, _time),
    (_is.is_duration, _duration),
    (_is.is_struct, _struct),
    (_is.is_map, _map),
    (lambda kind: bool(arrow_types.inner(kind)), _list),
)
