"""What sealing, retention and reconciliation count: plain integers while counting, one frozen snapshot on request."""

from __future__ import annotations

import msgspec

from holdfast.journal.journal_stats import Histogram, Timings
from holdfast.telemetry.metric import SLOW_BOUNDS


class SegmentStats(msgspec.Struct, frozen=True):
    """Segments at one moment. Totals count since the log was opened."""

    segments: int
    """Segments that are there, of all partitions."""
    tail_records: int
    tail_bytes: int
    """What is durable and not sealed: the active segments."""
    oldest_unsealed_seconds: float
    """How long the oldest unsealed record has waited, as far as this process knows."""
    seals_total: int
    seal_failures_total: int
    rows_sealed_total: int
    bytes_sealed_total: int
    """Bytes of segment files."""
    seal_seconds: Histogram
    trimmed_entries_total: int
    expired_segments_total: int
    expired_bytes_total: int
    reconcile_passes_total: int
    reconcile_findings: dict[str, int]
    """Findings of the last complete pass, by kind."""
    free_bytes: int | None
    """Free space on the disk when it was looked at last."""
    last_error: str | None
    """Why the last attempt to seal or to retain failed; None when it did not."""


class SegmentCounters:
    """The roller's own counters; one writer each."""

    def __init__(self) -> None:
        self.seals = self.failures = self.rows = self.bytes = self.trimmed = 0
        self.expired_segments = self.expired_bytes = 0
        self.durations = Timings(SLOW_BOUNDS)
        self.free_bytes: int | None = None
        self.last_error: str | None = None

    def sealed(self, rows: int, size: int, seconds: float) -> None:
        """One segment is in the manifest."""
        self.seals += 1
        self.rows += rows
        self.bytes += size
        self.durations.add(seconds)
        self.last_error = None
