"""Power cuts: whatever state the disk may legally be in afterwards, all that was acknowledged is there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from holdfast.testing import FaultyDisk, PowerCut
from tests.crash.workload import Notes, Place, check, live

pytestmark = pytest.mark.crash

Cut = tuple[PowerCut, dict[Place, bytes], str]


def record(root: Path, notes: Notes) -> list[Cut]:
    """Live a short life and take a snapshot before every step of the disk."""
    cuts: list[Cut] = []
    with FaultyDisk(root) as disk:
        disk.on_step = lambda index, op, name: cuts.append((disk.snapshot(), dict(notes.acked), f"{index} {op} {name}"))
        live(root / "log", notes)
        cuts.append((disk.snapshot(), dict(notes.acked), "the end"))
    return cuts


def examine(cuts: list[Cut], states_each: int, notes: Notes, scratch: Path, seed: int) -> int:
    looked = 0
    for number, (cut, acked, where) in enumerate(cuts):
        for state in cut.states(limit=states_each, seed=seed + number):
            copy = state.materialise(scratch / f"{number}-{looked}")
            try:
                check(copy / "log", acked, notes)
            except Exception as error:
                raise AssertionError(f"cut before step {where}, {state.describe()}: {error}") from error
            shutil.rmtree(copy)
            looked += 1
    return looked


def test_every_state_after_a_cut_holds_what_was_acknowledged(tmp_path):
    """Cuts at sampled steps of a life with appends, batches, rotation, checkpoints, close and reopen."""
    notes = Notes()
    cuts = record(tmp_path / "disk", notes)
    assert len(cuts) > 300
    assert cuts[-1][1]
    sample = [*random.Random(5).sample(cuts, 110), *cuts[:10], cuts[-1]]
    assert examine(sample, 6, notes, tmp_path / "states", seed=0) > 300


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_cut_at_every_step(tmp_path):
    """The same for every step, with many more states."""
    notes = Notes()
    cuts = record(tmp_path / "disk", notes)
    looked = examine(cuts, 40, notes, tmp_path / "states", seed=0)
    print(f"{len(cuts)} cuts, {looked} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path, monkeypatch):
    """The planted bug: with synchronous=OFF some state has lost an acknowledged record."""
    from holdfast.journal.sqlite import sqlite_backend

    original = sqlite_backend.open_writer

    def weakened(path):
        connection = original(path)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    monkeypatch.setattr(sqlite_backend, "open_writer", weakened)
    notes = Notes()
    cuts = record(tmp_path / "disk", notes)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="lost:"):
        examine(random.Random(5).sample(cuts, 60), 4, notes, tmp_path / "states", seed=0)
