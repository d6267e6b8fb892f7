"""The content of a segment as one digest, whatever Parquet makes of it (docs/formats/0004-segment.md).

The digest covers values, not their encoding: it does not depend on how rows are cut into batches, row groups or
slices, nor on the bytes that lie under nulls, and it is the same for a table that went through Parquet and came
back. So it stays when a file is rewritten with another compression, and the chain of segments is made of it.

Each column has running SHA-256 hashes: of validity (one byte per row, 1 = there is a value), of lengths and of
values; nested columns have those of their children after their own. Nothing loops over rows in Python.

`unsupported` says which types cannot be stored or digested, before the first of them is appended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.crypto import digests as chain
from holdfast.errors import Invalid
from holdfast.model.arrow import plain_arrays

DIGEST_BYTES = 32

# Spelled out here, because the text that Arrow gives to a type may change and a stored digest may not.
_NAMES: dict[Any, str] = {
    pa.null(): "null",
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date32(): "date32",
    pa.string(): "string",
    pa.large_string(): "large_string",
    pa.binary(): "binary",
    pa.large_binary(): "large_binary",
}
_REFUSED: dict[Any, str] = {
    pa.date64(): "Parquet stores days only, and a date64 may hold more; use date32 or timestamp('ms')",
    pa.time32("s"): "Parquet has no times in seconds; use time32('ms')",
    pa.binary(0): "Parquet has no values of the fixed size 0",
}
_FALSE = plain_arrays.scalar(b"\0", pa.bool_())
_UNSIGNED = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}


class ContentDigest:
    """A running digest over the rows of one schema.

    >>> whole, cut = (ContentDigest(pa.schema([("a", pa.string())])) for _ in range(2))
    >>> batch = pa.record_batch({"a": ["x", None, ""]})
    >>> whole.update(batch)
    >>> cut.update(batch.slice(0, 1)), cut.update(batch.slice(1))
    (None, None)
    >>> whole.digest() == cut.digest()
    True
    """

    def __init__(self, schema: pa.Schema) -> None:
        for field in schema:
            reason = unsupported(field.type)
            if reason is not None:
                raise Invalid(f"a column cannot be stored column={field.name}: {reason}", hint="use another type")
        self._description = describe(schema)
        self._columns = [_Column(field) for field in schema]
        self._rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Take in rows; how they are cut into batches does not matter."""
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.update(array)
        self._rows += batch.num_rows

    def digest(self) -> bytes:
        """The digest over everything so far (32 bytes)."""
        digests = [digest for column in self._columns for digest in column.digests()]
        return hashlib.sha256(chain.canonical("content", 1, self._description, self._rows, *digests)).digest()


def describe(schema: pa.Schema) -> str:
    """The schema as canonical text: names, types and nullability, no metadata."""
    return json.dumps([_describe_field(field) for field in schema], ensure_ascii=True, separators=(",", ":"))


def unsupported(kind: pa.DataType) -> str | None:
    """Why this type cannot be a segment's column, or None when it can."""
    reason = _unsupported_itself(kind)
    for child in _children(kind):
        if pa.types.is_dictionary(child.type):
            return "dictionaries are decoded when they are stored, but not inside of other types; use their values"
        reason = reason or unsupported(child.type)
    return reason


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type as it is stored: a dictionary's values; all else as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _bare(kind: pa.DataType) -> pa.DataType:
    """What is digested for this type: an extension's storage, a dictionary's values."""
    if isinstance(kind, pa.BaseExtensionType):
        return _bare(kind.storage_type)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _children(kind: pa.DataType) -> list[pa.Field]:
    kind = _bare(kind)
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if _is_list(kind):
        return [kind.value_field]
    return []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _unsupported_itself(kind: pa.DataType) -> str | None:
    if pa.types.is_dictionary(kind) and (_children(kind) or isinstance(kind.value_type, pa.BaseExtensionType)):
        return "a dictionary of nested values cannot be decoded; use the values themselves"
    kind = _bare(kind)
    if pa.types.is_struct(kind):
        return None if kind.num_fields else "Parquet cannot store a struct without fields"
    if pa.types.is_fixed_size_list(kind) and kind.list_size == 0:
        return "lists of the fixed size 0 hold nothing"
    if pa.types.is_map(kind) or _is_list(kind):
        return None
    if pa.types.is_timestamp(kind) and kind.unit == "s":  # a segment that cannot be written would stop the log
        return "Parquet has no timestamps in seconds, and large ones do not fit milliseconds; use 'ms'"
    return None if _name(kind) else _REFUSED.get(kind, f"{kind} cannot be stored in Parquet and read back the same")


