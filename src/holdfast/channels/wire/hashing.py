"""The two hash functions that filters and repair delays are built on, and text as JavaScript hashes it.

nim-sds hashes bytes with FarmHash64; `@waku/sds` hashes with MurmurHash3, and with SHA-256 for delays. Both must be
computed to the bit: a participant who gets another number has another filter, and acknowledges nothing.

The functions are written out here and used as they are; where `pyfarmhash` or `mmh3` is installed (the extra
`holdfast-log[channels]`), theirs are used instead, which give the same numbers and are twenty times faster and more.

JavaScript has its own idea of text. An id is read from the wire by a decoder that takes any bytes for UTF-8, and is
then hashed by its UTF-16 code units, of which one outside the first plane gives only its first. This is followed to
the letter, also for ids that are no UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from holdfast.channels.wire.message import raw

_MASK = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_MASK32 = 2**32 - 1
_C1, _C2 = 0xCC9E2D51, 0x1B873593

_word = struct.Struct("<Q").unpack_from
_half = struct.Struct("<I").unpack_from
_two_words = struct.Struct("<QQ").unpack_from
_four_words = struct.Struct("<QQQQ").unpack_from
_eight_words = struct.Struct("<QQQQQQQQ").unpack_from


def python_farmhash64(data: bytes) -> int:
    """FarmHash's Fingerprint64 (farmhashna::Hash64), unsigned."""
    size = len(data)
    if size <= 16:
        return _farm_to_16(data, size)
    if size <= 32:
        return _farm_to_32(data, size)
    if size <= 64:
        return _farm_to_64(data, size)
    return _farm_long(data, size)


def _farm_to_16(data: bytes, size: int) -> int:
    mul = _K2 + size * 2
    if size >= 8:
        a = _word(data)[0] + _K2 & _MASK
        b = _word(data, size - 8)[0]
        return _mix(_rotate(b, 37) * mul + a & _MASK, (_rotate(a, 25) + b) * mul & _MASK, mul)
    if size >= 4:
        return _mix(size + (_half(data)[0] << 3), _half(data, size - 4)[0], mul)
    if size:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[-1] << 2)
        return _shift_mix((y * _K2 ^ z * _K0) & _MASK) * _K2 & _MASK
    return _K2


def _farm_to_32(data: bytes, size: int) -> int:
    mul = _K2 + size * 2
    a, b = _two_words(data)
    d, c = _two_words(data, size - 16)
    a, c, d = a * _K1 & _MASK, c * mul & _MASK, d * _K2
    left = _rotate(a + b & _MASK, 43) + _rotate(c, 30) + d
    return _mix(left & _MASK, a + _rotate(b + _K2 & _MASK, 18) + c & _MASK, mul)


def _farm_to_64(data: bytes, size: int) -> int:
    mul = _K2 + size * 2
    a, b, e, f = _four_words(data)
    g, h, d, c = _four_words(data, size - 32)
    a, c, d, e = a * _K2 & _MASK, c * mul & _MASK, d * _K2, e * mul & _MASK
    y = _rotate(a + b & _MASK, 43) + _rotate(c, 30) + d & _MASK
    z = _mix(y, a + _rotate(b + _K2 & _MASK, 18) + c & _MASK, mul)
    g, h = (y + g) * mul & _MASK, (z + h) * mul
    left = _rotate(e + f & _MASK, 43) + _rotate(g, 30) + h
    return _mix(left & _MASK, e + _rotate(f + a & _MASK, 18) + g & _MASK, mul)


def _farm_long(data: bytes, size: int) -> int:
    x = 81
    y = 81 * _K1 + 113 & _MASK
    z = _shift_mix(y * _K2 + 113 & _MASK) * _K2 & _MASK
    v1 = v2 = w1 = w2 = 0
    x = x * _K2 + _word(data)[0] & _MASK
    end = (size - 1) // 64 * 64
    for at in range(0, end, 64):
        x, y, z, v1, v2, w1, w2 = _farm_block(data, at, (x, y, z, v1, v2, w1, w2), _K1, 1)
    mul = _K1 + ((z & 0xFF) << 1)
    w1 += size - 1 & 63
    v1 += w1
    w1 += v1
    x, y, z, v1, v2, w1, w2 = _farm_block(data, size - 64, (x, y, z, v1, v2, w1, w2), mul, 9)
    left = _mix(v1, w1, mul) + _shift_mix(y) * _K0 + z
    return _mix(left & _MASK, _mix(v2, w2, mul) + x & _MASK, mul)


_State = tuple[int, int, int, int, int, int, int]


def _farm_block(data: bytes, at: int, state: _State, mul: int, weight: int) -> _State:
    """Sixty-four bytes; the last ones count with another multiplier and weight."""
    x, y, z, v1, v2, w1, w2 = state
    a, b, c, d, e, f, g, h = _eight_words(data, at)
    x = _rotate(x + y + v1 + b & _MASK, 37) * mul & _MASK
    y = _rotate(y + v2 + g & _MASK, 42) * mul & _MASK
    x ^= w2 * weight & _MASK
    y += v1 * weight + f
    z = _rotate(z + w1 & _MASK, 33) * mul & _MASK
    v1, v2 = _weak(a, b, c, d, v2 * mul, x + w1)
    w1, w2 = _weak(e, f, g, h, z + w2, y + c)
    return z, y & _MASK, x, v1, v2, w1, w2


def _weak(w: int, x: int, y: int, z: int, a: int, b: int) -> tuple[int, int]:
    a += w
    b = _rotate(b + a + z & _MASK, 21)
    c = a
    a = a + x + y & _MASK
    return a + z & _MASK, b + _rotate(a, 44) + c & _MASK


def _mix(u: int, v: int, mul: int) -> int:
    a = (u ^ v) * mul & _MASK
    b = (v ^ a ^ a >> 47) * mul & _MASK
    return (b ^ b >> 47) * mul & _MASK


def _rotate(value: int, by: int) -> int:
    return (value >> by | value << 64 - by) & _MASK


def _shift_mix(value: int) -> int:
    return value ^ value >> 47


def python_murmur3_32(data: bytes) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0), signed."""
    whole = len(data) & ~3
    return _murmur(struct.unpack_from(f"<{whole >> 2}I", data), int.from_bytes(data[whole:], "little"), len(data))


def murmur3_32_units(units: Sequence[int]) -> int:
    """The same over numbers of 16 bits, each in the place of a byte: what is too wide runs into the next."""
    words = []
    for at in range(0, len(units), 4):
        word = 0
        for place, unit in enumerate(units[at : at + 4]):
            word |= unit << 8 * place & _MASK32
        words.append(word)
    last = words.pop() if len(units) & 3 else 0
    return _murmur(words, last, len(units))


def _murmur(words: Sequence[int], last: int, size: int) -> int:
    h = 0
    for word in words:
        k = word * _C1 & _MASK32
        h ^= (k << 15 | k >> 17) * _C2 & _MASK32
        h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _MASK32
    k = last * _C1 & _MASK32
    h ^= (k << 15 | k >> 17) * _C2 & _MASK32 ^ size
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


farmhash64: Callable[[bytes], int]
murmur3_32: Callable[[bytes], int]

try:
    from farmhash import fingerprint64
except ImportError:
    farmhash64 = python_farmhash64
else:
    farmhash64 = fingerprint64

try:
    from mmh3 import hash as signed_murmur3
except ImportError:
    murmur3_32 = python_murmur3_32
else:
    murmur3_32 = signed_murmur3
