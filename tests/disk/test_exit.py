"""A log that is still open when the process ends: what was queued is made durable, and somebody is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

pytestmark = pytest.mark.disk

SCRIPT = Path(__file__).with_name("leave_open.py")
RECORDS = 3000


def run(way: str, *where: Path, code: int = 0) -> str:
    """Let a process end in this way; what it said."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), way, *map(str, where)]
    users = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=users)
    assert done.returncode == code, done.stderr
    return done.stderr


def stored(path: Path) -> list[int]:
    with holdfast.open(path, read_only=True) as log:
        return [int(record.payload) for record in log.topic("orders").read()]


WAYS = {"end": 0, "leave": 3, "fail": 1, "offer": 0, "loop": 0, "thread": 0, "executor": 0, "at_exit": 0, "fork": 0}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_queued_when_the_process_ended_is_durable(tmp_path, way):
    """At the end of the script, by sys.exit, by an error, from threads, after asyncio, at exit, after a fork."""
    words = run(way, tmp_path / "log", code=WAYS[way])
    assert stored(tmp_path / "log") == list(range(RECORDS))
    assert words.count("holdfast: ") <= 1, "it is told once"
    assert ("LookupError: at top level" in words) == (way == "fail")


def test_a_daemon_that_never_stops_loses_nothing_that_was_taken(tmp_path):
    """Whatever it had submitted when the log was closed is there, without a hole."""
    run("daemon", tmp_path / "log")
    found = stored(tmp_path / "log")
    assert len(found) > RECORDS
    assert found == list(range(len(found)))


def test_children_drain_their_own_logs(tmp_path):
    """Processes of multiprocessing, spawned or forked, that leave a log open."""
    run("spawn", tmp_path / "log")
    for name in ("log", "log-spawn", "log-fork"):
        assert stored(tmp_path / name) == list(range(RECORDS)), name


@pytest.mark.parametrize("way", ["end", "thread"])
def test_at_the_end_it_is_sealed_and_shipped_too(tmp_path, way):
    """As close() does, also where threads have gone on long after the main one, when Python's executors are gone."""
    words = run(way, tmp_path / "log", tmp_path / "store")
    assert words.count("\n") <= 1, words
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert log.marks("orders")[0] == holdfast.Marks(RECORDS, RECORDS, RECORDS, RECORDS, RECORDS)


def test_a_service_in_threads_outlives_the_main_thread(tmp_path):
    """Sealing and shipping go on, although Python's executors take no more work from then on."""
    assert run("service", tmp_path / "log", tmp_path / "store") == ""
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert log.marks("orders")[0] == holdfast.Marks(3, 3, 3, 3, 3)


@pytest.mark.parametrize("way", ["executor", "at_exit"])
def test_what_comes_too_late_to_be_shipped_is_told(tmp_path, way):
    """Durable, not shipped: a line says how many, and the next open ships them."""
    words = run(way, tmp_path / "log", tmp_path / "store")
    assert f"closed with {RECORDS} records and 0 segments that are not on the store" in words
    assert "Traceback" not in words
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        log.seal()
        log.ship()
        assert log.marks("orders")[0].shipped == RECORDS
