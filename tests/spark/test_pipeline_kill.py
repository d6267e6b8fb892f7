"""kill -9 of drivers and of Python workers while tables are written: each row is there once, in chains, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.spark.pipeline_victim import CREATES
from tests.spark.shop import TABLES, Shop, expected, some_orders
from tests.spark.stream_victim import kill_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.spark]

BUSY = pytest.mark.timeout(900)
STEPS = [
    *[(when, number) for when in ("before", "after") for number in range(1, CREATES + 1)],
    *[("written", number) for number in range(1, 2 * len(TABLES) + 1)],
]


class Victim:
    """One driver at work."""

    def __init__(self, folder: Path, scratch: str, runs: int, *arguments: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        self._said = (folder / "said").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.pipeline_victim", str(folder), str(runs), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, start_new_session=True,
            env={**kept, "TMPDIR": scratch},
        )  # fmt: skip

    def line(self) -> str:
        """What it says next; nothing when it is dead."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def go(self) -> None:
        """Let it run once more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def bury(self) -> str:
        """Wait for its end, or see to it; what it said."""
        kill_session(self._process.pid)
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        with self._said:
            self._said.seek(0)
            return self._said.read()


def check(shop: Shop, tables: Sequence[str]) -> None:
    """Tables hold what the orders make, each row once."""
    for name, rows in expected(shop.orders).items():
        if name in tables:
            assert shop.rows(name) == rows, name


def survive(spark: SparkSession, shop: Shop, step: tuple[str, int] | None, random: Random) -> None:
    """Two runs of a driver that is killed at a step, with workers that are; then one that goes on."""
    shop.sell(some_orders(random, 20))
    die = () if step is None else ("--die", step[0], str(step[1]))
    with TemporaryDirectory(prefix="hf-") as scratch:
        victim = Victim(shop.root.parent, scratch, 2, "--kill-workers", *die)
        first = victim.line()
        if first:
            assert set(json.loads(first).values()) == {"written"}, first
            check(shop, [one.name for one in TABLES])
            shop.sell(some_orders(random, 20))
            victim.go()
        second = victim.line() if first else ""
        said = victim.bury()
    assert bool(second) == (step is None), said[-3000:]
    # Whoever looks now sees whole runs: the counts of the commits, and no more.
    for one in TABLES:
        if (shop.tables / one.name / "_delta_log").exists():
            shop.rows(one.name)
    assert shop.pipeline().run(spark).is_fine
    check(shop, [one.name for one in TABLES])


@BUSY
@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, step: tuple[str, int], seed: int
) -> None:
    survive(spark, Shop(tmp_path), step, Random(seed))
