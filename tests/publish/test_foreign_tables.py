"""Tables that somebody else has written to, and logs of tables that are not what they should be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Corrupt, HoldfastError, Invalid, Keyring, NotFound, publish_tables
from holdfast.publish.delta import delta_log
from holdfast.publish.delta.delta_log import ForeignCommit
from tests.publish.test_delta_table import fill
from tests.publish.worlds import World, delta_rows, files_below, log_folder

pytestmark = pytest.mark.disk

NOTE = b'{"commitInfo":{"timestamp":1,"operation":"VACUUM START","operationParameters":{}}}\n'
REMOVED = b'{"remove":{"path":"0/segments/x.parquet","deletionTimestamp":1,"dataChange":true}}\n'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    fill(made)
    made.publisher().publish("orders")
    fill(made)
    yield made
    made.close()


def commit(world: World, version: int) -> Path:
    return log_folder(world.table("orders")) / f"{version:020d}.json"


def test_a_foreign_commit_is_found_and_never_overwritten(world: World):
    commit(world, 1).write_bytes(NOTE + REMOVED)
    before = files_below(world.root)
    for _ in range(2):
        with pytest.raises(ForeignCommit, match="version=1") as found:
            world.publisher().publish("orders")
        assert "unpublish" in found.value.hint
    assert files_below(world.root) == before
    report = world.publisher().state("orders")
    assert report is not None
    assert (report.state, "another writer" in str(report.reason)) == ("foreign", True)
    world.publisher().unpublish("orders")  # the remedy
    world.publisher().publish("orders")
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_a_foreign_commit_in_the_very_slot_is_found(world: World):
    """It comes between our look and our commit."""
    from holdfast.store.directory import DirectoryStore
    from tests.publish.counting_store import CLOCK, CountingStore, publisher_of

    store = CountingStore(DirectoryStore(world.root, CLOCK))
    store.before_create = [lambda: commit(world, 1).write_bytes(REMOVED)]
    with pytest.raises(ForeignCommit):
        publisher_of(store).publish("orders")
    assert commit(world, 1).read_bytes() == REMOVED


def test_notes_that_change_nothing_are_passed_over(world: World):
    """A VACUUM of an engine that asks nobody tells in the log that it was here."""
    commit(world, 1).write_bytes(NOTE)
    commit(world, 2).write_bytes(NOTE)
    assert world.publisher().publish("orders").version == 3
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_a_commit_of_another_log_is_foreign(world: World):
    lines = commit(world, 0).read_text().replace(world.log.id, "0" * 32)
    commit(world, 1).write_text(lines)
    with pytest.raises(ForeignCommit):
        world.publisher().publish("orders")


def test_a_table_that_is_not_ours_is_left_alone(world: World):
    fill(world, "other")
    folder = log_folder(world.table("other"))
    folder.mkdir()
    (folder / f"{0:020d}.json").write_bytes(NOTE + REMOVED)
    with pytest.raises(ForeignCommit):
        world.publisher().publish("other")
    with pytest.raises(Invalid, match="not made by holdfast"):
        world.publisher().unpublish("other")
    assert world.publisher().unpublish("other", force=True) == 1


def hostile() -> dict[str, bytes]:
    ours = {"format": 1, "log": "LOG", "topic": "orders", "table": "t", "created_ms": 0, "metadata": "",
            "delete_after_ms": 0, "files": 0, "rows": 0, "bytes": 0, "cursors": {}}  # fmt: skip

    def info(**changed: object) -> bytes:
        return json.dumps({"commitInfo": {"holdfast": {**ours, **changed}}}).encode() + b"\n"

    return {
        "empty": b"",
        "no json": b"\x00\xff" * 100,
        "half a line": b'{"commitInfo":{"holdfast"',
        "a list": b"[1,2,3]\n",
        "deep": b'{"commitInfo":' * 100_000,
        "many lines": b"{}\n" * 100_000,
        "one long line": b'{"commitInfo":"' + b"x" * 2_000_000 + b'"}\n',
        "wrong types": b'{"commitInfo":{"holdfast":{"format":"one"}}}\n',
        "negative": info(rows=-5),
        "cursor of text": info(cursors={"0": "x"}),
        "cursor behind": info(cursors={"0": [-7, 0, 0, "", 0, 0]}),
        "cursor beyond": info(cursors={"0": [5, 9, 0, "0" * 64, 0, 0]}),
        "partition of text": info(cursors={"../0": [0, 1, 3, "0" * 64, 0, 0]}),
        "huge number": info(rows=2**70),
        "another chain": info(cursors={"0": [0, 1, 3, "0" * 64, 0, 0], "1": [0, 1, 2, "1" * 64, 0, 0]}),
    }


@pytest.mark.sampled(99)
@pytest.mark.parametrize("kind", hostile())
def test_hostile_commits_are_typed_errors(world: World, kind: str):
    """Whatever lies in the log: an error of ours, nothing changed, nothing large read."""
    commit(world, 1).write_bytes(hostile()[kind].replace(b"LOG", world.log.id.encode()))
    before = files_below(world.root)
    with pytest.raises((Corrupt, Invalid)) as found:
        world.publisher().publish("orders")
    assert found.value.hint
    assert files_below(world.root) == before
    assert world.publisher().unpublish("orders") == 2


def test_a_newer_holdfasts_commit_asks_for_an_upgrade(world: World):
    commit(world, 1).write_text(commit(world, 0).read_text().replace('"format":1', '"format":2', 1))
    with pytest.raises(Invalid, match="another version of holdfast"):
        world.publisher().publish("orders")


def test_a_huge_commit_is_not_read(world: World):
    with commit(world, 1).open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises((Corrupt, Invalid)):
        world.publisher().publish("orders")


def test_a_link_in_place_of_a_commit_or_of_the_log_is_refused(world: World, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_bytes(commit(world, 0).read_bytes())
    os.symlink(secret / "file", commit(world, 1))
    assert world.publisher().publish("orders", dry_run=True).version == 0  # a link is no object
    with pytest.raises(HoldfastError):
        world.publisher().publish("orders")
    commit(world, 1).unlink()
    folder = log_folder(world.table("orders"))
    folder.rename(secret / "log")
    os.symlink(secret / "log", folder)
    with pytest.raises(Corrupt):
        world.publisher().publish("orders")


def test_a_missing_commit_is_found(world: World):
    world.publisher().publish("orders")
    fill(world)
    world.publisher().publish("orders")
    commit(world, 1).unlink()
    fill(world)
    with pytest.raises(Corrupt, match="missing"):
        world.publisher().publish("orders")


@pytest.mark.parametrize("hint", [b"", b"{", b'{"version":"x"}', b'{"version":-3}', b'{"version":999}', b"x" * 100_000])
def test_a_hint_that_makes_no_sense_is_passed_over(world: World, monkeypatch: pytest.MonkeyPatch, hint: bytes):
    monkeypatch.setattr(delta_log, "_CHECKPOINT_LEAST", 1)
    world.publisher().publish("orders")
    (log_folder(world.table("orders")) / "_last_checkpoint").write_bytes(hint)
    fill(world)
    assert world.publisher().publish("orders").version == 2
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_an_encrypted_log_is_refused(tmp_path: Path):
    import holdfast

    with holdfast.open(tmp_path / "log", keyring=Keyring.generate()) as log:
        log.topic("orders").append(b"secret")
        log.seal()
    with pytest.raises(Invalid, match="encrypted"):
        publish_tables(tmp_path / "log")
    assert not list((tmp_path / "log").rglob("_delta_log"))


def test_where_there_is_no_root_there_is_nothing_to_publish(tmp_path: Path):
    with pytest.raises(NotFound):
        publish_tables(tmp_path)


def test_lost_segments_are_not_in_the_table(tmp_path: Path):
    """A filler stands for rows that are gone: the table goes on behind them."""
    import msgspec

    from holdfast.model.segment import NO_CONTENT
    from holdfast.publish.table_change import Cursor, shown
    from tests.unit.test_rewrites import manifest

    segments = manifest(3)
    segments[1] = msgspec.structs.replace(segments[1], size=0, content=NO_CONTENT.hex())
    files = shown(segments, [], Cursor(slot=5, number=3, settled=30))
    assert [file.segment.number for file in files] == [0, 2]
