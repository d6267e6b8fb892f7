"""Transactions as programs use them: together or not at all, receipts after the block, nothing before and after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import pyarrow as pa
import pytest
from tests.failing_commits import refuse_next_commit
from tests.stalled import stalled

import holdfast
from holdfast import Closed, Full, Invalid, Log, OutcomeUnknown, Receipt, Record, Unavailable
from holdfast.model.control_rows import DiskFailed

pytestmark = pytest.mark.disk


def payloads(log: Log, topic: str) -> list[bytes]:
    return [record.payload for record in log.topic(topic).read()]


def groups(log: Log) -> int:
    return log._journal._state.row.groups


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


class Broken(Exception):
    """What a block raises."""


# -- together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_block_is_one_commit(open_log, keyring, is_encrypted):
    """Records of several topics, items of two spaces: one commit, and all of it after reopening."""
    ring = keyring if is_encrypted else None
    log = open_log(keyring=ring)
    orders, many = log.topic("orders"), log.topic("many", partitions=3)
    log.space("stock").put("chairs", b"14")
    log.space("stock").put("tables", b"3")
    log.topic("plain")
    before = groups(log)
    with log.transaction() as tx:
        first = tx.append(orders, b"two chairs", key="c-42", kind="order", headers={"trace": b"1"})
        tx.put("stock", "chairs", b"12")
        tx.delete(log.space("stock"), "tables")
        tx.put("balances", b"c-42", b"-40")
        last = tx.append("plain", b"x", time=datetime(2026, 1, 2, tzinfo=UTC))
        batch = tx.append_batch(many, [Record(b"a", key=b"k"), b"b", Record(b"c", key=b"k")])
        second = tx.append(orders, b"one table", partition=0)
        assert payloads(log, "orders") == []
        assert log.space("stock").get("chairs") == b"14"
    assert groups(log) == before + 1
    receipts = [first.receipt, last.receipt, *batch.receipts, second.receipt]
    assert tx.receipts == receipts
    assert [(one.topic, one.offset) for one in (first.receipt, last.receipt, second.receipt)] == [
        ("orders", 0),
        ("plain", 0),
        ("orders", 1),
    ]
    for reopened in (log, None):
        if reopened is None:
            log.close()
            log = open_log(keyring=ring)
        found = {(r.partition, r.offset): r for r in log.topic("many").read()}
        assert [found[one.partition, one.offset].payload for one in batch.receipts] == [b"a", b"b", b"c"]
        stored = next(iter(log.topic("orders").read()))
        assert (stored.payload, stored.key, stored.kind, stored.headers) == (
            b"two chairs",
            b"c-42",
            "order",
            {"trace": b"1"},
        )
        assert log.space("stock").items() == [(b"chairs", b"12")]
        assert log.space("balances").items() == [(b"c-42", b"-40")]
        assert next(iter(log.topic("plain").read())).time == 1767312000000000


def test_a_block_that_raises_writes_nothing(open_log):
    """Whatever it raises; the exception goes on, and receipts say that there are none."""
    log = open_log()
    log.topic("t")
    before = groups(log)
    for error in (Broken(), KeyboardInterrupt(), Full("no room")):
        with pytest.raises(type(error)), log.transaction() as tx:
            pending = tx.append("t", b"x")
            tx.put("s", "k", b"v")
            raise error
        for asked in (lambda p=pending: p.receipt, lambda t=tx: t.receipts):
            with pytest.raises(Invalid, match="was not written"):
                asked()
    assert (payloads(log, "t"), log.spaces(), groups(log)) == ([], [], before)


def test_an_empty_block_writes_nothing(open_log):
    """Nor does it wake the writer."""
    log = open_log()
    log.topic("t")
    before = groups(log)
    with log.transaction() as tx:
        pass
    assert (tx.receipts, groups(log)) == ([], before)


def test_rows_of_typed_topics_go_with_it(open_log):
    """In the partitions of their keys, with a receipt each; also with idempotency keys."""
    log = open_log()
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
    typed = log.topic("typed", schema=schema, key="k", partitions=3)
    with log.transaction() as tx:
        rows = tx.append(typed, [{"k": n, "v": str(n)} for n in range(7)], idempotency_key="rows")
        raw = tx.append("t", b"x")
        one = tx.append(typed, {"k": 100, "v": "one"})
        arrow = tx.append(typed, pa.table({"k": [200, 201], "v": ["a", "b"]}), partition=1)
    found = {(row["_partition"], row["_offset"]): row["k"] for row in typed.read()}
    assert [found[r.partition, r.offset] for r in rows.receipts] == list(range(7))
    assert [found[r.partition, r.offset] for r in one.receipts] == [100]
    assert [found[r.partition, r.offset] for r in arrow.receipts] == [200, 201]
    assert (raw.receipt.offset, len(tx.receipts), len(found)) == (0, 11, 10)
    with log.transaction() as tx:
        again = tx.append(typed, [{"k": n, "v": str(n)} for n in range(7)], idempotency_key="rows")
        tx.append("t", b"y")
    assert list(again.receipts) == [Receipt(r.topic, r.partition, r.offset, r.seq, True) for r in rows.receipts]
    assert payloads(log, "t") == [b"x", b"y"]
    with pytest.raises(Invalid, match="no key, headers or kind"), log.transaction() as tx:
        tx.append(typed, {"k": 1}, key="k")  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="is typed"), log.transaction() as tx:
        tx.append_batch(typed, [b"x"])  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="is typed"), log.transaction() as tx:
        tx.append("typed", b"x")


def test_known_keys_are_not_written_again_and_misused_ones_refuse_it(open_log):
    """A repeated transaction writes its keyed records once; other content under the same key writes nothing at all."""
    log = open_log()

    def order(payload: bytes, stock: bytes) -> Any:
        with log.transaction() as tx:
            tx.append("orders", payload, idempotency_key="request-1")
            tx.append("orders", b"line", idempotency_key="request-1/line")
            tx.put("stock", "chairs", stock)
        return tx

    first, again = order(b"two", b"12").receipts, order(b"two", b"12").receipts
    assert [(r.offset, r.seq, r.repeated) for r in again] == [(r.offset, r.seq, True) for r in first]
    with pytest.raises(Invalid, match="already in use for other content"):
        order(b"three", b"11")
    assert (payloads(log, "orders"), log.space("stock").get("chairs")) == ([b"two", b"line"], b"12")
    with log.transaction() as tx:
        pair = [tx.append("orders", b"same", idempotency_key="twice") for _ in range(2)]
    assert [(one.receipt.offset, one.receipt.repeated) for one in pair] == [(2, False), (2, True)]


def test_of_an_item_the_last_word_counts(open_log, monkeypatch):
    """However often it was put and deleted, by name or by the space itself; each space changes once."""
    log = open_log()
    log.space("s").put("old", b"1")
    backend = log._journal._backend
    monkeypatch.setattr(backend, "savepoint", lambda: pytest.fail("this needs no savepoint"))
    with log.transaction() as tx:
        for n in range(5):
            tx.put("s", "k", b"%d" % n)
        tx.put(log.space("s"), b"gone", b"x")
        tx.delete("s", "gone")
        tx.delete("s", "old")
        tx.put("s", "old", b"2")
        tx.delete("s", "never")
    assert log.space("s").items() == [(b"k", b"4"), (b"old", b"2")]


# -- when it may be used ----------------------------------------------------------------------------------


def test_it_takes_nothing_before_and_after_its_block(open_log):
    """One object is one transaction; what is wrong is said, and what was committed stays."""
    log = open_log()
    topic = log.topic("t")
    tx = log.transaction()

    def uses() -> list[Any]:
        return [
            lambda: tx.append(topic, b"x"),
            lambda: tx.append("fresh", b"x"),
            lambda: tx.append_batch(topic, [b"x"]),
            lambda: tx.put("s", "k", b"v"),
            lambda: tx.delete("s", "k"),
            lambda: tx.consumed(topic.consumer("c")),
        ]

    for use in uses():
        with pytest.raises(Invalid, match="has not begun"):
            use()
    with pytest.raises(Invalid, match="not committed yet"):
        _ = tx.receipts
    with tx:
        pending = tx.append(topic, b"kept")
        with pytest.raises(Invalid, match="not committed yet"):
            _ = pending.receipt
        with pytest.raises(Invalid, match="used once"), tx:
            pass
        assert repr(tx) == "Transaction(open, records=1)"
    for use in uses():
        with pytest.raises(Invalid, match="is over"):
            use()
    with pytest.raises(Invalid, match="used once"), tx:
        pass
    with pytest.raises(Invalid, match="is over"):
        tx.__exit__(None, None, None)
    assert (payloads(log, "t"), pending.receipt.offset, "fresh" in log.topics()) == ([b"kept"], 0, False)


def test_things_of_other_logs_are_refused(open_log):
    """A topic, a space or a consumer of another log cannot commit with this one."""
    log, other = open_log("one"), open_log("two")
    foreign = other.topic("t")
    foreign.append_batch([b"x", b"y"])
    consumer = foreign.consumer("c")
    consumer.poll(1)
    typed = other.topic("typed", schema=pa.schema([pa.field("k", pa.int64())]))
    with log.transaction() as tx:
        for use in (
            lambda: tx.append(foreign, b"x"),
            lambda: tx.append_batch(foreign, [b"x"]),
            lambda: tx.append(typed, {"k": 1}),
            lambda: tx.put(other.space("s"), "k", b"v"),
            lambda: tx.consumed(consumer),
        ):
            with pytest.raises(Invalid, match="another log"):
                use()
        tx.append("t", b"mine")
    consumer.commit()
    assert (payloads(log, "t"), payloads(other, "t")) == ([b"mine"], [b"x", b"y"])
    assert consumer.committed == '{"0":1}'


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda tx: tx.append("t", "text"), "a payload is bytes"),
        (lambda tx: tx.append("t", b"x", partition=7), "no partition 7"),
        (lambda tx: tx.append("t", b"x" * (2**20 + 1)), "too large"),
        (lambda tx: tx.append("no/such", b"x"), "not a topic name"),
        (lambda tx: tx.append(7, b"x"), "a topic is got with"),
        (lambda tx: tx.append_batch("t", []), "is empty"),
        (lambda tx: tx.append_batch("t", b"x"), "records is a list"),
        (lambda tx: tx.put("s", 1, b"v"), "a key is bytes or text"),
        (lambda tx: tx.put("s", "\ud800", b"v"), "lone surrogates"),
        (lambda tx: tx.put("s", "k", "text"), "a body is bytes"),
        (lambda tx: tx.put("s", "k" * 5000, b""), "key is up to"),
        (lambda tx: tx.put("s", "k", bytes(2**24 + 1)), "body is up to"),
        (lambda tx: tx.put("s/../t", "k", b""), "not a space name"),
        (lambda tx: tx.put(7, "k", b""), "a space is got with"),
        (lambda tx: tx.delete("s", None), "a key is bytes or text"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_asked_for(open_log, use, says):
    """And is not part of it: the rest may be committed."""
    log = open_log()
    with log.transaction() as tx:
        tx.append("t", b"before")
        with pytest.raises(Invalid, match=says):
            use(tx)
        tx.append("t", b"after")
    assert (payloads(log, "t"), log.spaces()) == ([b"before", b"after"], [])


def test_a_transaction_is_bounded_like_a_batch(open_log):
    """Records, their bytes, and items: three times each limit is refused when it is asked for, and the rest stays."""
    log = open_log(
        journal={
            "batch_records_max": 10,
            "batch_bytes_max": "10KB",
            "queue_bytes_max": "30KB",
            "payload_bytes_max": "10KB",
        }
    )
    with log.transaction() as tx:
        for n in range(10):
            tx.append("t", b"%d" % n)
        for _ in range(20):
            with pytest.raises(Invalid, match="too large records=11"):
                tx.append("t", b"x")
        with pytest.raises(Invalid, match="too large records=20"):
            tx.append_batch("t", [b"x"] * 10)
    with log.transaction() as tx:
        tx.append("u", b"x" * 9_000)
        for _ in range(3):
            with pytest.raises(Invalid, match="bytes=18000"):
                tx.append("u", b"x" * 9_000)
    with log.transaction() as tx:
        for n in range(10):
            tx.put("s", f"{n}", b"v")
        with pytest.raises(Invalid, match="changes too much items=11"):
            tx.put("s", "more", b"v")
    with log.transaction() as tx:
        tx.put("big", "a", b"x" * 20_000)
        with pytest.raises(Invalid, match="changes too much"):
            tx.put("big", "b", b"x" * 20_000)
        tx.append("u", b"x" * 9_000)
    assert (len(payloads(log, "t")), len(payloads(log, "u")), len(log.space("s").items())) == (10, 2, 10)
    assert [key for key, _ in log.space("big").items()] == [b"a"]


def test_a_log_that_is_only_read_has_none(open_log, tmp_path):
    """Refused before the block; spaces can be read there."""
    with open_log() as log:
        log.space("s").put("k", b"v")
        with holdfast.open(tmp_path / "log", read_only=True) as reader:
            with pytest.raises(Invalid, match="for reading only"):
                reader.transaction()
            with pytest.raises(Invalid, match="for reading only"):
                reader.space("s").put("k", b"w")
            assert (reader.space("s").items(), reader.space("s").get("k"), reader.spaces()) == (
                [(b"k", b"v")],
                b"v",
                ["s"],
            )
            log.space("s").put("k", b"w")
            assert (reader.space("s").get("k"), reader.space("s").get("l")) == (b"w", None)


def test_what_cannot_come_is_refused_before_the_block(open_log):
    """A durability that nobody knows, one that needs a store, and a time-out that is none."""
    log = open_log()
    with pytest.raises(Invalid, match="ships to no store"):
        log.transaction(durability="shipped")
    with pytest.raises(Invalid, match="unknown durability"):
        log.transaction(durability="soon")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="a number of seconds"):
        log.transaction(timeout="1")  # type: ignore[arg-type]


# -- threads and coroutines -------------------------------------------------------------------------------


def test_threads_may_share_one(open_log):
    """Nothing is lost between them, and each has the receipts of its own records."""
    log = open_log()
    topic = log.topic("t")
    found: dict[int, list[Any]] = {}
    with log.transaction() as tx:

        def add(number: int) -> None:
            found[number] = [tx.append(topic, b"%d %d" % (number, n)) for n in range(200)]
            tx.put("s", f"{number}", b"")

        threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = payloads(log, "t")
    assert len(stored) == 800
    for number, pending in found.items():
        assert [stored[one.receipt.offset] for one in pending] == [b"%d %d" % (number, n) for n in range(200)]
    assert len(log.space("s").items()) == 4


def test_a_straggler_is_refused_not_lost(open_log):
    """A thread that goes on when the block has ended learns so; what it heard is there is there."""
    log = open_log()
    topic = log.topic("t")
    ended, taken = threading.Event(), []
    with log.transaction() as tx:

        def go_on() -> None:
            while True:
                try:
                    taken.append(tx.append(topic, b"x"))
                except Invalid:
                    return
                ended.wait(0.0001)

        thread = threading.Thread(target=go_on)
        thread.start()
        while not taken:
            pass
    ended.set()
    thread.join()
    assert len(payloads(log, "t")) == len(taken) == len(tx.receipts)
    assert [one.receipt.offset for one in taken] == list(range(len(taken)))


@in_loop
async def test_coroutines_wait_without_blocking(open_log):
    """`async with` commits; many at once are few commits, and each has its own receipts."""
    log = open_log()
    a, b = log.topic("a"), log.topic("b")

    async def one(n: int) -> Any:
        async with log.transaction() as tx:
            first = tx.append(a, b"%d" % n)
            await asyncio.sleep(0)
            second = tx.append(b, b"%d" % n)
            tx.put("s", f"{n}", b"%d" % n)
        return first.receipt, second.receipt

    before = groups(log)
    results = await asyncio.gather(*(one(n) for n in range(100)))
    stored = payloads(log, "a"), payloads(log, "b")
    for n, (first, second) in enumerate(results):
        assert (stored[0][first.offset], stored[1][second.offset]) == (b"%d" % n, b"%d" % n)
    assert groups(log) - before < 50
    with pytest.raises(Broken):
        async with log.transaction() as tx:
            tx.append(a, b"no")
            raise Broken
    assert len(payloads(log, "a")) == 100


@in_loop
async def test_a_plain_block_in_a_coroutine_warns(open_log):
    """As append() does, and names the other way."""
    log = open_log()
    with pytest.warns(RuntimeWarning, match="async with log.transaction"), log.transaction() as tx:
        tx.append("t", b"x")
    with pytest.warns(RuntimeWarning, match="put_async"):
        log.space("s").put("k", b"v")
    await log.space("s").put_async("l", b"w")
    await log.space("s").delete_async("k")
    assert log.space("s").items() == [(b"l", b"w")]
    await log.space("s").drop_async()
    assert (log.spaces(), payloads(log, "t")) == ([], [b"x"])


@in_loop
async def test_a_cancelled_wait_takes_nothing_back(open_log):
    """Once it is queued it commits; the transaction tells afterwards. Cancelled in its block, it writes nothing."""
    log = open_log()
    topic = log.topic("t")
    held = []

    async def commit() -> None:
        async with log.transaction() as tx:
            held.append(tx)
            tx.append(topic, b"x")
            tx.put("s", "k", b"v")

    with stalled(topic):
        task = asyncio.create_task(commit())
        while not log._journal._queue._open.items:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OutcomeUnknown):
            _ = held[0].receipts
    log.flush()
    assert ([one.offset for one in held[0].receipts], payloads(log, "t")) == ([0], [b"x"])

    async def linger() -> None:
        async with log.transaction() as tx:
            tx.append(topic, b"y")
            await asyncio.sleep(60)

    task = asyncio.create_task(linger())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert payloads(log, "t") == [b"x"]


@in_loop
async def test_coroutines_wait_for_room_in_turn(open_log):
    """A queue that is full makes them wait, and all of them get there; a time-out writes nothing."""
    log = open_log(journal={"queue_records_max": 4})
    topic = log.topic("t")

    async def one(n: int, timeout: float = 30) -> None:
        async with log.transaction(timeout=timeout) as tx:
            tx.append_batch(topic, [b"%d" % n] * 3)
            tx.put("s", f"{n}", b"")

    await asyncio.gather(*(one(n) for n in range(20)))
    assert (len(payloads(log, "t")), len(log.space("s").items())) == (60, 20)
    with stalled(topic):
        first = asyncio.create_task(one(100))
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await one(101, timeout=0.01)
    await first
    assert b"101" not in payloads(log, "t")
    assert (log.space("s").get("100"), log.space("s").get("101")) == (b"", None)


# -- when it goes wrong -----------------------------------------------------------------------------------


def test_no_acknowledgement_in_time_is_an_unknown_outcome(open_log):
    """As with append; the ticket settles, and then the transaction knows its receipts."""
    log = open_log()
    topic = log.topic("t")
    with stalled(topic), pytest.raises(OutcomeUnknown) as caught, log.transaction(timeout=0.01) as tx:
        pending = tx.append(topic, b"x")
    caught.value.ticket.result(5)
    assert (pending.receipt.offset, payloads(log, "t")) == (0, [b"x"])


def test_no_room_in_time_writes_nothing(open_log):
    """Full, after the time-out; receipts tell the same."""
    log = open_log(journal={"queue_records_max": 2})
    topic = log.topic("t")
    with stalled(topic):
        topic.submit_batch([b"1", b"2"])
        with pytest.raises(Full), log.transaction(timeout=0.01) as tx:
            tx.append(topic, b"x")
            tx.put("s", "k", b"v")
    with pytest.raises(Full):
        _ = tx.receipts
    log.flush()
    assert (payloads(log, "t"), log.spaces()) == ([b"1", b"2"], [])


def test_a_refused_group_is_not_written(open_log, monkeypatch):
    """A disk that will not take it: Unavailable, nothing is there, and the next one may try."""
    log = open_log()
    topic = log.topic("t")
    refuse_next_commit(topic, monkeypatch, Unavailable("the disk is full; nothing was written"))
    with pytest.raises(Unavailable, match="disk is full"), log.transaction() as tx:
        tx.append(topic, b"lost")
        tx.put("s", "k", b"lost")
    with pytest.raises(Unavailable, match="disk is full"):
        _ = tx.receipts
    with log.transaction() as tx:
        tx.append(topic, b"kept")
        tx.put("s", "k", b"kept")
    assert (payloads(log, "t"), log.space("s").get("k")) == ([b"kept"], b"kept")


def test_a_commit_that_fails_leaves_the_outcome_unknown(open_log, monkeypatch):
    """An fsync that failed poisons the log: nobody says that it was, or was not, written."""
    log = open_log()
    topic = log.topic("t")
    refuse_next_commit(topic, monkeypatch, DiskFailed("fsync"))
    with pytest.raises(OutcomeUnknown), log.transaction() as tx:
        tx.append(topic, b"x")
    with pytest.raises(OutcomeUnknown):
        _ = tx.receipts
    with pytest.raises(Closed), log.transaction() as tx:
        tx.append(topic, b"y")


def test_a_closed_log_takes_none(open_log):
    """Begun before and ended after: Closed, and nothing is there."""
    log = open_log()
    topic = log.topic("t")
    with pytest.raises(Closed), log.transaction() as tx:
        tx.append(topic, b"x")
        log.close()
    for ask in (lambda: log.space("none").get("k"), lambda: log.space("none").items(), log.spaces):
        with pytest.raises(Closed):
            ask()
    assert payloads(open_log(), "t") == []


# -- consumers --------------------------------------------------------------------------------------------


def test_what_is_consumed_commits_with_what_was_made_of_it(open_log):
    """Position and results together; an exception takes both back, and the records come again after reopening."""
    log = open_log()
    source = log.topic("source")
    source.append_batch([b"%d" % n for n in range(10)])
    consumer = source.consumer("c")
    with pytest.raises(Broken), log.transaction() as tx:
        for record in consumer.poll(4):
            tx.append("made", record.payload)
        tx.consumed(consumer)
        raise Broken
    consumer.seek("first")
    with log.transaction() as tx:
        for _ in range(2):
            for record in consumer.poll(2):
                tx.append("made", record.payload)
            tx.consumed(consumer)
        consumer.poll(1)
    assert consumer.committed == '{"0":4}'
    log.close()
    again = open_log()
    consumer = again.topic("source").consumer("c")
    assert (payloads(again, "made"), consumer.poll(1)[0].offset) == ([b"0", b"1", b"2", b"3"], 4)


def test_several_consumers_commit_in_one_transaction(open_log, monkeypatch):
    """Their positions are items of one space, which changes once."""
    log = open_log()
    consumers = []
    for name in ("a", "b"):
        log.topic(name).append_batch([b"x"] * 5)
        consumers.append(log.topic(name).consumer("c"))
    monkeypatch.setattr(log._journal._backend, "savepoint", lambda: pytest.fail("this needs no savepoint"))
    with log.transaction() as tx:
        for count, consumer in enumerate(consumers, 2):
            consumer.poll(count)
            tx.consumed(consumer)
    assert [one.committed for one in consumers] == ['{"0":2}', '{"0":3}']


def test_a_refused_transaction_leaves_its_consumer_where_it_was(open_log, monkeypatch):
    """Neither what was made nor the position is there; committing again works."""
    log = open_log()
    source = log.topic("source")
    source.append_batch([b"x"] * 5)
    made = log.topic("made")
    consumer = source.consumer("c")
    consumer.poll(3)
    refuse_next_commit(made, monkeypatch, Unavailable("the disk is full"))
    with pytest.raises(Unavailable), log.transaction() as tx:
        tx.append(made, b"y")
        tx.consumed(consumer)
    assert (consumer.committed, payloads(log, "made")) == ('{"0":0}', [])
    with log.transaction() as tx:
        tx.append(made, b"y")
        tx.consumed(consumer)
    assert (consumer.committed, payloads(log, "made")) == ('{"0":3}', [b"y"])
