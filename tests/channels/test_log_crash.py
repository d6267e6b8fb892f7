"""Kill, power cut and failing disks in the middle of a conversation: a channel is exactly before or after an operation.

What is compared is everything: the snapshot, the history in its order, and the records of what happened in the topic.
"""

from __future__ import annotations

import logging
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

from holdfast import HoldfastError
from holdfast.channels.keeping.log_backend import LogPersistence
from holdfast.testing import Fault, FaultyDisk, ManualClock, PowerCut
from holdfast.testing.fault import Kind
from tests.channels.conversation import ROOM, SCRIPT, on_disk, open_log, states, take

pytestmark = pytest.mark.crash

KINDS: list[Kind] = ["eio", "enospc", "short_write", "fsync"]

Cut = tuple[PowerCut, int, str]

STATES = states()


@pytest.fixture(autouse=True)
def quiet():
    """Disks that fail are logged, as they should be: here they are many."""
    logger = logging.getLogger("holdfast")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


def test_every_operation_of_the_script_leaves_a_state_of_its_own():
    """Else nobody could tell before from after."""
    assert all(STATES.count(state) == 1 for state in STATES)


def check(directory: Path, kept: int) -> int:
    """Open what is left; returns after which operation it is, which is not before the one that was known to be kept."""
    clock = ManualClock()
    clock.advance(10_000)
    with open_log(directory, clock) as log:
        found = on_disk(log)
        assert found in STATES, f"torn: {summary(found)}"
        number = STATES.index(found)
        assert number >= kept, f"lost: it is after {number}, kept was {kept}"
        assert number <= kept + 1, f"ahead: it is after {number}, kept was {kept}"
        with log.channels("alice") as alice:  # and it goes on from there
            alice.ensure_channel(ROOM)
            assert alice.channel(ROOM).history() == [one.message_id for one in found[0].history]
            alice.wrap_outgoing_message(b"on we go", ROOM, "later")
            assert alice.channel(ROOM).persistence.ok
        after = on_disk(log)
        assert after[0].history[-1].message_id == "later"
        assert len(after[1]) == len(found[1]) + 1
    return number


def summary(state) -> str:
    data, records = state
    ids = [one.message_id for one in data.history]
    return f"history={ids} outgoing={len(data.meta.outgoing)} lamport={data.meta.lamport} records={len(records)}"


# -- power cuts -----------------------------------------------------------------------------------------------


def record(root: Path) -> list[Cut]:
    """Lead the conversation and take a snapshot before every step of the disk."""
    cuts: list[Cut] = []
    kept = 0
    with FaultyDisk(root) as disk:
        clock = ManualClock()
        with open_log(root / "log", clock) as log:
            alice = log.channels("alice")
            disk.on_step = lambda index, op, name: cuts.append((disk.snapshot(), kept, f"{index} {op} {name}"))
            for _, operation in SCRIPT:
                take(alice, clock, operation)
                kept += 1
        cuts.append((disk.snapshot(), kept, "the end"))
    return cuts


def examine(cuts: list[Cut], states_each: int, scratch: Path, seed: int = 0) -> int:
    looked = 0
    for number, (cut, kept, where) in enumerate(cuts):
        for state in cut.states(limit=states_each, seed=seed + number):
            copy = state.materialise(scratch / f"{number}-{looked}")
            try:
                check(copy / "log", kept)
            except Exception as error:
                what = SCRIPT[min(kept, len(SCRIPT) - 1)][0]
                raise AssertionError(f"{what}: cut before {where}, {state.describe()}: {error}") from error
            shutil.rmtree(copy)
            looked += 1
    return looked


def sampled(cuts: list[Cut], each: int) -> list[Cut]:
    """Some cuts of every operation."""
    rng = random.Random(7)
    chosen: list[Cut] = []
    for kept in range(len(SCRIPT) + 1):
        among = [cut for cut in cuts if cut[1] == kept]
        chosen += rng.sample(among, min(each, len(among)))
    return chosen


def test_a_power_cut_leaves_every_operation_done_or_not_done(tmp_path):
    """Cuts at sampled steps of every operation."""
    cuts = record(tmp_path / "disk")
    assert {kept for _, kept, _ in cuts} == set(range(len(SCRIPT) + 1))
    assert examine(sampled(cuts, 2), 2, tmp_path / "states") > 60


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_power_cut_at_every_step(tmp_path):
    """The same for all of them, with many more states."""
    cuts = record(tmp_path / "disk")
    print(f"{len(cuts)} cuts, {examine(cuts, 20, tmp_path / 'states')} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path, monkeypatch):
    """The planted bug: with synchronous=OFF some state has lost what was kept."""
    from holdfast.journal.sqlite import sqlite_backend

    original = sqlite_backend.open_writer

    def weakened(path):
        connection = original(path)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    monkeypatch.setattr(sqlite_backend, "open_writer", weakened)
    cuts = record(tmp_path / "disk")
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="lost:"):
        examine(sampled(cuts, 2), 2, tmp_path / "states")


