"""A consumer's position in a transaction over HTTP: what was read, what was made of it and how far are one commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from threading import Event, Thread

import pytest

from holdfast import Closed, Invalid, Log, OutcomeUnknown, Unavailable
from holdfast.log.topics.topic import Topic
from tests.remote.cutting_proxy import CuttingProxy, Seen
from tests.remote.served import ServedLog

pytestmark = pytest.mark.crash

PATIENT = {"journal": {"ack_timeout_ms": 60_000}}
"""A server that was killed is back within this time."""


def is_group(seen: Seen) -> bool:
    return seen.path == "/v1/groups"


def payloads(topic: Topic) -> list[bytes]:
    return [record.payload for record in topic.read()]


def committed(log: Log, topic: str) -> dict[int, int]:
    (status,) = log.consumers(topic)
    return {one.partition: one.committed for one in status.partitions}


def test_a_position_is_committed_with_the_transaction_or_not_at_all(remote: Log, name: str) -> None:
    source, target = remote.topic(name), remote.topic(f"{name}-out")
    source.append_batch([b"%d" % number for number in range(6)])
    with source.consumer("c") as consumer:
        with remote.transaction() as tx:
            made = [tx.append(target, record.payload) for record in consumer.poll(2)]
            tx.put(name, "last", b"1")
            tx.consumed(consumer)
        assert [one.receipt.offset for one in made] == [0, 1]
        assert [receipt.offset for receipt in tx.receipts] == [0, 1]
        assert consumer.committed == '{"0":2}'
        with pytest.raises(ZeroDivisionError), remote.transaction() as tx:
            tx.append(target, consumer.poll(1)[0].payload)
            tx.consumed(consumer)
            raise ZeroDivisionError
        assert (consumer.committed, consumer.position) == ('{"0":2}', '{"0":3}')
        with remote.transaction() as tx:  # a position alone
            tx.consumed(consumer)
        assert (consumer.committed, committed(remote, name)) == ('{"0":3}', {0: 3})
        with remote.transaction() as tx:  # nothing has changed
            tx.consumed(consumer)
            tx.append(target, b"more")
        consumer.poll(2)
        consumer.commit()
        assert consumer.committed == '{"0":5}'
    assert payloads(target) == [b"0", b"1", b"more"]


def test_a_refused_transaction_commits_no_position_and_the_next_one_does(remote: Log, name: str) -> None:
    source, target = remote.topic(name), remote.topic(f"{name}-out")
    source.append_batch([b"%d" % number for number in range(5)])
    target.append(b"first", idempotency_key=name)
    with source.consumer("c") as consumer:
        consumer.poll(2)
        with pytest.raises(Invalid), remote.transaction() as tx:
            tx.append(target, b"another", idempotency_key=name)
            tx.consumed(consumer)
        assert (consumer.committed, consumer.position) == ('{"0":0}', '{"0":2}')
        assert [one.payload for one in consumer.poll(1)] == [b"2"]
        with remote.transaction() as tx:
            tx.append(target, b"made")
            tx.consumed(consumer)
        assert consumer.committed == '{"0":3}'
    assert payloads(target) == [b"first", b"made"]


def test_a_position_is_one_transactions_at_a_time(remote: Log, served: ServedLog, name: str) -> None:
    source = remote.topic(name)
    source.append_batch([b"a", b"b"])
    with source.consumer("c") as consumer, served.connect() as other:
        consumer.poll(1)
        with remote.transaction() as tx:
            tx.consumed(consumer)
            with pytest.raises(Invalid, match="a transaction that has not ended"):
                consumer.commit()
            consumer.poll(1)
            tx.consumed(consumer)  # the last word counts
        assert consumer.committed == '{"0":2}'
        source.append(b"c")
        consumer.poll(1)
        with pytest.raises(Invalid, match="belongs to another log"), other.transaction() as tx:
            tx.consumed(consumer)
    with pytest.raises(Closed), remote.transaction() as tx:
        tx.consumed(consumer)


def test_positions_of_several_consumers_and_of_rows_go_together(remote: Log, name: str) -> None:
    import pyarrow as pa

    raw, typed = remote.topic(name, partitions=2), remote.topic(f"{name}-rows", schema=pa.schema([("a", pa.int64())]))
    raw.append_batch([b"x"] * 3, partition=0)
    raw.append_batch([b"y"] * 2, partition=1)
    typed.append([{"a": 1}, {"a": 2}])
    with raw.consumer("c") as records, typed.consumer("c") as rows:
        seen: list[bytes] = []
        while len(seen) < 5:
            seen += [one.payload for one in records.poll(10, 10)]
        assert [row["a"] for row in rows.poll(1)] == [1]
        with remote.transaction() as tx:
            tx.consumed(records)
            tx.consumed(rows)
            made = tx.append(typed, {"a": 3})
        assert made.receipts[0].offset == 2
        assert (records.committed, rows.committed) == ('{"0":3,"1":2}', '{"0":1}')


def test_a_transaction_whose_answer_was_lost_is_committed_once(
    served: ServedLog, proxy: CuttingProxy, name: str
) -> None:
    with served.connect(proxy.url) as log:
        source, target = log.topic(name), log.topic(f"{name}-out")
        source.append_batch([b"a", b"b", b"c"])
        with source.consumer("c") as consumer:
            for lost in ("lose_answer", "half_answer", "lose_request"):
                (record,) = consumer.poll(1)
                losses = iter([lost, lost])
                proxy.plan = lambda seen, losses=losses: next(losses, "pass") if is_group(seen) else "pass"
                with log.transaction() as tx:
                    tx.append(target, record.payload)
                    tx.consumed(consumer)
            assert consumer.committed == '{"0":3}'
        assert payloads(target) == [b"a", b"b", b"c"]


def test_a_repeat_is_answered_from_what_is_known_though_its_member_is_gone(
    served: ServedLog, proxy: CuttingProxy, name: str
) -> None:
    with served.connect(proxy.url) as log:
        source, target = log.topic(name), log.topic(f"{name}-out")
        source.append_batch([b"a", b"b"])
        consumer = source.consumer("c")
        consumer.poll(1)
        groups: list[Seen] = []

        def plan(seen: Seen) -> str:
            if is_group(seen):
                groups.append(seen)
                if len(groups) == 1:
                    return "lose_answer"
                (here,) = consumer._members._here.values()  # type: ignore[attr-defined]
                consumer._members._leave(here.token)  # type: ignore[attr-defined]
            return "pass"

        proxy.plan = plan
        with log.transaction() as tx:
            tx.append(target, b"made")
            tx.consumed(consumer)
        assert len(groups) == 2
        assert payloads(target) == [b"made"]
        assert [record.payload for record in consumer.poll(2, 30)] == [b"b"]
        consumer.close()


def test_coroutines_commit_positions_with_transactions(remote: Log, name: str) -> None:
    source, target = remote.topic(name), remote.topic(f"{name}-out")
    source.append_batch([b"%d" % number for number in range(5)])

    async def run() -> None:
        async with await asyncio.to_thread(source.consumer, "c") as consumer:
            for _ in range(5):
                records = await consumer.poll_async(1, 10)
                async with remote.transaction() as tx:
                    tx.append(target, records[0].payload)
                    tx.consumed(consumer)

    asyncio.run(run())
    assert committed(remote, name) == {0: 5}
    assert payloads(target) == [b"%d" % number for number in range(5)]


def test_a_member_that_lost_a_partition_gets_nothing_of_its_transaction_written(remote: Log, name: str) -> None:
    """Of two members that both worked on a record only one gets it committed."""
    source, target = remote.topic(name, partitions=2), remote.topic(f"{name}-out")
    for partition in (0, 1):
        source.append_batch([b"%d" % partition] * 3, partition=partition)
    with source.consumer("c") as slow:
        given = [*slow.poll(3), *slow.poll(3)]
        assert {record.partition for record in given} == {0, 1}
        with source.consumer("c", patience=0) as quick:
            (taken,) = quick.partitions  # by force: the first has not committed
            with pytest.raises(Invalid, match="another member has these partitions now"), remote.transaction() as tx:
                tx.append(target, b"made twice")
                tx.consumed(slow)
            assert payloads(target) == []
            kept = 1 - taken
            again = slow.poll(10, 10)
            assert [(record.partition, record.offset) for record in again] == [(kept, 0), (kept, 1), (kept, 2)]
            for member in (slow, quick):
                member.poll(10, 0)
                with remote.transaction() as tx:
                    tx.append(target, member.name.encode())
                    tx.consumed(member)
            assert committed(remote, name) == {0: 3, 1: 3}


def test_what_was_made_before_a_server_died_is_committed_by_the_next_one(mortal: ServedLog, name: str) -> None:
    """The member comes again under its token, and nobody has committed meanwhile: nothing is made twice or left out."""
    with mortal.connect(settings=PATIENT) as log:
        source, target = log.topic(name), log.topic(f"{name}-out")
        source.append_batch([b"%d" % number for number in range(6)])
        consumer = source.consumer("c")
        first = consumer.poll(2)
        mortal.restart()
        with log.transaction(timeout=60) as tx:
            for record in first:
                tx.append(target, record.payload)
            tx.consumed(consumer)
        seen = [record.payload for record in first]
        while len(seen) < 6:
            records = consumer.poll(2, 30)
            with log.transaction(timeout=60) as tx:
                for record in records:
                    tx.append(target, record.payload)
                tx.consumed(consumer)
            seen += [record.payload for record in records]
        assert payloads(target) == seen == [b"%d" % number for number in range(6)]
        consumer.close()


def test_a_partition_that_came_meanwhile_is_not_committed_unseen(served: ServedLog, name: str) -> None:
    """Another member leaves, its partition comes to this one: what this client never got is not consumed."""
    with served.connect() as log, served.connect() as elsewhere:
        topic = log.topic(name, partitions=2)
        for partition in (0, 1):
            topic.append_batch([b"%d" % partition] * 3, partition=partition)
        one = topic.consumer("c", partitions=[0])
        two = elsewhere.topic(name).consumer("c")
        assert two.partitions == (1,)
        shared = topic.consumer("c")
        assert [record.partition for record in two.poll(2)] == [1, 1]
        two.commit()
        one.close()
        records = shared.poll(2, 30)
        assert [record.partition for record in records] == [0, 0]
        two.close()
        while shared.partitions != (0, 1):
            pass
        shared.commit()
        assert committed(log, name) == {0: 2, 1: 2}
        rest = []
        while len(rest) < 2:
            rest += shared.poll(10, 30)
        assert sorted(record.partition for record in rest) == [0, 1]
        shared.close()


def test_a_killed_server_neither_loses_nor_repeats_what_is_made_of_records(
    mortal: ServedLog, name: str, seed: int
) -> None:
    """Two clients read, make and commit; the server is killed again and again: everything is made exactly once."""
    random, total = Random(seed), 120
    failures: list[BaseException] = []
    done = Event()
    with mortal.connect(settings=PATIENT) as log:
        source, target = log.topic(name, partitions=2), log.topic(f"{name}-out")
        source.append_batch([b"%d" % number for number in range(total)])

        def work() -> None:
            try:
                with mortal.connect(settings=PATIENT) as own:
                    consumer = own.topic(name).consumer("c", patience=1)
                    while not done.is_set():
                        try:
                            records = consumer.poll(random.randrange(1, 6), 0.2)
                        except Unavailable:  # a busy machine takes its time to start a server
                            continue
                        if not records:
                            continue
                        try:
                            with own.transaction(timeout=60) as tx:
                                for record in records:
                                    tx.append(f"{name}-out", record.payload)
                                tx.consumed(consumer)
                        except Invalid:  # taken over, or the server does not know this member any more
                            pass
                    consumer.close()
            except BaseException as error:
                failures.append(error)
                done.set()

        threads = [Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        follower, found = target.follow(0), Counter[bytes]()
        kills = [total // 5, total // 2]
        while sum(found.values()) < total and not done.is_set():
            found[next(follower).payload] += 1
            if kills and sum(found.values()) >= kills[0]:
                kills.pop(0)
                mortal.restart()
        while sum(committed(log, name).values()) < total and not done.is_set():
            done.wait(0.05)
        done.set()
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert Counter(payloads(target)) == Counter(b"%d" % number for number in range(total))


def test_an_unanswered_transaction_keeps_the_next_commit_waiting(mortal: ServedLog, name: str) -> None:
    """Nobody knows yet how far it is consumed: committing less, or more, would be a guess."""
    with mortal.connect() as log:
        source = log.topic(name)
        source.append_batch([b"a", b"b"])
        consumer = source.consumer("c")
        consumer.poll(1)
        mortal.pause()
        with pytest.raises(OutcomeUnknown) as caught, log.transaction(timeout=0.2) as tx:
            tx.append(f"{name}", b"made")
            tx.consumed(consumer)
        with pytest.raises(OutcomeUnknown):
            consumer.commit(0.1)
        mortal.go_on()
        caught.value.ticket.result(60)  # type: ignore[union-attr]
        assert consumer.committed == '{"0":1}'
        consumer.close()
