"""The roller: one thread that moves records from the journal's tail into segments.

It sleeps until a tail has reached its size (the writer signals it) or its age (a timer, so idle partitions are sealed
too), or until it is requested (`seal`). After each seal it trims the journal in small slices, so that no commit has to
wait long. Between seals it does the log's chores (retention, the disk guard), each when it is due.

A seal that fails does no harm: the records stay in the journal, just as durable. It is logged, counted, and tried again
after a pause that grows to a minute; callers that wait in `seal` get the error. The roller never blocks an append: all
it shares with the writer are commit units in the reserved lane.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable, Iterable
from functools import partial
from threading import Thread

from holdfast.caller import once
from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.operations import Trim
from holdfast.journal.state.partition import Partition
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.local_root import LocalRootPublisher
from holdfast.segments.sealing.pace import Pace
from holdfast.segments.sealing.seal import SealCancelled, Sealer, SealResult
from holdfast.segments.segment_settings import SegmentSettings
from holdfast.segments.segment_stats import SegmentCounters
from holdfast.signals import Signal
from holdfast.telemetry import spans
from holdfast.telemetry.burst import Burst

_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
_SLEEP_S = 3600.0
_TRIM_DELAY_S = 1.0
_LATE_S = 60.0
"""So late, and twice as late as records may become old, is worth a word."""
_LATE_RATIO = 1.0
"""At most so long a rest, in times the work, where a tail grows faster than it is sealed."""
_TRIM_BYTES = 2**20
"""What a commit removes beside appends: they wait for it, half a millisecond for a mebibyte."""

logger = logging.getLogger("holdfast.segments")

Chore = Callable[[float], float]
"""Something to do from time to time: takes the time, does it if it is due, returns when it is due again."""


class SealRequest:
    """A caller waits until these partitions are sealed up to these offsets."""

    def __init__(self, wanted: dict[Partition, int], reached: Callable[[Partition], int]) -> None:
        self.wanted = wanted
        self._reached = reached
        self.error: HoldfastError | None = None
        self.signal = Signal()

    def is_settled(self) -> bool:
        """For signals: all sealed, or failed."""
        return self.error is not None or all(self._reached(p) >= offset for p, offset in self.wanted.items())


class Roller:
    """Seals the partitions of one log."""

    def __init__(self, journal: Journal, manifest: Manifest, settings: SegmentSettings, clock: Clock) -> None:
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._signal = journal.notify_when_due(settings.rows_max, settings.bytes_max)
        self._lock = RLock()
        self._requests: list[SealRequest] = []
        self._pace = Pace(journal, self._idle_ratio, clock)
        self._untrimmed: dict[Partition, float] = {}
        """Partitions with a few entries to be trimmed, and when to do it at the latest."""
        self._entry_bytes: dict[Partition, int] = {}
        """How large the entries were that a partition's last segment was made of."""
        self._unmeasured: list[Partition] = []
        """Partitions whose tails were there when the log was opened and have not been measured yet."""
        self._retry: dict[Partition, tuple[float, float]] = {}
        """When to try a partition again that failed, and how long the pause was."""
        self._late: set[Partition] = set()
        """Partitions whose tails grew while they were sealed."""
        self._failures, self._lateness = Burst(), Burst()
        self.sealing: frozenset[tuple[int, int]] = frozenset()
        """What is being written now: partition ids and segment numbers."""
        self.chores: list[Chore] = []
        self.publishing: LocalRootPublisher | None = None
        """Keeps the manifest objects in the log's own directory; None where they are on a store."""
        self.counters = SegmentCounters()
        self._stopping = self._cancel = False
        self._sealer = Sealer(journal, manifest, settings, clock, self._pace, lambda: self._cancel)
        self._thread = Thread(target=self._work, name="holdfast-roller", daemon=True)

    def start(self) -> None:
        """Begin to seal."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End within `timeout` seconds: half for what is being sealed, half to give it up. The records stay durable."""
        self._stopping = True
        self._pace.hurry()
        self._signal.notify()
        self._thread.join(timeout / 2)
        self._cancel = True
        self._thread.join(timeout / 2)

    @property
    def running(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def seal(self, partitions: Iterable[Partition], timeout: float) -> None:
        """Wait until everything that is durable now in these partitions is sealed."""
        self._journal.refuse_second()
        if self._journal.end is not None:
            raise self._journal.end.again()
        request = self.ask(partitions)
        done = request.signal.sleep(lambda: request.is_settled() or not self.running, timeout)
        with once(self._lock):
            if request in self._requests:
                self._requests.remove(request)
        if request.error is not None:
            raise request.error.again()
        if not request.is_settled():
            if done:
                raise (self._journal.end or Closed("the log is closed")).again()
            raise Unavailable(
                f"not sealed within {timeout:g} s", hint="sealing continues; wait with topic.wait_sealed(…)"
            )

    def ask(self, partitions: Iterable[Partition]) -> SealRequest:
        """Ask for everything that is durable now in these partitions to be sealed."""
        request = SealRequest({partition: partition.durable for partition in partitions}, self._reached)
        with once(self._lock):
            self._requests.append(request)
        self._pace.hurry()
        self._signal.notify()
        return request

    def _reached(self, partition: Partition) -> int:
        return partition.sealed.sealed_offset if self.publishing is None else self.publishing.reached(partition)

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._unmeasured = list(self._journal.partitions.values())
            while not self._stopping and self._journal.end is None:
                due = self._round()
                if not self._stopping:
                    # A tail may have begun or filled up since it was visited, while nobody slept on the signal.
                    self._signal.sleep(partial(self._has_work, due), max(0.0, due - self._clock.monotonic()))
            for partition in list(self._untrimmed):
                self._trim(partition)
            if self.publishing is not None:
                self.publishing.finish()
        except Closed:
            pass  # the journal ended; its users are notified
        except BaseException:
            logger.critical("the roller stopped because of a defect", extra={"action": "roller_died"}, exc_info=True)
        finally:
            self._release_all()

    def _measure_all(self) -> bool:
        """Measure what was there when the log was opened; False when some of it cannot be read at the moment."""
        while self._unmeasured:
            try:
                self._measure(self._unmeasured[0])
            except Closed:
                raise
            except HoldfastError as error:
                self.counters.last_error = error.message
                return False
            self._unmeasured.pop(0)
        return True

    def _measure(self, partition: Partition) -> None:
        """An unsealed tail, and entries that were sealed but not trimmed."""
        if partition.tail_records and not partition.tail_bytes_found:
            partition.tail_since = partition.tail_since or self._clock.monotonic()
            self._journal.measure_tail(partition)
        self._trim(partition)

    def _round(self) -> float:
        """Seal what is to be sealed; returns when there will be something to do again."""
        due = self._clock.monotonic() + (_SLEEP_S if self._measure_all() else _RETRY_S)
        for partition in list(self._journal.partitions.values()):
            due = min(due, self._visit(partition))
            if self._stopping:
                break
        due = min(due, self._relieve(), self._trim_due())
        self._settle_requests()
        for chore in self.chores:
            due = min(due, chore(self._clock.monotonic()))
        return due

    def _relieve(self) -> float:
        """Tails may be too long together though none of them is due: seal the longest; returns when to look again."""
        now = self._clock.monotonic()
        if not self._journal.tail_is_long():
            return now + _SLEEP_S
        longest = max(self._journal.partitions.values(), key=lambda partition: partition.tail_size)
        pause = self._retry.get(longest, (0.0, 0.0))[0]
        if pause <= now and longest.tail_records and self._seal(longest):
            return now
        return max(now + _RETRY_S, pause)

    def _visit(self, partition: Partition) -> float:
        """Seal a partition's next segment if it is due; returns when it is due again."""
        # One segment at a time: a partition that fills faster than it is sealed must not keep the others, and the
        # chores, from their turn.
        now = self._clock.monotonic()
        if not partition.tail_records:
            return now + _SLEEP_S
        due = now if self._asked_for(partition) else self._due(partition)
        if due > now:
            return due
        if not self._seal(partition):
            return self._retry.get(partition, (now + _SLEEP_S, 0.0))[0]
        return now

    def _due(self, partition: Partition) -> float:
        """When a tail is to be sealed that nobody asked for: by its size, by its age, not before a pause is over."""
        due = 0.0 if self._is_ripe(partition) else partition.tail_since + self._settings.age_max_ms / 1000
        return max(due, self._retry.get(partition, (0.0, 0.0))[0])

    def _is_ripe(self, partition: Partition) -> bool:
        return partition.tail_records >= self._settings.rows_max or partition.tail_size >= self._settings.bytes_max

    def _asked_for(self, partition: Partition) -> bool:
        sealed = partition.sealed.sealed_offset
        with once(self._lock):
            return any(request.wanted.get(partition, -1) > sealed for request in self._requests)

    def _seal(self, partition: Partition) -> bool:
        """One segment; False when that failed."""
        self._note_lateness(partition)
        began, until, before = self._clock.monotonic(), partition.durable, self._journal.committed_records
        tail = partition.tail_records
        self._pace.begin()
        self.sealing = frozenset({(partition.id, partition.sealed.segments)})
        try:
            sealed = self._seal_told(partition)
            if self.publishing is not None:
                self.publishing.publish(partition)
        except SealCancelled:
            return False
        except HoldfastError as error:
            self._failed(partition, error)
            return False
        except Exception as error:  # a defect, or memory ran out: the next partition may do better
            logger.exception("sealing failed", extra={"action": "seal_defect", "topic": partition.topic})
            failure = Unavailable(f"sealing failed: {type(error).__name__}", hint="see the cause; it is tried again")
            failure.__cause__ = error
            self._failed(partition, failure)
            return False
        finally:
            self.sealing = frozenset()
        self._retry.pop(partition, None)
        if not self._retry and self._failures.count:
            failures = self._failures.over()
            logger.info("sealing continues after %d failures", failures, extra={"action": "seal_recovered"})
        if partition.sealed.sealed_offset >= until:  # else what is left is as old as it was
            partition.tail_since = began
        if sealed is not None:
            self._entry_bytes[partition] = sealed.entry_bytes
            self._note_sealed(partition, sealed, self._clock.monotonic() - began)
        self._note_growth(partition, tail)
        self._settle_requests()
        self._pace.rest()
        try:
            self._trim_soon(partition, idle=self._journal.committed_records == before)
        except Unavailable as error:  # the database could not be read just now
            self.counters.last_error = error.message
        return True

    def _note_lateness(self, partition: Partition) -> None:
        """Say it when records wait much longer for their seal than they should, and no failure was reported."""
        now, age_max = self._clock.monotonic(), self._settings.age_max_ms / 1000
        late = now - partition.tail_since - age_max if partition.tail_since and not self._retry else 0.0
        if late <= max(_LATE_S, age_max):
            if not self._retry:
                self._lateness.over()
        elif self._lateness.again(now):
            logger.warning(
                "sealing is late by %.0f s: the roller has more to do than it gets done topic=%s partition=%d"
                " (segments.idle_ratio; more memory or cores)",
                late,
                partition.topic,
                partition.number,
                extra={"action": "seal_late", "topic": partition.topic, "partition": partition.number, "seconds": late},
            )

    def _note_growth(self, partition: Partition, tail: int) -> None:
        """Remember whether a tail that had so many records grew while it was sealed."""
        if not self._is_ripe(partition):
            self._late.discard(partition)
        elif partition.tail_records > tail:
            self._late.add(partition)

    def _seal_told(self, partition: Partition) -> SealResult | None:
        about: dict[str, str | int] = {
            "holdfast.topic": partition.topic,
            "holdfast.partition": partition.number,
            "holdfast.offset": partition.sealed.sealed_offset,
        }
        with spans.span(spans.SEAL, about) as span:
            sealed = self._sealer.seal(partition)
            if sealed is not None:
                span.set_attribute("holdfast.records", sealed.rows)
                span.set_attribute("holdfast.bytes", sealed.size)
            return sealed

    def _note_sealed(self, partition: Partition, sealed: SealResult, seconds: float) -> None:
        self.counters.sealed(sealed.rows, sealed.size, seconds)
        logger.info(
            "sealed %d records in %.3f s topic=%s partition=%d",
            sealed.rows,
            seconds,
            partition.topic,
            partition.number,
            extra={
                "action": "sealed",
                "topic": partition.topic,
                "partition": partition.number,
                "records": sealed.rows,
                "bytes": sealed.size,
                "seconds": seconds,
            },
        )

    def _settle_requests(self) -> None:
        """Wake those whose partitions are sealed."""
        with once(self._lock):
            settled = [request for request in self._requests if request.is_settled()]
            self._requests = [request for request in self._requests if request not in settled]
        for request in settled:
            request.signal.notify()

    def _idle_ratio(self) -> float:
        """How long to rest after a piece of work, in times what it took."""
        if self._is_urgent():
            return 0.0
        return min(self._settings.idle_ratio, _LATE_RATIO) if self._late else self._settings.idle_ratio

    def _is_urgent(self) -> bool:
        return self._stopping or bool(self._requests) or self._journal.tail_is_long()

    def _failed(self, partition: Partition, error: HoldfastError) -> None:
        _, pause = self._retry.get(partition, (0.0, 0.0))
        pause = min(_RETRY_MAX_S, pause * 2 or _RETRY_S)
        self._retry[partition] = (self._clock.monotonic() + pause, pause)
        self.counters.failures += 1
        self.counters.last_error = error.message
        logger.log(
            logging.ERROR if self._failures.again(self._clock.monotonic()) else logging.DEBUG,
            "could not seal, the records stay durable in the journal: %s",
            error.message,
            extra={
                "action": "seal_failed",
                "topic": partition.topic,
                "partition": partition.number,
                "retry_s": pause,
                "failures": self._failures.count,
            },
        )
        with once(self._lock):
            waiting = [request for request in self._requests if partition in request.wanted]
            self._requests = [request for request in self._requests if request not in waiting]
        for request in waiting:
            request.error = error
            request.signal.notify()
        if isinstance(error, Closed):
            raise error

    def _trim_soon(self, partition: Partition, *, idle: bool) -> None:
        """Trim, if nobody appends or enough has gathered to be worth a commit; otherwise later."""
        now = self._clock.monotonic()
        due = self._untrimmed.setdefault(partition, now + _TRIM_DELAY_S)
        if idle or due <= now or self._trimmable(partition) >= self._settings.trim_entries:
            self._trim(partition)

    def _trim_due(self) -> float:
        """Trim where that was put off long enough; returns when it is due again."""
        for partition, due in list(self._untrimmed.items()):
            if due <= self._clock.monotonic() and not self._stopping:
                self._trim(partition)
        return min(self._untrimmed.values(), default=self._clock.monotonic() + _SLEEP_S)

    def _trim(self, partition: Partition) -> None:
        """Remove from the journal what lies in segments, a slice per commit."""
        while not self._cancel:
            trim = Trim(partition, self._trim_slice(partition))
            try:
                if not self._trimmable(partition):
                    self._untrimmed.pop(partition, None)
                    return
                self._journal.perform(trim)
            except Closed:
                raise
            except HoldfastError as error:  # a full disk, perhaps
                self.counters.last_error = error.message
                self._untrimmed[partition] = self._clock.monotonic() + _RETRY_S
                return
            self.counters.trimmed -= trim.change.entries
            self._pace.rest()

    def _trim_slice(self, partition: Partition) -> int:
        """How many entries one commit removes: fewer large ones, while a caller may wait for it."""
        few = _TRIM_BYTES // max(1, self._entry_bytes.get(partition, 0))
        most = self._settings.trim_entries
        return most if self._is_urgent() else max(1, min(most, few))

    def _trimmable(self, partition: Partition) -> int:
        """Entries below the watermark, counted up to one slice."""
        return self._journal.sealed_entries(partition, self._settings.trim_entries)

    def _has_work(self, due: float) -> bool:
        """Whether there is something to do before `due`."""
        if self._stopping or self._journal.end is not None or self._requests:
            return True
        return any(p.tail_records and self._due(p) < due for p in list(self._journal.partitions.values()))

    def _release_all(self) -> None:
        with once(self._lock):
            waiting, self._requests = self._requests, []
        for request in waiting:
            request.signal.notify()
