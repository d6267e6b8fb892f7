"""The roller: when a tail becomes a segment, and that nobody who appends has to wait for it."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
import threading
import time
from functools import partial

import pyarrow as pa
import pytest

from holdfast import Full, Unavailable, disk
from holdfast.journal.journal import Journal
from holdfast.journal.state.operations import Trim
from holdfast.log.local_parts import parts_of
from holdfast.segments.sealing.pace import Pace
from holdfast.segments.sealing.seal import Sealer
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.disk

NO_AGE = 3_600_000


def sealing(**changes):
    return {"seal_on_close": False, "age_max_ms": NO_AGE, **changes}


def tail_entries(log):
    """Entries that are still in the journal, looked up in the database."""
    with log._journal._backend.tables() as tables:
        return tables.counts().entries


def eventually(condition, timeout=20.0):
    """For what happens behind the scenes, where there is no event to wait for."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def gate(monkeypatch):
    """Segment files that cannot be written until the gate is opened, as on a disk that hangs."""
    entered, opened = threading.Event(), threading.Event()
    write = disk.NewFile.write

    def stuck(self, content):
        entered.set()
        opened.wait(60)
        write(self, content)

    monkeypatch.setattr(disk.NewFile, "write", stuck)
    yield entered, opened
    opened.set()


# -- when --------------------------------------------------------------------------------------------------


def test_a_tail_with_enough_rows_is_sealed(open_log):
    topic = open_log(segments=sealing(rows_max=10)).topic("t")
    for i in range(25):
        topic.append(b"%d" % i)
    assert topic.wait_sealed(20, 20).offset >= 20
    assert [r.payload for r in topic.read()] == [b"%d" % i for i in range(25)]


def test_fewer_rows_stay_in_the_tail(open_log):
    log = open_log(segments=sealing(rows_max=10))
    topic = log.topic("t")
    topic.append_batch([b"x"] * 9)
    with pytest.raises(Unavailable):
        topic.wait_sealed(1, 0.2)
    assert log.stats().segments.tail_records == 9


def test_a_tail_with_enough_bytes_is_sealed(open_log):
    topic = open_log(segments=sealing(bytes_max=10_000)).topic("t")
    topic.append(b"x" * 6_000)
    with pytest.raises(Unavailable):
        topic.wait_sealed(1, 0.2)
    topic.append(b"x" * 6_000)
    assert topic.wait_sealed(2, 20).offset == 2


def test_a_long_tail_becomes_segments_of_the_size_that_was_set(open_log):
    log = open_log(segments=sealing(rows_max=1_000_000))
    topic = log.topic("t")
    for _ in range(10):
        topic.append_batch([b"x"] * 10)
    log.close()
    log = open_log(segments=sealing(rows_max=30))
    log.topic("t").wait_sealed(90, 20)
    rows = [row.rows for row in parts_of(log).context.manifest.rows(log.topic("t")._partitions.parts[0], 0, 3)]
    assert rows == [30, 30, 30]


def test_an_old_record_is_sealed_though_nothing_comes_after_it(open_log):
    topic = open_log(segments=sealing(age_max_ms=100)).topic("t")
    topic.append(b"lonely")
    assert topic.wait_sealed(1, 20).index == 0


def test_every_idle_partition_is_sealed_by_age(open_log):
    topic = open_log(segments=sealing(age_max_ms=100)).topic("t", partitions=5)
    for partition in range(5):
        topic.append(b"lonely", partition=partition)
    for partition in range(5):
        assert topic.wait_sealed(1, 20, partition=partition).index == 0


def test_age_is_measured_on_the_clock_that_never_jumps(open_log):
    clock = ManualClock()
    log = open_log(segments=sealing(age_max_ms=60_000), clock=clock)
    topic, other = log.topic("t"), log.topic("visited-later")
    topic.append(b"young")
    clock.jump(10_000_000)
    other.append(b"x")
    log.seal(other.name)
    assert topic.watermark().index is None
    clock.jump(-20_000_000)
    topic.append(b"young, too")
    other.append(b"x")
    log.seal(other.name)
    assert topic.watermark().index is None
    clock.advance(61)
    log._journal._writer.due.notify()
    eventually(lambda: topic.watermark().offset == 2)


