"""A log that compacts its own files and dies: before each step of it the power is cut, and it is killed at any moment.

Whatever is left: every record once, from the log and from its directory, nothing to reconcile, and compaction goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Settings, disk
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body
from holdfast.testing import FaultyDisk
from tests.harness.cuts import Cut, examine, record
from tests.harness.kills import Victim
from tests.segments.planting import TEN, fill

pytestmark = pytest.mark.crash

SETTINGS = Settings.from_mapping(
    {"segments": TEN, "retention": {"interval_ms": 3_600_000}, "shipping": {"delete_after_ms": 0}}
)
COUNT = 5


def opened(directory: Path) -> Log:
    return holdfast.open(directory, settings=SETTINGS)


def live(directory: Path) -> None:
    """Compact, add to it, compact again, expire the first long file."""
    with opened(directory) as log:
        fill(log, "orders", COUNT)
        log.compact()
        fill(log, "orders", COUNT)
        log.compact()
        fill(log, "orders", 1)
        log.set_retention("orders", records_max=10)
        log.retain()


def check(root: Path, _promise: object) -> None:
    """What is left is a log, and goes on."""
    directory = root / "log"
    if not (directory / "FORMAT").exists():
        return
    with opened(directory) as log:
        if "orders" not in log.topics():
            return
        require_whole(log)
        log.compact()
        require_whole(log)


def require_whole(log: Log) -> None:
    topic = log.topic("orders")
    (mark,), first = log.marks("orders"), log._journal.topics["orders"][0].sealed.first_offset
    assert [record.offset for record in topic.read()] == list(range(first, mark.durable))
    assert [record.payload for record in topic.read()] == [b"%d" % offset for offset in range(first, mark.durable)]
    report = log.reconcile(deep=True)
    assert report.clean, report.findings
    if mark.sealed is not None and (log.path / "segments" / "log.json").exists():
        got = holdfast.read(str(log.path), "orders", columns=["offset"]).to_arrow()["offset"].to_pylist()
        assert got == list(range(first, first + len(got)))


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> list[Cut[None]]:
    root = tmp_path_factory.mktemp("life") / "disk"
    root.mkdir()

    def act(_disk: FaultyDisk) -> None:
        live(root / "log")

    return record(root, act)


def of_compaction(cuts: list[Cut[None]]) -> list[Cut[None]]:
    """Steps on what only compaction writes or removes."""
    return [cut for cut in cuts if cut.ours and ("_rewrites" in cut.name or "_intents" in cut.name or _is_file(cut))]


def _is_file(cut: Cut[None]) -> bool:
    return ".holdfast-" in cut.name or (cut.op == "delete" and cut.name.endswith(".parquet"))


def test_a_cut_at_any_step_of_a_compaction_loses_nothing(cuts, tmp_path, some):
    steps = of_compaction(cuts)
    assert {cut.op for cut in steps} >= {"write", "sync", "delete"}
    assert examine(some(steps, 16), check, tmp_path / "states") >= 16


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_state_after_a_cut_at_every_step_of_a_compaction(cuts, tmp_path):
    assert examine([cut for cut in cuts if cut.ours], check, tmp_path / "states", 12) > 100


def test_files_that_are_swapped_in_before_they_are_durable_are_noticed(tmp_path, monkeypatch):
    """The planted bug: what compaction writes is not synced."""
    monkeypatch.setattr(DirectoryStore, "_write", _unsynced)
    root = tmp_path / "disk"
    root.mkdir()
    steps = of_compaction(record(root, lambda _disk: live(root / "log")))
    monkeypatch.undo()
    replaced = [cut for cut in steps if cut.op == "delete" and cut.name.endswith(".parquet")]
    with pytest.raises(AssertionError):
        examine(replaced[1:3], check, tmp_path / "states", 2)


def _unsynced(self: DirectoryStore, temporary: Path, body: Body) -> None:
    file = disk.NewFile(temporary)
    file.write(body.read())
    file.close()


def test_a_log_that_is_killed_while_it_compacts_has_every_record_once(tmp_path, some):
    directory = tmp_path / "log"
    for turns in some([1, 3, 5, 8], 2):
        victim = Victim("tests.crash.compaction_victim", directory)
        try:
            victim.until(turns, "compacted")
        finally:
            victim.kill()
        with opened(directory) as log:
            require_whole(log)
            assert log.marks("orders")[0].durable >= 10 * turns
