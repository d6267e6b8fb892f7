"""Files that hold runs of a partition's segments: what compaction made of them, held against the log's own manifest.

The manifest's rows stay as they were sealed, forever; their own files may be gone. A long file is described by a row
like a segment's, with the number of its first segment, so that whatever opens, proves or removes a segment's file does
the same with it. It is in effect from the moment its rewrite is there (`root.rewrites` has the picture).

What a rewrite says is compared with rows that are proved: it begins and ends where they do, follows the same chain
value, and has their schema. Values only: documents and rows come from the caller, and nothing is read or written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.model.control_rows import SegmentRow
from holdfast.model.segment import NO_CHAIN
from holdfast.root.objects.documents import RewriteDocument, RewrittenFile
from holdfast.root.objects.manifest_chain import is_linked, is_sound
from holdfast.root.rewrites import OUTPUTS_MAX, misfit
from holdfast.store import layout

FindRow = Callable[[int], SegmentRow]
"""The manifest's row of a segment, proved."""


class LongFile(NamedTuple):
    """A file that holds the segments from its row's number on."""

    row: SegmentRow
    """As if it were a segment; it has no stamp, for it stands in no table."""
    upto: int
    """The number behind the last segment that it holds."""
    rewrite: int
    """The rewrite that made it."""

    @property
    def name(self) -> str:
        """The file's name."""
        return layout.segment_name(self.row.number, self.row.sha256)

    @property
    def numbers(self) -> range:
        """The segments that it holds."""
        return range(self.row.number, self.upto)


class LongFiles:
    """The long files of one partition that are in effect after some rewrites; never changed, but made anew."""

    def __init__(self, rewrites: Iterable[RewriteDocument] = (), row: FindRow | None = None) -> None:
        self.rewrites = tuple(rewrites)
        self.replaced: dict[str, int] = {}
        """Names of long files that later rewrites took the place of, and which ones did."""
        self._files: list[LongFile] = []
        self._numbers: list[int] = []
        for rewrite in self.rewrites:
            assert row is not None
            self._apply(rewrite, row)

    def __bool__(self) -> bool:
        return bool(self._files)

    def __iter__(self) -> Iterator[LongFile]:
        return iter(self._files)

    def holding(self, number: int) -> LongFile | None:
        """The long file that holds a segment; None where the segment has its own."""
        at = bisect_right(self._numbers, number) - 1
        return self._files[at] if at >= 0 and number < self._files[at].upto else None

    def next(self, number: int, stop: int) -> int:
        """The first number from here on, below `stop`, that a long file begins with; `stop` if there is none."""
        at = bisect_right(self._numbers, number - 1)
        return min(stop, self._numbers[at]) if at < len(self._numbers) else stop

    def of(self, rows: Iterable[SegmentRow]) -> Iterator[SegmentRow]:
        """Rows in the order of their numbers, either way, as the rows of the files that hold them, each once."""
        last: LongFile | None = None
        for row in rows:
            held = self.holding(row.number)
            if held is None:
                yield row
            elif held is not last:
                yield held.row
            last = held

    def _apply(self, rewrite: RewriteDocument, row: FindRow) -> None:
        if len(rewrite.outputs) > OUTPUTS_MAX:
            raise misfit(rewrite, None)
        for output in rewrite.outputs:
            segment, upto = output.segment, output.upto
            if not 0 <= segment.number < upto or not self._is_whole(segment.number, upto) or not _fits(output, row):
                raise misfit(rewrite, segment.first)
            described = SegmentRow.of(
                segment.segment, partition_id=row(segment.number).partition_id, sealed_us=segment.sealed_us
            )
            self._put(LongFile(described, upto, rewrite.number))
        if rewrite.kept is not None and not self._are_kept(rewrite):
            raise misfit(rewrite, None)

    def _are_kept(self, rewrite: RewriteDocument) -> bool:
        """Whether a rewrite that tells all tells what is so: readers may begin with it."""
        named = {(one.segment.number, one.segment.sha256, one.upto) for one in rewrite.kept or ()}
        earlier = [file for file in self._files if file.rewrite != rewrite.number]
        return named == {(file.row.number, file.row.sha256.hex(), file.upto) for file in earlier}

    def _is_whole(self, number: int, upto: int) -> bool:
        """Whether no long file is cut in two by these borders."""
        first, last = self.holding(number), self.holding(upto - 1)
        return (first is None or first.row.number == number) and (last is None or last.upto == upto)

    def _put(self, file: LongFile) -> None:
        start = bisect_right(self._numbers, file.row.number - 1)
        stop = bisect_right(self._numbers, file.upto - 1)
        self.replaced.update({older.name: file.rewrite for older in self._files[start:stop]})
        self._files[start:stop], self._numbers[start:stop] = [file], [file.row.number]


def _fits(output: RewrittenFile, row: FindRow) -> bool:
    """Whether a file can hold what the manifest says about these numbers."""
    segment = output.segment
    if segment.check or not is_sound(segment) or segment.is_filler or not is_linked(segment):
        return False
    try:
        first, last = row(segment.number), row(output.upto - 1)
        previous = row(segment.number - 1).chain if segment.number else NO_CHAIN
    except Corrupt:  # there is no such segment
        return False
    return (
        (segment.first, segment.end, segment.previous) == (first.first_offset, last.end, previous.hex())
        and bytes.fromhex(segment.schema) == first.schema == last.schema
        and bool(segment.key_id) == bool(first.key_id) == bool(last.key_id)
        and first.size > 0 < last.size
    )
