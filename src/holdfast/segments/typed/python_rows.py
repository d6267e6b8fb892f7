"""Rows of Python, dicts by column name, as a batch in the stored form of their topic.

Arrow would take more than it can keep: it rounds, cuts off and reinterprets without a word. So every value is checked
before Arrow reads it, by its class and where need be by itself, and what would not come back equal is Invalid with its
column and row. Pure; values never appear in messages. `conform` cuts what was given into lists of rows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from typing import Any
from uuid import UUID

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types, plain_arrays
from holdfast.model.schema import TopicSchema
from holdfast.segments.typed import stored_batch
from holdfast.segments.typed.array_encoding import recoded

_is = pa.types


def stored_rows(topic: TopicSchema, rows: Sequence[object], row: int) -> pa.RecordBatch:
    """Rows in stored form. `row` is the first one's place in all that was given, for messages."""
    for place, given in enumerate(rows, row):
        if not isinstance(given, Mapping):
            raise Invalid(f"a row is not a dict row={place} found={type(given).__name__}", hint="give dicts as rows")
        if not topic.names.issuperset(given):
            unknown = [str(name)[:100] for name in given if name not in topic.names]
            raise Invalid(f"columns are unknown row={place} columns={unknown[:10]}", hint="drop or declare them")
    columns = [[given.get(column.name) for given in rows] for column in topic.declared]  # type: ignore[attr-defined]
    for column, values in zip(topic.declared, columns, strict=True):
        if not column.nullable and None in values:
            missing = row + values.index(None)
            raise Invalid(f"a required value is missing column={column.name!r} row={missing}", hint="give a value")
    found = [_read(values, column, row) for column, values in zip(topic.stored, columns, strict=True)]
    batch = stored_batch.assemble(topic, found, len(rows))
    stored_batch.check(topic, batch, row)
    return batch


def _read(values: list[Any], column: pa.Field, row: int) -> pa.Array:
    problem, array = _try_read(values, column.type)
    if problem is None:
        return array
    for place, value in enumerate(values, row):
        problem, _ = _try_read([value], column.type)
        if problem is not None:
            raise Invalid(f"a value does not fit column={column.name!r} row={place}: {problem}", hint=_AS_DECLARED)
    raise Invalid(f"a column is too large column={column.name!r}", hint="append fewer rows at a time")


_AS_DECLARED = "give values of the declared type: none is converted where something could be lost"


