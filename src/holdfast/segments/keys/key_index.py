"""The index of a segment's keys: for a key, the few spans of rows that may have it. It never misses one that has.

An entry stands for one key in one *unit* of consecutive rows: a fingerprint of the key and the unit's number. Entries
are sorted by fingerprint, so one search answers for the whole segment. A fingerprint has as many bits as give a wrong
"maybe" for one key in two thousand; the rows are checked in any case, so a wrong "maybe" costs time and nothing else.
The smallest and the largest key stand beside it and answer first.

Why not a Bloom filter: docs/decisions/0021-keys.md. The bytes: docs/formats/0004-segment.md, "Keys".

Nothing loops over rows in Python. Values only: where the bytes lie, and what proves them, is the files' business.
Memory while it is made: 8 bytes for each entry, of which there are at most `ENTRIES_MAX`; beyond that there is no index
and such a file is read instead.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import takewhile
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.arrow.plain_arrays import numbers, scalar
from holdfast.segments.keys.key_hash import hash_key, hash_keys

VERSION = 1
UNIT_ROWS = 8_192
"""Rows of one unit: what is read of an encrypted segment for one key, at least."""
ENTRIES_MAX = 2**23
"""More make no index: 8 million keys in one file."""
BOUND_BYTES = 32
"""As much of the smallest and the largest key is kept."""

_GAP_MEAN = 2_048
_GAP_MAX = 2**16 - 1
_ENTRY_BYTES = 4
_PENDING_BYTES_MAX = 2**20
_LEVEL = 1
_VARIED, _CHECKED_UNITS = 0.8, 8
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
_Bound = Annotated[bytes, msgspec.Meta(max_length=BOUND_BYTES)]

Beside = Callable[[Callable[[], None]], "Future[None]"]
"""Does something in another thread, one piece after the other."""
RowSpan = tuple[int, int]
"""Rows of a segment, counted from its first: from … up to."""


class BadIndex(Exception):
    """These bytes are no index; callers say where they were found."""


class _IndexBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    low: _Bound
    high: _Bound
    unit_rows: Annotated[int, msgspec.Meta(ge=1, le=2**40)]
    scale: _Natural
    count: Annotated[int, msgspec.Meta(ge=0, le=ENTRIES_MAX)]
    packed: bytes


_decode = msgspec.msgpack.Decoder(_IndexBody, strict=True).decode
_encode = msgspec.msgpack.Encoder().encode


class KeyIndex:
    """The index of one segment, in memory."""

    __slots__ = ("_fingerprints", "_high", "_low", "_scale", "_unit_rows", "_units", "size")

    def __init__(self, stored: _IndexBody, fingerprints: memoryview, units: memoryview) -> None:
        self._low, self._high = stored.low, stored.high
        self._unit_rows, self._scale = stored.unit_rows, stored.scale
        self._fingerprints, self._units = fingerprints, units
        self.size = fingerprints.nbytes + units.nbytes
        """Bytes of memory."""

    @classmethod
    def parse(cls, content: bytes | memoryview, rows: int) -> KeyIndex:
        """The index of a segment with so many rows; raises BadIndex. Sizes are bounded before anything is made."""
        try:
            stored = _decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise BadIndex("has an index of keys that cannot be read") from None
        if stored.version != VERSION or stored.count > rows:
            raise BadIndex("has an index of keys that is not one of its rows")
        return cls(stored, *_unpacked(stored, rows))

    def spans(self, key: bytes, hashed: int) -> list[RowSpan]:
        """Where rows with this key may be, in order; `hashed` is its hash, made once for many segments."""
        start = key[:BOUND_BYTES]
        if not self._low <= start <= self._high:
            return []
        fingerprints = self._fingerprints
        wanted = (hashed >> 32) * self._scale >> 32
        at = bisect_left(fingerprints, wanted)
        if at == len(fingerprints) or fingerprints[at] != wanted:
            return []
        found = {self._units[i] for i in takewhile(lambda i: fingerprints[i] == wanted, range(at, len(fingerprints)))}
        return _joined([(unit * self._unit_rows, (unit + 1) * self._unit_rows) for unit in sorted(found)])

    def covers(self, keys: pa.Array, row: int) -> bool:
        """Whether every one of these keys would be found where it is; the first of them is that of `row`."""
        fingerprints, units = (_array(self._fingerprints, "I"), _array(self._units, "H"))
        entries = pc.bit_wise_or(pc.shift_left(fingerprints.cast(pa.uint64()), _16), units.cast(pa.uint64()))
        while len(keys):
            unit = row // self._unit_rows
            part = keys.slice(0, (unit + 1) * self._unit_rows - row)
            if not self._cover(binary_keys(part.drop_null().unique()), unit, entries):
                return False
            keys, row = keys.slice(len(part)), row + len(part)
        return True

    def _cover(self, keys: pa.Array, unit: int, entries: pa.Array) -> bool:
        if not len(keys):
            return True
        ends: Any = pc.min_max(keys).as_py()
        if ends["min"][:BOUND_BYTES] < self._low or ends["max"][:BOUND_BYTES] > self._high:
            return False
        scaled = _scaled(pc.shift_right(hash_keys(keys), _32), self._scale)
        wanted = pc.bit_wise_or(pc.shift_left(scaled, _16), _number(unit))
        return bool(pc.all(pc.is_in(wanted, entries)).as_py())


class KeyIndexBuilder:
    """Makes the index of a segment, from its keys in the order of its rows.

    The work is done by `beside`, another thread that takes one piece after the other, while the caller goes
    on; without one it is done at once.

    >>> builder = KeyIndexBuilder()
    >>> builder.add(pa.array([b"a", None, b"b"]))
    >>> KeyIndex.parse(builder.result(), 3).spans(b"a", hash_key(b"a"))
    [(0, 8192)]
    """

    def __init__(self, beside: Beside | None = None) -> None:
        self._beside = beside
        self._running: list[Future[None]] = []
        self._rows = 0
        self._pending: list[pa.Array] = []
        self._pending_bytes = 0
        self._entries: list[pa.Array] = []
        self._count = 0
        self._is_varied = False
        self._low: bytes | None = None
        self._high = b""
        self._stored: bytes | None = None
        self._is_closed = False

    def add(self, keys: pa.Array) -> None:
        """The keys of the next rows, in a column that can be a key; rows without one count, too."""
        while len(keys):
            part = keys.slice(0, UNIT_ROWS - self._rows % UNIT_ROWS)  # never over the border of a unit
            self._rows += len(part)
            if part.null_count < len(part):
                self._pending.append(part)
                self._pending_bytes += part.nbytes
            if self._rows % UNIT_ROWS == 0 or self._pending_bytes > _PENDING_BYTES_MAX:
                self._take()
            keys = keys.slice(len(part))

    def close(self) -> None:
        """There are no more keys: the index is made, while the caller goes on."""
        if not self._is_closed:
            self._is_closed = True
            self._take()
            self._do(self._pack)

    def result(self) -> bytes | None:
        """The index as it is stored; None if there are too many keys for one."""
        self.close()
        for piece in self._running:
            piece.result()
        return self._stored

    def _do(self, work: Callable[[], None]) -> None:
        if self._beside is None:
            work()
        else:
            self._running.append(self._beside(work))

    def _take(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending:
            self._do(partial(self._enter, pending, (self._rows - 1) // UNIT_ROWS))

    def _enter(self, parts: list[pa.Array], unit: int) -> None:
        if self._count > ENTRIES_MAX:
            return
        present = pa.concat_arrays(parts).drop_null()
        # Where hardly any key comes twice, looking for those that do costs more than entering them twice.
        is_checked = not self._is_varied or unit % _CHECKED_UNITS == 0
        keys = binary_keys(present.unique() if is_checked else present)
        if is_checked:
            self._is_varied = len(keys) > _VARIED * len(present)
        self._widen(keys)
        self._entries.append(pc.bit_wise_or(pc.bit_wise_and(hash_keys(keys), _UPPER), _number(unit)))
        self._count += len(keys)
        if self._count > ENTRIES_MAX:
            self._entries.clear()

    def _widen(self, keys: pa.Array) -> None:
        ends: Any = pc.min_max(keys).as_py()
        low, high = ends["min"][:BOUND_BYTES], ends["max"][:BOUND_BYTES]
        self._low = low if self._low is None else min(self._low, low)
        self._high = max(self._high, high)

    def _pack(self) -> None:
        if self._count <= ENTRIES_MAX:
            units = -(-self._rows // UNIT_ROWS)
            self._stored = _encode(_packed(self._entries, self._low or b"", self._high, units))


def binary_keys(column: pa.Array) -> pa.Array:
    """A column of keys as the bytes that say where a row goes: text in UTF-8, integers as decimal text."""
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    return (column.cast(pa.string()) if pa.types.is_integer(kind) else column).cast(pa.binary())


def _packed(entries: list[pa.Array], low: bytes, high: bytes, units: int) -> _IndexBody:
    """Entries (hash ‖ unit, 32 bits each) as they are stored."""
    shift = max(0, (units - 1).bit_length() - 16)
    if not entries:
        return _IndexBody(VERSION, low, high, UNIT_ROWS << shift, 0, 0, b"")
    ordered = _sorted(pa.concat_arrays(entries))
    hashes = pc.shift_right(ordered, _32)
    distinct = 1 + (pc.sum(pc.not_equal(hashes.slice(1), hashes.slice(0, len(hashes) - 1))).as_py() or 0)
    scale, gaps = _fitting(hashes, min(2**32, distinct * _GAP_MEAN))
    numbers = pc.shift_right(pc.bit_wise_and(ordered, _LOWER), _number(shift))
    planes = [plane for values in (gaps, numbers) for plane in (_low_bytes(values), _low_bytes(_shifted(values)))]
    packed = pa.Codec("zstd", compression_level=_LEVEL).compress(b"".join(planes), asbytes=True)
    return _IndexBody(VERSION, low, high, UNIT_ROWS << shift, scale, len(ordered), packed)


def _sorted(entries: pa.Array) -> pa.Array:
    """Sorted by NumPy where Arrow has loaded it: in half the time, which is most of what an index costs.

    Arrow's own way to NumPy and back would load pandas where that is installed: only buffers are handed over.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return entries.sort()
    values = numpy.frombuffer(entries.buffers()[1], numpy.uint64, len(entries), 8 * entries.offset)
    return pa.Array.from_buffers(pa.uint64(), len(entries), [None, pa.py_buffer(numpy.sort(values))])


