"""What retention removed, or would remove."""

from __future__ import annotations

import msgspec

from holdfast.segments.retention.retention_plan import Reason


class RemovedSegment(msgspec.Struct, frozen=True):
    """One segment that went, or would go."""

    topic: str
    partition: int
    number: int
    first: int
    rows: int
    bytes: int
    why: Reason


class RetentionReport(msgspec.Struct, frozen=True):
    """What retention did, or with `dry_run` would do."""

    removed: tuple[RemovedSegment, ...]
    bytes_freed: int
    bytes_short: int
    """What the disk budget still lacks, although nothing more may go."""
    dry_run: bool
    bytes_waiting: int = 0
    """What stays only because consumers have not read it yet."""
