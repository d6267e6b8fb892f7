"""kill -9 of drivers and of Python workers: every record arrives exactly once, in two kinds of sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from holdfast import Log
from tests.segments.planting import fill
from tests.spark.stream_victim import kill_session, processes

pytestmark = [pytest.mark.crash, pytest.mark.spark]

PATIENCE = 120.0
BUSY = pytest.mark.timeout(600)
"""Several JVMs, one after the other: half a minute, and some minutes where the machine is busy."""

TRIES = 3
SLOW_WORKER = "Python worker failed to connect back"
"""Spark gives a Python worker ten seconds to start, whatever the settings; on a busy machine that may be too few."""

SEGMENTS = {"rows_max": 10, "seal_on_close": False}

Row = tuple[int, int, bytes]
"""Partition, offset and value."""


class Victim:
    """One driver at work."""

    def __init__(self, root: Path, output: Path, scratch: str, *arguments: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        self._said = (output / "said").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_victim", str(root), str(output), *arguments],
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,
            env={**kept, "TMPDIR": scratch},
        )
        self.batches: list[int] = []
        self.is_done = False

    def until(self, batches: int) -> bool:
        """Wait until so many batches have begun; False when it is done, or dead, before that."""
        assert self._process.stdout is not None
        while len(self.batches) < batches:
            line = self._process.stdout.readline()
            if not line.endswith("\n"):
                return False
            self.is_done = self.is_done or line == "done\n"
            if line.startswith("batch "):
                self.batches.append(int(line.split()[1]))
        return True

    def bury(self) -> str:
        """Kill whatever is left of it, and wait for its end; returns what it said on standard error."""
        kill_session(self._process.pid)
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        with self._said:
            self._said.seek(0)
            said = self._said.read()
        assert not [pid for pid, _, session in processes() if session == self._process.pid]
        return said

    def finish(self) -> bool:
        """Let it come to its end; False when that was not the good one."""
        self.until(10**9)
        self._process.wait(PATIENCE)
        return self.is_done


Start = Callable[..., Victim]


def drive(start: Start, reached: Callable[[Victim], bool], *arguments: str) -> Victim:
    """A driver that got as far as it should; only one that Spark gave up for want of a worker is started again."""
    for _ in range(TRIES):
        victim = start(*arguments)
        if reached(victim):
            return victim
        said = victim.bury()
        assert SLOW_WORKER in said, story(said)
    raise AssertionError(f"no driver of {TRIES} got its Python workers in time")


def story(said: str) -> str:
    """What a driver said, without Java's frames: what went wrong stands before them and between them."""
    return "\n".join(line for line in said.splitlines() if not line.startswith("\tat "))


@pytest.fixture
def start(tmp_path: Path, log: Log) -> Iterator[Start]:
    """Start victims over the log; none survives the test."""
    output = tmp_path / "output"
    output.mkdir()
    started: list[Victim] = []
    # What the killed leave behind is removed; its name is short, because sockets lie in it.
    with TemporaryDirectory(prefix="victims-", ignore_cleanup_errors=True) as scratch:

        def start_one(*arguments: str) -> Victim:
            started.append(Victim(log.path, output, scratch, *arguments))
            return started[-1]

        yield start_one
        for victim in started:
            if not victim._said.closed:
                victim.bury()


@pytest.fixture
def log(open_log: Callable[..., Log], is_sampled: bool) -> Log:
    """A log with two partitions and some segments: three batches, or one."""
    log: Log = open_log(segments=SEGMENTS)
    log.topic("orders", partitions=2)
    write(log, 1 if is_sampled else 3)
    return log


def write(log: Log, segments: int) -> None:
    for partition in range(2):
        fill(log, "orders", segments, partition=partition)


def written(log: Log) -> list[Row]:
    ends = [mark.sealed for mark in log.marks("orders")]
    return [(number, offset, b"%d" % offset) for number, end in enumerate(ends) for offset in range(end)]


def rows_of(files: list[Path]) -> list[Row]:
    tables = [pq.read_table(path, partitioning=None).to_pydict() for path in files]
    return sorted(
        row for table in tables for row in zip(table["partition"], table["offset"], table["value"], strict=True)
    )


def by_batch(output: Path) -> list[Row]:
    """What lies in the directories of batches."""
    return rows_of(sorted(output.glob("batches/batch=*/*.parquet")))


def by_file_sink(output: Path) -> list[Row]:
    """What Spark's file sink says is in it; files of attempts that failed lie beside."""
    journal = output / "files" / "_spark_metadata"
    compacted = [int(path.stem) for path in journal.glob("*.compact") if not path.name.startswith(".")]
    newest = max(compacted, default=-1)
    logs = [journal / f"{newest}.compact"] if compacted else []
    logs += [path for path in journal.glob("[0-9]*") if path.suffix == "" and int(path.name) > newest]
    entries = [json.loads(line) for path in logs for line in path.read_text().splitlines()[1:]]
    return rows_of([Path(unquote(urlparse(entry["path"]).path)) for entry in entries])


def check(log: Log, output: Path) -> None:
    expected = written(log)
    assert by_batch(output) == expected
    assert by_file_sink(output) == expected


@BUSY
def test_a_driver_killed_again_and_again_delivers_every_record_once(start, log, tmp_path, seed, is_sampled):
    """Between sink and commit, then at a random moment; each time more is written before it starts again.

    In the gate the last driver is the one whose workers are killed, for which `full` has a test of its own.
    """
    died, last = tmp_path / "output" / "died", 0 if is_sampled else 1
    placed = drive(start, lambda victim: not victim.finish() and died.exists(), "--die-after", str(last))
    placed.bury()
    assert last not in committed(tmp_path / "output")
    write(log, 1)
    if not is_sampled:  # one JVM less
        random = drive(start, lambda victim: victim.until(1))
        assert random.batches == [1]  # it comes again, under the same id
        time.sleep(Random(seed).random() * 1.5)
        random.bury()
        write(log, 1)
    if is_sampled:
        said = drive(start, Victim.finish, "--kill-workers", "--files").bury()
        assert "Python worker exited unexpectedly" in said
    else:
        drive(start, Victim.finish)
    check(log, tmp_path / "output")


def committed(output: Path) -> list[int]:
    """Batches that Spark knows to be done."""
    return [int(path.name) for path in (output / "checkpoint-batches" / "commits").glob("[0-9]*")]


@BUSY
@pytest.mark.full("workers are killed in the other test, too, and each needs a JVM")
def test_tasks_whose_workers_are_killed_are_read_again(start, log, tmp_path):
    """In mid-batch, those that read and those that hand on."""
    said = drive(start, Victim.finish, "--kill-workers").bury()
    assert "Python worker exited unexpectedly" in said
    assert by_batch(tmp_path / "output") == written(log)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_five_minutes_of_kills(start, log, tmp_path):
    """At random moments of start and work, while more is written."""
    rng = Random(5)
    deadline, kills = time.monotonic() + 300, 0
    while time.monotonic() < deadline:
        write(log, 2)
        victim = start(*(("--die-after", str(rng.randrange(3))) if rng.random() < 0.2 else ()))
        if rng.random() < 0.8:
            victim.until(rng.randrange(1, 4))
            time.sleep(rng.random() * 1.5)
        else:
            time.sleep(rng.random() * 12)
        victim.bury()
        kills += 1
    drive(start, Victim.finish)
    check(log, tmp_path / "output")
    print(f"{kills} kills, {len(written(log))} records")
    assert kills >= 10
