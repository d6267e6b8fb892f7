"""What a read must touch: from marks and manifests to pieces of segments, and from pieces to tasks. Pure.

Segments are found by their offsets and left out by their times, without opening a file. Tasks are balanced by bytes:
several tasks share a large segment, row group by row group; one task reads many small ones, because every task has a
cost of its own. A task holds all that its reader must know, proofs included, and no secret.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from holdfast.errors import Corrupt, Invalid
from holdfast.model.segment import Segment, SegmentFacts, SegmentHead
from holdfast.root.objects.documents import SegmentDocument
from holdfast.store import layout

_OPEN_BYTES = 256 * 2**10
"""What opening a segment costs, in bytes that could be read instead."""
_TASK_BYTES_MIN = 4 * 2**20
_ROW_BYTES = 16
"""What a row costs, however narrow it is, in bytes that could be read instead."""
_SHARE_BYTES, _SHARE_BYTES_MIN = 32 * 2**20, 2**20
"""A segment is not cut into smaller shares; if many tasks are wanted, not below the second: one row group."""

_ROUNDS_EVEN = 4
"""From this many tasks per core on, they even out by themselves."""

_first = attrgetter("first")


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of one segment: which segment, and which of its rows are wanted."""

    segment: Segment
    start: int
    end: int
    share: tuple[int, int] = (0, 1)
    """(k, n): the k-th of n even parts of its row groups."""

    @property
    def head(self) -> SegmentHead:
        """What the segment's file must say about itself."""
        return self.segment.head

    @property
    def facts(self) -> SegmentFacts:
        """What the manifest says about that file."""
        return self.segment.facts

    @property
    def key(self) -> str:
        """Where the file is."""
        head = self.segment.head
        return layout.segment_key(head.topic, head.partition, head.number, self.segment.facts.sha256)

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the segment are wanted."""
        return self.start <= self.segment.head.first and self.end >= self.segment.end

    def cost(self, width: int | None = None) -> int:
        """About how many bytes are read; `width` is that of the wanted columns, None for all of them."""
        facts, first = self.segment.facts, self.segment.head.first
        wanted = max(0, min(self.end, first + facts.rows) - max(self.start, first))
        stored = facts.size * wanted // facts.rows
        size = stored if width is None else min(stored, max(width, _ROW_BYTES) * wanted)
        return size // self.share[1] + _OPEN_BYTES


class TimeBounds(msgspec.Struct, frozen=True):
    """Which records are wanted, wherever they are, by their times in microseconds; None is no bound."""

    since: int | None = None
    """This one and later …"""
    until: int | None = None
    """… up to this one."""

    def misses(self, low: int, high: int) -> bool:
        """Whether nothing between two times is wanted."""
        return (self.since is not None and high < self.since) or (self.until is not None and low > self.until)


def meeting(segments: Sequence[SegmentDocument], start: int, end: int) -> Sequence[SegmentDocument]:
    """The segments of a partition (in order) that hold offsets from `start` up to `end`."""
    if start >= end:
        return ()
    return segments[max(bisect_right(segments, start, key=_first) - 1, 0) : bisect_left(segments, end, key=_first)]


def pieces_of(
    segments: Sequence[SegmentDocument], start: int, end: int, bounds: TimeBounds, *, skip_lost: bool = False
) -> Iterator[Piece]:
    """The parts of a partition's segments (in order) with start <= offset < end, within bounds.

    A segment that was lost is Corrupt, unless the caller can do without it.
    """
    for segment in meeting(segments, start, end):
        last = segment.end
        if last <= start or bounds.misses(segment.time_min, segment.time_max):
            continue
        if segment.is_filler:
            if skip_lost:
                continue
            raise _lost(segment)
        yield Piece(segment.segment, max(start, segment.first), min(end, last))


def _lost(segment: SegmentDocument) -> Corrupt:
    return Corrupt(
        f"records were lost offsets={segment.first}..{segment.end - 1}",
        path=layout.manifest_key(segment.topic, segment.partition, segment.slot),
        topic=segment.topic,
        partition=segment.partition,
        offset=segment.first,
        hint="failOnDataLoss=false reads what is left",
    )


# -- tasks ------------------------------------------------------------------------------------------------


class Task(msgspec.Struct, frozen=True, array_like=True):
    """What one reader reads, in this order."""

    pieces: tuple[Piece, ...]

    def encode(self) -> bytes:
        """A task as bytes, to travel."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Task:
        """A task that travelled."""
        return _tasks.decode(data)


_tasks = msgspec.msgpack.Decoder(Task)


def tasks_of(
    pieces: Iterable[Piece], split_bytes: int, min_tasks: int = 0, *, cores: int = 1, width: int | None = None
) -> list[Task]:
    """Pieces as tasks of about `split_bytes` each; smaller ones where that gives every core something to do, or where
    `min_tasks` asks for more. `width` is how wide a row of the wanted columns is, None for all columns.

    Order is kept: the rows of task 0, then task 1 … are in the order of the pieces.
    """
    if split_bytes < 1 or min_tasks < 0:
        raise Invalid("a task needs at least one byte", hint="raise splitBytes")
    costs = [(piece, piece.cost(width)) for piece in pieces]
    total = sum(cost for _, cost in costs)
    limit = _even(total, min(split_bytes, max(_TASK_BYTES_MIN, -(-total // max(1, cores)))), max(1, cores))
    if min_tasks:
        limit = max(1, min(limit, -(-total // min_tasks)))
    is_fine = min_tasks or split_bytes < _SHARE_BYTES
    least = _SHARE_BYTES_MIN if is_fine else _SHARE_BYTES
    parts = [part for piece, cost in costs for part in _shares(piece, cost, max(limit, least))]
    return [Task(tuple(taken)) for taken in _packed(parts, limit)]


def _even(total: int, limit: int, cores: int) -> int:
    """A limit with which all tasks end together: of three equal tasks on two cores, one would run alone."""
    rounds = -(-total // (limit * cores))
    return limit if rounds > _ROUNDS_EVEN else min(limit, max(_TASK_BYTES_MIN, -(-total // max(1, rounds * cores))))


def _shares(piece: Piece, cost: int, limit: int) -> Iterator[tuple[Piece, int]]:
    parts = round(cost / limit)  # up to half as much again is not worth another task
    if parts <= 1:
        yield piece, cost
        return
    for part in range(parts):
        yield msgspec.structs.replace(piece, share=(part, parts)), cost // parts


def _packed(parts: Iterable[tuple[Piece, int]], limit: int) -> Iterator[list[Piece]]:
    taken: list[Piece] = []
    size = 0
    for piece, cost in parts:
        # Better half of it too much than half a task too little.
        if taken and size + cost // 2 > limit:
            yield taken
            taken, size = [], 0
        taken.append(piece)
        size += cost
    if taken:
        yield taken
