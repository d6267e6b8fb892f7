"""kill -9 at every point of a program of five steps: each guarded effect happens at most once, and it gets through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from tests.crash.execution_victim import AMBIGUOUS, SETTINGS

pytestmark = pytest.mark.crash

PATIENCE = 240
KILLED = -9


def histories(directory: Path, policy: str, how: str, points: str) -> list[dict[str, Any]]:
    victim = [sys.executable, "-m", "tests.crash.execution_victim", str(directory), policy, how, points]
    done = subprocess.run(victim, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    ready, *lines = done.stdout.splitlines()
    assert ready == "ready"
    assert "failed" not in done.stderr, done.stderr
    return [json.loads(line) for line in lines]


def check(history: dict[str, Any], policy: str) -> None:
    """What the world outside saw of one execution."""
    *killed, last = history["codes"]
    seen = history["seen"]
    assert all(code in (KILLED, 0, AMBIGUOUS) for code in killed), history
    runs = len(history["codes"])
    if policy == "fail":
        assert last in (0, AMBIGUOUS), history
    else:
        assert last == 0, history
    for guarded in ("charge", "ship"):
        if policy != "rerun":
            assert seen.get(guarded, 0) <= 1, history
        assert seen.get(guarded, 0) <= runs
    if last == 0:
        for plain in ("prepare", "pack"):
            assert 1 <= seen.get(plain, 0) <= runs, history
        if policy == "rerun":
            assert seen.get("charge", 0) >= 1, history
            assert seen.get("ship", 0) >= 1, history


def booked(directory: Path) -> int:
    with holdfast.open(directory / "log", settings=SETTINGS) as log:
        return sum(1 for _ in log.topic("bookings").read())


@pytest.mark.core
@pytest.mark.parametrize(("policy", "how"), [("skip", "sync"), ("fail", "async"), ("rerun", "sync")])
def test_killed_at_every_point_it_gets_through(tmp_path: Path, policy: str, how: str) -> None:
    """Each history: killed once, resumed once. What is booked inside the log is booked exactly once."""
    found = histories(tmp_path, policy, how, "all")
    assert found[0]["codes"] == [0]
    assert len(found) > 20
    for history in found:
        check(history, policy)
    assert all(history["codes"][0] == KILLED for history in found[1:])
    if policy == "fail":
        assert any(history["codes"][-1] == AMBIGUOUS for history in found)
    assert booked(tmp_path) == sum(history["codes"][-1] == 0 for history in found)


def test_killed_again_and_again_it_gets_through(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lists = [",".join(str(random.randrange(1, 24)) for _ in range(random.randrange(2, 6))) for _ in range(8)]
    for history in histories(tmp_path, "skip", "sync", "/".join(lists)):
        check(history, "skip")
    assert booked(tmp_path) == len(lists)


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["skip", "fail", "rerun"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_killed_hundreds_of_times_it_gets_through(tmp_path: Path, policy: str, how: str, seed: int) -> None:
    random = Random(f"{seed}{policy}{how}")
    for _ in range(10):
        lists = [",".join(str(random.randrange(1, 28)) for _ in range(random.randrange(1, 6))) for _ in range(20)]
        for history in histories(tmp_path, policy, how, "/".join(lists)):
            check(history, policy)
