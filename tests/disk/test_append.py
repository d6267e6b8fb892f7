"""The verbs of a topic: what they return, what they refuse, and in which order things become durable."""

from __future__ import annotations

import asyncio
import threading
import warnings
from datetime import UTC, datetime, timedelta

import pytest
from tests.stalled import stalled

import holdfast
from holdfast import Closed, Full, Invalid, NotFound, OutcomeUnknown, Receipt, Record, Topic
from holdfast.testing import ManualClock

pytestmark = pytest.mark.disk


def test_append_returns_dense_offsets(open_log):
    """Offsets start at 0 and are dense; seq grows with every commit."""
    topic = open_log().topic("orders")
    receipts = [topic.append(b"%d" % i) for i in range(5)]
    assert [r.offset for r in receipts] == [0, 1, 2, 3, 4]
    assert [r.seq for r in receipts] == [1, 2, 3, 4, 5]


def test_a_record_comes_back_as_it_went_in(open_log, keyring):
    """Payload, key, kind, headers and time survive the round trip, sealed or not."""
    for name, options in (("plain", {}), ("sealed", {"keyring": keyring})):
        topic = open_log(name, **options).topic("t")
        moment = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)
        topic.append(b"", key="ключ", kind="created", headers={"a": b"\x00", "b": "text"}, time=moment)
        topic.append(b"\xff" * 1000, key=b"", time=-5)
        first, second = topic.read()
        assert (first.payload, first.key, first.kind) == (b"", "ключ".encode(), "created")
        assert dict(first.headers or {}) == {"a": b"\x00", "b": b"text"}
        assert first.at == moment
        assert (second.payload, second.key, second.kind, second.headers, second.time) == (
            b"\xff" * 1000,
            b"",
            None,
            None,
            -5,
        )


