"""Worker processes that are killed, stopped, or come second: with real processes and an outside witness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

import holdfast
from holdfast import Unavailable
from tests.executions.work_victim import STEPS

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
PATIENCE = 60
EXECUTIONS = 20
CERTAIN = EXECUTIONS * STEPS // 2
"""Lines that come however often workers are killed: those of steps that are done again."""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker process on the log; it is gone after the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def one(*rest: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.executions.work_victim", tmp_path / "log", tmp_path / "seen", *rest]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        begun.append(process)
        return process

    yield one
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def queue(path: Path) -> list[UUID]:
    with holdfast.open(path) as log:
        kinds = ("plain", "waits")
        return [log.executions.start(kinds[number % 2], number) for number in range(EXECUTIONS)]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until the witness has seen so many; polling, for a killed process cannot tell."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with subprocess.Popen(
        ["tail", "-n", "+1", "-F", "-s", "0.01", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as tail:
        assert tail.stdout is not None
        for _ in range(count):
            assert tail.stdout.readline()
        tail.kill()


def finish(start: Start) -> None:
    out, err = start("until-idle").communicate(timeout=PATIENCE)
    assert out == b"ready\ndrained\n", err


def check(path: Path, started: list[UUID], seen: list[str]) -> None:
    """All have completed once, in the order of their steps; no guarded effect happened twice."""
    with holdfast.open(path, read_only=True) as log:
        for execution in started:
            found = log.executions.summary(execution)
            assert (found.status, found.generation) == ("completed", 0)
            assert set(log.executions.result(execution)) <= {"done", "skipped"}
            events = [event.what for event in log.executions.show(execution).events]
            assert events.count("completed") == 1
    times = Counter(seen)
    for number in range(EXECUTIONS):
        for step in range(STEPS):
            count = times[f"{('plain', 'waits')[number % 2]} {number} {step}"]
            assert count <= 1 if step % 2 else count >= 1, (number, step, count)


def test_executions_of_a_killed_worker_all_finish_once_after_a_restart(tmp_path, start, seed):
    """kill -9 with twenty under way, again and again: all finish, guarded effects at most once each."""
    started = queue(tmp_path / "log")
    random = Random(seed)
    for _ in range(3):
        process = start()
        wait_for_lines(
            tmp_path / "seen", min(len(lines(tmp_path / "seen")) + random.randrange(1, EXECUTIONS), CERTAIN), process
        )
        process.kill()
        process.wait(PATIENCE)
    finish(start)
    check(tmp_path / "log", started, lines(tmp_path / "seen"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_has_to_stop_drains(tmp_path, start, number):
    """It ends by itself, quickly and cleanly; nothing is repeated afterwards, not even an idempotent step."""
    started = queue(tmp_path / "log")
    process = start()
    wait_for_lines(tmp_path / "seen", EXECUTIONS, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, b"drained\n"), err
    before = lines(tmp_path / "seen")
    assert len(before) < EXECUTIONS * STEPS
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        recorded = sum(len(log.executions.show(one).steps) for one in started)
        assert recorded == len(before)  # all that happened is recorded
        assert {log.executions.summary(one).status for one in started} <= {"running", "queued", "completed"}
    finish(start)
    seen = lines(tmp_path / "seen")
    assert max(Counter(seen).values()) == 1
    assert len(seen) == EXECUTIONS * STEPS
    check(tmp_path / "log", started, seen)


def test_the_second_process_learns_who_has_the_log_and_takes_over_when_it_dies(tmp_path, start):
    """One wins, the other learns its pid; what died with the first goes on in the second."""
    started = queue(tmp_path / "log")
    first = start()
    wait_for_lines(tmp_path / "seen", 5, first)
    second = start("until-idle")
    out, err = second.communicate(timeout=PATIENCE)
    assert (out, second.returncode) == (b"", 1)
    assert f"process {first.pid}".encode() in err
    with pytest.raises(Unavailable, match=f"pid={first.pid}"):
        holdfast.open(tmp_path / "log")
    with holdfast.open(tmp_path / "log", read_only=True) as log:  # looking is always possible
        assert {one.id for one in log.executions.list()} == set(started)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(PATIENCE)
    finish(start)
    check(tmp_path / "log", started, lines(tmp_path / "seen"))


def test_a_running_worker_takes_orders_from_outside(tmp_path, start):
    """The command line starts, cancels and looks while a worker process owns the log."""
    queue(tmp_path / "log")
    process = start()
    wait_for_lines(tmp_path / "seen", 1, process)

    def cli(*arguments: object) -> str:
        command = [sys.executable, "-m", "holdfast", "execution", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return done.stdout.split()[0]

    asked = cli("start", tmp_path / "log", "plain", "--args", "[99]")
    later = cli("start", tmp_path / "log", "plain", "--args", "[100]", "--not-before", "2100-01-01T00:00:00Z")
    assert cli("cancel", tmp_path / "log", later) == later
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert log.executions.result(asked, timeout=PATIENCE) == ["done"] * STEPS
        assert log.executions.summary(later).status == "canceled"
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert [line for line in lines(tmp_path / "seen") if line.startswith("plain 99 ")] == [
        f"plain 99 {step}" for step in range(STEPS)
    ]


@pytest.mark.soak
def test_a_worker_is_killed_a_hundred_times(tmp_path, start, seed):
    """The same with many kills, at any moment between start and end."""
    started = queue(tmp_path / "log")
    random = Random(seed)
    for _ in range(100):
        process = start()
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(random.random() * 0.2)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait(PATIENCE)
    finish(start)
    check(tmp_path / "log", started, lines(tmp_path / "seen"))
