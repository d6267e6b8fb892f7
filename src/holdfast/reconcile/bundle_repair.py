"""A long file that a store has lost, made again from the log's own files and swapped in like any rewrite.

    an intent → the file → a rewrite with the next number, whose one output takes the lost one's place → the intent goes

The rewrite that named the lost file stays as it is: rewrites are created once, and readers may know it already. The new
file is made and proved as compaction makes files (`compaction.run_rewrite`), and nothing is decrypted. If anything that
it held is gone here, too, nothing is written, and the finding stands: only a copy of the store has those records then.
A crash leaves an intent and perhaps a file, which nobody takes for part of the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import disk
from holdfast.errors import Corrupt
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import LIVE, SegmentRow
from holdfast.model.segment import Segment
from holdfast.reconcile.rewritten_files import RewrittenFiles
from holdfast.reconcile.store_objects import StoreObjects
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, RewrittenFile, SegmentDocument
from holdfast.root.rewrites import InEffect
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.long_files import LongFile
from holdfast.store import layout
from holdfast.store.port import Body

if TYPE_CHECKING:
    from holdfast.segments.file.segment_reader import SegmentReader


def remake(objects: StoreObjects, partition: Partition, lost: LongFile, rewritten: RewrittenFiles) -> str | None:
    """Put a new file in the place of a long one; its key, or None where what it held is not here."""
    folder, nonce = objects.manifest.root.parent / "compacting", objects.journal.clock.random_bytes(8).hex()
    temporary = folder / f"{nonce}.parquet.tmp"
    try:
        disk.make_directory(folder)
        output = _written(objects, partition, lost, _slot(rewritten, lost), temporary, nonce)
        return None if output is None else _swapped_in(objects, lost, rewritten.count, output, temporary, nonce)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # also what a crash has left there: one pass repairs at a time


def _written(
    objects: StoreObjects, partition: Partition, lost: LongFile, slot: int, path: Path, nonce: str
) -> RewrittenFile | None:
    """The file, written here from the log's own and proved; None where one of those is missing or damaged."""
    # Only now: compaction needs Arrow.
    from holdfast.compaction.compaction_plan import FileRun
    from holdfast.compaction.run_rewrite import rewrite

    manifest = objects.manifest
    if any(row.state != LIVE for row in manifest.rows(partition, lost.row.number, lost.upto)):
        return None
    files = [
        InEffect(_document(objects, partition, row, slot), manifest.upto(partition, row.number))
        for row in manifest.files(partition, lost.row.number, lost.upto)
    ]
    if (files[0].segment.number, files[-1].upto) != (lost.row.number, lost.upto):
        return None  # what is here was joined in another way, and is no part of it
    try:
        return rewrite(FileRun(tuple(files)), path, partial(_opened, manifest), nonce, cancelled=lambda: False)
    except (FileNotFoundError, Corrupt):
        return None


def _document(objects: StoreObjects, partition: Partition, row: SegmentRow, slot: int) -> SegmentDocument:
    """One of the log's own files; only the slot of the first one is asked for."""
    segment = Segment(head=objects.manifest.head(partition, row), facts=row.facts)
    return SegmentDocument.of(segment, slot=slot, chain=row.chain, sealed_us=row.sealed_us)


def _opened(manifest: Manifest, files: Sequence[SegmentDocument]) -> Generator[SegmentReader, None, None]:
    from holdfast.segments.file.segment_reader import SegmentReader

    for file in files:
        listed = file.segment
        yield SegmentReader(manifest.root / file.key, listed.head, listed.facts, None, trusted=True)


def _slot(rewritten: RewrittenFiles, lost: LongFile) -> int:
    """The slot of a run's first segment, as the rewrite of the lost file says."""
    outputs = rewritten.files.rewrites[lost.rewrite].outputs
    return next(output.segment.slot for output in outputs if output.segment.number == lost.row.number)


def _swapped_in(
    objects: StoreObjects, lost: LongFile, number: int, output: RewrittenFile, path: Path, nonce: str
) -> str | None:
    """Announce, upload, swap in; None where another process was faster."""
    segment, now_us, claim = output.segment, objects.journal.clock.now_us(), objects.claim()
    log, topic, partition = segment.log, segment.topic, segment.partition
    intent = IntentDocument(
        log=log,
        topic=topic,
        partition=partition,
        number=number,
        nonce=nonce,
        runs=((lost.row.number, lost.upto),),
        begun_us=now_us,
        host=claim.host,
        pid=claim.pid,
    )
    rewrite = RewriteDocument(
        log=log, topic=topic, partition=partition, number=number, nonce=nonce, outputs=(output,), rewritten_us=now_us
    )
    announced, key = layout.intent_key(topic, partition, number, nonce), layout.rewrite_key(topic, partition, number)
    objects.create(announced, Body.of(documents.encode(intent)))
    body = Body.file(path, segment.size, bytes.fromhex(segment.sha256))
    is_swapped = objects.create(segment.key, body) and objects.create(key, Body.of(documents.encode(rewrite)))
    objects.remove(announced, *(() if is_swapped else (segment.key,)))
    return segment.key if is_swapped else None
