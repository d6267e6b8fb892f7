"""kill -9 of a compaction job on Spark, and of its workers: no row is lost or doubled, and the next one finishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full("a JVM for each kill: what the driver does is killed step by step in crash/test_compact_kill.py"),
    pytest.mark.timeout(600),
]

PATIENCE = 240.0
ROWS = [os.urandom(3000) for _ in range(40)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two partitions of forty segments, each of which becomes several files."""
    with holdfast.open(tmp_path / "log", store=str(tmp_path / "root")) as log:
        for row in ROWS:
            for partition in range(2):
                log.topic("orders", partitions=2).append(row, partition=partition)
            log.seal()
        log.ship(60)
    return tmp_path / "root"


def started(root: Path) -> subprocess.Popen[bytes]:
    """The job by itself, in a session of its own: whatever it starts can be found."""
    command = [sys.executable, "-m", "pyspark_holdfast.jobs.compact", str(root), "--target-size", "64KiB"]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(root: Path, pattern: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for an object that was not there when the job began."""
    deadline = time.monotonic() + PATIENCE
    while not list(root.glob(pattern)):
        assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def outputs(root: Path) -> int:
    return len(list(root.glob("topics/orders/*/segments/[0-9]*")))


def workers(session: int) -> list[int]:
    """Python workers of Spark in a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_ours = entry.name.isdigit() and os.getsid(int(entry.name)) == session
            if is_ours and b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found


def check(root: Path) -> None:
    """What is read is what was written, before and after somebody else finishes."""
    for _ in range(3):
        assert holdfast.read(str(root), "orders").to_arrow()["payload"].to_pylist() == [*ROWS, *ROWS]
        holdfast.compact(str(root), target_size="64KiB", delete_after_ms=0)
    in_effect = holdfast.compact(str(root), target_size="64KiB", delete_after_ms=0).files_after
    assert outputs(root) == in_effect
    assert list(root.glob("topics/orders/*/_intents/[0-9]*")) == []


@pytest.mark.parametrize("moment", ["_intents", "_rewrites"])
def test_the_driver_is_killed(root: Path, moment: str):
    process = started(root)
    try:
        until(root, f"topics/orders/*/{moment}/[0-9]*", process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    check(root)


def test_workers_are_killed(root: Path):
    """The job fails, or Spark runs the tasks again; either way nothing is wrong with the root."""
    process = started(root)
    try:
        until(root, "topics/orders/*/_intents/[0-9]*", process)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and not workers(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        for pid in workers(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    check(root)
