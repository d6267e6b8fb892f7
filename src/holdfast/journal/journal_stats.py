"""What the journal counts: plain integers on the way, one frozen snapshot when asked."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the latency buckets, in seconds; one more bucket takes the rest."""


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


class JournalStats(msgspec.Struct, frozen=True):
    """The journal at one moment. Totals count since the log was opened."""

    queue_records: int
    queue_bytes: int
    records_total: int
    bytes_total: int
    """Stored bytes of entries, encrypted where the log is."""
    groups_total: int
    entries_total: int
    repeats_total: int
    """Appends whose idempotency key was known: they wrote nothing."""
    offered_dropped_total: int
    """Records that offer() answered with False."""
    refused_total: int
    """Appends that raised Full."""
    failed_groups_total: int
    """Groups of which nothing was stored."""
    checkpoints_total: int
    commit_seconds: Histogram
    poisoned: str | None
    """Why the journal stopped writing, if it did."""


class Counters:
    """The writer's own counters; no lock, one writer."""

    __slots__ = (
        "buckets",
        "bytes",
        "checkpoints",
        "entries",
        "failed_groups",
        "groups",
        "records",
        "repeats",
        "seconds",
    )

    def __init__(self) -> None:
        self.records = self.bytes = self.groups = self.entries = self.repeats = 0
        self.failed_groups = self.checkpoints = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BOUNDS) + 1)

    def committed(self, records: int, size: int, entries: int, repeats: int, seconds: float) -> None:
        """One group is durable."""
        self.records += records
        self.bytes += size
        self.entries += entries
        self.repeats += repeats
        self.groups += 1
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1

    def histogram(self) -> Histogram:
        """Commit latencies so far."""
        return Histogram(BOUNDS, tuple(self.buckets), self.seconds)

    def stats(self, depth: tuple[int, int], *, dropped: int, refused: int, poisoned: str | None = None) -> JournalStats:
        """The journal at this moment, with so many records and bytes in its queue."""
        return JournalStats(
            queue_records=depth[0], queue_bytes=depth[1], records_total=self.records, bytes_total=self.bytes,
            groups_total=self.groups, entries_total=self.entries, repeats_total=self.repeats,
            offered_dropped_total=dropped, refused_total=refused, failed_groups_total=self.failed_groups,
            checkpoints_total=self.checkpoints, commit_seconds=self.histogram(), poisoned=poisoned,
        )  # fmt: skip
