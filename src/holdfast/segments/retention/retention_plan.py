"""Retention's plan: which segments may go, and why. Values in, values out; nothing is removed here.

What holds for every plan: only a prefix goes, so that what is left is one span; nothing at or beyond the floor goes,
because what is not settled exists nowhere else; and the mark does not move, so even the newest sealed segment may go.

Limits hold per partition, since partitions are independent streams: a busy one must not push out a quiet one's
records. Each limit is a reason of its own; a segment goes when any of them asks for it.

* `bytes_max`, `records_max`: the oldest segment goes when the others alone still hold as much as the limit. So a
  reader finds at least that much, counted in rows and bytes and not in offsets or segments, and the surplus is less
  than one segment. The hard bound on disk space is the log-wide budget.
* `age_max_us`: a segment goes when it was sealed longer ago than that. The age of a segment is *not* taken from its
  records' times, which users give and which may be wrong: one record stamped in the future would keep its segment for
  ever, and records stamped in the far past (an import of old data) would vanish as soon as they are sealed. All
  records of a segment are at least as old, in the log, as its seal. Where the host's clock was wrong at the seal, the
  prefix rule keeps a segment at least as long as those before it.

A topic's policy may wait for consumers: what they have not read stays, until a second limit, that of waiting, asks for
it, too.

The budget looks at the whole log: when it needs room, the oldest segments anywhere go first, however the limits stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Literal, NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.model.control_rows import SegmentRow

_INT64 = 2**63

Reason = Literal["bytes", "age", "count", "budget", "wait_limit"]
Key = tuple[str, int]
"""Topic and partition."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of each partition is kept; None is no limit.

    >>> Policy(records_max=1_000_000).bytes_max is None
    True
    """

    bytes_max: int | None = None
    """Older segments go when newer ones hold this many bytes."""

    age_max_us: int | None = None
    """Segments go when they were sealed longer ago than this, in microseconds."""

    records_max: int | None = None
    """Older segments go when newer ones hold this many records."""

    def __post_init__(self) -> None:
        problems = [
            f"retention.{name} must be above zero and below 2**63, or none, got {value}"
            for name, value in msgspec.structs.asdict(self).items()
            if value is not None and not 0 < value < _INT64  # the database could not hold it
        ]
        if problems:
            raise Invalid("; ".join(problems), hint="correct these settings, or leave them out to keep everything")

    def and_also(self, other: Policy) -> Policy:
        """Both: of each limit the smaller one."""
        both = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Policy(*(min(filter(None, limits), default=None) for limits in both))


class Removal(NamedTuple):
    """A segment that goes, and why."""

    segment: SegmentRow
    why: Reason


class RetentionPlan(msgspec.Struct, frozen=True):
    """What goes from one partition, oldest first."""

    removals: tuple[Removal, ...] = ()

    bytes_waiting: int = 0
    """Bytes of segments that would go, if all consumers that are waited for were past them."""

    @property
    def bytes_freed(self) -> int:
        """Bytes of all that goes."""
        return sum(removal.segment.size for removal in self.removals)


class ConsumerHold(msgspec.Struct, frozen=True):
    """What a partition's consumers have not read yet is kept, within a limit of its own."""

    floor: int
    """The offset up to which all of them have read."""

    limit: Policy
    """What exceeds this is kept for nobody."""

    consumers: tuple[str, ...] = ()


class Budget(msgspec.Struct, frozen=True):
    """What goes from a log that needs room, oldest first, each with its topic and partition."""

    removals: tuple[tuple[Key, Removal], ...] = ()
    bytes_freed: int = 0
    bytes_short: int = 0
    """What could not be freed, because all the rest is not settled yet."""

    @staticmethod
    def over(used: int, disk_bytes_max: int | None, headroom: int = 0) -> int:
        """By how many bytes a log exceeds what it may use, `headroom` left free; 0 when it does not.

        >>> Budget.over(used=950, disk_bytes_max=1000, headroom=100)
        50
        """
        if disk_bytes_max is None:
            return 0
        if headroom < 0 or headroom >= disk_bytes_max:
            # Otherwise a slip in the settings would ask for everything to be removed.
            raise Invalid(
                f"the headroom leaves no room headroom={headroom} disk_bytes_max={disk_bytes_max}",
                hint="keep the headroom at zero or above and below disk_bytes_max",
            )
        return max(0, used + headroom - disk_bytes_max)