def test_this_test_would_notice_two_commits_instead_of_one(tmp_path, monkeypatch):
    """The planted bug: history first and then the snapshot, as two commits."""
    commit = LogPersistence.commit

    def torn(self, channel_id, meta, update, *, reissue=False):
        if update.append or update.evict:
            before = self.load_channel(channel_id).meta
            commit(self, channel_id, before, update, reissue=reissue).result()
            update = type(update)(notes=())
        return commit(self, channel_id, meta, update, reissue=reissue)

    monkeypatch.setattr(LogPersistence, "commit", torn)
    cuts = record(tmp_path / "disk")
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="torn:"):
        examine(sampled(cuts, 2), 2, tmp_path / "states")


# -- kill -----------------------------------------------------------------------------------------------------


def kill_after(directory: Path, seconds: float) -> int:
    """Run the victim, kill it after so long, and return how many operations it knew to be kept."""
    command = [sys.executable, "-m", "tests.channels.log_victim", str(directory)]
    victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert victim.stdin is not None
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"ready\n"
    timer = threading.Timer(seconds, os.kill, (victim.pid, signal.SIGKILL))
    timer.start()
    lines = victim.stdout.read().split(b"\n")
    timer.join()
    assert victim.wait() == -signal.SIGKILL
    victim.stdin.close()
    victim.stdout.close()
    whole = [int(line) for line in lines[:-1]]
    return whole[-1] if whole else 0


def run_kills(directory: Path, kills: int, seed: int) -> set[int]:
    rng = random.Random(seed)
    found = set()
    for number in range(kills):
        kept = kill_after(directory / str(number), rng.random() ** 2 * 0.06)
        found.add(check(directory / str(number), kept))
    return found


def test_a_kill_leaves_every_operation_done_or_not_done(tmp_path):
    """Four processes, killed at some moment."""
    assert run_kills(tmp_path, 4, seed=3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_kills(tmp_path):
    """The same, for longer: most operations are hit."""
    found = run_kills(tmp_path, 200, seed=4)
    print(f"200 kills, after {len(found)} different operations")
    assert len(found) > 10


# -- faults ---------------------------------------------------------------------------------------------------


def fail_steps(tmp_path: Path, kind: Kind, *, sticky: bool, stride: int) -> int:
    """Lead the conversation again and again, with step 1, 1 + stride … failing; returns the last step that failed."""
    for nth in count(1, stride):
        root = tmp_path / f"{kind}-{nth}"
        root.mkdir()
        kept = done = 0
        with FaultyDisk(root) as disk:
            clock = ManualClock()
            log = open_log(root / "log", clock)
            alice = log.channels("alice")
            alice.ensure_channel(ROOM)
            disk.arm(Fault(nth, kind, sticky=sticky))
            for name, operation in SCRIPT:
                loaded = alice.channels()
                try:
                    take(alice, clock, operation)
                except HoldfastError as error:  # dropping and loading may fail
                    assert name == "remove" or not loaded, f"{name} must succeed in memory: {error}"
                    assert error.hint
                    break
                done += 1
                if ROOM not in alice.channels() or alice.channel(ROOM).persistence.ok:
                    kept = done
            disk.disarm()
            try:
                log.close()
            except HoldfastError as error:
                assert error.hint
            poorest = next(iter(disk.snapshot().states(limit=1)))
            copy = poorest.materialise(root.with_name(root.name + "-cut"))
        for left in (copy, root):
            with open_log(left / "log", ManualClock()) as log:
                data, _ = on_disk(log)
            found = [number for number, state in enumerate(STATES) if state[0] == data]
            assert found, f"torn: {kind} at step {nth}"
            assert found[-1] >= kept, f"lost: {kind} at step {nth}, it is after {found}, kept was {kept}"
            shutil.rmtree(left)
        if not disk.fired:
            return nth
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_conversation_may_fail(tmp_path, kind):
    """A fault at any (here: every seventeenth) step tears nothing, and what was known to be kept is."""
    assert fail_steps(tmp_path, kind, sticky=False, stride=17) > 30


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_conversation_may_fail(tmp_path, kind, sticky):
    """Every step, failing once or for good."""
    print(f"{kind}: {fail_steps(tmp_path, kind, sticky=sticky, stride=1)} steps")
