"""kill -9, again and again: what was acknowledged is there once, in order, where its receipt said."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

import holdfast
from tests.crash.victim import KEYRING, SETTINGS
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash


def acked_before_a_kill(directory: Path, cycle: int, count: int) -> dict[tuple[int, int], bytes]:
    """What a victim was acknowledged for."""
    acked: dict[tuple[int, int], bytes] = {}
    for line in kill_after(count, "tests.crash.victim", directory, cycle):
        partition, offset, name = line.split(" ")
        place = int(partition), int(offset)
        assert place not in acked, "an offset was acknowledged twice"
        acked[place] = name.encode()
    return acked


class History:
    """All that was ever seen durable; it may only grow."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], bytes] = {}
        self.nonces: set[tuple[bytes, bytes]] = set()
        self.entries = 0
        self.acked = 0

    def check(self, directory: Path, acked: dict[tuple[int, int], bytes]) -> None:
        with holdfast.open(directory, keyring=KEYRING, settings=SETTINGS) as log:
            found = {(r.partition, r.offset): r.payload for r in log.topic("t").read()}
            marks = log.marks("t")
        for number, mark in enumerate(marks):
            offsets = sorted(offset for partition, offset in found if partition == number)
            assert offsets == list(range(mark.durable)), "offsets are not dense"
        names = list(found.values())
        assert len(names) == len(set(names)), "a record is there twice"
        for place, name in {**self.records, **acked}.items():
            assert found.get(place) == name, f"lost or changed at {place}: {name!r}"
        self._check_whole(found)
        self._check_order(found)
        self._check_nonces(directory)
        self.records = found
        self.acked += len(acked)

    @staticmethod
    def _check_whole(found: dict[tuple[int, int], bytes]) -> None:
        """A batch that was not acknowledged is there as a whole or not at all."""
        batches: dict[bytes, set[int]] = {}
        for name in found.values():
            if b"-batch-" in name:
                batch, _, member = name.rpartition(b".")
                batches.setdefault(batch, set()).add(int(member))
        for batch, members in batches.items():
            size = int(batch.rpartition(b"-")[2]) % 50 + 1
            assert members == set(range(size)), f"half a batch: {batch!r}"

    @staticmethod
    def _check_order(found: dict[tuple[int, int], bytes]) -> None:
        """Each writer's records are in the order in which it wrote them, per partition."""
        last: dict[tuple[int, bytes], int] = {}
        for (partition, _), name in sorted(found.items()):
            writer, _, number = name.partition(b".")[0].rpartition(b"-")
            assert last.get((partition, writer), -1) <= int(number), f"out of order: {name!r}"
            last[partition, writer] = int(number)

    def _check_nonces(self, directory: Path) -> None:
        """No key and nonce were used twice: salts are fresh for every epoch, and those of bodies never repeat."""
        db = apsw.Connection(str(directory / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
        salts = dict(db.execute("SELECT number, salt FROM key_epochs"))
        assert len(set(salts.values())) == len(salts)
        rows = db.execute("SELECT seq, key_epoch, substr(body, 1, 24) FROM entries WHERE seq > ?", (self.entries,))
        for seq, epoch, salt in rows:
            pair = salts[epoch], salt
            assert pair not in self.nonces, "a nonce was used twice"
            self.nonces.add(pair)
            self.entries = seq
        db.close()


def run_cycles(directory: Path, cycles: int, seed: int, longest: int) -> History:
    rng, history = random.Random(seed), History()
    for cycle in range(cycles):
        history.check(directory, acked_before_a_kill(directory, cycle, int(rng.random() ** 2 * longest)))
    return history


@pytest.mark.core
def test_what_was_acknowledged_survives_forty_kills(tmp_path, seed, is_sampled):
    """At random moments: every acknowledged record is there once, in order, encrypted, in its place."""
    kills = 10 if is_sampled else 40
    history = run_cycles(tmp_path / "log", kills, seed, longest=300)
    assert history.acked > 25 * kills
    print(f"{kills} kills, {history.acked} acknowledged, {len(history.records)} durable")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_kills(tmp_path):
    """A thousand kills, in logs that are started anew now and then so that checking stays quick."""
    acked = durable = 0
    for part in range(20):
        history = run_cycles(tmp_path / f"log{part}", 50, seed=part, longest=800)
        acked, durable = acked + history.acked, durable + len(history.records)
    print(f"1000 kills, {acked} acknowledged, {durable} durable, none lost")
