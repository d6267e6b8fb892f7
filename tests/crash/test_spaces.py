"""Spaces under kill, power cut and failing disks: items and records of one unit are there together or not at all."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest

from holdfast import HoldfastError, Keyring
from holdfast.testing import Fault, FaultyDisk, PowerCut
from holdfast.testing.fault import Kind
from tests.crash.spaces_workload import SPACES, Notes, check, live, open_log, work

pytestmark = pytest.mark.crash

KINDS: list[Kind] = ["eio", "enospc", "short_write", "fsync"]

Cut = tuple[PowerCut, list[int], Keyring, str]


# -- kill -------------------------------------------------------------------------------------------------


def kill_after(directory: Path, seconds: float) -> list[int]:
    """Run the victim, kill it after so long, and return the last turns that it was acknowledged for."""
    command = [sys.executable, "-m", "tests.crash.spaces_victim", str(directory)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"ready\n"
    timer = threading.Timer(seconds, os.kill, (victim.pid, signal.SIGKILL))
    timer.start()
    lines = victim.stdout.read().split(b"\n")
    timer.join()
    assert victim.wait() == -signal.SIGKILL
    victim.stdout.close()
    acked = [-1] * SPACES
    for line in lines[:-1]:  # the last one may be cut
        space, turn = map(int, line.split())
        acked[space] = turn
    return acked


def run_cycles(directory: Path, cycles: int, seed: int, longest: float) -> int:
    rng, total = random.Random(seed), 0
    for _ in range(cycles):
        acked = kill_after(directory, 0.02 + rng.random() ** 2 * longest)
        total = sum(check(directory, acked, Notes().keyring))
    return total


def test_ten_kills_tear_nothing(tmp_path):
    """Each space is exactly where its own records say, and not before what was acknowledged."""
    assert run_cycles(tmp_path / "log", 10, seed=1, longest=0.2) > 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_three_hundred_kills_tear_nothing(tmp_path):
    """The same, for longer."""
    for part in range(6):
        assert run_cycles(tmp_path / f"log{part}", 50, seed=part, longest=0.3) > 1000


# -- power cuts -------------------------------------------------------------------------------------------


def record(root: Path, notes: Notes) -> list[Cut]:
    """Live a short life and take a snapshot before every step of the disk."""
    cuts: list[Cut] = []
    with FaultyDisk(root) as disk:
        disk.on_step = lambda index, op, name: cuts.append(
            (disk.snapshot(), list(notes.acked), notes.keyring, f"{index} {op} {name}")
        )
        live(root / "log", notes)
        cuts.append((disk.snapshot(), list(notes.acked), notes.keyring, "the end"))
    return cuts


def examine(cuts: list[Cut], states_each: int, scratch: Path, seed: int) -> int:
    looked = 0
    for number, (cut, acked, keyring, where) in enumerate(cuts):
        for state in cut.states(limit=states_each, seed=seed + number):
            copy = state.materialise(scratch / f"{number}-{looked}")
            try:
                check(copy / "log", acked, keyring)
            except Exception as error:
                raise AssertionError(f"cut before step {where}, {state.describe()}: {error}") from error
            shutil.rmtree(copy)
            looked += 1
    return looked


def test_every_state_after_a_cut_holds_whole_changes(tmp_path):
    """Cuts at sampled steps of a life with changes, drops, groups, rotation, checkpoints, close and reopen."""
    notes = Notes()
    cuts = record(tmp_path / "disk", notes)
    assert min(notes.acked) == 25
    sample = [*random.Random(5).sample(cuts, 40), *cuts[:3], cuts[-1]]
    assert examine(sample, 4, tmp_path / "states", seed=0) > 80


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_cut_at_every_step(tmp_path):
    """The same for every step, with many more states."""
    cuts = record(tmp_path / "disk", Notes())
    print(f"{len(cuts)} cuts, {examine(cuts, 20, tmp_path / 'states', seed=0)} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path, monkeypatch):
    """The planted bug: with synchronous=OFF some state has lost an acknowledged change."""
    from holdfast.journal.sqlite import sqlite_backend

    original = sqlite_backend.open_writer

    def weakened(path):
        connection = original(path)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    monkeypatch.setattr(sqlite_backend, "open_writer", weakened)
    cuts = record(tmp_path / "disk", Notes())
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="lost:"):
        examine(random.Random(5).sample(cuts, 60), 4, tmp_path / "states", seed=0)


def test_this_test_would_notice_a_torn_change(tmp_path, monkeypatch):
    """The planted bug: with items in a commit of their own some state has the one without the other."""
    from holdfast.journal.commit.space_changes import SpaceChanges

    store = SpaceChanges._store_items

    def torn(self, pending):
        store(self, pending)
        self._backend.commit()
        self._backend.begin()

    monkeypatch.setattr(SpaceChanges, "_store_items", torn)
    cuts = record(tmp_path / "disk", Notes())
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="cut before step"):
        examine(random.Random(5).sample(cuts, 60), 2, tmp_path / "states", seed=0)


# -- faults -----------------------------------------------------------------------------------------------


def fail_steps(tmp_path: Path, kind: Kind, *, sticky: bool, stride: int) -> int:
    """Change spaces again and again, with step 1, 1 + stride … failing; returns the last step that failed."""
    template, past = tmp_path / "template", Notes()
    template.mkdir()
    live(template / "log", past, opens=1)
    for nth in count(1, stride):
        root, notes = shutil.copytree(template, tmp_path / f"{nth}"), Notes()
        notes.acked, notes.begun, notes.keyring = list(past.acked), list(past.acked), past.keyring
        with FaultyDisk(root, fail=Fault(nth, kind, sticky=sticky)) as disk:
            try:
                with open_log(root / "log", notes.keyring) as log:
                    work(log, notes, number=1)
            except HoldfastError as error:
                assert error.hint, f"an error without a hint: {error!r}"
            disk.disarm()
            poorest = next(iter(disk.snapshot().states(limit=1)))
            copy = poorest.materialise(root.with_name(root.name + "-cut"))
        for left in (copy, root):
            check(left / "log", notes.acked, notes.keyring)
            shutil.rmtree(left)
        if not disk.fired:
            return nth
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_changing_may_fail(tmp_path, kind):
    """A fault at any (here: every ninth) step tears no change and makes no acknowledgement untrue."""
    assert fail_steps(tmp_path, kind, sticky=False, stride=9) > 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_changing_may_fail(tmp_path, kind, sticky):
    """Every step, failing once or for good."""
    assert fail_steps(tmp_path, kind, sticky=sticky, stride=1) > 10
