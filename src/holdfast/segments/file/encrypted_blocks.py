"""Encrypted blocks: how the rows of an encrypted segment lie in its Parquet file.

One Parquet row is one block of records: its place and time range in the clear, for pruning, and the records as one
encrypted blob. The blob is an Arrow record-batch message with zstd buffers and without a schema; the footer has that.
The associated data name the block's place in its log, so a block decrypts nowhere else, and the columns in the clear
are part of it: a change to them is found when the block is decrypted.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.crypto import digests
from holdfast.crypto.segment_key import SegmentKey
from holdfast.model.arrow.plain_arrays import binaries, numbers
from holdfast.model.segment import SegmentHead
from holdfast.segments.file.segment_columns import TIME, time_range

VERSION = 1
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

BLOCK_SCHEMA = pa.schema(
    [
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("time_min", TIME, nullable=False),
        pa.field("time_max", TIME, nullable=False),
        pa.field("block", pa.binary(), nullable=False),
    ]
)
"""The columns of an encrypted segment's file."""


Blob = bytes | memoryview
"""An encrypted block, as its cipher gives it."""


class BlockFacts(NamedTuple):
    """What is known of a block without its key."""

    first: int
    rows: int
    time_min: int
    time_max: int


class BlockEncryptor:
    """Makes the blocks of one segment."""

    def __init__(self, head: SegmentHead, schema: pa.Schema, key: SegmentKey, compression_level: int) -> None:
        self._head = head
        self._key = key
        self._prefix = schema.serialize().to_pybytes()
        codec = pa.Codec("zstd", compression_level=compression_level)
        self._options = pa.ipc.IpcWriteOptions(compression=codec)

    def encrypt(self, batch: pa.RecordBatch) -> tuple[BlockFacts, Blob]:
        """One block of records, encrypted."""
        place = BlockFacts(batch.column(0)[0].as_py(), batch.num_rows, *time_range(batch))
        return place, self._key.encrypt(self._message(batch), associated(self._head, place))

    def _message(self, batch: pa.RecordBatch) -> bytes:
        """The record-batch message alone: Arrow compresses only whole streams, so schema and end are cut off."""
        whole = pa.BufferOutputStream()
        with pa.ipc.new_stream(whole, batch.schema, options=self._options) as stream:
            stream.write_batch(batch)
        content = memoryview(whole.getvalue()).cast("B")
        start, end = len(self._prefix), len(content) - len(_END_OF_STREAM)
        assert content[:start] == self._prefix, "a stream begins with its schema"
        assert content[end:] == _END_OF_STREAM, "a stream ends with its mark"
        return bytes(content[start:end])


def associated(head: SegmentHead, place: BlockFacts) -> bytes:
    """What a block is bound to: format, log, segment, span, time range and schema."""
    return digests.canonical(
        "block", VERSION, head.log_id, head.topic, head.partition, head.number, *place, head.schema
    )


def table(blocks: list[tuple[BlockFacts, Blob]]) -> pa.RecordBatch:
    """Blocks as rows of the file."""
    firsts, rows, earliest, latest = zip(*(place for place, _ in blocks), strict=True)
    columns = [
        numbers(firsts, pa.int64()),
        numbers(rows, pa.int32()),
        numbers(earliest, pa.int64()).view(TIME),
        numbers(latest, pa.int64()).view(TIME),
        binaries([block for _, block in blocks], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BLOCK_SCHEMA)


def meeting(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The blocks that hold offsets from `start` up to `end`."""
    firsts, rows = batch.columns[:2]
    return batch.filter(pc.and_(pc.less(firsts, end), pc.greater(pc.add(firsts, rows), start)))


def places(batch: pa.RecordBatch) -> list[BlockFacts]:
    """The places of the blocks in some rows of the file."""
    firsts, rows, earliest, latest = batch.columns[:4]
    times = (earliest.view(pa.int64()).to_pylist(), latest.view(pa.int64()).to_pylist())
    return [BlockFacts(*row) for row in zip(firsts.to_pylist(), rows.to_pylist(), *times, strict=True)]


def decrypt_block(
    head: SegmentHead, key: SegmentKey, place: BlockFacts, block: bytes, schema: pa.Schema
) -> pa.RecordBatch:
    """The records of a block; raises NotAuthentic, or ArrowException for what was encrypted wrongly."""
    message = key.decrypt(block, associated(head, place))
    return pa.ipc.read_record_batch(pa.py_buffer(message), schema)
