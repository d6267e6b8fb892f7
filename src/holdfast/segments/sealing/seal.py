"""One seal: a part of a partition's tail becomes a segment, in one commit.

    read the committed tail page by page → write ….parquet.tmp → fsync → rename → fsync the directory
    → one commit: manifest row and watermark

Until the commit the records are in the tail, from then on in the segment; a reader sees each of them once. A crash
leaves at most a temporary file, or a finished one above the watermark: the next open removes both (`leftovers`).
Every attempt writes a new file; a failed fsync is never repeated. Memory is bounded by a row group,
however long the tail is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast import disk
from holdfast.clock import Clock
from holdfast.crypto.cipher import SALT_BYTES
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.journal.entry_reader import EntryReader
from holdfast.journal.journal import Journal
from holdfast.journal.state.operations import Seal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SegmentRow
from holdfast.model.entry import Entry
from holdfast.model.segment import NO_SCHEMA, Segment, SegmentHead
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.sealing.pace import Pace
from holdfast.segments.sealing.read_ahead import read_ahead
from holdfast.segments.segment_settings import SegmentSettings
from holdfast.store import layout

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.segments.file.file_shape import FileShape
    from holdfast.segments.file.segment_writer import SegmentWriter

_WAIT_S = 60.0
_BATCHES_AHEAD = 8
_PAGE_ENTRIES = 256


class SealCancelled(Exception):
    """The seal was given up because the log is closing; the tail is as it was."""


class SealResult(NamedTuple):
    """What a seal did."""

    rows: int
    size: int
    """Of the file."""
    entry_bytes: int
    """Stored bytes of an entry that went into it, on average."""


class Sealer:
    """Seals partitions of one log; used by the roller's thread alone."""

    def __init__(
        self,
        journal: Journal,
        manifest: Manifest,
        settings: SegmentSettings,
        clock: Clock,
        pace: Pace,
        cancelled: Callable[[], bool],
    ) -> None:
        self._journal = journal
        self._pace = pace
        self._manifest = manifest
        self._settings = settings
        self._clock = clock
        self._cancelled = cancelled
        self._folders: set[Path] = set()
        """Folders whose names are known to be durable."""
        self._debris: set[Path] = set()
        """Files of failed attempts that could not be removed; nothing is sealed before they are gone."""

    def seal(self, partition: Partition) -> SealResult | None:
        """Seal the beginning of a partition's tail as one segment; None when there is no tail."""
        watermark, end = partition.sealed, partition.durable
        if watermark.sealed_offset >= end:
            return None
        reader = self._journal.reader(partition)
        folder = self._manifest.folder(partition)
        temporary = folder / layout.temporary_name(watermark.segments, self._journal.epoch)
        try:
            self._prepare(folder)
            segment, entries = self._write(partition, reader, end, temporary)
            row = self._row(partition, segment)
            final = folder / layout.segment_name(row.number, row.sha256)
            self._rename(temporary, final)
        except OSError as error:
            self._discard(temporary)
            hint = _FULL if disk.ran_full(error) else _HINT
            raise Unavailable(f"cannot write a segment path={temporary}: {error.strerror}", hint=hint) from error
        except BaseException:
            self._discard(temporary)
            raise
        self._commit(partition, row, entries.size, final)
        return SealResult(row.rows, row.size, entries.size // entries.count)

    def _prepare(self, folder: Path) -> None:
        """Make room for a new attempt: a folder that survives a power cut, and nothing left of an earlier attempt."""
        for path in list(self._debris):
            disk.remove(path)
            self._debris.discard(path)
        self._journal.require_place()
        if folder not in self._folders:
            disk.make_directory(folder, root=self._manifest.root)
            self._folders.add(folder)

    def _rename(self, temporary: Path, final: Path) -> None:
        try:
            disk.rename(temporary, final)
        except OSError:
            self._discard(final)  # the name may be there, and only its sync have failed
            raise

    def _discard(self, path: Path) -> None:
        """Remove a file that is not needed; if even that fails, the next attempt or the next open does it."""
        try:
            disk.remove(path)
        except OSError:
            self._debris.add(path)

    def _write(self, partition: Partition, reader: EntryReader, end: int, temporary: Path) -> tuple[Segment, _Span]:
        """The file, made durable, and what went into it."""
        from holdfast.segments.file.segment_writer import SegmentWriter
        from holdfast.segments.manifest.entry_batches import stored_batches, stored_columns
        from holdfast.segments.manifest.schema_versions import key_column_of

        journal, sealed = self._journal, partition.sealed
        # No more at once than a segment takes: what is read beyond it is read again by the next seal.
        page = min(_PAGE_ENTRIES, self._settings.rows_max)
        entries = _Span(reader.entries(sealed.sealed_offset, end, page_entries=page), self._settings)
        head = SegmentHead(
            log_id=journal.log_id,
            topic=partition.topic,
            partition=partition.number,
            number=sealed.segments,
            first=sealed.sealed_offset,
            epoch=journal.epoch,
            schema=entries.schema or NO_SCHEMA,
            previous=sealed.chain,
        )
        key = journal.segment_key(self._clock.random_bytes(SALT_BYTES))
        columns = stored_columns(journal, partition, entries.schema)
        schema, batches = stored_batches(columns, reader, entries)
        key_column = key_column_of(journal, partition.topic)
        codec = journal.codecs.get(partition.topic, "")
        with SegmentWriter(temporary, head, schema, self._shape(), key, key_column=key_column, codec=codec) as writer:
            self._fill(writer, batches)
            return Segment(head=head, facts=writer.finish()), entries

    def _shape(self) -> FileShape:
        from holdfast.segments.file.file_shape import FileShape

        settings = self._settings
        return FileShape(
            row_group_rows=settings.row_group_rows,
            row_group_bytes=settings.row_group_bytes,
            block_rows=settings.block_rows,
            block_bytes=settings.block_bytes,
            compression_level=settings.compression_level,
        )

    def _fill(self, writer: SegmentWriter, batches: Iterator[pa.RecordBatch]) -> None:
        with closing(read_ahead(batches, _BATCHES_AHEAD)) as ahead:  # here and now, not by the garbage collector
            for batch in ahead:
                if self._cancelled():
                    raise SealCancelled
                writer.write(batch)
                self._pace.rest()

    def _row(self, partition: Partition, segment: Segment) -> SegmentRow:
        times = (segment.facts.time_min, segment.facts.time_max)
        low, high = self._manifest.range_with_children(partition, segment.head.number, times)
        sealed_us = self._journal.trusted_time.range_us()[1]
        return SegmentRow.of(segment, partition_id=partition.id, sealed_us=sealed_us, low=low, high=high)

    def _commit(self, partition: Partition, row: SegmentRow, size: int, final: Path) -> None:
        """Wait for the commit however long it takes: a file may be removed only if it is known to be unlisted."""
        try:
            ticket = self._journal.commit(Seal(partition, row, size))
        except HoldfastError:
            self._discard(final)
            raise
        while not ticket.wait(_WAIT_S):
            pass
        try:
            ticket.result()
        except (OutcomeUnknown, Closed):
            raise  # the next open looks at the manifest and decides
        except HoldfastError:
            self._discard(final)
            raise


class _Span:
    """The entries that go into one segment: of one schema, up to its limits. `schema` is known at once."""

    def __init__(self, entries: Iterator[Entry], settings: SegmentSettings) -> None:
        self._entries = entries
        self._next: Entry | None = next(entries)
        self._settings = settings
        self.schema = self._next.schema if self._next is not None else b""
        self.count = 0
        self.rows = 0
        self.size = 0

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        entry = self._next
        full = self.rows >= self._settings.rows_max or self.size >= self._settings.bytes_max
        if entry is None or full or entry.schema != self.schema:
            raise StopIteration
        self.count += 1
        self.rows += entry.count
        self.size += len(entry.body)
        self._next = next(self._entries, None)
        return entry


_HINT = "the records stay durable in the journal; check the disk, sealing then continues"
_FULL = (
    "the records stay durable in the journal; the disk or its quota is full: free space (holdfast retain DIR removes"
    " old segments), sealing then continues"
)
