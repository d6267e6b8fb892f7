"""A log whose directory is moved away under it writes nothing to the place that it had.

What it has open goes along. But segments and new files of groups are made by their path, and there may be nothing, or
another log by now.
"""

from __future__ import annotations

import os
import shutil
from math import inf
from pathlib import Path
from typing import Any

import pytest

import holdfast

pytestmark = pytest.mark.disk


def payloads(path: Path) -> list[bytes]:
    with holdfast.open(path, read_only=True) as log:
        assert not log.problems
        return [record.payload for record in log.topic("t").read()]


def end(log: holdfast.Log) -> None:
    with pytest.raises(holdfast.Closed, match="not where it was opened"):
        log.close()


@pytest.mark.parametrize("share", [False, True])
def test_records_of_a_moved_log_are_where_the_log_is(tmp_path: Path, *, share: bool) -> None:
    """Sealing is refused: the segment would come to the old place, and the records go from the new one."""
    old, new = tmp_path / "old", tmp_path / "new"
    log = holdfast.open(old, share=share)
    topic = log.topic("t")
    topic.append(b"first")
    os.rename(old, new)
    topic.append(b"second")
    with pytest.raises(holdfast.Closed, match="not where it was opened") as caught:
        log.seal("t")
    assert caught.value.reason == "fenced"
    end(log)
    assert not old.exists()
    assert payloads(new) == [b"first", b"second"]


@pytest.mark.parametrize("how", ["append", "submit", "batch", "keyed", "shared"])
def test_nothing_is_acknowledged_after_the_directory_was_removed(tmp_path: Path, how: str) -> None:
    """What is written to files without a name is gone with the process: an append is refused, by whichever way."""
    log = holdfast.open(tmp_path / "log", share=how == "shared")
    topic = log.topic("t")
    for _ in range(3):  # the first one goes through the database
        topic.append(b"before")
    shutil.rmtree(tmp_path / "log")
    with pytest.raises((holdfast.Closed, holdfast.OutcomeUnknown)) as caught:  # a member hears of it from its owner
        {
            "append": lambda: topic.append(b"x"),
            "shared": lambda: topic.append(b"x"),
            "submit": lambda: topic.submit(b"x").result(10),
            "batch": lambda: topic.append_batch([b"x", b"y"]),
            "keyed": lambda: topic.append(b"x", idempotency_key="k"),
        }[how]()
    assert "removed" in caught.value.message + caught.value.hint
    with pytest.raises(holdfast.Closed):
        log.close()


def test_nothing_is_acknowledged_after_the_write_ahead_log_was_removed(tmp_path: Path) -> None:
    """What is committed to a file without a name is gone with the process; a close puts it into the database."""
    log = holdfast.open(tmp_path / "log", settings={"journal": {"group_file_bytes": 0}})
    log.topic("t").append(b"before")
    (tmp_path / "log" / "durable.db-wal").unlink()
    with pytest.raises(holdfast.Closed, match="write-ahead log was removed"):
        log.topic("t").append(b"after")
    with pytest.raises(holdfast.Closed, match="write-ahead log was removed"):
        log.close()
    assert payloads(tmp_path / "log") == [b"before"]


def test_two_logs_that_had_one_path_do_not_mix(tmp_path: Path) -> None:
    """Neither segments nor files of groups of the old log come into the new one, however much both append."""
    old, new = tmp_path / "old", tmp_path / "new"
    before = holdfast.open(old)
    before.topic("t").append(b"before")
    os.rename(old, new)
    stored = [b"before"]
    with holdfast.open(old) as after:
        after.topic("t").append(b"after")
        block = [bytes(100_000)] * 10
        with pytest.raises(holdfast.Closed, match="not where it was opened"):
            for _ in range(100):
                before.topic("t").append_batch(block)
                stored += block
        end(before)
        after.topic("t").append_batch(block)
    assert payloads(old) == [b"after", *block]
    assert payloads(new) == stored


@pytest.mark.parametrize("late", ["frontier", "all"])
def test_what_is_published_late_does_not_come_to_the_old_place(tmp_path: Path, late: str) -> None:
    """Another log may have it, whose frontier would go; and what was sealed before looks as if it were withdrawn."""
    old, new = tmp_path / "old", tmp_path / "new"
    with holdfast.open(old) as log:
        log.topic("t").append(b"first")
        log.seal("t")
    log = holdfast.open(old)
    if late == "frontier":
        log.topic("t").append(b"second")
        log.seal("t")
    os.rename(old, new)
    with holdfast.open(old) as after:
        after.topic("t").append(b"after")
        after.seal("t")
    held = files(old)
    roller: Any = log._maintenance._roller  # type: ignore[attr-defined]
    roller.publishing._frontier = None
    roller.publishing.check(inf)
    roller.publishing.finish()
    assert files(old) == held
    shutil.rmtree(old)
    roller.publishing.check(inf)
    end(log)
    assert not old.exists()


def files(path: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}


def test_closing_a_moved_log_removes_nothing_of_the_one_in_its_place(tmp_path: Path) -> None:
    """Both have a first file of groups; the old log's is empty, the other one's is not."""
    old, new = tmp_path / "old", tmp_path / "new"
    before = holdfast.open(old)
    before.topic("t").append(b"before")
    before.seal("t")
    os.rename(old, new)
    with holdfast.open(old) as after:
        after.topic("t").append(b"after")
        held = sorted(path.name for path in (old / "groups").iterdir())
        end(before)
        assert sorted(path.name for path in (old / "groups").iterdir()) == held
    assert payloads(old) == [b"after"]
    assert payloads(new) == [b"before"]


def test_a_reader_of_a_moved_log_learns_of_it(tmp_path: Path) -> None:
    """Records that are in files of groups alone would not be found, and be missed."""
    old, new = tmp_path / "old", tmp_path / "new"
    log = holdfast.open(old)
    log.topic("t").append(b"first")
    reading = holdfast.open(old, read_only=True)
    assert len(list(reading.topic("t").read())) == 1
    os.rename(old, new)
    with pytest.raises(holdfast.Closed, match="not where it was opened"):
        list(reading.topic("t").read())
    reading.close()
    end(log)


@pytest.mark.parametrize("share", [False, True])
def test_a_link_that_is_pointed_elsewhere_concerns_only_who_opens_the_log_afterwards(
    tmp_path: Path, *, share: bool
) -> None:
    """As the folder `current` of a deployment: each release has its own log, and the old process ends in good order."""
    first, second, link = tmp_path / "1", tmp_path / "2", tmp_path / "current"
    for release in (first, second):
        release.mkdir()
    link.symlink_to(first)
    with holdfast.open(link / "data", share=share) as before:
        before.topic("t").append(b"one")
        link.unlink()
        link.symlink_to(second)
        with holdfast.open(link / "data", share=share) as after:
            after.topic("t").append(b"other")
        before.topic("t").append(b"two")
        before.seal()
        before.topic("t").append(b"three", idempotency_key="three")
    assert payloads(first / "data") == [b"one", b"two", b"three"]
    assert payloads(second / "data") == [b"other"]
