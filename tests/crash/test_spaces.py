"""Spaces under kill, power cut and failing disks: items and records of one unit are there together or not at all."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from holdfast import Keyring
from holdfast.testing import FaultyDisk
from holdfast.testing.fault import Kind
from tests.crash.spaces_workload import SPACES, Notes, check, live, open_log, work
from tests.harness.cuts import Cut, examine, record, without_syncs
from tests.harness.faults import KINDS, attempt, fail_at
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

Promise = tuple[list[int], Keyring]


# -- kill -------------------------------------------------------------------------------------------------


def acked_before_a_kill(directory: Path, printed: int) -> list[int]:
    """The last turns that a victim was acknowledged for."""
    acked = [-1] * SPACES
    for line in kill_after(printed, "tests.crash.spaces_victim", directory):
        space, turn = map(int, line.split())
        acked[space] = turn
    return acked


def run_cycles(directory: Path, cycles: int, seed: int, longest: int) -> int:
    rng, total = random.Random(seed), 0
    for _ in range(cycles):
        acked = acked_before_a_kill(directory, int(rng.random() ** 2 * longest))
        total = sum(check(directory, acked, Notes().keyring))
    return total


def test_ten_kills_tear_nothing(tmp_path, seed, is_sampled):
    """Each space is exactly where its own records say, and not before what was acknowledged."""
    assert run_cycles(tmp_path / "log", 4 if is_sampled else 10, seed, longest=300) > (20 if is_sampled else 100)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_three_hundred_kills_tear_nothing(tmp_path):
    """The same, for longer."""
    for part in range(6):
        assert run_cycles(tmp_path / f"log{part}", 50, seed=part, longest=500) > 1000


# -- power cuts -------------------------------------------------------------------------------------------


def life(root: Path, notes: Notes) -> list[Cut[Promise]]:
    """Changes, drops, groups, rotation, checkpoints, close and reopen."""
    return record(root, lambda disk: live(root / "log", notes), lambda: (list(notes.acked), notes.keyring))


def look(copy: Path, promise: Promise) -> None:
    check(copy / "log", *promise)


def test_every_state_after_a_cut_holds_whole_changes(tmp_path, some, is_sampled):
    """Cuts at sampled steps of such a life."""
    notes = Notes()
    cuts = life(tmp_path / "disk", notes)
    assert min(notes.acked) == 25
    sample = [*cuts[:3], *some(cuts[3:-1], 15, full=40), cuts[-1]]
    assert examine(sample, look, tmp_path / "states", 4) > (len(sample) if is_sampled else 80)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_cut_at_every_step(tmp_path):
    """The same for every step, with many more states."""
    cuts = life(tmp_path / "disk", Notes())
    print(f"{len(cuts)} cuts, {examine(cuts, look, tmp_path / 'states', 20)} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path):
    """The planted bug: with synchronous=OFF some state has lost an acknowledged change."""
    with without_syncs():
        cuts = life(tmp_path / "disk", Notes())
    with pytest.raises(AssertionError, match="lost:"):
        examine(reversed(cuts), look, tmp_path / "states", 4)


def test_this_test_would_notice_a_torn_change(tmp_path, monkeypatch):
    """The planted bug: with items in a commit of their own some state has the one without the other."""
    from holdfast.journal.commit.space_changes import SpaceChanges

    store = SpaceChanges._store_items

    def torn(self, pending):
        store(self, pending)
        self._backend.commit()
        self._backend.begin()

    monkeypatch.setattr(SpaceChanges, "_store_items", torn)
    cuts = life(tmp_path / "disk", Notes())
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="cut before step"):
        examine(reversed(cuts), look, tmp_path / "states", 2)


# -- faults -----------------------------------------------------------------------------------------------


def fail_steps(tmp_path: Path, kind: Kind, *, sticky: bool, stride: int) -> int:
    """Change spaces again and again, with step 1, 1 + stride … failing; returns how many did."""
    template, past = tmp_path / "template", Notes()
    template.mkdir()
    live(template / "log", past, opens=1)

    def again(root: Path, disk: FaultyDisk) -> Notes:
        notes = Notes()
        notes.acked, notes.begun, notes.keyring = list(past.acked), list(past.acked), past.keyring
        attempt(lambda: change(root / "log", notes))
        return notes

    looked = 0
    for failed in fail_at(tmp_path, kind, count(1, stride), again, template=template, sticky=sticky):
        looked += 1
        for left in (failed.poorest(), failed.root):
            check(left / "log", failed.outcome.acked, failed.outcome.keyring)
    return looked


def change(directory: Path, notes: Notes) -> None:
    with open_log(directory, notes.keyring) as log:
        work(log, notes, number=1)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_changing_may_fail(tmp_path, kind, is_sampled):
    """A fault at any (here: every ninth) step tears no change and makes no acknowledgement untrue."""
    assert fail_steps(tmp_path, kind, sticky=False, stride=25 if is_sampled else 9) > 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_changing_may_fail(tmp_path, kind, sticky):
    """Every step, failing once or for good."""
    assert fail_steps(tmp_path, kind, sticky=sticky, stride=1) > 10
