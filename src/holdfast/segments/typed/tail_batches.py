"""Journal entries as Arrow batches: what the roller writes into segments, and what Arrow reads of the tail get.

Raw entries are gathered column by column as they lie in their frames (lengths with lengths, payloads with payloads) and
become Arrow arrays in one step per batch, so that a thousand entries of one record cost hardly more than one entry of a
thousand. Only headers are read record by record, and only where there are some.
"""

from __future__ import annotations

from struct import pack

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model import frame
from holdfast.model.arrow import plain_arrays
from holdfast.model.record_columns import BadRecords, decode_headers
from holdfast.segments.file.segment_columns import RAW_SCHEMA, TIME
from holdfast.segments.typed.row_message import BadRows, decode_rows, decode_several

_ABSENT = pack("<I", 0xFFFFFFFF)
_NONE, _ZERO = pa.Array.from_buffers(pa.uint32(), 2, [None, pa.py_buffer(_ABSENT + bytes(4))])
_PAYLOAD, _KEY, _KIND, _HEADERS = range(4)
BATCH_BYTES = 2**20  # small enough to stay in the processor's cache


class RawGathering:
    """Consecutive raw entries of one partition on their way into one batch."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.records = 0
        self.bytes = 0
        self._times: list[bytes | memoryview] = []
        self._lengths: tuple[list[bytes | memoryview], ...] = ([], [], [], [])
        self._values: tuple[list[memoryview], ...] = ([], [], [], [])

    def add(self, body: bytes) -> int:
        """Take an entry's body; returns how many records it holds."""
        taken = frame.sections(body)
        count = taken.records
        self._times.append(taken.times if len(taken.times) == 8 * count else bytes(taken.times) * count)
        for place, section in enumerate(taken.columns):
            if section is not None:
                self._fill_absent(place)
                self._lengths[place].append(section.lengths)
                self._values[place].append(section.values)
            elif self._values[place]:
                self._lengths[place].append(_ABSENT * count)
        self.records += count
        self.bytes += len(body)
        return count

    def _fill_absent(self, place: int) -> None:
        """The first entry that has this column: all records before it have none."""
        if not self._values[place] and self.records:
            self._lengths[place].append(_ABSENT * self.records)

    def take(self) -> pa.RecordBatch:
        """The batch; the next one begins behind it."""
        count, first = self.records, self._first
        times = pa.Array.from_buffers(TIME, count, [None, pa.py_buffer(b"".join(self._times))])
        kinds = self._array(_KIND, pa.string())
        kinds.validate(full=True)  # text is text, or the frame is damaged
        batch = pa.RecordBatch.from_arrays(
            [
                offsets(first, count),
                times,
                self._array(_KEY, pa.binary()),
                kinds,
                self._headers(),
                self._array(_PAYLOAD, pa.binary()),
            ],
            schema=RAW_SCHEMA,
        )
        self.__init__(first + count)  # type: ignore[misc]  # begin again, behind
        return batch

    def _array(self, place: int, kind: pa.DataType) -> pa.Array:
        if not self._values[place]:
            return pa.nulls(self.records, kind)
        lengths = pa.Array.from_buffers(pa.uint32(), self.records, [None, pa.py_buffer(b"".join(self._lengths[place]))])
        validity = None
        if place != _PAYLOAD:
            absent = pc.equal(lengths, _NONE)
            validity = pc.invert(absent).buffers()[1]
            lengths = pc.if_else(absent, _ZERO, lengths)
        ends = pc.cumulative_sum(lengths)
        starts = pa.py_buffer(b"\0\0\0\0" + memoryview(ends.buffers()[1])[: 4 * self.records])
        values = pa.py_buffer(b"".join(self._values[place]))
        return pa.Array.from_buffers(kind, self.records, [validity, starts, values])

    def _headers(self) -> pa.Array:
        kind = RAW_SCHEMA.field("headers").type
        if not self._values[_HEADERS]:
            return pa.nulls(self.records, kind)
        encoded = self._array(_HEADERS, pa.binary()).to_pylist()
        rows = [
            None if value is None else [{"key": name, "value": item} for name, item in decode_headers(value).items()]
            for value in encoded
        ]
        return plain_arrays.read(rows, kind)


