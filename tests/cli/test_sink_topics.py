"""Topics that sinks write, on the command line: shown as such, read, published, compacted and retired at a root."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring
from holdfast.clock import SystemClock
from holdfast.root.sink_batches import NOTHING
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from tests.cli.conftest import Run
from tests.sink_topics import SinkTopic

pytestmark = pytest.mark.store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that a log ships to, and a sink writes to; the sink's newest batch is not applied."""
    root = tmp_path / "root"
    with holdfast.open(tmp_path / "log", store=root) as log:
        log.topic("orders").append(b"1", durability="shipped")
    sink = SinkTopic(DirectoryStore(root, SystemClock()))
    sink.write({0: [[b"a", b"b"], [b"c"]], 1: [[b"d"]]})
    sink.write({0: [[b"e"]]}, applied=False)
    return root


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A root that a sink made."""
    SinkTopic(DirectoryStore(tmp_path / "alone", SystemClock())).write({0: [[b"a"], [b"b"], [b"c"]]})
    return tmp_path / "alone"


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_and_status_say_who_writes_a_topic(run: Run, root: Path) -> None:
    found = {line["topic"]: line for line in lines(run("topics", root, "--json").stdout)}
    assert {name: line["written_by"] for name, line in found.items()} == {"orders": "log", "spark": "sink"}
    assert found["spark"]["records"] == 5
    (status,) = lines(run("status", root, "--json").stdout)
    assert [topic["written_by"] for topic in status["topics"]] == ["log", "sink"]  # type: ignore[attr-defined]
    assert "sink" in run("topics", root).stdout
    assert "sink" in run("status", root).stdout


def test_a_root_that_a_sink_made_is_looked_at_like_any_other(run: Run, alone: Path) -> None:
    assert run("status", alone).exit_code == 0
    assert run("read", alone, "spark").stdout.count("\n") == 3
    assert run("compact", alone).exit_code == 0
    assert run("publish", alone, "spark").exit_code == 0
    assert run("read", alone, "spark").stdout.count("\n") == 3


def test_read_shows_the_newest_batch_of_a_sink(run: Run, root: Path) -> None:
    assert run("read", root, "spark").stdout.count("\n") == 5
    assert run("read", root, "orders").stdout.count("\n") == 1


def test_restore_says_what_it_leaves(run: Run, root: Path) -> None:
    done = run("restore", root, "again", "--yes")
    assert "not restored" in done.stdout
    assert "spark: a sink writes it" in done.stdout
    (report,) = lines(run("restore", root, "copied", "--copy", "--json").stdout)
    assert report["sink_topics"] == ["spark"]


def test_retain_retires_and_later_removes(run: Run, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is kept in the topic; files go after a while; batches and offsets stay."""
    sink = SinkTopic(DirectoryStore(alone, SystemClock()))
    done = run("retain", alone, "--topic", "spark", "--records", "1", "--json")
    (report,) = lines(done.stdout)
    (part,) = report["partitions"]  # type: ignore[misc]
    assert (part["retired"], part["records"], part["first"], part["removed_files"]) == (2, 2, 2, 0)
    assert run("read", alone, "spark").stdout.count("\n") == 1
    files = alone / layout.segments_folder("spark", 0)
    assert len(list(files.iterdir())) == 3
    monkeypatch.setenv("HOLDFAST_SHIPPING__DELETE_AFTER_MS", "1")
    assert "the clock is" in run("retain", alone).stderr
    monkeypatch.setenv("HOLDFAST_JOURNAL__CLOCK_JUMP_MAX_MS", "36500d")
    assert "2 files" in run("retain", alone).stdout
    assert len(list(files.iterdir())) == 1
    assert run("retain", alone, "--json").stdout.count("retired") == 0
    batch = sink.newest
    assert batch is not None
    assert batch.number == 0
    (topic,) = lines(run("topics", alone, "--json").stdout)
    assert (topic["records"], topic["partitions"][0]["first"]) == (1, 2)  # type: ignore[index]


def test_retain_looks_and_changes_nothing(run: Run, alone: Path) -> None:
    run("retain", alone, "--topic", "spark", "--unlimited")
    sink = SinkTopic(DirectoryStore(alone, SystemClock()))
    before = sink.objects()
    assert run("retain", alone, "--dry-run").exit_code == 0
    assert sink.objects() == before
    waits = run("retain", alone, "--topic", "spark", "--age", "1s", "--json")
    assert ('"partitions":[]' in waits.stdout, "the clock is" in waits.stderr) == (True, True)
    sure = run("retain", alone, "--json", HOLDFAST_JOURNAL__CLOCK_JUMP_MAX_MS="36500d")
    assert sure.stdout.count('"retired":2') == 1


def test_retain_removes_what_tasks_left_and_nothing_that_may_be_coming(
    run: Run, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose number another one has for good; not one with the next number, and not a young one."""
    sink = SinkTopic(DirectoryStore(alone, SystemClock()))
    batch = sink.newest
    assert batch is not None
    sink.written(0, NOTHING, [b"lost"])
    sink.written(0, batch.ends["0"], [b"coming"])
    files = alone / layout.segments_folder("spark", 0)
    assert len(list(files.iterdir())) == 5
    run("retain", alone)
    assert len(list(files.iterdir())) == 5
    for path in files.iterdir():
        os.utime(path, (1, 1))
    assert "1 file, " in run("retain", alone).stdout
    assert len(list(files.iterdir())) == 4
    assert run("read", alone, "spark").stdout.count("\n") == 3


def test_retain_leaves_the_logs_topics_to_the_log(run: Run, root: Path) -> None:
    done = run("retain", root, "--topic", "orders", "--records", "1")
    assert done.exit_code != 0
    assert "belongs to the log" in done.stderr
    assert "no topic" in run("retain", root, "--topic", "nobody", "--records", "1").stderr


def test_an_address_with_a_secret_is_refused_and_not_repeated(run: Run, tmp_path: Path) -> None:
    result = run("retain", "s3://u:hunter2@bucket/prefix")
    assert (result.exit_code, "hunter2" in result.stderr) == (2, False)
    assert not list(tmp_path.iterdir())


def test_a_keyed_root_needs_its_key(run: Run, tmp_path: Path) -> None:
    keyring = Keyring.generate("k")
    keyring.save(tmp_path / "keys")
    sink = SinkTopic(DirectoryStore(tmp_path / "alone", SystemClock()), keyring=keyring)
    sink.write({0: [[b"a"], [b"b"]]})
    refused = run("retain", tmp_path / "alone", "--topic", "spark", "--records", "1")
    assert refused.exit_code != 0
    assert "--keyring" in refused.stderr
    keys = ("--keyring", f"file:{tmp_path / 'keys'}")
    assert run("retain", tmp_path / "alone", "--topic", "spark", "--records", "1", *keys).exit_code == 0
    assert run("read", tmp_path / "alone", "spark", *keys).stdout.count("\n") == 1
