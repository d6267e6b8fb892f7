"""Coroutines: opening, appending, reading, sealing, shipping and closing without blocking their loop."""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from itertools import islice

import pyarrow as pa
import pytest
from tests.stalled import stalled

import holdfast
from holdfast import Full, Invalid, OutcomeUnknown, Record

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([pa.field("number", pa.int64())])


def test_a_log_lives_on_an_event_loop_without_blocking_it(tmp_path):
    """Open, append, read, seal, ship, flush and close: nothing warns that it blocks, and all of it is there."""

    async def main():
        async with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
            raw, typed = log.topic("raw", partitions=2), log.topic("typed", schema=SCHEMA)
            receipt = await raw.append_async(b"one", key="k", headers={"a": "b"}, durability="shipped")
            batch = await raw.append_batch_async([b"two", Record(b"three", key=b"k")])
            rows = await typed.append_async([{"number": 1}, {"number": 2}], idempotency_key="once")
            assert await typed.append_async([{"number": 1}, {"number": 2}], idempotency_key="once") == rows
            assert {record.payload async for record in raw.read()} == {b"one", b"two", b"three"}
            assert [row["number"] async for row in typed.read(limit=1)] == [1]
            raw.offer(b"four")
            await log.flush_async()
            await log.seal_async()
            await log.ship_async()
            assert sum(mark.settled for mark in log.marks("raw")) == 4
        assert (receipt.offset, len(batch), rows[1].offset) == (0, 2, 1)
        again = holdfast.open(tmp_path / "log", store=tmp_path / "store")
        await again.close_async()
        with pytest.raises(holdfast.Closed):
            await again.topic("raw").append_async(b"five")

    asyncio.run(main())


def test_an_append_waits_without_blocking_the_loop(open_log):
    """While a commit stalls, other coroutines go on; each append has its own time-out."""
    topic = open_log().topic("t")

    async def main():
        with stalled(topic):
            waiting = asyncio.ensure_future(topic.append_async(b"patient", timeout=30))
            await asyncio.sleep(0)
            with pytest.raises(OutcomeUnknown):
                await topic.append_async(b"hasty", timeout=0.05)
            assert not waiting.done()
        return (await waiting).offset

    assert asyncio.run(main()) == 0


def test_loops_that_take_turns_in_a_thread_get_their_own_receipts(open_log):
    """One is stopped while its append is under way; the next waits for the same commit; then the first goes on."""
    topic = open_log().topic("t")

    async def append(payload):
        return await topic.submit(payload)

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        with stalled(topic):
            appends = [first.create_task(append(b"%d" % n)) for n in range(3)]
            first.run_until_complete(asyncio.sleep(0))
            others = [second.create_task(append(b"%d" % n)) for n in range(3, 6)]
            second.run_until_complete(asyncio.sleep(0))
            assert not any(task.done() for task in [*appends, *others])
        offsets = [second.run_until_complete(task).offset for task in others]
        assert [first.run_until_complete(task).offset for task in appends] == [0, 1, 2]
        assert offsets == [3, 4, 5]
    finally:
        first.close()
        second.close()


def test_a_loop_in_a_forked_child_learns_that_it_will_not_know(open_log):
    """What was appended before the fork is the parent's: nobody in the child learns of it, and nothing breaks."""
    topic = open_log().topic("t")

    async def main():
        with stalled(topic):
            mine, other = topic.submit(b"mine"), topic.submit(b"other", timeout=0.05)
            waiting = asyncio.ensure_future(_receipt(mine))
            await asyncio.sleep(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of forks in a process with threads
                child = os.fork()
            if not child:
                os._exit(_in_child(other))
            status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status[1]) == 7
        return (await waiting).offset, (await other).offset

    assert asyncio.run(main()) == (0, 1)


async def _receipt(ticket):
    return await ticket


def _in_child(ticket):
    try:
        asyncio.run(_receipt(ticket))
    except OutcomeUnknown:
        return 7
    except BaseException:
        return 1
    return 0


def test_more_appends_than_the_queue_holds_wait_for_room_in_order(open_log):
    """Where submit() refuses, append_async() waits; records are in the order in which they were called for."""
    log = open_log(journal={"queue_records_max": 10, "group_records_max": 4})
    topic = log.topic("t")

    async def main():
        with stalled(topic):
            with pytest.raises(Full):
                for _ in range(11):
                    topic.submit(b"first")
            appends = [asyncio.ensure_future(topic.append_async(b"%d" % n)) for n in range(300)]
            await asyncio.sleep(0)
            batch = asyncio.ensure_future(topic.append_batch_async([b"last"] * 10))
            await asyncio.sleep(0)
        return await asyncio.gather(*appends), await batch

    receipts, batch = asyncio.run(main())
    assert [receipt.offset for receipt in receipts] == list(range(10, 310))
    assert batch[-1].offset == 319
    assert log.stats().journal.refused_total == 1, "who waited and came through was not refused"


def test_rows_of_an_iterator_that_wait_for_room_are_all_written(open_log):
    """There is no room at the first attempt, and an iterator gives its rows only once."""
    log = open_log(journal={"queue_records_max": 6})
    rows = log.topic("rows", schema=pa.schema([("n", pa.int64())]))

    async def main():
        with stalled(rows):
            first = asyncio.ensure_future(rows.append_async([{"n": n} for n in range(5)]))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(rows.append_async({"n": n} for n in range(5, 9)))
            await asyncio.sleep(0)
        await asyncio.gather(first, second)

    asyncio.run(main())
    assert [row["n"] for row in rows.read()] == list(range(9))


