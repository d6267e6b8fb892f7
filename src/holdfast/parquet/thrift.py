"""Thrift's compact protocol, as Parquet's footers and page headers have it: taken apart, and put together.

Taking apart never reads past its bytes, allocates no more than they are, and raises BadStructure at everything that a
writer of Parquet does not write: fields out of order or twice, kinds that Parquet lacks, nesting without end. Every
value keeps the kind that it had on the wire, because a C++ reader leaves out a field whose kind is another one than it
expects, and two readers that disagree are how checks are passed by. Pure.
"""

from __future__ import annotations

import struct
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
DEPTH_MAX = 16
_FIELD_MAX = 2**15 - 1
_INTEGERS = (I16, I32, I64)
_ONE_BYTE = 127


class BadStructure(Exception):
    """These bytes are not what a Parquet writer makes."""


class Fields(dict[int, Any]):
    """A struct: its values by number; `kinds` are those on the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, int] = {}
        self.spans: dict[int, tuple[int, int]] = {}
        """Where each value lies; of the outermost struct only."""

    def integer(self, number: int, kind: int, least: int = 0, most: int = 2**62) -> int:
        """A number that must be there, of a kind and within bounds."""
        value = self.get(number)
        if self.kinds.get(number) != kind or not isinstance(value, int) or not least <= value <= most:
            raise BadStructure
        return value

    def binary(self, number: int) -> bytes:
        """Bytes that must be there."""
        value = self.get(number)
        if not isinstance(value, bytes):
            raise BadStructure
        return value

    def struct(self, number: int) -> Fields:
        """A struct that must be there."""
        value = self.get(number)
        if not isinstance(value, Fields):
            raise BadStructure
        return value

    def structs(self, number: int) -> list[Fields]:
        """A list of structs that must be there."""
        value = self.get(number)
        if not isinstance(value, list) or not all(isinstance(item, Fields) for item in value):
            raise BadStructure
        return value


class Walk:
    """Bytes, taken apart from the front."""

    def __init__(self, content: bytes | memoryview, at: int = 0, end: int | None = None) -> None:
        self._content = content
        self.at = at
        """Where the next byte is."""
        self._end = len(content) if end is None else end
        self._depth = 0

    def struct(self) -> Fields:
        """The struct that begins here."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadStructure
        fields = Fields()
        number = 0
        while head := self._byte():
            before, kind = number, head & 15
            number = before + (head >> 4) if head >> 4 else self._signed()
            if not before < number <= _FIELD_MAX:
                raise BadStructure
            start = self.at
            fields[number] = kind == TRUE if kind <= FALSE else self._value(kind)
            fields.kinds[number] = TRUE if kind == FALSE else kind
            if self._depth == 1:
                fields.spans[number] = (start, self.at)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._signed()
        if kind == BINARY:
            return bytes(self._bytes(self._varint()))
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            head = self._byte()
            return self._items(head >> 4 if head >> 4 < 15 else self._varint(), head & 15)
        if kind in (TRUE, FALSE, BYTE):  # a boolean inside of a list is a byte
            return self._byte()
        if kind == DOUBLE:
            return struct.unpack("<d", self._bytes(8))[0]
        raise BadStructure  # Parquet has no maps

    def _items(self, count: int, kind: int) -> list[Any]:
        if count > self._end - self.at:  # every item has at least one byte
            raise BadStructure
        self._depth += 1  # lists of lists nest, too
        if self._depth > DEPTH_MAX:
            raise BadStructure
        items = [self._value(kind) for _ in range(count)]
        self._depth -= 1
        return items

    def _byte(self) -> int:
        at = self.at
        if at >= self._end:
            raise BadStructure
        self.at = at + 1
        return self._content[at]

    def _bytes(self, count: int) -> bytes | memoryview:
        start, self.at = self.at, self.at + count
        if self.at > self._end:
            raise BadStructure
        return self._content[start : self.at]

    def _varint(self) -> int:
        byte = self._byte()
        if byte <= _ONE_BYTE:
            return byte
        value = byte & _ONE_BYTE
        for shift in range(7, 70, 7):
            byte = self._byte()
            value |= (byte & _ONE_BYTE) << shift
            if byte <= _ONE_BYTE:
                return value
        raise BadStructure

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


# -- putting together -------------------------------------------------------------------------------------


def encode_struct(*fields: tuple[int, int, Any]) -> bytes:
    """Fields as (number, kind, value), in order; values of lists and structs are encoded already."""
    out = bytearray()
    before = 0
    for number, kind, value in fields:
        out.append((number - before) << 4 | kind)
        out += encode_signed(value) if kind in _INTEGERS else encode_binary(value) if kind == BINARY else value
        before = number
    out.append(0)
    return bytes(out)


def encode_list(kind: int, items: list[bytes]) -> bytes:
    """A list of items that are encoded already."""
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _encode_varint(count)
    return head + b"".join(items)


def encode_binary(value: bytes) -> bytes:
    """Bytes with their length."""
    return _encode_varint(len(value)) + value


def encode_signed(value: int) -> bytes:
    """A number of any width."""
    return _encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > _ONE_BYTE:
        out.append(value & _ONE_BYTE | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
