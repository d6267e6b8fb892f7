"""kill -9 while everything happens at once: each acknowledged record is readable once, or expired as it may be."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Settings
from tests.crash.segment_victim import KEPT, KEYRING, RAW, SCHEMA, TYPED
from tests.crash.segment_workload import Part, Place, Published, published, require_clean
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

CALM = Settings.from_mapping({"segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}})
"""To look with: nothing is sealed or expired meanwhile but what was begun."""


def acked_before_a_kill(directory: Path, cycle: int, count: int) -> dict[Place, str]:
    """What a victim was acknowledged for."""
    return acked_in(kill_after(count, "tests.crash.segment_victim", directory, cycle))


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


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_hundred_kills(tmp_path):
    """Five hundred kills, in logs that are started anew now and then."""
    acked = sealed = expired = 0
    for part in range(20):
        history = kill_again_and_again(tmp_path / f"log{part}", 25, seed=part)
        acked, sealed, expired = acked + history.acked, sealed + history.sealed, expired + history.expired
    print(f"500 kills, {acked} acknowledged, {sealed} sealed, {expired} expired, none lost")
