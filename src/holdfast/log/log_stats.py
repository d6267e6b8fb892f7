"""One snapshot of an open log: what each stage has counted, and how full it is."""

from __future__ import annotations

import msgspec

from holdfast.journal.journal_stats import JournalStats
from holdfast.log.consumers.consumer_status import ConsumerStats
from holdfast.log.log_executions import ExecutionStats
from holdfast.log.upkeep.published_tables import TableStats
from holdfast.model.text_table import html_table, text_table
from holdfast.quantity import counted, sized
from holdfast.segments.segment_stats import SegmentStats
from holdfast.shipping.shipping_stats import ShippingStats


class Stats(msgspec.Struct, frozen=True):
    """The log at one moment: one part per stage."""

    journal: JournalStats
    """Queue, commits, latencies."""
    segments: SegmentStats
    """Tail, sealing, retention, disk."""
    shipping: ShippingStats | None = None
    """None where no store is configured."""
    tables: TableStats = TableStats(0, {}, {})
    """Topics that are published as tables."""
    consumers: ConsumerStats = ConsumerStats()
    """Consumers and their lag."""
    executions: ExecutionStats | None = None
    """None while nobody has asked for executions through this handle."""

    def __str__(self) -> str:
        """A small table: what people look for first."""
        return text_table(self._facts())

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return html_table(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        journal, segments, shipping = self.journal, self.segments, self.shipping
        facts = [
            ("appended", f"{counted(journal.records_total, 'record')} since it was opened"),
            ("queued", f"{counted(journal.queue_records, 'record')}, {sized(journal.queue_bytes)}"),
            ("tail", f"{counted(segments.tail_records, 'record')}, {sized(segments.tail_bytes)}"),
            ("segments", str(segments.segments)),
        ]
        if shipping is not None:
            facts += [
                ("store", shipping.store),
                ("not there yet", f"{counted(shipping.lag_records, 'record')}, {sized(shipping.lag_bytes)}"),
            ]
        facts += [(f"lag of {name}", counted(lag, "record")) for name, lag in self.consumers.lag_records.items()]
        if self.executions is not None:
            facts += [(f"executions {status}", str(count)) for status, count in self.executions.by_status.items()]
        troubles = [journal.poisoned, segments.last_error, *([shipping.ended, shipping.last_error] if shipping else [])]
        return facts + [("problem", trouble) for trouble in troubles if trouble]
