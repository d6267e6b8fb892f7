"""Python's values as Arrow arrays, and back, without pandas.

`pa.array` and `pa.scalar` ask pandas about their argument, and a time with a zone asks it on its way back: they load it
where it is installed, 0.3 s of work and 40 MB for an application that never uses it. So nothing on the
way of records calls them: arrays are made of buffers. `read` knows the values that are common in rows, by their exact
class; for anything else it says None, and callers ask Arrow. Values that do not fit are Python's own exceptions. Pure.
"""

from __future__ import annotations

import datetime as dt
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

_is = pa.types
_CODES = {
    pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q",
    pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q",
    pa.float32(): "f", pa.float64(): "d",
}  # fmt: skip
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # for what has no zone
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_UNITS = {"s": dt.timedelta(seconds=1), "ms": dt.timedelta(milliseconds=1), "us": _MICROSECOND}


def numbers(values: Iterable[int | float], kind: pa.DataType) -> pa.Array:
    """An array of numbers; OverflowError if one is too large for the type."""
    found = array(_CODES[kind], values)
    return pa.Array.from_buffers(kind, len(found), [None, pa.py_buffer(found)])


def binaries(values: Sequence[bytes | memoryview], kind: pa.DataType) -> pa.Array:
    """An array of bytes, or of texts as UTF-8."""
    wide = kind in (pa.large_binary(), pa.large_string())
    ends = array("q" if wide else "i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def scalar(value: bytes, kind: pa.DataType) -> pa.Scalar:
    """One value of a type of fixed width, from its bytes."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(value)])[0]


def arrow_would_load_pandas() -> bool:
    """Whether pandas is installed, and nobody uses it yet."""
    return "pandas" not in sys.modules and _pandas_is_installed()


@cache
def _pandas_is_installed() -> bool:
    return find_spec("pandas") is not None


def read(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """The values as an array of this type; None if Arrow must be asked."""
    found = {type(value) for value in values}
    if not values or found == {type(None)}:
        return pa.nulls(len(values), kind)
    reader, classes = _reader(kind)
    if reader is None or not found <= classes:
        return None
    return reader(values, kind, _validity(values) if type(None) in found else None)


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as dictionaries, as `to_pylist` has them."""
    columns = [_values(column) for column in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if not _is.is_timestamp(kind) or kind.tz is None or kind.unit == "ns":
        return list(column.to_pylist())
    zone, unit = pa.lib.string_to_tzinfo(kind.tz), _UNITS[kind.unit]
    moments = column.view(pa.int64()).to_pylist()
    return [None if value is None else (_EPOCH_UTC + value * unit).astimezone(zone) for value in moments]


def _validity(values: Sequence[Any]) -> pa.Buffer:
    there = numbers((value is not None for value in values), pa.uint8())
    return there.cast(pa.bool_()).buffers()[1]


Reader = Callable[[Sequence[Any], pa.DataType, pa.Buffer | None], pa.Array | None]


def _reader(kind: pa.DataType) -> tuple[Reader | None, frozenset[type]]:
    return next(((reader, classes) for fits, reader, classes in _READERS if fits(kind)), (None, frozenset()))


def _fixed(number: Callable[[Any], int], code: str) -> Reader:
    """A reader of values of fixed width, each of which is this number."""

    def read_fixed(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
        given = (0 if value is None else number(value) for value in values)
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(array(code, given))], -1)

    return read_fixed


def _numbers(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    given = values if validity is None else [0 if value is None else value for value in values]
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(array(_CODES[kind], given))], -1)


def _booleans(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    bits = numbers(map(bool, values), pa.uint8()).cast(kind).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [validity, bits], -1)


def _texts(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    return _bytes([b"" if value is None else value.encode() for value in values], kind, validity)


def _bytes(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    given = values if validity is None else [value or b"" for value in values]
    return pa.Array.from_buffers(kind, len(values), [validity, *binaries(given, kind).buffers()[1:]], -1)


def _lists(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array | None:
    children = read(list(chain.from_iterable(value or () for value in values)), kind.value_type)
    if children is None:
        return None
    lengths = (0 if value is None else len(value) for value in values)
    ends = array("q" if _is.is_large_list(kind) else "i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(ends)], -1, children=[children])


def _structs(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array | None:
    children = []
    for field in kind:
        child = read([None if value is None else value.get(field.name) for value in values], field.type)
        if child is None:
            return None
        children.append(child)
    return pa.Array.from_buffers(kind, len(values), [validity], -1, children=children)


def moment_of(value: dt.datetime) -> int:
    """Microseconds since 1970; of a time without a zone, as if it were in UTC."""
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND


def _since_midnight(value: dt.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _classes(*classes: type) -> frozenset[type]:
    return frozenset((*classes, type(None)))


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Reader, frozenset[type]], ...] = (
    (lambda kind: kind in (pa.float32(), pa.float64()), _numbers, _classes(int, float)),
    (_is.is_integer, _numbers, _classes(int)),
    (lambda kind: kind in (pa.string(), pa.large_string()), _texts, _classes(str)),
    (lambda kind: kind in (pa.binary(), pa.large_binary()), _bytes, _classes(bytes)),
    (_is.is_boolean, _booleans, _classes(bool)),
    (lambda kind: _is.is_timestamp(kind) and kind.unit == "us", _fixed(moment_of, "q"), _classes(dt.datetime)),
    (_is.is_date32, _fixed(lambda day: day.toordinal() - _EPOCH.toordinal(), "i"), _classes(dt.date)),
    (lambda kind: kind == pa.time64("us"), _fixed(_since_midnight, "q"), _classes(dt.time)),
    (lambda kind: kind == pa.duration("us"), _fixed(lambda span: span // _MICROSECOND, "q"), _classes(dt.timedelta)),
    (lambda kind: _is.is_list(kind) or _is.is_large_list(kind), _lists, _classes(list, tuple)),
    (_is.is_struct, _structs, _classes(dict)),
)