def test_bytes_like_payloads_are_taken(open_log):
    """bytearray and memoryview are payloads too, and later changes to them do not matter."""
    topic = open_log().topic("t")
    buffer = bytearray(b"abc")
    ticket = topic.submit(buffer)
    buffer[0] = 0
    ticket.result()
    topic.append(memoryview(b"xyz"))
    assert [r.payload for r in topic.read()] == [b"abc", b"xyz"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": "text"},
        {"payload": None},
        {"payload": b"x" * 101},
        {"key": 5},
        {"key": b"k" * 65},
        {"kind": ""},
        {"kind": "k" * 256},
        {"kind": 3},
        {"headers": {"a": 1}},
        {"headers": {1: b"a"}},
        {"headers": "no"},
        {"headers": {"a": b"x" * 300}},
        {"time": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"time": 2**63},
        {"time": "now"},
        {"partition": 1},
        {"partition": -1},
        {"idempotency_key": b""},
        {"idempotency_key": b"i" * 65},
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(open_log, wrong):
    """Bad arguments are Invalid with a hint, from all three verbs, and leave no trace."""
    log = open_log(journal={"payload_bytes_max": 100, "key_bytes_max": 64, "headers_bytes_max": 256})
    topic = log.topic("t")
    arguments = {"payload": b"x", **wrong}
    payload = arguments.pop("payload")
    for verb in (topic.append, topic.submit, topic.offer):
        with pytest.raises(Invalid) as caught:
            verb(payload, **arguments)
        assert caught.value.hint
    log.flush()
    assert log.marks("t")[0].appended == 0
    assert topic.append(b"x" * 100).offset == 0


def test_submit_gives_a_ticket_that_can_be_asked_again(open_log):
    """A ticket's result is the same receipt however often and from wherever it is asked."""
    topic = open_log().topic("t")
    ticket = topic.submit(b"x")
    receipt = ticket.result()
    assert receipt == Receipt("t", 0, 0, 1)
    assert ticket.done
    assert repr(ticket) == "Ticket('t', partition=0, done=True)"
    assert ticket.result() == receipt

    async def again():
        return await ticket

    assert asyncio.run(again()) == receipt


def test_tickets_settle_in_order_of_submission(open_log):
    """A later ticket of a partition never settles before an earlier one."""
    topic = open_log().topic("t")
    tickets = [topic.submit(b"%d" % i) for i in range(2000)]
    assert tickets[-1].result().offset == 1999
    assert all(ticket.done for ticket in tickets)
    assert [t.result().offset for t in tickets] == list(range(2000))


def test_offer_is_durable_within_the_flush_interval(open_log):
    """A buffered record that waits alone is committed by the timer, without any further call."""
    log = open_log(journal={"flush_interval_ms": 5})
    topic = log.topic("t")
    follower = topic.follow(0)
    assert topic.offer(b"x") is True
    assert next(follower).payload == b"x"


def test_batch_is_one_unit_with_a_receipt_per_record(open_log):
    """A batch of bytes lands in one partition, in order, under one seq."""
    topic = open_log().topic("t", partitions=3)
    receipts = topic.append_batch([b"a", b"b", b"c"])
    assert len(receipts) == 3
    assert [r.offset for r in receipts] == [0, 1, 2]
    assert {r.seq for r in receipts} == {receipts[0].seq}
    assert receipts[-1].offset == 2
    assert receipts[1:] == [receipts[1], receipts[2]]


def test_batch_of_records_goes_to_the_partitions_of_their_keys(open_log):
    """Records of one batch may go to several partitions; receipts come in the order of the records."""
    topic = open_log().topic("t", partitions=4)
    records = [Record(b"%d" % i, key=b"k%d" % (i % 5), kind="n") for i in range(50)] + [b"plain", Record(b"r", time=7)]
    receipts = topic.append_batch(records)
    found = {(r.partition, r.offset): r for r in topic.read()}
    for given, receipt in zip(records, receipts, strict=True):
        stored = found[receipt.partition, receipt.offset]
        assert stored.payload == (given if isinstance(given, bytes) else given.payload)
    assert len({r.partition for r in receipts[:50]}) > 1
    assert receipts[50].partition == receipts[51].partition
    assert next(r for r in found.values() if r.payload == b"r").time == 7


def test_batches_have_limits(open_log):
    """An empty, a too long and a too large batch are refused before anything is written."""
    log = open_log(journal={"batch_records_max": 10, "batch_bytes_max": 1000, "payload_bytes_max": 900})
    topic = log.topic("t")
    for batch in ([], [b"x"] * 11, [b"x" * 501] * 2, [b"x" * 901], [Record(b"x" * 501)] * 2, ["text"]):
        with pytest.raises(Invalid):
            topic.append_batch(batch)
    assert log.marks("t")[0].appended == 0


def test_keys_choose_partitions_and_keep_their_order(open_log):
    """Records with one key are in one partition, in order; records without go round robin."""
    topic = open_log().topic("t", partitions=4)
    for i in range(40):
        topic.submit(b"%d" % i, key=b"k%d" % (i % 7))
    topic.flush()
    homes = {}
    for record in topic.read():
        assert homes.setdefault(record.key, record.partition) == record.partition
    for key in homes:
        numbers = [int(r.payload) for r in topic.read() if r.key == key]
        assert numbers == sorted(numbers)
    other = open_log("other").topic("t", partitions=4)
    assert sorted(other.append(b"x").partition for _ in range(4)) == [0, 1, 2, 3]
    assert other.append(b"x", partition=2).partition == 2


def test_an_idempotency_key_writes_once(open_log):
    """A repeat returns the original receipt: in the same group, in a later one, and after reopening."""
    log = open_log()
    topic = log.topic("t", partitions=2)
    tickets = [topic.submit(b"a", idempotency_key="k") for _ in range(3)]
    first = tickets[0].result()
    assert [t.result() for t in tickets] == [first] * 3
    assert [t.result().repeated for t in tickets] == [False, True, True]
    assert topic.append(b"a", idempotency_key=b"k") == first
    between = topic.append(b"b", partition=first.partition)
    assert between.offset == first.offset + 1
    log.close()
    log = open_log()
    assert log.topic("t").append(b"a", idempotency_key="k") == first
    assert len(list(log.topic("t").read())) == 2
    assert log.stats().journal.repeats_total == 1


def test_an_idempotency_key_belongs_to_its_topic(open_log):
    """The same key in another topic is another append."""
    log = open_log()
    one, other = (
        log.topic("one").append(b"x", idempotency_key="k"),
        log.topic("other").append(b"y", idempotency_key="k"),
    )
    assert (one.topic, other.topic) == ("one", "other")


def test_repeats_inside_a_pack_leave_no_gap(open_log):
    """Repeats between fresh records in one group shift nothing: every ticket has its own record's offset."""
    topic = open_log().topic("t")
    topic.append(b"seen", idempotency_key="seen")
    with stalled(topic):
        tickets = [
            topic.submit(b"seen", idempotency_key="seen")
            if i % 3 == 0
            else topic.submit(b"%d" % i, idempotency_key=f"i{i}" if i % 3 == 1 else None)
            for i in range(30)
        ]
    topic.flush()
    stored = {r.offset: r.payload for r in topic.read()}
    for i, ticket in enumerate(tickets):
        assert stored[ticket.result().offset] == (b"seen" if i % 3 == 0 else b"%d" % i)
    assert sorted(stored) == list(range(21))


def test_the_window_of_remembered_keys_is_bounded(open_log):
    """Only the newest keys are remembered; an older one may be used anew."""
    log = open_log(journal={"idempotency_keys_max": 10})
    topic = log.topic("t")
    receipts = [topic.append(b"x", idempotency_key=f"k{i}") for i in range(30)]
    assert topic.append(b"x", idempotency_key="k29") == receipts[29]
    assert topic.append(b"x", idempotency_key="k21") == receipts[21]
    assert topic.append(b"x", idempotency_key="k0").offset == 30


def test_time_out_is_outcome_unknown_and_the_key_resolves_it(open_log):
    """An unanswered ack raises OutcomeUnknown with its key; a retry returns the original receipt."""
    topic = open_log().topic("t")
    with stalled(topic), pytest.raises(OutcomeUnknown) as caught:
        topic.append(b"x", idempotency_key="k", timeout=0.05)
    assert caught.value.idempotency_key == b"k"
    original = caught.value.ticket.result()
    assert topic.append(b"x", idempotency_key=caught.value.idempotency_key) == original
    assert [r.payload for r in topic.read()] == [b"x"]


def test_one_time_out_covers_room_and_acknowledgement(open_log, monkeypatch):
    """An append that had to wait for room waits for its acknowledgement only as long as is left."""
    clock = ManualClock()
    topic = open_log(clock=clock).topic("t")
    left = []

    class Slow:
        def result(self, timeout):
            left.append(timeout)

    def wait_for_room(*arguments, **options):
        clock.advance(0.75)
        return Slow()

    monkeypatch.setattr(Topic, "submit", wait_for_room)
    monkeypatch.setattr(Topic, "submit_batch", wait_for_room)
    topic.append(b"x", timeout=1.0)
    topic.append_batch([b"x"], timeout=1.0)
    topic.append(b"x", timeout=0.5)
    assert left == [0.25, 0.25, 0.0]


def test_a_full_queue_refuses_and_counts(open_log, caplog):
    """Buffered records are dropped with one warning per burst; acknowledged ones wait, then raise Full."""
    log = open_log(journal={"queue_records_max": 4})
    topic = log.topic("t")
    with stalled(topic):
        assert [topic.offer(b"%d" % i) for i in range(6)] == [True] * 4 + [False] * 2
        with pytest.raises(Full):
            topic.append(b"late", timeout=0.05)
        with pytest.raises(Full):
            topic.submit(b"late", timeout=0)
    log.flush()
    stats = log.stats().journal
    assert (stats.offered_dropped_total, stats.refused_total) == (2, 1)
    warned = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1
    assert warned[0].action == "offer_dropped"
    assert topic.offer(b"again") is True
    assert [r.payload for r in topic.read()][:4] == [b"0", b"1", b"2", b"3"]


def test_queue_bytes_are_bounded_too(open_log):
    """The bound in bytes refuses even when the bound in records does not."""
    log = open_log(
        journal={"queue_bytes_max": 1000, "payload_bytes_max": 600, "batch_bytes_max": 900, "group_bytes_max": 700}
    )
    topic = log.topic("t")
    with stalled(topic):
        assert [topic.offer(b"x" * 400) for _ in range(3)] == [True, True, False]
        with pytest.raises(Full):
            topic.append_batch([b"x" * 300], timeout=0.02)
        assert topic.offer(b"x" * 200) is True
    topic.append_batch([b"x" * 300] * 3)


def test_waiting_producers_get_their_room(open_log):
    """Back-pressure blocks and then lets everybody through; nothing is lost or reordered per producer."""
    topic = open_log(journal={"queue_records_max": 8, "group_records_max": 4}).topic("t")

    def produce(name):
        for i in range(200):
            topic.submit(b"%d:%d" % (name, i))

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topic.flush()
    seen = [tuple(map(int, r.payload.split(b":"))) for r in topic.read()]
    assert len(seen) == 800
    for name in range(4):
        assert [i for n, i in seen if n == name] == list(range(200))


def test_an_event_loop_is_never_blocked_by_a_full_queue(open_log):
    """On an event loop a full queue is Full at once, with a hint, instead of a blocked loop."""
    topic = open_log(journal={"queue_records_max": 4}).topic("t")

    async def flood():
        with stalled(topic):
            for _ in range(4):
                topic.submit(b"x")
            with pytest.raises(Full, match="full") as caught:
                topic.submit(b"x")
            assert "await" in caught.value.hint or "wait" in caught.value.hint

    asyncio.run(flood())


def test_blocking_on_an_event_loop_warns(open_log):
    """append() on an event loop works, but says what to use instead."""
    topic = open_log().topic("t")

    async def wrong():
        with pytest.warns(RuntimeWarning, match=r"await topic\.append"):
            topic.append(b"x")
        with pytest.warns(RuntimeWarning, match=r"await topic\.append_batch"):
            topic.append_batch([b"x"])

    asyncio.run(wrong())


def test_a_cancelled_awaiter_does_not_cancel_the_append(open_log):
    """Cancelling a coroutine that waits for a ticket leaves the append, and its neighbours' waits, alone."""
    topic = open_log().topic("t")

    async def main():
        with stalled(topic):
            tickets = [topic.submit(b"%d" % i) for i in range(3)]

            async def wait(ticket):
                return await ticket

            tasks = [asyncio.create_task(wait(t)) for t in tickets]
            await asyncio.sleep(0.01)
            tasks[1].cancel()
            await asyncio.sleep(0.01)
        assert (await tasks[0]).offset == 0
        assert (await tasks[2]).offset == 2
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert (await tickets[1]).offset == 1

    asyncio.run(main())
    assert [r.payload for r in topic.read()] == [b"0", b"1", b"2"]


def test_awaiting_is_bounded(open_log):
    """A coroutine never waits longer than the ack time-out; the ticket can be awaited again."""
    topic = open_log(journal={"ack_timeout_ms": 50}).topic("t")

    async def main():
        with stalled(topic):
            tickets = [topic.submit(b"x"), topic.submit(b"y")]
            for ticket in tickets:
                with pytest.raises(OutcomeUnknown):
                    await ticket
        return [(await t).offset for t in tickets], await topic.submit_batch([b"z"])

    offsets, batch = asyncio.run(main())
    assert offsets == [0, 1]
    assert batch[0].offset == 2


@pytest.mark.parametrize("order", ["hasty first", "patient first"])
def test_each_coroutine_waits_as_long_as_it_asked_for(open_log, order):
    """Two in one group that a stalled commit holds up: the hasty one gives up alone, the other gets its receipt."""
    topic = open_log().topic("t")

    async def main():
        with stalled(topic):
            patient, hasty = topic.submit(b"patient", timeout=30), topic.submit(b"hasty", timeout=0.05)
            waiting = {}
            for name in ("hasty", "patient") if order == "hasty first" else ("patient", "hasty"):
                ticket = hasty if name == "hasty" else patient
                waiting[name] = asyncio.ensure_future(asyncio.wait_for(ticket, 20))
                await asyncio.sleep(0)
            with pytest.raises(OutcomeUnknown, match=r"within 0\.05 s"):
                await waiting["hasty"]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting["patient"].done()
        return await waiting["patient"], await hasty

    patient, hasty = asyncio.run(main())
    assert (patient.offset, hasty.offset) == (0, 1)


def test_who_is_late_looks_again(open_log):
    """A loop that was busy past the deadline finds the commit that landed meanwhile: a receipt, no OutcomeUnknown."""
    topic = open_log().topic("t")

    async def main():
        with stalled(topic):
            ticket = topic.submit(b"x", timeout=0.01)
            waiting = asyncio.ensure_future(asyncio.wait_for(ticket, 20))
            await asyncio.sleep(0)
        topic.flush()
        threading.Event().wait(0.05)  # the deadline passes while the loop does something else
        return await waiting

    assert asyncio.run(main()).offset == 0


def test_many_event_loops_and_threads_share_a_topic(open_log):
    """Coroutines of two loops and plain threads append side by side, and every receipt is unique."""
    topic = open_log().topic("t")
    receipts = []

    async def produce():
        return [await topic.submit(b"x") for _ in range(100)]

    async def several():
        return sum(await asyncio.gather(*[produce() for _ in range(4)]), [])

    def loop():
        receipts.extend(asyncio.run(several()))

    def thread():
        receipts.extend(topic.append(b"x") for _ in range(50))

    threads = [threading.Thread(target=target) for target in (loop, loop, thread, thread)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(r.offset for r in receipts) == list(range(900))


def test_flush_before_commit(open_log):
    """Whatever was offered before an acknowledged append is durable before its acknowledgement."""
    topic = open_log(journal={"flush_interval_ms": 60_000}).topic("t", partitions=3)
    for i in range(100):
        assert topic.offer(b"offered %d" % i)
        receipt = topic.append(b"acked %d" % i)
        stored = {r.payload: r for r in topic.read()}
        assert b"offered %d" % i in stored
        assert stored[b"acked %d" % i].offset == receipt.offset


def test_order_of_arrival_is_the_order_of_offsets(open_log):
    """Offered, submitted and batched records of one partition keep the order in which they came."""
    topic = open_log().topic("t")
    with stalled(topic):
        topic.offer(b"0")
        topic.submit(b"1")
        topic.submit_batch([b"2", b"3"])
        topic.offer(b"4")
        topic.submit(b"5", idempotency_key="k")
        topic.submit_batch([Record(b"6"), b"7"])
        topic.submit(b"8")
    topic.flush()
    assert [r.payload for r in topic.read()] == [b"%d" % i for i in range(9)]


def test_a_group_that_has_room_takes_nothing_more_once_the_journal_refuses(open_log):
    """Records that wait are stored; those that come later are refused, although there would be room."""
    log = open_log()
    topic = log.topic("t")
    with stalled(topic):
        ticket = topic.submit(b"before")
        log._journal._queue.refuse(Closed("no more"), finish=False)
        for verb in (topic.submit, topic.offer, topic.append):
            with pytest.raises(Closed, match="no more"):
                verb(b"after")
    assert ticket.result().offset == 0
    assert topic.marks()[0].appended == 1


def test_a_closed_log_refuses_everything_kindly(open_log):
    """After close every verb raises Closed(reason='clean') with a hint how to go on; close is idempotent."""
    log = open_log()
    topic = log.topic("t")
    ticket = topic.submit(b"x")
    topic.offer(b"y")
    log.close()
    log.close()
    assert ticket.result().offset == 0
    for call in (
        lambda: topic.append(b"x"),
        lambda: topic.submit(b"x"),
        lambda: topic.offer(b"x"),
        lambda: topic.append_batch([b"x"]),
        lambda: list(topic.read()),
        lambda: log.topic("new"),
        topic.flush,
        log.flush,
        log.seal,
    ):
        with pytest.raises(Closed) as caught:
            call()
        assert caught.value.reason == "clean"
        assert "holdfast.open" in caught.value.hint
    assert [r.payload for r in open_log().topic("t").read()] == [b"x", b"y"]


def test_closing_drains_what_was_accepted(open_log):
    """close() makes everything durable that was accepted, however it was appended."""
    log = open_log(journal={"flush_interval_ms": 60_000})
    topic = log.topic("t")
    for i in range(5000):
        assert topic.offer(b"%d" % i)
    log.close()
    assert sum(1 for _ in open_log().topic("t").read()) == 5000


def test_marks_tell_how_far_each_partition_got(open_log):
    """appended counts what is queued, durable what is committed; both are per partition."""
    log = open_log()
    topic = log.topic("t", partitions=2)
    topic.append(b"x", partition=1)
    with stalled(topic):
        topic.offer(b"y", partition=1)
        marks = log.marks("t")
        assert (marks[0].appended, marks[0].durable) == (0, 0)
        assert (marks[1].appended, marks[1].durable) == (2, 1)
    log.flush()
    assert (log.marks("t")[1].appended, log.marks("t")[1].durable) == (2, 2)
    with pytest.raises(NotFound):
        log.marks("absent")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a\\b", "-x", ".x", "a b", "a..b", "ü", "x" * 201, "a\n", "a\0", 7]
)
def test_hostile_topic_names_are_refused(open_log, name):
    """No topic name can be a path, an option or an ambiguity."""
    with pytest.raises(Invalid):
        open_log().topic(name)


def test_topic_names_are_kept_as_text(open_log):
    """'007', '7' and '1e3' are three different topics, also after reopening."""
    log = open_log()
    for name in ("007", "7", "1e3", "x_", "a.b-c_d", "x" * 200):
        log.topic(name).append(name.encode())
    log.close()
    log = open_log()
    assert log.topics() == sorted(["007", "7", "1e3", "x_", "a.b-c_d", "x" * 200])
    assert [r.payload for r in log.topic("007").read()] == [b"007"]


def test_partitions_are_fixed_at_creation(open_log):
    """A topic keeps its number of partitions; asking for another one is Invalid."""
    log = open_log(journal={"partitions_max": 8, "topics_max": 2})
    log.topic("t", partitions=4)
    with pytest.raises(Invalid):
        log.topic("t", partitions=5)
    log.close()
    log = open_log(journal={"partitions_max": 8, "topics_max": 2})
    assert log.topic("t").partitions == 4
    for partitions in (0, 9, -1):
        with pytest.raises(Invalid):
            log.topic("u", partitions=partitions)
    log.topic("v")
    with pytest.raises(Invalid, match="topics"):
        log.topic("w")


def test_concurrent_first_touch_creates_a_topic_once(open_log):
    """Threads that touch a new topic at the same moment share it."""
    log = open_log()
    barrier = threading.Barrier(8)
    receipts = []

    def touch():
        barrier.wait()
        receipts.append(log.topic("t").append(b"x"))

    threads = [threading.Thread(target=touch) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(r.offset for r in receipts) == list(range(8))


def test_jumping_clocks_change_times_and_nothing_else(open_log):
    """A wall clock that jumps back leaves order, offsets and reading untouched."""
    clock = ManualClock()
    topic = open_log(clock=clock).topic("t")
    for jump in (0, -86_400, 86_400 * 3, -1e9, 5):
        clock.jump(jump)
        topic.append(b"%d" % jump)
    assert [r.offset for r in topic.read()] == [0, 1, 2, 3, 4]
    times = [r.time for r in topic.read()]
    assert times != sorted(times)


def test_an_unclosed_log_warns(tmp_path):
    """A log that is forgotten emits ResourceWarning and is closed."""
    import gc

    log = holdfast.open(tmp_path / "log")
    topic = log.topic("t")
    topic.offer(b"x")
    with pytest.warns(ResourceWarning, match="unclosed log"):
        del log, topic  # a topic keeps its log
        gc.collect()
    with warnings.catch_warnings(), holdfast.open(tmp_path / "log") as again:
        assert [r.payload for r in again.topic("t").read()] == [b"x"]


def test_a_store_is_not_silently_ignored(tmp_path):
    """A store that this version cannot use is refused, not ignored."""
    with pytest.raises(Invalid):
        holdfast.open(tmp_path / "log", store="ftp://host/prefix")


def test_times_default_to_now(open_log):
    """A record without a time is stamped when it is appended."""
    topic = open_log().topic("t")
    before = datetime.now(UTC)
    topic.append(b"x")
    record = next(iter(topic.read()))
    assert before - timedelta(seconds=1) <= record.at <= datetime.now(UTC)


@pytest.mark.parametrize(
    "wrong", [{"key": "\udcff"}, {"kind": "\udcff"}, {"headers": {"\udcff": b""}}, {"headers": {"a": "\udcff"}}]
)
def test_text_that_is_no_text_is_refused(open_log, wrong):
    """Surrogates cannot be stored: they are Invalid, not a UnicodeEncodeError."""
    with pytest.raises(Invalid):
        open_log().topic("t").append(b"x", **wrong)


def test_times_beyond_every_calendar_can_be_stored(open_log):
    """A time that no datetime can hold is kept as a number."""
    topic = open_log().topic("t")
    topic.append(b"x", time=2**62)
    (record,) = topic.read(limit=10**30)
    assert record.time == 2**62
    with pytest.raises(Invalid, match="time="):
        record.at  # noqa: B018
