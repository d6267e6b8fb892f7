"""Power cuts while groups become durable in files, move to the database, are sealed, and files are used anew."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Settings
from holdfast.journal.commit import writer
from holdfast.journal.groups.preallocated_file import GroupFile
from tests.harness.cuts import Cut, examine, record

pytestmark = pytest.mark.crash

SETTINGS = Settings.from_mapping({"journal": {"group_file_bytes": "64KiB"}, "segments": {"seal_on_close": False}})
SIZE = 6000


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups reach the database after a few entries."""
    monkeypatch.setattr(writer, "_LATE_ENTRIES_MAX", 4)


def life(root: Path) -> list[Cut[int]]:
    """Appends of three generations of files, sealed and trimmed in between, and two owners; promises a count."""
    acked = 0

    def live(_disk: object) -> None:
        nonlocal acked
        for _ in range(2):
            with holdfast.open(root / "log", settings=SETTINGS) as log:
                for i in range(40):
                    log.topic("t").append(b"%d " % acked + bytes(SIZE))
                    acked += 1
                    preparing = log._journal._backend.filed.writer
                    if preparing is not None and preparing._preparing is not None:
                        preparing._preparing.join()  # each life has the same steps
                    if i % 13 == 12:
                        log.seal()

    return record(root, live, lambda: acked)


def look(copy: Path, acked: int) -> None:
    """All that was acknowledged, in order, and at most the group that was on its way; the log goes on."""
    if not acked and not (copy / "log" / "durable.db").exists():
        return
    with holdfast.open(copy / "log", settings=SETTINGS) as log:
        topic = log.topic("t")
        found = [record.payload for record in topic.read()]
        assert len(found) >= acked, f"lost: {acked - len(found)}"
        assert found == [b"%d " % i + bytes(SIZE) for i in range(len(found))]
        assert len(found) <= acked + 1
        assert topic.append(b"on").offset == len(found)


def test_every_state_after_a_cut_holds_what_was_acknowledged(tmp_path, some):
    """At sampled steps; those on files of groups are among them."""
    cuts = life(tmp_path / "disk")
    ours = [cut for cut in cuts if "/groups/" in cut.name]
    assert {"write", "sync", "link", "delete"} <= {cut.op for cut in ours}, "not all that happens to files was met"
    sample = [*some(ours, 14, full=40), *some(cuts[5:], 6, full=14), cuts[-1]]
    assert examine(sample, look, tmp_path / "states", 3) > len(sample)


def test_this_test_would_notice_a_group_that_was_not_synced(tmp_path, monkeypatch):
    """The planted bug: some state has lost an acknowledged record."""
    with monkeypatch.context() as patch:
        patch.setattr(GroupFile, "sync", lambda self: None)
        cuts = life(tmp_path / "disk")
    with pytest.raises(AssertionError, match="lost:"):
        examine(reversed(cuts[len(cuts) // 3 :: 25]), look, tmp_path / "states", 4)
