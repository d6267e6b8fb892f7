"""An open log at one moment: counters and levels, one part per stage."""

from __future__ import annotations

import msgspec

from holdfast.journal.journal_stats import JournalStats
from holdfast.segments.segment_stats import SegmentStats
from holdfast.shipping.shipping_stats import ShippingStats


class Stats(msgspec.Struct, frozen=True):
    """The log at one moment: one part per stage."""

    journal: JournalStats
    segments: SegmentStats
    shipping: ShippingStats | None = None
    """None where no store is configured."""
