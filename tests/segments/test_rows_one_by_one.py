"""Rows of a typed topic that are appended one by one: gathered per group, stored as one entry, sealed many at once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import holdfast
from holdfast import Full, Invalid, Unavailable
from holdfast.model.record import Receipt
from holdfast.model.schema import declare
from holdfast.segments.file.segment_columns import typed_schema
from holdfast.segments.manifest.schema_versions import versions
from holdfast.segments.typed import single_rows, tail_batches
from tests.segments.test_roller import eventually, sealing, tail_entries
from tests.stalled import stalled

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
SETTINGS = {"segments": {"seal_on_close": False}}


def row(number):
    return {"id": number, "name": f"name-{number}"}


def ids(topic, **options):
    return [one["id"] for one in topic.read(**options)]


@pytest.fixture(params=["plain", "encrypted"])
def log(request, open_log, keyring):
    return open_log(segments=sealing(), keyring=keyring if request.param == "encrypted" else None)


def test_single_rows_of_a_group_are_one_entry(log):
    """What arrives during a commit is encoded once; every row has its own receipt, and reads back."""
    topic = log.topic("t", schema=SCHEMA)
    with stalled(topic):
        tickets = [topic.submit(row(number) if number % 2 else [row(number)]) for number in range(100)]
    receipts = [ticket.result() for ticket in tickets]
    seq = receipts[0][0].seq
    assert [list(one) for one in receipts] == [[Receipt("t", 0, offset, seq)] for offset in range(100)]
    assert tail_entries(log) == 1
    assert ids(topic) == list(range(100))
    log.seal()
    assert ids(topic) == list(range(100))


def test_coroutines_share_entries(open_log):
    """64 tasks that append row after row: each has exact receipts, and there are fewer entries than rows."""
    log = open_log()
    topic = log.topic("t", schema=SCHEMA)

    async def task(number):
        return [(number * 100 + at, (await topic.append_async(row(number * 100 + at)))[0]) for at in range(20)]

    async def all_tasks():
        return [pair for pairs in await asyncio.gather(*map(task, range(64))) for pair in pairs]

    done = asyncio.run(all_tasks())
    stored = {one["_offset"]: one["id"] for one in topic.read()}
    assert stored == {receipt.offset: number for number, receipt in done}
    assert len(stored) == 1280
    assert tail_entries(log) < 1280


def test_a_bad_row_fails_alone_with_the_words_of_a_batch(log):
    """It is refused at the call, nothing of it is written, and its neighbours commit in order."""
    topic = log.topic("t", schema=SCHEMA)
    bad = [{"id": None}, {}, {"id": 1, "x": 2}, {"id": 2**63}, {"id": "1"}, {"id": 1, "name": b"b"}, {"id": 1.0}]
    tickets = []
    with stalled(topic):
        for number, wrong in enumerate(bad):
            tickets.append(topic.submit(row(number)))
            with pytest.raises(Invalid) as alone:
                topic.submit(wrong)
            with pytest.raises(Invalid) as together:
                topic.submit([wrong, wrong])
            assert (alone.value.message, alone.value.hint) == (together.value.message, together.value.hint)
    assert [ticket.result()[0].offset for ticket in tickets] == list(range(len(bad)))
    assert ids(topic) == list(range(len(bad)))


def test_rows_batches_and_keys_keep_their_order(log):
    """Single rows, batches, rows with idempotency keys and a transaction in one group: each where it was put."""
    topic = log.topic("t", schema=SCHEMA)
    with stalled(topic):
        tickets = [
            topic.submit(row(0)),
            topic.submit([row(1), row(2)]),
            topic.submit(row(3)),
            topic.submit(row(4), idempotency_key="k"),
            topic.submit(row(5)),
            topic.submit(row(4), idempotency_key="k"),
            topic.submit(row(6)),
        ]
    receipts = [receipt for ticket in tickets for receipt in ticket.result()]
    assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3, 4, 5, 4, 6]
    assert [receipt.repeated for receipt in receipts] == [False] * 6 + [True, False]
    with log.transaction() as transaction:
        transaction.append(topic, row(7))
    assert ids(topic) == list(range(8))


def test_a_row_of_another_schema_begins_another_entry(open_log):
    """Rows of two versions of a schema in one group are two entries, and read in the newest."""
    log = open_log()
    topic = log.topic("t", schema=SCHEMA)
    wider = log.topic("t", schema=SCHEMA.append(pa.field("note", pa.string())))
    old, new = (single_rows.single_rows(one) for one in versions(log._journal, "t"))
    part = topic._partitions.parts[0]
    with stalled(topic):
        for number, encoder in enumerate((old, old, new, old)):
            cells, size = encoder.taken(row(number))
            run, index = log._journal.put_row(part, cells, 1, encoder, size, 1)
    log.flush()
    assert run.receipt(index).offset == 3
    assert tail_entries(log) == 3
    assert [(one["id"], one["note"]) for one in wider.read()] == [(number, None) for number in range(4)]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.int64(), pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_a_single_row_goes_where_its_key_goes_in_a_batch(open_log, kind):
    """The partition of a key does not depend on how many rows come with it."""
    log = open_log()
    schema = pa.schema([pa.field("k", kind), pa.field("n", pa.int64())])
    topic = log.topic("t", schema=schema, key="k", partitions=7)
    values = (
        [b"a", b"\xff\x00", b""] if kind == pa.binary() else [0, -5, 2**40] if kind == pa.int64() else ["a", "ü", ""]
    )
    for value in values:
        alone = topic.append({"k": value, "n": 1})[0]
        (_, together) = topic.append([{"k": value, "n": 2}, {"k": value, "n": 3}])
        assert alone.partition == together.partition
    assert 0 <= topic.append({"n": 1})[0].partition < 7


def test_the_time_of_a_row_may_stand_in_it(log):
    """`time` as a number, as a datetime, or as the name of a column, for each row of a group."""
    topic = log.topic("t", schema=pa.schema([("at", pa.timestamp("us", tz="UTC"))]))
    first = datetime(2026, 1, 1, tzinfo=UTC)
    with stalled(topic):
        topic.submit({"at": first}, time="at")
        topic.submit({"at": first + timedelta(days=1)}, time="at")
        topic.submit({"at": first}, time=first + timedelta(days=2))
        with pytest.raises(Invalid, match="a time is null"):
            topic.submit({"at": None}, time="at")
        with pytest.raises(Invalid, match="no timestamp column"):
            topic.submit({"at": first}, time="other")
    log.flush()
    assert [one["_time"] for one in topic.read()] == [first + timedelta(days=days) for days in range(3)]


def test_entries_of_single_rows_stay_within_the_limits_of_a_batch(open_log):
    """An entry never holds more rows, or bytes, than one append might; the queue's bounds count rows."""
    log = open_log(journal={"batch_records_max": 4, "queue_records_max": 10})
    topic = log.topic("t", schema=SCHEMA)
    with stalled(topic):
        for number in range(10):
            topic.submit(row(number), timeout=0)
        with pytest.raises(Full):
            topic.submit(row(10), timeout=0)
    log.flush()
    assert tail_entries(log) == 3
    log = open_log("other", journal={"batch_bytes_max": 20_000, "payload_bytes_max": 20_000})
    topic = log.topic("t", schema=SCHEMA)
    with stalled(topic):
        for number in range(10):
            topic.submit({"id": number, "name": "x" * 8_000})
    log.flush()
    assert tail_entries(log) == 5


