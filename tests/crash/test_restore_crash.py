"""Restores that are killed, cut off from power, or meet a failing disk: what is left is no log or a whole one, and
running it again brings back everything, under the claim that was made.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

import holdfast
from holdfast import Invalid, Keyring, Settings, Unavailable, disk
from holdfast.clock import SystemClock
from holdfast.log_directory import Directory
from holdfast.recovery import fetching, restore
from holdfast.results import RestoreReport
from holdfast.store import layout, memory
from holdfast.store.port import Store
from holdfast.store.store_kinds import open_store
from holdfast.store.store_settings import StoreSettings
from holdfast.testing import Fault, FaultyDisk
from holdfast.testing.manual_clock import ManualClock
from tests.harness.cuts import Cut, examine, record
from tests.harness.faults import attempt, fail_at

pytestmark = pytest.mark.crash

CALM = Settings.from_mapping({"segments": {"seal_on_close": False, "rows_max": 10}, "disk": {"free_bytes_min": 0}})

Contents = list[tuple[int, int, bytes]]


class Shipped(NamedTuple):
    """A log on a store, its machine gone."""

    url: str
    keyring: Keyring | None
    contents: Contents
    segments: int

    def store(self) -> Store:
        return open_store(self.url, StoreSettings(), SystemClock())

    def restore(self, path: Path, **options: object) -> RestoreReport:
        return holdfast.restore(self.url, path, settings=CALM, keyring=self.keyring, **options)

    def claims(self) -> int:
        return len(list(self.store().list(layout.EPOCHS)))

    def read(self, path: Path) -> Contents:
        """All of a restored log, proved; nothing lies in its directory that does not belong there."""
        with holdfast.open(path, settings=CALM, keyring=self.keyring) as log:
            assert log.reconcile(deep=True).findings == ()
            return sorted((r.partition, r.offset, r.payload) for r in log.topic("orders").read())

    def require_whole(self, path: Path) -> None:
        assert self.read(path) == self.contents


def ship(directory: Path, url: str, *, keyed: bool = False, segments: int = 3) -> Shipped:
    keyring = Keyring.generate(clock=ManualClock(seed=5)) if keyed else None
    with holdfast.open(directory, store=url, settings=CALM, keyring=keyring) as log:
        topic = log.topic("orders", partitions=2)
        for turn in range(segments):
            topic.append_batch([b"%d.%d" % (turn, i) for i in range(10)], partition=turn % 2)
            log.seal()
        log.ship(30)
        for turn in range(5):
            topic.append(b"tail %d" % turn, partition=turn % 2, durability="shipped")
        contents = sorted((r.partition, r.offset, r.payload) for r in topic.read())
    shutil.rmtree(directory)
    return Shipped(url, keyring, contents, segments)


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Shipped]:
    name = uuid4().hex
    yield ship(tmp_path / "gone", f"memory://{name}")
    memory._named.pop(name)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request at a time, so that steps come in the same order every time."""
    monkeypatch.setattr(fetching, "_AT_ONCE", 1)
    monkeypatch.setattr(restore, "_AT_ONCE", 1)


# -- kill -9 --------------------------------------------------------------------------------------------------

VICTIM = """
import sys, holdfast
def progress(what, done, total):
    print(f"{what} {done}", flush=True)
    sys.stdin.readline()
holdfast.restore(sys.argv[1], sys.argv[2], progress=progress)
print("whole", flush=True)
"""