_TEXTS: tuple[tuple[Callable[[Any], bool], Callable[[Any], str]], ...] = (
    (pa.types.is_timestamp, lambda kind: f"timestamp[{kind.unit},{kind.tz or ''}]"),
    (pa.types.is_time, lambda kind: f"time[{kind.unit}]"),
    (pa.types.is_duration, lambda kind: f"duration[{kind.unit}]"),
    (pa.types.is_decimal, lambda kind: f"decimal{kind.bit_width}({kind.precision},{kind.scale})"),
    (pa.types.is_fixed_size_binary, lambda kind: f"fixed_size_binary[{kind.byte_width}]"),
)


def _name(kind: pa.DataType) -> str | None:
    """The canonical text of a type without children; None for those that cannot be stored."""
    if kind in _REFUSED:
        return None
    return _NAMES.get(kind) or next((text(kind) for is_kind, text in _TEXTS if is_kind(kind)), None)


def _describe_field(field: pa.Field) -> list[Any]:
    return [field.name, _describe_type(field.type), field.nullable]


def _describe_type(kind: pa.DataType) -> Any:
    # Names of list items and map entries are left out: Parquet has its own for them.
    kind = _bare(kind)
    if pa.types.is_struct(kind):
        return ["struct", [_describe_field(child) for child in kind]]
    if pa.types.is_map(kind):
        return ["map", _describe_type(kind.key_type), _describe_type(kind.item_type), kind.item_field.nullable]
    if pa.types.is_fixed_size_list(kind):
        return ["fixed_size_list", kind.list_size, _describe_type(kind.value_type), kind.value_field.nullable]
    if _is_list(kind):
        name = "large_list" if pa.types.is_large_list(kind) else "list"
        return [name, _describe_type(kind.value_type), kind.value_field.nullable]
    return _name(kind)


class _Values(Protocol):
    """The hashes of one column's values, by kind of type; `update` gets arrays with at least one row."""

    def update(self, array: pa.Array) -> None: ...

    def digests(self) -> list[bytes]: ...


class _Column:
    """Validity, where a value may be absent, and the values."""

    def __init__(self, field: pa.Field) -> None:
        self._validity = hashlib.sha256() if field.nullable else None
        self._values = _values_of(field.type)

    def update(self, array: pa.Array) -> None:
        if len(array) == 0:
            return
        array = _plain(array)
        if self._validity is not None:
            self._validity.update(_validity(array))
        self._values.update(array)

    def digests(self) -> list[bytes]:
        own = [self._validity.digest()] if self._validity is not None else []
        return own + self._values.digests()


def _values_of(kind: pa.DataType) -> _Values:
    kind = _bare(kind)
    if pa.types.is_struct(kind):
        return _Fields(kind)
    if pa.types.is_map(kind) or _is_list(kind):
        return _Lists(kind)
    if pa.types.is_null(kind):
        return _Nothing()
    if pa.types.is_boolean(kind):
        return _Booleans()
    if _NAMES.get(kind, "").removeprefix("large_") in ("string", "binary"):
        return _Strings(kind)
    return _FixedWidth(kind.bit_width // 8)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _validity(array: pa.Array) -> bytes | memoryview:
    if array.null_count == 0:
        return b"\1" * len(array)
    if array.null_count == len(array):
        return bytes(len(array))
    return _bytes(array.is_valid().cast(pa.uint8()), 1)


def _bytes(array: pa.Array, width: int) -> memoryview:
    """The values of an array of fixed width, without what its buffer holds before and after them."""
    return memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]


def _lengths(array: pa.Array, offsets: pa.Array) -> pa.Array:
    """How long each value is; a null has no length, whatever lies under it."""
    lengths = pc.subtract(offsets.slice(1), offsets.slice(0, len(array))).cast(pa.int64())
    return lengths.filter(array.is_valid()) if array.null_count else lengths