def _number(value: int) -> pa.Scalar:
    return scalar(value.to_bytes(8, sys.byteorder), pa.uint64())


def _fitting(hashes: pa.Array, scale: int) -> tuple[int, pa.Array]:
    """Fingerprints are hashes, scaled down so far that no gap between two of them takes more than two bytes."""
    while True:
        scaled = _scaled(hashes, scale)
        gaps = pc.subtract(scaled, pa.concat_arrays([_ZERO, scaled.slice(0, len(scaled) - 1)]))
        if pc.max(gaps).as_py() <= _GAP_MAX:
            return scale, gaps
        scale //= 2


def _scaled(hashes: pa.Array, scale: int) -> pa.Array:
    return pc.shift_right(pc.multiply(hashes, _number(scale)), _32)


def _array(values: memoryview, form: str) -> pa.Array:
    kind = pa.uint32() if form == "I" else pa.uint16()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _unpacked(stored: _IndexBody, rows: int) -> tuple[memoryview, memoryview]:
    """Fingerprints and units of the entries."""
    count = stored.count
    if not count:
        return memoryview(b"").cast("I"), memoryview(b"").cast("H")
    try:
        planes = pa.Codec("zstd").decompress(stored.packed, count * _ENTRY_BYTES, asbytes=True)
    except (OSError, ValueError):
        raise BadIndex("has an index of keys that cannot be unpacked") from None
    gaps, units = _joined_planes(planes[: 2 * count]), _joined_planes(planes[2 * count :])
    fingerprints = pc.cumulative_sum(_array(gaps, "H").cast(pa.uint32()))
    if pc.max(_array(units, "H")).as_py() * stored.unit_rows >= rows or fingerprints[-1].as_py() >= stored.scale:
        raise BadIndex("has an index of keys that points beyond its rows")
    return memoryview(fingerprints.buffers()[1]).cast("I")[:count], units


def _joined_planes(planes: bytes) -> memoryview:
    """Numbers of two bytes, from their lower and their upper ones."""
    joined, half = bytearray(len(planes)), len(planes) // 2
    joined[0::2], joined[1::2] = planes[:half], planes[half:]
    return memoryview(joined).cast("H")


def _shifted(values: pa.Array) -> pa.Array:
    return pc.shift_right(values, _8)


def _low_bytes(values: pa.Array) -> memoryview:
    plane = pc.bit_wise_and(values, _BYTE).cast(pa.uint8())
    return memoryview(plane.buffers()[1])[: len(plane)]


def _joined(spans: list[RowSpan]) -> list[RowSpan]:
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start == joined[-1][1]:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


_UPPER, _LOWER, _BYTE = (_number(mask) for mask in (2**64 - 2**32, 2**32 - 1, 255))
_8, _16, _32 = (_number(bits) for bits in (8, 16, 32))
_ZERO = numbers([0], pa.uint64())

__all__ = ["BadIndex", "KeyIndex", "KeyIndexBuilder", "RowSpan", "binary_keys", "hash_key"]
