"""Read, work, write over several topics under kill -9: every record has its effect exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest

import holdfast
from tests.crash.consumer_victim import PARTITIONS
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

_VICTIM = "tests.crash.consumer_victim"


def rounds(path, kills, seed):
    """Kill it again and again; after each kill what is there is right as far as it goes. Returns what was told."""
    told, draw = Counter(), random.Random(seed)
    for _ in range(kills):
        lines = kill_after(draw.randrange(1, 40), _VICTIM, path)
        told.update(line.partition(" ")[0] for line in lines)
        check(path, is_over=False)
    subprocess.run([sys.executable, "-m", _VICTIM, str(path), "rest"], check=True, capture_output=True, timeout=120)
    check(path, is_over=True)
    return told


def check(path, *, is_over):
    with holdfast.open(path, read_only=True) as log:
        orders = {b"%d:%d" % (one.partition, one.offset): one.payload for one in log.topic("orders").read()}
        found = {name: list(log.topic(name).read()) for name in ("invoices", "audit", "ledger")}
        positions = {one.consumer: {p.partition: p.committed for p in one.partitions} for one in log.consumers()}
    for name, records in found.items():
        names = [record.key for record in records]
        assert len(names) == len(set(names)), f"{name} has something twice"
        assert all(orders[record.key] == record.payload for record in records)
    # Positions and effects are one commit: one tells exactly what the other does.
    done = {b"%d:%d" % (number, at) for number, end in positions.get("billing", {}).items() for at in range(end)}
    assert {one.key for one in found["invoices"]} == {one.key for one in found["audit"]} == done
    assert len(found["ledger"]) == sum(positions.get("booking", {}).values())
    for number in range(PARTITIONS):
        order = [int(one.key.split(b":")[1]) for one in found["audit"] if one.key.startswith(b"%d:" % number)]
        assert len(order) == len(set(order))
    if is_over:
        assert done == set(orders) == {one.key for one in found["ledger"]}


def test_every_record_has_its_effect_once_however_often_it_is_killed(tmp_path, seed, is_sampled):
    """Read, written and positions are one commit, over four topics, with two members of one consumer."""
    told = rounds(tmp_path / "log", 5 if is_sampled else 15, seed)
    assert told["billed"] > 0
    assert told["booked"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_record_has_its_effect_once_over_hundreds_of_kills(tmp_path, seed):
    """The same, for longer."""
    rounds(tmp_path / "log", 300, seed)
