"""How much a stream takes at once: limits in segments, bytes and offsets, shared fairly. Pure.

Segments are taken whole, the oldest records first, until a limit in segments or bytes is reached; at least one, so that
a stream makes progress however small the limit is. A limit in offsets then takes from each partition in proportion to
what it has, as Kafka's source does, and may cut a segment. If it is too small for one record of each partition, the
oldest come first. Equal arguments give equal answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from holdfast.reader.offsets import Where
from holdfast.root.objects.documents import SegmentDocument


class AdmissionLimits(NamedTuple):
    """The most that one trigger takes; 0 is no limit."""

    offsets: int = 0
    bytes: int = 0
    segments: int = 0


def admit(
    starts: Mapping[Where, int], segments: Mapping[Where, Sequence[SegmentDocument]], limits: AdmissionLimits
) -> dict[Where, int]:
    """Where a trigger ends: partitions begin at `starts`, and these segments follow, in order."""
    ends = _by_segments(starts, segments, limits)
    if not limits.offsets:
        return ends
    waiting = [where for where in ends if ends[where] > starts[where]]
    if len(waiting) > limits.offsets:
        # One each is too much. By size, some partition might be the last forever; the oldest one's turn comes.
        oldest = sorted(waiting, key=lambda where: (segments[where][0].time_min, where))[: limits.offsets]
        return {**starts, **{where: starts[where] + 1 for where in oldest}}
    return _by_offsets(starts, ends, limits.offsets)


def _by_segments(
    starts: Mapping[Where, int], segments: Mapping[Where, Sequence[SegmentDocument]], limits: AdmissionLimits
) -> dict[Where, int]:
    ends = dict(starts)
    heads = [(found[0].time_min, where, 0) for where, found in segments.items() if found]
    heapify(heads)
    count = size = 0
    while heads:
        _, where, at = heappop(heads)
        segment = segments[where][at]
        count, size = count + 1, size + segment.size
        is_over = (limits.segments and count > limits.segments) or (limits.bytes and size > limits.bytes)
        if is_over and count > 1:
            break
        ends[where] = max(ends[where], segment.end)
        if at + 1 < len(segments[where]):
            heappush(heads, (segments[where][at + 1].time_min, where, at + 1))
    return ends


def _by_offsets(starts: Mapping[Where, int], ends: Mapping[Where, int], most: int) -> dict[Where, int]:
    there = {where: ends[where] - starts[where] for where in ends}
    total = sum(there.values())
    if total <= most:
        return dict(ends)
    cut = dict(starts)
    left = most
    for where in sorted(
        there, key=lambda where: (there[where], where)
    ):  # small ones first: what they leave, others get
        # At least one: otherwise a quiet partition beside a busy one would never get its turn.
        take = min(there[where], left, max(1, left * there[where] // total if total else 0))
        total, left = total - there[where], left - take
        cut[where] = starts[where] + take
    return cut
