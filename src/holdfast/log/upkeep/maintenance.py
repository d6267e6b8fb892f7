"""What keeps an open log in order behind its appends: sealing, retention, the disk guard, reconciliation.

It composes the parts in `segments/` and `reconcile/`. An owner has all of them; a read-only handle only reports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.channels.channel_settings import TOPIC
from holdfast.errors import Closed, HoldfastError, Invalid
from holdfast.execution.execution_settings import TOPIC as EXECUTIONS
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.journal.time_keeper import TimeKeeper
from holdfast.log.consumers.position_store import PositionStore
from holdfast.log.consumers.stored_positions import TOPIC as POSITIONS
from holdfast.log.log_context import LogContext
from holdfast.log.topics.topic_partitions import partitions_of
from holdfast.log.upkeep.local_compaction import LocalCompaction
from holdfast.reconcile.local_side import LocalSide
from holdfast.reconcile.reconcile_loop import ReconcileLoop
from holdfast.reconcile.reconcile_pass import Reconciler
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.local_root import LocalRootPublisher
from holdfast.segments.retention.retention import Retention
from holdfast.segments.retention.retention_plan import ConsumerHold, Policy
from holdfast.segments.retention.retention_report import RetentionReport
from holdfast.segments.sealing import leftovers
from holdfast.segments.sealing.disk_guard import DiskGuard
from holdfast.segments.sealing.roller import Roller
from holdfast.segments.segment_stats import SegmentCounters, SegmentStats
from holdfast.server_settings import AUDIT_TOPIC
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.compaction.compactor import Progress
    from holdfast.log.ports import Names
    from holdfast.log.upkeep.topic_retention import TopicRetention

_POSITIONS_BYTES_MAX = 64 * 2**20
"""Bytes that `_consumers` keeps: positions are recorded there, and all of them again now and then."""
_AUDIT_BYTES_MAX = 256 * 2**20

logger = logging.getLogger("holdfast")


class Maintenance:
    """The chores of one open log."""

    def __init__(
        self,
        context: LogContext,
        before_removal: Callable[[str], None] | None = None,
        positions: PositionStore | None = None,
    ) -> None:
        """`before_removal` is called with a topic whose files are about to go from the log's own directory.

        `positions` are those of consumers: retention may wait for them.
        """
        self._positions = PositionStore(context) if positions is None else positions
        directory, settings, clock, journal, manifest = context
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self.create_topic: Callable[[str], object]
        """Makes a topic of holdfast's own, if it is not there; the log says how."""
        self._roller: Roller | None = None
        self._retention: Retention | None = None
        self._compaction: LocalCompaction | None = None
        self._time: TimeKeeper | None = None
        counters = SegmentCounters()
        if journal.owned:
            emptied = leftovers.clear(journal, manifest)
            self._roller = Roller(journal, manifest, settings.segments, clock)
            counters = self._roller.counters
            self._retention = self._make_retention(context, counters)
            self._compaction = LocalCompaction(context, self._retention)
            if journal.shipping is None:
                self._publish(journal, manifest, self._roller, self._retention)
                self._roller.chores.append(self._compaction.check)
                self._retention.before_removal = before_removal
            self._retention.resume(emptied)
            if settings.disk.free_bytes_min:
                self._roller.chores.append(DiskGuard(journal, directory.path, settings.disk, counters).check)
            self._roller.chores.append(self._retention.check)
            self._time = TimeKeeper(journal)
            self._roller.chores.append(self._time.check)
            self._roller.start()
        else:  # only to say what would be removed
            self._retention = self._make_retention(context, counters)
        self._counters = counters
        side = LocalSide(journal, manifest, directory, self._roller)
        self._reconciler = Reconciler(side, settings.reconcile, clock)
        self._loop: ReconcileLoop | None = None
        if self._roller is not None and settings.reconcile.pass_interval_ms:
            self._loop = ReconcileLoop(self._reconciler, settings.reconcile, clock)
            self._loop.start()

    def _make_retention(self, context: LogContext, counters: SegmentCounters) -> Retention:
        return Retention(
            context.journal,
            context.manifest,
            context.settings.retention,
            counters,
            _topics(context.settings),
            self._waits,
        )

    def _waits(self, partition: Partition) -> ConsumerHold | None:
        """Which consumers retention waits for, and how far they are."""
        wait = self._positions.wait(partition.topic)
        if wait is None:
            return None
        floor = self._positions.floor(partition.topic, partition.number, wait.consumers)
        return ConsumerHold(floor, Policy(wait.bytes_max or None, wait.age_max_us or None), wait.consumers)

    def _publish(self, journal: Journal, manifest: Manifest, roller: Roller, retention: Retention) -> None:
        """Without a store, readers find the log in its own directory: its manifest is published there."""
        publishing = LocalRootPublisher(journal, manifest)
        roller.publishing = retention.publishing = publishing
        roller.chores.append(publishing.check)

    @property
    def counters(self) -> SegmentCounters:
        """What sealing and retention count."""
        return self._counters

    def last_report(self) -> ReconcileReport | None:
        """The report of the last complete pass."""
        return self._reconciler.last

    def seal(self, topics: Names, timeout: float) -> None:
        """Seal what is durable now."""
        partitions = partitions_of(self._journal, topics)
        if self._roller is None:
            raise _only_reading()
        self._roller.seal(partitions, timeout)

    def seal_soon(self, topics: Names) -> None:
        """Seal what is durable now, without waiting for it."""
        if self._roller is not None:
            self._roller.ask(partitions_of(self._journal, topics))

    def retain(self, dry_run: bool) -> RetentionReport:
        """Apply retention, or say what would be removed."""
        if self._retention is None or (self._roller is None and not dry_run):
            raise _only_reading()
        self._journal.refresh()
        return self._retention.run(dry_run=dry_run)

    def compact(self, topics: Names, target: int, progress: Progress | None, *, dry_run: bool) -> CompactionReport:
        """Join small segment files."""
        partitions = partitions_of(self._journal, topics)
        if self._compaction is None:
            raise _only_reading()
        return self._compaction.run(partitions, target, progress or _silent, dry_run=dry_run)

    def set_retention(self, topic: str, wanted: TopicRetention) -> None:
        """Give a topic a policy of its own, durably, and have it wait for consumers."""
        partitions_of(self._journal, (topic,))
        if self._journal.read_only:
            raise _only_reading()
        policy, consumers, limit = wanted
        if consumers:
            self.create_topic(POSITIONS)
        # Of two commits, the one that keeps more comes first.
        wait = partial(self._positions.set_wait, topic, consumers, limit.age_max_us or 0, limit.bytes_max or 0)
        if consumers:
            wait()
        self._journal.set_policy(topic, policy.bytes_max or 0, policy.age_max_us or 0, policy.records_max or 0)
        if not consumers:
            wait()

    def reconcile(self, *, fix: bool, deep: bool, limit: int | None) -> ReconcileReport:
        """Compare manifest and files."""
        return self._reconciler.run(fix=fix, deep=deep, limit=limit)

    def stats(self) -> SegmentStats:
        """Sealing, retention and reconciliation at this moment."""
        counters, now = self._counters, self._clock.monotonic()
        partitions = list(self._journal.partitions.values())
        waiting = [now - p.tail_since for p in partitions if p.tail_records and p.tail_since]
        return SegmentStats(
            segments=sum(p.sealed.segments - p.sealed.first_segment for p in partitions),
            tail_records=sum(p.tail_records for p in partitions),
            tail_bytes=sum(p.tail_size for p in partitions),
            oldest_unsealed_seconds=max(waiting, default=0.0),
            seals_total=counters.seals,
            seal_failures_total=counters.failures,
            rows_sealed_total=counters.rows,
            bytes_sealed_total=counters.bytes,
            seal_seconds=counters.durations.histogram(),
            trimmed_entries_total=counters.trimmed,
            expired_segments_total=counters.expired_segments,
            expired_bytes_total=counters.expired_bytes,
            reconcile_passes_total=self._reconciler.passes,
            reconcile_findings=self._reconciler.findings_by_kind(),
            free_bytes=counters.free_bytes,
            last_error=counters.last_error,
        )

    def settle(self, timeout: float) -> None:
        """Make durable and seal what is there, as far as time allows, and end all threads; appends go on."""
        deadline = self._clock.monotonic() + timeout
        if self._loop is not None:
            self._loop.stop()
        if self._roller is not None:
            self._keep_time()
            self._finish(deadline, timeout)

    def close(self, timeout: float, *, seal: bool = True) -> None:
        """Refuse new records, make durable and seal what is there, as far as time allows, and end all threads."""
        deadline = self._clock.monotonic() + timeout
        if self._loop is not None:
            self._loop.stop()
        if self._roller is None:
            return
        self._keep_time()
        self._journal.hold("closing", Closed("the log is closed"))  # what was accepted, and control units, still pass
        self._finish(deadline, timeout, seal=seal)

    def _keep_time(self) -> None:
        if self._time is not None:
            self._time.write()

    def _finish(self, deadline: float, timeout: float, *, seal: bool = True) -> None:
        assert self._roller is not None
        healthy = self._journal.end is None
        seal = seal and self._settings.segments.seal_on_close
        if healthy and self._journal.drain(timeout) and seal and self._roller.running:
            self._seal_all(max(0.0, deadline - self._clock.monotonic()))
        self._roller.stop(max(timeout / 10, deadline - self._clock.monotonic()))

    def _seal_all(self, timeout: float) -> None:
        assert self._roller is not None
        partitions = list(self._journal.partitions.values())
        left = sum(partition.tail_records for partition in partitions)
        logger.info("closing: sealing what is left records=%d", left, extra={"action": "close_seals", "records": left})
        try:
            self._roller.seal(partitions, timeout)
        except HoldfastError as error:  # the records are durable in the journal: that is no reason to stay open
            left = sum(partition.tail_records for partition in partitions)
            logger.warning(
                "closed without sealing all: %s; the records that are left are durable in the journal and are sealed"
                " after the next open records=%d",
                error.message,
                left,
                extra={"action": "close_unsealed", "records": left},
            )

    def forget(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._roller = self._retention = self._loop = self._compaction = None


def _topics(settings: Settings) -> dict[str, Policy]:
    """Policies of topics that are not the application's: `_channels` grows with everything that strangers send."""
    channels, executions = settings.channels, settings.executions
    return {
        TOPIC: Policy(channels.topic_bytes_max or None, int(channels.topic_age_max_ms * 1000) or None),
        POSITIONS: Policy(_POSITIONS_BYTES_MAX),
        AUDIT_TOPIC: Policy(_AUDIT_BYTES_MAX),
        EXECUTIONS: Policy(executions.topic_bytes_max or None, executions.topic_age_max_ms * 1000 or None),
    }


def _silent(_what: str, _done: int, _total: int) -> None:
    pass


def _only_reading() -> Invalid:
    return Invalid(
        "this log is open for reading only", hint="its owner seals, retains and compacts; open it without read_only"
    )
