"""Machines that are lost one after the other, with producers that repeat whatever was not acknowledged.

Each generation is killed with `kill -9`, its directory is thrown away, and the log is restored from the store; some
restores are killed as well. In the end every record is there once, under the offset that was acknowledged.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast.results import RestoreReport
from holdfast.store import layout
from holdfast.store.store_settings import StoreSettings
from tests.crash import key_victim
from tests.crash.test_restore_crash import CALM, SystemClock, killed_at, open_store
from tests.harness.kills import Victim

pytestmark = pytest.mark.crash

PRODUCERS = 4
LINES_MAX = 2_000


class Drill:
    """A log on a store, and the machines that it lives on."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        self.keyring = key_victim.KEYRING if kind == "encrypted" else None
        self.store = str(root / "store")
        self.starts = [0] * PRODUCERS
        """The first record of each producer that was never acknowledged."""
        self.shipped: dict[str, tuple[int, int]] = {}

    def live(self, machine: Path, acknowledgements: int) -> None:
        """Ship from a machine until so many were acknowledged and batches have made way for a floor, then lose it."""
        victim = Victim("tests.crash.key_victim", machine, self.store, self.kind, *self.starts)
        try:
            while len(victim.lines) < acknowledgements or not (self._has_floor() or len(victim.lines) >= LINES_MAX):
                victim.until(10)
        finally:
            printed = victim.kill()
        for line in printed:
            self._note(line)
        shutil.rmtree(machine)

    def _note(self, line: str) -> None:
        _, name, partition, offset = line.split()
        place = (int(partition), int(offset))
        assert self.shipped.setdefault(name, place) == place, f"another receipt for {name}"
        producer, number = map(int, name.split("-"))
        self.starts[producer] = max(self.starts[producer], number + 1)

    def restore(self, machine: Path, **options: object) -> RestoreReport:
        return holdfast.restore(self.store, machine, settings=CALM, keyring=self.keyring, **options)

    def examine(self, generation: int) -> int:
        """Everything that was acknowledged is there, where it was said to be, and nothing is there twice."""
        copy = self.root / f"look-{generation}"
        report = self.restore(copy, copy=True)
        assert report.lost_commits == 0
        with holdfast.open(copy, settings=CALM, keyring=self.keyring) as log:
            found = [(r.payload.decode(), (r.partition, r.offset)) for r in log.topic("orders").read()]
        shutil.rmtree(copy)
        twice = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
        assert twice == []
        lost = {name for name, place in self.shipped.items() if dict(found).get(name) != place}
        assert lost == set()
        return len(found)

    def tail(self) -> list[str]:
        """What lies in the tail of the store."""
        store = open_store(self.store, StoreSettings(), SystemClock())
        return [info.key for info in store.list(layout.TAIL)]

    def _has_floor(self) -> bool:
        """Whether the newest owner has removed batches."""
        tail = self.tail()
        newest = max((name.epoch for name in map(layout.parse_batch_key, tail) if name is not None), default=0)
        return any(floor[0] >= newest for floor in map(layout.parse_floor_key, tail) if floor is not None)


def run(drill: Drill, generations: int, acknowledgements: int) -> None:
    machine = drill.root / "machine-0"
    for generation in range(generations):
        drill.live(machine, acknowledgements)
        drill.examine(generation)
        machine = drill.root / f"machine-{generation + 1}"
        if generation == 1 and drill.kind == "plain":
            killed_at(drill.store, machine, "taking over partitions 1")
        assert drill.restore(machine).keys >= len(drill.shipped)
    assert len(drill.shipped) >= generations * acknowledgements
    kinds = Counter(key.rpartition(".")[2] for key in drill.tail())
    assert kinds["keys"] > 0, "no key ever outlived its batch"
    assert kinds["floor"] > 0
    assert kinds["keys"] < 20


@pytest.mark.parametrize("kind", ["plain", pytest.param("encrypted", marks=pytest.mark.soak)])
def test_five_lost_machines_leave_no_duplicate_and_lose_nothing(tmp_path, kind):
    run(Drill(tmp_path, kind), 5, 50)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_many_lost_machines(tmp_path, kind):
    run(Drill(tmp_path, kind), 25, 400)
