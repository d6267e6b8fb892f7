"""What a pipeline keeps of its runs, and what it counts: without Spark, by tables that cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Unavailable
from holdfast.testing import ManualClock
from pyspark_holdfast.pipeline import Pipeline, table

pytestmark = pytest.mark.disk


@table
def copies(orders):  # type: ignore[no-untyped-def]
    return orders


def made(folder: Path, clock: ManualClock) -> Pipeline:
    return Pipeline("shop", root=folder / "log", tables=folder / "tables", of=[copies], clock=clock)


def runs(folder: Path) -> int:
    return len(list((folder / "tables" / "_reports" / "runs").iterdir()))


def test_the_start_of_spark_is_no_tables_time(tmp_path: Path) -> None:
    """It is the run's: the table that happens to be the first did not take it."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append(b"x")
        log.seal()
    clock = ManualClock()

    def start() -> object:
        clock.advance(100)
        raise Unavailable("no Spark today")

    report = made(tmp_path, clock).run(start)  # type: ignore[arg-type]
    assert (report.tables[0].error, report.tables[0].seconds) == ("no Spark today", 0)
    assert report.seconds == 100


def test_that_nothing_is_new_is_kept_once_a_minute(tmp_path: Path) -> None:
    """A service that looks each second does not fill the disk; who opens the page sees that it lives."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("others").append(b"x")
        log.seal()
    clock = ManualClock()
    pipeline = made(tmp_path, clock)
    for _ in range(61):
        assert pipeline.run().tables[0].outcome == "unchanged"
        clock.advance(1)
    assert runs(tmp_path) == 2


def test_failures_are_kept_each_time(tmp_path: Path) -> None:
    """Each is a run that somebody may ask about."""
    clock = ManualClock()
    pipeline = made(tmp_path, clock)
    for _ in range(3):
        assert pipeline.run().tables[0].outcome == "failed"
        clock.advance(1)
    assert runs(tmp_path) == 3
