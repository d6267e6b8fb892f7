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
    """Records that are durable and not sealed: the active segments."""
    tail_bytes: int
    """Their stored bytes."""
    oldest_unsealed_seconds: float
    """How long the oldest unsealed record has waited, as far as this process knows."""
    seals_total: int
    """Segments that were sealed."""
    seal_failures_total: int
    """Attempts that failed."""
    rows_sealed_total: int
    """Records that were sealed."""
    bytes_sealed_total: int
    """Bytes of segment files."""
    seal_seconds: Histogram
    """How long seals took."""
    trimmed_entries_total: int
    """Journal entries removed after they were sealed."""
    expired_segments_total: int
    """Segments that retention removed."""
    expired_bytes_total: int
    """Bytes of their files."""
    reconcile_passes_total: int
    """Complete passes."""
    reconcile_findings: dict[str, int]
    """Findings of the last complete pass, by kind."""
    free_bytes: int | None
    """Free space on the disk when it was checked last; None before that, and without a guard."""
    last_error: str | None
    """Why the last attempt to seal or to apply retention failed, or why free space could not be checked; None after
    the next seal.
    """


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
