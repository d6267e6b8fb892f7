"""Clients on event loops: nothing blocks the loop, and whatever would says so."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from holdfast import Log
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk

TASKS, EACH = 64, 12


def test_64_tasks_append_and_each_finds_its_own_in_order(served: ServedLog, name: str) -> None:
    async def main() -> None:
        async with await asyncio.to_thread(served.connect) as log:
            topic = await asyncio.to_thread(log.topic, name)

            async def task(number: int) -> list[int]:
                return [(await topic.append_async(b"%d:%d" % (number, one))).offset for one in range(EACH)]

            offsets = await asyncio.gather(*(task(number) for number in range(TASKS)))
            assert sorted(offset for found in offsets for offset in found) == list(range(TASKS * EACH))
            records = [record.payload async for record in topic.read()]
            for number, found in enumerate(offsets):
                assert [records[offset] for offset in found] == [b"%d:%d" % (number, one) for one in range(EACH)]
            assert log._journal._sender.groups < TASKS * EACH / 2  # they went together

    asyncio.run(main())


def test_a_loop_goes_on_while_the_server_does_not_answer(mortal: ServedLog, name: str) -> None:
    async def main() -> None:
        async with await asyncio.to_thread(mortal.connect) as log:
            topic = await asyncio.to_thread(log.topic, name)
            await topic.append_async(b"0")
            mortal.pause()
            waiting = [
                asyncio.ensure_future(topic.append_async(b"1", timeout=60)),
                asyncio.ensure_future(anext(aiter(topic.follow(1)))),
                asyncio.ensure_future(_count(topic.read())),
                asyncio.ensure_future(_transact(log, topic)),
                asyncio.ensure_future(log.seal_async()),
            ]
            for _ in range(50):  # the loop turns, and nobody is done
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            mortal.go_on()
            receipt, followed, _, _, _ = await asyncio.gather(*waiting)
            assert (receipt.offset, followed.payload) == (1, b"1")

    asyncio.run(main())


async def _count(reading: object) -> int:
    return len([one async for one in reading])  # type: ignore[attr-defined]


async def _transact(log: Log, topic: object) -> None:
    async with log.transaction(timeout=60) as tx:
        tx.append(topic, b"2")  # type: ignore[call-overload]


def test_a_follower_a_watcher_and_a_consumer_work_on_a_loop(served: ServedLog, name: str) -> None:
    async def main() -> None:
        async with await asyncio.to_thread(served.connect) as log:
            topic = await asyncio.to_thread(log.topic, name)
            follower, watch = topic.follow(0), topic.watch()
            first = asyncio.ensure_future(anext(aiter(follower)))
            sealed = asyncio.ensure_future(anext(aiter(watch)))
            await topic.append_async(b"a")
            assert (await first).payload == b"a"
            await log.seal_async(name)
            assert (await sealed).offset == 1
            consumer = await asyncio.to_thread(topic.consumer, "c")
            async with consumer:
                assert [one.payload for one in await consumer.poll_async(5)] == [b"a"]
                waits = asyncio.ensure_future(consumer.poll_async(5, 30))
                await topic.append_async(b"b")
                assert [one.payload for one in await waits] == [b"b"]
                await consumer.commit_async()
                assert (await asyncio.to_thread(lambda: consumer.committed)) == '{"0":2}'
                await topic.append_async(b"c")
                assert (await anext(aiter(consumer))).payload == b"c"
                await consumer.submit_commit()
            ticket = topic.submit(b"d")
            assert (await ticket).offset == 3
            assert [one.payload async for one in topic.read(-2)] == [b"c", b"d"]

    asyncio.run(main())


def test_typed_rows_on_a_loop(served: ServedLog, name: str) -> None:
    async def main() -> None:
        async with await asyncio.to_thread(served.connect) as log:
            schema = pa.schema([("id", pa.int64())])
            topic = await asyncio.to_thread(lambda: log.topic(name, schema=schema))
            receipts = await topic.append_async([{"id": number} for number in range(5)])
            assert [receipt.offset for receipt in receipts] == list(range(5))
            table = await asyncio.to_thread(topic.read().to_arrow)
            assert table.column("id").to_pylist() == list(range(5))

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["topics", "stats", "topic", "append", "latest"])
def test_what_would_block_a_loop_warns(remote: Log, name: str, verb: str) -> None:
    topic = remote.topic(name)
    calls = {
        "topics": remote.topics,
        "stats": remote.stats,
        "topic": lambda: remote.topic(f"{name}-new"),
        "append": lambda: topic.append(b"x"),
        "latest": lambda: topic.latest(b"k"),
    }

    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            calls[verb]()

    asyncio.run(main())


def test_single_rows_of_tasks_are_sent_together(served: ServedLog, name: str) -> None:
    """Typed rows, one by one from many tasks: every receipt is that of its row, and a group of them is one entry."""
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("tags", pa.list_(pa.string()))])

    async def main() -> None:
        async with await asyncio.to_thread(served.connect) as log:
            topic = await asyncio.to_thread(log.topic, name, schema=schema)

            async def task(number: int) -> list[tuple[int, int, int]]:
                found = []
                for one in range(EACH):
                    (receipt,) = await topic.append_async({"id": number * 100 + one, "tags": ["a", None]})
                    found.append((receipt.offset, receipt.seq, number * 100 + one))
                return found

            tasks = await asyncio.gather(*map(task, range(TASKS)))
            done = [one for found in tasks for one in found]
            stored = {row["_offset"]: (row["id"], row["tags"]) async for row in topic.read()}
            assert stored == {offset: (number, ["a", None]) for offset, _, number in done}
            assert len({seq for _, seq, _ in done}) == log._journal._sender.groups

    asyncio.run(main())
