"""Read, work, write over several topics under kill -9: every record has its effect exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest

import holdfast
from tests.crash.consumer_victim import PARTITIONS
from tests.harness.cuts import examine, record
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

_VICTIM = "tests.crash.consumer_victim"


def rounds(path, kills, seed):
    """Kill it again and again; after each kill what is there is right as far as it goes. Returns what was printed."""
    counts, draw = Counter(), random.Random(seed)
    for _ in range(kills):
        lines = kill_after(draw.randrange(1, 40), _VICTIM, path)
        counts.update(line.partition(" ")[0] for line in lines)
        check(path, is_over=False)
    subprocess.run([sys.executable, "-m", _VICTIM, str(path), "rest"], check=True, capture_output=True, timeout=120)
    check(path, is_over=True)
    return counts


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
    counts = rounds(tmp_path / "log", 5 if is_sampled else 15, seed)
    assert counts["billed"] > 0
    assert counts["booked"] > 0


# -- power cuts -------------------------------------------------------------------------------------------


def live(path, acked):
    """Commits of two consumers, alone and with a transaction, sealed now and then; `acked` is what is durable."""
    with holdfast.open(path, settings={"segments": {"seal_on_close": True}}) as log:
        orders = log.topic("orders")
        orders.append_batch([b"%d" % n for n in range(60)])
        plain, written = orders.consumer("plain"), orders.consumer("written")
        for turn in range(10):
            assert len(plain.poll(3)) == 3
            plain.commit()
            acked["plain"] += 3
            with log.transaction() as tx:
                tx.append_batch("invoices", [record.payload for record in written.poll(4)])
                tx.consumed(written)
            acked["written"] += 4
            if turn % 4 == 3:
                log.seal()


def look(copy, acked):
    path = copy / "log"
    if not (path / "FORMAT").exists():
        assert not any(acked.values())
        return
    with holdfast.open(path) as log:
        found = {one.consumer: one.partitions[0].committed for one in log.consumers()}
        written = log.marks("invoices")[0].durable if "invoices" in log.topics() else 0
        assert found.get("written", 0) == written
        for name, count in acked.items():
            assert found.get(name, 0) >= count, name
        if found:
            assert log.topic("orders").consumer("plain").poll(1)[0].offset == found.get("plain", 0)


def test_every_state_after_a_power_cut_has_what_was_committed(tmp_path, some):
    """Positions that were acknowledged are there, and one that went with a transaction tells what it wrote."""
    acked = {"plain": 0, "written": 0}
    cuts = record(tmp_path / "disk", lambda disk: live(tmp_path / "disk" / "log", acked), lambda: dict(acked))
    assert acked == {"plain": 30, "written": 40}
    sample = [*some(cuts[:-1], 12, full=60), cuts[-1]]
    assert examine(sample, look, tmp_path / "states", 3) >= len(sample)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_record_has_its_effect_once_over_hundreds_of_kills(tmp_path, seed):
    """The same, for longer."""
    rounds(tmp_path / "log", 300, seed)
