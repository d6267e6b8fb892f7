"""Files of a task rewritten because another writer has taken their offsets meanwhile.

Correct and slow: every row is read back, proved, and written again with its new offset, on the machine that commits.
It happens only where two writers append to one topic at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa

from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.crypto.segment_key import SegmentKey, SegmentKeyFacts, decrypting_key, encrypting_key
from holdfast.errors import NotFound, Unavailable
from holdfast.model.segment import Segment
from holdfast.root.objects.documents import PartitionEnd, SegmentDocument
from holdfast.root.sink_batches import end_behind
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.sink.sink_root import SinkRoot
from holdfast.sink.sink_target import SinkTarget
from holdfast.sink.task_files import upload

_CHUNK_BYTES = 8 * 2**20


def moved(
    root: SinkRoot, target: SinkTarget, segments: Sequence[SegmentDocument], base: PartitionEnd, clock: Clock
) -> Iterator[SegmentDocument]:
    """The rows of these segments in new files, from where the partition ends now, one by one. The old ones stay."""
    with TemporaryDirectory(prefix="holdfast-sink-") as spool:
        for segment in segments:
            document = _moved(root, target, segment, base, Path(spool), clock)
            yield document
            base = end_behind(document)


def starts_at(segments: Sequence[SegmentDocument], base: PartitionEnd) -> bool:
    """Whether segments go on where a partition ends."""
    first = segments[0]
    return PartitionEnd(first.slot, first.number, first.first, first.previous) == base


def _moved(
    root: SinkRoot, target: SinkTarget, document: SegmentDocument, base: PartitionEnd, spool: Path, clock: Clock
) -> SegmentDocument:
    old, new = spool / "old.parquet", spool / "new.parquet"
    _fetch(root, document, old)
    was = document.segment
    head = msgspec.structs.replace(was.head, number=base.number, first=base.first, previous=bytes.fromhex(base.chain))
    key = encrypting_key(root.keyring, None, head.log_id, clock.random_bytes(SALT_BYTES))
    shape = FileShape(row_group_rows=2**20, compression_level=target.compression_level)

    def find_key(encrypted_with: SegmentKeyFacts) -> SegmentKey:
        return decrypting_key(root.keyring, None, head.log_id, encrypted_with)

    reader = SegmentReader(old, was.head, was.facts, find_key if root.keyring else None, trusted=True)
    with reader, SegmentWriter(new, head, reader.schema, shape, key, key_column=reader.key_column) as writer:
        _copy(reader.batches(document.first, document.end), writer, base.first)
        segment = Segment(head=head, facts=writer.finish())
    old.unlink()
    made = SegmentDocument.of(segment, slot=base.slots, chain=segment.chain, sealed_us=clock.now_us())
    upload(root.store, made, new)
    return made


def _copy(batches: Iterator[pa.RecordBatch], writer: SegmentWriter, first: int) -> None:
    for batch in batches:
        offsets = pa.arange(first, first + batch.num_rows)
        writer.write(pa.RecordBatch.from_arrays([offsets, *batch.columns[1:]], schema=batch.schema))
        first += batch.num_rows


def _fetch(root: SinkRoot, document: SegmentDocument, path: Path) -> None:
    try:
        with path.open("wb") as stream:
            for start in range(0, document.size, _CHUNK_BYTES):
                length = min(_CHUNK_BYTES, document.size - start)
                stream.write(root.store.get_range(document.key, start, length))
    except NotFound:
        raise gone(document) from None


def gone(document: SegmentDocument) -> Unavailable:
    """A file was removed before its batch was committed."""
    return Unavailable(
        f"a file was removed before it was in use key={document.key}",
        hint="something cleans the root without knowing it; nothing was committed, write again",
    )
