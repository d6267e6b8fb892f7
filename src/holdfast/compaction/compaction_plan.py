"""Which neighbouring files become one: pure, from the manifest and the files in effect.

A run is a sequence of neighbours of one schema, all of them encrypted or none, none retired and none a filler. A file
of at least half the target stays as it is; a run ends before it would exceed the target. A run of one is no run, and a
file is not written again for the sake of a few that are much smaller than it: a compaction after every segment would
write the same rows over and over.

Files are weighed by the segments that they hold, as those were sealed, not by their own size: so planning again after a
compaction, with the same target, finds nothing to do, however well the rows were compressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrites import InEffect
from holdfast.segments.file.stored_parts import PARTS_MAX

TARGET_BYTES = 128 * 2**20
"""What a file should have, by default."""
_FRAME_BYTES = 4 * 2**10
"""About what every segment file has beside its rows: footer, schema, hashes."""
_ROW_BYTES_MIN = 8
_SEGMENTS_MAX = 50_000
"""Of one plain file; an encrypted one has as many parts as a bundle may have."""
_UNEVEN = 4
"""A file that weighs so many times as much as all others of its run together stays out of it."""


class FileRun(NamedTuple):
    """Neighbouring files that are to become one."""

    files: tuple[InEffect, ...]

    @property
    def first(self) -> SegmentDocument:
        """The file that it begins with."""
        return self.files[0].segment

    @property
    def last(self) -> SegmentDocument:
        """The file that it ends with."""
        return self.files[-1].segment

    @property
    def numbers(self) -> tuple[int, int]:
        """The number of its first segment, and the number behind its last."""
        return self.first.number, self.files[-1].upto

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return self.last.end - self.first.first

    @property
    def bytes(self) -> int:
        """What its files have together."""
        return sum(file.segment.size for file in self.files)

    @property
    def is_encrypted(self) -> bool:
        """Whether its files are encrypted: all of them are, or none."""
        return bool(self.first.key_id)


class _Part(NamedTuple):
    files: tuple[InEffect, ...]
    weight: int


def plan(
    segments: Sequence[SegmentDocument], files: Sequence[InEffect], target: int = TARGET_BYTES, *, retired: int = 0
) -> list[FileRun]:
    """The runs of a partition, by offset. `segments` is its whole manifest; those below `retired` are left alone."""
    weights = list(accumulate((_weight(segment, target) for segment in segments), initial=0))
    parts = [_Part((file,), weights[file.upto] - weights[file.segment.number]) for file in files]
    found: list[FileRun] = []
    for is_good, like in groupby(parts, lambda part: _kind(part.files[0].segment, retired)):
        if is_good is not None:
            found += [FileRun(part.files) for part in _settled(list(like), target) if len(part.files) > 1]
    return found


def _weight(segment: SegmentDocument, target: int) -> int:
    # At least so much that a run below the target has no more segments than it may have.
    least = -(-target // (PARTS_MAX if segment.key_id else _SEGMENTS_MAX))
    return max(segment.size - _FRAME_BYTES, segment.rows * _ROW_BYTES_MIN, least)


def _kind(segment: SegmentDocument, retired: int) -> tuple[str, bool] | None:
    """What neighbours must have in common; None for a file that nothing can be joined to."""
    if segment.is_filler or segment.number < retired:
        return None
    return segment.schema, bool(segment.key_id)


def _settled(parts: list[_Part], target: int) -> list[_Part]:
    """Parts joined until joining them once more would change nothing: the next plan finds them as they are."""
    while True:
        joined = list(_joined(parts, target))
        if len(joined) == len(parts):
            return joined
        parts = joined


def _joined(parts: Iterable[_Part], target: int) -> Iterable[_Part]:
    taken: list[_Part] = []
    weight = 0
    for part in parts:
        is_large = 2 * part.weight >= target
        if taken and (is_large or weight + part.weight > target):
            yield from _run(taken)
            taken, weight = [], 0
        if is_large:
            yield part
        else:
            taken.append(part)
            weight += part.weight
    yield from _run(taken)


def _run(taken: list[_Part]) -> Iterable[_Part]:
    """These as one; but those in front that are much heavier than all behind them stay alone."""
    rest = sum(part.weight for part in taken)
    for at, part in enumerate(taken):
        rest -= part.weight
        if part.weight <= _UNEVEN * rest or at == len(taken) - 1:
            behind = taken[at:]
            yield _Part(tuple(file for one in behind for file in one.files), rest + part.weight)
            return
        yield part
