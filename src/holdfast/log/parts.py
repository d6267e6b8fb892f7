"""The parts of a log besides its journal and topics, as its verbs see them: maintenance, a store, tables.

The owner of a log has them itself (`maintenance`, `store_binding`, `published_tables`). A member of a shared log that
does not own it has proxies that ask the owner (`sharing/calls`): the same verbs, the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.compaction.compactor import Progress
    from holdfast.journal.state.partition import Partition
    from holdfast.log.upkeep.maintenance import TopicRetention
    from holdfast.log.upkeep.published_tables import TableStats
    from holdfast.reconcile.reconcile_report import ReconcileReport
    from holdfast.segments.retention.retention import RetentionReport
    from holdfast.segments.segment_stats import SegmentCounters, SegmentStats
    from holdfast.shipping.events import Subscription
    from holdfast.shipping.refill.store_loss import StoreRebuildReport
    from holdfast.shipping.shipping_stats import ShippingCounters, ShippingStats, Unshipped


class Chores(Protocol):
    """What keeps a log in order behind its appends."""

    @property
    def counters(self) -> SegmentCounters | None:
        """What sealing counts; None where another process does."""

    @property
    def last_reconcile(self) -> ReconcileReport | None:
        """The report of the last complete pass."""

    def seal(self, partitions: Sequence[Partition], timeout: float) -> None:
        """Seal what is durable now."""

    def seal_soon(self, partitions: Sequence[Partition]) -> None:
        """Seal what is durable now, without waiting for it."""

    def retain(self, dry_run: bool) -> RetentionReport:
        """Apply retention, or say what would be removed."""

    def compact(
        self, partitions: Sequence[Partition], target: int, progress: Progress, *, dry_run: bool
    ) -> CompactionReport:
        """Join small segment files."""

    def set_retention(self, topic: str, wanted: TopicRetention) -> None:
        """Give a topic a policy of its own, durably."""

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare manifest and files."""

    def stats(self) -> SegmentStats:
        """Sealing, retention and reconciliation at this moment."""

    def settle(self, timeout: float) -> None:
        """Make durable and seal what is there, as far as time allows; appends go on."""

    def close(self, timeout: float, *, seal: bool = True) -> None:
        """Refuse new records, make durable and seal what is there, as far as time allows, and end."""

    def forget(self) -> None:
        """In a forked child."""


class LogStore(Protocol):
    """The store of a log, if it has one."""

    @property
    def counters(self) -> ShippingCounters | None:
        """What shipping counts; None where there is no store, or another process ships."""

    def wait_for_answer(self) -> None:
        """Wait a moment for the store's first answer, if nobody has."""

    def require_free(self, topic: str) -> None:
        """Raise Invalid where a sink writes the topic of this name."""

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled."""

    def subscribe(self) -> Subscription:
        """What happens to commits from now on."""

    def stats(self) -> ShippingStats | None:
        """Shipping at this moment."""

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable here and not known to be on the store."""

    def rebuild(self, *, accept_loss: bool, timeout: float) -> StoreRebuildReport:
        """Bring back what the store has lost."""

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare the manifest with the store."""

    def close(self, timeout: float | None = None) -> None:
        """Ship what is there, and stop."""

    def release(self) -> None:
        """Let go of what comparing with the store has opened."""

    def forget(self) -> None:
        """In a forked child."""


class Tables(Protocol):
    """The tables that a log's topics are published as."""

    def stats(self) -> TableStats:
        """Published tables at this moment."""

    def stop(self) -> None:
        """Bring them up to date once more, and end."""

    def forget(self) -> None:
        """In a forked child."""
