"""Compaction of a log's own files, for a log without a store: done by its owner, with the code that compacts any root.

The log's directory is a root (`local_root`), so all steps are those of `compaction`: an intent, files, one create-only
rewrite that swaps them in, and replaced files that go `delete_after_ms` later; a crash between any two of them leaves
one side or the other. Reads of the open log take the swap up as soon as it is there, and those that were under way find
the same records in the longer file if theirs is gone. Retention may expire what is being rewritten: a long file of
which nothing is left is removed right afterwards, or when the log is opened.

The files of a log that ships are left alone: its store is what readers read, and `holdfast compact URL` compacts that.
"""

from __future__ import annotations

import logging
import shutil
from _thread import RLock
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast import disk
from holdfast.caller import once
from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.state.partition import Partition
from holdfast.log.log_context import LogContext
from holdfast.root.leased_segments import needed
from holdfast.root.rewrite_sweep import Grace, Swept, sweep
from holdfast.segments.retention.retention import Retention

if TYPE_CHECKING:
    from holdfast.compaction.compaction_report import CompactionReport
    from holdfast.compaction.compactor import Progress

_FOLDER = "compacting"
_INTERVAL_S = 3600.0
_WORKERS = 2

logger = logging.getLogger("holdfast.segments")


class LocalCompaction:
    """Compacts the files of one open log, and removes what it replaced."""

    def __init__(self, context: LogContext, retention: Retention) -> None:
        self._directory, self._settings, self._clock, self._journal, self._manifest = context
        self._retention = retention
        self._lock = RLock()
        self._due = self._clock.monotonic() + _INTERVAL_S
        self._done: dict[Partition, int] = {}

    def run(
        self, partitions: Sequence[Partition], target: int, progress: Progress, *, dry_run: bool
    ) -> CompactionReport:
        """Compact these partitions; raises Invalid where the log ships."""
        from holdfast.compaction.compaction_report import report_of
        from holdfast.compaction.compactor import Compactor, ThreadWorkers

        self._require_own()
        store, begun, done = self._manifest.as_store(), self._clock.monotonic(), []
        folder, log = self._directory.path / _FOLDER, self._journal.log_id.hex()
        with once(self._lock):
            try:
                disk.make_directory(folder)
                workers = ThreadWorkers(folder, _WORKERS, self._settings.store)
                compactor = Compactor(store, log, target, self._clock, workers)
                for partition in partitions:
                    place = (partition.topic, partition.number)
                    report = compactor.compact(*place, dry_run=dry_run, progress=progress)
                    if not dry_run:
                        self._take_up(partition)
                        swept = self._sweep(partition)
                        report = msgspec.structs.replace(report, removed_files=swept.files, removed_bytes=swept.bytes)
                    done.append(report)
            finally:
                shutil.rmtree(folder, ignore_errors=True)  # also what a crash has left there
        seconds = self._clock.monotonic() - begun
        return report_of(store.url, log, done, dry_run=dry_run, target_bytes=target, seconds=seconds)

    def check(self, now: float) -> float:
        """Remove what was replaced long enough ago; a chore of the roller."""
        if now >= self._due:
            self._due = now + _INTERVAL_S
            for partition in list(self._journal.partitions.values()):
                try:
                    if self._manifest.long_files(partition):
                        self._sweep(partition)
                except HoldfastError as error:
                    logger.error("what was compacted stays: %s", error.message, extra={"action": "sweep_failed"})
        return self._due

    def _sweep(self, partition: Partition) -> Swept:
        """Remove what may go; where the topic is published as a table, that comes first."""
        done = self._done.get(partition, 0)
        if not self._manifest.has_rewrites(partition):
            return Swept(rewrites=done)
        if self._retention.before_removal is not None:
            self._retention.before_removal(partition.topic)
        store, now_us = self._manifest.as_store(), self._journal.trusted_time.now_us()
        log, place = self._journal.log_id.hex(), (partition.topic, partition.number)
        swept = sweep(store, log, *place, now_us, self._grace(), needed(store, now_us), done=done)
        self._done[partition] = swept.rewrites
        return swept

    def _take_up(self, partition: Partition) -> None:
        """From now on reads and retention go by what is in effect."""
        self._manifest.long_files(partition, again=True)
        self._retention.remove_ended(partition)

    def _grace(self) -> Grace:
        shipping = self._settings.shipping
        return Grace(int(shipping.delete_after_ms * 1000), int(shipping.lease_delay_max_ms * 1000))

    def _require_own(self) -> None:
        journal = self._journal
        if journal.end is not None:
            raise journal.end.again()
        if journal.shipping is not None:
            raise Invalid(
                "this log ships to a store, and its own files are left alone",
                hint=f"compact what readers read: holdfast compact {journal.shipping.root}",
            )