def test_rows_that_cannot_be_encoded_fail_and_nothing_else_does(open_log, monkeypatch):
    """A defect of the encoder is the failure of its rows; others of the group commit, and the log goes on."""
    log = open_log()
    topic, raw = log.topic("t", schema=SCHEMA), log.topic("raw")

    def broken(self, rows):
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(single_rows.SingleRows, "encode", broken)
        with stalled(topic):
            lost, kept = topic.submit(row(0)), raw.submit(b"kept")
        assert kept.result().offset == 0
        with pytest.raises(Unavailable, match="could not be encoded"):
            lost.result()
    assert topic.append(row(1))[0].offset == 0


@contextmanager
def held(lock):
    """A lock that another thread has until the block ends."""
    has, go_on = threading.Event(), threading.Event()

    def hold():
        with lock:
            has.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(60)
    try:
        yield
    finally:
        go_on.set()
        thread.join()


def test_members_gather_rows_too(tmp_path):
    """A member of a shared log sends what it gathered as one batch: exact receipts, one entry for a group."""
    with (
        holdfast.open(tmp_path / "log", share=True, settings=SETTINGS) as owner,
        holdfast.open(tmp_path / "log", share=True, settings=SETTINGS) as member,
    ):
        theirs = owner.topic("t", schema=SCHEMA)
        topic = member.topic("t", schema=SCHEMA)
        with held(topic._journal._writer._turns):  # nothing is forwarded meanwhile
            tickets = [topic.submit(row(number)) for number in range(200)]
        receipts = [ticket.result(60)[0] for ticket in tickets]
        assert [receipt.offset for receipt in receipts] == list(range(200))
        assert ids(theirs) == list(range(200))
        assert len({receipt.seq for receipt in receipts}) == 1


