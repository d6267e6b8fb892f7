"""The hash of a record's key, as the index of a segment has it: of a whole column at once, and of one key.

The two give the same numbers; the format is the sum, modulo 2⁶⁴, of the mixed words of the key (8 bytes each, little
endian, the last one filled up with zeros) and of its length. It is made of Arrow's own steps, so that a column of keys
is hashed without a loop in Python and without Python's lock: sealing does that for every record.

It is no cryptographic hash. An attacker who chooses the keys can make two of them collide; then a lookup of the one
also looks at rows of the other, which costs time and changes no answer.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.arrow.plain_arrays import binaries, numbers

_WORD = 2**64 - 1
_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_FIRST_SHIFT, _SECOND_SHIFT = 32, 29


def hash_key(key: bytes) -> int:
    """The hash of one key.

    >>> hash_key(b"c-42") == hash_keys(pa.array([b"c-42"], pa.binary()))[0].as_py()
    True
    """
    padded = key + bytes(-len(key) % 8)
    words = (int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8))
    return (sum(map(_mixed, words)) + len(key) * _FIRST) & _WORD


def _mixed(word: int) -> int:
    word = (word ^ (word >> _FIRST_SHIFT)) * _FIRST & _WORD
    return (word ^ (word >> _SECOND_SHIFT)) * _SECOND & _WORD


def hash_keys(keys: pa.Array) -> pa.Array:
    """The hashes of binary keys without nulls, as unsigned 64-bit integers."""
    lengths = pc.binary_length(keys)
    _, starts, values = _padded(keys, lengths).buffers()
    borders = pc.shift_right(pa.Array.from_buffers(pa.int32(), len(keys) + 1, [None, starts]), _numbers.three)
    count = borders[len(keys)].as_py()
    words = pa.Array.from_buffers(pa.uint64(), count, [None, values])
    # Sums up to each border; the difference of two of them is the sum of the words between.
    sums = pa.concat_arrays([_numbers.start, pc.cumulative_sum(_mixed_words(words))]).take(borders)
    totals = pc.subtract(sums.slice(1), sums.slice(0, len(keys)))
    return pc.add(totals, pc.multiply(lengths.cast(pa.uint64()), _numbers.first))


def _padded(keys: pa.Array, lengths: pa.Array) -> pa.Array:
    """Keys in whole words, one behind the other from the first byte on."""
    ends: Any = pc.min_max(lengths).as_py()
    if len(keys) and ends["min"] == ends["max"]:  # keys of one length, as most are, take half the time
        return pc.binary_join_element_wise(keys, binaries([bytes(-ends["min"] % 8)], pa.binary())[0], _numbers.nothing)
    padding = pc.binary_repeat(_numbers.zero, pc.bit_wise_and(pc.negate(lengths), _numbers.seven))
    return pc.binary_join_element_wise(keys, padding, _numbers.nothing)


def _mixed_words(words: pa.Array) -> pa.Array:
    words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _numbers.first_shift)), _numbers.first)
    return pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _numbers.second_shift)), _numbers.second)


class _Numbers:
    """Arrow's form of the constants."""

    zero, nothing = binaries([b"\0", b""], pa.binary())
    three, seven = numbers([3, 7], pa.int32())
    first, second = numbers([_FIRST, _SECOND], pa.uint64())
    first_shift, second_shift = numbers([_FIRST_SHIFT, _SECOND_SHIFT], pa.uint64())
    start = numbers([0], pa.uint64())


_numbers = _Numbers()
