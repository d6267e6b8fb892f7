"""A log that is still open when the process ends: what was queued is made durable, and a warning says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast

pytestmark = pytest.mark.disk

SCRIPT = Path(__file__).with_name("leave_open.py")
RECORDS = 3000
WAYS = {"end": 0, "leave": 3, "fail": 1, "offer": 0, "loop": 0, "thread": 0, "executor": 0, "at_exit": 0, "fork": 0}
"""How processes end, and with which exit code."""
ALONE = (*WAYS, "daemon", "spawn")
SHIPPED = ("end", "thread", "service", "executor", "at_exit")
"""Those that end in this way with a store."""


class Ended(NamedTuple):
    code: int
    words: str
    log: Path
    store: Path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All processes, side by side; `shipped-WAY` has a store."""
    folder = tmp_path_factory.mktemp("exit")
    users = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    started = {}
    for name in (*ALONE, *(f"shipped-{way}" for way in SHIPPED)):
        where = [folder / name] + [folder / f"{name}-store"] * name.startswith("shipped-")
        command = [sys.executable, "-W", "ignore", SCRIPT, name.removeprefix("shipped-"), *where]
        started[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=users)
    found = {}
    for name, process in started.items():
        words = process.communicate(timeout=100)[1]
        found[name] = Ended(process.returncode, words, folder / name, folder / f"{name}-store")
    return found


def stored(path: Path) -> list[int]:
    with holdfast.open(path, read_only=True) as log:
        return [int(record.payload) for record in log.topic("orders").read()]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_queued_when_the_process_ended_is_durable(ended, way):
    """At the end of the script, by sys.exit, by an error, from threads, after asyncio, at exit, after a fork."""
    code, words, log, _ = ended[way]
    assert code == WAYS[way], words
    assert stored(log) == list(range(RECORDS))
    assert words.count("holdfast: ") <= 1, "it is said once"
    assert ("LookupError: at top level" in words) == (way == "fail")


def test_a_daemon_that_never_stops_loses_nothing_that_was_taken(ended):
    """Whatever it had submitted when the log was closed is there, without a hole."""
    assert ended["daemon"].code == 0, ended["daemon"].words
    found = stored(ended["daemon"].log)
    assert len(found) > RECORDS
    assert found == list(range(len(found)))


def test_children_drain_their_own_logs(ended):
    """Processes of multiprocessing, spawned or forked, that leave a log open."""
    code, words, log, _ = ended["spawn"]
    assert code == 0, words
    for name in ("spawn", "spawn-spawn", "spawn-fork"):
        assert stored(log.with_name(name)) == list(range(RECORDS)), name


@pytest.mark.parametrize(("way", "records", "lines"), [("end", RECORDS, 1), ("thread", RECORDS, 1), ("service", 3, 0)])
def test_at_the_end_it_is_sealed_and_shipped_too(ended, way, records, lines):
    """As close() does, also where threads have gone on after the main one, and Python's executors take no more work."""
    code, words, path, _ = ended[f"shipped-{way}"]
    assert code == 0, words
    assert words.count("\n") <= lines, words
    with holdfast.open(path, read_only=True) as log:
        assert log.marks("orders")[0] == holdfast.Marks(*[records] * 5)


@pytest.mark.parametrize("way", ["executor", "at_exit"])
def test_what_comes_too_late_to_be_shipped_is_reported(ended, way):
    """Durable, not shipped: a line says how many, and the next open ships them."""
    code, words, path, store = ended[f"shipped-{way}"]
    assert code == 0, words
    assert f"closed with {RECORDS} records and 0 segments that are not on the store" in words
    assert "Traceback" not in words
    with holdfast.open(path, store=store) as log:
        log.seal()
        log.ship()
        assert log.marks("orders")[0].shipped == RECORDS
