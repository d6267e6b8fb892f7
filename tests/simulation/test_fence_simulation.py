"""One store and several owners, over thousands of schedules: an overtaken owner acknowledges nothing that is lost.

A log ships; at some moment another process restores it and goes on, while the first one knows nothing of it: its
requests are under way, late by hours, or its whole machine is stopped for a while. Both remove what they have settled.
The judge in `world` compares everything that the old owner acknowledges with what the new one found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Log
from holdfast.errors import Closed, HoldfastError
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body
from tests.simulation.model_log import ModelLog
from tests.simulation.model_store import FaultPolicy, ModelRemote, Rates
from tests.simulation.taking_over import take_over
from tests.simulation.test_tail_simulation import CATCH_UP_S, PLACES, check_store, settings, traffic
from tests.simulation.world import Schedule, Session, World, explore, is_fenced, one, seeds_until_found

pytestmark = pytest.mark.unit

HOURS = 4 * 3600.0


def bad_weather(random: Random, clears_at: float) -> FaultPolicy:
    """The network of an owner that is going to be overtaken: slow, lossy, and perhaps stopped for hours."""
    rates = Rates.drawn(random)._replace(late=random.choice((0.0, 0.1, 0.4)), late_max=random.choice((60.0, HOURS)))
    start = random.uniform(0, 10)
    suspended = [(start, start + random.choice((5.0, HOURS)))] if random.random() < 0.5 else []
    return FaultPolicy(random, rates, clears_at=clears_at, suspended=suspended)


async def owned(world: World, log: ModelLog, policy: FaultPolicy, chosen: ShippingSettings) -> Session:
    """A process that has a log open, with traffic that goes on by itself; some have crashed and restarted before."""
    random = world.random
    world.writers.append(world.loop.create_task(traffic(world, log, random.randint(5, 30))))
    session = Session(world, log, policy, chosen)
    if random.random() < 0.3:
        await asyncio.sleep(random.uniform(0, 5))
        session = await restarted(world, session, policy, chosen)
    return session


async def restarted(world: World, session: Session, policy: FaultPolicy, chosen: ShippingSettings) -> Session:
    """The same log, opened again after a crash."""
    await session.kill()
    session.log.reopen()
    return Session(world, session.log, policy, chosen)


async def takeovers(world: World) -> None:
    """A is overtaken by B, and B perhaps by C; each goes on as long as it knows nothing of it."""
    random = world.random
    chosen = settings(random)
    log = world.newest = ModelLog("a", PLACES[: random.randint(1, 3)])
    clears_at = 60.0
    policy = bad_weather(random, clears_at)
    sessions = [await owned(world, log, policy, chosen)]
    for name in "bc"[: random.choice((1, 1, 2))]:
        await asyncio.sleep(random.choice((0.1, 2.0, 30.0)) * random.random())
        before = policy
        policy = FaultPolicy(random, Rates.drawn(random)._replace(late_max=60.0), clears_at=clears_at)
        log = await take_over(world, log, name, policy, chosen)
        if random.random() < 0.3:  # the machine that was given up comes back
            sessions[-1] = await restarted(world, sessions[-1], before, chosen)
        sessions.append(await owned(world, log, policy, chosen))
    await asyncio.sleep(clears_at + 60.0)
    await world.until_landed()  # stopped machines run again, and what was late has arrived
    for old in sessions[:-1]:
        await shut_out(world, old)
    await goes_on(world, sessions[-1])


async def rivals(world: World) -> None:
    """B and C take A over at the same time, from machines that may stop in the middle of it: one of them owns it."""
    random = world.random
    chosen = settings(random)
    log = world.newest = ModelLog("a", PLACES[: random.randint(1, 3)])
    policy = bad_weather(random, 60.0)
    sessions = [await owned(world, log, policy, chosen)]
    await asyncio.sleep(random.choice((0.1, 5.0)) * random.random())
    takers = []
    for name in "bc":
        takers.append(world.loop.create_task(take_over(world, log, name, bad_weather(random, 60.0), chosen)))
        await asyncio.sleep(random.choice((0.0, 1.0, 20.0)) * random.random())
    await asyncio.wait(takers)
    for taker in takers:
        error = taker.exception()
        assert error is None or is_fenced(error), f"a takeover ended with {error!r}"
    restored = [taker.result() for taker in takers if taker.exception() is None]
    assert world.newest in restored, "nobody has taken over"
    for found in restored:
        sessions.append(Session(world, found, FaultPolicy(random), chosen))
        found.commit(random)
    await world.until_landed()
    for session in sessions:
        if session.log is not world.newest:
            await shut_out(world, session)
    await goes_on(world, next(session for session in sessions if session.log is world.newest))


async def goes_on(world: World, newest: Session) -> None:
    """The last owner of the store ships everything, and nothing else counts."""
    log = newest.log
    await asyncio.wait(world.writers)
    await newest.until(lambda: log.is_shipped, CATCH_UP_S, "everything of the newest owner is shipped")
    world.audit()
    for partition in log.all_partitions:
        log.seal(partition)
    assert await newest.stop(CATCH_UP_S), "draining takes too long"
    assert newest.error is None, newest.error
    await world.until_landed()
    world.audit()
    check_store(world, log)


async def shut_out(world: World, old: Session) -> None:
    """An owner that was overtaken and has something to ship finds out, and nothing else happens to it."""
    if not old.is_over:
        old.log.commit(world.random)
        await old.until(lambda: old.is_over, HOURS + CATCH_UP_S, f"{old.log.name} finds out that it was overtaken")
    await old.stop(0)
    assert is_fenced(old.error), f"{old.log.name} ended with {old.error!r}"
    assert "fenced" in old.log.held, "appends are still taken"


def test_an_owner_that_was_overtaken_acknowledges_nothing_that_the_next_one_did_not_find(size: dict[str, Any]) -> None:
    """And its zombies count for nothing, whenever they land; with garbage collection on both sides."""
    explore(takeovers, **size)


def test_of_two_takeovers_at_once_one_owns_the_log_and_the_other_learns_of_it(size: dict[str, Any]) -> None:
    """And what the other one wrote changes nothing for the winner."""
    explore(rivals, **({"seconds": 5} | size))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("schedule", [takeovers, rivals])
def test_owners_that_were_overtaken_at_full_size(schedule: Schedule) -> None:
    """The same, for 20 000 seeds."""
    explore(schedule, least=20_000, seconds=0)


def test_one_seed_is_one_course_of_events() -> None:
    """A failure can be looked at as often as it takes."""
    for seed in range(10):
        first, second = (list(map(repr, one(takeovers, seed).store.history)) for _ in range(2))
        differs = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
        near = slice(max(0, differs - 3), differs + 2)
        assert first == second, f"seed {seed}, event {differs}: {first[near]}, then {second[near]}"


# -- single schedules -------------------------------------------------------------------------------------

CHOSEN = ShippingSettings(retry_delay_max_ms=1000)


def test_an_owner_that_finds_its_object_removed_asks_whether_it_was_overtaken() -> None:
    """It was there, its reply was lost, and the next owner has settled and removed it: reading on would never end."""

    async def removed(world: World) -> None:
        class Removed(ModelRemote):
            async def create(self, key: str, body: Body) -> None:
                if world.adopted and key.startswith(layout.TAIL):
                    raise AlreadyExists(key)
                await super().create(key, body)

        network = FaultPolicy(world.random)
        log = world.newest = ModelLog("a", PLACES)
        session = Session(world, log, network, CHOSEN, Removed)
        log.commit(world.random)
        await session.until(lambda: log.is_shipped, 60, "shipped")
        await take_over(world, log, "b", network, CHOSEN)
        await shut_out(world, session)

    one(removed, 0)


def test_a_log_that_was_taken_over_ships_nothing_when_it_is_opened_again() -> None:
    """Its own number is the highest then, so the fence says nothing; but what is on the store is not its own."""

    async def comes_back(world: World) -> None:
        network = FaultPolicy(world.random)
        log = world.newest = ModelLog("a", PLACES)
        session = Session(world, log, network, CHOSEN)
        log.commit(world.random)
        await session.until(lambda: log.is_shipped, 60, "shipped")
        await session.stop(60)
        new = await take_over(world, log, "b", network, CHOSEN)
        heir = Session(world, new, network, CHOSEN)
        new.commit(world.random)
        await heir.until(lambda: new.is_shipped, 60, "shipped")
        log.reopen()
        for _ in range(5):
            log.commit(world.random)
        await shut_out(world, Session(world, log, network, CHOSEN))
        new.commit(world.random)
        await heir.until(lambda: new.is_shipped, 60, "the new owner goes on")
        await heir.stop(60)

    one(comes_back, 0)


@pytest.mark.disk
def test_a_real_log_that_was_taken_over_acknowledges_nothing_when_it_is_opened_again(
    open_log: Callable[..., Log], tmp_path: Path
) -> None:
    """The same with real logs on a directory: the old machine comes back with records of its own."""
    store = str(tmp_path / "store")
    old = open_log("old", store=store)
    old.topic("t").append(b"1", durability="shipped")
    old.close()
    holdfast.restore(store, tmp_path / "new")
    new = open_log("new", store=store)
    new.topic("t").append(b"2", durability="shipped")
    old = open_log("old")
    for _ in range(3):
        old.topic("t").append(b"of the old machine")
    old.close()
    with pytest.raises(HoldfastError):
        open_log("old", store=store).topic("t").append(b"5", durability="shipped")
    new.topic("t").append(b"3", durability="shipped")


def test_a_takeover_that_was_overtaken_before_it_adopted_cuts_nothing() -> None:
    """B claims and lists, and its machine stops; C takes over and ships; B's adoption lands hours later."""

    async def overtaken(world: World) -> None:
        reached, released = asyncio.Event(), asyncio.Event()

        class Stopped(ModelRemote):
            async def create(self, key: str, body: Body) -> None:
                if layout.parse_adopted_key(key):
                    reached.set()
                    await released.wait()
                await super().create(key, body)

        network = FaultPolicy(world.random)
        log = world.newest = ModelLog("a", PLACES)
        session = Session(world, log, network, CHOSEN)
        log.commit(world.random)
        await session.until(lambda: log.is_shipped, 60, "shipped")
        stopped = world.loop.create_task(take_over(world, log, "b", network, CHOSEN, Stopped))
        await reached.wait()
        await shut_out(world, session)  # not before one more batch of it is on the store
        new = await take_over(world, log, "c", network, CHOSEN)
        heir = Session(world, new, network, CHOSEN)
        new.commit(world.random)
        await heir.until(lambda: new.is_shipped, 60, "shipped")
        released.set()
        with pytest.raises(Closed, match="another restore"):
            await stopped
        world.audit()
        await heir.stop(60)

    one(overtaken, 0)


# -- bugs that were planted to see that they are found ----------------------------------------------------


async def never_ask(fence: Fence) -> None:
    """Acknowledge without asking whether somebody has taken over."""


async def ask_once(fence: Fence) -> None:
    """One answer covers everything that comes later, too."""
    if not fence._answered:
        fence._answered = 1
        await fence._ask(1)


def adopts_nothing(key: str) -> None:
    """Nobody looks at what takeovers say."""


PLANTED = {
    "acknowledge without the fence": (Fence, "check", never_ask),
    "ask the fence before the request was finished": (Fence, "check", ask_once),
    "count what was not adopted": (layout, "parse_adopted_key", adopts_nothing),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that finds nothing proves nothing."""
    monkeypatch.delenv("HOLDFAST_SEED", raising=False)
    monkeypatch.setattr(*PLANTED[bug])
    assert seeds_until_found(takeovers, most=100)
