"""kill -9 of drivers and of Python workers at each step of a sink's write: every row arrives once, in whole batches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.sink import write_steps
from holdfast.sink.sink_target import SinkTarget
from tests.spark.batch_limits import batches
from tests.spark.deadly_sink import STEPS
from tests.spark.stream_victim import kill_session
from tests.spark.test_stream_kill import SLOW_WORKER, TRIES, story

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(600)]

PATIENCE = 240.0
BATCHES, ROWS = 3, 10
Drive = Callable[..., tuple[bool, str]]


def fill(root: Path, first: int) -> None:
    """One batch of two segments, without Spark."""
    clock, schema = SystemClock(), pa.schema({"id": pa.int64()})
    prepared = write_steps.prepare(SinkTarget(place=str(root), topic="in"), schema, clock)
    done = [
        write_steps.write_task(prepared, task, [pa.record_batch({"id": list(range(at, at + ROWS // 2))})], None, clock)
        for task, at in enumerate(range(first, first + ROWS, ROWS // 2))
    ]
    write_steps.commit(prepared, done, None, clock)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    for batch in range(BATCHES):
        fill(path, batch * ROWS)
    return path


@pytest.fixture
def drive(root: Path, tmp_path: Path) -> Iterator[Drive]:
    """Run a driver to its end, whatever that is: whether it was done, and what it said."""
    output = tmp_path / "output"
    output.mkdir()
    kept = {name: value for name, value in environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with TemporaryDirectory(prefix="victims-", ignore_cleanup_errors=True) as scratch:

        def run(*arguments: str) -> tuple[bool, str]:
            victim = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_victim", str(root), str(output), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**kept, "TMPDIR": scratch},
            )
            try:
                printed, said = victim.communicate(timeout=PATIENCE)
            finally:
                kill_session(victim.pid)
                victim.wait()
            return printed.endswith("done\n"), said

        yield run


def finish(drive: Drive, *arguments: str) -> str:
    """A driver that was done; one that Spark gave up for want of a worker is started again."""
    for _ in range(TRIES):
        is_done, said = drive(*arguments)
        if is_done:
            return said
        assert SLOW_WORKER in said, story(said)
    raise AssertionError(f"no driver of {TRIES} got its Python workers in time")


def seen(root: Path) -> list[int]:
    """What a reader sees, without Spark."""
    try:
        return sorted(holdfast.read(str(root), "out").to_arrow().column("id").to_pylist())
    except holdfast.NotFound:
        return []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_at_a_step_of_the_write(drive, root, tmp_path, step):
    """Readers see whole batches, and the driver that is started again writes every row once.

    A worker has died before that, too, with a segment on the store.
    """
    worker = () if "segments" in step else ("--worker-dies", "after /segments/")
    for _ in range(TRIES):
        is_done, said = drive("--dies", step, *worker)
        if (tmp_path / "output" / "died").exists():
            break
        assert SLOW_WORKER in said, story(said)
    assert not is_done
    assert seen(root) in ([], list(range(BATCHES * ROWS // batches(BATCHES))))
    fill(root, BATCHES * ROWS)
    finish(drive)
    assert seen(root) == list(range((BATCHES + 1) * ROWS))


@pytest.mark.full("workers die in the other test, too, and each needs a JVM")
@pytest.mark.parametrize("step", ["before /segments/", "after /segments/"])
def test_a_task_whose_worker_is_killed_is_written_again(drive, root, tmp_path, step):
    """By another attempt, in the same job; what the first one wrote is part of nothing."""
    said = finish(drive, "--worker-dies", step)
    assert "Python worker exited unexpectedly" in said
    assert (tmp_path / "output" / "worker-died").exists()
    assert seen(root) == list(range(BATCHES * ROWS))
    named = sum(len(list((root / "topics/out" / partition / "_manifest").iterdir())) for partition in ("0", "1"))
    assert len(list((root / "topics/out").rglob("*.parquet"))) == named + (step == "after /segments/")
