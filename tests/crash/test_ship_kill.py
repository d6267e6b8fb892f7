"""kill -9 of the application and of its S3 server, in turn: what was acknowledged as shipped is on the store.

The store always holds, of every partition, a gapless prefix of what the log holds; everything whose `shipped` had
returned is in it; and the log never believes that more is there than is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast import Keyring
from tests.crash.ship_victim import KEYRING, settings
from tests.harness.kills import Victim
from tests.store import shipped_logs
from tests.store.servers import S3Server, weed
from tests.store.shipped_logs import Place

pytestmark = [pytest.mark.crash, pytest.mark.store]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server of our own: it is killed again and again."""
    with weed(tmp_path_factory.mktemp("weed")) as own:
        yield own


Acknowledged = dict[Place, bytes]


def receipts_of(lines: list[str]) -> tuple[Acknowledged, Acknowledged]:
    """What a victim was acknowledged for as shipped, and as durable."""
    found: dict[str, Acknowledged] = {"shipped": {}, "durable": {}}
    for how, topic, partition, offset, name in [line.split() for line in lines]:
        found[how][topic, int(partition), int(offset)] = name.encode()
    return found["shipped"], found["durable"]


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

    def work(self, strikes: int) -> None:
        """Kill one of them or both, again and again; look now and then, also while the victim is at work."""
        try:
            for number in range(strikes):
                self._ensure_victim()
                if self.rng.random() < 0.5:
                    self._until_progress()
                self._pause(0.5)
                self._strike(list(self.kills)[number] if number < 3 else self.rng.choice(list(self.kills)))
                if number % 3 == 2:
                    self.check()
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
        """Wait until the victim hears that something more is on the store: it goes on after whatever happened."""
        assert self._victim is not None
        self._victim.until(5, "shipped")

    def _pause(self, longest: float) -> None:
        time.sleep(self.rng.random() * longest)

    def _ensure_victim(self) -> None:
        if self._victim is None:
            self._cycles += 1
            kind = "plain" if self.keyring is None else "encrypted"
            self._victim = Victim(
                "tests.crash.ship_victim",
                "work",
                self.directory / "log",
                self.server.endpoint,
                self.prefix,
                self._cycles,
                kind,
                env=shipped_logs.ENVIRONMENT,
            )

    def _bury(self) -> None:
        assert self._victim is not None
        victim, self._victim = self._victim, None
        self._collect(victim.kill())

    def _collect(self, lines: list[str]) -> None:
        shipped, durable = receipts_of(lines)
        self.shipped.update(shipped)
        self.durable.update(durable)

    def check(self) -> None:
        """The store may know more than was acknowledged, and less than the log; it never lies."""
        if self._victim is not None:
            self._collect(list(self._victim.lines))
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


def kill_in_turn(
    server: S3Server, directory: Path, seed: int, strikes: int, kinds: tuple[bool, ...] = (False, True)
) -> None:
    """Two logs, one of them encrypted; or one of these."""
    print(f"seed {seed}")
    for is_encrypted in kinds:
        own = directory / ("encrypted" if is_encrypted else "plain")
        own.mkdir()
        run = Run(own, server, seed, is_encrypted)
        try:
            run.work(strikes)
        finally:
            print(f"{run.kills} {len(run.shipped)} shipped, {len(run.durable)} durable, {run.copied} on the store")
        assert len(run.shipped) > 5


@pytest.mark.core
def test_kills_of_application_and_server_in_turn(server: S3Server, tmp_path: Path, seed: int, is_sampled: bool) -> None:
    """At random moments."""
    if is_sampled:  # one of the two kinds, as the seed has it
        kill_in_turn(server, tmp_path, seed, 3, (bool(seed % 2),))
    else:
        kill_in_turn(server, tmp_path, seed, 8)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_minutes_of_kills(server: S3Server, tmp_path: Path) -> None:
    """In logs that are started anew now and then, so that looking stays quick."""
    for part in range(6):
        directory = tmp_path / str(part)
        directory.mkdir()
        kill_in_turn(server, directory, part, 60)
