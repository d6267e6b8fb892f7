"""An alarm is seen without configuration, once per burst; and nothing that hears it can do harm.

Who hears what, and how logging is configured, is a matter of a whole process: each case is a program of its own.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Closed, Unavailable
from holdfast.journal.commit.commit_alarms import CommitAlarms
from holdfast.shipping.shipping_marks import say
from holdfast.telemetry.burst import Burst
from holdfast.testing import ManualClock
from tests.failing_commits import fail_commits

pytestmark = pytest.mark.disk

LEFT_OUT = "this log is shipped to"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that was shipped once."""
    place = tmp_path_factory.mktemp("alarms")
    with holdfast.open(place / "log", store=place / "store") as log:
        log.topic("orders").append(b"x")
    return place / "log"


def ran(place: Path, case: str) -> tuple[str, str]:
    """What a program prints, and what is on its stderr; warnings of Python are errors there."""
    command = [sys.executable, "-W", "error", "-m", "tests.telemetry.alarm_program", str(place), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "case", ["plain", "no_propagation", "child_without_propagation", "in_a_loop", "in_a_worker", "in_a_forked_child"]
)
def test_a_warning_reaches_stderr_where_nobody_else_hears_it(shipped: Path, case: str) -> None:
    """Once, on a line of its own; in threads of a loop, in worker processes and in forked children, too."""
    out, err = ran(shipped, case)
    lines = [line for line in err.splitlines() if LEFT_OUT in line]
    assert len(lines) == 1, err
    assert out == ""
    assert "4111" not in err


@pytest.mark.parametrize("case", ["configured_later", "dict_config"])
def test_an_application_that_listens_hears_it_instead(shipped: Path, case: str) -> None:
    """Also if it begins to listen after the first log was opened."""
    out, err = ran(shipped, case)
    assert [line for line in out.splitlines() if line.startswith(f"app: {LEFT_OUT}")], out
    assert LEFT_OUT not in err


@pytest.mark.parametrize("case", ["silenced", "disabled"])
def test_an_application_that_wants_silence_has_it(shipped: Path, case: str) -> None:
    """Said in logging's own words."""
    assert ran(shipped, case) == ("", "")


@pytest.mark.parametrize("case", ["closed_stderr", "broken_stderr"])
def test_a_stderr_that_does_not_work_does_no_harm(shipped: Path, case: str) -> None:
    """Neither to the log, nor to the thread that had something to say."""
    assert ran(shipped, case)[0] == "went on\n"


def test_a_handler_that_raises_does_not_stop_the_journal(shipped: Path) -> None:
    """A full disk refuses a group; that the application's handler then fails is its own affair."""
    assert ran(shipped, "raising_handler")[0].splitlines() == ["refused", "stored at 1"]


def test_a_log_that_could_not_ship_says_so_when_it_is_closed(tmp_path: Path) -> None:
    """How many records, where they are, and what to do; no credentials."""
    _, err = ran(tmp_path / "log", "store_away")
    lines = [line for line in err.splitlines() if "closed with 1 record" in line]
    assert len(lines) == 1, err
    for part in ("durable here and shipped after the next open", f"path={tmp_path}/log-new", "store=s3://bucket"):
        assert part in lines[0]
    assert "sesame" not in err


# -- once per burst -------------------------------------------------------------------------------------------------


