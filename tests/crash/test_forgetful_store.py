"""kill -9, a store that forgets, and several generations of lost machines: every acknowledged record comes back.

A process ships and is killed again and again. Meanwhile, or between two lives, somebody removes objects from the store:
a commit batch, a partition's manifest, its segments, claims, or everything; or puts an older copy of it back. After the
next acknowledgement the machine is lost, and the log goes on from the store alone.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.store.store_kinds import open_store
from holdfast.store.store_settings import StoreSettings
from tests.harness.kills import Victim

pytestmark = [pytest.mark.crash, pytest.mark.store]


class Drill:
    """One log, its store, and what spoils it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.directory = directory
        self.url = (directory / "store").as_uri()
        (directory / "store").mkdir()
        self.store = open_store(self.url, StoreSettings(), SystemClock())
        self.shipped: dict[tuple[int, int], bytes] = {}
        self.copy: dict[str, bytes] = {}
        self.generation = self.cycle = 0
        self.done: list[str] = []
        self.victim: Victim | None = None

    @property
    def path(self) -> Path:
        return self.directory / f"machine-{self.generation}"

    def start(self) -> Victim:
        self.cycle += 1
        self.victim = Victim("tests.crash.forgetful_victim", self.path, self.url, self.cycle)
        return self.victim

    def end(self, victim: Victim) -> None:
        self.victim = None
        for line in victim.kill():
            _, partition, offset, name = line.split()
            self.shipped[int(partition), int(offset)] = name.encode()

    # -- what a store forgets -----------------------------------------------------------------------------

    def spoil(self, how: str) -> None:
        self.done.append(how)
        keys = [info.key for info in self.store.list("")]
        batches = [key for key in keys if layout.parse_batch_key(key) is not None]
        if how == "a batch" and batches:
            self.store.delete([self.random.choice(batches)])
        elif how == "everything":
            self.store.delete(keys)
        elif how == "a manifest":
            self.store.delete([key for key in keys if key.startswith(layout.manifest_folder("orders", 0))])
        elif how == "segments":
            self.store.delete([key for key in keys if key.startswith(layout.segments_folder("orders", 1))])
        elif how == "claims":
            self.store.delete([key for key in keys if key.startswith(layout.EPOCHS)])
        elif how == "an older copy":
            self.store.delete(keys)
            for key, data in self.copy.items():
                self.store.create(key, Body.of(data))

    def remember(self) -> None:
        """Make a copy of the store, for later."""
        shutil.rmtree(self.directory / "copy", ignore_errors=True)
        shutil.copytree(self.directory / "store", self.directory / "copy")
        copied = open_store((self.directory / "copy").as_uri(), StoreSettings(), SystemClock())
        self.copy = {info.key: copied.get(info.key) for info in copied.list("")}

    # -- lives --------------------------------------------------------------------------------------------

    def live(self, *, spoilt: str, while_running: bool) -> None:
        """Ship, be spoilt, be killed."""
        victim = self.start()
        victim.until(10)
        if while_running:
            self.spoil(spoilt)
            time.sleep(self.random.random() * 0.2)
        self.end(victim)
        if not while_running:
            self.spoil(spoilt)

    def lose(self) -> None:
        """Live once more until something is acknowledged; then the machine is gone, and the log goes on elsewhere."""
        victim = self.start()
        victim.until(10)
        self.end(victim)
        lost = self.path
        self.generation += 1
        holdfast.restore(self.url, self.path)
        shutil.rmtree(lost)
        self.check()

    def check(self) -> None:
        with holdfast.open(self.path, read_only=True) as log:
            found = {
                (partition, record.offset): record.payload
                for partition in range(2)
                for record in log.topic("orders").read(partition=partition)
            }
        missing = {place: name for place, name in self.shipped.items() if found.get(place) != name}
        assert not missing, f"acknowledged and not there after {self.done}: {dict(list(missing.items())[:5])}"


WHILE_RUNNING = ("a batch", "everything", "claims")
"""What the next open finds before it acknowledges anything, also if the log went on meanwhile."""
HOWS = ("a batch", "everything", "a manifest", "segments", "claims", "an older copy")


def drill(directory: Path, seed: int, generations: int, lives: int) -> None:
    print(f"seed {seed}")
    run = Drill(directory, seed)
    try:
        _drill(run, generations, lives)
    finally:
        print(f"{len(run.shipped)} acknowledged, {run.done}")
        if run.victim is not None:
            run.victim.kill()


def _drill(run: Drill, generations: int, lives: int) -> None:
    for generation in range(generations):
        for life in range(lives):
            how = (
                HOWS[(generation * lives + life) % len(HOWS)]
                if lives * generations <= len(HOWS)
                else (run.random.choice(HOWS))
            )
            run.live(spoilt=how, while_running=how in WHILE_RUNNING and run.random.random() < 0.5)
            if run.random.random() < 0.7 or not run.copy:
                run.remember()
        run.lose()


def test_a_store_that_forgets_and_machines_that_are_lost(tmp_path: Path, seed: int) -> None:
    """Each way of forgetting once, over three machines."""
    drill(tmp_path, seed, 3, 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_with_many_stores_that_forget(tmp_path: Path, seed: int) -> None:
    drill(tmp_path, seed, 6, 4)
