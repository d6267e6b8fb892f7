"""Looking things up in the manifest: which segment holds an offset or a time, and where its file is.

Every row is proved by its stamp before it is used. Each lookup is one short read transaction, so none of them holds
up the writer or pins the write-ahead log.

Compaction may have put one file in the place of many (`long_files`): its rewrites lie in the log's own directory, in
the places that they have at any root. They are read once per partition, and again where a file is gone. Rows
are always those of the segments; `files` gives those of the files that hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SegmentRow
from holdfast.model.segment import NO_CHAIN, SegmentHead
from holdfast.root.objects.documents import RewriteDocument
from holdfast.root.rewrites import read_rewrites
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.segments.manifest import time_tree
from holdfast.segments.manifest.key_lookup import KeyLookup
from holdfast.segments.manifest.long_files import LongFiles
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore

if TYPE_CHECKING:
    from holdfast.segments.file.segment_reader import SegmentReader

_PAGE = 512


class Manifest:
    """The manifest of one log."""

    def __init__(self, journal: Journal, root: Path, *, key_index_bytes_max: int = 0) -> None:
        self._journal = journal
        self._rows = journal.segment_rows
        self.root = root
        self._long_files: dict[Partition, LongFiles] = {}
        self.keys = KeyLookup(self, key_index_bytes_max)

    def path(self, partition: Partition, row: SegmentRow) -> Path:
        """Where a segment's file is."""
        return self.root / layout.segment_key(partition.topic, partition.number, row.number, row.sha256)

    def folder(self, partition: Partition) -> Path:
        """Where a partition's segment files are."""
        return self.root / layout.segments_folder(partition.topic, partition.number)

    def row(self, partition: Partition, number: int) -> SegmentRow:
        """One row; raises Corrupt if it is missing or not proved."""
        return self._proved(partition, self._rows.segment(partition, number), f"number={number}")

    def holding(self, partition: Partition, offset: int) -> SegmentRow:
        """The row of the segment that holds a sealed offset."""
        row = self._proved(partition, self._rows.segment_holding(partition, offset), f"offset={offset}")
        if row.end <= offset:
            raise self._corrupt(partition, f"the manifest has a gap offset={offset}")
        return row

    def rows(self, partition: Partition, start: int, stop: int) -> Iterator[SegmentRow]:
        """Rows start..stop by number, page by page, each proved and none missing."""
        while start < stop:
            page = self.page(partition, start, min(stop, start + _PAGE))
            if [row.number for row in page] != list(range(start, min(stop, start + _PAGE))):
                raise self._corrupt(partition, f"rows of the manifest are missing from={start}")
            for row in page:
                yield self._proved(partition, row, "")
            start += len(page)

    def page(self, partition: Partition, start: int, stop: int) -> list[SegmentRow]:
        """Rows as they are, not proved; raises Corrupt at a damaged one."""
        return self._rows.segments(partition, start, stop)

    def in_state(self, state: int) -> list[SegmentRow]:
        """All rows in a state other than live, each proved: files are removed because of them."""
        partitions = self._journal.partitions
        rows = []
        for row in self._rows.segments_in_state(state):
            if row.partition_id not in partitions:
                raise Corrupt("a row of the manifest belongs to no partition", path=str(self._journal.path))
            rows.append(self._proved(partitions[row.partition_id], row, ""))
        return rows

    # -- files that hold runs of segments -----------------------------------------------------------------

    def long_files(self, partition: Partition, *, again: bool = False) -> LongFiles:
        """The long files of a partition; raises Corrupt where a rewrite is damaged. With `again` it is looked anew."""
        found = self._long_files.get(partition)
        if found is None or again:
            known = () if found is None else found.rewrites
            rewrites = self._rewrites(partition, known)
            if found is None or len(rewrites) > len(known):
                found = self.applied(partition, rewrites)
                self._long_files[partition] = found
        return found

    def applied(self, partition: Partition, rewrites: Iterable[RewriteDocument]) -> LongFiles:
        """The long files after some rewrites of a partition, wherever those are; raises Corrupt."""
        return LongFiles(rewrites, lambda number: self.row(partition, number))

    def _rewrites(self, partition: Partition, known: tuple[RewriteDocument, ...]) -> list[RewriteDocument]:
        if not self.has_rewrites(partition):  # nearly always
            return []
        place = (partition.topic, partition.number)
        return read_rewrites(self.as_store(), self._journal.log_id.hex(), *place, known)

    def has_rewrites(self, partition: Partition) -> bool:
        """Whether the log's own files were ever compacted."""
        return (self.root / layout.rewrites_folder(partition.topic, partition.number)).is_dir()

    def as_store(self) -> RootStore:
        """The log's own directory as a root, whether it is published or not."""
        trust = RootTrust.of_owner(self._journal.signer, self._journal.log_id.hex())
        return RootStore(DirectoryStore(self.root, self._journal.clock), trust)

    def file(self, partition: Partition, row: SegmentRow, *, again: bool = False) -> SegmentRow:
        """The row of the file that holds a segment: its own, or a long one's."""
        held = self.long_files(partition, again=again).holding(row.number)
        return row if held is None else held.row

    def files(self, partition: Partition, start: int, stop: int) -> Iterator[SegmentRow]:
        """Rows of the files that hold segments start..stop, by number; the first one may begin before."""
        long = self.long_files(partition)
        while start < stop:
            held = long.holding(start)
            if held is not None:
                yield held.row
                start = held.upto
            else:
                border = long.next(start, stop)
                yield from self.rows(partition, start, border)
                start = border

    def upto(self, partition: Partition, number: int) -> int:
        """The number behind the last segment in the file that holds this one."""
        held = self.long_files(partition).holding(number)
        return number + 1 if held is None else held.upto

    # -- lookups ------------------------------------------------------------------------------------------

    def overlapping(
        self, partition: Partition, span: tuple[int, int], since: int | None, until: int | None, reverse: bool
    ) -> Iterator[SegmentRow]:
        """Rows of segments first..last (both included) with records from `since` to `until`, found by the tree."""
        kept: dict[int, SegmentRow] = {}

        def fetch(number: int) -> time_tree.TimeNode:
            row = kept[number] = self.row(partition, number)
            return time_tree.TimeNode(number, row.time_min, row.time_max, row.low, row.high)

        first, last = span
        for node in time_tree.overlapping(first, last, since, until, fetch, reverse=reverse):
            yield kept.pop(node.number)

    def range_with_children(self, partition: Partition, number: int, own: tuple[int, int]) -> tuple[int, int]:
        """The (low, high) for the row of a new segment."""
        below = (self.row(partition, child) for child in time_tree.children(number))
        return time_tree.combine(own, ((row.low, row.high) for row in below))

    def head(self, partition: Partition, row: SegmentRow) -> SegmentHead:
        """What the file of a row must say about itself."""
        previous = self.row(partition, row.number - 1).chain if row.number else NO_CHAIN
        return row.head(self._journal.log_id, partition.topic, partition.number, previous)

    def open(self, partition: Partition, row: SegmentRow, *, keys_only: bool = False) -> SegmentReader:
        """The file of a row, which must be what the manifest says; FileNotFoundError if it is missing."""
        from holdfast.segments.file.segment_reader import SegmentReader

        opener = self._journal.segment_keys
        # What describes a long file is a document, which proves itself only in a log with keys.
        trusted = bool(row.stamp) or self._journal.signer is not None
        return SegmentReader(
            self.path(partition, row),
            self.head(partition, row),
            row.facts,
            opener,
            trusted=trusted,
            keys_only=keys_only,
        )

    def _proved(self, partition: Partition, row: SegmentRow | None, what: str) -> SegmentRow:
        if row is None:
            raise self._corrupt(partition, f"a row of the manifest is missing {what}")
        if not self._rows.proves(row):
            raise self._corrupt(partition, f"a row of the manifest does not match its stamp number={row.number}")
        return row

    def _corrupt(self, partition: Partition, message: str) -> Corrupt:
        path = str(self._journal.path)
        return Corrupt(message, path=path, topic=partition.topic, partition=partition.number)
