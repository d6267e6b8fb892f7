"""Drivers and Python workers that die while tables are written: each row is there once, in chains, too.

What is killed is real: a driver with its JVM and its workers, by kill -9. Since that takes long, the gate kills one,
and goes through some steps with a driver that merely stops: whatever it knew is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.sampling import Some
from tests.spark.pipeline_victim import STEPS, TABLES, Step, dying
from tests.spark.shop import Shop, expected, some_orders
from tests.spark.stream_victim import kill_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.spark]


class Killed(BaseException):
    """Nobody catches this."""


def check(shop: Shop, orders: int | None = None) -> None:
    """The tables hold what these orders make, each row once."""
    rows = expected(shop.orders[:orders])
    for table in TABLES:
        assert shop.rows(table.name) == rows[table.name], table.name


def check_whole(shop: Shop, orders: int, step: Step) -> None:
    """A reader of a table after a kill sees it before or after a run; which of them, the step tells."""
    committed = step[1] if step[0] == "after" else step[1] - 1
    before, after = expected(shop.orders[:orders]), expected(shop.orders)
    for number, table in enumerate(TABLES):
        assert shop.rows(table.name) == (after if number < committed else before)[table.name], (table.name, step)


def clean(shop: Shop) -> None:
    """What the dead have left is removed by its cause, and no more."""
    pipeline = shop.pipeline(*TABLES, keep="0s")
    pipeline.clean()
    check(shop)
    for table in TABLES:
        kept = {path.name for path in (shop.tables / table.name / "data").iterdir()}
        assert kept == shop.files(table.name)


@pytest.mark.timeout(600)
def test_a_run_that_stops_anywhere_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, some: Some[Step], seed: int
) -> None:
    shop, random = Shop(tmp_path), Random(seed)
    shop.sell(some_orders(random, 20))
    assert shop.pipeline(*TABLES).run(spark).is_fine
    steps = some(STEPS, 3)
    random.shuffle(steps)
    for step in steps:
        known = len(shop.orders)
        shop.sell(some_orders(random, 12))

        def die() -> None:
            raise Killed

        with pytest.raises(Killed), dying(step, die):
            shop.pipeline(*TABLES).run(spark)
        check_whole(shop, known, step)
        assert shop.pipeline(*TABLES).run(spark).is_fine
        check(shop)
    clean(shop)


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_killed_driver_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path, step: Step, seed: int) -> None:
    """Its workers are killed, too, in mid-write, which it survives."""
    shop, random = Shop(tmp_path), Random(seed)
    shop.sell(some_orders(random, 20))
    assert shop.pipeline(*TABLES).run(spark).is_fine
    known = len(shop.orders)
    shop.sell(some_orders(random, 20))
    assert not run_victim(tmp_path, "--kill-workers", "--die", step[0], str(step[1]))
    check_whole(shop, known, step)
    assert shop.pipeline(*TABLES).run(spark).is_fine
    check(shop)
    clean(shop)


@pytest.mark.timeout(1800)
@pytest.mark.soak
def test_drivers_at_the_same_time_write_each_row_once(tmp_path: Path, seed: int) -> None:
    """Two processes run the same pipeline at once, again and again, with workers that die."""
    from threading import Thread

    shop, random = Shop(tmp_path), Random(seed)
    for _ in range(3):
        shop.sell(some_orders(random, 30))
        threads = [Thread(target=run_victim, args=(tmp_path, "--kill-workers")) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(shop)
    clean(shop)


def run_victim(folder: Path, *arguments: str) -> dict[str, str]:
    """One driver, until its end; what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with TemporaryDirectory(prefix="hf-") as scratch, (folder / f"said-{os.urandom(4).hex()}").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.pipeline_victim", str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
            env={**kept, "TMPDIR": scratch},
        )
        try:
            output, _ = process.communicate(timeout=600)
        finally:
            kill_session(process.pid)
            process.wait(60)
        said.seek(0)
        assert process.returncode in (0, -9), said.read()[-3000:]
    return {} if not output else json.loads(output)  # type: ignore[no-any-return]