def killed_at(url: str, path: Path, step: str) -> None:
    """Restore in a process of its own, and kill that when it says that it has come to a step."""
    command = [sys.executable, "-c", VICTIM, url, str(path)]
    victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert victim.stdin is not None
    assert victim.stdout is not None
    for line in victim.stdout:
        if line.strip() == step:
            break
        assert line.strip() != "whole", f"it never came to this step: {step}"
        victim.stdin.write("\n")
        victim.stdin.flush()
    os.kill(victim.pid, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    victim.stdin.close()
    victim.stdout.close()


def test_killed_anywhere_it_goes_on_where_it_was(tmp_path):
    """Killed five times, ever later: segments that are here stay, and there is one claim in the end."""
    shipped = ship(tmp_path / "gone", str(tmp_path / "store"))
    path = tmp_path / "back"
    steps = [
        "reading manifests 1",
        "fetching commit batches 1",
        "fetching segments 2",
        "taking over partitions 1",
        "making the database 0",
    ]
    for step in steps:
        killed_at(shipped.url, path, step)
        with pytest.raises(Invalid, match="not a log"):
            holdfast.open(path, settings=CALM)
        assert shipped.claims() == (2 if step >= "making" and steps.index(step) > 2 else 1)
    report = shipped.restore(path)
    assert (report.resumed, report.epoch) == (shipped.segments, 2)
    assert shipped.claims() == 2
    shipped.require_whole(path)
    assert sorted(os.listdir(path)) == ["FORMAT", "LOCK", "durable.db", "segments"]


def test_killed_after_it_became_a_log_it_is_one(tmp_path):
    """Nothing is done again: not even what somebody appended meanwhile is touched."""
    shipped = ship(tmp_path / "gone", str(tmp_path / "store"))
    path = tmp_path / "back"
    killed_at(shipped.url, path, "making the database 1")
    shipped.require_whole(path)
    with pytest.raises(Invalid, match="there is a log already"):
        shipped.restore(path)


# -- a disk that fails ----------------------------------------------------------------------------------------


def early_first() -> Iterator[int]:
    """All early steps, which are our own; some of the database's."""
    nth = 0
    while True:
        nth += 1 + nth // 12
        yield nth


@pytest.mark.parametrize("kind", ["enospc", "eio", "fsync"])
def test_a_disk_that_fails_at_any_step_ends_it_and_running_it_again_goes_on(
    tmp_path, shipped, one_by_one, kind, is_sampled
):
    """Unavailable, with the way out in the hint; and then everything comes back."""
    steps = islice(early_first(), 1, None, 4) if is_sampled else early_first()
    failures = 0
    for failed in fail_at(tmp_path, kind, steps, lambda root, disk: attempt(lambda: shipped.restore(root / "back"))):
        error, back = failed.outcome, failed.root / "back"
        if error is not None:
            failures += 1
            assert isinstance(error, Unavailable)
            assert "again" in error.hint or "check" in error.hint, error.hint
            shipped.restore(back)
        shipped.require_whole(back)
    assert failures > (2 if is_sampled else 15)


def test_a_full_disk_shuts_nobody_out(tmp_path, shipped, one_by_one):
    """Segments and the database are brought here first."""
    met = set()
    for nth in (2, 4, 8, 16, 24):
        full = FaultyDisk(tmp_path / str(nth), fail=Fault(nth, "enospc", op="write", sticky=True), record=False)
        with full, pytest.raises(Unavailable):
            shipped.restore(tmp_path / str(nth) / "back")
        met.add(full.failed[0].name.rpartition("/")[2].partition(".")[0])
        assert shipped.claims() == 1
    assert {name for name in met if name.startswith("durable")} == {"durable"}
    assert len(met) > 1


# -- power cuts -----------------------------------------------------------------------------------------------


def life(root: Path, shipped: Shipped) -> list[Cut[None]]:
    """The cuts of a restore."""
    return record(root, lambda disk: shipped.restore(root / "back"))


def look(cuts: Iterable[Cut[None]], shipped: Shipped, scratch: Path, states: int | None = None) -> tuple[int, int]:
    """After each cut there is no log, or a whole one; how many of each."""
    counts = [0, 0]

    def one(copy: Path, _: None) -> None:
        path = copy / "back"
        is_log = Directory(path).log_id() is not None
        if not is_log:
            shipped.restore(path)
        shipped.require_whole(path)
        counts[is_log] += 1

    examine(cuts, one, scratch, states)
    return counts[0], counts[1]


def sample(cuts: list[Cut[None]]) -> list[Cut[None]]:
    return [cut for turn, cut in enumerate(cuts) if cut.ours or turn % 25 == 0]


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
def test_after_a_power_cut_there_is_no_log_or_a_whole_one(tmp_path, one_by_one, keyed, some, is_sampled):
    shipped = ship(tmp_path / "gone", f"memory://{uuid4().hex}", keyed=keyed)
    cuts = sample(life(tmp_path / "disk", shipped))
    assert len(cuts) > 43
    none, whole = look([*some(cuts[:-4], 20), *cuts[-4:]], shipped, tmp_path / "states")
    assert none >= (15 if is_sampled else 41)
    assert whole >= (1 if is_sampled else 4)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
def test_every_state_after_a_power_cut_at_every_step(tmp_path, one_by_one, keyed):
    shipped = ship(tmp_path / "gone", f"memory://{uuid4().hex}", keyed=keyed)
    cuts = life(tmp_path / "disk", shipped)
    none, whole = look(cuts, shipped, tmp_path / "states", 30)
    print(f"{len(cuts)} cuts, {none} without a log, {whole} whole")


def _declare_first(patch: pytest.MonkeyPatch) -> None:
    adopt = Directory.adopt_rebuilt

    def declare_then_adopt(self: Directory) -> None:
        self.declare(bytes(16))
        adopt(self)

    patch.setattr(Directory, "adopt_rebuilt", declare_then_adopt)


def _no_sync_of_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk.NewFile, "finish", disk.NewFile.close)


BUGS = {"FORMAT before the database": _declare_first, "segments that are not synced": _no_sync_of_segments}


@pytest.mark.parametrize("bug", BUGS)
def test_the_examination_would_notice(tmp_path, monkeypatch, shipped, one_by_one, bug):
    """Each classic mistake, planted: some state is a log that is not whole."""
    with monkeypatch.context() as patch:
        BUGS[bug](patch)
        cuts = life(tmp_path / "disk", shipped)
    with pytest.raises(AssertionError, match="cut before"):
        look(reversed(cuts), shipped, tmp_path / "states", 4)
