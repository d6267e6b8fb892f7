"""Protobuf, as little of it as messages of a channel need: fields are walked over once and written one by one.

Nothing here knows what a field means. `fields` names each by its tag (number × 8 + wire type) and says where its bytes
are; who asks for a value slices it. So nothing is copied that is not kept, and no memory is taken for what is skipped.

The input is untrusted. Walking is linear in the input and ends with the last byte or with Invalid: for a field that is
cut off or has the number 0, a group, an unknown wire type, a varint of more than 64 bits. Varints that are longer than
they need be are read, as every implementation does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NoReturn

from holdfast.errors import Invalid

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
UINT64_MAX = 2**64 - 1
HINT = "drop it: it was damaged on the way, or its sender speaks another wire format"
_TAG_MIN, _TAG_MAX = 8, 2**32 - 1
_SHORT = tuple(bytes((value,)) for value in range(0x80))


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields from `at` to `end`: (tag, value, end of the field), or (tag, start, stop) unless it is a varint."""
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = read_varint(data, at - 1, end)
            if tag & 7 == DELIMITED:
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = read_varint(data, at - 1, end)
                start, at = at, at + size
            elif tag & 7 == VARINT:
                start = data[at]
                at += 1
                if start >= 0x80:
                    start, at = read_varint(data, at - 1, end)
            else:
                start, at = at, at + _fixed_size(tag)
            if at > end:
                _cut_off()
            if not _TAG_MIN <= tag <= _TAG_MAX:
                raise Invalid(f"a field of a message has no possible number tag={tag}", hint=HINT)
            yield tag, start, at
    except IndexError:
        _cut_off()


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = shift = 0
    for place in range(at, min(end, at + 10)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UINT64_MAX:
                break
            return value, place + 1
        shift += 7
    if end < at + 10:
        _cut_off()
    raise Invalid("a number in a message has more than 64 bits", hint=HINT)


def varint(value: int) -> bytes:
    """A number from 0 to 2⁶⁴−1, as it is written."""
    return _SHORT[value] if value < 0x80 else _long_varint(value)


@lru_cache(256)
def _long_varint(value: int) -> bytes:
    """Remembered: a time is written several times over, and so are sizes."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def delimited(tag: bytes, body: bytes) -> bytes:
    """A field of bytes; for short ones, as it copies them."""
    size = len(body)
    return tag + (_SHORT[size] if size < 0x80 else varint(size)) + body


def _fixed_size(tag: int) -> int:
    wire_type = tag & 7
    if wire_type == FIXED32:
        return 4
    if wire_type == FIXED64:
        return 8
    raise Invalid(f"a field of a message has no readable wire type tag={tag}", hint=HINT)


def _cut_off() -> NoReturn:
    raise Invalid("a message is cut off", hint=HINT) from None
