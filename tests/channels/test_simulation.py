"""Groups on a bad network, from seeds: every message is delivered exactly once, causally, everywhere; buffers drain.

A failure names its seed; HOLDFAST_SEED runs that one alone. What must hold, exactly, is said in `tests.channels.world`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count

import pytest

from tests.channels.world import Flood, World

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("quiet")]

SEEDS = 50
SOAK_SECONDS = 600


def run(make: Callable[[int], World], seed: int) -> World:
    world = make(seed)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"HOLDFAST_SEED={seed} at={world.now}: {type(error).__name__}: {error}") from error
    return world


def chosen(seeds: int) -> list[int]:
    given = os.environ.get("HOLDFAST_SEED")
    return list(range(seeds)) if given is None else [int(given)]


def test_every_message_is_delivered_once_and_in_causal_order_everywhere_and_buffers_drain(some):
    """Loss, duplication, reordering, partitions, kills and refusing disks, for both dialects, up to 20 participants."""
    worlds = [run(World, seed) for seed in some(chosen(SEEDS), 12)]
    if len(worlds) == SEEDS:  # the troubles were really there
        assert {world.dialect for world in worlds} == {"nim", "rfc"}
        assert max(len(world.participants) for world in worlds) == 20
        assert sum(world.deaths for world in worlds) > 100
        assert sum(world.splits for world in worlds) > 20
        assert sum(world.illnesses for world in worlds) > 50
        assert any(one.untold for world in worlds for one in world.participants)


def test_a_flood_beyond_history_stays_within_all_bounds_and_drains():
    """What can not be had any more is given up, and nobody hears it twice."""
    for seed in chosen(2):
        world = run(Flood, seed)
        assert all(len(one.heard) > 0 for one in world.participants)


@pytest.mark.soak
def test_thousands_of_groups():
    """As above, for as many seeds as the time allows."""
    begin = time.monotonic()
    for seed in count(SEEDS):
        run(World, seed)
        if seed % 10 == 0:
            run(Flood, seed)
        if seed % 100 == 0:
            print(f"seeds={seed} seconds={time.monotonic() - begin:.0f}", flush=True)
        if time.monotonic() - begin > SOAK_SECONDS:
            break
    assert seed > SEEDS
