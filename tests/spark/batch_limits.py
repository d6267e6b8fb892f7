"""How streams of tests take a source: two segments at a time; on a Spark that keeps no limits, everything at once.

Such a Spark also ends a restarted `availableNow` with the batch that was interrupted: the rest needs a second run.
"""

from __future__ import annotations

from pyspark_holdfast.versions.stream_triggers import HAS_LIMITS

LIMIT = {"maxSegmentsPerTrigger": "2"} if HAS_LIMITS else {}
RUNS = 1 if HAS_LIMITS else 2


def batches(count: int) -> int:
    """How many batches so many pairs of segments make."""
    return count if HAS_LIMITS else 1