def test_age_counts_from_the_first_record_of_the_tail_not_from_the_last(open_log):
    clock = ManualClock()
    log = open_log(segments=sealing(age_max_ms=60_000), clock=clock)
    topic = log.topic("t")
    topic.append(b"first")
    clock.advance(59)
    topic.append(b"second")
    clock.advance(2)
    log._journal._writer.due.notify()
    eventually(lambda: topic.watermark().offset == 2)


def test_a_tail_that_was_there_at_opening_is_sealed_by_age(open_log):
    log = open_log(segments=sealing())
    log.topic("t").append(b"from before")
    log.close()
    log = open_log(segments=sealing(age_max_ms=100))
    assert log.topic("t").wait_sealed(1, 20).offset == 1


def test_a_seal_long_after_the_last_append_still_happens(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    time.sleep(0.3)  # the roller sleeps deeply by now
    log.seal("t", timeout=20)
    assert topic.watermark().offset == 1


def test_a_tail_that_ripens_while_the_roller_is_about_to_sleep_is_not_overslept(open_log):
    """The writer's ring between the roller's last look and its sleep must not be lost."""
    log = open_log(segments=sealing(rows_max=10), disk={"free_bytes_min": 0})
    topic = log.topic("t")
    log.seal()
    appended = threading.Event()

    def append_once(now):
        if not appended.is_set():
            topic.append_batch([b"x"] * 10)
            appended.set()
        return now + NO_AGE

    log._maintenance._roller.chores.append(append_once)
    log._journal._writer.due.notify()
    assert appended.wait(10)
    assert topic.wait_sealed(10, 5).offset == 10


def test_a_new_version_of_the_schema_seals_what_was_there(open_log):
    log = open_log(segments=sealing())
    narrow = pa.schema([("a", pa.int64())])
    topic = log.topic("t", schema=narrow)
    topic.append([{"a": 1}, {"a": 2}])
    log.topic("t", schema=narrow.append(pa.field("b", pa.string())))
    assert topic.wait_sealed(2, 20).index == 0


def test_a_segment_never_holds_two_versions_of_a_schema(open_log, monkeypatch):
    log = open_log(segments=sealing())
    monkeypatch.setattr(log._maintenance, "seal_soon", lambda parts: None)  # so that both are in one tail
    narrow = pa.schema([("a", pa.int64())])
    topic = log.topic("t", schema=narrow)
    topic.append({"a": 1})
    log.topic("t", schema=narrow.append(pa.field("b", pa.string())))
    topic.append({"a": 2, "b": "x"})
    log.seal("t")
    part = topic._partitions.parts[0]
    assert [(row.first_offset, row.rows) for row in parts_of(log).context.manifest.rows(part, 0, 2)] == [(0, 1), (1, 1)]


# -- asked for ---------------------------------------------------------------------------------------------


def test_seal_returns_when_everything_durable_is_sealed(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t", partitions=3)
    for i in range(30):
        topic.append(b"%d" % i, partition=i % 3)
    log.seal("t")
    assert [mark.sealed for mark in topic.marks()] == [10, 10, 10]


def test_seal_of_one_topic_leaves_the_others_alone(open_log):
    log = open_log(segments=sealing())
    one, other = log.topic("one"), log.topic("other")
    one.append(b"x")
    other.append(b"x")
    log.seal("one")
    assert (one.watermark().offset, other.watermark().offset) == (1, 0)


def test_seal_without_a_name_seals_all_topics(open_log):
    log = open_log(segments=sealing())
    topics = [log.topic(f"t{i}") for i in range(4)]
    for topic in topics:
        topic.append(b"x")
    log.seal()
    assert [topic.watermark().offset for topic in topics] == [1] * 4


def test_sealing_nothing_makes_nothing(open_log):
    log = open_log(segments=sealing())
    log.seal()
    topic = log.topic("t")
    log.seal("t", timeout=5)
    assert topic.watermark().index is None
    topic.append(b"x")
    log.seal("t")
    log.seal("t", timeout=5)
    assert topic.watermark().index == 0
    eventually(lambda: log.stats().segments.seals_total == 1)


def test_many_callers_may_ask_at_once(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    failures = []

    def work():
        try:
            for _ in range(10):
                offset = topic.append(b"x").offset
                log.seal("t", timeout=30)
                assert topic.watermark().offset > offset
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [r.offset for r in topic.read()] == list(range(40))


def test_a_seal_that_does_not_come_in_time_says_so_and_goes_on(open_log, gate):
    _, opened = gate
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    with pytest.raises(Unavailable, match="not sealed within") as caught:
        log.seal("t", timeout=0.2)
    assert caught.value.hint
    opened.set()
    assert topic.wait_sealed(1, 20).offset == 1


# -- closing -----------------------------------------------------------------------------------------------


def test_closing_seals_what_is_left(open_log, keyring):
    log = open_log(segments={"seal_on_close": True}, keyring=keyring)
    topic = log.topic("t", partitions=2)
    for i in range(10):
        topic.append(b"%d" % i, partition=i % 2)
    log.close()
    log = open_log(segments=sealing(), keyring=keyring)
    assert [mark.sealed for mark in log.marks("t")] == [5, 5]
    assert tail_entries(log) == 0
    assert log.reconcile(deep=True).findings == ()


def test_closing_without_sealing_keeps_the_tail(open_log):
    log = open_log(segments=sealing())
    log.topic("t").append(b"x")
    log.close()
    log = open_log(segments=sealing())
    assert log.marks("t")[0].sealed == 0
    assert [r.payload for r in log.topic("t").read()] == [b"x"]


def test_closing_with_a_stuck_seal_returns_in_time_and_loses_nothing(open_log, gate):
    entered, opened = gate
    log = open_log(segments={"seal_on_close": True})
    log.topic("t").append_batch([b"x"] * 5)
    began = time.monotonic()
    log.close(timeout=1.0)
    assert time.monotonic() - began < 5
    assert entered.is_set()
    opened.set()
    roller = log._maintenance._roller
    eventually(lambda: not roller.running)
    log = open_log(segments=sealing())
    assert [r.payload for r in log.topic("t").read()] == [b"x"] * 5
    assert log.reconcile(deep=True).findings == ()


def test_closing_while_a_stuck_seal_was_asked_for_by_nobody_returns_in_time(open_log, gate):
    entered, opened = gate
    log = open_log(segments=sealing(rows_max=5))
    log.topic("t").append_batch([b"x"] * 5)
    assert entered.wait(10)
    began = time.monotonic()
    log.close(timeout=2.0)
    assert time.monotonic() - began < 3.5
    opened.set()
    roller = log._maintenance._roller
    eventually(lambda: not roller.running)
    log = open_log(segments=sealing())
    assert [r.payload for r in log.topic("t").read()] == [b"x"] * 5


# -- beside appends ----------------------------------------------------------------------------------------


def test_appends_are_acknowledged_while_a_seal_hangs(open_log, gate):
    entered, opened = gate
    log = open_log(segments=sealing(rows_max=10))
    topic = log.topic("t")
    topic.append_batch([b"x"] * 10)
    assert entered.wait(10)
    times = []
    for i in range(100):
        began = time.monotonic()
        topic.append(b"%d" % i)
        times.append(time.monotonic() - began)
    assert topic.watermark().index is None
    assert sorted(times)[90] < 1.0
    assert len(list(topic.read())) == 110
    opened.set()
    assert topic.wait_sealed(100, 20).offset >= 100


def test_the_roller_rests_less_while_a_tail_grows_faster_than_it_is_sealed(open_log, gate, monkeypatch):
    entered, opened = gate
    rests, rest = [], Pace.rest

    def noted(self):
        rests.append(self._idle_ratio())
        rest(self)

    monkeypatch.setattr(Pace, "rest", noted)
    log = open_log(segments=sealing(rows_max=10))
    topic = log.topic("t")
    topic.append_batch([b"x"] * 10)
    assert entered.wait(10)
    for _ in range(4):
        topic.append_batch([b"x"] * 10)
    opened.set()
    topic.wait_sealed(50, 20)
    eventually(lambda: rests[-1] == 4)
    assert rests[0] == 4
    assert 1 in rests
    assert 0 not in rests


def test_trimming_goes_in_slices(open_log, monkeypatch):
    log = open_log(segments=sealing(trim_entries=7))
    topic = log.topic("t")
    for i in range(50):
        topic.append(b"%d" % i)
    slices = []
    trim = type(log._journal._backend).trim_entries

    def counted(self, partition_id, below, most):
        removed = trim(self, partition_id, below, most)
        slices.append((most, len(removed)))
        return removed

    monkeypatch.setattr(type(log._journal._backend), "trim_entries", counted)
    log.seal("t")
    eventually(lambda: tail_entries(log) == 0)
    assert all(most == 7 and removed <= 7 for most, removed in slices)
    assert sum(removed for _, removed in slices) == 50
    eventually(lambda: log.stats().segments.trimmed_entries_total == 50)


def test_what_was_not_trimmed_is_trimmed_after_the_next_opening(open_log, monkeypatch):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    monkeypatch.setattr(log._maintenance._roller, "_trim", lambda partition: None)
    log.seal("t")
    assert tail_entries(log) == 1
    log.close()
    log = open_log(segments=sealing())
    eventually(lambda: tail_entries(log) == 0)
    assert [r.payload for r in log.topic("t").read()] == [b"x"]


def test_a_tail_at_its_limit_refuses_appends_with_a_way_out_and_takes_them_again(open_log, gate):
    _, opened = gate
    log = open_log(segments=sealing(rows_max=5), journal={"tail_bytes_max": 20_000})
    topic = log.topic("t")
    with pytest.raises(Full, match="sealing does not keep up") as caught:
        for _ in range(50):
            topic.append(b"x" * 1_000, timeout=0.5)
    assert "journal.tail_bytes_max" in caught.value.hint
    before = topic.marks()[0].durable
    assert 19 <= before <= 22
    opened.set()
    for _ in range(50):
        topic.append(b"x" * 1_000, timeout=20)
    assert topic.marks()[0].durable == before + 50


def test_the_tail_found_at_opening_counts_against_its_limit(open_log, gate):
    _, opened = gate
    log = open_log(segments=sealing())
    log.topic("t").append_batch([b"x" * 1_000] * 30)
    log.close()
    log = open_log(segments=sealing(), journal={"tail_bytes_max": 20_000})
    eventually(lambda: log.stats().segments.tail_bytes > 20_000)
    with pytest.raises(Full):
        log.topic("t").append(b"x" * 1_000, timeout=0.2)
    opened.set()
    log.seal("t")
    log.topic("t").append(b"x" * 1_000, timeout=20)


# -- failing -----------------------------------------------------------------------------------------------


class FullDisk:
    """Makes one step of writing segments fail as often as wanted."""

    def __init__(self, monkeypatch, owner, name):
        self.times = 0
        self.failures = 0
        works = getattr(owner, name)

        def step(*args, **kwargs):
            if self.failures < self.times:
                self.failures += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return works(*args, **kwargs)

        monkeypatch.setattr(owner, name, step)


STEPS = {
    "folder": (disk, "make_directory"),
    "create": (disk.NewFile, "__init__"),
    "write": (disk.NewFile, "write"),
    "sync": (disk.NewFile, "finish"),
    "rename": (disk, "rename"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_failing_disk_is_reported_counted_retried_and_harms_no_append(open_log, monkeypatch, step, caplog):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"before")
    failing = FullDisk(monkeypatch, *STEPS[step])
    failing.times = 1
    with caplog.at_level(logging.ERROR), pytest.raises(Unavailable, match="No space left") as caught:
        log.seal("t", timeout=20)
    assert "durable in the journal" in caught.value.hint
    stats = log.stats().segments
    assert (stats.seal_failures_total, stats.seals_total) == (1, 0)
    assert "No space left" in stats.last_error
    topic.append(b"during")
    log.seal("t", timeout=20)
    eventually(lambda: log.stats().segments.last_error is None)
    assert [r.payload for r in topic.read()] == [b"before", b"during"]
    assert log.reconcile(deep=True).findings == ()


def test_a_failed_seal_is_tried_again_without_being_asked(open_log, monkeypatch):
    log = open_log(segments=sealing(rows_max=5))
    topic = log.topic("t")
    failing = FullDisk(monkeypatch, disk.NewFile, "write")
    failing.times = 1
    topic.append_batch([b"x"] * 5)
    eventually(lambda: log.stats().segments.seal_failures_total == 1)
    topic.append(b"y")
    assert topic.wait_sealed(5, 20).offset >= 5
    eventually(lambda: log.stats().segments.seals_total == 1)


def test_one_partition_that_cannot_be_sealed_does_not_hold_up_the_others(open_log, monkeypatch):
    log = open_log(segments=sealing())
    topic = log.topic("t", partitions=2)
    topic.append(b"x", partition=0)
    topic.append(b"x", partition=1)
    seal = Sealer.seal

    def fails_for_zero(self, partition):
        if partition.number == 0:
            raise Unavailable("broken", hint="none")
        return seal(self, partition)

    monkeypatch.setattr(Sealer, "seal", fails_for_zero)
    with pytest.raises(Unavailable, match="broken"):
        log.seal("t", timeout=20)
    log._maintenance._roller.seal([topic._partitions.parts[1]], 20)
    assert topic.watermark(1).offset == 1


# -- memory ------------------------------------------------------------------------------------------------

_MEMORY = """
import resource, sys, holdfast
from holdfast import Keyring, Settings

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

path, megabytes, keyed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "keyed"
big = {"seal_on_close": False, "bytes_max": "64GiB", "rows_max": 10**9, "age_max_ms": "1h"}
settings = Settings.from_mapping({"segments": big, "journal": {"tail_bytes_max": "64GiB"}})
keyring = Keyring.generate() if keyed else None
payload = bytes(range(250)) * 4
with holdfast.open(path, settings=settings, keyring=keyring) as log:
    topic = log.topic("t")
    log.topic("warm").append(b"x")
    log.seal("warm")
    for _ in range(megabytes):
        topic.append_batch([payload] * 1000, timeout=60)
    before = peak()
    log.seal("t", timeout=600)
    assert topic.watermark().offset == 1000 * megabytes
    assert log.stats().segments.segments == 2
    print(peak() - before)
"""


def grown_while_sealing(path, megabytes, keyed):
    """By how many MB the process grew while it sealed one segment of so many MB."""
    command = [sys.executable, "-c", _MEMORY, str(path), str(megabytes), keyed]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("keyed", ["plain", "keyed"])
def test_memory_is_bounded_however_long_the_tail_is(tmp_path, keyed):
    assert grown_while_sealing(tmp_path / "log", 300, keyed) < 200


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_is_bounded_with_a_tail_of_two_gigabytes(tmp_path):
    assert grown_while_sealing(tmp_path / "log", 2_000, "plain") < 250


def test_large_entries_are_trimmed_a_mebibyte_at_a_time(open_log, monkeypatch):
    """A slice of 64 of them would hold up the appends beside it for many milliseconds."""
    slices, perform = [], Journal.perform

    def noted(self, operation, *args, **options):
        if isinstance(operation, Trim):
            slices.append(operation.slice_max)
        return perform(self, operation, *args, **options)

    monkeypatch.setattr(Journal, "perform", noted)
    log = open_log(segments=sealing())
    for _ in range(12):
        log.topic("large").append_batch([b"x" * 1000] * 250)
        log.topic("small").append(b"x")
    for topic, left in (("large", 12), ("small", 0)):
        log.seal(topic, timeout=60)
        eventually(partial(lambda left: tail_entries(log) == left, left))
    assert slices == [4, 4, 4, 64]
