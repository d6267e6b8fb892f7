"""Runs again and again: pauses, signals, and a pipeline that waits for its first record without any Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest

import holdfast
from holdfast.errors import Invalid, Unavailable
from pyspark_holdfast.pipeline import Pipeline, RunReport, TableReport
from pyspark_holdfast.pipeline.repeating import interval_of, pause_after, repeat, stopping
from pyspark_holdfast.pipeline.run_report import Outcome
from tests.pipeline.test_table_order import made

pytestmark = pytest.mark.disk


def report(outcome: Outcome) -> RunReport:
    one = TableReport(name="a", kind="append", outcome=outcome, place="")
    return RunReport(pipeline="p", id="0", started_ms=0, seconds=0.0, tables=[one])


def test_failures_are_waited_out() -> None:
    assert [pause_after(failures, 10) for failures in (0, 1, 2, 3)] == [10, 20, 40, 80]
    assert pause_after(1000, 10) == 300
    assert pause_after(1, 0) == 2
    assert pause_after(5, 3600) == 3600


def test_runs_go_on_until_they_are_stopped() -> None:
    stop, runs = Event(), []

    def run() -> RunReport:
        runs.append(len(runs))
        if len(runs) == 3:
            stop.set()
        return report("unchanged")

    assert repeat(run, 0.0, stop) == report("unchanged")
    assert runs == [0, 1, 2]


@pytest.mark.parametrize("wrong", ["30", "-1s", -1, float("nan"), 1e12])
def test_what_is_no_interval_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid):
        interval_of(wrong)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_and_a_second_one_interrupts(number: int) -> None:
    stop, before = Event(), signal.getsignal(number)
    with stopping(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            Event().wait(10)
    assert signal.getsignal(number) == before


def no_spark() -> Any:
    raise AssertionError("there is nothing for Spark to do")


def test_a_pipeline_waits_for_its_topic(tmp_path: Path) -> None:
    """It may be started before the first record is settled, and says what it waits for."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append(b"not ours")
        log.seal()
    pipeline = Pipeline(
        "p", root=tmp_path / "log", tables=tmp_path / "tables", of=[made("a", "ordres"), made("b", "a")], reports=False
    )
    found = pipeline.run(no_spark)
    assert [one.outcome for one in found.tables] == ["unchanged", "unchanged"]
    assert "did you mean 'orders'" in found.tables[0].note
    assert "waiting for table 'a'" in found.tables[1].note
    assert [(one.version, one.lag, one.error) for one in pipeline.status()] == [(-1, 0, "")] * 2
    assert not (tmp_path / "tables").exists()


def test_a_root_that_is_not_there_fails_its_tables(tmp_path: Path) -> None:
    pipeline = Pipeline(
        "p", root=tmp_path / "log", tables=tmp_path / "tables", of=[made("a", "orders"), made("b", "a")]
    )
    found = pipeline.run(no_spark)
    assert [one.outcome for one in found.tables] == ["failed", "skipped"]
    assert found.tables[0].error_kind == "NotFound"
    assert not found.is_fine
    assert pipeline.status()[0].error


def test_a_remote_session_is_refused(tmp_path: Path) -> None:
    """It has no tasks of ours; said before anything is tried."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append(b"x")
        log.seal()
    pipeline = Pipeline("p", root=tmp_path / "log", tables=tmp_path / "tables", of=[made("a", "orders")], reports=False)
    (found,) = pipeline.run(lambda: object()).tables  # type: ignore[arg-type, return-value]
    assert "session is remote" in found.error
    assert found.hint


def test_a_pipeline_does_not_run_twice_at_once(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders")
    pipeline = Pipeline("p", root=tmp_path / "log", tables=tmp_path / "tables", of=[made("a", "orders")], reports=False)

    def again(line: str) -> None:
        with pytest.raises(Unavailable, match="at work already"):
            pipeline.run(no_spark)
        said.append(line)

    said: list[str] = []
    pipeline.run(no_spark, progress=again)
    assert said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a/b"}, "cannot be called"),
        ({"options": {"asOf": "1"}}, "says itself what is read"),
        ({"options": {"keyrnig": "env:A"}}, "did you mean keyring"),
        ({"keep": "7"}, "unit of time"),
        ({"tables": "ftp://x/y"}, "does not support this store"),
    ],
)
def test_mistakes_are_reported_before_anything_is_opened(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    given = {"name": "p", "root": tmp_path / "log", "tables": tmp_path / "tables", "of": [made("a", "x")], **arguments}
    with pytest.raises(Invalid, match=message):
        Pipeline(given.pop("name"), **given)


def test_tables_do_not_lie_in_the_root(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        log.topic("x").append(b"x")
        log.seal()
    for place in (tmp_path / "log", tmp_path / "log" / "tables", tmp_path / "log" / "segments" / "tables"):
        with pytest.raises(Invalid, match="inside the root"):
            Pipeline("p", root=tmp_path / "log", tables=place, of=[made("a", "x")])
    Pipeline("p", root=tmp_path / "log", tables=tmp_path / "log-tables", of=[made("a", "x")])


SERVICE = """
import sys
from pathlib import Path
from pyspark_holdfast.pipeline import Pipeline
from tests.pipeline.test_table_order import made
pipeline = Pipeline("p", root=sys.argv[1], tables=sys.argv[2], of=[made("a", "orders")], reports=False)
last = pipeline.run_every("50ms", progress=lambda line: print(line, flush=True))
print("stopped", last.is_fine, flush=True)
"""


def test_a_service_ends_well_when_it_is_asked_to(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(tmp_path / "log"), str(tmp_path / "tables")],
        stdout=subprocess.PIPE,
        text=True,
    )
    guard = Timer(60, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert all("waiting for topic 'orders': nothing is settled" in line for line in lines), lines
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().endswith("stopped True\n")
        assert process.wait(30) == 0
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
