"""One partition as one ordered stream: segments first, then the journal's tail, each record once.

The border between the two moves while we read: the roller seals, then trims. So the border is looked up afresh at
every step; entries that are gone from the tail are in a segment by then, because the watermark moves before anything
is trimmed. A segment that retention removed in mid-read is `Expired` with the first offset that is left; one that is
missing otherwise, or damaged, is `Corrupt` with its path and span, and what can be read behind it.

Each step is one short read transaction; files are opened outside of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import Corrupt, Expired
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.reading import ALWAYS, Times
from holdfast.model.control_rows import LIVE, LOST, SegmentRow
from holdfast.model.entry import Entry
from holdfast.model.record import Record
from holdfast.model.record_columns import BadRecords, Extra
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.store import layout

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.log.topics.key_filter import KeyFilter
    from holdfast.log.topics.reading import ResultColumns
    from holdfast.segments.file.segment_reader import SegmentReader


class SegmentPiece(NamedTuple):
    """A part of a segment."""

    row: SegmentRow
    start: int
    end: int


class TailPiece(NamedTuple):
    """A part of an entry of the tail."""

    entry: Entry
    start: int
    end: int


class LocalStream:
    """Reads one partition."""

    def __init__(self, journal: Journal, manifest: Manifest, partition: Partition) -> None:
        self._journal = journal
        self._manifest = manifest
        self.partition = partition
        self._reader = journal.reader(partition)

    # -- what callers want --------------------------------------------------------------------------------

    def records(
        self, start: int, end: int, times: Times = ALWAYS, *, reverse: bool = False, key: KeyFilter | None = None
    ) -> Iterator[Record]:
        """Records start..end of a raw topic, of these times and with this key only."""
        for piece in self._pieces(start, end, times, reverse, key):
            if isinstance(piece, TailPiece):
                yield from self._tail_records(piece, times, reverse, key)
                continue
            from holdfast.segments.typed.arrow_records import records

            for batch in self._segment_batches(piece, times, reverse, None, key):
                yield from records(batch, self.partition.number, self.partition.topic)

    def batches(
        self,
        start: int,
        end: int,
        times: Times = ALWAYS,
        *,
        reverse: bool = False,
        columns: Collection[str] | None = None,
        key: KeyFilter | None = None,
        to_the_end: bool = False,
    ) -> Iterator[tuple[bytes, pa.RecordBatch]]:
        """The same as record batches, each with the fingerprint of its schema (empty for raw records)."""
        tail: list[TailPiece] = []
        size = 0
        for piece in self._pieces(start, end, times, reverse, key):
            if isinstance(piece, TailPiece):
                if tail and (
                    piece.entry.schema != tail[0].entry.schema or size >= _TAIL_BATCH_BYTES or times != ALWAYS
                ):
                    yield from self._tail_batches(tail, times, reverse, key)
                    tail, size = [], 0
                tail.append(piece)
                size += len(piece.entry.body)
                continue
            yield from self._tail_batches(tail, times, reverse, key)
            tail, size = [], 0
            schema = piece.row.schema if any(piece.row.schema) else b""
            for batch in self._segment_batches(piece, times, reverse, columns, key, to_the_end):
                yield schema, batch
        yield from self._tail_batches(tail, times, reverse, key)

    def results(
        self,
        columns: ResultColumns,
        start: int,
        end: int,
        times: Times = ALWAYS,
        *,
        reverse: bool = False,
        key: KeyFilter | None = None,
        to_the_end: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same as batches of these columns, in one version of the schema."""
        from holdfast.segments.file.selection import PartitionColumn
        from holdfast.segments.manifest.schema_versions import version
        from holdfast.segments.typed.declared_rows import restore

        partition, topic = PartitionColumn(self.partition.number, columns.schema), self.partition.topic
        found = self.batches(start, end, times, reverse=reverse, columns=columns.names, key=key, to_the_end=to_the_end)
        for fingerprint, batch in found:
            if columns.declared is None:
                yield partition.added(batch)
            else:
                stored = version(self._journal, topic, fingerprint)
                yield partition.added(restore(batch, stored, columns.declared, columns=columns.names))

    # -- pieces, in order ---------------------------------------------------------------------------------

    def _pieces(
        self, start: int, end: int, times: Times, reverse: bool, key: KeyFilter | None
    ) -> Iterator[SegmentPiece | TailPiece]:
        if self.partition.damage is not None:
            raise self.partition.damage.again()
        return self._backward(start, end, times, key) if reverse else self._forward(start, end, times, key)

    def _forward(self, start: int, end: int, times: Times, key: KeyFilter | None) -> Iterator[SegmentPiece | TailPiece]:
        at = start
        while at < end:
            sealed = self.partition.sealed.sealed_offset
            if at < sealed:
                stop = min(end, sealed)
                yield from self._segments(at, stop, times, key, reverse=False)
                at = stop
                continue
            try:
                for entry in self._reader.entries(at, end):
                    if not times.miss(entry.time_min, entry.time_max):
                        yield TailPiece(entry, max(at, entry.first), min(end, entry.first + entry.count))
                    at = min(end, entry.first + entry.count)
            except Corrupt:
                if not self._was_sealed(at + 1):
                    raise

    def _backward(
        self, start: int, end: int, times: Times, key: KeyFilter | None
    ) -> Iterator[SegmentPiece | TailPiece]:
        at = end
        while at > start:
            sealed = self.partition.sealed.sealed_offset
            if at <= sealed:
                # What is left is given before it is said that the rest has expired.
                left = min(at, max(start, self.partition.sealed.first_offset))
                if left < at:
                    yield from self._segments(left, at, times, key, reverse=True)
                self._check_retained(start)
                return
            try:
                for entry in self._reader.entries(max(start, sealed), at, descending=True):
                    floor = max(start, sealed, entry.first)
                    if not times.miss(entry.time_min, entry.time_max):
                        yield TailPiece(entry, floor, min(at, entry.first + entry.count))
                    at = floor
            except Corrupt:
                if not self._was_sealed(at):
                    raise

    def _was_sealed(self, offset: int) -> bool:
        """Whether everything below an offset has moved into segments, while we were reading the tail."""
        before = self.partition.sealed.sealed_offset
        if before < offset:
            self._journal.refresh(self.partition.topic)
        return self.partition.sealed.sealed_offset >= offset

    def _segments(
        self, start: int, end: int, times: Times, key: KeyFilter | None, *, reverse: bool
    ) -> Iterator[SegmentPiece]:
        """The parts of segments in a sealed span, pruned by time and by the indexes of their keys."""
        self._check_retained(start)
        first = self._manifest.holding(self.partition, start)
        last = first if end <= first.end else self._manifest.holding(self.partition, end - 1)
        if key is not None and times == ALWAYS:
            yield from self._with_key(key, (first.number, last.number + 1), start, end, reverse)
            return
        for row in self._files(first, last, times, reverse):
            if key is None:
                yield SegmentPiece(row, max(start, row.first_offset), min(end, row.end))
            else:
                numbers = (row.number, self._manifest.upto(self.partition, row.number))
                yield from self._with_key(key, numbers, max(start, row.first_offset), min(end, row.end), reverse)

    def _with_key(
        self, key: KeyFilter, numbers: tuple[int, int], start: int, end: int, reverse: bool
    ) -> Iterator[SegmentPiece]:
        """The parts of segments that may have a key."""
        for number, low, high in self._manifest.keys.maybes(self.partition, *numbers, key.encoded, reverse):
            if low < end and high > start:
                row = self._manifest.file(self.partition, self._manifest.row(self.partition, number))
                yield SegmentPiece(row, max(start, low), min(end, high))

    def _files(self, first: SegmentRow, last: SegmentRow, times: Times, reverse: bool) -> Iterator[SegmentRow]:
        """The files that hold a span of segments, pruned by time."""
        rows: Iterator[SegmentRow]
        if times != ALWAYS:
            span = (first.number, last.number)
            rows = self._manifest.overlapping(self.partition, span, times.since, times.until, reverse)
            rows = self._manifest.long_files(self.partition).of(rows)
        elif first.number == last.number:
            rows = iter((self._manifest.file(self.partition, first),))
        elif reverse:
            rows = self._files_backward(first.number, last.number)
        else:
            rows = self._manifest.files(self.partition, first.number, last.number + 1)
        return rows

    def _files_backward(self, first: int, last: int) -> Iterator[SegmentRow]:
        # Hazard: looked up once. A compaction in the middle of the walk would give what was given already.
        long = self._manifest.long_files(self.partition)
        while last >= first:
            held = long.holding(last)
            row = self._manifest.row(self.partition, last) if held is None else held.row
            yield row
            last = row.number - 1

    def _check_retained(self, offset: int) -> None:
        first = self.partition.sealed.first_offset
        if offset < first:
            raise self._expired(first, offset)

    def _check_kept(self, piece: SegmentPiece, path: Path) -> None:
        """Raise Expired where a file is not damaged but expired, or emptied on a full disk to be expired next."""
        # In this order: the emptied file goes only after the commit that moves the first offset.
        emptied = path.with_name(path.name + layout.EXPIRED).exists() and not path.exists()
        self._journal.refresh(self.partition.topic)
        self._check_retained(piece.start)
        if emptied:
            raise self._expired(piece.row.end, piece.start)

    def _expired(self, first: int, offset: int) -> Expired:
        return Expired(
            f"records below offset {first} have expired topic={self.partition.topic}"
            f" partition={self.partition.number} offset={offset}",
            first=first,
            hint=f"read from start={first}, or leave start out to begin with the first that is left",
        )

    # -- the tail -----------------------------------------------------------------------------------------

    def _tail_records(self, piece: TailPiece, times: Times, reverse: bool, key: KeyFilter | None) -> Iterator[Record]:
        entry = piece.entry
        if key is not None and key.encoded not in self._reader.body(entry):  # nearly always, and never wrong
            return iter(())
        columns = self._reader.open(entry)
        start, stop = piece.start - entry.first, piece.end - entry.first
        spans = [(start, stop)]
        if key is not None:
            spans = [(at, at + 1) for at in range(start, stop) if columns.extras.get(at, _NO_KEY)[0] == key.encoded]
        try:
            found = [
                record
                for low, high in spans
                for record in columns.records(entry.first, self.partition.number, low, high, self.partition.topic)
            ]
        except BadRecords as error:
            raise self._reader.malformed(entry, error) from None
        if times != ALWAYS:
            found = [record for record in found if times.hold(record.time)]
        return reversed(found) if reverse else iter(found)

    def _tail_batches(
        self, pieces: list[TailPiece], times: Times, reverse: bool, key: KeyFilter | None
    ) -> Iterator[tuple[bytes, pa.RecordBatch]]:
        if not pieces:
            return
        from holdfast.segments.file.selection import select, turned
        from holdfast.segments.manifest.entry_batches import batches_of

        ordered = pieces[::-1] if reverse else pieces
        schema = pieces[0].entry.schema
        entries = iter([piece.entry for piece in ordered])
        _, found = batches_of(self._journal, self.partition, self._reader, entries, schema)
        start, end = ordered[0].start, ordered[-1].end
        chosen = [select(batch, start, end, times.since, times.until) for batch in found]
        for batch in reversed(chosen) if reverse else chosen:
            for part in turned(batch if key is None else key.rows(batch), reverse):
                yield schema, part

    # -- segments -----------------------------------------------------------------------------------------

    def _segment_batches(
        self,
        piece: SegmentPiece,
        times: Times,
        reverse: bool,
        columns: Collection[str] | None,
        key: KeyFilter | None = None,
        to_the_end: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        row = piece.row
        if row.state == LOST:
            raise self._gone(row, "records were lost")
        if row.state != LIVE:  # the commit that says so may be a moment ahead of the watermark that we see
            raise self._expired(max(row.end, self.partition.sealed.first_offset), piece.start)
        path = self._manifest.path(self.partition, row)
        try:
            with self._manifest.open(self.partition, row) as reader:
                yield from _batches(reader, piece, times, reverse, columns, key, to_the_end)
            return
        except (FileNotFoundError, NotADirectoryError):
            self._check_kept(piece, path)
            longer = self._manifest.file(self.partition, row, again=True)
            if longer.sha256 == row.sha256:
                raise self._gone(row, "a segment is missing") from None
        except Corrupt as damage:
            self._check_kept(piece, path)
            damage.hint = self._way_on(row)
            raise
        # It was compacted meanwhile: the same records are in a longer file.
        yield from self._segment_batches(piece._replace(row=longer), times, reverse, columns, key, to_the_end)

    def _gone(self, row: SegmentRow, what: str) -> Corrupt:
        partition = self.partition
        return Corrupt(
            f"{what} offsets={row.first_offset}..{row.end - 1}",
            path=str(self._manifest.path(partition, row)),
            topic=partition.topic,
            partition=partition.number,
            offset=row.first_offset,
            hint=self._way_on(row),
        )

    def _way_on(self, row: SegmentRow) -> str:
        behind = f" and from start={row.end}" if row.end < self.partition.durable else ""
        rest = f"the rest can be read: up to end={row.first_offset}{behind}"
        return f"{rest}; `holdfast reconcile DIR --deep` says what is wrong"


def _batches(
    reader: SegmentReader,
    piece: SegmentPiece,
    times: Times,
    reverse: bool,
    columns: Collection[str] | None,
    key: KeyFilter | None,
    to_the_end: bool,
) -> Iterator[pa.RecordBatch]:
    """A part of a segment; with a key, only rows that have it."""
    # A column that came with a later version of the schema is not there yet.
    present = None if columns is None else [name for name in columns if name in reader.schema.names]
    start, end = piece.start, piece.end
    if key is None:
        yield from reader.batches(
            start, end, columns=present, since=times.since, until=times.until, reverse=reverse, to_the_end=to_the_end
        )
        return
    if reader.encrypted_with is None:
        # A plain file gives single columns: most parts are passed over without their payloads.
        start, end = _span_of(reader, key, start, end)
    wanted = None if present is None else [*present, key.column]
    for batch in reader.batches(start, end, columns=wanted, since=times.since, until=times.until, reverse=reverse):
        found = key.rows(batch)
        if found.num_rows:
            names = found.schema.names
            yield found if present is None or key.column in present else found.select([*names[:2], *present])


def _span_of(reader: SegmentReader, key: KeyFilter, start: int, end: int) -> tuple[int, int]:
    """From the first to behind the last offset with a key; nothing if there is none."""
    found = [
        batch.column(0) for batch in map(key.rows, reader.batches(start, end, columns=[key.column])) if batch.num_rows
    ]
    return (found[0][0].as_py(), found[-1][len(found[-1]) - 1].as_py() + 1) if found else (start, start)


_NO_KEY: Extra = (None, None, None)
_TAIL_BATCH_BYTES = 8 * 2**20