def actions(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [getattr(record, "action", "") for record in caplog.records if record.levelno >= level]


def test_trouble_is_reported_at_once_then_less_and_less_often() -> None:
    """After 1, 2, 4 … minutes, at most an hour; a new burst at once, unless the last line is not a minute old."""
    burst = Burst()
    moments = [second for second in range(0, 4 * 3600, 10) if burst.again(second)]
    assert moments[:6] == [0, 60, 180, 420, 900, 1860]
    assert max(later - now for now, later in pairwise(moments)) <= 3600
    assert burst.over() == 4 * 360
    last = moments[-1]
    assert not burst.again(last + 59)
    burst.over()
    assert burst.again(last + 61)


def test_a_full_disk_is_reported_once_however_many_appends_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And once more when appends are stored again."""
    caplog.set_level(logging.INFO, "holdfast")
    with holdfast.open(tmp_path / "log") as log:
        orders = log.topic("orders")
        orders.append(b"x")
        with monkeypatch.context() as patch:
            fail_commits(orders, patch, Unavailable("the disk is full", hint="free some space"))
            for _ in range(20):
                with pytest.raises(Unavailable):
                    orders.append(b"y")
        orders.append(b"z")
        assert log.stats().journal.failed_groups_total == 20
    assert actions(caplog).count("group_refused") == 1
    assert actions(caplog, logging.INFO).count("group_stored") == 1
    refused = next(record for record in caplog.records if getattr(record, "action", "") == "group_refused")
    assert "free some space" in refused.getMessage()


def test_a_tail_near_its_limit_is_reported_once_until_it_was_short(caplog: pytest.LogCaptureFixture) -> None:
    """At eight tenths; again only after it was below half."""
    alarms = CommitAlarms(ManualClock(), 1000)
    for size in (500, 790, 800, 999, 1000, 700, 900, 499, 600, 850):
        alarms.tail(size)
    assert [getattr(record, "bytes", 0) for record in caplog.records] == [800, 850]


def test_a_tail_that_grows_beside_a_sealing_that_fails_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real journal; and the failing seals are one line, not one for each attempt and partition."""
    small = {"journal": {"tail_bytes_max": 2**20, "payload_bytes_max": 2**16}, "segments": {"seal_on_close": False}}
    with holdfast.open(tmp_path / "log", settings=small) as log:

        def fail(*_: object) -> None:
            raise Unavailable("no room for a segment")

        monkeypatch.setattr(log._maintenance._roller._sealer, "seal", fail)
        orders = log.topic("orders", partitions=4)
        for number in range(14):
            orders.append(b"x" * 2**16, partition=number % 4)
        for _ in range(3):
            with pytest.raises(Unavailable):
                log.seal()
        assert log.stats().segments.seal_failures_total >= 3
    assert actions(caplog).count("tail_long") == 1
    assert actions(caplog).count("seal_failed") == 1


def test_a_journal_that_stops_says_so_after_everybody_has_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One critical line; callers do not wait for it."""
    log = holdfast.open(tmp_path / "log")
    orders = log.topic("orders")
    orders.append(b"x")
    fail_commits(orders, monkeypatch, OSError("I/O error"))
    for _ in range(3):
        with pytest.raises(holdfast.HoldfastError):
            orders.append(b"y")
    with pytest.raises(Closed):
        log.close()
    assert actions(caplog, logging.CRITICAL) == ["poisoned"]


def test_a_log_that_was_taken_over_says_so_at_every_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before anybody appends: it can only be read."""
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        log.topic("orders").append(b"x")
        log.seal()
        log.ship()
        log.topic("orders").append(b"y", durability="shipped")
        say(log._journal, fenced=9, ended="another process has taken the log over")
        log.flush()
    caplog.clear()
    with holdfast.open(tmp_path / "log", store=tmp_path / "store"):
        pass
    assert actions(caplog).count("fenced") == 1


def test_a_seal_that_is_late_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the age of what waited, on a clock that is moved by hand."""
    clock = ManualClock()
    age = {"segments": {"age_max_ms": 1000, "seal_on_close": False}}
    with holdfast.open(tmp_path / "log", settings=age, clock=clock) as log:
        roller = log._maintenance._roller
        partition = log.topic("orders")._partitions.parts[0]
        for seconds in (0.0, 30.0, 100.0, 110.0, 120.0, 0.5):
            partition.tail_since = clock.monotonic() - seconds - 1.0 or 0.001
            roller._note_lateness(partition)
    assert actions(caplog).count("seal_late") == 1
