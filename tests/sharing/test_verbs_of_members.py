"""Every verb of a log works in a member that does not own it, with the same answers and the same errors."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, Log
from holdfast.log.topics import local_source
from tests.sharing.shared_logs import join, shared

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with shared(tmp_path_factory.mktemp("shared") / "log") as (log, _):
        yield log


def test_sealing_retention_and_reconciliation_are_done_by_the_owner(member: Log) -> None:
    topic = member.topic("sealed", partitions=2)
    topic.append_batch([b"%d" % number for number in range(10)], partition=0)
    member.seal("sealed")
    assert [mark.sealed for mark in topic.marks()] == [10, 0]
    topic.append_batch([b"x"] * 5, partition=0)
    member.seal()
    member.set_retention("sealed", records_max=5)
    assert member.retain(dry_run=True).dry_run
    member.retain()  # the owner may have done so by itself already
    assert next(iter(topic.read())).offset == 10
    assert member.reconcile(deep=True).clean
    assert member.last_reconcile is not None
    assert member.compact("sealed").files_after >= 0
    stats = member.stats()
    assert stats.segments.seals_total >= 2
    assert stats.journal.records_total >= 15
    assert stats.shipping is None
    assert member.unshipped() == ()


def test_who_waits_as_long_as_it_takes_may_say_so(member: Log) -> None:
    """The owner takes no longer wait than a week; a member with more patience asks for that."""
    member.topic("t").append(b"one")
    member.seal(timeout=1e12)
    assert member.marks("t")[0].sealed == 1


def test_a_producers_number_gives_no_receipt_for_what_was_not_sent_under_it(member: Log) -> None:
    member.topic("made")
    producer = member.producer("device-7")
    first = producer.append("made", b"one", sequence=1)
    for wrong in ("made", "made-elsewhere"):
        member.topic(wrong)
        with pytest.raises(Invalid, match="already in use for other content"):
            producer.append_batch(wrong, [b"one", b"two"], sequence=1)
    again = producer.append("made", b"one", sequence=1)
    assert (again.offset, again.repeated) == (first.offset, True)
    assert [record.payload for record in member.topic("made").read()] == [b"one"]


def test_errors_are_those_of_a_local_log(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (member, _), holdfast.open(tmp_path / "alone") as alone:
        for log in (member, alone):
            log.topic("orders")
            log.topic("rows", schema=pa.schema([("a", pa.int64())]))

        def error_of(log: Log, call: str) -> tuple[type, str, str]:
            with pytest.raises(holdfast.HoldfastError) as caught:
                eval(call, {"log": log, "timedelta": timedelta, "pa": pa})
            kind = next(one for one in type(caught.value).__mro__ if one.__module__ == "holdfast.errors")
            return kind, caught.value.message, caught.value.hint

        for call in (
            "log.seal('order')",
            "log.marks('order')",
            "log.ship()",
            "log.rebuild_store()",
            "log.subscribe()",
            "log.rotate_key(None)",
            "log.topic('orders', partitions=7)",
            "log.topic('rows')",
            "log.topic('rows', schema=pa.schema([('a', pa.string())]))",
            "log.topic('new', partitions=0)",
            "log.topic('a/b')",
            "log.set_retention('orders', bytes_max=1, wait_for=['x'])",
            "log.forget_consumer('billing', 'orders')",
            "log.reconcile(remote=True)",
            "log.topic('orders').append(b'x', durability='shipped')",
            "log.topic('orders').append(b'x' * 2**25)",
            "log.topic('orders').append_batch([b'x'], partition=3)",
            "log.topic('orders').consumer('c', start='nowhere')",
            "log.topic('orders').consumer('c', start=9)",
            "log.executions.cancel('018f0000-0000-7000-8000-000000000000')",
        ):
            assert error_of(member, call) == error_of(alone, call), call


def test_a_process_that_runs_executions_is_handed_the_log_and_keeps_it(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, owner), join(tmp_path / "log") as other:
        started = other.executions.start("double", 21)
        topic = other.topic("orders")
        topic.append(b"before")
        with topic.consumer("billing") as consumer:  # threads of the owner that are to end when it hands over
            consumer.poll(1)
            consumer.commit()
        done: list[int] = []
        assert not log.is_owner
        worker = log.worker({"double": lambda ctx, number: done.append(number) or 2 * number})
        assert log.is_owner
        running = threading.Thread(target=worker.run)
        running.start()
        assert other.executions.result(started, timeout=60) == 42
        for kept in (lambda: other.execution("x"), lambda: other.worker([]), lambda: other.channels("alice")):
            with pytest.raises(Invalid, match="keeps it: it serves it, or runs executions or channels"):
                kept()
        assert topic.append(b"after").offset == 1
        worker.stop()
        running.join(60)
        with log.channels("alice") as channels:
            assert channels.participant_id == "alice"
        assert owner.process.poll() is None
    assert done == [21]


def test_topics_schemas_and_spaces_are_seen_by_everybody_at_once(member: Log) -> None:
    other = join(member.path)
    with other:
        first = pa.schema([("a", pa.int64())])
        member.topic("typed", schema=first, partitions=2, key="a").append([{"a": 1}, {"a": 2}])
        assert len(list(other.topic("typed", schema="latest").read())) == 2
        other.topic("typed", schema=pa.schema([("a", pa.int64()), ("b", pa.string())])).append({"a": 3, "b": "c"})
        rows = [dict(row) for row in member.topic("typed", schema="latest").read()]
        assert sorted((row["a"], row["b"]) for row in rows) == [(1, None), (2, None), (3, "c")]
        for log, mine in ((member, b"1"), (other, b"2")):
            log.space("stock").put("chairs", mine)
            assert log.space("stock").get("chairs") == mine
        assert member.space("stock").items() == [(b"chairs", b"2")]
        assert member.spaces() == other.spaces()
        assert "stock" in other.spaces()


def test_two_members_that_put_the_first_items_at_once_find_each_others(tmp_path: Path) -> None:
    """The salt that hides keys is drawn once, by the first that needs it."""
    with shared(tmp_path / "log") as (one, _), join(tmp_path / "log") as two:
        gate = threading.Barrier(2)

        def put(log: Log, key: str) -> None:
            log.space("s").name  # noqa: B018
            gate.wait(30)
            log.space("s").put(key, key.encode())

        threads = [threading.Thread(target=put, args=pair) for pair in ((one, "a"), (two, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for log in (one, two):
            assert log.space("s").items() == [(b"a", b"a"), (b"b", b"b")]
            assert (log.space("s").get("a"), log.space("s").get("b")) == (b"a", b"b")


def test_a_transaction_of_a_member_has_its_receipts_and_is_whole(member: Log) -> None:
    with member.transaction() as tx:
        one = tx.append("paid", b"one", idempotency_key="k")
        tx.put("s", "k", b"v")
        tx.delete("s", "gone")
    with member.transaction() as tx:
        again = tx.append("paid", b"one", idempotency_key="k")
    assert (one.receipt.offset, again.receipt.offset, again.receipt.repeated) == (0, 0, True)
    with pytest.raises(Invalid), member.transaction() as tx:
        tx.append("paid", b"another", idempotency_key="k")
        tx.put("s", "k", b"other")
    assert member.space("s").get("k") == b"v"


def test_a_follower_is_woken_and_goes_on_over_a_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_source, "_NEWS_S", 3600.0)  # nothing but the owner's word wakes it
    with shared(tmp_path / "log") as (log, owner), join(tmp_path / "log") as writer:
        topic, got, here = log.topic("orders"), [], threading.Semaphore(0)

        def follow() -> None:
            for record in topic.follow(0):
                got.append(record.payload)
                here.release()
                if record.payload == b"end":
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        other = writer.topic("orders")
        for payload in (b"one", b"more", b"again"):
            other.append(payload)
            assert here.acquire(timeout=30)
        owner.kill()
        other.append(b"two")
        assert here.acquire(timeout=30)
        other.append(b"end")
        thread.join(30)
        assert got == [b"one", b"more", b"again", b"two", b"end"]


def test_a_call_that_is_under_way_when_the_owner_dies_is_asked_of_the_next(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, owner):
        topic = log.topic("orders")
        topic.append_batch([b"x" * 100] * 20_000)
        sealing = threading.Thread(target=log.seal)
        sealing.start()
        owner.kill()
        sealing.join(60)
        assert not sealing.is_alive()
        assert topic.marks()[0].sealed == 20_000


def test_marks_and_shipped_tickets_follow_what_the_owner_ships(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    with shared(tmp_path / "log", store) as (log, owner):
        topic = log.topic("orders")
        receipt = topic.append(b"one", durability="shipped")
        assert log.marks("orders")[0].shipped == 1
        ticket = topic.submit(b"two")
        assert ticket.shipped(60).offset == receipt.offset + 1
        with log.transaction(durability="shipped") as tx:
            tx.append("orders", b"three")
        log.seal()
        log.ship()
        marks = log.marks("orders")[0]
        assert (marks.shipped, marks.settled) == (3, 3)
        assert log.stats().shipping is not None
        assert log.reconcile(remote=True).clean
        owner.kill()
        assert topic.append(b"four", durability="shipped").offset == 3
        assert log.marks("orders")[0].shipped == 4


def test_executions_are_started_signalled_and_looked_at_by_members(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, owner):
        started = log.executions.start("import", 7, id="018f0000-0000-7000-8000-000000000001")
        assert [row.kind for row in log.executions.list()] == ["import"]
        assert log.executions.signal(started, "go", "now")
        owner.kill()  # from here on this process owns the log
        assert log.executions.cancel(started, "not needed") in ("canceled", "queued", "running")
        assert log.is_owner
        ran = []
        with log.execution("report") as ctx:
            ran.append(ctx.step("one", lambda: 1))
        assert ran == [1]
        assert {row.kind: row.status for row in log.executions.list()} == {"import": "canceled", "report": "completed"}


def test_a_topic_is_declared_although_the_owner_dies_over_it(tmp_path: Path) -> None:
    """To declare it twice is to declare it once: the caller sees latency, and nothing else."""
    with shared(tmp_path / "log") as (log, owner):
        owner.process.send_signal(signal.SIGSTOP)
        found: list[object] = []
        asking = threading.Thread(target=lambda: found.append(log.topic("new", partitions=3)))
        asking.start()
        link = log._journal.link
        while not any(call.is_sent for call in list(link._calls._calls.values())):  # type: ignore[attr-defined]
            asking.join(0.01)
        owner.kill()
        asking.join(60)
        assert len(found) == 1
        assert len(log.marks("new")) == 3
