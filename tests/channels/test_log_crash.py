"""Kill, power cut and failing disks in the middle of a conversation: a channel is exactly before or after an operation.

What is compared is everything: the snapshot, the history in its order, and the records of what happened in the topic.
"""

from __future__ import annotations

import logging
import random
from itertools import count
from pathlib import Path

import pytest

from holdfast import Log
from holdfast.channels import Channels
from holdfast.channels.keeping.log_backend import LogPersistence
from holdfast.testing import FaultyDisk, ManualClock
from holdfast.testing.fault import Kind
from tests.channels.conversation import ROOM, SCRIPT, on_disk, open_log, states, take
from tests.harness.cuts import Cut, examine, record, without_syncs
from tests.harness.faults import KINDS, attempt, fail_at
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

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


def conversation(root: Path) -> list[Cut[int]]:
    """Lead the conversation; promised is how many of its operations are kept."""
    kept = 0

    def lead(disk: FaultyDisk) -> None:
        nonlocal kept
        clock = ManualClock()
        with open_log(root / "log", clock) as log:
            alice = log.channels("alice")
            for _, operation in SCRIPT:
                take(alice, clock, operation)
                kept += 1

    return record(root, lead, lambda: kept)


def look(copy: Path, kept: int) -> None:
    check(copy / "log", kept)


def sampled(cuts: list[Cut[int]], each: int) -> list[Cut[int]]:
    """Some cuts of every operation."""
    rng = random.Random(7)
    chosen: list[Cut[int]] = []
    for kept in range(len(SCRIPT) + 1):
        among = [cut for cut in cuts if cut.promise == kept]
        chosen += rng.sample(among, min(each, len(among)))
    return chosen


def test_a_power_cut_leaves_every_operation_done_or_not_done(tmp_path, some, is_sampled):
    """Cuts at sampled steps of every operation."""
    cuts = conversation(tmp_path / "disk")
    assert {cut.promise for cut in cuts} == set(range(len(SCRIPT) + 1))
    chosen = some(sampled(cuts, 2), 30)
    assert examine(chosen, look, tmp_path / "states", 2) > (len(chosen) if is_sampled else 60)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_power_cut_at_every_step(tmp_path):
    """The same for all of them, with many more states."""
    cuts = conversation(tmp_path / "disk")
    print(f"{len(cuts)} cuts, {examine(cuts, look, tmp_path / 'states', 20)} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path):
    """The planted bug: with synchronous=OFF some state has lost what was kept."""
    with without_syncs():
        cuts = conversation(tmp_path / "disk")
    with pytest.raises(AssertionError, match="lost:"):
        examine(sampled(cuts, 2), look, tmp_path / "states", 2)


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
    cuts = conversation(tmp_path / "disk")
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="torn:"):
        examine(sampled(cuts, 2), look, tmp_path / "states", 2)


# -- kill -----------------------------------------------------------------------------------------------------


def run_kills(directory: Path, kills: int, seed: int) -> set[int]:
    """Kill so many conversations, each after some operations; returns after which ones they are found."""
    rng, found = random.Random(seed), set()
    for number in range(kills):
        lines = kill_after(int(rng.random() ** 2 * len(SCRIPT)), "tests.channels.log_victim", directory / str(number))
        found.add(check(directory / str(number), int(lines[-1]) if lines else 0))
    return found


def test_a_kill_leaves_every_operation_done_or_not_done(tmp_path, seed):
    """Four processes, killed at some moment."""
    assert run_kills(tmp_path, 4, seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_kills(tmp_path):
    """The same, for longer: most operations are hit."""
    found = run_kills(tmp_path, 200, seed=4)
    print(f"200 kills, after {len(found)} different operations")
    assert len(found) > 10


# -- faults ---------------------------------------------------------------------------------------------------


def converse(root: Path, disk: FaultyDisk) -> int:
    """Lead the conversation as far as the disk lets us; returns how many operations were known to be kept."""
    clock, opened, kept = ManualClock(), list[Log](), 0
    if attempt(lambda: opened.append(open_log(root / "log", clock))) is not None:
        return kept
    alice = opened[0].channels("alice")
    if attempt(lambda: alice.ensure_channel(ROOM)) is None:
        kept = say(alice, clock)
    disk.disarm()
    attempt(opened[0].close)
    return kept


def say(alice: Channels, clock: ManualClock) -> int:
    """All operations, until one fails."""
    kept = 0
    for done, (name, operation) in enumerate(SCRIPT, 1):
        loaded = alice.channels()
        error = attempt(lambda operation=operation: take(alice, clock, operation))
        if error is not None:  # dropping and loading may fail
            assert name == "remove" or not loaded, f"{name} must succeed in memory: {error}"
            break
        if ROOM not in alice.channels() or alice.channel(ROOM).persistence.ok:
            kept = done
    return kept


def fail_steps(tmp_path: Path, kind: Kind, *, sticky: bool, stride: int) -> int:
    """Lead the conversation again and again, with step 1, 1 + stride … failing; returns how many did."""
    template = tmp_path / "template"
    with open_log(template / "log", ManualClock()) as log:
        log.channels("alice").ensure_channel(ROOM)
    looked = 0
    for failed in fail_at(tmp_path, kind, count(1, stride), converse, template=template, sticky=sticky):
        looked += 1
        for left in (failed.poorest(), failed.root):
            with open_log(left / "log", ManualClock()) as log:
                data, _ = on_disk(log)
            found = [number for number, state in enumerate(STATES) if state[0] == data]
            assert found, f"torn: {kind} at step {failed.nth}"
            assert found[-1] >= failed.outcome, f"lost: {kind} at step {failed.nth}, {found} < {failed.outcome}"
    return looked


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_conversation_may_fail(tmp_path, kind, is_sampled):
    """A fault at any (here: every seventeenth) step tears nothing, and what was known to be kept is."""
    assert fail_steps(tmp_path, kind, sticky=False, stride=37 if is_sampled else 17) > 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_a_conversation_may_fail(tmp_path, kind, sticky):
    """Every step, failing once or for good."""
    print(f"{kind}: {fail_steps(tmp_path, kind, sticky=sticky, stride=1)} steps")
