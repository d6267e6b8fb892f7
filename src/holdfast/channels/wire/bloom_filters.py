"""Bloom filters: those that a participant sends, which roll, and those that it received, which are not to be trusted.

A filter of both dialects has `capacity` × b bits, where b follows from the error rate, and an id occupies k of them:
(A + n·B) mod bits for n = 0 … k−1, with A a hash of the id and B one of the id and " b". They differ in the hash and
in how bits lie in bytes: nim-sds writes 64-bit words with the lowest byte first, inside a protobuf message that also
gives the parameters; `@waku/sds` writes them with the highest byte first and nothing else, and takes the parameters of
a filter it receives to be its own. Bits are kept as they are sent: `to_bytes` copies them once.

A rolling filter remembers its ids, so that it can forget: beyond 6/5 of its capacity it keeps the newest 4/5 and is
refilled. In nim-sds the new one is larger, sized for 6/5; for `@waku/sds` it must stay as it is, since the size is
nowhere said.

A received filter that is malformed gives None. So does one with more than 3/4 of its bits set, or so full for its few
hashes that it says yes to more than 15 of 100 strangers: an honest filter is about half full at most, and one of ones
would acknowledge everything. Not thread safe; nothing is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from holdfast.channels.wire.hashing import farmhash64, javascript_units, murmur3_32, murmur3_32_units
from holdfast.channels.wire.message import BLOOM_BYTES_MAX, raw
from holdfast.channels.wire.protobuf import fields, varint
from holdfast.errors import Invalid

HASHES_MAX = 64
_WORD_BITS = 64
_FULL_MAX, _YES_MAX = 0.75, 0.15
_ENVELOPE_BYTES_MAX = 64
_NIM_WORDS, _NIM_CAPACITY, _NIM_RATE, _NIM_HASHES, _NIM_BITS = 0x0A, 0x10, 0x18, 0x20, 0x28

Pair = tuple[int, int]
"""The two hashes of an id."""


class FilterShape(NamedTuple):
    """How large a filter is."""

    bits: int
    hashes: int

    @property
    def bytes(self) -> int:
        """A whole number of words: one more than is needed, when the bits fill theirs."""
        return (1 + self.bits // _WORD_BITS) * _WORD_BITS // 8


class Flavour(NamedTuple):
    """What a dialect does in its own way."""

    pair: Callable[[str], Pair]
    flip: int
    """7 when the bytes of a word are in reverse: what a byte's index is xored with."""
    grows: bool
    """Whether a filter that has rolled is sized for the larger number of ids."""
    envelope: Callable[[FilterShape, int, float], tuple[bytes, bytes]]
    """What is sent before and after the words of a filter of this shape, for so many ids at this error rate."""


def shape_of(capacity: int, error_rate: float) -> FilterShape:
    """The size of a filter for so many ids; Invalid when there can be none."""
    if capacity < 1 or not 0 < error_rate < 1:
        raise Invalid(
            f"there is no such filter capacity={capacity} error_rate={error_rate}",
            hint="give a capacity of at least 1, and an error rate between 0 and 1",
        )
    per_id = math.ceil(-math.log(error_rate) / math.log(2) ** 2)
    shape = FilterShape(capacity * per_id, round(math.log(2) * per_id))
    if shape.bytes > BLOOM_BYTES_MAX - _ENVELOPE_BYTES_MAX or shape.hashes > HASHES_MAX:
        raise Invalid(
            f"a filter is too large to be sent capacity={capacity} error_rate={error_rate} bytes={shape.bytes} "
            f"hashes={shape.hashes}",
            hint="lower the capacity, or raise the error rate",
        )
    return shape


def _nim_pair(message_id: str) -> Pair:
    data = raw(message_id)
    return magnitude(farmhash64(data)), magnitude(farmhash64(data + b" b"))


def _rfc_pair(message_id: str) -> Pair:
    if message_id.isascii():
        data = message_id.encode()
        return abs(murmur3_32(data)), abs(murmur3_32(data + b" b"))
    units = javascript_units(message_id)
    return abs(murmur3_32_units(units)), abs(murmur3_32_units([*units, 0x20, 0x62]))


def magnitude(unsigned: int) -> int:
    """The absolute value of 64 bits that are taken for a signed number."""
    return unsigned if unsigned < 2**63 else 2**64 - unsigned


def _nim_envelope(shape: FilterShape, capacity: int, error_rate: float) -> tuple[bytes, bytes]:
    numbers = {
        _NIM_CAPACITY: capacity,
        _NIM_RATE: int(error_rate * 1_000_000),
        _NIM_HASHES: shape.hashes,
        _NIM_BITS: shape.bits,
    }
    tail = b"".join(bytes((tag,)) + varint(number) for tag, number in numbers.items())
    return bytes((_NIM_WORDS,)) + varint(shape.bytes), tail


def _rfc_envelope(_shape: FilterShape, _capacity: int, _error_rate: float) -> tuple[bytes, bytes]:
    return b"", b""


NIM_FLAVOUR = Flavour(_nim_pair, 0, True, _nim_envelope)
RFC_FLAVOUR = Flavour(_rfc_pair, 7, False, _rfc_envelope)


