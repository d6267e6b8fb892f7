"""Publishers that die, and publishers that meet: each row is in the table once, and the table is always whole."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.publish.delta import delta_log
from holdfast.store.directory import DirectoryStore
from tests.publish.counting_store import CLOCK, CountingStore, publisher_of
from tests.publish.test_delta_table import fill
from tests.publish.worlds import World, delta_rows


@pytest.mark.crash
def test_killed_at_each_step_the_table_is_the_one_before_or_the_one_after(tmp_path: Path, monkeypatch, some):
    """New rows, an expiry and a rewrite are due; kill -9 before and after every request; then publish again."""
    monkeypatch.setattr(delta_log, "_CHECKPOINT_LEAST", 1)
    world = World(tmp_path / "made")
    for _ in range(4):
        fill(world, rows=2, partitions=1)
    world.publisher().publish("orders")
    before = world.expected("orders")
    fill(world, rows=3, partitions=1)
    world.expire("orders", 0, 1)
    world.join("orders", 0, 2, 4)
    after = world.expected("orders")
    due = copied(world.root, tmp_path / "due")
    world.close()  # which publishes, too
    counting = CountingStore(DirectoryStore(copied(due, tmp_path / "counted"), CLOCK))
    publisher_of(counting).publish("orders")
    assert counting.steps > 15
    for at in some(range(1, counting.steps + 1), 6):
        root = copied(due, tmp_path / f"killed-{at}")
        victim = [sys.executable, "-m", "tests.publish.counting_store", str(root), "orders", str(at)]
        assert subprocess.run(victim, check=False).returncode == -signal.SIGKILL, at
        table = root / "topics/orders"
        assert delta_rows(table) in (before, after), at
        publisher_of(DirectoryStore(root, CLOCK)).publish("orders")
        assert delta_rows(table) == after, at


def copied(root: Path, to: Path) -> Path:
    shutil.copytree(root, to)
    return to


@pytest.mark.disk
def test_two_publishers_at_once_publish_each_row_once(tmp_path: Path):
    """While rows settle, four threads publish without knowing of each other."""
    world = World(tmp_path)
    try:
        fill(world, rows=1)

        def publish(_: int) -> None:
            for _ in range(6):
                world.publisher().publish("orders")

        with ThreadPoolExecutor(4) as threads:
            busy = [threads.submit(publish, number) for number in range(4)]
            for _ in range(8):
                fill(world, rows=2)
            for one in busy:
                one.result()
        world.publisher().publish("orders")
        assert delta_rows(world.table("orders")) == world.expected("orders")
    finally:
        world.close()


@pytest.mark.disk
def test_who_is_overtaken_between_look_and_commit_looks_again(tmp_path: Path):
    """Another publisher commits just before ours, with more rows: nothing is added twice, nothing is taken back."""
    world = World(tmp_path)
    try:
        fill(world, rows=2)

        def overtake() -> None:
            fill(world, rows=2)
            world.publisher().publish("orders")

        store = CountingStore(DirectoryStore(world.root, CLOCK))
        store.before_create = [overtake]
        report = publisher_of(store).publish("orders")
        assert (report.state, report.version, report.commits) == ("unchanged", 0, 0)
        assert delta_rows(world.table("orders")) == world.expected("orders")
    finally:
        world.close()
