"""The body of an entry: a run of records as bytes, column after column (docs/formats/0002-entry.md).

    u8  version = 1
    u8  flags          1 = one time for all, 2 = keys, 4 = kinds, 8 = headers
    u16 zero
    u32 count
    i64 times[count]   or times[1] when the flag says so
    u32 payload_length[count]
    u32 key_length[count] · u32 kind_length[count] · u32 header_length[count]      where flagged; 2³²−1 = none
    payloads · keys · kinds · headers

Little endian. Lengths and bytes of a column lie together, so a payload column becomes an Arrow array
without touching its rows (`sections`). Decoding trusts nothing: counts and lengths must add up to the body
exactly, before any of it is sliced.

Rows of a typed topic have the same head and times; what follows is one Arrow record-batch message, which this
module does not look into (`typed_head`, `decode_typed`).
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import NamedTuple

from holdfast.model.record_columns import BadRecords, Columns, Extra

VERSION = 1
HEAD = struct.Struct("<BBHI")
_ONE = struct.Struct("<BBHIqI")
_ONE_TIME, _KEYS, _KINDS, _HEADERS = 1, 2, 4, 8
_EXTRA_FLAGS = (_KEYS, _KINDS, _HEADERS)
_NONE = 0xFFFFFFFF


def encode_one(payload: bytes, time: int) -> bytes:
    """One record without key, kind and headers: what lone producers append, one after the other."""
    return _ONE.pack(VERSION, 0, 0, 1, time, len(payload)) + payload


def encode(columns: Columns) -> bytes:
    """Records to bytes."""
    payloads, times = columns.payloads, columns.times
    count = len(payloads)
    one_time = count > 1 and times[0] == times[-1] and times.count(times[0]) == count
    flags = _ONE_TIME if one_time else 0
    vectors = [struct.pack("<q", times[0]) if one_time else struct.pack(f"<{count}q", *times)]
    vectors.append(struct.pack(f"<{count}I", *map(len, payloads)))
    values: list[bytes] = []
    if columns.extras:
        for place, flag in enumerate(_EXTRA_FLAGS):
            column = _extra_column(columns, place)
            if any(value is not None for value in column):
                flags |= flag
                vectors.append(struct.pack(f"<{count}I", *[_NONE if v is None else len(v) for v in column]))
                values.extend(v for v in column if v is not None)
    return b"".join((HEAD.pack(VERSION, flags, 0, count), *vectors, *payloads, *values))


def _extra_column(columns: Columns, place: int) -> list[bytes | None]:
    column: list[bytes | None] = [None] * len(columns)
    for index, extra in columns.extras.items():
        column[index] = extra[place]
    return column


class FrameSection(NamedTuple):
    """One column of a frame as stored: lengths (u32 each, 2³²−1 = none), and all values one after the other."""

    lengths: memoryview
    values: memoryview


class Sections(NamedTuple):
    """A frame taken apart without touching its records; payload, then key, kind and headers where there are any."""

    records: int
    times: memoryview
    """i64 each; a single one when it holds for all."""
    columns: tuple[FrameSection | None, FrameSection | None, FrameSection | None, FrameSection | None]


def sections(body: bytes) -> Sections:
    """The columns of a frame; raises BadFrame unless every byte is accounted for."""
    flags, count = _head(body, 15)
    time_count = 1 if flags & _ONE_TIME else count
    present = [True, *(bool(flags & flag) for flag in _EXTRA_FLAGS)]
    view = memoryview(body)
    at = HEAD.size + 8 * time_count
    values_at = at + 4 * count * sum(present)
    if values_at > len(body):
        raise BadRecords(f"body is too short for its records count={count}")
    times = view[HEAD.size : at]
    columns: list[FrameSection | None] = []
    for there in present:
        if not there:
            columns.append(None)
            continue
        lengths = view[at : at + 4 * count]
        numbers = lengths.cast("I")
        absent = numbers.tolist().count(_NONE) if columns else 0
        size = sum(numbers) - absent * _NONE
        columns.append(FrameSection(lengths, view[values_at : values_at + size]))
        at, values_at = at + 4 * count, values_at + size
    if values_at != len(body):
        raise BadRecords("lengths do not add up to the body")
    return Sections(count, times, (columns[0], columns[1], columns[2], columns[3]))


def typed_head(count: int, times: bytes) -> bytes:
    """What stands before the message in the body of typed rows: `times` holds one i64 for all of them, or for each."""
    one_time = len(times) == 8 and count > 1
    return HEAD.pack(VERSION, _ONE_TIME if one_time else 0, 0, count) + times


def decode_typed(body: bytes) -> tuple[int, memoryview, memoryview]:
    """The number of rows, their times (one or one each) and the Arrow message."""
    flags, count = _head(body, _ONE_TIME)
    at = HEAD.size + 8 * (1 if flags & _ONE_TIME else count)
    if at > len(body):
        raise BadRecords(f"body is too short for its rows count={count}")
    view = memoryview(body)
    return count, view[HEAD.size : at], view[at:]


def _head(body: bytes, flags_max: int) -> tuple[int, int]:
    if len(body) < HEAD.size:
        raise BadRecords("body is shorter than its head")
    version, flags, zero, count = HEAD.unpack_from(body)
    if version != VERSION or zero or flags > flags_max:
        raise BadRecords(f"unknown frame version={version} flags={flags}")
    return flags, count


def decode(body: bytes) -> Columns:
    """Bytes to records; raises BadFrame unless every byte is accounted for."""
    flags, count = _head(body, 15)
    kinds_of_extra = [place for place, flag in enumerate(_EXTRA_FLAGS) if flags & flag]
    time_count = 1 if flags & _ONE_TIME else count
    at = HEAD.size + 8 * time_count
    vectors_end = at + 4 * count * (1 + len(kinds_of_extra))
    if vectors_end > len(body):
        raise BadRecords(f"body is too short for its records count={count}")
    stored = struct.unpack_from(f"<{time_count}q", body, HEAD.size)
    times = list(stored) * count if flags & _ONE_TIME else list(stored)
    lengths = [struct.unpack_from(f"<{count}I", body, at + 4 * count * i) for i in range(1 + len(kinds_of_extra))]
    return _slice(body, vectors_end, times, lengths, kinds_of_extra)


def _slice(body: bytes, start: int, times: list[int], lengths: list[tuple[int, ...]], places: list[int]) -> Columns:
    if _NONE in lengths[0]:
        raise BadRecords("a payload is marked as absent")
    flat = [n if n != _NONE else 0 for vector in lengths for n in vector]
    ends = list(accumulate(flat, initial=start))
    if ends[-1] != len(body):
        raise BadRecords("lengths do not add up to the body")
    pieces = [body[a:b] for a, b in pairwise(ends)]
    count = len(times)
    columns = Columns(pieces[:count], times)
    if places:
        columns.extras = _extras(count, pieces[count:], lengths[1:], places)
    return columns


def _extras(count: int, pieces: list[bytes], lengths: list[tuple[int, ...]], places: list[int]) -> dict[int, Extra]:
    table: list[list[bytes | None]] = [[None] * count for _ in _EXTRA_FLAGS]
    for nth, place in enumerate(places):
        column = pieces[nth * count : (nth + 1) * count]
        table[place] = [None if n == _NONE else v for n, v in zip(lengths[nth], column, strict=True)]
    rows = zip(*table, strict=True)
    return {i: row for i, row in enumerate(rows) if row != (None, None, None)}
