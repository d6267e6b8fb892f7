"""Looking things up in the manifest: which segment holds an offset or a time, and where its file is.

Every row is proved by its stamp before it is used. Each lookup is one short read transaction, so none of them holds
up the writer or pins the write-ahead log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Corrupt
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import SegmentRow
from holdfast.model.segment import NO_CHAIN, SegmentHead
from holdfast.segments.manifest import time_tree
from holdfast.store import layout

if TYPE_CHECKING:
    from holdfast.segments.file.segment_reader import SegmentReader

_PAGE = 512


class Manifest:
    """The manifest of one log."""

    def __init__(self, journal: Journal, root: Path) -> None:
        self._journal = journal
        self.root = root

    def path(self, partition: Partition, row: SegmentRow) -> Path:
        """Where a segment's file is."""
        return self.root / layout.segment_key(partition.topic, partition.number, row.number, row.sha256)

    def folder(self, partition: Partition) -> Path:
        """Where a partition's segment files are."""
        return self.root / layout.segments_folder(partition.topic, partition.number)

    def row(self, partition: Partition, number: int) -> SegmentRow:
        """One row; raises Corrupt if it is missing or not proved."""
        return self._proved(partition, self._journal.segment(partition, number), f"number={number}")

    def holding(self, partition: Partition, offset: int) -> SegmentRow:
        """The row of the segment that holds a sealed offset."""
        row = self._proved(partition, self._journal.segment_holding(partition, offset), f"offset={offset}")
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
        return self._journal.segments(partition, start, stop)

    def in_state(self, state: int) -> list[SegmentRow]:
        """All rows in a state other than live, each proved: files are removed because of them."""
        partitions = self._journal.partitions
        rows = []
        for row in self._journal.segments_in_state(state):
            if row.partition_id not in partitions:
                raise Corrupt("a row of the manifest belongs to no partition", path=str(self._journal.path))
            rows.append(self._proved(partitions[row.partition_id], row, ""))
        return rows

    def overlapping(
        self, partition: Partition, span: tuple[int, int], since: int | None, until: int | None, reverse: bool
    ) -> Iterator[SegmentRow]:
        """Rows of segments first..last (both included) with records from `since` to `until`, found by the tree."""
        kept: dict[int, SegmentRow] = {}

        def fetch(number: int) -> time_tree.Node:
            row = kept[number] = self.row(partition, number)
            return time_tree.Node(number, row.time_min, row.time_max, row.low, row.high)

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

    def open(self, partition: Partition, row: SegmentRow) -> SegmentReader:
        """The file of a row, which must be what the manifest says; FileNotFoundError if it is missing."""
        from holdfast.segments.file.segment_reader import SegmentReader

        opener = self._journal.segment_keys
        return SegmentReader(self.path(partition, row), self.head(partition, row), row.facts, opener, trusted=True)

    def _proved(self, partition: Partition, row: SegmentRow | None, what: str) -> SegmentRow:
        if row is None:
            raise self._corrupt(partition, f"a row of the manifest is missing {what}")
        if not self._journal.proves(row):
            raise self._corrupt(partition, f"a row of the manifest does not match its stamp number={row.number}")
        return row

    def _corrupt(self, partition: Partition, message: str) -> Corrupt:
        path = str(self._journal.path)
        return Corrupt(message, path=path, topic=partition.topic, partition=partition.number)
