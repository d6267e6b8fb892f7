"""The sealed watermark: one durable number per partition that says how far segments go, and never goes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, Invalid, Unavailable, disk
from holdfast.journal.state.partition import Partition
from holdfast.model.record import Watermark
from tests.segments.test_roller import eventually, sealing

pytestmark = pytest.mark.disk

OWNER = """
import sys, holdfast
from holdfast import Settings
settings = Settings.from_mapping({"segments": {"seal_on_close": False, "age_max_ms": "1h"}})
with holdfast.open(sys.argv[1], settings=settings) as log:
    topic = log.topic("t")
    topic.append(b"x")
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "seal":
            log.seal("t")
        else:
            topic.append(b"x")
        print("done", flush=True)
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that owns a log; `owner("seal")` and `owner("append")` return when it has done that."""
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"

        def order(what):
            process.stdin.write(what + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        yield order
        process.stdin.close()


def test_it_is_none_until_the_first_seal_of_a_fresh_partition(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t", partitions=2)
    assert topic.watermark(0) == topic.watermark(1) == Watermark(None, 0)
    topic.append(b"x", partition=0)
    assert topic.watermark(0) == Watermark(None, 0)
    log.seal("t")
    assert topic.watermark(0) == Watermark(0, 1)
    assert topic.watermark(1) == Watermark(None, 0)


def test_it_is_none_but_not_at_zero_in_a_topic_that_continues_another(open_log):
    topic = open_log(segments=sealing()).topic("t", first_offset=1000)
    assert topic.watermark() == Watermark(None, 1000)


def test_it_never_includes_the_active_tail(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append_batch([b"x"] * 5)
    log.seal("t")
    topic.append_batch([b"x"] * 7)
    assert topic.watermark() == Watermark(0, 5)
    assert topic.marks()[0].durable == 12


def test_it_moves_by_one_segment_with_each_seal(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    seen = []
    for count in (3, 1, 4):
        topic.append_batch([b"x"] * count)
        log.seal("t")
        seen.append(topic.watermark())
    assert seen == [Watermark(0, 3), Watermark(1, 4), Watermark(2, 8)]


@pytest.mark.parametrize("keyed", [False, True])
def test_it_is_there_again_after_opening(open_log, keyring, keyed):
    ring = keyring if keyed else None
    log = open_log(segments=sealing(), keyring=ring)
    topic = log.topic("t", partitions=2)
    topic.append_batch([holdfast.Record(b"x", key=b"a")] * 5)
    log.seal("t")
    topic.append_batch([holdfast.Record(b"x", key=b"a")] * 2)
    before = [topic.watermark(n) for n in range(2)]
    log.close()
    topic = open_log(segments=sealing(), keyring=ring).topic("t")
    assert [topic.watermark(n) for n in range(2)] == before


def test_retention_never_lowers_it(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    for _ in range(4):
        topic.append_batch([b"x"] * 5)
        log.seal("t")
    log.set_retention("t", records_max=5)
    log.retain()
    assert [r.offset for r in topic.read()] == [15, 16, 17, 18, 19]
    assert topic.watermark() == Watermark(3, 20)
    assert topic.marks()[0].sealed == 20


def test_it_stays_when_every_segment_went_and_goes_on_from_there(open_log):
    log = open_log(segments=sealing(), retention={"age_max_ms": 1})
    topic = log.topic("t")
    topic.append_batch([b"x"] * 5)
    log.seal("t")
    time.sleep(0.01)
    log.retain()
    assert list(topic.read()) == []
    assert topic.watermark() == Watermark(0, 5)
    log.close()
    log = open_log(segments=sealing())
    topic = log.topic("t")
    assert topic.watermark() == Watermark(0, 5)
    assert topic.append(b"next").offset == 5
    log.seal("t")
    assert topic.watermark() == Watermark(1, 6)
    assert [r.offset for r in topic.read()] == [5]


def test_marks_never_contradict_each_other_while_everything_moves(open_log):
    log = open_log(segments=sealing(rows_max=3))
    topic = log.topic("t")
    stop = threading.Event()
    wrong = []

    def look():
        last = None
        while not stop.is_set():
            mark = topic.marks()[0]
            if not mark.appended >= mark.durable >= mark.sealed >= mark.settled or mark.shipped is not None:
                wrong.append(mark)
            if last is not None and (mark.durable < last.durable or mark.sealed < last.sealed):
                wrong.append((last, mark))
            last = mark

    observer = threading.Thread(target=look)
    observer.start()
    for _ in range(60):
        topic.append(b"x")
    stop.set()
    observer.join()
    assert wrong == []


# -- order -------------------------------------------------------------------------------------------------


def test_it_is_published_after_the_manifest_row_is_durable(open_log, monkeypatch):
    """A reader that sees the new value finds its row over another connection, and its file under its final name."""
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    part = topic._partitions.parts[0]
    seen = []
    publish = Partition.seal

    def look_then_publish(self, row, size):
        with holdfast.open(log.path, read_only=True) as other:
            seen.append((part.sealed.segments, other.topic("t").watermark()))
        files = list(Path(log.path).glob("segments/topics/t/0/segments/*.parquet"))
        seen.append(len(files))
        publish(self, row, size)

    monkeypatch.setattr(Partition, "seal", look_then_publish)
    log.seal("t")
    assert seen == [(0, Watermark(0, 1)), 1]


def test_it_does_not_move_when_the_file_could_not_be_made_durable(open_log, monkeypatch):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")

    def fails(self):
        self.close()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk.NewFile, "finish", fails)
    with pytest.raises(Unavailable):
        log.seal("t")
    assert topic.watermark() == Watermark(None, 0)


# -- watching ----------------------------------------------------------------------------------------------


def test_a_watch_always_has_the_newest_value(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    watch = topic.watch()
    assert watch.value == Watermark(None, 0)
    topic.append(b"x")
    log.seal("t")
    assert watch.value == Watermark(0, 1)


def test_a_watch_gives_the_change_and_ends_with_the_log(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    got = []
    watch = topic.watch()
    watcher = threading.Thread(target=lambda: got.extend(watch))
    watcher.start()
    for count in range(1, 4):
        topic.append(b"x")
        log.seal("t")
        eventually(lambda count=count: len(got) == count)
    log.close()
    watcher.join(10)
    assert not watcher.is_alive()
    assert got == [Watermark(0, 1), Watermark(1, 2), Watermark(2, 3)]


def test_a_slow_watcher_gets_the_newest_value_not_all_of_them(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    watch = topic.watch()
    for _ in range(3):
        topic.append(b"x")
        log.seal("t")
    assert next(watch) == Watermark(2, 3)


def test_a_watch_works_on_an_event_loop(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")

    async def work():
        got = []

        async def watch():
            async for value in topic.watch():
                got.append(value)

        task = asyncio.create_task(watch())
        for _ in range(2):
            await topic.submit(b"x")
            await asyncio.to_thread(log.seal, "t")
            await asyncio.sleep(0.05)
        await asyncio.to_thread(log.close)
        await asyncio.wait_for(task, 10)
        return got

    assert asyncio.run(work()) == [Watermark(0, 1), Watermark(1, 2)]


def test_partitions_are_watched_apart(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t", partitions=2)
    watches = [topic.watch(n) for n in range(2)]
    topic.append(b"x", partition=1)
    log.seal("t")
    assert [watch.value.offset for watch in watches] == [0, 1]
    with pytest.raises(Invalid):
        topic.watch(2)


def test_waiting_for_a_seal_ends_when_it_comes(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    timer = threading.Timer(0.1, log.seal, ["t"])
    timer.start()
    assert topic.wait_sealed(1, 20) == Watermark(0, 1)
    timer.join()


def test_waiting_for_what_is_sealed_already_returns_at_once(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    log.seal("t")
    assert topic.wait_sealed(1, 0) == Watermark(0, 1)


def test_waiting_in_vain_says_how_far_it_is(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    topic.append(b"x")
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"offset=1 sealed=0") as caught:
        topic.wait_sealed(1, 0.2)
    assert 0.2 <= time.monotonic() - began < 5
    assert "log.seal" in caught.value.hint


def test_waiting_ends_when_the_log_is_closed(open_log):
    log = open_log(segments=sealing())
    topic = log.topic("t")
    timer = threading.Timer(0.1, log.close)
    timer.start()
    with pytest.raises(Closed):
        topic.wait_sealed(10, 20)
    timer.join()


# -- from another process ----------------------------------------------------------------------------------


def test_a_handle_in_another_process_sees_it_move(owner, tmp_path):
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        topic = log.topic("t")
        assert topic.watermark() == Watermark(None, 0)
        owner("seal")
        assert topic.watermark() == Watermark(0, 1)


def test_a_watch_in_another_process_has_the_newest_value(owner, tmp_path):
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        watch = log.topic("t").watch()
        assert watch.value == Watermark(None, 0)
        owner("seal")
        assert watch.value == Watermark(0, 1)


def test_another_process_can_wait_for_it(owner, tmp_path):
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        topic = log.topic("t")
        timer = threading.Timer(0.2, owner, ["seal"])
        timer.start()
        assert topic.wait_sealed(1, 20) == Watermark(0, 1)
        timer.join()


def test_a_watch_in_another_process_gives_each_change(owner, tmp_path):
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        watch = log.topic("t").watch()
        owner("seal")
        assert next(watch) == Watermark(0, 1)
        owner("append")
        owner("seal")
        assert next(watch) == Watermark(1, 2)


def test_a_handle_in_another_process_cannot_seal_or_retain(owner, tmp_path):
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        with pytest.raises(Invalid, match="reading only"):
            log.seal("t")
        with pytest.raises(Invalid, match="reading only"):
            log.retain()
