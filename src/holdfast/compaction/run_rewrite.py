"""One run of files becomes one file: read with all proofs, written, read back, and compared with what it replaces.

The rows of every file are compared after the output was written: its span of the output must have the content digest
that the manifest (or the rewrite that made the file) says. What differs is `Corrupt`, and the output is never used.
Memory is one row group of a source and one of the output. The caller owns the output's path, also when this fails.

Encrypted files become a bundle: their blocks are moved as they are, and nobody needs a key for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.compaction.compaction_plan import FileRun
from holdfast.errors import Corrupt
from holdfast.model.content_digest import ContentDigest
from holdfast.model.segment import Segment, SegmentHead
from holdfast.root.objects.documents import RewrittenFile, SegmentDocument
from holdfast.segments.file.bundle_writer import BundleWriter
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.footer import bundle_content
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import SegmentWriter

SHAPE = FileShape(row_group_rows=2**20)
"""Large row groups, bounded by the same bytes as those of sealed segments: a reader needs no more memory."""

Opened = Callable[[Sequence[SegmentDocument]], Generator[SegmentReader, None, None]]
"""Opens files one after the other, in order; the taker of a reader closes it. A missing one is FileNotFoundError."""


_Writer = SegmentWriter | BundleWriter


class RewriteCancelled(Exception):
    """The caller gave up waiting: the output is not finished."""


def rewrite(
    run: FileRun, path: Path, opened: Opened, nonce: str, *, shape: FileShape = SHAPE, cancelled: Callable[[], bool]
) -> RewrittenFile:
    """Write a run's rows as one file at `path`, and prove it; raises Corrupt, FileNotFoundError or OSError."""
    head = msgspec.structs.replace(run.first.segment.head, epoch=run.last.epoch)
    with ExitStack() as stack:
        writer: _Writer | None = None
        for reader in stack.enter_context(closing(opened([file.segment for file in run.files]))):
            with reader:
                if writer is None:
                    writer = _new(path, head, reader, shape, nonce)
                    stack.callback(writer.abandon)
                _move(reader, writer, cancelled)
        assert writer is not None, "a run has files"
        segment = Segment(head=head, facts=writer.finish())
    prove = _prove_bundle if isinstance(writer, BundleWriter) else _prove_rows
    prove(run, path, segment, cancelled)
    sealed_us = max(file.segment.sealed_us for file in run.files)
    document = SegmentDocument.of(segment, slot=run.first.slot, chain=segment.chain, sealed_us=sealed_us)
    return RewrittenFile(upto=run.numbers[1], segment=document)


def _new(path: Path, head: SegmentHead, reader: SegmentReader, shape: FileShape, nonce: str) -> _Writer:
    if reader.encrypted_with is not None:
        return BundleWriter(path, shape, rewrite=nonce)
    key_column, codec = reader.key_column, reader.codec
    return SegmentWriter(path, head, reader.schema, shape, None, rewrite=nonce, key_column=key_column, codec=codec)


def _move(reader: SegmentReader, writer: _Writer, cancelled: Callable[[], bool]) -> None:
    """The rows of a file, or its encrypted blocks as they are."""
    if isinstance(writer, BundleWriter):
        if cancelled():
            raise RewriteCancelled
        writer.add(reader)
        return
    for batch in reader.batches(reader.head.first, reader.head.first + reader.facts.rows):
        if cancelled():
            raise RewriteCancelled
        writer.write(batch)


def _prove_bundle(run: FileRun, path: Path, segment: Segment, cancelled: Callable[[], bool]) -> None:
    """Read the output, compare the blocks of each part with its digest, and that with what is known of the files."""
    with SegmentReader(path, segment.head, segment.facts, None, trusted=True) as reader:
        for _ in reader.blocks_to_move():
            if cancelled():
                raise RewriteCancelled
        contents = [part.footer.content for part in reader.parts()]
    start = segment.head.number
    for file in run.files:
        held = contents[file.segment.number - start : file.upto - start]
        is_bundle = file.upto - file.segment.number > 1
        digest = bundle_content(held) if is_bundle else b"".join(held)
        if digest.hex() != file.segment.content:
            raise _differs(file.segment)


def _prove_rows(run: FileRun, path: Path, segment: Segment, cancelled: Callable[[], bool]) -> None:
    """Read the output and compare each file's rows with the digest that is known of them."""
    with SegmentReader(path, segment.head, segment.facts, None, trusted=True) as reader:
        batches = reader.batches(segment.head.first, segment.end)
        rest: pa.RecordBatch | None = None
        for file in run.files:
            digest, left = ContentDigest(reader.schema), file.segment.rows
            while left:
                if cancelled():
                    raise RewriteCancelled
                batch = next(batches, None) if rest is None else rest
                if batch is None:
                    break
                digest.update(batch.slice(0, left))
                rest = batch.slice(left) if batch.num_rows > left else None
                left -= min(left, batch.num_rows)
            if left or digest.digest().hex() != file.segment.content:
                raise _differs(file.segment)
        if rest is not None or next(batches, None) is not None:
            raise _differs(run.last)


def _differs(segment: SegmentDocument) -> Corrupt:
    return Corrupt(
        "the rows of a segment are not those that its manifest object speaks of",
        path=segment.key,
        topic=segment.topic,
        partition=segment.partition,
        offset=segment.first,
        hint="nothing was replaced; `holdfast reconcile DIR --remote --deep --fix` looks for the damage",
    )
