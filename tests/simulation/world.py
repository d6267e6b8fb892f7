"""A world to ship in: model logs, the real shipper on a virtual loop, and a judge of every mark that moves.

`Session` is one process that has a log open: the real `Shipper` without its thread, and so the real lanes, fence,
janitor and marks. The judge is called for every mark: whatever it covers can be brought back from what the store holds
at this moment; once a log was taken over (`taking_over`), from what the new owner found. `World.audit` brings
everything back and compares it record by record.

A schedule is a coroutine over a world. `explore` runs one for many seeds; a failure names its seed, and the environment
variable HOLDFAST_SEED runs that one alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count, pairwise
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from holdfast.clock import SystemClock
from holdfast.errors import Closed, HoldfastError
from holdfast.journal.state.partition import Partition
from holdfast.model.trusted_time import TrustedTime
from holdfast.root import tail_walk
from holdfast.root.objects import commit_batch, documents
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.manifest_chain import prove
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import StoreManifest, continued
from holdfast.root.tail_listing import TailListing, inherit
from holdfast.root.tail_walk import TailContents
from holdfast.shipping import session, shipper
from holdfast.shipping.cleanup import janitor
from holdfast.shipping.events import Event
from holdfast.shipping.lanes import tail_lane
from holdfast.shipping.lanes.ordering import Outcome, Stage
from holdfast.shipping.shipper import Shipper
from holdfast.shipping.shipping_marks import ShippedMarks
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store import layout
from holdfast.store.port import Body
from tests.simulation.model_log import LOG_ID, ModelLog, Where, end_of
from tests.simulation.model_store import FaultPolicy, ModelFace, ModelRemote, ModelStore
from tests.simulation.virtual_loop import Delays, VirtualClock, VirtualLoop, run

SEEDS_MIN = 500
SECONDS = 20.0
_AUDIT_EVERY = 8
"""Marks between two complete audits; every single one is compared with what is new since the one before."""

Result = TypeVar("Result")

_world: ContextVar[World] = ContextVar("world")
ACTING: ContextVar[FaultPolicy] = ContextVar("acting")
"""Whose machine the running task is on."""


class World:
    """One store, some logs, and what must hold of them."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.store = ModelStore(loop)
        self.store.on_delete = self._deleted
        self.store.on_create = self._created
        self.clock = VirtualClock(loop, seed)
        self.stages: list[WatchedStage] = []
        self.sessions: list[Session] = []
        self.writers: list[asyncio.Task[None]] = []
        """Applications that append."""
        self.newest: ModelLog | None = None
        """The log that owns the store: nobody has adopted it away."""
        self.newest_claim = 0
        """The claim of the takeover that made it; 0 for the first."""
        self.adopted: dict[str, dict[Where, int]] = {}
        """Logs that were taken over, and how far the new owner found their partitions."""
        self._proved: dict[str, int] = {}
        self._moves = 0
        self._decoded: dict[str, tuple[bytes, Any]] = {}
        self._manifests: dict[Where, StoreManifest] = {}
        loop.thread_delays = self._thread_delays
        _world.set(self)

    def _thread_delays(self) -> Delays:
        now = self.loop.time()
        before, after = ACTING.get().thread_delays(now)
        self.store.travels(now + before)
        return before, after

    async def until_landed(self) -> None:
        """Let everything arrive that is still under way, however late."""
        while self.store.last_landing > self.loop.time():
            await asyncio.sleep(self.store.last_landing - self.loop.time())

    # -- the truth ----------------------------------------------------------------------------------------

    def batch(self, key: str) -> CommitBatch:
        """A commit batch that is on the store now."""
        return self._decode(key, commit_batch.decode)

    def manifest(self, where: Where) -> StoreManifest:
        """The manifest objects of a partition that are on the store now, proved; none is ever removed."""
        known = self._manifests.setdefault(where, StoreManifest(*where, (), None))
        found = list(known.documents)
        while (key := layout.manifest_key(*where, len(found))) in self.store.objects:
            found.append(self._decode(key, documents.decode_manifest))
        if len(found) > len(known.documents):
            prove(found, LOG_ID.hex(), *where)
            self._manifests[where] = known._replace(documents=tuple(found))
        return self._manifests[where]

    def settled(self, where: Where) -> int:
        """Up to where a partition lies in segments on the store."""
        return self.manifest(where).settled or 0

    def counting(self, log: ModelLog) -> tuple[list[CommitBatch], dict[Where, int], TailListing]:
        """The commit batches that count, and up to where partitions lie in segments that do: settled, or named."""
        inherited = inherit(self.store.list(layout.TAIL))
        names = [(key, name.last_seq) for key, name in inherited.batches if name.last_seq > inherited.floor]
        batches = [tail_walk.cut(self.batch(key), last) for key, last in names]
        wheres = [where_of(partition) for partition in log.all_partitions]
        return batches, {where: with_named(self.manifest(where), batches).settled or 0 for where in wheres}, inherited

    def _decode(self, key: str, decode: Callable[[bytes, str], Result]) -> Result:
        data = self.store.objects[key]
        known = self._decoded.get(key)
        if known is None or known[0] is not data:
            known = self._decoded[key] = (data, decode(data, key))
        result: Result = known[1]
        return result

    # -- the judge ----------------------------------------------------------------------------------------

    def moved(self, log: ModelLog) -> None:
        """A mark of this log has just moved."""
        adopted = self.adopted.get(log.name)
        if adopted is not None:
            for partition in log.all_partitions:
                found = adopted[where_of(partition)]
                assert partition.shipped <= found, (
                    f"{log.name} acknowledged what its new owner did not find {where_of(partition)}"
                    f" shipped={partition.shipped} found={found}"
                )
            return
        self._check_news(log)
        self._moves += 1
        if log is self.newest and self._moves % _AUDIT_EVERY == 0:
            self.audit()

    def _check_news(self, log: ModelLog) -> None:
        """Everything between the last mark and this one is on the store, as it was written."""
        before, seq = self._proved.get(log.name, 0), log.shipped_seq
        batches, settled, inherited = self.counting(log)
        assert inherited.frontier >= seq, f"{log.name} is ahead of the store shipped={seq} store={inherited.frontier}"
        there = {entry.seq: entry.digest for batch in batches for entry in batch.entries}
        for partition in log.all_partitions:
            assert partition.settled <= self.settled(where_of(partition)), f"{log.name} settled what is not there"
        for number in range(before + 1, seq + 1):
            entry = log.entries.get(number)
            if entry is not None and end_of(entry) > settled[where_of(log.partitions[entry.partition_id])]:
                assert there.get(number) == entry.digest, (
                    f"{log.name} acknowledged an entry that is not there seq={number}"
                )
        self._proved[log.name] = max(before, seq)

    def _deleted(self, keys: list[str]) -> None:
        if any(layout.parse_batch_key(key) or layout.parse_floor_key(key) for key in keys):
            self.audit()

    def _created(self, key: str) -> None:
        """A restore at this moment gets every commit as a whole, or nothing of it."""
        log = self.newest
        if log is None or not (layout.parse_batch_key(key) or "/_manifest/" in key):
            return
        batches, settled, inherited = self.counting(log)
        walked = tail_walk.walk(LOG_ID, batches, settled, inherited.floor, inherited.frontier)
        back: dict[int, set[bool]] = {}
        for entry in log.entries.values():
            where = where_of(log.partitions[entry.partition_id])
            is_back = end_of(entry) <= walked.ends.get(where, settled[where])
            back.setdefault(entry.group_number, set()).add(is_back)
        halves = [group for group, found in back.items() if len(found) > 1]
        assert not halves, f"a restore would bring back a part of a commit of {log.name} groups={halves} {key=}"

    def audit(self) -> TailContents:
        """Bring everything back, as a restore would at this moment: nothing that was acknowledged is missing."""
        log = self.newest
        assert log is not None
        batches, settled, inherited = self.counting(log)
        walked = tail_walk.walk(LOG_ID, batches, settled, inherited.floor, inherited.frontier)
        for partition in log.all_partitions:
            end = walked.ends.get(where_of(partition), settled[where_of(partition)])
            assert end >= partition.shipped, (
                f"a restore would lose records of {log.name}: {where_of(partition)} {end=} shipped={partition.shipped}"
            )
        self._check_floor(log, inherited.floor)
        self._check_content(log, batches, settled, walked.last_seq)
        return walked

    def _check_floor(self, log: ModelLog, floor: int) -> None:
        for entry in log.entries.values():
            if entry.seq <= floor:
                where = where_of(log.partitions[entry.partition_id])
                assert end_of(entry) <= self.settled(where), f"a floor lies floor={floor} seq={entry.seq} {where}"

    def _check_content(
        self, log: ModelLog, batches: list[CommitBatch], settled: Mapping[Where, int], upto: int
    ) -> None:
        for batch in batches:
            for found in batch.entries:
                if found.seq <= upto and found.first >= settled[found.topic, found.partition]:
                    entry = log.entries.get(found.seq)
                    assert entry is not None, f"a record counts that {log.name} never had seq={found.seq}"
                    assert entry.digest == found.digest, f"a record of another log counts seq={found.seq}"

    def check_stages(self) -> None:
        """Every stage was released, once."""
        wrong = [stage for stage in self.stages if stage.releases != 1]
        assert not wrong, f"not released exactly once: {wrong}"


