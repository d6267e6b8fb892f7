"""A store that is away for an hour, or answers in part, while appends go on: memory is flat and somebody hears of it.

Time is virtual: the hour takes as long as what is done in it.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from holdfast.shipping.lanes import tail_lane
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store import layout
from holdfast.store.port import Body, ObjectInfo, StoreRefused, StoreUnavailable
from tests.simulation.model_log import ModelLog
from tests.simulation.model_store import Fate, FaultPolicy, ModelRemote, Rates
from tests.simulation.world import Session, World, one

pytestmark = pytest.mark.unit

HOUR = 3600.0
BEGINS, ENDS = 10.0, 10.0 + 1.1 * HOUR
SETTINGS = ShippingSettings(max_in_flight_requests=4, batch_size_threshold=50, batch_bytes_max=2000)


async def append_until(world: World, log: ModelLog, end: float, pause: float = 1.0) -> None:
    """Appends at their own pace, whatever the store does."""
    while world.loop.time() < end:
        log.commit(world.random)
        await asyncio.sleep(pause)


async def an_hour_away(world: World) -> None:
    """The store goes away for a little more than an hour."""
    log = world.newest = ModelLog("a", [("orders", 0), ("orders", 1)])
    policy = FaultPolicy(world.random, Rates(latency=0.01), outages=[(BEGINS, ENDS)])
    session = Session(world, log, policy, SETTINGS)
    writing = world.loop.create_task(append_until(world, log, ENDS))
    await asyncio.sleep(BEGINS)
    assert log.shipped_seq > 0
    assert session.shipper.stats().alarm is None
    await watch_outage(world, session)
    await writing
    await session.until(lambda: log.is_shipped, 0.05 * HOUR, "caught up much faster than real time")
    stats = session.shipper.stats()
    assert (stats.alarm, stats.lag_records, stats.lag_bytes, stats.in_flight) == (None, 0, 0, 0)
    assert await session.stop(60)
    world.audit()


async def watch_outage(world: World, session: Session) -> None:
    """From a minute in: the limit is reached and nothing beyond it is taken; only the alarm and the lag grow."""
    levels: list[int] = []
    taken: set[int] = set()
    lags: list[float] = []
    while world.loop.time() < ENDS - 60:
        await asyncio.sleep(60)
        stats = session.shipper.stats()
        assert stats.alarm is not None, "nobody hears of it"
        assert stats.alarm.cause in {"refused", "timeout", "dns", "reset"}
        assert not session.log.held, "appends go on"
        levels.append(stats.alarm.level)
        taken.add(len(session.stages))
        lags.append(stats.lag_seconds)
        holding = [stage.held for stage in session.stages if stage.held]
        assert len(holding) == SETTINGS.max_in_flight_requests
        assert sum(holding) <= SETTINGS.max_in_flight_requests * (SETTINGS.batch_bytes_max + 8192)
    assert levels == sorted(levels)
    assert {1, 2, 3, 4} >= set(levels) >= {2, 3, 4}, "it grows after a minute, ten minutes, an hour"
    assert len(taken) == 1, "nothing else is taken while the store is away"
    assert lags == sorted(lags)
    assert lags[-1] > HOUR


def test_an_hour_without_a_store_costs_no_memory_raises_an_alarm_and_is_caught_up_fast() -> None:
    """In flight stays at the limit, the alarm grows, appends go on, and afterwards everything arrives."""
    one(an_hour_away, 0)


class Stubborn(ModelRemote):
    """A store that works, except for what `fails` says."""

    until = HOUR

    async def create(self, key: str, body: Body) -> None:
        if self.fails("create", key):
            raise StoreUnavailable("this one fails", cause="server_error")
        await super().create(key, body)

    async def head(self, key: str) -> ObjectInfo | None:
        if self.fails("head", key):
            raise StoreRefused("not allowed to look", cause="forbidden")
        return await super().head(key)

    def fails(self, verb: str, key: str) -> bool:
        """Whether this request is one of those."""
        raise NotImplementedError


class OneObjectFails(Stubborn):
    """The first batch cannot be stored for an hour; all others can."""

    def fails(self, verb: str, key: str) -> bool:
        batch = layout.parse_batch_key(key)
        return batch is not None and batch.first_seq == 1 and asyncio.get_running_loop().time() < self.until


class NoLooking(Stubborn):
    """Objects may be written, but not looked for: whether somebody has taken over cannot be known."""

    def fails(self, verb: str, key: str) -> bool:
        return verb == "head" and asyncio.get_running_loop().time() < self.until


@pytest.mark.parametrize("remote", [OneObjectFails, NoLooking])
def test_batches_that_do_not_count_for_hours_are_bounded(
    remote: type[Stubborn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fails alone, or a fence that does not answer, ends in back-pressure and not in memory."""
    monkeypatch.setattr(tail_lane, "_UNACKNOWLEDGED_MAX", 40)

    async def stuck(world: World) -> None:
        log = world.newest = ModelLog("a", [("orders", 0)])
        session = Session(world, log, FaultPolicy(world.random, Rates(latency=0.01)), SETTINGS, remote)
        await append_until(world, log, HOUR)
        assert log.shipped_seq == 0, "nothing counts"
        assert len([stage for stage in session.stages if stage.outcome is None]) == 40
        assert session.shipper.stats().alarm is not None
        await session.until(lambda: log.is_shipped, 300, "everything is shipped")
        assert await session.stop(60)
        world.audit()

    one(stuck, 0)


class ResetForAWhile(FaultPolicy):
    """Every connection is reset at once, from 5 s on."""

    def fate(self, now: float) -> Fate:
        if 5.0 <= now < 20.0:
            return Fate(None, 1e-6, StoreUnavailable("reset", cause="reset"), "reset")
        return super().fate(now)


def test_the_first_retry_comes_within_the_base_delay_and_each_later_one_within_twice_the_one_before() -> None:
    """As the settings say; over many objects, some come close to the longest wait that is allowed."""

    async def failing(world: World) -> None:
        log = world.newest = ModelLog("a", [("orders", 0)])
        policy = ResetForAWhile(world.random, Rates(latency=1e-6))
        chosen = ShippingSettings(max_in_flight_requests=1, retry_base_delay_ms=100, retry_delay_max_ms=1600)
        session = Session(world, log, policy, chosen)
        log.commit(world.random)
        await session.until(lambda: log.is_shipped, 5, "shipped")
        await asyncio.sleep(5)
        log.commit(world.random)
        await session.until(lambda: log.is_shipped, 60, "shipped")
        assert await session.stop(60)

    allowed = (0.1, 0.2, 0.4, 0.8, 1.6, 1.6)
    longest = [0.0] * len(allowed)
    for seed in range(60):
        history = [r for r in one(failing, seed).store.history if r.verb == "create" and r.sent > 5]
        history = [r for r in history if r.key == history[0].key]
        waits = [after.sent - (before.answered or 0) for before, after in pairwise(history)]
        for attempt, wait in enumerate(waits[: len(allowed)]):
            longest[attempt] = max(longest[attempt], wait)
    for wait, most in zip(longest, allowed, strict=True):
        assert 0.8 * most < wait <= most * 1.001, (longest, allowed)