class RollingBloom:
    """The ids that this participant has lately seen or sent, as a filter of bounded size, of either dialect.

    It remembers the ids themselves, oldest first: when there are more than a fifth too many, it forgets all but the
    newest four fifths of its capacity and is filled anew.
    """

    __slots__ = (
        "_bits",
        "_error_rate",
        "_flavour",
        "_head",
        "_ids",
        "_keep",
        "_known",
        "_max",
        "_rolled",
        "_shape",
        "_size",
        "_tail",
    )

    def __init__(self, flavour: Flavour, capacity: int, error_rate: float) -> None:
        self._flavour, self._error_rate = flavour, error_rate
        self._keep, self._max = capacity * 80 // 100, capacity * 120 // 100
        if flavour.grows:
            shape_of(max(capacity, self._max), error_rate)  # what it will roll into must be possible, too
        self._size = capacity
        self._rolled = False
        self._fill([])

    @property
    def ids(self) -> list[str]:
        """What it remembers, oldest first; an id that was added twice is there twice."""
        return self._ids.copy()

    def add(self, message_id: str) -> None:
        """Remember an id; rolls when there are too many."""
        self._set(message_id)
        self._ids.append(message_id)
        self._known.add(message_id)
        if len(self._ids) > self._max:
            self.clean()

    @property
    def rolled(self) -> bool:
        """Whether it has forgotten some."""
        return self._rolled

    def __len__(self) -> int:
        return len(self._ids)

    def restore(self, ids: Sequence[str], *, rolled: bool) -> None:
        """Remember these and no others."""
        self._rolled = rolled
        if rolled and self._flavour.grows:
            self._size = self._max
        self._fill(list(ids)[-max(1, self._max) :])

    def clean(self) -> None:
        """Forget the oldest ids, if there are too many."""
        excess = len(self._ids) - self._max
        if excess <= 0:
            return
        self._rolled = True
        if self._flavour.grows:
            self._size = self._max
        self._fill(self._ids[len(self._ids) - self._keep :])

    def __contains__(self, message_id: str) -> bool:
        return _has(self._bits, self._flavour, self._shape, message_id)

    def knows(self, message_id: str) -> bool:
        """Whether the id itself is remembered."""
        return message_id in self._known

    def to_bytes(self) -> bytes:
        """As it is sent."""
        return b"".join((self._head, self._bits, self._tail))

    def _fill(self, ids: list[str]) -> None:
        self._shape = shape_of(self._size, self._error_rate)
        self._head, self._tail = self._flavour.envelope(self._shape, self._size, self._error_rate)
        self._bits = bytearray(self._shape.bytes)
        self._ids, self._known = ids, set(ids)
        for message_id in self._known:
            self._set(message_id)

    def _set(self, message_id: str) -> None:
        first, second = self._flavour.pair(message_id)
        bits, flip, (size, hashes) = self._bits, self._flavour.flip, self._shape
        at, step = first % size, second % size
        for _ in range(hashes):
            bits[at >> 3 ^ flip] |= 1 << (at & 7)
            at += step
            if at >= size:
                at -= size


class ReceivedBloom:
    """A `Filter` that a participant sent."""

    __slots__ = ("_bits", "_flavour", "_shape")

    def __init__(self, flavour: Flavour, shape: FilterShape, bits: bytes) -> None:
        self._flavour, self._shape, self._bits = flavour, shape, bits

    def __contains__(self, message_id: str) -> bool:
        return _has(self._bits, self._flavour, self._shape, message_id)


def _has(bits: bytes | bytearray, flavour: Flavour, shape: FilterShape, message_id: str) -> bool:
    first, second = flavour.pair(message_id)
    flip, (size, hashes) = flavour.flip, shape
    at, step = first % size, second % size
    for _ in range(hashes):
        if not bits[at >> 3 ^ flip] >> (at & 7) & 1:
            return False
        at += step
        if at >= size:
            at -= size
    return True


def read_nim(data: bytes) -> ReceivedBloom | None:
    """A filter as nim-sds sends it, with the parameters that it brings."""
    if len(data) > BLOOM_BYTES_MAX:
        return None
    found: dict[int, tuple[int, int]] = {}
    try:
        for tag, start, stop in fields(data, 0, len(data)):
            if tag in _NIM_FIELDS:
                found[tag] = start, stop
    except Invalid:
        return None
    if len(found) < len(_NIM_FIELDS):
        return None
    start, stop = found[_NIM_WORDS]
    shape = FilterShape(found[_NIM_BITS][0], found[_NIM_HASHES][0])
    stop -= (stop - start) % 8
    if not 1 <= shape.hashes <= HASHES_MAX or not 1 <= shape.bits <= (stop - start) * 8:
        return None
    bits = data[start:stop]
    return None if _is_flooded(bits, shape, "little") else ReceivedBloom(NIM_FLAVOUR, shape, bits)


_NIM_FIELDS = frozenset((_NIM_WORDS, _NIM_CAPACITY, _NIM_RATE, _NIM_HASHES, _NIM_BITS))


def read_rfc(data: bytes, capacity: int, error_rate: float) -> ReceivedBloom | None:
    """A filter as `@waku/sds` sends it, with the parameters that we have ourselves; what is longer is cut."""
    shape = shape_of(capacity, error_rate)
    if not shape.bytes <= len(data) <= BLOOM_BYTES_MAX:
        return None
    bits = data[: shape.bytes]
    return None if _is_flooded(bits, shape, "big") else ReceivedBloom(RFC_FLAVOUR, shape, bits)


def _is_flooded(bits: bytes, shape: FilterShape, order: Literal["little", "big"]) -> bool:
    whole = shape.bits // _WORD_BITS * 8
    last = int.from_bytes(bits[whole : whole + 8], order) & (1 << shape.bits % _WORD_BITS) - 1
    ones = int.from_bytes(bits[:whole], order).bit_count() + last.bit_count()
    full = ones / shape.bits
    return full > _FULL_MAX or full**shape.hashes > _YES_MAX
