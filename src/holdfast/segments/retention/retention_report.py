"""What retention removed, or would remove."""

from __future__ import annotations

import msgspec

from holdfast.segments.retention.retention_plan import Reason


class RemovedSegment(msgspec.Struct, frozen=True):
    """One segment that went, or would go."""

    topic: str
    partition: int
    number: int
    """Its number in the partition."""
    first: int
    """Its first offset."""
    rows: int
    """Its records."""
    bytes: int
    """Of its file."""
    why: Reason
    """The limit that it was removed for: `bytes`, `age`, `count`, `budget` (of the disk), or `wait_limit` (a consumer
    was waited for long enough).
    """


class RetentionReport(msgspec.Struct, frozen=True):
    """What retention did, or with `dry_run` would do."""

    removed: tuple[RemovedSegment, ...]
    """What was removed, or with `dry_run` would be, the oldest first."""
    bytes_freed: int
    """Bytes of all of that."""
    bytes_short: int
    """What the disk budget still lacks, although nothing more may go."""
    dry_run: bool
    """Whether nothing was removed."""
    bytes_waiting: int = 0
    """What stays only because consumers have not read it yet."""