def offsets(first: int, count: int) -> pa.Array:
    """The dense offsets first, first + 1 …"""
    return pa.arange(first, first + count)


class TypedBatchBuffer:
    """Consecutive typed entries of one schema and partition on their way into one batch.

    Rows that were appended one by one make thousands of entries: whatever Arrow does once per batch is done once.
    """

    def __init__(self, stored: pa.Schema, target: pa.Schema) -> None:
        """`stored` is the schema of the entries' messages, `target` has offset and time before it."""
        self._stored = stored
        self._target = target
        self.bytes = 0
        self._entries: list[tuple[int, int, bytes]] = []
        """First offset, number of rows and body of each."""

    @property
    def end(self) -> int | None:
        """Behind the last row; None where there is none."""
        return self._entries[-1][0] + self._entries[-1][1] if self._entries else None

    def add(self, first: int, count: int, body: bytes) -> None:
        """Take an entry, which follows the one before."""
        self._entries.append((first, count, body))
        self.bytes += len(body)

    def take(self) -> pa.RecordBatch:
        """The batch; raises BadEntryRows for the first entry that does not hold what it says."""
        entries, self._entries, self.bytes = self._entries, [], 0
        if len(entries) > 1:
            try:
                return self._together(entries)
            except (BadRecords, BadRows):
                pass  # which one it is, is found one by one
        batches = [self._alone(*entry) for entry in entries]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _together(self, entries: list[tuple[int, int, bytes]]) -> pa.RecordBatch:
        taken = [frame.decode_typed(body) for _, _, body in entries]
        counts = [count for _, count, _ in entries]
        rows, found = decode_several([message for _, _, message in taken], self._stored)
        if found != counts or [count for count, _, _ in taken] != counts:
            raise BadRecords("a body does not hold as many rows as it says")
        stamps = b"".join([_stamps(times, count) for count, times, _ in taken])
        return _timed(rows, entries[0][0], stamps, self._target)

    def _alone(self, first: int, count: int, body: bytes) -> pa.RecordBatch:
        try:
            batch = typed_batch(body, first, self._stored, self._target)
        except BadRecords as error:
            raise BadEntryRows(first, str(error)) from None
        if batch.num_rows != count:
            raise BadEntryRows(first, "it does not hold as many rows as it says")
        return batch


class BadEntryRows(Exception):
    """An entry is not the rows that it should be."""

    def __init__(self, first: int, reason: str) -> None:
        super().__init__(reason)
        self.first = first


def typed_batch(body: bytes, first: int, stored: pa.Schema, target: pa.Schema) -> pa.RecordBatch:
    """The rows of a typed entry: `stored` is the schema of its message, `target` has offset and time before it."""
    count, times, message = frame.decode_typed(body)
    try:
        rows = decode_rows(message, stored)
    except BadRows as error:
        raise BadRecords(str(error)) from error
    if rows.num_rows != count:
        raise BadRecords("a body does not hold as many rows as it says")
    return _timed(rows, first, _stamps(times, count), target)


def _stamps(times: memoryview, count: int) -> bytes:
    return bytes(times) if len(times) == 8 * count else bytes(times) * count


def _timed(rows: pa.RecordBatch, first: int, stamps: bytes, target: pa.Schema) -> pa.RecordBatch:
    """Rows with their offsets and times before them."""
    clock = pa.Array.from_buffers(TIME, rows.num_rows, [None, pa.py_buffer(stamps)])
    return pa.RecordBatch.from_arrays([offsets(first, rows.num_rows), clock, *rows.columns], schema=target)