def test_a_tail_of_lone_rows_is_decoded_many_at_once(open_log, monkeypatch):
    """500 entries of one row each are put together before anything is done per batch; not one is decoded alone."""
    log = open_log()
    topic = log.topic("t", schema=SCHEMA)
    for number in range(500):
        topic.append(row(number), idempotency_key=str(number))
    assert tail_entries(log) == 500
    together, alone = [], []
    several, one = tail_batches.decode_several, tail_batches.decode_rows
    monkeypatch.setattr(tail_batches, "decode_several", lambda *given: together.append(1) or several(*given))
    monkeypatch.setattr(tail_batches, "decode_rows", lambda *given: alone.append(1) or one(*given))
    log.seal()
    assert (len(together), len(alone)) == (1, 0)
    assert ids(topic) == list(range(500))


def test_a_damaged_entry_among_many_is_named():
    """Entries are decoded together, and the one that does not hold what it says is still found."""
    schema = declare(SCHEMA)
    encoder = single_rows.single_rows(schema)
    bodies = [bytes(encoder.encode([(encoder.taken(row(at))[0], 1)]).body) for at in range(9)]
    bodies[5] = bodies[5][:-9]
    gathering = tail_batches.TypedBatchBuffer(schema.stored, typed_schema(schema.stored))
    for at, body in enumerate(bodies):
        gathering.add(at, 1, body)
    with pytest.raises(tail_batches.BadEntryRows) as found:
        gathering.take()
    assert found.value.first == 5


def test_sealing_keeps_up_or_appending_waits(open_log):
    """A tail limit holds while rows come one by one: nothing is lost, and the tail never passes limit and one group."""
    limit = 60_000
    log = open_log(segments=sealing(bytes_max=20_000), journal={"tail_bytes_max": limit})
    topic = log.topic("t", schema=SCHEMA)
    longest = 0
    for number in range(400):
        topic.append({"id": number, "name": "x" * 500}, timeout=30)
        longest = max(longest, log._journal._queue.tail.size)
    assert longest < limit + 20_000
    eventually(lambda: topic.marks()[0].sealed > 0)
    assert ids(topic) == list(range(400))


def test_a_close_that_cannot_seal_all_says_what_is_left(open_log, caplog, monkeypatch):
    """The records stay in the journal, as durable as before; the next log reads and seals them."""

    def refuse(*_):
        raise Unavailable("not sealed within 0 s")

    log = open_log(segments={"seal_on_close": True})
    log.topic("t", schema=SCHEMA).append([row(number) for number in range(5)])
    with monkeypatch.context() as patched:
        patched.setattr(log._maintenance._roller, "seal", refuse)
        log.close()
    (warned,) = [record for record in caplog.records if getattr(record, "action", "") == "close_unsealed"]
    assert warned.records == 5
    assert "sealed after the next open" in warned.getMessage()
    again = open_log()
    again.seal()
    assert ids(again.topic("t", schema="latest")) == list(range(5))
