"""A Parquet footer that no manifest vouches for, looked at before Arrow may see it, and instead of Arrow.

Arrow ends the process, instead of raising, when somebody asks it about a column whose metadata do not fit together.
Footers that a manifest knows by their hash were made by our writer and are safe; those of a rebuild or an inspection
may be anybody's. So their structure (Thrift's compact protocol) is walked here, in Python, where a surprise is an
exception, and where the columns lie is taken from this walk.

Only structure is looked at. What the footer says is proved by its mac, its chain and the blocks themselves.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

DEPTH_MAX = 16
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
# Fields of Parquet's structs, by number.
_SCHEMA, _ROW_GROUPS, _ENCRYPTION = 2, 4, 8
_REPETITION, _CHILDREN = 3, 5
_COLUMNS, _ROWS = 1, 3
_FILE_PATH, _METADATA, _CRYPTO, _ENCRYPTED = 1, 3, 8, 9
_UNPACKED, _PACKED, _DATA, _DICTIONARY = 6, 7, 9, 11
_REPETITIONS = (0, 1, 2)


class BadStructure(Exception):
    """This is no footer that a Parquet writer makes."""


class Chunk(NamedTuple):
    """Where the values of one column lie in one row group."""

    start: int
    end: int
    unpacked: int
    """Bytes before compression."""


class RowGroup(NamedTuple):
    """One row group of a walked footer."""

    rows: int
    chunks: list[Chunk]


def walk(footer: bytes) -> list[RowGroup]:
    """The row groups of a footer (Thrift bytes, length and magic); raises BadStructure."""
    top = _Walk(footer[:-8]).struct_()
    schema = _structs(top, _SCHEMA)
    if not schema or _ENCRYPTION in top or any(e.get(_REPETITION) not in _REPETITIONS for e in schema[1:]):
        raise BadStructure
    leaves = sum(1 for element in schema[1:] if not element.get(_CHILDREN))
    return [_row_group(group, leaves) for group in _structs(top, _ROW_GROUPS)]


def _row_group(group: dict[int, Any], leaves: int) -> RowGroup:
    columns = _structs(group, _COLUMNS)
    if len(columns) != leaves:
        raise BadStructure
    return RowGroup(_integer(group, _ROWS), [_chunk(column) for column in columns])


def _chunk(column: dict[int, Any]) -> Chunk:
    about = column.get(_METADATA)
    if not isinstance(about, dict) or {_FILE_PATH, _CRYPTO, _ENCRYPTED} & column.keys():
        raise BadStructure
    start = _integer(about, _DATA)
    if about.get(_DICTIONARY):
        start = min(start, _integer(about, _DICTIONARY))
    return Chunk(start, start + _integer(about, _PACKED), _integer(about, _UNPACKED))


def _integer(parent: dict[int, Any], field: int) -> int:
    value = parent.get(field)
    if not isinstance(value, int) or value < 0:
        raise BadStructure
    return value


def _structs(parent: dict[int, Any], field: int) -> list[dict[int, Any]]:
    value = parent.get(field)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadStructure
    return value


class _Walk:
    """Thrift's compact protocol as dicts of fields, lists and values; never reads past its bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._depth = 0

    def struct_(self) -> dict[int, Any]:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadStructure
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind in (_TRUE, _FALSE, _BYTE):  # a boolean inside of a list is a byte
            return self._byte()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct_()
        return self._larger_value(kind)

    def _larger_value(self, kind: int) -> Any:
        if kind == _DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind in (_LIST, _SET):
            head = self._byte()
            return self._items(head >> 4 if head >> 4 < 15 else self._varint(), head & 15)
        raise BadStructure  # Parquet's footer has no maps

    def _items(self, count: int, kind: int) -> list[Any]:
        if count > len(self._content) - self._at:  # every item has at least one byte
            raise BadStructure
        return [self._value(kind) for _ in range(count)]

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _bytes(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._content):
            raise BadStructure
        return self._content[start : self._at]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise BadStructure

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
