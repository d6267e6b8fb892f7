"""Transactions under kill, power cut and failing disks: three topics and two spaces, together or not at all."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from holdfast import Keyring
from holdfast.testing import FaultyDisk
from holdfast.testing.fault import Kind
from tests.crash.transaction_workload import ACTORS, Notes, check, live, open_log, take_turn, work
from tests.harness.cuts import Cut, examine, record, without_syncs
from tests.harness.faults import KINDS, attempt, fail_at
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

Promise = tuple[list[int], Keyring]


# -- kill -------------------------------------------------------------------------------------------------


def acked_before_a_kill(directory: Path, printed: int) -> list[int]:
    """The last turns that a victim was acknowledged for."""
    acked = [-1] * ACTORS
    for line in kill_after(printed, "tests.crash.transaction_victim", directory):
        actor, turn = map(int, line.split())
        acked[actor] = turn
    return acked


def run_cycles(directory: Path, cycles: int, seed: int, longest: int) -> int:
    rng, total = random.Random(seed), 0
    for _ in range(cycles):
        acked = acked_before_a_kill(directory, int(rng.random() ** 2 * longest))
        total = sum(check(directory, acked, Notes().keyring))
    return total


@pytest.mark.core
def test_kills_tear_no_transaction(tmp_path, seed, is_sampled):
    """Each actor's topics and spaces are of one turn, and not before what was acknowledged."""
    assert run_cycles(tmp_path / "log", 3 if is_sampled else 10, seed, longest=200) > (10 if is_sampled else 50)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_three_hundred_kills_tear_no_transaction(tmp_path):
    """The same, for longer."""
    for part in range(6):
        assert run_cycles(tmp_path / f"log{part}", 50, seed=part, longest=500) > 1000


# -- power cuts -------------------------------------------------------------------------------------------


def life(root: Path, notes: Notes, opens: int = 2) -> list[Cut[Promise]]:
    """Turns, groups of them, rotation, checkpoints, close and reopen."""
    return record(root, lambda disk: live(root / "log", notes, opens), lambda: (list(notes.acked), notes.keyring))


def look(copy: Path, promise: Promise) -> None:
    check(copy / "log", *promise)


def test_every_state_after_a_cut_holds_whole_transactions(tmp_path, some, is_sampled):
    """Cuts at sampled steps of such a life."""
    notes = Notes()
    cuts = life(tmp_path / "disk", notes)
    assert min(notes.acked) == 21
    sample = [*cuts[:2], *some(cuts[2:-1], 20, full=60), cuts[-1]]
    assert examine(sample, look, tmp_path / "states", 3) > (len(sample) if is_sampled else 80)


def test_the_power_may_go_at_every_step_of_a_commit(tmp_path, is_sampled):
    """Of two transactions, a plain one and one with keys and rows: every step, in several states each."""
    notes, within = Notes(), [False]

    def act(_: FaultyDisk) -> None:
        topics = open_log(tmp_path / "disk" / "log", notes.keyring)
        with topics.log:
            for turn in range(4):
                within[0] = turn > 1
                take_turn(topics, 0, turn)
                notes.acked[0] = turn
            within[0] = False

    cuts = record(tmp_path / "disk", act, lambda: (list(notes.acked), notes.keyring, within[0]))
    steps = [Cut(cut.power, cut.promise[:2], *cut[2:]) for cut in cuts if cut.promise[2]]
    assert {step.promise[0][0] for step in steps} == {1, 2}
    assert examine(steps, look, tmp_path / "states", 2 if is_sampled else 10) >= 2 * len(steps) > 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_cut_at_every_step(tmp_path):
    """The same for every step, with many more states."""
    cuts = life(tmp_path / "disk", Notes())
    print(f"{len(cuts)} cuts, {examine(cuts, look, tmp_path / 'states', 20)} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path):
    """The planted bug: with synchronous=OFF some state has lost an acknowledged transaction."""
    with without_syncs():
        cuts = life(tmp_path / "disk", Notes(), opens=1)
    with pytest.raises(AssertionError, match="lost:"):
        examine(reversed(cuts), look, tmp_path / "states", 4)


def test_this_test_would_notice_a_torn_transaction(tmp_path, monkeypatch):
    """The planted bug: with items in a commit of their own some state has them without the records."""
    from holdfast.journal.commit.space_changes import SpaceChanges

    store = SpaceChanges._store_items

    def torn(self, pending):
        store(self, pending)
        self._backend.commit()
        self._backend.begin()

    monkeypatch.setattr(SpaceChanges, "_store_items", torn)
    cuts = life(tmp_path / "disk", Notes(), opens=1)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="cut before step"):
        examine(reversed(cuts), look, tmp_path / "states", 1)


# -- faults -----------------------------------------------------------------------------------------------


def fail_steps(tmp_path: Path, kind: Kind, *, sticky: bool, stride: int) -> int:
    """Take turns again and again, with step 1, 1 + stride … failing; returns how many did."""
    template, past = tmp_path / "template", Notes()
    template.mkdir()
    live(template / "log", past, opens=1)

    def again(root: Path, disk: FaultyDisk) -> Notes:
        notes = Notes()
        notes.acked, notes.begun, notes.keyring = list(past.acked), list(past.acked), past.keyring
        attempt(lambda: go_on(root / "log", notes))
        return notes

    looked = 0
    for failed in fail_at(tmp_path, kind, count(1, stride), again, template=template, sticky=sticky):
        looked += 1
        for left in (failed.poorest(), failed.root):
            check(left / "log", failed.outcome.acked, failed.outcome.keyring)
    return looked


def go_on(directory: Path, notes: Notes) -> None:
    topics = open_log(directory, notes.keyring)
    with topics.log:
        work(topics, notes, number=1)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_transaction_may_fail(tmp_path, kind, is_sampled):
    """A fault at any (here: every so many) step tears nothing and makes no acknowledgement untrue."""
    often = 5 if kind == "fsync" else 30
    assert fail_steps(tmp_path, kind, sticky=False, stride=(3 if is_sampled else 1) * often) > 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_transaction_may_fail(tmp_path, kind, sticky):
    """Every step, failing once or for good."""
    assert fail_steps(tmp_path, kind, sticky=sticky, stride=1) > 10