def with_named(manifest: StoreManifest, batches: Sequence[CommitBatch]) -> StoreManifest:
    """A manifest with the segments that these batches name."""
    named = [segment for batch in batches for segment in batch.segments]
    where = (manifest.topic, manifest.partition)
    return continued(manifest, [s for s in named if (s.topic, s.partition) == where], LOG_ID.hex())


class WatchedStage(Stage[Body]):
    """A stage that counts, and looks at what is held whenever one more is."""

    def __init__(self, payload: Body, publish: Callable[[], None], label: str = "") -> None:
        super().__init__(payload, publish, label)
        self.releases = 0
        self.held = payload.size
        world = _world.get()
        world.stages.append(self)
        owner = next(session for session in world.sessions if session.is_current)
        owner.stages.append(self)
        owner.check_held()

    def sent(self) -> None:
        super().sent()
        self.held = 0

    def release(self, outcome: Outcome) -> None:
        super().release(outcome)
        self.releases += 1
        self.held = 0


class WatchedMarks(ShippedMarks):
    """Marks that call the judge."""

    def ship(self, ends: Mapping[Partition, int], seq: int) -> None:
        log: Any = self._journal
        assert seq > self.shipped_seq, f"acknowledged out of order or twice seq={seq} before={self.shipped_seq}"
        super().ship(ends, seq)
        _world.get().moved(log)

    def settle(self, partition: Partition, slots: int, segments: int, end: int) -> None:
        log: Any = self._journal
        super().settle(partition, slots, segments, end)
        _world.get().moved(log)


