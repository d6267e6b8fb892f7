from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.cli.conftest import Owner, Run, objects, segment_files

pytestmark = pytest.mark.disk


def test_without_a_policy_nothing_goes(run: Run, sealed_log: Path) -> None:
    """A log keeps everything unless somebody says otherwise."""
    result = run("retain", sealed_log, "--json")
    assert objects(result.stdout) == [
        {"removed": [], "bytes_freed": 0, "bytes_short": 0, "dry_run": False, "bytes_waiting": 0}
    ]
    assert len(segment_files(sealed_log)) == 3


def test_a_policy_is_set_durably_and_applied(run: Run, sealed_log: Path) -> None:
    """With --topic the policy is stored in the log, then applied; each segment that went has its line."""
    sizes = [file.stat().st_size for file in segment_files(sealed_log)]
    result = run("retain", sealed_log, "--topic", "orders", "--records", 15, "--json")
    (report,) = objects(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "orders has a retention policy of its own now\n")
    assert report["removed"] == [
        {"topic": "orders", "partition": 0, "number": 0, "first": 0, "rows": 10, "bytes": sizes[0], "why": "count"}
    ]
    assert report["bytes_freed"] == sizes[0]
    assert len(segment_files(sealed_log)) == 2
    orders = objects(run("topics", sealed_log, "--json").stdout)[1]
    assert orders["retention"] == {"bytes_max": None, "age_max_us": None, "records_max": 15}
    assert run("reconcile", sealed_log, "--deep").exit_code == 0


def test_sizes_and_times_have_units(run: Run, sealed_log: Path) -> None:
    """--bytes and --age are read as settings are, and stored exactly."""
    assert run("retain", sealed_log, "--topic", "orders", "--bytes", "1GiB", "--age", "7d").exit_code == 0
    orders = objects(run("topics", sealed_log, "--json").stdout)[1]
    assert orders["retention"] == {"bytes_max": 2**30, "age_max_us": 7 * 86400 * 10**6, "records_max": None}


def test_a_topic_can_be_kept_whole(run: Run, sealed_log: Path) -> None:
    """--unlimited overrides what the settings say about the other topics."""
    setting = {"HOLDFAST_RETENTION__RECORDS_MAX": "1"}
    result = run("retain", sealed_log, "--topic", "orders", "--unlimited", "--json")
    assert result.exit_code == 0
    assert run("retain", sealed_log, "--json", **setting).exit_code == 0
    assert len(segment_files(sealed_log)) == 3


def test_a_dry_run_removes_nothing(run: Run, sealed_log: Path) -> None:
    """--dry-run says what would go by the settings, and everything is still there."""
    result = run("retain", sealed_log, "--dry-run", "--json", HOLDFAST_RETENTION__RECORDS_MAX="1")
    (report,) = objects(result.stdout)
    assert ([item["number"] for item in report["removed"]], report["dry_run"]) == ([0, 1], True)
    assert len(segment_files(sealed_log)) == 3
    with holdfast.open(sealed_log, read_only=True) as log:
        assert next(iter(log.topic("orders").read())).offset == 0


def test_a_dry_run_works_beside_an_owner(run: Run, owner: Owner, log: Path) -> None:
    """Looking needs no ownership; removing is done by the owner."""
    assert run("retain", log, "--dry-run").stdout == "would go  0 segments, 0 bytes\n"
    assert run("retain", log).stdout == "removed  0 segments, 0 bytes\n"


def test_all_that_went_is_reported_whatever_removed_it(run: Run, sealed_log: Path) -> None:
    """What opening the log removes by itself, because it is due, is in the report as well."""
    for _ in range(3):  # either may come first: the log's own chore, or the verb
        with holdfast.open(sealed_log) as opened:
            opened.topic("orders").append_batch([b"x"] * 10)
            opened.seal("orders")
        before = {int(file.name[:20]) for file in segment_files(sealed_log)}
        result = run("retain", sealed_log, "--json", HOLDFAST_RETENTION__RECORDS_MAX="1")
        (report,) = objects(result.stdout)
        gone = before - {int(file.name[:20]) for file in segment_files(sealed_log)}
        assert {item["number"] for item in report["removed"] if item["topic"] == "orders"} == gone != set()


@pytest.mark.parametrize(
    "options",
    [
        ["--records", "5"],
        ["--topic", "orders"],
        ["--topic", "orders", "--records", "5", "--unlimited"],
        ["--topic", "orders", "--records", "0"],
        ["--topic", "orders", "--age", "7"],
        ["--topic", "orders", "--bytes", "many"],
        ["--topic", "orders", "--records", "5", "--dry-run"],
    ],
)
def test_options_that_contradict_are_wrong_usage(run: Run, sealed_log: Path, options: list[str]) -> None:
    """A policy that is none exits with 2, and nothing goes."""
    assert run("retain", sealed_log, *options).exit_code == 2
    assert len(segment_files(sealed_log)) == 3


def test_an_unknown_topic_is_refused(run: Run, sealed_log: Path) -> None:
    """A policy for a topic that does not exist exits with 1."""
    assert run("retain", sealed_log, "--topic", "nothing", "--records", 1).exit_code == 1
