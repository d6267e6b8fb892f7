from __future__ import annotations

import select
from pathlib import Path

import pytest

import holdfast
from tests.cli.conftest import PATIENCE, Run, Spawn, objects, segment_files

pytestmark = pytest.mark.disk


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], range(25, 35)), (["-n", "3"], range(32, 35)), (["-n", "0"], range(0)), (["--number", "99"], range(35))],
)
def test_tail_prints_the_last_records(run: Run, sealed_log: Path, options: list[str], expected: range) -> None:
    """The last ten, or so many as are asked for, across segments and tail."""
    result = run("tail", sealed_log, "orders", "--json", *options)
    assert (result.exit_code, [line["offset"] for line in objects(result.stdout)]) == (0, list(expected))


def test_tail_touches_only_the_files_it_needs(run: Run, sealed_log: Path) -> None:
    """Older segments may be missing: the last records do not need them."""
    for file in segment_files(sealed_log)[:2]:
        file.unlink()
    assert run("tail", sealed_log, "orders", "--raw").stdout.splitlines() == [f"payload-{n}" for n in range(25, 35)]


def test_tail_of_several_partitions_is_that_of_each(run: Run, log: Path) -> None:
    """So many records of each partition, or only of those that are named."""
    with holdfast.open(log) as opened:
        for number in range(6):
            opened.topic("idle").append(b"%d" % number, partition=number % 2)
    lines = objects(run("tail", log, "idle", "-n", 2, "--json").stdout)
    assert sorted((line["partition"], line["payload"]) for line in lines) == [(0, "2"), (0, "4"), (1, "3"), (1, "5")]
    assert run("tail", log, "idle", "-n", 2, "--partition", 1, "--raw").stdout == "3\n5\n"


def test_tail_of_a_typed_topic_prints_rows(run: Run, sealed_log: Path) -> None:
    """Rows are JSON, in text as well."""
    assert run("tail", sealed_log, "rows", "-n", 2).stdout.splitlines() == [
        '0        1  1970-01-01T00:00:00.000000Z  {"a":1,"s":null}',
        '0        2  1970-01-01T00:00:02.000000Z  {"a":2,"s":"two"}',
    ]


@pytest.mark.parametrize("topic", ["orders", "rows"])
def test_tail_follows_beside_an_owner(spawn: Spawn, sealed_log: Path, topic: str) -> None:
    """With -f what comes is printed once each, also when it is sealed meanwhile, while another process owns the log."""
    process = spawn("tail", sealed_log, topic, "-n", 1, "-f", "--json")
    assert process.stdout is not None
    (last,) = objects(process.stdout.readline().decode())
    with holdfast.open(sealed_log) as opened:
        target = opened.topic("orders") if topic == "orders" else opened.topic("rows", schema="latest")
        for number in range(1, 4):
            target.append(b"new" if topic == "orders" else {"a": 7})
            opened.seal(topic)
            (line,) = objects(process.stdout.readline().decode())
            assert line["offset"] == last["offset"] + number


def test_following_nothing_yet_begins_with_the_next(spawn: Spawn, sealed_log: Path) -> None:
    """With -n 0 -f only new records are printed."""
    process = spawn("tail", sealed_log, "orders", "-n", 0, "-f", "--raw")
    assert process.stdout is not None
    with holdfast.open(sealed_log) as opened:
        topic = opened.topic("orders")
        for _ in range(PATIENCE * 10):  # nobody can tell from outside when it has begun to follow
            topic.append(b"new")
            opened.flush()
            if select.select([process.stdout], [], [], 0.1)[0]:
                break
    assert process.stdout.readline() == b"new\n"


def test_damage_and_wrong_usage_have_their_exit_codes(run: Run, sealed_log: Path) -> None:
    """A missing segment among the last records is 3, a missing topic 1, a contradiction 2."""
    segment_files(sealed_log)[-1].unlink()
    damaged = run("tail", sealed_log, "orders")
    assert (damaged.exit_code, "error: a segment is missing" in damaged.stderr) == (3, True)
    assert run("tail", sealed_log, "nothing").exit_code == 1
    assert run("tail", sealed_log, "orders", "--raw", "--json").exit_code == 2
    assert run("tail", sealed_log, "orders", "-n", "-1").exit_code == 2
