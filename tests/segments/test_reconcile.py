"""Reconciliation on real logs: every kind of damage is planted and found, and nothing else is; repairs are careful."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import Corrupt, Keyring, Log, Unavailable
from holdfast.log.local_parts import parts_of
from holdfast.reconcile.reconcile_loop import ReconcileLoop
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.segments.manifest import segment_folders
from holdfast.segments.segment_settings import ReconcileSettings
from holdfast.store import layout
from holdfast.testing.manual_clock import ManualClock
from tests.segments.planting import TEN, after_judging, edit, files, fill, folder, offsets, states, unreadable, wait_for

pytestmark = pytest.mark.disk

Found = set[tuple[str, str, int, int | None, str | None]]
Plant = Callable[[Log], Found]


@pytest.fixture(params=["plain", "keyed"])
def keys(request: pytest.FixtureRequest, keyring: Keyring) -> Keyring | None:
    return keyring if request.param == "keyed" else None


@pytest.fixture
def opened(open_log: Callable[..., Log], keys: Keyring | None) -> Callable[..., Log]:
    """Opens the log of this test, with its keys if it has some."""
    return lambda **options: open_log(**{"segments": TEN, "keyring": keys, **options})


@pytest.fixture
def log(opened: Callable[..., Log]) -> Log:
    return filled(opened())


@pytest.fixture
def plain(open_log: Callable[..., Log]) -> Log:
    """For what has nothing to do with keys."""
    return filled(open_log(segments=TEN))


def filled(log: Log) -> Log:
    """Three segments in each of three partitions of two topics, and a tail."""
    log.topic("orders", partitions=2)
    for name, partition in (("orders", 0), ("orders", 1), ("other", 0)):
        topic = fill(log, name, 3, partition=partition)
        topic.append(b"next", partition=partition)
    return log


def found(report: ReconcileReport) -> Found:
    got = [(f.kind, f.topic, f.partition, f.number, f.name) for f in report.findings]
    assert len(set(got)) == len(got), "a problem is reported once"
    return set(got)


# -- damage to files ------------------------------------------------------------------------------------------


def of(kind: str, path: Path, name: str = "orders", partition: int = 0) -> Found:
    """A finding about a file of a partition."""
    finished = layout.parse_segment_name(path.name)
    number = finished.number if finished else layout.parse_temporary_name(path.name)
    return {(kind, name, partition, number, path.name)}


def foreign(log: Log, path: Path) -> Found:
    """A finding about a file that belongs to no partition."""
    return {("untracked", "", -1, None, path.relative_to(log.path / "segments").as_posix())}


def planted(path: Path, content: bytes = b"what is this") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def a_missing_file(log: Log) -> Found:
    path = files(log, "orders")[1]
    path.unlink()
    return of("missing", path)


def the_newest_file_missing(log: Log) -> Found:
    path = files(log, "orders", 1)[2]
    path.unlink()
    return of("missing", path, partition=1)


def a_whole_folder_missing(log: Log) -> Found:
    paths = files(log, "orders")
    shutil.rmtree(paths[0].parent)
    return set().union(*(of("missing", path) for path in paths))


def a_truncated_file(log: Log) -> Found:
    path = files(log, "orders")[1]
    os.truncate(path, path.stat().st_size - 1)
    return of("size_mismatch", path)


def an_emptied_file(log: Log) -> Found:
    path = files(log, "orders")[2]
    os.truncate(path, 0)
    return of("size_mismatch", path)


def a_padded_file(log: Log) -> Found:
    path = files(log, "other")[0]
    with path.open("ab") as stream:
        stream.write(bytes(1000))
    return of("size_mismatch", path, "other")


def a_link_in_place_of_a_file(log: Log) -> Found:
    path = files(log, "orders")[0]
    path.rename(log.path.parent / "elsewhere")
    path.symlink_to(log.path.parent / "elsewhere")
    return of("size_mismatch", path)


def a_foreign_file(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / "notes.txt"))


def a_foreign_folder(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / "backup" / "notes.txt").parent)


def another_hash_for_a_number(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / layout.segment_name(1, b"other hash")))


def a_copy_of_a_segment_under_another_number(log: Log) -> Found:
    source = files(log, "orders")[1]
    return of("untracked", planted(folder(log, "orders") / source.name.replace("1-", "2-", 1), source.read_bytes()))


def a_dead_orphan_above_the_mark(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / layout.segment_name(3, b"dead orphan")))


def a_dead_orphan_far_above_the_mark(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / layout.segment_name(10**19, b"dead orphan")))


def a_temporary_left_over(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / layout.temporary_name(3)))


def a_temporary_of_a_sealed_segment(log: Log) -> Found:
    return of("untracked", planted(folder(log, "orders") / layout.temporary_name(1)))


def an_emptied_name_beside_its_live_file(log: Log) -> Found:
    live = files(log, "orders")[1]
    return {("untracked", "orders", 0, None, planted(live.with_name(live.name + layout.EXPIRED), b"").name)}


def an_unknown_topic(log: Log) -> Found:
    return foreign(log, planted(folder(log, "ghost") / layout.segment_name(0, b"ghost")))


def an_unknown_partition(log: Log) -> Found:
    return foreign(log, planted(folder(log, "orders", 2) / layout.segment_name(0, b"ghost")))


def a_partition_in_other_digits(log: Log) -> Found:
    """`00` is not partition 0."""
    path = log.path / "segments" / "topics" / "orders" / "00" / "segments" / layout.segment_name(0, b"ghost")
    return foreign(log, planted(path))


def a_file_at_the_top(log: Log) -> Found:
    return foreign(log, planted(log.path / "segments" / "README"))


def a_file_beside_the_folders_of_segments(log: Log) -> Found:
    return foreign(log, planted(folder(log, "orders").parent / layout.segment_name(0, b"lost")))


def a_segment_in_the_folder_above(log: Log) -> Found:
    path = files(log, "orders")[1]
    moved = path.rename(path.parent.parent / path.name)
    return of("missing", path) | foreign(log, moved)


def a_segment_in_a_later_partitions_folder(log: Log) -> Found:
    path = files(log, "orders")[1]
    moved = path.rename(folder(log, "orders", 1) / path.name)
    return of("missing", path) | of("untracked", moved, partition=1)


def a_segment_in_an_earlier_partitions_folder(log: Log) -> Found:
    path = files(log, "other")[2]
    moved = path.rename(folder(log, "orders", 0) / path.name)
    return of("missing", path, "other") | of("untracked", moved)


def a_segment_under_another_name(log: Log) -> Found:
    path = files(log, "orders")[1]
    moved = path.rename(path.with_name(path.name + ".bak"))
    return of("missing", path) | of("untracked", moved)


MISPLACED: list[Plant] = [
    a_segment_in_the_folder_above,
    a_segment_in_a_later_partitions_folder,
    a_segment_in_an_earlier_partitions_folder,
    a_segment_under_another_name,
]
GARBAGE: list[Plant] = [a_temporary_left_over, a_temporary_of_a_sealed_segment]
STRANGE: list[Plant] = [
    a_foreign_file,
    a_foreign_folder,
    another_hash_for_a_number,
    a_copy_of_a_segment_under_another_number,
    a_dead_orphan_above_the_mark,
    a_dead_orphan_far_above_the_mark,
    an_emptied_name_beside_its_live_file,
    an_unknown_topic,
    an_unknown_partition,
    a_partition_in_other_digits,
    a_file_at_the_top,
    a_file_beside_the_folders_of_segments,
]
HARMED: list[Plant] = [
    a_missing_file,
    the_newest_file_missing,
    a_whole_folder_missing,
    a_truncated_file,
    an_emptied_file,
    a_padded_file,
    a_link_in_place_of_a_file,
]


def named(plant: Plant) -> str:
    return plant.__name__


@pytest.mark.parametrize("plant", [*HARMED, *STRANGE, *GARBAGE, *MISPLACED], ids=named)
def test_planted_damage_is_found_and_nothing_else(log, plant):
    expected = plant(log)
    assert found(log.reconcile()) == expected


@pytest.mark.parametrize("plant", [*HARMED, *STRANGE, *GARBAGE, *MISPLACED], ids=named)
def test_a_deep_pass_tells_planted_damage_once(plain, plant):
    expected = plant(plain)
    assert found(plain.reconcile(deep=True)) == expected


def test_all_damage_at_once_is_found(log):
    plants = [a_missing_file, a_padded_file, *GARBAGE, *STRANGE]
    expected = set().union(*(plant(log) for plant in plants))
    assert found(log.reconcile()) == expected
    assert found(log.reconcile(deep=True)) == expected


def test_an_intact_log_has_no_finding(log):
    for deep in (False, True):
        report = log.reconcile(deep=deep)
        assert (report.findings, report.repairs, report.in_flight) == ((), (), 0)
        assert (report.segments, report.files) == (9, 9)
        size = sum(path.stat().st_size for path in log.path.rglob("*.parquet"))
        assert report.bytes_expected == report.bytes_actual == size


def test_a_log_without_anything_is_clean(opened):
    report = opened().reconcile(deep=True)
    assert (report.findings, report.segments, report.files, report.complete) == ((), 0, 0, True)


def test_the_tail_is_never_a_mismatch(opened):
    log = opened()
    log.topic("orders").append_batch([b"x"] * 5)
    report = log.reconcile(deep=True)
    assert (report.findings, report.segments, report.files) == ((), 0, 0)


def test_leftovers_of_a_partition_that_was_never_sealed_are_found(opened):
    log = opened()
    log.topic("orders").append(b"x")
    path = planted(folder(log, "orders") / layout.segment_name(0, b"dead orphan"))
    assert found(log.reconcile()) == of("untracked", path)


def test_the_file_of_an_expired_segment_that_is_back_is_found(log):
    path = files(log, "orders")[0]
    content = path.read_bytes()
    log.set_retention("orders", records_max=20)
    log.retain()
    path.write_bytes(content)
    report = log.reconcile(deep=True)
    assert found(report) == of("untracked", path)
    assert report.findings[0].garbage


def test_a_finding_says_where_and_what(log):
    path = files(log, "orders", 1)[1]
    size = path.stat().st_size
    os.truncate(path, size - 7)
    (finding,) = log.reconcile().findings
    assert (finding.topic, finding.partition, finding.number, finding.name) == ("orders", 1, 1, path.name)
    assert (finding.first, finding.rows, finding.expected, finding.actual) == (10, 10, size, size - 7)


# -- deep -----------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_flipped_byte_is_found_by_a_deep_pass_alone(log, part):
    path = files(log, "orders")[1]
    flip(path, int(path.stat().st_size * part))
    assert log.reconcile().findings == ()
    assert found(log.reconcile(deep=True)) == of("content_mismatch", path)


def test_files_that_changed_places_are_found_by_a_deep_pass(log):
    first, second = files(log, "orders")[:2]
    aside = first.rename(log.path / "aside")
    second.rename(first)
    aside.rename(second)
    equal = first.stat().st_size == second.stat().st_size
    kind = "content_mismatch" if equal else "size_mismatch"
    assert found(log.reconcile(deep=True)) == of(kind, first) | of(kind, second)


def test_a_segment_of_another_log_is_found_by_a_deep_pass(open_log, keys):
    """The same records, sealed by another log, in the place of ours."""
    logs = [
        open_log(name, segments=TEN, keyring=keys, clock=ManualClock(seed=seed))
        for seed, name in enumerate(("one", "two"))
    ]
    for log in logs:
        log.topic("orders").append_batch([b"x"] * 10, timeout=30)
        log.topic("orders").wait_sealed(10, 30)
    (ours,), (theirs,) = (files(log, "orders") for log in logs)
    ours.write_bytes(theirs.read_bytes())
    (finding,) = logs[0].reconcile(deep=True).findings
    assert finding.kind in ("content_mismatch", "size_mismatch")


def test_damage_in_one_topic_does_not_hide_damage_in_another(log):
    """Equal partition and segment numbers, different topics."""
    cut, flipped = files(log, "orders")[1], files(log, "other")[1]
    os.truncate(cut, 10)
    flip(flipped, 100)
    expected = of("size_mismatch", cut) | of("content_mismatch", flipped, "other")
    assert found(log.reconcile(deep=True)) == expected


def test_a_deep_pass_repairs_no_content(log):
    path = files(log, "orders")[1]
    flip(path, 50)
    before = path.read_bytes()
    report = log.reconcile(deep=True, fix=True)
    assert found(report) == of("content_mismatch", path)
    assert (report.repairs, path.read_bytes()) == ((), before)


# -- damage to the manifest -----------------------------------------------------------------------------------


def kinds(report: ReconcileReport) -> set[tuple[str, str, int, int | None]]:
    return {(f.kind, f.topic, f.partition, f.number) for f in report.findings}


EDITS = {
    "size": ("size = size + 1", {"size_mismatch", "content_mismatch"}),
    "sha256": ("sha256 = zeroblob(32)", {"missing", "untracked", "content_mismatch"}),
    "rows": ("rows = rows - 1", {"gap", "content_mismatch"}),
    "gap": ("first_offset = first_offset + 1, rows = rows - 1", {"gap", "content_mismatch"}),
    "overlap": ("first_offset = first_offset - 1, rows = rows + 1", {"overlap", "content_mismatch"}),
    "time": ("time_max = time_max + 1", {"content_mismatch"}),
    "sealed": ("sealed_us = 0", {"content_mismatch"}),
    "chain": ("chain = zeroblob(32)", {"content_mismatch"}),
    "stamp": ("stamp = zeroblob(length(stamp))", {"content_mismatch"}),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_rewritten_row_of_the_manifest_is_found(opened, what):
    change, expected = EDITS[what]
    with opened() as log:
        filled(log)
    edit(log.path, f"UPDATE segments SET {change} WHERE partition_id = 1 AND number = 1")
    report = opened().reconcile()
    assert {finding.kind for finding in report.findings} == expected
    assert {(finding.topic, finding.partition) for finding in report.findings} == {("orders", 0)}
    assert {finding.number for finding in report.findings} <= {1, 2}


def test_a_deleted_row_of_the_manifest_is_a_gap_for_its_readers(opened):
    with opened() as log:
        filled(log)
    edit(log.path, "DELETE FROM segments WHERE partition_id = 1 AND number = 1")
    with pytest.raises(Corrupt):
        opened()
    report = opened(read_only=True).reconcile()
    assert {finding.kind for finding in report.findings} == {"gap", "untracked"}
    assert {(finding.topic, finding.partition) for finding in report.findings} == {("orders", 0)}


def test_a_segment_called_expired_by_a_forged_row_is_not_removed(opened):
    """The row says that the file is garbage, but its stamp does not agree."""
    with opened() as log:
        filled(log)
    before = everything(log)
    edit(log.path, "UPDATE segments SET state = 3 WHERE partition_id = 1 AND number = 1")
    report = opened().reconcile(fix=True)
    assert (everything(log), report.repairs) == (before, ())
    assert any("stamp" in finding.detail for finding in report.findings)


# -- the last report ------------------------------------------------------------------------------------------


def test_there_is_no_last_report_before_the_first_pass(plain):
    assert plain.last_reconcile is None


def test_the_last_report_is_kept_with_the_time_of_its_completion(open_log):
    clock = ManualClock()
    log = open_log(segments=TEN, clock=clock)
    fill(log, "orders", 1)
    first = log.reconcile()
    clock.advance(60)
    a_foreign_file(log)
    second = log.reconcile()
    assert log.last_reconcile is second
    assert first.completed_us is not None
    assert second.completed_us == first.completed_us + 60_000_000 == clock.now_us()


def test_findings_are_counted_by_kind_in_the_stats(plain):
    for plant in (a_missing_file, a_padded_file, a_foreign_file, an_unknown_topic):
        plant(plain)
    plain.reconcile()
    stats = plain.stats().segments
    assert stats.reconcile_findings == {"missing": 1, "size_mismatch": 1, "untracked": 2}
    assert stats.reconcile_passes_total == 1


# -- who repairs ----------------------------------------------------------------------------------------------


def test_the_right_to_repair_is_given_back_on_closing(plain):
    reconciler = plain._maintenance._reconciler
    plain.reconcile(fix=True, limit=1)
    assert reconciler.fixing.locked()
    reconciler.close()
    assert not reconciler.fixing.locked()


def test_a_folder_that_cannot_be_listed_is_reported_as_ours(plain):
    with unreadable(folder(plain, "orders")), pytest.raises(Unavailable) as caught:
        plain.reconcile()
    assert "path=" in caught.value.message
    assert caught.value.hint


def test_a_file_in_place_of_a_folder_is_missing_segments_and_a_foreign_file(plain):
    paths = files(plain, "other")
    shutil.rmtree(paths[0].parent)
    instead = planted(paths[0].parent)
    expected = set().union(*(of("missing", path, "other") for path in paths)) | foreign(plain, instead)
    assert found(plain.reconcile(deep=True)) == expected


# -- repairs --------------------------------------------------------------------------------------------------


def everything(log: Log) -> dict[str, bytes]:
    """All files under segments/ with their content, but for frontiers, which the log writes when it comes to it."""
    root = log.path / "segments"
    paths = (path for path in root.rglob("*") if path.is_file() and "frontiers" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def rows(log: Log) -> list[object]:
    return [
        row
        for partition in log._journal.partitions.values()
        for row in parts_of(log).context.manifest.page(partition, 0, partition.sealed.segments)
    ]


def quarantined(log: Log) -> list[bytes]:
    return sorted(path.read_bytes() for path in (log.path / "quarantine").rglob("*") if path.is_file())


@pytest.mark.parametrize("plant", GARBAGE, ids=named)
def test_what_is_provably_garbage_is_removed(log, plant):
    before = everything(log), rows(log)
    plant(log)
    report = log.reconcile(fix=True)
    assert report.findings == ()
    assert [repair.action for repair in report.repairs] == ["removed"]
    assert (everything(log), rows(log)) == before
    assert quarantined(log) == []


@pytest.mark.parametrize("plant", STRANGE, ids=named)
def test_what_is_not_provably_garbage_is_moved_to_quarantine(log, plant):
    before = everything(log)
    plant(log)
    strange = [content for name, content in everything(log).items() if name not in before]
    report = log.reconcile(fix=True)
    assert report.findings == ()
    assert [repair.action for repair in report.repairs] == ["quarantined"]
    assert everything(log) == before
    assert quarantined(log) == strange
    assert log.reconcile(deep=True).findings == ()


@pytest.mark.parametrize("plant", MISPLACED, ids=named)
def test_a_misplaced_segment_is_put_back(log, plant):
    before = everything(log)
    plant(log)
    report = log.reconcile(fix=True)
    assert [repair.action for repair in report.repairs if repair.action == "restored"] == ["restored"]
    assert everything(log) == before
    assert log.reconcile(deep=True).findings == ()
    assert offsets(log.topic("orders")) == list(range(31))


def test_a_segment_in_quarantine_is_put_back(log):
    before = everything(log)
    path = files(log, "orders")[1]
    (log.path / "quarantine").mkdir()
    path.rename(log.path / "quarantine" / "anything")
    report = log.reconcile(fix=True)
    assert (report.findings, [repair.action for repair in report.repairs]) == ((), ["restored"])
    assert everything(log) == before


def test_a_missing_segment_is_not_replaced_by_one_of_its_name_or_size(log):
    path = files(log, "orders")[1]
    content = bytearray(path.read_bytes())
    path.unlink()
    content[10] ^= 1
    planted(log.path / "quarantine" / path.name, bytes(content))
    report = log.reconcile(fix=True)
    assert (found(report), report.repairs) == (of("missing", path), ())
    assert not path.exists()


def test_quarantine_never_overwrites(log):
    for content in (b"one", b"two", b"three"):
        planted(folder(log, "orders") / "notes.txt", content)
        log.reconcile(fix=True)
    assert quarantined(log) == [b"one", b"three", b"two"]


def test_quarantine_takes_a_folder_where_it_has_a_file_of_that_name(log):
    planted(log.path / "segments" / "topics" / "ghost", b"a file")
    log.reconcile(fix=True)
    planted(folder(log, "ghost") / "x", b"a folder's file")
    assert log.reconcile(fix=True).findings == ()
    assert quarantined(log) == [b"a file", b"a folder's file"]


def test_a_repair_touches_neither_live_files_nor_the_manifest(log):
    before, manifest = everything(log), rows(log)
    for plant in (*STRANGE, *GARBAGE):
        plant(log)
    report = log.reconcile(fix=True)
    assert (report.findings, len(report.repairs)) == ((), len(STRANGE) + len(GARBAGE))
    assert (everything(log), rows(log)) == (before, manifest)


@pytest.mark.parametrize("plant", HARMED, ids=named)
def test_what_cannot_be_repaired_is_left_as_it_is(log, plant):
    expected, manifest = plant(log), rows(log)
    before = everything(log)
    report = log.reconcile(fix=True)
    assert (found(report), report.repairs) == (expected, ())
    assert (everything(log), rows(log)) == (before, manifest)


def test_a_report_changes_nothing(log):
    for plant in (*STRANGE, *GARBAGE, a_missing_file):
        plant(log)
    before = everything(log)
    log.reconcile(deep=True)
    assert everything(log) == before
    assert not (log.path / "quarantine").exists()


# -- compare and set ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fix", [False, True])
def test_a_foreign_file_that_went_meanwhile_is_no_finding(plain, monkeypatch, fix):
    path = planted(folder(plain, "orders") / "notes.txt")
    after_judging(monkeypatch, path.unlink)
    report = plain.reconcile(fix=fix)
    assert (report.findings, report.repairs, report.in_flight) == ((), (), 1)


def test_a_segment_that_expired_meanwhile_is_no_finding(plain, monkeypatch):
    path = files(plain, "orders")[0]
    path.unlink()
    plain.set_retention("orders", records_max=20)
    after_judging(monkeypatch, plain.retain)
    report = plain.reconcile(fix=True)
    assert (report.findings, report.repairs) == ((), ())
    assert states(plain, "orders") == [3, 1, 1]


def test_a_file_that_got_its_size_back_meanwhile_is_no_finding(plain, monkeypatch):
    path = files(plain, "orders")[0]
    content = path.read_bytes()
    os.truncate(path, 5)
    after_judging(monkeypatch, lambda: path.write_bytes(content))
    assert plain.reconcile().findings == ()


def test_a_segment_sealed_between_mark_and_listing_is_in_flight(plain, monkeypatch):
    look = segment_folders.listing
    pending = [True]

    def seal_then_look(place: Path) -> object:
        if pending:
            pending.pop()
            fill(plain, "orders", 1)
        return look(place)

    monkeypatch.setattr(segment_folders, "listing", seal_then_look)
    report = plain.reconcile(fix=True)
    assert (report.findings, report.repairs) == ((), ())
    assert report.in_flight == 1


def test_a_segment_being_sealed_is_in_flight(plain, monkeypatch):
    """The roller stands still between the finished file and its commit."""
    roller = plain._maintenance._roller
    assert roller is not None
    commit = roller._sealer._commit
    inside, go_on = threading.Event(), threading.Event()

    def wait_then_commit(*args: object) -> None:
        inside.set()
        go_on.wait(30)
        commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(roller._sealer, "_commit", wait_then_commit)
    topic = plain.topic("orders")
    topic.append_batch([b"x"] * 10, partition=0)
    assert inside.wait(30)
    assert len(files(plain, "orders")) == 4
    report = plain.reconcile(fix=True, deep=True)
    assert (report.findings, report.repairs, report.in_flight) == ((), (), 1)
    go_on.set()
    topic.wait_sealed(40, 30)
    assert plain.reconcile(deep=True).in_flight == 0


# -- from outside ---------------------------------------------------------------------------------------------

LOOKER = """
    import sys
    import holdfast
    with holdfast.open(sys.argv[1], read_only=True) as log:
        report = log.reconcile(deep=True)
        print(report.complete, report.segments, sorted((f.kind, f.number) for f in report.findings))