class LiveTotals(NamedTuple):
    """What the live segments of a partition hold together."""

    bytes: int
    rows: int

    @classmethod
    def of(cls, candidates: Sequence[SegmentRow]) -> LiveTotals:
        """Add it up."""
        return cls(sum(segment.size for segment in candidates), sum(segment.rows for segment in candidates))


def expire(
    candidates: Iterable[SegmentRow], held: LiveTotals, policy: Policy, now_us: int, floor_offset: int
) -> RetentionPlan:
    """What the policy removes from one partition, which holds so much.

    `candidates` are its live segments, oldest first, and are only looked at as far as they go; only segments that end
    at or below `floor_offset` may go.
    """
    bytes_left, rows_left = held
    removals: list[Removal] = []
    for segment in _removable(candidates, floor_offset):
        bytes_left -= segment.size
        rows_left -= segment.rows
        why = _reason(segment, policy, now_us, bytes_left, rows_left)
        if why is None:
            break
        removals.append(Removal(segment, why))
    return RetentionPlan(tuple(removals))


def waited(due: RetentionPlan, limit: RetentionPlan, waiting: ConsumerHold) -> RetentionPlan:
    """What goes of all that is due, where consumers are waited for: what they have read, and what exceeds the limit.

    `due` is what the policy removes, `limit` what the limit of waiting would.
    """
    over = len(limit.removals)
    going: list[Removal] = []
    for removal in due.removals:
        if removal.segment.end > waiting.floor and len(going) >= over:
            break
        going.append(removal if removal.segment.end <= waiting.floor else Removal(removal.segment, "wait_limit"))
    kept = due.removals[len(going) :]
    return RetentionPlan(tuple(going), sum(removal.segment.size for removal in kept))


def budget(partitions: Mapping[Key, Iterable[SegmentRow]], over_bytes: int, floors: Mapping[Key, int]) -> Budget:
    """What goes to free `over_bytes` in the whole log: the segments that were sealed first, wherever they are.

    `partitions` are live segments, oldest first; each partition's floor is in `floors`, and one without a floor there
    has nothing settled and loses nothing. Equal ages go in the order of their keys.
    """
    queues = (_queue(key, candidates, floors.get(key, 0)) for key, candidates in partitions.items())
    removals: list[tuple[Key, Removal]] = []
    freed = 0
    if over_bytes > 0:
        for _, key, segment in merge(*queues):
            removals.append((key, Removal(segment, "budget")))
            freed += segment.size
            if freed >= over_bytes:
                break
    return Budget(tuple(removals), freed, max(0, over_bytes - freed))


def _reason(segment: SegmentRow, policy: Policy, now_us: int, bytes_left: int, rows_left: int) -> Reason | None:
    """Why a segment goes, given what is left without it."""
    if policy.bytes_max is not None and bytes_left >= policy.bytes_max:
        return "bytes"
    if policy.age_max_us is not None and segment.sealed_us + policy.age_max_us < now_us:
        return "age"
    if policy.records_max is not None and rows_left >= policy.records_max:
        return "count"
    return None


def _queue(key: Key, candidates: Iterable[SegmentRow], floor_offset: int) -> Iterator[tuple[int, Key, SegmentRow]]:
    # merge() compares the heads of the queues only, so each partition still loses a prefix if its clock went back.
    return ((segment.sealed_us, key, segment) for segment in _removable(candidates, floor_offset))


def _removable(candidates: Iterable[SegmentRow], floor_offset: int) -> Iterator[SegmentRow]:
    """The prefix that is settled."""
    before = -1
    for segment in candidates:
        if segment.number <= before:
            raise Invalid(f"segments are not in order number={segment.number}", hint="give each once, oldest first")
        if segment.end > floor_offset:
            return
        before = segment.number
        yield segment
