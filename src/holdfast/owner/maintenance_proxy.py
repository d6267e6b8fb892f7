"""The chores of a log that another process owns: the same verbs as `log/upkeep/maintenance.py` has, asked of the owner.

Nothing is sealed, removed or repaired here. Of a compaction the progress is not told: it is the owner's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal
from holdfast.log.owner_asking import Asking
from holdfast.log.upkeep.published_tables import TableStats
from holdfast.log.upkeep.topic_retention import TopicRetention
from holdfast.owner.call_messages import (
    SECONDS_MAX,
    Compact,
    LastReport,
    Nothing,
    Reconcile,
    Retain,
    SealTopics,
    SetRetention,
    limits_of,
)
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.segments.retention.retention_report import RetentionReport
from holdfast.segments.segment_stats import SegmentStats

if TYPE_CHECKING:
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.compaction.compactor import Progress
    from holdfast.log.ports import Names

logger = logging.getLogger("holdfast.sharing")


class MaintenanceProxy:
    """The chores of one log, at its owner's."""

    counters = None

    def __init__(self, journal: Journal, asking: Asking) -> None:
        self._journal = journal
        self._asking = asking
        self._timeout = journal.settings.ack_timeout_ms / 1000

    def last_report(self) -> ReconcileReport | None:
        """The report of the last complete pass."""
        return self._asking.ask("last_reconcile", Nothing(), LastReport, self._timeout).report

    def seal(self, topics: Names, timeout: float) -> None:
        """Seal what is durable now."""
        self._asking.ask("seal", SealTopics(topics, min(timeout, SECONDS_MAX)), Nothing, timeout)

    def seal_soon(self, topics: Names) -> None:
        """Seal what is durable now, without waiting for it; if nobody does, it is sealed when it is due."""
        try:
            request = SealTopics(topics, 0.0, waits=False)
            self._asking.ask("seal", request, Nothing, self._timeout)
        except HoldfastError as error:
            logger.info("a seal could not be asked for: %s", error.message, extra={"action": "seal_not_asked"})

    def retain(self, dry_run: bool) -> RetentionReport:
        """Apply retention, or say what would be removed."""
        return self._asking.ask("retain", Retain(dry_run), RetentionReport)

    def compact(self, topics: Names, target: int, progress: Progress | None, *, dry_run: bool) -> CompactionReport:
        """Join small segment files."""
        from holdfast.compaction.compaction_report import CompactionReport

        return self._asking.ask("compact", Compact(topics, target, dry_run=dry_run), CompactionReport)

    def set_retention(self, topic: str, wanted: TopicRetention) -> None:
        """Give a topic a policy of its own, durably, and have it wait for consumers."""
        request = SetRetention(topic, limits_of(wanted.policy), wanted.consumers, limits_of(wanted.limit))
        self._asking.ask("set_retention", request, Nothing, self._timeout)

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare manifest and files."""
        return self._asking.ask("reconcile", Reconcile(False, fix, deep, limit), ReconcileReport)

    def stats(self) -> SegmentStats:
        """Sealing, retention and reconciliation in the owner's process at this moment."""
        return self._asking.ask("segment_stats", Nothing(), SegmentStats, self._timeout)

    def settle(self, timeout: float) -> None:
        """Make durable what is there; the owner seals it."""
        self._journal.drain(timeout)

    def close(self, timeout: float, *, seal: bool = True) -> None:
        """Refuse new records; what is queued is made durable when the journal is closed."""
        self._journal.stop_taking()

    def forget(self) -> None:
        """In a forked child: nothing here is the parent's."""


class TablesProxy:
    """The published tables of a log that another process owns."""

    def __init__(self, journal: Journal, asking: Asking) -> None:
        self._asking = asking
        self._timeout = journal.settings.ack_timeout_ms / 1000

    def stats(self) -> TableStats:
        """Published tables in the owner's process at this moment."""
        return self._asking.ask("table_stats", Nothing(), TableStats, self._timeout)

    def stop(self) -> None:
        """The owner keeps them."""

    def forget(self) -> None:
        """In a forked child: nothing here is the parent's."""
