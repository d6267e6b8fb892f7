"""Reading: ranges, order, limits, following."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from holdfast import Invalid, Record

pytestmark = pytest.mark.disk


@pytest.fixture
def topic(open_log):
    """A hundred records in packs and batches of many sizes."""
    topic = open_log().topic("t")
    n = 0
    while n < 100:
        size = min(1 + n % 7, 100 - n)
        topic.append_batch([b"%d" % i for i in range(n, n + size)])
        n += size
    return topic


def test_every_range_is_exact(topic):
    """Any start and end, forwards and backwards, gives exactly those offsets."""
    for start in range(0, 101, 3):
        for end in range(0, 104, 3):
            forward = [r.offset for r in topic.read(start, end)]
            assert forward == list(range(start, min(end, 100)))
            assert [r.offset for r in topic.read(start, end, reverse=True)] == forward[::-1]


def test_limits_and_negative_offsets(topic):
    """limit cuts; negative offsets count from the end."""
    assert [r.offset for r in topic.read(limit=3)] == [0, 1, 2]
    assert [r.offset for r in topic.read(limit=0)] == []
    assert [r.offset for r in topic.read(start=-5)] == [95, 96, 97, 98, 99]
    assert [r.offset for r in topic.read(end=-98)] == [0, 1]
    assert [r.offset for r in topic.read(reverse=True, limit=2)] == [99, 98]
    assert [r.offset for r in topic.read(start=-1000, limit=1)] == [0]
    assert list(topic.read(start=100)) == []
    with pytest.raises(Invalid):
        topic.read(limit=-1)


def test_partitions_are_read_in_turn_or_alone(open_log):
    """Without a partition, one after the other; with one, only that."""
    topic = open_log().topic("t", partitions=3)
    for i in range(30):
        topic.submit(b"%d" % i, partition=i % 3)
    topic.flush()
    assert [r.partition for r in topic.read()] == [0] * 10 + [1] * 10 + [2] * 10
    assert [r.offset for r in topic.read(partition=1)] == list(range(10))
    assert [(r.partition, r.offset) for r in topic.read(reverse=True, limit=2)] == [(2, 9), (2, 8)]
    with pytest.raises(Invalid):
        topic.read(partition=3)


def test_a_read_is_a_snapshot(topic):
    """Without an end, a read covers what was durable when its partition was reached, and ends."""
    records = topic.read()
    first = next(records)
    topic.append(b"later")
    assert first.offset == 0
    assert sum(1 for _ in records) == 99


def test_reads_of_many_pages_miss_nothing_at_the_seams(open_log):
    """Reads longer than a page, in entries and in bytes, miss nothing at the seams."""
    topic = open_log().topic("t")
    for i in range(600):
        topic.submit_batch([b"%d" % i])
    for i in range(12):
        topic.append_batch([bytes([i]) * 1_000_000])
    offsets = [r.offset for r in topic.read()]
    assert offsets == list(range(612))
    assert [r.offset for r in topic.read(reverse=True)] == offsets[::-1]


def test_follow_sees_everything_once_in_order(open_log):
    """A follower started at 0 gets old and new records, while producers write."""
    topic = open_log().topic("t", partitions=2)
    for i in range(10):
        topic.append(b"%d" % i, partition=i % 2)

    def produce():
        for i in range(10, 500):
            topic.submit(b"%d" % i, partition=i % 2)

    thread = threading.Thread(target=produce)
    thread.start()
    seen = {0: [], 1: []}
    follower = topic.follow(0)
    while sum(map(len, seen.values())) < 500:
        record = next(follower)
        seen[record.partition].append(record.offset)
    thread.join()
    assert seen == {0: list(range(250)), 1: list(range(250))}


def test_follow_begins_with_the_next_record(open_log):
    """By default only what comes later is seen; negative starts count from the end."""
    topic = open_log().topic("t")
    topic.append_batch([b"%d" % i for i in range(5)])
    follower = topic.follow()
    recent = topic.follow(-2)
    topic.append(b"5")
    assert next(follower).payload == b"5"
    assert [next(recent).payload for _ in range(3)] == [b"3", b"4", b"5"]


def test_follow_async_does_not_block_the_loop(open_log):
    """`async for` yields records as they come, and other coroutines run meanwhile."""
    topic = open_log().topic("t")

    async def main():
        seen = []

        async def consume():
            async for record in topic.follow(0):
                seen.append(record.payload)
                if len(seen) == 50:
                    return

        task = asyncio.create_task(consume())
        for i in range(50):
            await topic.submit(b"%d" % i)
        await asyncio.wait_for(task, 10)
        return seen

    assert asyncio.run(main()) == [b"%d" % i for i in range(50)]


def test_follow_ends_when_the_log_is_closed(open_log):
    """Closing the log ends followers, blocked ones too, without an error."""
    log = open_log()
    topic = log.topic("t")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(topic.follow()))
    thread.start()

    async def main():
        async def consume():
            return [r async for r in topic.follow()]

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        log.close()
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(main()) == []
    thread.join(10)
    assert not thread.is_alive()
    assert seen == []


def test_an_idle_follower_does_not_poll(open_log):
    """While nothing happens a follower uses no processor time to speak of."""
    log = open_log()
    topic = log.topic("t")
    thread = threading.Thread(target=lambda: list(topic.follow()))
    thread.start()
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    used = time.process_time() - before
    log.close()
    thread.join(10)
    assert used < 0.1


def test_readers_do_not_hold_up_the_write_ahead_log(open_log):
    """A reader that stops in the middle pins nothing: the log goes on to be checkpointed."""
    log = open_log(journal={"checkpoint_bytes": 200_000, "group_file_bytes": 0})
    topic = log.topic("t")
    topic.append_batch([b"x" * 100] * 2000)
    lazy = topic.read()
    next(lazy)
    for _ in range(100):
        topic.append_batch([b"y" * 100] * 200)
    assert log.stats().journal.checkpoints_total > 5
    wal = log.path / "durable.db-wal"
    assert wal.stat().st_size < 3_000_000
    assert sum(1 for _ in lazy) == 1999


def test_records_are_values(topic):
    """Records compare by value and cannot be changed."""
    one, again = next(topic.read()), next(topic.read())
    assert one == again
    with pytest.raises(AttributeError):
        one.payload = b"changed"
    assert Record(b"x") == Record(b"x")
