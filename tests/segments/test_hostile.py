"""Hostile but legal: odd names, huge offsets, clocks that jump, sixteen threads at one door, nothing at all."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, NotFound, Record
from holdfast.model.record import Watermark
from holdfast.testing.manual_clock import ManualClock
from tests.segments.test_roller import eventually, sealing, tail_entries

pytestmark = pytest.mark.disk

NUMBERS = pa.schema([pa.field("n", pa.int64())])


# -- names -------------------------------------------------------------------------------------------------

NAMES = [
    "007", "7", "07", "1e3", "1000", "1.0", "1", "0x10", "a.b", "a.b.c", "a_b", "a-b", "-a"[1:], "A", "null",
    "None", "nan", "true", "segments", "topics", "quarantine", "00000000000000000000", "x.parquet", "x.tmp",
    "9223372036854775808", "n" * 200,
]  # fmt: skip


@pytest.mark.parametrize("keyed", [False, True])
def test_names_that_look_like_something_else_stay_apart(open_log, keyring, keyed):
    ring = keyring if keyed else None
    log = open_log(segments={"seal_on_close": True}, keyring=ring)
    for name in NAMES:
        log.topic(name).append(name.encode())
    log.seal()
    for name in NAMES:
        log.topic(name).append(b"tail of " + name.encode())
    log.close()
    log = open_log(segments=sealing(), keyring=ring)
    assert log.topics() == sorted(NAMES)
    for name in NAMES:
        assert [r.payload for r in log.topic(name).read()] == [name.encode(), b"tail of " + name.encode()]
        assert log.topic(name).watermark() == Watermark(1, 2)
    assert log.reconcile(deep=True).findings == ()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..b",
        "../x",
        "a/b",
        "/a",
        "a\\b",
        ".hidden",
        "-flag",
        "a b",
        "a\n",
        "a\0b",
        "ü",
        "日本",
        "a:b",
        "n" * 201,
        7,
        None,
    ],
)
def test_names_that_could_be_paths_or_surprises_are_refused(open_log, name):
    log = open_log(segments=sealing())
    with pytest.raises(Invalid, match="not a topic name"):
        log.topic(name)
    assert log.topics() == []
    assert not list(Path(log.path).glob("segments/topics/*"))


def test_names_that_differ_only_in_case_are_two_topics(open_log):
    log = open_log(segments=sealing())
    log.topic("Orders").append(b"upper")
    log.topic("orders").append(b"lower")
    log.seal()
    assert [r.payload for r in log.topic("Orders").read()] == [b"upper"]
    assert [r.payload for r in log.topic("orders").read()] == [b"lower"]


def test_a_topic_that_is_not_there_is_not_sealed_or_retained(open_log):
    log = open_log(segments=sealing())
    for call in (
        lambda: log.seal("nowhere"),
        lambda: log.set_retention("nowhere", records_max=1),
        lambda: log.marks("nowhere"),
    ):
        with pytest.raises(NotFound):
            call()


# -- offsets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2**31 - 5, 2**32 - 5, 2**40, 2**53 - 100])
@pytest.mark.parametrize("keyed", [False, True])
def test_offsets_beyond_any_width_are_exact(open_log, keyring, first, keyed):
    ring = keyring if keyed else None
    log = open_log(segments={"seal_on_close": True}, keyring=ring)
    topic = log.topic("t", partitions=2, first_offset=first)
    assert topic.append_batch([b"%d" % i for i in range(10)], partition=1)[0].offset == first
    log.seal("t")
    topic.append_batch([b"%d" % i for i in range(10, 15)], partition=1)
    wanted = list(range(first, first + 15))
    for reverse in (False, True):
        ordered = wanted[::-1] if reverse else wanted
        assert [r.offset for r in topic.read(reverse=reverse, partition=1)] == ordered
        assert topic.read(reverse=reverse, partition=1).to_arrow().column("offset").to_pylist() == ordered
    assert [r.offset for r in topic.read(first + 8, first + 12, partition=1)] == wanted[8:12]
    assert [r.offset for r in topic.read(-3, partition=1)] == wanted[-3:]
    page = topic.read(limit=4, partition=1)
    assert [r.offset for r in page] + [r.offset for r in topic.read(page.position, partition=1)] == wanted
    assert topic.watermark(1) == Watermark(0, first + 10)
    log.close()
    log = open_log(segments=sealing(), keyring=ring)
    topic = log.topic("t")
    assert topic.watermark(0) == Watermark(None, first)
    assert topic.watermark(1) == Watermark(1, first + 15)
    assert [r.payload for r in topic.read(partition=1)] == [b"%d" % i for i in range(15)]
    assert log.reconcile(deep=True).findings == ()
    log.set_retention("t", records_max=5)
    log.retain()
    assert [r.offset for r in topic.read(partition=1)] == wanted[10:]


def test_typed_rows_have_large_offsets_too(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t", schema=NUMBERS, first_offset=2**40)
    topic.append([{"n": i} for i in range(5)])
    log.seal("t")
    topic.append({"n": 5})
    assert [(row["_offset"] - 2**40, row["n"]) for row in topic.read()] == [(i, i) for i in range(6)]


@pytest.mark.parametrize("first", [-1, 2**53 + 1, 2**63, 1.5])
def test_a_first_offset_that_makes_no_sense_is_refused(open_log, first):
    log = open_log(segments=sealing())
    with pytest.raises(Invalid):
        log.topic("t", first_offset=first)
    assert log.topics() == []


# -- clocks ------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_moves_no_offset_and_no_mark(open_log):
    clock = ManualClock()
    log = open_log(segments=sealing(), clock=clock)
    topic = log.topic("t")
    stamps = []
    for jump in (0, -(10**9), 2 * 10**9, -5, 10**10, -(10**10)):
        clock.jump(jump)
        stamps.append(clock.now_us())
        topic.append(b"x")
        log.seal("t")
    got = list(topic.read())
    assert [r.offset for r in got] == list(range(6))
    assert [r.time for r in got] == stamps
    assert topic.watermark() == Watermark(5, 6)
    middle = sorted(stamps)[2:4]
    found = [r.offset for r in topic.read(since=middle[0], until=middle[1])]
    assert found == [i for i, stamp in enumerate(stamps) if middle[0] <= stamp <= middle[1]]
    assert log.reconcile(deep=True).findings == ()


def test_a_clock_that_was_set_back_removes_nothing_too_early(open_log):
    clock = ManualClock()
    log = open_log(segments=sealing(), clock=clock)
    topic = log.topic("t")
    log.set_retention("t", age_max=timedelta(hours=1))
    topic.append(b"x")
    log.seal("t")
    clock.jump(-86_400)
    topic.append(b"y")
    log.seal("t")
    assert log.retain().removed == ()
    clock.jump(86_400)
    assert log.retain().removed == ()
    assert len(list(topic.read())) == 2


def test_records_stamped_in_the_far_past_are_not_expired_by_their_stamps(open_log):
    clock = ManualClock()
    log = open_log(segments=sealing(), clock=clock)
    topic = log.topic("t")
    log.set_retention("t", age_max=timedelta(hours=1))
    topic.append_batch([Record(b"import", time=0), Record(b"future", time=2**62)])
    log.seal("t")
    assert log.retain().removed == ()
    clock.advance(3601)
    log.retain()
    assert list(topic.read()) == []


def test_the_extremes_of_time_are_kept_and_found(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    edges = [-(2**63) + 1, -1, 0, 2**63 - 1]
    topic.append_batch([Record(b"", time=time) for time in edges])
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    assert [r.time for r in topic.read()] == edges
    for offset, time in enumerate(edges):
        assert [r.offset for r in topic.read(since=time, until=time)] == [offset]
    assert topic.read().to_arrow().column("time").cast(pa.int64()).to_pylist() == edges
    assert log.reconcile(deep=True).findings == ()


# -- many at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", [False, True])
def test_sixteen_threads_touch_a_topic_first(open_log, typed):
    log = open_log(segments=sealing(rows_max=40))
    barrier, failures, topics = threading.Barrier(16), [], []

    def touch(number):
        try:
            barrier.wait(20)
            topic = log.topic("t", schema=NUMBERS, partitions=4) if typed else log.topic("t", partitions=4)
            topics.append(topic)
            for i in range(10):
                topic.append({"n": number * 10 + i} if typed else b"%d" % (number * 10 + i))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=touch, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(map(id, topics))) == 1
    log.seal()
    found = topics[0].read()
    assert sorted(item["n"] if typed else int(item.payload) for item in found) == list(range(160))
    assert sum(mark.durable for mark in log.marks("t")) == 160
    assert log.reconcile(deep=True).findings == ()


def test_sixteen_threads_start_a_new_version_at_once(open_log):
    log = open_log(segments=sealing())
    log.topic("t", schema=NUMBERS).append({"n": 0})
    wider = NUMBERS.append(pa.field("m", pa.int64()))
    barrier, failures = threading.Barrier(16), []

    def touch():
        try:
            barrier.wait(20)
            log.topic("t", schema=wider).append({"n": 1, "m": 1})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=touch) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(log._journal.schemas["t"]) == 2
    assert len(list(log.topic("t", schema="latest").read())) == 17


# -- nothing -----------------------------------------------------------------------------------------------


def test_an_empty_batch_is_refused_and_leaves_nothing(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    with pytest.raises(Invalid, match="empty"):
        topic.append_batch([])
    log.seal("t")
    assert topic.watermark() == Watermark(None, 0)
    assert tail_entries(log) == 0
    assert not list(Path(log.path).rglob("*.parquet"))


def test_records_of_nothing_are_records(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append_batch([b""] * 100)
    log.seal("t")
    assert [r.payload for r in topic.read()] == [b""] * 100


def test_a_log_without_records_closes_and_opens_without_a_trace(open_log):
    log = open_log(segments={"seal_on_close": True})
    log.topic("t", partitions=8)
    log.close()
    log = open_log(segments=sealing())
    assert log.stats().segments.segments == 0
    assert log.reconcile(deep=True).findings == ()
    assert list(log.topic("t").read()) == []
    assert log.topic("t").read().exhausted


def test_one_record_larger_than_a_segment_may_be_is_a_segment(open_log):
    log = open_log(segments=sealing(bytes_max=100, row_group_bytes=100, block_bytes=100))
    topic = log.topic("t")
    topic.append(b"x" * 500_000)
    topic.append(b"y")
    log.seal("t")
    assert [len(r.payload) for r in topic.read()] == [500_000, 1]


def test_a_reader_with_the_wrong_key_gets_nothing(open_log, keyring):
    log = open_log(segments={"seal_on_close": True}, keyring=keyring)
    log.topic("t").append(b"secret")
    log.close()
    other = holdfast.Keyring.generate(clock=ManualClock(seed=99))
    with pytest.raises(holdfast.HoldfastError), holdfast.open(log.path, keyring=other) as wrong:
        list(wrong.topic("t").read())
