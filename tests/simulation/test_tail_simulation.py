"""One log and its store, over thousands of schedules: traffic, seals, trims, crashes, drains, and a store that fails.

The judge in `world` looks at every mark. Here are the schedules, and what must hold at their end: when faults stop,
everything gets shipped within bounded time, and a log that nobody has taken over never hears that it was.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from holdfast.errors import Closed
from holdfast.journal.state.partition import Partition
from holdfast.shipping.lanes.batch_source import JournalSource
from holdfast.shipping.lanes.ordering import BatchOrder
from holdfast.shipping.lanes.segment_lane import SegmentLane
from holdfast.shipping.lanes.tail_lane import TailLane
from holdfast.shipping.lanes.uploading import Uploader
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body
from tests.simulation.model_log import ModelLog
from tests.simulation.model_store import FaultPolicy, Rates
from tests.simulation.world import Session, World, explore, seeds_until_found

pytestmark = pytest.mark.unit

PLACES = [("orders", 0), ("orders", 1), ("taps", 0)]
CATCH_UP_S = 900.0
"""Within which everything is shipped after faults have stopped: time-outs and Retry-After of the last ones included."""


def settings(random: Random) -> ShippingSettings:
    """Small limits, so that all of them are met."""
    return ShippingSettings(
        max_in_flight_requests=random.choice((1, 2, 3, 6)),
        batch_size_threshold=random.choice((1, 2, 5)),
        batch_bytes_max=random.choice((60, 200, 2000)),
        batch_timeout_ms=random.choice((5, 200)),
        send_when_idle=random.random() < 0.7,
        retry_base_delay_ms=random.choice((10, 100)),
        retry_delay_max_ms=random.choice((1000, 30_000)),
        max_retry_attempts=random.choice((0, 3)),
        events_max=10_000,
        heartbeat_interval_ms=random.choice((60_000, 3_600_000)),
    )


async def traffic(world: World, log: ModelLog, commits: int) -> None:
    """Commits with pauses, and now and then a seal and a trim."""
    random = world.random
    pause = random.choice((0.002, 0.05, 2.0))
    for _ in range(commits):
        if "fenced" in log.held:
            return
        log.commit(random)
        if random.random() < 0.1:
            log.seal(random.choice(log.all_partitions))
        if random.random() < 0.1:
            log.trim()
        await asyncio.sleep(random.expovariate(1 / pause))


def weather(random: Random, clears_at: float) -> FaultPolicy:
    """A store that fails in its own way in each schedule, and works from a moment on."""
    spans = [sorted(random.uniform(0, clears_at) for _ in range(2)) for _ in range(random.choice((0, 0, 1, 2)))]
    return FaultPolicy(
        random,
        Rates.drawn(random),
        clears_at=clears_at,
        outages=[(a, b) for a, b in spans[:1]],
        expired=[(a, b) for a, b in spans[1:]],
    )


async def restarts(world: World) -> None:
    """A log that is opened a few times: each process drains in time, or not, or is killed in the middle."""
    random = world.random
    log = world.newest = ModelLog("a", PLACES[: random.randint(1, 3)])
    clears_at = random.choice((2.0, 30.0, 300.0))
    policy, chosen = weather(random, clears_at), settings(random)
    writing = world.loop.create_task(traffic(world, log, random.randint(10, 50)))
    for _ in range(random.choice((0, 0, 1, 2))):
        session = Session(world, log, policy, chosen)
        await asyncio.sleep(random.choice((0.0, 0.1, 3.0, 60.0)) * random.random())
        await (session.stop(random.uniform(0, 20)) if random.random() < 0.5 else session.kill())
        assert session.error is None, session.error
        log.reopen()
    session = Session(world, log, policy, chosen)
    await writing
    late = max(0.0, clears_at - world.loop.time())
    await session.until(lambda: log.is_shipped, late + CATCH_UP_S, "everything is shipped")
    for partition in log.all_partitions:
        log.seal(partition)
    assert await session.stop(CATCH_UP_S), "draining takes too long"
    assert session.error is None, session.error
    await world.until_landed()
    world.audit()
    check_store(world, log)


def check_store(world: World, log: ModelLog) -> None:
    """At the end everything is settled; and no create-only key was ever written with two contents."""
    assert all(partition.settled == partition.durable for partition in log.all_partitions)
    claims = [info.key for info in world.store.list(layout.EPOCHS)]
    assert claims == [layout.epoch_key(number) for number in range(1, len(claims) + 1)], "claims have a gap"


def test_whatever_the_store_does_order_holds_nothing_is_lost_and_everything_arrives(size: dict[str, Any]) -> None:
    """Marks in order and never ahead of the truth, bounded memory, no self-fencing, liveness; with restarts."""
    explore(restarts, **size)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_whatever_the_store_does_at_full_size() -> None:
    """The same, for 20 000 seeds."""
    explore(restarts, least=20_000, seconds=0)


# -- bugs that were planted to see that they are found ----------------------------------------------------


def in_order_of_completion(line: BatchOrder) -> list[int]:
    """Whatever is complete counts, also behind a hole; `_abandoned` remembers what did."""
    places = sorted(line._complete)
    line._complete.clear()
    line._abandoned.update(places)
    while line._acknowledged in line._abandoned:
        line._acknowledged += 1
    return places


async def taken_is_fenced(uploader: Uploader, key: str, body: Body) -> None:
    """An owner that finds its key taken was overtaken."""
    try:
        await uploader._requests.until_answered(key, lambda: uploader._remote.create(key, body))
    except AlreadyExists:
        raise Closed("fenced", reason="fenced") from None


_put = Uploader.put


async def without_floors(uploader: Uploader, key: str, body: Body) -> None:
    """Batches are removed and nothing says so."""
    if not key.endswith(".floor"):
        await _put(uploader, key, body)


def nothing_needed(source: JournalSource) -> dict[object, int]:
    """What was trimmed before it was shipped is not waited for."""
    return {}


def always(lane: SegmentLane, partition: Partition, end: int) -> bool:
    """Whatever the commits do, a manifest object is written when the file is there."""
    return True


async def at_once(lane: TailLane, held: object) -> None:
    """A batch that lacks entries waits for files alone."""


def nothing_named(lane: SegmentLane, partition: Partition, end: int) -> list[object]:
    """A batch that lacks entries does not say where they are."""
    return []


def nothing_released(lane: TailLane) -> None:
    """Batches that the store has are forgotten when the lane is cancelled."""


PLANTED = {
    "publish in the order of completion": (BatchOrder, "acknowledge", in_order_of_completion),
    "already exists means fenced": (Uploader, "put", taken_is_fenced),
    "remove batches without a floor": (Uploader, "put", without_floors),
    "do not wait for what was trimmed": (JournalSource, "unsettled", nothing_needed),
    "forget batches on cancellation": (TailLane, "_abandon", nothing_released),
    "settle segments ahead of their commits": (SegmentLane, "_is_whole", always),
    "send what lacks entries before the commits that it needs": (TailLane, "_until_sent", at_once),
    "name no segments": (SegmentLane, "_documents", nothing_named),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that finds nothing proves nothing."""
    monkeypatch.delenv("HOLDFAST_SEED", raising=False)
    monkeypatch.setattr(*PLANTED[bug])
    assert seeds_until_found(restarts, most=100)
