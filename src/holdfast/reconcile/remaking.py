"""A long file that a store has lost, made again from the log's own files and swapped in like any rewrite.

    an intent → the file → a rewrite with the next number, whose one output takes the lost one's place → the intent goes

The rewrite that named the lost file stays as it is: rewrites are created once, and readers may know it already. The new
file need not have the old one's bytes, and mostly has not; its rows are read from files that are proved while they are
read. If any of them is gone here, too, nothing is written, and the finding stands: only a copy of the store has those
records then. A crash leaves an intent and perhaps a file, which nobody takes for part of the log.
"""

from __future__ import annotations

from pathlib import Path

from holdfast import disk
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.errors import Corrupt
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.model.segment import Segment, SegmentHead
from holdfast.reconcile.rewritten_files import RewrittenFiles
from holdfast.reconcile.store_objects import StoreObjects
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, Rewritten, SegmentDocument
from holdfast.segments.manifest.long_files import LongFile
from holdfast.store import layout
from holdfast.store.port import Body


def remake(objects: StoreObjects, partition: Partition, lost: LongFile, rewritten: RewrittenFiles) -> str | None:
    """Put a new file in the place of a long one; its key, or None where what it held is not here."""
    folder, nonce = objects.manifest.folder(partition), objects.journal.clock.random_bytes(8).hex()
    temporary = folder / layout.temporary_name(lost.row.number, objects.journal.epoch)
    try:
        disk.make_directory(folder)
        output = _written(objects, partition, lost, _slot(rewritten, lost), temporary, nonce)
        return None if output is None else _swapped_in(objects, lost, rewritten.count, output, temporary, nonce)
    finally:
        disk.discard(temporary)


def _written(
    objects: StoreObjects, partition: Partition, lost: LongFile, slot: int, path: Path, nonce: str
) -> Rewritten | None:
    """The file, written here from the log's own; None where one of those is missing or damaged."""
    from holdfast.segments.file.segment_writer import FileShape, SegmentWriter

    manifest, journal = objects.manifest, objects.journal
    rows = list(manifest.rows(partition, lost.row.number, lost.upto))
    if any(row.state != LIVE for row in rows):
        return None
    head = _head(objects, partition, lost, rows)
    key = journal.segment_key(journal.clock.random_bytes(SALT_BYTES))
    writer: SegmentWriter | None = None
    try:
        for file in manifest.files(partition, lost.row.number, lost.upto):
            with manifest.open(partition, file) as reader:
                writer = writer or SegmentWriter(path, head, reader.schema, FileShape(), key, rewrite=nonce)
                for batch in reader.batches(head.first, lost.row.end):
                    writer.write(batch)
        assert writer is not None  # a long file holds something
        segment = Segment(head=head, facts=writer.finish())
    except (FileNotFoundError, Corrupt):
        return None
    finally:
        if writer is not None:
            writer.abandon()
    if segment.end != lost.row.end:
        return None
    sealed_us = max(row.sealed_us for row in rows)
    return Rewritten(
        upto=lost.upto, segment=SegmentDocument.of(segment, slot=slot, chain=segment.chain, sealed_us=sealed_us)
    )


def _head(objects: StoreObjects, partition: Partition, lost: LongFile, rows: list[SegmentRow]) -> SegmentHead:
    return objects.manifest.head(partition, lost.row._replace(epoch=rows[-1].epoch))


def _slot(rewritten: RewrittenFiles, lost: LongFile) -> int:
    """The slot of a run's first segment, as the rewrite of the lost file says."""
    outputs = rewritten.files.rewrites[lost.rewrite].outputs
    return next(output.segment.slot for output in outputs if output.segment.number == lost.row.number)


def _swapped_in(
    objects: StoreObjects, lost: LongFile, number: int, output: Rewritten, path: Path, nonce: str
) -> str | None:
    """Announce, upload, swap in; None where somebody else was faster."""
    segment, now_us, claim = output.segment, objects.journal.clock.now_us(), objects.claim()
    log, topic, partition = segment.log, segment.topic, segment.partition
    intent = IntentDocument(
        log=log, topic=topic, partition=partition, number=number, nonce=nonce,
        runs=((lost.row.number, lost.upto),), begun_us=now_us, host=claim.host, pid=claim.pid,
    )  # fmt: skip
    rewrite = RewriteDocument(
        log=log, topic=topic, partition=partition, number=number, nonce=nonce, outputs=(output,), rewritten_us=now_us
    )
    announced, key = layout.intent_key(topic, partition, number, nonce), layout.rewrite_key(topic, partition, number)
    objects.create(announced, Body.of(documents.encode(intent)))
    body = Body.file(path, segment.size, bytes.fromhex(segment.sha256))
    is_swapped = objects.create(segment.key, body) and objects.create(key, Body.of(documents.encode(rewrite)))
    objects.remove(announced, *(() if is_swapped else (segment.key,)))
    return segment.key if is_swapped else None