@contextmanager
def instruments() -> Iterator[None]:
    """The shipper's stages and marks are watched, the janitor sweeps as often as a small world needs it, and nobody
    hears of alarms, of which there are thousands.
    """
    with (
        patch.object(logging.getLogger("holdfast.shipping"), "disabled", True),
        patch.object(janitor, "_SWEEP_BATCHES", 3),
        patch.object(janitor, "_SWEEP_S", 2.0),
        patch.object(tail_lane, "Stage", WatchedStage),
        patch.object(session, "ShippedMarks", WatchedMarks),
    ):
        yield


# -- processes --------------------------------------------------------------------------------------------

_current: ContextVar[object] = ContextVar("current")


class Session:
    """One process that has a log open."""

    def __init__(
        self,
        world: World,
        log: ModelLog,
        policy: FaultPolicy,
        settings: ShippingSettings,
        remote: type[ModelRemote] = ModelRemote,
    ) -> None:
        self._world, self.log, self._policy, self._settings = world, log, policy, settings
        log.trusted_time = TrustedTime(world.clock, log.created_us, 2**62)
        face = RootStore(ModelFace(world.store, policy, log.name, world.loop), RootTrust.of_owner(None, ""))
        self.shipper = Shipper(
            log.journal(),
            log.manifest(),
            face,
            lambda: remote(world.store, policy, log.name),
            settings,
            world.clock,
            no_abort,
        )
        self.events = self.shipper.subscribers.subscribe()
        self.stages: list[WatchedStage] = []
        self.error: HoldfastError | None = None
        self.held_max = self.batches_max = 0
        world.sessions.append(self)
        self._task = world.loop.create_task(self._run())

    @property
    def is_current(self) -> bool:
        """Whether the running task is one of this process."""
        return _current.get(None) is self

    @property
    def epoch(self) -> int:
        """The claim on the store; 0 before."""
        fence = self.shipper._fence
        return 0 if fence is None else fence.epoch

    @property
    def is_over(self) -> bool:
        """Whether nothing more is shipped."""
        return self._task.done()

    async def _run(self) -> None:
        ACTING.set(self._policy)
        _current.set(self)
        self.shipper._loop = self._world.loop
        try:
            await self.shipper._main()
        except BaseException as error:
            first = shipper._first(error)
            if isinstance(first, asyncio.CancelledError):
                raise
            if not isinstance(first, HoldfastError):
                raise first from None
            self.shipper._end(first)
            self.error = first

    async def stop(self, deadline: float) -> bool:
        """Drain within a time, then cancel; True when everything was drained."""
        self.shipper._calls.stop.set()
        await asyncio.wait([self._task], timeout=deadline)
        drained = self._task.done()
        await self.kill()
        return drained

    async def kill(self) -> None:
        """End it at once."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._world.loop.create_task(self.shipper._leave())
        if not self._task.cancelled():
            self._task.result()
        self.check_events()

    async def until(self, happened: Callable[[], bool], within: float, what: str) -> None:
        """Wait for something that must happen within so many virtual seconds."""
        now = self._world.loop.time
        began = now()
        while not happened():
            assert now() < began + within, f"not within {within:g} s: {what} {self.shipper.stats()}"
            if self.is_over:
                self._task.result()
                assert happened(), f"ended before: {what} {self.error!r}"
            await asyncio.sleep(min(0.5, within / 50) if now() < began + 60 else within / 200)

    def check_held(self) -> None:
        """What is held in memory is bounded by the settings."""
        holding = [stage.held for stage in self.stages if stage.held]
        self.batches_max, self.held_max = max(self.batches_max, len(holding)), max(self.held_max, sum(holding))
        limit = self._settings.max_in_flight_requests
        assert len(holding) <= limit, f"{len(holding)} batches are held, not {limit}"

    def check_events(self) -> None:
        """Both kinds of events come in order, without gaps, each batch once, and nothing is shipped unsent."""
        accepted: list[Event] = []
        shipped: list[Event] = []
        while (event := self._next_event()) is not None:
            assert not event.missed
            (accepted if event.kind == "accepted" else shipped).append(event)
            assert len(shipped) <= len(accepted)
        for before, following in pairwise(accepted):
            assert following.first_seq == before.last_seq + 1, f"{before} {following}"
        spans = [(event.first_seq, event.last_seq) for event in accepted]
        assert [(event.first_seq, event.last_seq) for event in shipped] == spans[: len(shipped)]

    def _next_event(self) -> Event | None:
        try:
            return self.events.get(0)
        except HoldfastError:
            return None


def no_abort() -> None:
    raise AssertionError("nobody asked for an abort")


def where_of(partition: Partition) -> Where:
    """A partition by name."""
    return partition.topic, partition.number


# -- many worlds ------------------------------------------------------------------------------------------

Schedule = Callable[[World], Coroutine[Any, Any, None]]


def one(schedule: Schedule, seed: int) -> World:
    """Run one schedule; a failure names its seed."""
    worlds: list[World] = []

    async def main(loop: VirtualLoop) -> None:
        worlds.append(World(loop, seed))
        await schedule(worlds[0])
        worlds[0].check_stages()

    try:
        with instruments():
            run(main)
    except Exception as error:
        at = worlds[0].loop.time() if worlds else 0.0
        raise AssertionError(f"HOLDFAST_SEED={seed} at={at:.3f}: {type(error).__name__}: {error}") from error
    return worlds[0]


def explore(schedule: Schedule, least: int = SEEDS_MIN, seconds: float = SECONDS, first: int = 0) -> int:
    """Run a schedule for many seeds: at least so many, and more while there is time; how many there were."""
    chosen = os.environ.get("HOLDFAST_SEED")
    if chosen is not None:
        one(schedule, int(chosen))
        return 1
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    for seed in count(first):
        if seed - first >= least and clock.monotonic() >= deadline:
            break
        one(schedule, seed)
    return seed - first


def seeds_until_found(schedule: Schedule, most: int) -> int:
    """How many seeds it takes to find a bug that was planted."""
    for seed in range(most):
        try:
            one(schedule, seed)
        except AssertionError:
            return seed + 1
    raise AssertionError(f"the bug was not found with {most} seeds")


def is_fenced(error: BaseException | None) -> bool:
    """Whether something ended because another process has taken over."""
    return isinstance(error, Closed) and error.reason == "fenced"