def _try_read(values: list[Any], kind: pa.DataType) -> tuple[str | None, pa.Array]:
    """An array of values, or what is wrong with one of them."""
    problem = _misfit(values, kind)
    if problem is not None:
        return problem, None
    try:
        array = read_whole(values, wide_type(kind))
        if isinstance(array, pa.ChunkedArray):
            return "too much for one batch", None
        return None, recoded(array, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
        return f"it cannot be read as {arrow_types.shown(kind)}", None


def read_whole(values: Sequence[Any], wide: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Values that fit as an array of their wide type."""
    # Arrow reads faster than we do, unless it has to load pandas first.
    array = plain_arrays.read(values, wide) if plain_arrays.arrow_would_load_pandas() else None
    return pa.array(values, type=wide) if array is None else array


def wide_type(kind: pa.DataType) -> pa.DataType:
    """The type in which Python's values are read whole: Arrow would cut their microseconds off without a word."""
    if _is.is_timestamp(kind) and kind.unit == "ms":
        return pa.timestamp("us", kind.tz)
    if _is.is_duration(kind) and kind.unit in ("s", "ms"):
        return pa.duration("us")
    if _is.is_time32(kind):
        return pa.time64("us")
    return arrow_types.remade(kind, lambda child: child.with_type(wide_type(child.type)))


def _misfit(values: Iterable[Any], kind: pa.DataType) -> str | None:
    """What Arrow would change, drop or cut among Python's values; None when there is nothing."""
    there = [value for value in values if value is not None]
    fits_class = _class_test(kind)
    for cls in set(map(type, there)):
        if not fits_class(cls):
            return f"{cls.__name__} where {arrow_types.shown(kind)} is expected"
    if _is.is_struct(kind):
        return _misfit_in_structs(there, kind)
    if _is.is_map(kind):
        return _misfit_in_maps(there, kind)
    if arrow_types.inner(kind):
        return _misfit(chain.from_iterable(there), kind.value_type)
    return _misfit_of_value(there, kind)


def _misfit_in_structs(values: list[Mapping[str, Any]], kind: pa.DataType) -> str | None:
    names = {child.name for child in kind}
    if not all(names.issuperset(value) for value in values):
        return "a struct has an unknown field"
    problems = (_misfit([value.get(child.name) for value in values], child.type) for child in kind)
    return next((problem for problem in problems if problem is not None), None)


def _misfit_in_maps(values: list[Any], kind: pa.DataType) -> str | None:
    entries = [entry for value in values for entry in (value.items() if isinstance(value, Mapping) else value)]
    if not all(isinstance(entry, tuple | list) and len(entry) == 2 for entry in entries):
        return "a map's entry is not a pair"
    return _misfit([key for key, _ in entries], kind.key_type) or _misfit([item for _, item in entries], kind.item_type)


def _class_test(kind: pa.DataType) -> Callable[[type], bool]:
    test = next((test for fits, test in _CLASS_TESTS if fits(kind)), None)
    return test if test is not None else lambda cls: True


def _number(*abstract: type) -> Callable[[type], bool]:
    return lambda cls: issubclass(cls, abstract) and cls is not bool


def _sequence(cls: type) -> bool:
    # NumPy's arrays are no Sequence, and a text is one only by accident.
    return (issubclass(cls, Sequence) or hasattr(cls, "__array__")) and not issubclass(cls, str | bytes | bytearray)


# What stands for which type in a row. Arrow would take more: a float for an int, a datetime for a date (cutting its
# time off), bytes for text, an int for a time in whatever unit the column happens to have.
_CLASS_TESTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[type], bool]], ...] = (
    (_is.is_boolean, lambda cls: cls is bool or cls.__name__ in ("bool", "bool_")),
    (_is.is_integer, _number(Integral)),
    (_is.is_floating, _number(Real)),
    (_is.is_decimal, _number(Decimal, Integral)),
    (lambda kind: kind in arrow_types.TEXTS, lambda cls: issubclass(cls, str)),
    (lambda kind: kind == pa.binary(16), lambda cls: issubclass(cls, bytes | bytearray | memoryview | UUID)),
    (
        lambda kind: _is.is_fixed_size_binary(kind) or kind in arrow_types.BINARIES,
        lambda cls: issubclass(cls, bytes | bytearray | memoryview),
    ),
    (_is.is_date, lambda cls: issubclass(cls, dt.date) and not issubclass(cls, dt.datetime)),
    (_is.is_timestamp, lambda cls: issubclass(cls, dt.datetime)),
    (_is.is_time, lambda cls: issubclass(cls, dt.time)),
    (_is.is_duration, lambda cls: issubclass(cls, dt.timedelta)),
    (_is.is_struct, lambda cls: issubclass(cls, Mapping)),
    (_is.is_map, lambda cls: issubclass(cls, Mapping) or _sequence(cls)),
    (lambda kind: bool(arrow_types.inner(kind)), _sequence),
)
_DIGITS_MAX = 1000
"""Far beyond what any column of decimals holds."""
_EXACT_INTS = {16: 2**11, 32: 2**24, 64: 2**53}
_LARGEST = {16: 65504.0, 32: 3.4028234663852886e38, 64: math.inf}


def _misfit_of_value(values: list[Any], kind: pa.DataType) -> str | None:
    if _is.is_floating(kind) and not all(_float_fits(value, kind.bit_width) for value in values):
        return f"a number that {arrow_types.shown(kind)} cannot hold"
    if _is.is_decimal(kind) and not all(map(_decimal_fits, values)):
        return f"a number that {arrow_types.shown(kind)} cannot hold"
    if _is.is_timestamp(kind) and any((value.tzinfo is None) != (kind.tz is None) for value in values):
        return f"a datetime {'without' if kind.tz else 'with'} a time zone where {arrow_types.shown(kind)} is expected"
    if _is.is_time(kind) and any(value.tzinfo is not None for value in values):
        return f"a time with a time zone where {arrow_types.shown(kind)} is expected"
    if _is.is_temporal(kind) and not _is.is_date(kind) and kind.unit != "ns" and any(map(_nanoseconds, values)):
        return f"nanoseconds where {arrow_types.shown(kind)} is expected"
    return None


def _float_fits(value: Any, bits: int) -> bool:
    if isinstance(value, Integral):
        return abs(int(value)) <= _EXACT_INTS[bits]
    return not math.isfinite(value) or abs(value) <= _LARGEST[bits]


def _decimal_fits(value: Any) -> bool:
    """Whether Arrow may look at it. Hazard: it takes the process down over 1E-99999999, which anyone can send."""
    if isinstance(value, Integral):
        return True
    return bool(value.is_finite()) and abs(value.adjusted()) < _DIGITS_MAX and len(str(value)) < _DIGITS_MAX


def _nanoseconds(value: Any) -> bool:
    # pandas' Timestamp and Timedelta are datetimes with more in them (and its NaT is one that is none).
    return bool(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))
