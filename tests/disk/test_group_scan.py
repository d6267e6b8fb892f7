"""What a scan of files of groups takes: all that an owner says is durable and no more; or all, made durable first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.disk.test_group_files import frames, patch

import holdfast
from holdfast import Settings
from holdfast.journal.groups.group_files import GroupFiles
from holdfast.journal.groups.group_scan import GroupScan
from holdfast.journal.groups.preallocated_file import FRAMES_BEGIN, GroupFile

pytestmark = pytest.mark.disk

SETTINGS = Settings.from_mapping({"segments": {"seal_on_close": False}})
COUNT = 6


class Syncs:
    """How often files of groups were synced."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, file: GroupFile) -> None:
        self.count += 1


class Filed:
    """A log with some groups in one file alone, and where they begin."""

    def __init__(self, path: Path) -> None:
        self.log = holdfast.open(path, settings=SETTINGS)
        topic = self.log.topic("t")
        backend = self.log._journal._backend
        with backend.reading() as rows:
            (self.before,) = rows.connection.execute("SELECT groups FROM log").fetchone()  # type: ignore[misc]
        for number in range(COUNT):
            topic.append(b"%d" % number)
        self.files = GroupFiles(backend.path)
        self.files.log_id = backend.filed.files.log_id
        (self.file,) = self.files.numbers()

    def entries(self, scan: GroupScan, durable: int | None, *, ahead: int = 0) -> int:
        """How many entries a look gives, where the database has the first groups `ahead`."""
        durable = None if durable is None else self.before + durable
        return len(scan.late(self.before + ahead, self.file, FRAMES_BEGIN, durable).entries)


@pytest.fixture
def filed(tmp_path: Path) -> Filed:
    return Filed(tmp_path / "log")


@pytest.fixture
def syncs(filed: Filed, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    counted = Syncs()
    monkeypatch.setattr(GroupFile, "sync", lambda file: counted(file))
    return counted


def test_no_group_is_taken_that_the_owner_does_not_say_is_durable(filed: Filed, syncs: Syncs) -> None:
    for durable in range(COUNT + 1):
        assert filed.entries(GroupScan(filed.files), durable) == durable
    growing = GroupScan(filed.files)
    assert [filed.entries(growing, durable) for durable in (0, 2, 2, 5, 6)] == [0, 2, 2, 5, 6]
    assert syncs.count == 0
    filed.log.close()


def test_what_nobody_says_is_durable_is_synced_before_it_is_taken(filed: Filed, syncs: Syncs) -> None:
    scan = GroupScan(filed.files)
    assert (filed.entries(scan, None), syncs.count) == (COUNT, 1)
    assert (filed.entries(scan, None), syncs.count) == (COUNT, 1)  # nothing new, nothing to do
    filed.log.close()


def test_what_was_shown_stays_whatever_the_next_owner_says_at_first(filed: Filed, syncs: Syncs) -> None:
    """Its own sync may end later than ours. Also when the database has changed, and the scan begins anew."""
    scan = GroupScan(filed.files)
    assert filed.entries(scan, None) == COUNT
    assert filed.entries(scan, 3) == COUNT
    assert filed.entries(scan, 3, ahead=2) == COUNT - 2
    filed.log.close()


def test_a_sync_that_failed_is_made_up_for_before_anything_is_shown(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an owner says meanwhile that it is durable: it may be another one that says it."""

    def broken(file: GroupFile) -> None:
        raise OSError(5, "the disk failed")

    scan = GroupScan(filed.files)
    monkeypatch.setattr(GroupFile, "sync", broken)
    with pytest.raises(holdfast.Unavailable):
        filed.entries(scan, None)
    counted = Syncs()
    monkeypatch.setattr(GroupFile, "sync", lambda file: counted(file))
    assert filed.entries(scan, COUNT) == COUNT
    assert counted.count == 1
    monkeypatch.undo()
    filed.log.close()


def test_groups_behind_what_is_durable_are_no_damage(filed: Filed, syncs: Syncs) -> None:
    """Whatever lies there: an owner may be writing it."""
    path = filed.files.path(filed.file)
    second, size = frames(path)[1]
    before = path.read_bytes()[second : second + size]
    patch(path, second, b"torn")
    found = GroupScan(filed.files).late(filed.before, filed.file, FRAMES_BEGIN, filed.before + 1)
    assert (len(found.entries), found.damage) == (1, None)
    found = GroupScan(filed.files).late(filed.before, filed.file, FRAMES_BEGIN, filed.before + 2)
    assert found.damage is not None
    patch(path, second, before)
    filed.log.close()
