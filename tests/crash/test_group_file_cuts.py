"""Power cuts while groups become durable in files, move to the database, are sealed, and files are used anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast import Settings
from holdfast.journal.commit import writer
from holdfast.journal.group_file.group_file import GroupFile
from holdfast.journal.group_file.late_rows import LateRows
from holdfast.journal.sqlite.filed_groups import FiledGroups
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
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


def unsynced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupFile, "sync", lambda self: None)


def stored_without_a_commit(patch: pytest.MonkeyPatch) -> None:
    """Folding forgets what is late, and moves the place where a scan begins, although nothing was stored."""

    def fold(self: FiledGroups) -> None:
        self.late = LateRows()

    patch.setattr(FiledGroups, "fold", fold)


def trimmed_too_early(patch: pytest.MonkeyPatch) -> None:
    """Files are let go while the transaction that removes their entries is open."""
    trim = SqliteBackend.trim_entries

    def hasty_trim(self: SqliteBackend, *args: int) -> Counter[int]:
        assert self.filed.writer is not None
        self.filed.writer._empty = [None]  # type: ignore[list-item]  # no room for one more: it is removed
        self.filed.writer.trimmed(trim(self, *args))
        self.filed.writer._empty.clear()
        return Counter()

    patch.setattr(SqliteBackend, "trim_entries", hasty_trim)


@pytest.mark.parametrize("bug", [unsynced, stored_without_a_commit, trimmed_too_early])
def test_this_test_would_notice(bug, tmp_path, monkeypatch):
    """Planted bugs: some state has lost an acknowledged record."""
    with monkeypatch.context() as patch:
        bug(patch)
        try:
            cuts = life(tmp_path / "disk")
        except holdfast.HoldfastError:
            return  # it noticed by itself
    after = [cuts[i + 1] for i, cut in enumerate(cuts[:-1]) if cut.op == "delete" and "/groups/" in cut.name]
    with pytest.raises(AssertionError, match="lost:|Corrupt|Invalid"):
        examine([*after, *reversed(cuts[len(cuts) // 3 :: 25])], look, tmp_path / "states", 4)
