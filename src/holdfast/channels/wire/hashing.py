"""The two hash functions that filters and repair delays are built on, and text as JavaScript hashes it.

nim-sds hashes bytes with FarmHash64; `@waku/sds` hashes with MurmurHash3, and with SHA-256 for delays. Both must be
computed to the bit: a participant who gets another number has another filter, and acknowledges nothing. They are those
of `pyfarmhash` and `mmh3`, which the extra `holdfast-log[channels]` brings.

JavaScript has its own idea of text. An id is read from the wire by a decoder that takes any bytes for UTF-8, and is
then hashed by its UTF-16 code units, of which one outside the first plane gives only its first. This is followed to
the letter, also for ids that are no UTF-8. Such numbers need not fit into bytes, which is what `mmh3` takes: where they
do not, MurmurHash3 is computed here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from holdfast.channels.wire.message import raw
from holdfast.errors import Invalid

try:
    from farmhash import fingerprint64 as farmhash64
    from mmh3 import hash as murmur3_32
except ImportError as error:
    raise Invalid("reliable channels need an extra", hint="pip install 'holdfast-log[channels]'") from error

__all__ = ["farmhash64", "javascript_bytes", "javascript_units", "murmur3_32", "murmur3_32_units"]

_MASK32 = 2**32 - 1
_C1, _C2 = 0xCC9E2D51, 0x1B873593


def murmur3_32_units(units: Sequence[int]) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0), signed, over numbers of 16 bits, each in the place of a byte.

    What is too wide runs into the next.
    """
    words = []
    for at in range(0, len(units), 4):
        word = 0
        for place, unit in enumerate(units[at : at + 4]):
            word |= unit << 8 * place & _MASK32
        words.append(word)
    last = words.pop() if len(units) & 3 else 0
    h = 0
    for word in words:
        k = word * _C1 & _MASK32
        h ^= (k << 15 | k >> 17) * _C2 & _MASK32
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _MASK32
    k = last * _C1 & _MASK32
    h ^= (k << 15 | k >> 17) * _C2 & _MASK32 ^ len(units)
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK32
    h ^= h >> 16
    return h - 2**32 if h >= 2**31 else h


def javascript_units(text: str) -> list[int]:
    """The numbers by which JavaScript puts an id into its filter: one for each code point."""
    points = [ord(character) for character in _javascript_text(text)]
    return [point if point < 0x10000 else 0xD7C0 + (point >> 10) for point in points]


def javascript_bytes(*texts: str) -> bytes:
    """Ids joined and encoded by JavaScript, where half a surrogate pair is written as U+FFFD."""
    joined = "".join(map(_javascript_text, texts))
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _javascript_text(text: str) -> str:
    """An id as JavaScript reads it from the wire: the same, if it is UTF-8 there."""
    try:
        text.encode()
    except UnicodeEncodeError:
        units = _lax_units(raw(text))
        return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", "surrogatepass")
    return text


def _lax_units(data: bytes) -> list[int]:
    """UTF-16 code units of bytes that are no UTF-8: no byte is checked, and those behind the end are zeros."""
    units: list[int] = []
    padded, at = data + bytes(3), 0
    while at < len(data):
        first, b, c, d = padded[at], padded[at + 1] & 63, padded[at + 2] & 63, padded[at + 3] & 63
        if first < 0x80:
            units.append(first)
            at += 1
        elif 0xC0 <= first < 0xE0:
            units.append((first & 31) << 6 | b)
            at += 2
        elif first >= 0xF0:
            point = ((first & 7) << 18 | b << 12 | c << 6 | d) - 0x10000
            units += (0xD800 + (point >> 10), 0xDC00 + (point & 1023))
            at += 4
        else:
            units.append((first & 15) << 12 | b << 6 | c)
            at += 3
    return units