def test_no_room_in_time_is_full_and_nothing_is_written(open_log):
    """The wait for room is bounded, also for those who wait behind others."""
    log = open_log(journal={"queue_records_max": 5})
    topic = log.topic("t")

    async def main():
        with stalled(topic):
            tickets = [topic.submit(b"x") for _ in range(5)]
            found = await asyncio.gather(
                *[topic.append_async(b"no", timeout=0.05) for _ in range(3)], return_exceptions=True
            )
            cancelled = asyncio.ensure_future(topic.append_async(b"never", timeout=30))
            await asyncio.sleep(0.01)
            cancelled.cancel()
        for ticket in tickets:
            await ticket
        return found, await topic.append_async(b"after", timeout=30)

    found, after = asyncio.run(main())
    assert [type(error) for error in found] == [Full] * 3
    assert after.offset == 5
    assert log.stats().journal.refused_total == 3


def test_wrong_calls_are_refused_at_once(open_log):
    """What cannot be appended, or shipped without a store, is Invalid before anything is queued."""
    topic = open_log().topic("t")

    async def main():
        with pytest.raises(Invalid):
            await topic.append_async("text")
        with pytest.raises(Invalid, match="ships to no store"):
            await topic.append_async(b"x", durability="shipped")

    asyncio.run(main())
    assert topic.marks()[0].appended == 0


@pytest.mark.parametrize(
    "options", [{}, {"limit": 700}, {"reverse": True}, {"reverse": True, "limit": 3}, {"start": 5}]
)
def test_reading_is_the_same_in_both_ways(open_log, options):
    """The same records and the same position, also where one stops in the middle of a page."""
    log = open_log()
    topic = log.topic("t", partitions=2)
    topic.append_batch([Record(b"%d" % n, key=b"%d" % n) for n in range(1500)])
    log.seal()
    topic.append_batch([b"tail", b"end"])

    async def read(count):
        reading, found = topic.read(**options), []
        async for record in reading:
            found.append(record)
            if len(found) == count:
                break
        return found, reading.position, reading.exhausted

    for count in (1, 2, 501, 10**9):
        plain = topic.read(**options)
        records = list(islice(plain, count))
        assert asyncio.run(read(count)) == (records, plain.position, plain.exhausted)


def test_a_reading_goes_on_where_it_was_left(open_log):
    """Twice `async for` is one pass; in two ways at once it is Invalid."""
    topic = open_log().topic("t")
    topic.append_batch([b"%d" % n for n in range(1200)])

    async def main():
        reading, found = topic.read(), []
        for stop in (3, 700, 10**9):
            async for record in reading:
                found.append(int(record.payload))
                if len(found) == stop:
                    break
        with pytest.raises(Invalid, match="in another way"):
            next(reading)
        return found, reading.exhausted

    assert asyncio.run(main()) == (list(range(1200)), True)


def test_a_store_that_does_not_answer_blocks_no_loop(tmp_path, monkeypatch):
    """Opening and closing wait for it in threads: meanwhile the loop goes on."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    silent = socket.create_server(("127.0.0.1", 0))  # takes connections and never says a word
    monkeypatch.setenv("HOLDFAST_STORE__ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    monkeypatch.setenv("HOLDFAST_SHIPPING__DRAIN_TIMEOUT_MS", "200")
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def main():
        ticking = asyncio.ensure_future(tick())
        await asyncio.sleep(0)
        opened = holdfast.open(tmp_path / "log", store="s3://bucket/here")
        assert len(ticks) <= 1, "nobody waits for a store before async with"
        async with opened as log:
            assert len(ticks) > 10, "while it waited for the store the loop went on"
            await log.topic("t").append_async(b"x")
            before = len(ticks)
        assert len(ticks) > before + 5, "and while it closed"
        ticking.cancel()

    with silent:
        asyncio.run(main())


def test_a_store_of_another_log_is_refused_there(tmp_path):
    """`async with` raises what open() raises elsewhere, and lets go of the directory."""
    with holdfast.open(tmp_path / "theirs", store=tmp_path / "store") as log:
        log.topic("t").append(b"x", durability="shipped")

    async def main():
        with pytest.raises(Invalid):
            async with holdfast.open(tmp_path / "ours", store=tmp_path / "store"):
                pass

    asyncio.run(main())
    with holdfast.open(tmp_path / "ours") as log:
        assert log.topics() == []


async def calling(blocking):
    """A coroutine that calls through functions."""
    return [call() for call in [blocking]]


def test_a_coroutine_that_blocks_its_loop_is_warned(open_log):
    """Directly, through functions, and in callbacks of the loop; with the way to do it instead."""
    topic = open_log().topic("t")

    async def callback():
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: done.set_result(topic.append(b"x")))
        return await done

    for blocks in (calling(lambda: topic.append(b"x")), calling(lambda: topic.append_batch([b"x"])), callback()):
        with pytest.warns(RuntimeWarning, match=r"blocks the event loop; use: await topic\.append\w*_async"):
            asyncio.run(blocks)


def test_code_that_is_no_coroutine_may_block_while_a_loop_runs(open_log):
    """As a cell of a notebook does, with or without a function of its own in between."""
    topic = open_log(journal={"queue_records_max": 10}).topic("t")
    cell = compile(
        "def helper():\n    return topic.append(b'x')\nhelper()\ntopic.append(b'y')\n"
        "for _ in range(100):\n    topic.submit(b'z')",
        "cell",
        "exec",
    )

    async def kernel():
        exec(cell, {"topic": topic})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(kernel())
    topic.flush()
    assert len(list(topic.read())) == 102