def list_of_entries(array: pa.Array) -> pa.Array:
    """A map array as the list array that it is, without a copy."""
    entries = array.values
    parts = array.buffers()[:2]
    return pa.Array.from_buffers(pa.list_(entries.type), len(array), parts, array.null_count, array.offset, [entries])


def _offsets(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(array) + 1, [None, array.buffers()[1]], 0, array.offset)


class _Nothing:
    def update(self, array: pa.Array) -> None:
        pass

    def digests(self) -> list[bytes]:
        return []


class _FixedWidth:
    """Little-endian values of one width; nulls are zeros."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._type = _UNSIGNED.get(width) or pa.binary(width)
        self._zero = plain_arrays.scalar(bytes(width), self._type)
        self._hash = hashlib.sha256()

    def update(self, array: pa.Array) -> None:
        raw = pa.Array.from_buffers(self._type, len(array), array.buffers()[:2], -1, array.offset)
        if raw.null_count:
            raw = pc.fill_null(raw, self._zero)
        self._hash.update(_bytes(raw, self._width))

    def digests(self) -> list[bytes]:
        return [self._hash.digest()]


class _Booleans:
    """One byte each; nulls are zeros."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, array: pa.Array) -> None:
        self._hash.update(_bytes(pc.fill_null(array, _FALSE).cast(pa.uint8()), 1))

    def digests(self) -> list[bytes]:
        return [self._hash.digest()]


class _Strings:
    """Lengths as int64, then the bytes one after the other."""

    def __init__(self, kind: pa.DataType) -> None:
        self._offset_type = pa.int64() if _NAMES[kind].startswith("large_") else pa.int32()
        self._lengths = hashlib.sha256()
        self._bytes = hashlib.sha256()

    def update(self, array: pa.Array) -> None:
        if array.null_count == len(array):
            return
        offsets = _offsets(array, self._offset_type)
        lengths = _lengths(array, offsets)
        self._lengths.update(_bytes(lengths, 8))
        if array.null_count and pc.sum(lengths).as_py() != offsets[-1].as_py() - offsets[0].as_py():
            array = array.drop_null()  # bytes lie under nulls
            offsets = _offsets(array, self._offset_type)
        start, end = offsets[0].as_py(), offsets[-1].as_py()
        if start < end:
            self._bytes.update(memoryview(array.buffers()[2])[start:end])

    def digests(self) -> list[bytes]:
        return [self._lengths.digest(), self._bytes.digest()]


class _Lists:
    """Lengths as int64, then the items of all lists that are there, as a column of their own."""

    def __init__(self, kind: pa.DataType) -> None:
        self._type = kind
        self._lengths = hashlib.sha256()
        if pa.types.is_map(kind):
            entries = pa.struct([kind.key_field, kind.item_field])
            self._items = _Column(pa.field("entries", entries, nullable=False))
        else:
            self._items = _Column(kind.value_field)

    def update(self, array: pa.Array) -> None:
        if pa.types.is_map(self._type):
            array = list_of_entries(array)
        if array.null_count < len(array):
            self._lengths.update(self._lengths_of(array))
            self._items.update(array.flatten())

    def _lengths_of(self, array: pa.Array) -> bytes | memoryview:
        if pa.types.is_fixed_size_list(self._type):
            there = len(array) - array.null_count
            return int(self._type.list_size).to_bytes(8, "little") * int(there)
        width = pa.int64() if pa.types.is_large_list(self._type) else pa.int32()
        return _bytes(_lengths(array, _offsets(array, width)), 8)

    def digests(self) -> list[bytes]:
        return [self._lengths.digest(), *self._items.digests()]


class _Fields:
    """The fields of a struct, each a column; where the struct is null, so are they."""

    def __init__(self, kind: pa.DataType) -> None:
        self._fields = [_Column(field) for field in kind]

    def update(self, array: pa.Array) -> None:
        for field, child in zip(self._fields, array.flatten(), strict=True):
            field.update(child)

    def digests(self) -> list[bytes]:
        return [digest for field in self._fields for digest in field.digests()]
