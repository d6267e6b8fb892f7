"""What the journal counts: plain integers while counting, one frozen snapshot on request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import msgspec

from holdfast.telemetry.metric import FAST_BOUNDS


class Histogram(msgspec.Struct, frozen=True):
    """How often something took how long."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many were measured."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket that holds this share; infinite for the last one."""
        wanted, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")


class Timings:
    """A histogram that grows: one thread adds, any may look."""

    __slots__ = ("_bounds", "_buckets", "_total", "observer")

    def __init__(self, bounds: tuple[float, ...] = FAST_BOUNDS) -> None:
        self._bounds = bounds
        self._buckets = [0] * (len(bounds) + 1)
        self._total = 0.0
        self.observer: Callable[[float], None] | None = None
        """Who else wants to know of each."""

    def add(self, seconds: float) -> None:
        """It took so long."""
        self._total += seconds
        self._buckets[bisect_left(self._bounds, seconds)] += 1
        if self.observer is not None:
            self.observer(seconds)

    def histogram(self) -> Histogram:
        """All so far."""
        return Histogram(self._bounds, tuple(self._buckets), self._total)


class JournalStats(msgspec.Struct, frozen=True):
    """The journal at one moment. Totals count since the log was opened."""

    queue_records: int
    """Records that were accepted and are not durable yet."""
    queue_bytes: int
    """Their bytes."""
    records_total: int
    """Records that were made durable."""
    bytes_total: int
    """Stored bytes of entries, encrypted where the log is."""
    groups_total: int
    """Group commits."""
    entries_total: int
    """Entries that they stored."""
    repeats_total: int
    """Appends whose idempotency key was known: they wrote nothing."""
    offered_dropped_total: int
    """Records that offer() answered with False."""
    refused_total: int
    """Appends that raised Full."""
    failed_groups_total: int
    """Groups of which nothing was stored."""
    checkpoints_total: int
    """Times the write-ahead log was folded in."""
    commit_seconds: Histogram
    """How long group commits took, the fsync included: `commit_seconds.quantile(0.99)`."""
    append_seconds: Histogram
    """From when a group's first record was queued until it was durable: no append of the group took longer."""
    poisoned: str | None
    """Why the journal stopped writing, if it did."""
    clock_ahead_seconds: float
    """How far the clock jumped (below zero: was set back) while that is not believed, and nothing goes for its age."""


class JournalCounters:
    """The writer's own counters; no lock, one writer."""

    __slots__ = (
        "appends",
        "bytes",
        "checkpoints",
        "commits",
        "entries",
        "failed_groups",
        "groups",
        "records",
        "repeats",
    )

    def __init__(self) -> None:
        self.records = self.bytes = self.groups = self.entries = self.repeats = 0
        self.failed_groups = self.checkpoints = 0
        self.commits, self.appends = Timings(), Timings()

    def committed(
        self, records: int, size: int, entries: int, repeats: int, seconds: float, queued_seconds: float | None = None
    ) -> None:
        """One group is durable; it took so long, and so long since its first record was queued."""
        self.records += records
        self.bytes += size
        self.entries += entries
        self.repeats += repeats
        self.groups += 1
        self.commits.add(seconds)
        if queued_seconds is not None:
            self.appends.add(queued_seconds)

    def stats(
        self, depth: tuple[int, int], dropped: int, refused: int, poisoned: str | None, clock_ahead_seconds: float
    ) -> JournalStats:
        """The journal at this moment, with so many records and bytes in its queue."""
        return JournalStats(
            queue_records=depth[0],
            queue_bytes=depth[1],
            records_total=self.records,
            bytes_total=self.bytes,
            groups_total=self.groups,
            entries_total=self.entries,
            repeats_total=self.repeats,
            offered_dropped_total=dropped,
            refused_total=refused,
            failed_groups_total=self.failed_groups,
            checkpoints_total=self.checkpoints,
            commit_seconds=self.commits.histogram(),
            append_seconds=self.appends.histogram(),
            poisoned=poisoned,
            clock_ahead_seconds=clock_ahead_seconds,
        )
