"""kill -9 while everything happens at once: each acknowledged record is readable once, or expired as it may be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Settings
from tests.crash.seal_process_victim import CHILD_KILLED
from tests.crash.segment_victim import KEPT, KEYRING, RAW, SCHEMA, TYPED
from tests.crash.segment_workload import Part, Place, Published, published, require_clean
from tests.harness.kills import Victim, kill_after

pytestmark = pytest.mark.crash

CALM = Settings.from_mapping({"segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}})
"""To look with: nothing is sealed or expired meanwhile but what was begun."""


def acked_before_a_kill(directory: Path, cycle: int, told: int) -> dict[Place, str]:
    """What a victim was acknowledged for."""
    return acked_in(kill_after(told, "tests.crash.segment_victim", directory, cycle))


def acked_in(lines: list[str]) -> dict[Place, str]:
    acked: dict[Place, str] = {}
    for line in lines:
        topic, partition, offset, name = line.split(" ")
        place = topic, int(partition), int(offset)
        assert place not in acked, "an offset was acknowledged twice"
        acked[place] = name
    return acked


class History:
    """All that was seen or acknowledged and is not expired; and the marks, which only grow."""

    def __init__(self) -> None:
        self.records: dict[Place, str] = {}
        self.marks: dict[Part, Published] = {}
        self.acked = self.sealed = self.expired = 0

    def check(self, directory: Path, acked: dict[Place, str]) -> None:
        with holdfast.open(directory, keyring=KEYRING, settings=CALM) as log:
            require_clean(log)
            self._check_records(log, {**self.records, **acked})
            require_clean(log)
        assert not (directory / "quarantine").exists(), "something was quarantined"
        self.acked += len(acked)

    def _check_records(self, log: Log, expected: dict[Place, str]) -> None:
        marks, found = published(log), read_all(log)
        for part, mark in marks.items():
            before = self.marks.get(part, Published(0, 0, 0))
            assert all(new >= old for new, old in zip(mark, before, strict=True)), f"went back: {part} {before} {mark}"
            assert mark.first == 0 or mark.sealed - mark.first >= KEPT, f"more expired than may: {part} {mark}"
            offsets = sorted(offset for topic, partition, offset in found if (topic, partition) == part)
            durable = log.marks(part[0])[part[1]].durable
            assert offsets == list(range(mark.first, durable)), f"not dense: {part} {mark} {durable}"
        for place, name in expected.items():
            if place[2] >= marks[place[0], place[1]].first:
                assert found.get(place) == name, f"lost or changed at {place}: {name}"
        assert len(set(found.values())) == len(found), "a record is there twice"
        self.records, self.marks = found, marks
        self.sealed = sum(mark.sealed for mark in marks.values())
        self.expired = sum(mark.first for mark in marks.values())


def read_all(log: Log) -> dict[Place, str]:
    """Every record by its place."""
    found: dict[Place, str] = {}
    for record in log.topic(RAW).read():
        found[RAW, record.partition, record.offset] = record.payload.decode()
    for row in log.topic(TYPED, schema=SCHEMA).read():
        found[TYPED, row["_partition"], row["_offset"]] = row["name"]
    return found


def kill_again_and_again(directory: Path, kills: int, seed: int) -> History:
    """Kill so many times."""
    rng, history = random.Random(seed), History()
    for cycle in range(kills):
        history.check(directory, acked_before_a_kill(directory, cycle, rng.randrange(50, 500)))
    return history


def test_kills_at_random_moments(tmp_path, seed, is_sampled):
    """Killed while it appends, seals, trims, expires and reconciles."""
    history = kill_again_and_again(tmp_path / "log", 4 if is_sampled else 15, seed)
    print(f"{history.acked} acknowledged, {history.sealed} sealed, {history.expired} expired")
    assert history.acked > 100
    assert history.sealed > 100
    assert is_sampled or history.expired > 0


def kill_children(directory: Path, kills: int, seed: int) -> tuple[History, list[str]]:
    """Kill victims, which kill their sealing processes all the time."""
    rng, history, killed = random.Random(seed), History(), list[str]()
    for cycle in range(kills):
        victim = Victim("tests.crash.seal_process_victim", directory, cycle)
        try:
            victim.until_told(rng.randrange(1, 4), CHILD_KILLED)
            victim.until(rng.randrange(10, 300))
        finally:
            lines = victim.kill()
        killed += [line for line in lines if line.startswith(CHILD_KILLED)]
        history.check(directory, acked_in([line for line in lines if not line.startswith(CHILD_KILLED)]))
        assert not list(directory.rglob("*.tmp")), "a temporary file was left"
    for line in killed:
        assert not is_sealing(int(line.split()[1])), "a child outlived its parent"
    return history, killed


def is_sealing(pid: int) -> bool:
    try:
        return b"seal_child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_kills_of_the_sealing_process(tmp_path, seed, is_sampled):
    """It dies at random moments of its seals, and so does its parent."""
    history, killed = kill_children(tmp_path / "log", 3 if is_sampled else 8, seed)
    by_children = sum(int(line.split()[2]) > 0 for line in killed)
    print(f"{history.acked} acknowledged, {history.sealed} sealed, {len(killed)} children killed, {by_children} of use")
    assert history.sealed > 100
    assert killed


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_hundreds_of_kills_of_the_sealing_process(tmp_path):
    killed = 0
    for part in range(20):
        killed += len(kill_children(tmp_path / f"log{part}", 15, seed=part)[1])
    print(f"{killed} children killed, and 300 parents")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_hundred_kills(tmp_path):
    """Five hundred kills, in logs that are started anew now and then."""
    acked = sealed = expired = 0
    for part in range(20):
        history = kill_again_and_again(tmp_path / f"log{part}", 25, seed=part)
        acked, sealed, expired = acked + history.acked, sealed + history.sealed, expired + history.expired
    print(f"500 kills, {acked} acknowledged, {sealed} sealed, {expired} expired, none lost")
