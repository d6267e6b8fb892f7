"""A consumer goes on behind what was committed, and a commit is durable when it returns."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import holdfast
from holdfast import Closed, Corrupt, Expired, Invalid, NotFound, Unavailable
from holdfast.testing import ManualClock
from tests.failing_commits import refuse_next_commit
from tests.stalled import stalled

pytestmark = pytest.mark.disk


def payloads(records):
    return [record.payload for record in records]


def filled(log, name="orders", count=10, **options):
    topic = log.topic(name, **options)
    topic.append_batch([b"%d" % n for n in range(count)])
    return topic


def taken(consumer, count):
    """So many records, as a loop gets them."""
    return [next(consumer).payload for _ in range(count)]


# -- going on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_the_next_one_goes_on_behind_what_was_committed(open_log, keyring, keyed, sealed):
    """In the same process and in the next; what was given out and not committed comes again."""
    log = open_log(keyring=keyring if keyed else None)
    orders = filled(log)
    if sealed:
        log.seal()
    with orders.consumer("billing") as consumer:
        assert taken(consumer, 3) == [b"0", b"1", b"2"]
        consumer.commit()
        assert taken(consumer, 4) == [b"3", b"4", b"5", b"6"]
        assert (consumer.position, consumer.committed, consumer.lag) == ('{"0":7}', '{"0":3}', 7)
    with orders.consumer("billing") as consumer:
        assert payloads(consumer.poll(2)) == [b"3", b"4"]
        consumer.commit()
    log.close()
    log = open_log(keyring=keyring if keyed else None)
    consumer = log.topic("orders").consumer("billing")
    assert payloads(consumer.poll(100)) == [b"5", b"6", b"7", b"8", b"9"]
    assert consumer.poll(100, timeout=0) == []


def test_consumers_of_other_names_and_topics_are_others(open_log):
    log = open_log()
    orders, trades = filled(log), filled(log, "trades", 4)
    for consumer, count in ((orders.consumer("a"), 3), (orders.consumer("b"), 5), (trades.consumer("a"), 2)):
        taken(consumer, count)
        consumer.commit()
    found = {(one.consumer, one.topic): one.lag for one in log.consumers()}
    assert found == {("a", "orders"): 7, ("b", "orders"): 5, ("a", "trades"): 2}
    assert [one.consumer for one in log.consumers("trades")] == ["a"]


def test_a_beginning_is_durable_before_anything_is_committed(open_log):
    """One that begins with the next record misses nothing that comes while it is away."""
    log = open_log()
    orders = filled(log)
    orders.consumer("late", start="next").close()
    orders.append(b"while away")
    log.close()
    log = open_log()
    assert payloads(log.topic("orders").consumer("late", start="next").poll()) == [b"while away"]


@pytest.mark.parametrize(
    ("start", "first"), [("first", b"0"), ("next", b"new"), (4, b"4"), (-2, b"8"), ('{"0":6}', b"6")]
)
def test_a_new_one_begins_where_it_is_asked_to(open_log, start, first):
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing", start=start)
    orders.append(b"new")
    assert next(consumer).payload == first


def test_a_time_is_a_place_to_begin_and_to_seek_to(open_log):
    log = open_log()
    orders = log.topic("orders")
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    for n, time in enumerate(times):
        orders.append(b"%d" % n, time=time)
    consumer = orders.consumer("billing", start=times[2])
    assert taken(consumer, 2) == [b"2", b"3"]
    consumer.seek(times[1])
    assert taken(consumer, 1) == [b"1"]
    consumer.seek(datetime(2027, 1, 1, tzinfo=UTC))
    assert consumer.position == '{"0":4}'


def test_seek_moves_what_is_read_next_and_a_commit_makes_it_durable(open_log):
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    taken(consumer, 8)
    consumer.commit()
    consumer.seek(2)
    assert consumer.committed == '{"0":8}'
    consumer.commit()
    assert consumer.committed == '{"0":2}'
    assert taken(consumer, 1) == [b"2"]
    consumer.seek("next")
    orders.append(b"new")
    assert taken(consumer, 1) == [b"new"]
    consumer.seek("first")
    position = consumer.position
    assert taken(consumer, 1) == [b"0"]
    consumer.seek(position)
    assert taken(consumer, 2) == [b"0", b"1"]
    consumer.seek("committed")
    assert consumer.position == '{"0":2}'
    for wrong in (12, '{"0":99}', "last", 1.5):
        with pytest.raises(Invalid):
            consumer.seek(wrong)
    with pytest.raises(Invalid, match="partition 3"):
        consumer.seek(0, partition=3)


def test_typed_topics_have_consumers(open_log):
    log = open_log()
    orders = log.topic("orders", schema=pa.schema([("cents", pa.int64())]))
    orders.append([{"cents": n} for n in range(5)])
    log.seal()
    orders.append([{"cents": n} for n in range(5, 8)])
    consumer = orders.consumer("billing")
    assert [row["cents"] for row in consumer.poll(6)] + [row["cents"] for row in consumer.poll(6)] == list(range(8))
    consumer.commit()
    orders.append([{"cents": 8}])
    assert [row["cents"] for row in orders.consumer("billing").poll(5, timeout=0)] == []
    consumer.close()
    assert [row["cents"] for row in orders.consumer("billing").poll(5)] == [8]


def test_reading_goes_on_over_seals_and_many_pages(open_log):
    """Records come once and in order, whatever moves from the tail into segments meanwhile."""
    log = open_log()
    orders = log.topic("orders", partitions=3)
    consumer = orders.consumer("billing")
    seen = {0: [], 1: [], 2: []}
    for part in range(6):
        for number in range(3):
            orders.append_batch([b"%d" % n for n in range(part * 400, part * 400 + 400)], partition=number)
        for _ in range(900):
            record = next(consumer)
            seen[record.partition].append(int(record.payload))
        if part % 2:
            log.seal()
            consumer.commit()
    while found := consumer.poll(1000, timeout=0):
        for record in found:
            seen[record.partition].append(int(record.payload))
    assert seen == {number: list(range(2400)) for number in range(3)}


# -- waiting ----------------------------------------------------------------------------------------------


def test_a_loop_waits_for_records_and_ends_with_the_log(open_log):
    log = open_log()
    orders = log.topic("orders")
    seen = []

    def consume(consumer):
        for record in consumer:
            seen.append(record.payload)
            heard.release()

    heard = threading.Semaphore(0)
    consumer = orders.consumer("billing")
    thread = threading.Thread(target=consume, args=(consumer,))
    thread.start()
    for n in range(5):
        orders.append(b"%d" % n)
        assert heard.acquire(timeout=30)
    log.close()
    thread.join(30)
    assert not thread.is_alive()
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(Closed):
        consumer.commit()
    assert consumer.poll(1) == []


def test_closing_a_consumer_ends_its_loop(open_log):
    log = open_log()
    orders = filled(log, count=1)
    consumer = orders.consumer("billing")
    began = threading.Event()

    def consume():
        for _ in consumer:
            began.set()

    thread = threading.Thread(target=consume)
    thread.start()
    assert began.wait(30)
    consumer.close()
    consumer.close()
    assert consumer.partitions == ()
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(Closed, match="closed"):
        consumer.commit()


def test_coroutines_have_the_same_verbs(open_log):
    log = open_log()
    orders = filled(log)

    async def consume():
        async with orders.consumer("billing") as consumer:
            assert payloads(await consumer.poll_async(3)) == [b"0", b"1", b"2"]
            await consumer.commit_async()
            seen = []
            async for record in consumer:
                seen.append(record.payload)
                if record.offset == 9:
                    break
            assert seen == [b"%d" % n for n in range(3, 10)]
            await consumer.submit_commit()
            assert await consumer.poll_async(3, timeout=0) == []
            waiting = asyncio.create_task(consumer.poll_async(3))
            await asyncio.sleep(0)
            await orders.append_async(b"new")
            assert payloads(await waiting) == [b"new"]
            with pytest.warns(RuntimeWarning, match="poll_async"):
                consumer.poll(1, timeout=0)
            with pytest.warns(RuntimeWarning, match="commit_async"):
                consumer.commit()

    asyncio.run(consume())
    assert log.consumers()[0].lag == 0


def test_a_cancelled_poll_loses_no_record(open_log):
    """Whatever moment it is cancelled at: what it did not return was not given out."""
    log = open_log()
    orders = log.topic("orders")

    async def consume():
        consumer = orders.consumer("billing")
        seen = []
        for n in range(60):
            orders.submit(b"%d" % n)
            task = asyncio.create_task(consumer.poll_async(5))
            for _ in range(n % 12):
                await asyncio.sleep(0)
            task.cancel()
            try:
                seen += payloads(await task)
            except asyncio.CancelledError:
                pass
        await log.flush_async()
        while found := await consumer.poll_async(100, timeout=0):
            seen += payloads(found)
        return seen

    assert asyncio.run(consume()) == [b"%d" % n for n in range(60)]


# -- committing -------------------------------------------------------------------------------------------


def test_a_commit_without_news_writes_nothing(open_log):
    log = open_log()
    consumer = filled(log).consumer("billing")
    taken(consumer, 2)
    consumer.commit()
    before = log.stats().journal.groups_total
    consumer.commit()
    assert consumer.submit_commit().done
    assert log.stats().journal.groups_total == before


def test_commits_that_find_the_journal_busy_become_one(open_log):
    """Each ticket is done when its position is durable, and one entry tells of all of them."""
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    entries = log.marks("_consumers")[0].durable
    tickets = []
    with stalled(orders):
        for _ in range(5):
            next(consumer)
            tickets.append(consumer.submit_commit())
        assert not any(ticket.done for ticket in tickets)
        assert consumer.committed == '{"0":0}'
    for ticket in tickets:
        ticket.result()
    assert consumer.committed == '{"0":5}'
    assert log.marks("_consumers")[0].durable == entries + 1


def test_a_refused_commit_is_reported_and_the_next_one_tries_again(open_log, monkeypatch):
    """Nothing is taken for committed that is not."""
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    taken(consumer, 4)
    refuse_next_commit(log, monkeypatch, Unavailable("no room on the disk"))
    with pytest.raises(Unavailable):
        consumer.commit()
    assert consumer.committed == '{"0":0}'
    assert log.consumers()[0].lag == 10
    consumer.commit()
    assert consumer.committed == '{"0":4}'
    log.close()
    assert open_log().consumers()[0].partitions[0].committed == 4


def test_a_commit_in_doubt_is_settled_when_the_journal_answers(open_log):
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    taken(consumer, 4)
    with stalled(orders):
        with pytest.raises(holdfast.OutcomeUnknown):
            consumer.commit(timeout=0.05)
        assert consumer.committed == '{"0":0}'
    log.flush()
    assert consumer.committed == '{"0":4}'


def test_going_back_to_what_is_committed_waits_for_commits_on_their_way(open_log, monkeypatch):
    """Else records would come again whose commit is stored a moment later."""
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    with stalled(orders), monkeypatch.context() as patch:
        patch.setattr(type(consumer._kept), "timeout", 0.05)
        taken(consumer, 4)
        consumer.submit_commit()
        with pytest.raises(holdfast.OutcomeUnknown, match="not acknowledged"):
            consumer.seek("committed")
        assert consumer.position == '{"0":4}'
    log.flush()
    consumer.seek("committed")
    assert consumer.position == '{"0":4}'


def test_a_task_that_is_cancelled_anywhere_writes_everything_once(open_log):
    """Whether its transaction was stored or not, it finds out, and goes on behind it."""
    log = open_log()
    orders = filled(log, count=200)

    async def work(consumer):
        records = await consumer.poll_async(7, timeout=0)
        async with log.transaction() as tx:
            for record in records:
                tx.append("invoices", record.payload)
            await asyncio.sleep(0)
            tx.consumed(consumer)
        return len(records)

    async def cancel_and_go_on():
        consumer, turn, done = orders.consumer("billing"), 0, None
        log.topic("invoices")
        while done != 0:
            task = asyncio.create_task(work(consumer))
            turn += 1
            for _ in range(turn % 9):
                await asyncio.sleep(0)
            if turn % 3:
                task.cancel()
            try:
                done = await task
            except asyncio.CancelledError:
                consumer.seek("committed")
        return turn

    assert asyncio.run(cancel_and_go_on()) > 29
    assert payloads(log.topic("invoices").read()) == [b"%d" % n for n in range(200)]


def test_commits_do_not_go_back_when_the_clock_does(open_log):
    """The latest word counts by order, not by what a clock said."""
    clock = ManualClock()
    log = open_log(clock=clock)
    consumer = filled(log).consumer("billing")
    for _ in range(3):
        next(consumer)
        consumer.commit()
        clock._now_us -= 10_000_000
    log.close()
    assert open_log(clock=clock).consumers()[0].partitions[0].committed == 3


# -- what has expired -------------------------------------------------------------------------------------


def expire(log, topic, upto):
    """Have retention remove the first segment, which ends at `upto`."""
    log.seal(topic.name)
    topic.append_batch([b"new"] * 10)
    log.seal(topic.name)
    log.set_retention(topic.name, records_max=10)
    log.retain()
    assert next(topic.read()).offset == upto


def test_what_expired_unread_is_an_error_with_the_way_on(open_log):
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    taken(consumer, 1)
    consumer.commit()
    consumer.close()
    expire(log, orders, 10)
    consumer = orders.consumer("billing")
    with pytest.raises(Expired, match="expired") as caught:
        consumer.poll(1)
    assert caught.value.first == 10
    assert "seek('first')" in caught.value.hint
    assert isinstance(caught.value, NotFound)
    status = log.consumers()[0]
    assert (status.lag, status.partitions[0].expired) == (10, 9)
    consumer.seek("first")
    assert next(consumer).offset == 10


def test_going_on_with_what_is_left_can_be_asked_for(open_log, caplog):
    log = open_log()
    orders = filled(log)
    orders.consumer("billing").close()
    expire(log, orders, 10)
    with caplog.at_level(logging.WARNING):
        assert next(orders.consumer("billing", on_expired="first")).offset == 10
    assert [record.action for record in caplog.records if hasattr(record, "action")] == ["consumer_skipped"]


def test_damage_is_reported_after_what_comes_before_it_and_other_partitions_go_on(open_log):
    log = open_log()
    orders = log.topic("orders", partitions=2)
    for number in (0, 1):
        orders.append_batch([b"%d" % number] * 5, partition=number)
        log.seal()
        orders.append_batch([b"%d" % number] * 5, partition=number)
        log.seal()
    second = sorted(path for path in log.path.rglob("*.parquet") if "orders" in str(path.parent))[1]
    second.write_bytes(second.read_bytes()[:-200] + bytes(200))
    consumer, seen, damage = orders.consumer("billing"), [], 0
    for _ in range(6):
        try:
            seen += [(record.partition, record.offset) for record in consumer.poll(100, timeout=0)]
        except Corrupt:
            damage += 1
    assert sorted(seen) == [(0, n) for n in range(5)] + [(1, n) for n in range(10)]
    assert damage > 1
    assert consumer.position == '{"0":5,"1":10}'


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a" * 201, 7, None])
def test_names_are_checked(open_log, name):
    with pytest.raises(Invalid, match="not a consumer name"):
        filled(open_log()).consumer(name)


def test_careless_calls_are_refused_in_plain_words(open_log):
    log = open_log()
    orders = filled(log)
    for wrong in ({"start": "begin"}, {"start": 11}, {"partitions": [1]}, {"partitions": []}, {"on_expired": "skip"}):
        with pytest.raises(Invalid):
            orders.consumer("billing", **wrong)
    assert log.consumers() == []
    with pytest.raises(Invalid, match="limit"):
        orders.consumer("billing").poll(0)
    with pytest.raises(Invalid, match="start is a whole number"):
        orders.consumer("billing", start=None)
    with pytest.raises(Invalid, match="_consumers"):
        log.topic("_consumers").consumer("billing")
    with pytest.raises(NotFound, match="did you mean 'billing'"):
        log.forget_consumer("biling", "orders")


def test_a_handle_that_only_reads_looks_and_does_not_consume(open_log):
    log = open_log()
    consumer = filled(log).consumer("billing")
    taken(consumer, 4)
    consumer.commit()
    reader = open_log(read_only=True)
    assert [(one.consumer, one.lag, one.members) for one in reader.consumers()] == [("billing", 6, None)]
    taken(consumer, 2)
    consumer.commit()
    assert reader.stats().consumers.lag_records == {"billing/orders": 4}
    with pytest.raises(Invalid, match="reading only"):
        reader.topic("orders").consumer("billing")
    with pytest.raises(Invalid, match="reading only"):
        reader.forget_consumer("billing", "orders")


def test_a_consumer_that_is_forgotten_begins_anew(open_log):
    log = open_log()
    orders = filled(log)
    consumer = orders.consumer("billing")
    taken(consumer, 4)
    consumer.commit()
    with pytest.raises(Invalid, match="in use"):
        log.forget_consumer("billing", "orders")
    consumer.close()
    log.forget_consumer("billing", "orders")
    assert log.consumers() == []
    log.close()
    log = open_log()
    assert log.consumers() == []
    consumer = log.topic("orders").consumer("billing")
    assert taken(consumer, 1) == [b"0"]


def test_stats_have_lag_and_members(open_log):
    log = open_log()
    orders = filled(log, partitions=1)
    first, second = orders.consumer("billing"), orders.consumer("billing")
    taken(first, 4)
    first.commit()
    stats = log.stats().consumers
    assert (stats.consumers, stats.members, stats.lag_records) == (1, 2, {"billing/orders": 6})
    del second
    gc.collect()
    assert log.stats().consumers.members == 1
