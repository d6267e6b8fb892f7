from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.cli.conftest import Owner, Run, objects, segment_files

pytestmark = pytest.mark.disk


def sealed(path: Path, topic: str = "orders") -> int:
    with holdfast.open(path, read_only=True) as log:
        return log.marks(topic)[0].sealed


def test_seal_tells_what_it_sealed_of_each_partition(run: Run, sealed_log: Path) -> None:
    """Everything durable lies in segments when it returns, and each partition has its line."""
    result = run("seal", sealed_log, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert objects(result.stdout) == [
        {"topic": "idle", "partition": 0, "records": 0, "segments": 0, "sealed": 0, "index": None},
        {"topic": "idle", "partition": 1, "records": 0, "segments": 0, "sealed": 0, "index": None},
        {"topic": "orders", "partition": 0, "records": 5, "segments": 1, "sealed": 35, "index": 3},
        {"topic": "rows", "partition": 0, "records": 1, "segments": 1, "sealed": 3, "index": 1},
    ]
    assert len(segment_files(sealed_log)) == 4
    assert run("reconcile", sealed_log, "--deep").exit_code == 0


def test_sealing_again_seals_nothing(run: Run, sealed_log: Path) -> None:
    """A second seal has nothing to do and says so."""
    run("seal", sealed_log)
    assert [line["records"] for line in objects(run("seal", sealed_log, "--json").stdout)] == [0, 0, 0, 0]
    assert len(segment_files(sealed_log)) == 4


def test_only_the_topics_that_are_named_are_sealed(run: Run, sealed_log: Path) -> None:
    """With topics, the others keep their tails, also when the log is let go."""
    result = run("seal", sealed_log, "rows")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["topic", "rows"]
    assert (sealed(sealed_log, "rows"), sealed(sealed_log)) == (3, 30)


def test_a_tail_that_is_due_anyway_is_reported_as_well(run: Run, log: Path) -> None:
    """What opening the log begins to seal by itself is part of what was sealed."""
    result = run("seal", log, "orders", "--json", HOLDFAST_SEGMENTS__ROWS_MAX="1")
    assert objects(result.stdout)[0]["records"] == 10


def test_an_unknown_topic_seals_nothing(run: Run, sealed_log: Path) -> None:
    """A topic that does not exist is refused before any other is sealed."""
    result = run("seal", sealed_log, "orders", "nothing")
    assert (result.exit_code, "error: there is no topic 'nothing'" in result.stderr) == (1, True)
    assert sealed(sealed_log) == 30


def test_the_owner_of_a_log_seals_it(run: Run, owner: Owner, log: Path) -> None:
    """Asked from beside it."""
    result = run("seal", log)
    assert (result.exit_code, result.stderr) == (0, "")
    assert sealed(log) == 11


@pytest.mark.parametrize("verb", [["seal"], ["retain"], ["reconcile", "--fix"], ["topics"], ["reconcile"]])
def test_no_log_is_created(run: Run, verb: list[str]) -> None:
    """Verbs that work on a log create none."""
    result = run(verb[0], "nowhere", *verb[1:])
    assert (result.exit_code, Path("nowhere").exists()) == (1, False)


def test_time_needs_a_unit(run: Run, sealed_log: Path) -> None:
    """A number without a unit is wrong usage: nothing is guessed."""
    assert run("seal", sealed_log, "--timeout", "5").exit_code == 2
    assert run("seal", sealed_log, "--timeout", "1min").exit_code == 0


def test_too_little_time_is_reported_and_nothing_is_lost(run: Run, sealed_log: Path) -> None:
    """When it is not done in time the exit code is 1, and every record can still be read."""
    result = run("seal", sealed_log, "orders", "--timeout", "0s")
    assert (result.exit_code, "hint: everything is durable as before" in result.stderr) == (1, True)
    assert len(run("read", sealed_log, "orders").stdout.splitlines()) == 35
