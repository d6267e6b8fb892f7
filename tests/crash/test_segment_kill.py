"""kill -9 while everything happens at once: each acknowledged record is readable once, or expired as it may be."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Settings
from tests.crash.segment_victim import KEPT, KEYRING, RAW, SCHEMA, TYPED
from tests.crash.segment_workload import Part, Place, Published, published, require_clean

pytestmark = pytest.mark.crash

CALM = Settings.from_mapping({"segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}})
"""To look with: nothing is sealed or expired meanwhile but what was begun."""


def kill_after(directory: Path, cycle: int, seconds: float) -> dict[Place, str]:
    """Run the victim, kill it after so long, and return what it was acknowledged for."""
    command = [sys.executable, "-m", "tests.crash.segment_victim", str(directory), str(cycle)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"ready\n"
    timer = threading.Timer(seconds, os.kill, (victim.pid, signal.SIGKILL))
    timer.start()
    lines = victim.stdout.read().decode().split("\n")
    timer.join()
    assert victim.wait() == -signal.SIGKILL
    victim.stdout.close()
    acked: dict[Place, str] = {}
    for line in lines[:-1]:  # the last one may be cut
        assert not line.startswith("failed "), line
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


def kill_again_and_again(directory: Path, history: History, kills: int, seed: int, seconds: float) -> int:
    """Kill so many times, or for so long but three times at least; returns how many times that was."""
    rng, deadline = random.Random(seed), time.monotonic() + seconds
    for cycle in range(kills):
        history.check(directory, kill_after(directory, cycle, 0.05 + rng.random() * 0.5))
        if cycle >= 2 and time.monotonic() > deadline:
            return cycle + 1
    return kills


def test_kills_at_random_moments(tmp_path):
    """Killed while it appends, seals, trims, expires and reconciles, for a quarter of a minute."""
    history = History()
    kills = kill_again_and_again(tmp_path / "log", history, 40, seed=int(time.time()), seconds=13)
    print(f"{kills} kills, {history.acked} acknowledged, {history.sealed} sealed, {history.expired} expired")
    assert kills > 2
    assert history.acked > 100
    assert history.sealed > 100
    assert history.expired > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_hundred_kills(tmp_path):
    """Five hundred kills, in logs that are started anew now and then."""
    acked = sealed = expired = 0
    for part in range(20):
        history = History()
        assert kill_again_and_again(tmp_path / f"log{part}", history, 25, seed=part, seconds=3600) == 25
        acked, sealed, expired = acked + history.acked, sealed + history.sealed, expired + history.expired
    print(f"500 kills, {acked} acknowledged, {sealed} sealed, {expired} expired, none lost")