"""


def test_a_handle_that_only_looks_reconciles_from_another_process(plain):
    a_missing_file(plain)
    a_dead_orphan_far_above_the_mark(plain)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOOKER), str(plain.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"True 9 [('missing', 1), ('untracked', {10**19})]\n"


def test_a_looker_takes_the_owners_next_segment_for_in_flight_and_a_dead_owners_for_dead(plain, open_log):
    planted(folder(plain, "orders") / layout.temporary_name(3))
    observer = open_log(read_only=True)
    report = observer.reconcile()
    assert (report.findings, report.in_flight) == ((), 1)
    plain.close()
    assert {finding.number for finding in observer.reconcile().findings} == {3}


def test_a_looker_that_the_owner_overtakes_sees_only_segments_in_flight(plain, open_log, monkeypatch):
    """Between mark and listing the owner seals one segment and begins the next."""
    observer = open_log(read_only=True)
    look = segment_folders.listing
    pending = [True]

    def be_overtaken(place: Path) -> object:
        if pending:
            pending.pop()
            fill(plain, "orders", 1)
            planted(folder(plain, "orders") / layout.temporary_name(4))
        return look(place)

    monkeypatch.setattr(segment_folders, "listing", be_overtaken)
    report = observer.reconcile(deep=True)
    assert (report.findings, report.in_flight) == ((), 2)


# -- in the background ----------------------------------------------------------------------------------------


def test_the_background_job_makes_pass_after_pass(open_log):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 1, "idle_ratio": 0})
    fill(log, "orders", 2)
    wait_for(lambda: log.last_reconcile is not None)
    first, passes = log.last_reconcile, log.stats().segments.reconcile_passes_total
    wait_for(lambda: log.stats().segments.reconcile_passes_total >= passes + 5)
    assert log.last_reconcile is not first
    assert log.last_reconcile.complete


def test_the_background_job_finds_and_repairs_as_it_is_set(open_log):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 1, "idle_ratio": 0, "fix": True, "deep": True})
    fill(log, "orders", 2)
    stray = planted(folder(log, "orders") / "notes.txt")
    flip(files(log, "orders")[0], 100)
    wait_for(lambda: not stray.exists())
    wait_for(lambda: log.stats().segments.reconcile_findings == {"content_mismatch": 1})


def test_the_background_job_repairs_nothing_unless_it_is_set_to(open_log):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 1, "idle_ratio": 0})
    fill(log, "orders", 2)
    stray = planted(folder(log, "orders") / "notes.txt")
    wait_for(lambda: log.stats().segments.reconcile_findings == {"untracked": 1})
    assert stray.exists()


def test_there_is_no_background_job_unless_it_is_asked_for(plain):
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-reconciler"]


def test_the_background_job_survives_an_error(open_log, caplog):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 1, "idle_ratio": 0})
    fill(log, "orders", 2)
    with caplog.at_level(logging.CRITICAL, "holdfast.segments"), unreadable(folder(log, "orders")):
        wait_for(lambda: settled_passes(log))
        before = log.stats().segments.reconcile_passes_total
        time.sleep(0.05)
        assert log.stats().segments.reconcile_passes_total == before
    wait_for(lambda: log.stats().segments.reconcile_passes_total >= before + 2)
    assert log.last_reconcile is not None
    assert log.last_reconcile.findings == ()


def settled_passes(log: Log) -> bool:
    """Whether no pass that began before an obstacle is still being published."""
    before = log.stats().segments.reconcile_passes_total
    time.sleep(0.02)
    return log.stats().segments.reconcile_passes_total == before


def test_between_passes_it_rests_for_the_interval(open_log):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 3_600_000, "idle_ratio": 0})
    wait_for(lambda: log.last_reconcile is not None)
    time.sleep(0.3)
    assert log.stats().segments.reconcile_passes_total == 1


def test_closing_does_not_wait_for_a_rest_between_passes(open_log):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 3_600_000})
    wait_for(lambda: log.last_reconcile is not None)
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 5


def test_closing_does_not_wait_for_a_rest_between_units(open_log):
    log = open_log(segments=TEN, reconcile={"pass_interval_ms": 1, "idle_ratio": 10**9, "unit_segments": 1})
    fill(log, "orders", 3)
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < 5


class Rests:
    """Stands for the loop's event: notes how long it was asked to rest, and ends after so many."""

    def __init__(self, count: int) -> None:
        self.taken: list[float] = []
        self._count = count

    def is_set(self) -> bool:
        return len(self.taken) >= self._count

    def wait(self, seconds: float) -> None:
        self.taken.append(seconds)


def units(clock: ManualClock, seconds: list[float]) -> Iterator[bool]:
    for taken in seconds:
        clock.advance(taken)
        yield True
    while True:
        yield False


@pytest.mark.parametrize("ratio", [0, 0.5, 10])
def test_after_each_unit_it_rests_in_proportion_and_after_each_pass_for_the_interval(ratio):
    clock = ManualClock()
    settings = ReconcileSettings(pass_interval_ms=7000, idle_ratio=ratio)
    going = units(clock, [1.0, 3.0])
    one = SimpleNamespace(step=lambda: next(going), end=lambda: None)
    loop = ReconcileLoop(SimpleNamespace(begin=lambda **_: one), settings, clock)  # type: ignore[arg-type]
    rests = Rests(3)
    loop._stop = rests  # type: ignore[assignment]
    loop._work()
    assert rests.taken == pytest.approx([1.0 * ratio, 3.0 * ratio, 7.0])
