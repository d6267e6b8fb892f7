"""Segments over time: what a long-lived process, many topics, odd names and full disks must not do to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Keyring, Log, NotFound, Settings, Topic, Unavailable, disk
from holdfast.log.local_parts import parts_of
from holdfast.model.record import Watermark
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.testing import Fault, FaultyDisk
from tests.segments.planting import ROWS, TEN, files, fill, folder, offsets, states, wait_for

pytestmark = pytest.mark.disk

Opening = Callable[..., Log]


# -- sealing and the mark -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seal_on_close", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_clean_close_leaves_no_mismatch(open_log, keyring, seal_on_close, keyed):
    options = {"segments": {**TEN, "seal_on_close": seal_on_close}, "keyring": keyring if keyed else None}
    for _ in range(3):
        with open_log(**options) as log:
            assert log.reconcile(deep=True).findings == ()
            topic = log.topic("orders", partitions=2)
            for partition in (0, 1):
                topic.append_batch([b"x"] * (ROWS + 3), partition=partition)
    log = open_log(**options)
    assert log.reconcile(deep=True).findings == ()
    log.seal()  # what is due is sealed from the moment that a log is open
    report = log.reconcile(deep=True)
    assert (report.findings, report.in_flight) == ((), 0)
    assert all(offsets(log.topic("orders"), partition) == list(range(3 * (ROWS + 3))) for partition in (0, 1))


def test_every_seal_moves_the_mark_and_the_manifest(open_log):
    """All rows were durable long before, and nothing is appended with the seal."""
    log = open_log(segments={"rows_max": 1000, "seal_on_close": False})
    topic = log.topic("slow")
    for number in range(4):
        topic.append(b"x")
        log.flush()
        assert log.stats().segments.tail_records == 1
        log.seal()
        assert topic.watermark() == Watermark(number, number + 1)
        (row,) = parts_of(log).context.manifest.page(log._journal.topics["slow"][0], number, number + 1)
        assert row.size == files(log, "slow")[number].stat().st_size


def test_hundreds_of_topics_stay_resident_and_lose_nothing(open_log):
    """Nothing is closed to make room in memory, so nothing is lost by it: whatever asks for stats or retention."""
    log = open_log(segments={"rows_max": 1000, "seal_on_close": False})
    names = [f"topic-{i}" for i in range(300)]
    for name in names:
        log.topic(name).offer(b"x")
        log.stats()
    log.retain()
    log.flush()
    log.close()
    log = open_log(segments=TEN)
    assert [len(list(log.topic(name).read())) for name in names] == [1] * 300


def test_leftovers_of_partitions_without_rows_and_of_no_topic_are_found(open_log):
    log = open_log(segments=TEN)
    log.topic("empty").append(b"x")
    planted = [folder(log, "empty") / "00000000000000000007-0011223344556677.parquet", folder(log, "ghost") / "x"]
    for path in planted:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"?")
    assert [finding.kind for finding in log.reconcile().findings] == ["untracked", "untracked"]


# -- names, sizes and counts ----------------------------------------------------------------------------------


def test_every_partition_has_a_folder_of_its_own(open_log, monkeypatch):
    """While they are being written, too: each temporary file has a path that no other segment ever has."""
    written: list[Path] = []
    create = disk.NewFile.__init__

    def note(self: disk.NewFile, path: Path) -> None:
        written.append(path)
        create(self, path)

    monkeypatch.setattr(disk.NewFile, "__init__", note)
    log = open_log(segments=TEN)
    for name in ("p", "p.v1", "p.v2", "p.parquet", "p.v1.tmp"):
        fill(log, name, 2)
    assert len(set(written)) == len(written) == 10
    assert log.reconcile(deep=True).findings == ()


def test_rows_and_bytes_sealed_are_counted_once(open_log):
    log = open_log(segments=TEN)
    fill(log, "orders", 5)
    wait_for(lambda: log.stats().segments.seals_total == 5)
    stats = log.stats().segments
    assert (stats.seals_total, stats.rows_sealed_total) == (5, 50)
    assert stats.bytes_sealed_total == sum(path.stat().st_size for path in files(log, "orders"))


def test_the_bytes_of_a_tail_are_those_that_are_stored(open_log):
    """Nulls, offsets and nested values count as what they take, not by the number of their rows."""
    log = open_log(segments={"seal_on_close": False})
    schema = pa.schema([("a", pa.list_(pa.string())), ("b", pa.struct([("c", pa.int8())]))])
    topic = log.topic("typed", schema=schema)
    topic.append([{"a": None, "b": None}] * 1000)
    topic.append([{"a": ["x" * 100, None], "b": {"c": 1}}] * 1000)
    assert log.stats().segments.tail_bytes == log._journal.bytes_after(0)


def test_records_are_counted_where_offsets_begin_late(open_log):
    log = open_log(segments=TEN)
    log.topic("late", first_offset=2**40)
    topic = fill(log, "late", 3)
    log.set_retention("late", records_max=20)
    wait_for(lambda: not log.retain().removed)
    assert offsets(topic) == list(range(2**40 + 10, 2**40 + 30))


# -- the guard ------------------------------------------------------------------------------------------------


def test_a_steady_slow_writer_does_not_put_off_the_guard(open_log, monkeypatch):
    free = [10**12]
    monkeypatch.setattr(disk, "free_bytes", lambda path: free[0])
    log = open_log(segments=TEN, disk={"free_bytes_min": 1000, "check_interval_ms": 20})
    topic = log.topic("orders")
    topic.append(b"x")
    free[0] = 0
    deadline = time.monotonic() + 30
    # A write every few milliseconds, always sooner than the interval ends.
    with pytest.raises(Unavailable, match="nearly full"):
        while time.monotonic() < deadline:
            topic.append(b"x")
            time.sleep(0.005)


# -- reading --------------------------------------------------------------------------------------------------


def copy_on(source: Topic, target: Topic, position: str | None, limit: int) -> str:
    """One page of replication: what a consumer does that keeps its position."""
    page = source.read(position, limit=limit)
    for record in page:
        target.append(record.payload)
    return page.position


def test_a_position_never_repeats_and_what_is_gone_is_reported(open_log):
    log = open_log(segments=TEN, retention={"interval_ms": 3_600_000})
    source, target = fill(log, "source", 4), log.topic("target")
    position = copy_on(source, target, None, 7)
    log.set_retention("source", records_max=20)
    wait_for(lambda: states(log, "source") == [3, 3, 1, 1] or bool(log.retain().removed))
    with pytest.raises(NotFound) as caught:
        copy_on(source, target, position, 100)
    assert "start=20" in caught.value.hint
    position = copy_on(source, target, '{"0":20}', 100)
    assert copy_on(source, target, position, 100) == position
    assert [int(record.payload) for record in target.read()] == [*range(7), *range(20, 40)]


def test_the_first_record_needs_one_row_group(open_log, monkeypatch):
    log = open_log(segments={"rows_max": 5000, "row_group_rows": 100, "seal_on_close": False})
    topic = log.topic("orders")
    topic.append_batch([b"x"] * 5000, timeout=30)
    topic.wait_sealed(5000, 30)
    given: list[int] = []
    batches = SegmentReader.batches

    def count(self: SegmentReader, *args: object, **options: object) -> object:
        for batch in batches(self, *args, **options):  # type: ignore[arg-type]
            given.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(SegmentReader, "batches", count)
    reading = topic.read()
    assert next(reading).offset == 0
    assert sum(given) <= 100


def test_damage_moves_no_offset(open_log):
    log = open_log(segments=TEN)
    topic = fill(log, "orders", 3)
    content = bytearray(files(log, "orders")[1].read_bytes())
    content[20] ^= 1
    files(log, "orders")[1].write_bytes(bytes(content))
    got: list[holdfast.Record] = []
    with pytest.raises(holdfast.Corrupt) as caught:
        got.extend(topic.read(10, 20))
    assert got == []
    assert "start=20" in caught.value.hint
    assert [(record.offset, record.payload) for record in topic.read(20)] == [(i, b"%d" % i) for i in range(20, 30)]


def test_nothing_that_only_looks_creates_or_removes(open_log):
    log = open_log(segments=TEN, retention={"interval_ms": 3_600_000})
    roller = log._maintenance._roller
    assert roller is not None
    roller.chores.clear()
    topic = fill(log, "orders", 3)
    log.set_retention("orders", records_max=10)
    before = files(log, "orders")
    log.stats(), log.marks("orders"), topic.watermark(), log.retain(dry_run=True), log.reconcile(deep=True)
    with pytest.raises(NotFound):
        log.marks("nobody")
    with pytest.raises(NotFound):
        open_log(read_only=True).topic("nobody")
    assert (files(log, "orders"), log.topics()) == (before, ["orders"])


# -- a full disk ----------------------------------------------------------------------------------------------


def test_it_says_so_and_starts_once_there_is_room(tmp_path):
    root = tmp_path / "full"
    settings = Settings.from_mapping({"segments": dict(TEN)})
    with FaultyDisk(root) as faulty:
        with holdfast.open(root, settings=settings) as log:
            fill(log, "orders", 3)
        faulty.arm(Fault(1, "enospc", op="write", sticky=True))
        with pytest.raises(Unavailable) as caught:
            holdfast.open(root, settings=settings)
        assert caught.value.hint
        faulty.disarm()
        with holdfast.open(root, settings=settings) as log:
            assert offsets(log.topic("orders")) == list(range(30))
            assert log.reconcile(deep=True).findings == ()


def test_a_start_finishes_what_made_room(open_log, keyring: Keyring):
    with open_log(segments=TEN, keyring=keyring) as log:
        fill(log, "orders", 3)
    oldest = files(log, "orders")[0]
    oldest.rename(oldest.with_name(oldest.name + ".expired"))
    log = open_log(segments=TEN, keyring=keyring)
    assert states(log, "orders") == [3, 1, 1]
    assert log.topic("orders").watermark().offset == 30
    assert log.reconcile(deep=True).findings == ()
