"""One snapshot of an open log: what each stage has counted, and how full it is."""

from __future__ import annotations

import msgspec

from holdfast.journal.journal_stats import JournalStats
from holdfast.log.consumers.consumer_status import ConsumerStats
from holdfast.log.log_executions import ExecutionStats
from holdfast.log.upkeep.published_tables import TableStats
from holdfast.segments.segment_stats import SegmentStats
from holdfast.shipping.shipping_stats import ShippingStats


class Stats(msgspec.Struct, frozen=True):
    """The log at one moment: one part per stage."""

    journal: JournalStats
    segments: SegmentStats
    shipping: ShippingStats | None = None
    """None where no store is configured."""
    tables: TableStats = TableStats(0, {}, {})
    consumers: ConsumerStats = ConsumerStats()
    executions: ExecutionStats | None = None
    """None while nobody has asked for executions through this handle."""
