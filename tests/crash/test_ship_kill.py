"""kill -9 of the application and of its S3 server, in turn: what was acknowledged as shipped is on the store.

The store always holds, of every partition, a gapless prefix of what the log holds; everything whose `shipped` had
returned is in it; and the log never believes that more is there than is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest

import holdfast
from holdfast import Keyring
from tests.crash.ship_victim import KEYRING, settings
from tests.store import shipped_logs
from tests.store.servers import S3Server, weed
from tests.store.shipped_logs import Place

pytestmark = [pytest.mark.crash, pytest.mark.store]

PATIENCE = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server of our own: it is killed again and again."""
    with weed(tmp_path_factory.mktemp("weed")) as own:
        yield own


class Victim:
    """One process at work, and what it was acknowledged for so far."""

    def __init__(self, directory: Path, endpoint: str, prefix: str, cycle: int, is_encrypted: bool) -> None:
        command = [
            sys.executable, "-m", "tests.crash.ship_victim", "work",
            str(directory), endpoint, prefix, str(cycle), "encrypted" if is_encrypted else "plain",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, **shipped_logs.ENVIRONMENT}
        )
        self.shipped: dict[Place, bytes] = {}
        self.durable: dict[Place, bytes] = {}
        self.failures: list[str] = []
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):
                return  # cut by the kill
            how, *rest = line.decode().split()
            if how == "failed":
                self.failures.append(line.decode())
                continue
            topic, partition, offset, name = rest
            told = self.shipped if how == "shipped" else self.durable
            told[topic, int(partition), int(offset)] = name.encode()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert not self.failures, self.failures


class Run:
    """One log and its victims, one after the other, on a server that comes and goes."""

    def __init__(self, directory: Path, server: S3Server, seed: int, is_encrypted: bool) -> None:
        self.directory, self.server = directory, server
        self.keyring: Keyring | None = KEYRING if is_encrypted else None
        self.prefix = f"killed-{seed}-{is_encrypted}"
        self.rng = Random(seed)
        self.shipped: dict[Place, bytes] = {}
        self.durable: dict[Place, bytes] = {}
        self.copied = 0
        self.kills = {"victim": 0, "server": 0, "both": 0}
        self._cycles = self._copies = 0
        self._victim: Victim | None = None

    def work(self, seconds: float) -> None:
        """Kill one of them or both, again and again; look now and then, also while the victim is at work."""
        deadline = time.monotonic() + seconds
        try:
            for number in range(10**9):
                self._ensure_victim()
                if self.rng.random() < 0.5:
                    self._until_progress()
                self._pause(0.5)
                self._strike(self.rng.choice(list(self.kills)))
                if number % 3 == 2:
                    self.check()
                is_enough = sum(self.kills.values()) >= 2 and len(self.shipped) > 5
                if time.monotonic() > deadline and (is_enough or number > 20):  # a slow machine gets there later
                    break
            self._ensure_victim()
            self._until_progress()
        finally:
            if self._victim is not None:
                self._bury()
        self.check()

    def _strike(self, whom: str) -> None:
        self.kills[whom] += 1
        if whom in ("server", "both"):
            self.server.kill()
        if whom == "both" and self.rng.random() < 0.5:
            self._pause(0.3)  # it goes on for a while without a store
        if whom in ("victim", "both"):
            self._bury()
        if whom == "both" and self.rng.random() < 0.5:
            self._ensure_victim()  # it starts without a store
        if whom in ("server", "both"):
            self._pause(0.5)
            self.server.start()

    def _until_progress(self) -> None:
        """Wait until the victim is told that something more is on the store: it goes on after whatever happened."""
        victim = self._victim
        assert victim is not None
        told, deadline = len(victim.shipped), time.monotonic() + PATIENCE
        while len(victim.shipped) < told + 5:
            assert time.monotonic() < deadline, "nothing is shipped any more"
            time.sleep(0.01)

    def _pause(self, longest: float) -> None:
        time.sleep(self.rng.random() * longest)

    def _ensure_victim(self) -> None:
        if self._victim is None:
            self._cycles += 1
            self._victim = Victim(
                self.directory / "log", self.server.endpoint, self.prefix, self._cycles, self.keyring is not None
            )

    def _bury(self) -> None:
        assert self._victim is not None
        self._victim.kill()
        self._collect(self._victim)
        self._victim = None

    def _collect(self, victim: Victim) -> None:
        self.shipped.update(list(victim.shipped.items()))
        self.durable.update(list(victim.durable.items()))

    def check(self) -> None:
        """The store may know more than was acknowledged, and less than the log; it never lies."""
        if self._victim is not None:
            self._collect(self._victim)
        acknowledged, marks = dict(self.shipped), self._marks()
        self._copies += 1
        copy = self.directory / f"copy{self._copies}"
        _, found = shipped_logs.restored(self.server.endpoint, self.prefix, copy, self.keyring)
        with holdfast.open(self.directory / "log", settings=settings(""), keyring=self.keyring, read_only=True) as log:
            local = shipped_logs.records(log)
        for place, name in acknowledged.items():
            assert found.get(place) == name, f"acknowledged as shipped, and not on the store: {place} {name!r}"
        for place, name in self.durable.items():
            assert local.get(place) == name, f"acknowledged as durable, and not in the log: {place} {name!r}"
        for place, name in found.items():
            assert local.get(place) == name, f"on the store, and not in the log: {place} {name!r}"
        for part, shipped in marks.items():
            offsets = sorted(offset for topic, partition, offset in found if (topic, partition) == part)
            assert offsets == list(range(len(offsets))), f"a gap on the store: {part}"
            assert shipped <= len(offsets), f"the log believes that more is there than is: {part} {shipped}"
        self.copied = len(found)

    def _marks(self) -> dict[tuple[str, int], int]:
        """How far the log says that it is on the store, as it stands on its disk."""
        with holdfast.open(self.directory / "log", settings=settings(""), keyring=self.keyring, read_only=True) as log:
            return {(topic, n): mark.shipped for topic in log.topics() for n, mark in enumerate(log.marks(topic))}


def kill_in_turn(server: S3Server, directory: Path, seed: int, seconds: float) -> None:
    """Two logs, one of them encrypted, each for half of the time."""
    print(f"seed {seed}")
    for is_encrypted in (False, True):
        own = directory / ("encrypted" if is_encrypted else "plain")
        own.mkdir()
        run = Run(own, server, seed, is_encrypted)
        try:
            run.work(seconds / 2)
        finally:
            print(f"{run.kills} {len(run.shipped)} shipped, {len(run.durable)} durable, {run.copied} on the store")
        assert len(run.shipped) > 5
        assert sum(run.kills.values()) >= 2


def test_kills_of_application_and_server_in_turn(server: S3Server, tmp_path: Path) -> None:
    """For a third of a minute, at random moments."""
    kill_in_turn(server, tmp_path, int(time.time()), 20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_minutes_of_kills(server: S3Server, tmp_path: Path) -> None:
    """In logs that are started anew now and then, so that looking stays quick."""
    for part in range(6):
        directory = tmp_path / str(part)
        directory.mkdir()
        kill_in_turn(server, directory, part, 100)
