"""Retention: removes the oldest segments of an open log, as its policies say. No mark ever moves back.

    plan (pure) → one commit: the segments are *expiring*, the partition begins behind them → remove the files
    → one commit: they are *expired*

After the first commit no reader asks for them; a crash in between leaves files that the next start removes. Rows and
chain values stay in the manifest forever. On a disk so full that even the first commit is refused, the oldest file
is first renamed to `….expired` and emptied (which needs no room and leaves proof of the intention); then the commit
has room. Without another store everything sealed is settled and may go.

A file of compaction goes as a whole, and is planned as one: with the commit that expires the last of its segments.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from holdfast import disk
from holdfast.caller import once
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.operations import Expire, MarkSegments
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import EXPIRED, EXPIRING, SegmentRow
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.local_root import LocalRootPublisher
from holdfast.segments.retention import retention_plan
from holdfast.segments.retention.retention_plan import Budget, ConsumerHold, LiveTotals, Policy, Reason
from holdfast.segments.retention.retention_report import RemovedSegment, RetentionReport
from holdfast.segments.segment_settings import RetentionSettings
from holdfast.segments.segment_stats import SegmentCounters
from holdfast.store import layout
from holdfast.telemetry import spans

_AT_ONCE = 100
"""Segments in one commit."""

logger = logging.getLogger("holdfast.segments")


class Retention:
    """Applies the policies of one log; a chore of the roller, and on demand."""

    def __init__(
        self,
        journal: Journal,
        manifest: Manifest,
        settings: RetentionSettings,
        counters: SegmentCounters,
        topics: Mapping[str, Policy] | None = None,
        waits: Callable[[Partition], ConsumerHold | None] = lambda partition: None,
    ) -> None:
        """`topics` have policies of their own in other settings; with those of `settings`, the smaller limit counts.

        `waits` tells for which consumers a partition's segments are kept.
        """
        self._waits = waits
        self._journal = journal
        self._topics = topics or {}
        self._manifest = manifest
        self._settings = settings
        self._counters = counters
        self._due = 0.0
        self._seals = 0
        """Segments that were sealed when retention was applied last."""
        self.publishing: LocalRootPublisher | None = None
        self.before_removal: Callable[[str], None] | None = None
        """Called with the topic whose files are about to go, once readers of the directory know."""
        self._lock = RLock()
        self._sizes: dict[Partition, tuple[int, int, int]] = {}
        """Bytes of live segments, as counted from this segment up to that one."""

    def check(self, now: float) -> float:
        """Apply retention if it is time to, or if something was sealed; returns when it is time again."""
        if now >= self._due or self._seals != self._counters.seals:
            self._seals = self._counters.seals
            self._due = now + self._settings.interval_ms / 1000
            try:
                self.run(dry_run=False)
            except HoldfastError as error:
                self._counters.last_error = error.message
                logger.error("retention failed: %s", error.message, extra={"action": "retention_failed"})
        return self._due

    def run(self, *, dry_run: bool) -> RetentionReport:
        """Plan, and unless `dry_run` remove."""
        with once(self._lock), _typed():
            return self._run(dry_run)

    def _run(self, dry_run: bool) -> RetentionReport:
        removed: list[RemovedSegment] = []
        waiting = 0
        kept: dict[Partition, int] = {}
        for partition in list(self._journal.partitions.values()):
            planned = self._plan(partition)
            removed += [_removed(partition, removal.segment, removal.why) for removal in planned.removals]
            kept[partition] = len(planned.removals)
            waiting += planned.bytes_waiting
        freed = sum(item.bytes for item in removed)
        budget = self._budget(kept, freed)
        by_key = {(p.topic, p.number): p for p in kept}
        for key, removal in budget.removals:
            removed.append(_removed(by_key[key], removal.segment, removal.why))
        if not dry_run:
            self._remove(removed, by_key)
            self._finish_expiring()
        return RetentionReport(tuple(removed), freed + budget.bytes_freed, budget.bytes_short, dry_run, waiting)

    # -- planning -----------------------------------------------------------------------------------------

    def policy(self, topic: str) -> Policy:
        """A topic's own policy, or what the settings say."""
        own = self._journal.policies.get(topic)
        settings = self._settings
        if own is not None:
            return Policy(own.bytes_max or None, own.age_max_us or None, own.records_max or None)
        general = Policy(
            settings.bytes_max or None, int(settings.age_max_ms * 1000) or None, settings.records_max or None
        )
        return general.and_also(self._topics.get(topic, Policy()))

    def _plan(self, partition: Partition) -> retention_plan.RetentionPlan:
        policy = self.policy(partition.topic)
        sealed = partition.sealed
        if policy == Policy() or sealed.first_segment == sealed.segments:
            return retention_plan.RetentionPlan()
        held = LiveTotals(self._size(partition), sealed.sealed_offset - sealed.first_offset)
        due = self._due_of(partition, held, policy)
        waiting = self._waits(partition) if due.removals else None
        return (
            due
            if waiting is None
            else retention_plan.waited(due, self._due_of(partition, held, waiting.limit), waiting)
        )

    def _due_of(self, partition: Partition, held: LiveTotals, policy: Policy) -> retention_plan.RetentionPlan:
        candidates = self._candidates(partition, 0)
        now_us = self._journal.trusted_time.now_us() if policy.age_max_us else 0
        return retention_plan.expire(candidates, held, policy, now_us, self._floor(partition))

    def _budget(self, kept: dict[Partition, int], freed: int) -> Budget:
        if not self._settings.disk_bytes_max:
            return Budget()
        used = self.used_bytes(list(kept)) - freed
        over = Budget.over(used, self._settings.disk_bytes_max, self._settings.headroom_bytes)
        candidates = {(p.topic, p.number): self._candidates(p, skip) for p, skip in kept.items()}
        return retention_plan.budget(candidates, over, {(p.topic, p.number): self._floor(p) for p in kept})

    def _floor(self, partition: Partition) -> int:
        """What is settled may go. Without another store that is all that is sealed. With one that has lost data, or has
        not answered yet, it is nothing: the files here may be the only ones.
        """
        if self._settings.allow_unsettled:
            return partition.sealed.sealed_offset
        return 0 if partition.shipping_state.is_doubtful else partition.settled

    def used_bytes(self, partitions: Sequence[Partition]) -> int:
        """What the log takes on the disk: segments and the journal's files."""
        return sum(map(self._size, partitions)) + self._journal.disk_bytes()

    def _size(self, partition: Partition) -> int:
        """Bytes of a partition's live segments; only what has changed since the last call is looked at."""
        sealed = partition.sealed
        first, upto, size = self._sizes.get(partition, (sealed.first_segment, sealed.first_segment, 0))
        if sealed.first_segment > upto:
            first, upto, size = sealed.first_segment, sealed.first_segment, 0
        if self._manifest.long_files(partition):  # few, and they come and go
            return sum(row.size for row in self._candidates(partition, 0))
        size -= sum(row.size for row in self._manifest.rows(partition, first, sealed.first_segment))
        size += sum(row.size for row in self._manifest.rows(partition, upto, sealed.segments))
        self._sizes[partition] = (sealed.first_segment, sealed.segments, size)
        return size

    def _candidates(self, partition: Partition, skip: int) -> Iterator[SegmentRow]:
        sealed = partition.sealed
        if not self._manifest.long_files(partition):
            return self._manifest.rows(partition, sealed.first_segment + skip, sealed.segments)
        return islice(self._manifest.files(partition, sealed.first_segment, sealed.segments), skip, None)

    # -- removing -----------------------------------------------------------------------------------------

    def _remove(self, removed: list[RemovedSegment], by_key: dict[tuple[str, int], Partition]) -> None:
        upto: dict[Partition, int] = {}
        for item in removed:
            partition = by_key[item.topic, item.partition]
            upto[partition] = max(upto.get(partition, 0), self._manifest.upto(partition, item.number))
        if removed:
            with spans.span(spans.RETAIN, {"holdfast.segments": len(removed)}):
                for partition, end in upto.items():
                    self._tell_unread(partition, removed)
                    self._expire(partition, end)
            logger.info(
                "retention removed %d segments",
                len(removed),
                extra={"action": "retention", "segments": len(removed), "bytes": sum(item.bytes for item in removed)},
            )

    def _expire(self, partition: Partition, end: int) -> None:
        while (oldest := partition.sealed.first_segment) < end:
            expire = Expire(partition, min(end, oldest + _AT_ONCE))
            try:
                self._journal.perform(expire)
            except Unavailable:
                # A commit that timed out may still happen, and the partition then begins further on. So the next lines
                # are about `oldest`, which was to go, and not about whatever is the oldest by now.
                expire = Expire(partition, self._manifest.upto(partition, oldest))
                self._make_room(partition, oldest)
                self._journal.perform(expire)
            self._announce(partition)
            self._finish(partition, expire.expiring)

    def _announce(self, partition: Partition) -> None:
        """Tell readers of the log's own directory before the files go; on a full disk that may have to wait."""
        if self.publishing is not None:
            try:
                self.publishing.expire(partition)
            except OSError as error:
                self._counters.last_error = f"cannot write an expiry: {error.strerror}"
        if self.before_removal is not None:
            self.before_removal(partition.topic)

    def _tell_unread(self, partition: Partition, removed: list[RemovedSegment]) -> None:
        """Consumers that were waited for have not read all of it: that is no reason to stay, but one to be reported."""
        waiting = self._waits(partition)
        ends = [r.first + r.rows for r in removed if (r.topic, r.partition) == (partition.topic, partition.number)]
        if waiting is not None and max(ends) > waiting.floor:
            records = max(ends) - max(waiting.floor, partition.sealed.first_offset)
            logger.warning(
                "retention removes %d records that a consumer has not read: it waits no longer topic=%s partition=%d"
                " consumers=%s",
                records,
                partition.topic,
                partition.number,
                ",".join(waiting.consumers),
                extra={"action": "retention_unread", "records": records, "topic": partition.topic},
            )

    def _make_room(self, partition: Partition, oldest: int) -> None:
        """Free the space of the oldest file before the commit that expires it; its new name proves why."""
        path = self._path(partition, oldest)
        marker = path.with_name(path.name + layout.EXPIRED)
        if path.exists():
            disk.rename(path, marker)
        if marker.exists():
            disk.empty(marker)

    def _finish(self, partition: Partition, rows: list[SegmentRow]) -> None:
        if not rows:
            return
        names = [layout.segment_name(row.number, row.sha256) for row in rows]
        names += self._ended(partition, rows)
        disk.remove_all(self._manifest.folder(partition), names + [name + layout.EXPIRED for name in names])
        self._journal.perform(MarkSegments(rows, EXPIRED))
        self._counters.expired_segments += len(rows)
        self._counters.expired_bytes += sum(row.size for row in rows)

    def _ended(self, partition: Partition, rows: list[SegmentRow]) -> list[str]:
        """Names of the long files whose last segment is among these."""
        numbers = {row.number for row in rows}
        return [file.name for file in self._manifest.long_files(partition) if file.upto - 1 in numbers]

    def remove_ended(self, partition: Partition) -> None:
        """Remove long files of which nothing is left: they came into effect after their last segment had expired."""
        with once(self._lock), _typed():
            first, folder = partition.sealed.first_segment, self._manifest.folder(partition)
            ended = [file.name for file in self._manifest.long_files(partition) if file.upto <= first]
            if there := [name for name in ended if (folder / name).exists()]:
                disk.remove_all(folder, there)

    def _path(self, partition: Partition, number: int) -> Path:
        """The file that holds a segment."""
        return self._manifest.path(partition, self._manifest.file(partition, self._manifest.row(partition, number)))

    def resume(self, emptied: Iterable[Partition]) -> None:
        """Finish what was begun before the log was opened: files that were emptied, then segments that were expiring.

        `emptied` are the partitions whose folders have such a file.
        """
        with _typed():
            for partition in emptied:
                if self._is_emptied(partition):
                    self._expire(partition, self._manifest.upto(partition, partition.sealed.first_segment))
            self._finish_expiring()
        for partition in list(self._journal.partitions.values()):
            if self._manifest.has_rewrites(partition):
                try:
                    self.remove_ended(partition)
                except Corrupt as damage:  # reads say so, too; it is no reason not to open
                    logger.error("a rewrite is damaged: %s", damage.message, extra={"action": "rewrite_damaged"})

    def _finish_expiring(self) -> None:
        """Finish what an Expire left behind: its owner died, or its commit came after the time-out."""
        by_id = self._journal.partitions
        expiring: dict[Partition, list[SegmentRow]] = {}
        for row in self._manifest.in_state(EXPIRING):
            expiring.setdefault(by_id[row.partition_id], []).append(row)
        for partition, rows in expiring.items():
            for start in range(0, len(rows), _AT_ONCE):
                self._finish(partition, rows[start : start + _AT_ONCE])

    def _is_emptied(self, partition: Partition) -> bool:
        """Whether the oldest segment was given up on a full disk. No other one ever is, whatever files say."""
        sealed = partition.sealed
        if sealed.first_segment == sealed.segments:
            return False
        path = self._path(partition, sealed.first_segment)
        return path.with_name(path.name + layout.EXPIRED).exists() and not path.exists()


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"cannot remove segments path={error.filename}: {error.strerror}",
            hint="check the disk; what was begun is finished by the next retention, or when the log is opened",
        ) from error


def _removed(partition: Partition, row: SegmentRow, why: Reason) -> RemovedSegment:
    return RemovedSegment(
        topic=partition.topic,
        partition=partition.number,
        number=row.number,
        first=row.first_offset,
        rows=row.rows,
        bytes=row.size,
        why=why,
    )
