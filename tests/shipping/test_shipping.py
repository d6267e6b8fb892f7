"""The main path: what is appended arrives on the store, in order, once, and can be waited for."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Closed, Invalid, Unavailable
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import ExpiredDocument, RetentionLimits, SegmentDocument
from holdfast.shipping.shipping_marks import ShippedMarks
from holdfast.store import layout
from tests.segments.planting import ROWS, TEN, files, fill, wait_for
from tests.shipping.conftest import Root, mark

pytestmark = pytest.mark.store

NUMBERS = pa.schema([pa.field("number", pa.int64())])
MORE = pa.schema([pa.field("number", pa.int64()), pa.field("text", pa.string())])


@pytest.fixture(params=["memory", "directory"])
def either(request: pytest.FixtureRequest, make_root: Callable[..., Root], tmp_path: Path) -> Root:
    """A root in memory, and one in a directory."""
    return make_root("memory" if request.param == "memory" else tmp_path / "store")


def first_seqs(root: Root) -> list[tuple[int, int]]:
    return [(batch.first_seq, batch.last_seq) for batch in root.batches()]


# -- commit batches -----------------------------------------------------------------------------------------


def test_what_shipped_says_is_on_the_store_is_there(open_shipped, either):
    """The batch holds the entry as the journal has it, under the log's own id."""
    log = open_shipped(to=either)
    receipt = log.topic("orders").submit(b"first").shipped()
    (batch,) = either.batches()
    (entry,) = batch.entries
    assert (entry.topic, entry.partition, entry.seq, entry.first, entry.count) == ("orders", 0, receipt.seq, 0, 1)
    assert batch.log_id.hex() == log.id
    assert mark(log).shipped == 1
    assert mark(log).settled == 0


def test_names_of_batches_are_contiguous(open_shipped, either):
    log = open_shipped(to=either)
    for i in range(5):
        log.topic("ab"[i % 2]).append(b"%d" % i, durability="shipped")
    names = first_seqs(either)
    assert names[0][0] == 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(names))


def test_marks_move_in_order_and_never_back(open_shipped, faults):
    """Three batches complete before the first one does; none counts until it has."""
    log = open_shipped(shipping={"batch_size_threshold": 1})
    topic = log.topic("orders")
    gate = faults.hold(".arrow", times=1)
    tickets = [topic.submit(b"a")]
    assert gate.arrived.wait(20)
    for _ in range(3):
        tickets.append(topic.submit(b"b"))
        tickets[-1].result()
    faults.wait(lambda: sum(".arrow" in request.key for request in faults.done if request.verb == "create") == 3)
    assert mark(log).shipped == 0
    assert not any(ticket.when_shipped.done for ticket in tickets)
    seen = []
    with log.subscribe() as events:
        gate.open()
        while not seen or seen[-1] < 4:
            if events.get(20).kind == "shipped":
                seen.append(mark(log).shipped)
    assert seen == sorted(seen)
    assert [ticket.shipped(20).offset for ticket in tickets] == [0, 1, 2, 3]


def test_shipped_gives_up_in_time_and_the_record_is_durable(open_shipped, faults):
    log = open_shipped()
    faults.away()
    ticket = log.topic("orders").submit(b"kept")
    with pytest.raises(Unavailable, match=r"durable here, but not on the store within 0\.05 s"):
        ticket.shipped(0.05)
    assert mark(log).durable == 1
    assert [record.payload for record in log.topic("orders").read()] == [b"kept"]
    faults.heal()
    assert ticket.shipped(20).offset == 0


def test_the_default_patience_is_a_setting(open_shipped, faults):
    log = open_shipped(shipping={"shipped_timeout_ms": 50})
    faults.away()
    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        log.topic("orders").append(b"kept", durability="shipped")
    assert mark(log).durable == 1


@pytest.mark.parametrize("call", ["append", "append_async", "produced", "produced async", "transaction", "async with"])
def test_a_time_out_is_all_that_a_call_takes(open_shipped, faults, call):
    """What a caller gives is also for the store, however long the setting would have it wait."""
    log = open_shipped(shipping={"shipped_timeout_ms": 600_000})
    faults.away()
    topic, producer, given = log.topic("orders"), log.producer("p"), {"timeout": 1.0, "durability": "shipped"}

    async def with_transaction():
        async with log.transaction(**given) as tx:
            tx.append(topic, b"kept")

    calls = {
        "append": lambda: topic.append(b"kept", **given),
        "append_async": lambda: asyncio.run(topic.append_async(b"kept", **given)),
        "produced": lambda: producer.append(topic, b"kept", sequence=1, **given),
        "produced async": lambda: asyncio.run(producer.append_async(topic, b"kept", sequence=1, **given)),
        "transaction": lambda: _in_transaction(log, topic, given),
        "async with": lambda: asyncio.run(with_transaction()),
    }
    with pytest.raises(Unavailable, match=r"durable here, but not on the store within (0\.\d+|1) s"):
        calls[call]()
    assert mark(log).durable == 1


def _in_transaction(log, topic, given):
    with log.transaction(**given) as tx:
        tx.append(topic, b"kept")


def test_shipped_can_be_awaited(open_shipped, faults):
    """Many coroutines wait, none of them blocks the loop."""
    log = open_shipped()
    topic = log.topic("orders")
    gate = faults.hold(".arrow")

    async def main() -> list[int]:
        waiting = [asyncio.ensure_future(_awaited(topic.submit(b"%d" % i))) for i in range(5)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        gate.open()
        return await asyncio.gather(*waiting)

    async def _awaited(ticket):
        return (await ticket.when_shipped).offset

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert mark(log).shipped == 5


def test_awaiting_gives_up_in_time(open_shipped, faults):
    log = open_shipped(shipping={"shipped_timeout_ms": 50})
    faults.away()

    async def main() -> None:
        await log.topic("orders").submit(b"kept").when_shipped

    with pytest.raises(Unavailable, match="durable here"):
        asyncio.run(main())


@pytest.mark.parametrize("kind", ["raw", "batch", "mixed batch", "typed", "several partitions"])
def test_appends_can_wait_for_the_store(open_shipped, either, kind):
    """Whatever is appended, all of it is in commit batches when the call returns."""
    log = open_shipped(to=either)
    if kind == "typed":
        log.topic("orders", schema=NUMBERS).append([{"number": 1}, {"number": 2}], durability="shipped")
    elif kind == "raw":
        log.topic("orders").append(b"one", durability="shipped")
    elif kind == "batch":
        log.topic("orders").append_batch([b"one", b"two", b"three"], durability="shipped")
    else:
        from holdfast import Record

        topic = log.topic("orders", partitions=4 if kind == "several partitions" else 1)
        topic.append_batch([Record(b"%d" % i, key=b"%d" % i) for i in range(20)], durability="shipped")
    for partition, marks in enumerate(log.marks("orders")):
        entries = [e for batch in either.batches() for e in batch.entries if e.partition == partition]
        assert sum(entry.count for entry in entries) == marks.durable == marks.shipped


@pytest.mark.parametrize("where", ["append", "append_batch", "typed append"])
def test_without_a_store_nothing_is_written_that_was_to_be_shipped(open_log, where):
    log = open_log()
    topic = log.topic("orders", schema=NUMBERS) if where == "typed append" else log.topic("orders")
    with pytest.raises(Invalid, match="ships to no store"):
        if where == "append":
            topic.append(b"no", durability="shipped")
        elif where == "append_batch":
            topic.append_batch([b"no"], durability="shipped")
        else:
            topic.append([{"number": 1}], durability="shipped")
    assert mark(log).appended == 0


def test_without_a_store_there_is_nothing_to_wait_for(open_log):
    log = open_log()
    ticket = log.topic("orders").submit(b"here")
    for call in (ticket.shipped, log.ship, log.subscribe):
        with pytest.raises(Invalid, match="ships to no store"):
            call()
    assert log.unshipped() == ()
    assert log.stats().shipping is None


def test_without_a_store_nobody_hears_that_something_is_shipped(open_log):
    """What is sealed is settled, for readers of the directory; `shipped` is None, from within and from outside."""
    log = open_log()
    log.topic("orders").append_batch([b"1", b"2"])
    log.seal()
    assert mark(log) == holdfast.Marks(appended=2, durable=2, sealed=2, shipped=None, settled=2)
    with holdfast.open(log.path, read_only=True) as looking:
        assert looking.marks("orders") == log.marks("orders")


def test_an_unknown_durability_is_refused_before_anything_is_written(open_shipped):
    log = open_shipped()
    with pytest.raises(Invalid, match="unknown durability"):
        log.topic("orders").append(b"no", durability="eternal")
    assert mark(log).appended == 0


def test_a_repeat_waits_for_the_original(open_shipped, faults):
    """Its receipt is the first one's, and so is the place on the store that it waits for."""
    log = open_shipped(shipping={"shipped_timeout_ms": 50})
    topic = log.topic("orders")
    gate = faults.hold(".arrow")
    original = topic.append(b"once", idempotency_key=b"k")
    with pytest.raises(Unavailable, match="offset=0"):
        topic.append(b"once", idempotency_key=b"k", durability="shipped")
    gate.open()
    assert topic.submit(b"once", idempotency_key=b"k").shipped(20) == original
    assert mark(log).durable == 1


def test_a_repeat_of_what_is_shipped_does_not_wait_for_what_is_not(open_shipped, faults):
    log = open_shipped()
    topic = log.topic("orders")
    original = topic.append(b"once", idempotency_key=b"k", durability="shipped")
    faults.hold(".arrow")
    topic.append(b"later")
    repeat = topic.submit(b"once", idempotency_key=b"k")
    repeat.result()
    assert repeat.shipped(0) == original
    assert mark(log).shipped == 1


def test_a_lost_reply_is_recognised_as_our_own_object(open_shipped, faults, root):
    """The batch was written, the reply was not heard: it is read back, and counts once."""
    log = open_shipped()
    faults.lose(".arrow")
    log.topic("orders").append(b"once", durability="shipped")
    assert first_seqs(root) == [(1, 1)]
    stats = log.stats().shipping
    assert (stats.resolved_total, stats.batches_total, stats.retries) == (1, 1, {"reset": 1})
    assert stats.ended is None


@pytest.mark.parametrize("key", ["log.json", "epochs/", "/_topic/", "/segments/", "/_manifest/"])
def test_any_reply_may_be_lost(open_shipped, faults, root, key):
    """Whichever object it is about, nothing is doubled and nothing stops."""
    faults.lose(key)
    log = open_shipped()
    log.topic("orders").append(b"once", durability="shipped")
    log.seal()
    log.ship(20)
    assert mark(log).settled == 1
    assert root.numbers(layout.EPOCHS) == [1]
    assert len(root.topic_documents("orders")) == len(root.manifest("orders")) == len(root.segments("orders")) == 1


def test_a_log_that_is_only_read_claims_nothing(open_shipped, root):
    log = open_shipped()
    log.topic("orders").append(b"one", durability="shipped")
    log.close()
    before = root.objects()
    log = open_shipped()
    assert [record.payload for record in log.topic("orders").read()] == [b"one"]
    log.close()
    assert root.objects() == before


def test_what_was_trimmed_before_it_was_shipped_counts_when_a_batch_names_its_segments(open_shipped, faults, root):
    """The store was away while records were sealed and trimmed: the batch behind them waits for their files."""
    log = open_shipped(segments=TEN)
    faults.away()
    topic = fill(log, "orders", 2)
    wait_for(lambda: log._journal.entries_after(0, 10, 10**6)[0] == [])
    tail = topic.submit(b"tail")
    tail.result()
    gate, listing = faults.hold("segments/00000000000000000001"), faults.hold("/_manifest/00000000000000000001")
    faults.back()
    assert gate.arrived.wait(20)
    assert root.batches() == []
    assert (mark(log).shipped, mark(log).settled) == (0, 0)
    gate.open()
    assert tail.shipped(20).offset == 20
    (batch,) = root.batches()
    assert [segment.number for segment in batch.segments] == [0, 1]
    listing.open()
    log.ship(20)
    assert mark(log).settled == 20
    assert [documents.checked(segment) for segment in root.manifest("orders")] == list(batch.segments)


# -- segments -----------------------------------------------------------------------------------------------


def test_ship_returns_when_what_is_sealed_is_settled(open_shipped, either):
    """Files, byte for byte, and a manifest object for each, in order."""
    log = open_shipped(to=either, segments=TEN)
    fill(log, "orders", 3)
    log.ship(20)
    assert mark(log).settled == 30
    manifest = either.manifest("orders")
    assert [document.number for document in manifest] == [document.slot for document in manifest] == [0, 1, 2]
    for document, path in zip(manifest, files(log, "orders"), strict=True):
        assert isinstance(document, SegmentDocument)
        key = layout.segment_key("orders", 0, document.number, bytes.fromhex(document.sha256))
        assert either.store.get(key) == path.read_bytes()
    assert log.stats().shipping.unsettled_segments == 0


def test_ship_gives_up_in_time(open_shipped, faults):
    log = open_shipped(segments=TEN)
    faults.fail("/_manifest/")
    fill(log, "orders", 1)
    with pytest.raises(Unavailable, match=r"not all that is sealed is on the store within 0\.05 s"):
        log.ship(0.05)
    faults.heal()
    log.ship(20)


def test_ship_does_not_wait_for_the_tail(open_shipped, faults):
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    faults.hold(".arrow")
    log.topic("orders").append(b"tail")
    log.ship(0.5)
    assert mark(log).durable == 11


def test_a_manifest_object_comes_after_its_file_and_after_all_before_it(open_shipped, faults):
    """Files may overtake each other; manifest objects never do."""
    log = open_shipped(segments=TEN)
    faults.away()
    fill(log, "orders", 3)
    gate = faults.hold("/segments/00000000000000000000")
    faults.back()
    faults.wait(lambda: sum("/segments/" in r.key for r in faults.done if r.verb == "create") == 2)
    assert faults.count("create", "/_manifest/") == 0
    gate.open()
    log.ship(20)
    order = [r.key.rpartition("/")[2][:20] for r in faults.done if r.verb == "create" and "/_manifest/" in r.key]
    assert order == sorted(order)
    assert len(order) == 3


def test_without_commit_batches_shipped_follows_settled(open_shipped, root):
    log = open_shipped(segments=TEN, shipping={"commit_batches": False})
    topic = log.topic("orders")
    ticket = topic.submit(b"0")
    with pytest.raises(Unavailable):
        ticket.shipped(0.05)
    topic.append_batch([b"%d" % i for i in range(1, ROWS)])
    assert ticket.shipped(20).offset == 0
    assert (mark(log).shipped, mark(log).settled) == (10, 10)
    assert root.batches() == []


def test_commit_batches_can_be_switched_on_later(open_shipped, root):
    log = open_shipped(segments=TEN, shipping={"commit_batches": False})
    fill(log, "orders", 1).append(b"tail")
    log.ship(20)
    log.close()
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"next", durability="shipped")
    assert mark(log).shipped == 12
    assert sum(entry.count for batch in root.batches() for entry in batch.entries) == 2


def test_many_topics_and_partitions_arrive(open_shipped, either):
    log = open_shipped(to=either, segments={"rows_max": 5})
    for name in ("a", "b", "c"):
        topic = log.topic(name, partitions=3)
        for partition in range(3):
            topic.append_batch([b"x"] * (partition + 1), partition=partition)
    log.seal()
    log.ship(20)
    for name in ("a", "b", "c"):
        assert [marks.settled for marks in log.marks(name)] == [1, 2, 3]
        assert [len(either.manifest(name, partition)) for partition in range(3)] == [1, 1, 1]
        assert either.topic_documents(name)[0].partitions == 3


def test_a_missing_file_holds_up_its_partition_alone(open_shipped, faults, lines):
    """All files of one partition are gone, more than may be under way at once; the others go on, with an alarm."""
    log = open_shipped(segments=TEN)
    faults.away()
    fill(log, "orders", 6)
    moved = [(path, path.with_suffix(".away")) for path in files(log, "orders")]
    for path, aside in moved:
        path.rename(aside)
    faults.heal()
    fill(log, "other", 2)
    wait_for(lambda: mark(log, "other").settled == 20)
    assert mark(log).settled == 0
    alarm = log.stats().shipping.alarm
    assert alarm is not None
    assert (alarm.cause, "missing" in alarm.message) == ("disk", True)
    assert lines("shipping_alarm")
    for path, aside in moved:
        aside.rename(path)
    log.ship(20)
    assert mark(log).settled == 60
    wait_for(lambda: log.stats().shipping.alarm is None)


# -- documents ----------------------------------------------------------------------------------------------


def test_a_topic_is_described_before_anything_of_it(open_shipped, faults):
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    creates = [request.key for request in faults.done if request.verb == "create"]
    assert creates.index(layout.topic_key("orders", 1)) < creates.index(layout.batch_key(1, 1, 1))


def test_a_new_schema_version_makes_a_new_document(open_shipped, either):
    log = open_shipped(to=either)
    log.topic("numbers", schema=NUMBERS).append([{"number": 1}], durability="shipped")
    log.topic("numbers", schema=MORE).append([{"number": 2, "text": "x"}], durability="shipped")
    first, second = either.topic_documents("numbers")
    assert (first.version, second.version) == (1, 2)
    assert second.schemas[:1] == first.schemas
    assert len(second.schemas) == 2


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_new_policy_makes_a_new_document(open_shipped, root, keyring, encrypted):
    """Each of them, sealed logs or not; the newest one counts."""
    log = open_shipped(keyring=keyring if encrypted else None)
    topic = log.topic("orders")
    topic.append(b"x", durability="shipped")
    log.set_retention("orders", bytes_max=5)
    topic.append(b"x", durability="shipped")
    log.set_retention("orders", age_max=timedelta(seconds=1), records_max=7)
    topic.append(b"x", durability="shipped")
    limits = [document.retention for document in root.topic_documents("orders")]
    assert limits == [None, RetentionLimits(5, 0, 0), RetentionLimits(0, 10**6, 7)]


def test_an_unchanged_topic_is_not_described_again(open_shipped, faults, root):
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    log.set_retention("orders", records_max=7)
    log.topic("orders").append(b"x", durability="shipped")
    log.close()
    asked = faults.count("create", "/_topic/")
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    assert [document.version for document in root.topic_documents("orders")] == [1, 2]
    assert faults.count("create", "/_topic/") == asked == 2


def test_checkpoints_hold_the_manifest_objects_before_them(open_shipped, either):
    """Every three of them; the two newest checkpoints stay, and each equals what it stands for."""
    log = open_shipped(to=either, segments=TEN, shipping={"checkpoint_every": 3})
    fill(log, "orders", 10)
    log.ship(20)
    log.close()
    manifest = [either.store.get(key) for key in either.keys(layout.manifest_folder("orders", 0))]
    numbers = either.numbers(layout.checkpoints_folder("orders", 0))
    assert numbers
    assert numbers[-1] == 8
    assert len(numbers) <= 2
    for number in numbers:
        key = layout.checkpoint_key("orders", 0, number)
        held = checkpoint.decode(either.store.get(key), key)
        assert [documents.encode(document) for document in held] == manifest[: number + 1]


# -- sealed logs --------------------------------------------------------------------------------------------


def test_a_sealed_log_ships_nothing_that_can_be_read(open_shipped, either, keyring):
    """Before and after a rotation of keys: payloads, keys and headers stand nowhere, under no name."""
    secrets = [b"the payload is secret", b"the key is secret", b"the header is secret"]
    log = open_shipped(to=either, keyring=keyring)
    for ring in (None, keyring.rotated("second")):
        if ring is not None:
            log.rotate_key(ring)
        log.topic("orders").append(secrets[0], key=secrets[1], headers={"h": secrets[2]}, durability="shipped")
    tail = either.objects()
    assert [len(batch.keys) for batch in either.batches()] == [1, 1]
    assert len({key.key_id for batch in either.batches() for key in batch.keys}) == 2
    log.seal()
    log.ship(20)
    objects = {**tail, **either.objects()}
    assert either.segments("orders") == [0]
    for secret in secrets:
        assert not [key for key, data in objects.items() if secret in data or secret in key.encode()]
    assert mark(log).settled == 2


def test_a_batch_over_a_rotation_names_both_keys(open_shipped, faults, root, keyring):
    """Commits before and after it are collected while the store does not answer."""
    log = open_shipped(keyring=keyring, shipping={"max_in_flight_requests": 1})
    topic = log.topic("orders")
    gate = faults.hold(".arrow", times=1)
    topic.append(b"first")
    assert gate.arrived.wait(20)
    topic.append(b"second")
    log.rotate_key(keyring.rotated("other"))
    third = topic.submit(b"third")
    third.result()
    gate.open()
    third.shipped(20)
    assert [[key.key_id for key in batch.keys] for batch in root.batches()] == [["k1"], ["k1", "other"]]


# -- beginnings ---------------------------------------------------------------------------------------------


def test_a_topic_that_begins_later_begins_there_on_the_store(open_shipped, root):
    log = open_shipped(segments=TEN)
    topic = log.topic("orders", first_offset=1000)
    assert mark(log).shipped == mark(log).settled == 1000
    topic.append(b"x", durability="shipped")
    assert log.unshipped() == ()
    log.seal()
    log.ship(20)
    (document,) = root.manifest("orders")
    assert isinstance(document, SegmentDocument)
    assert (document.first, document.rows) == (1000, 1)
    assert root.topic_documents("orders")[0].first_offset == 1000
    assert mark(log).settled == 1001


def test_a_store_that_comes_later_gets_all_that_is_left(open_log, open_shipped, either):
    """Sealed, expired and tail: documents without files for what retention took, and an `expired` object for them."""
    log = open_log(segments=TEN, retention={"records_max": 20, "interval_ms": 3_600_000})
    topic = fill(log, "orders", 5)
    log.retain()
    topic.append(b"tail")
    assert log.stats().segments.expired_segments_total == 3
    log.close()
    log = open_shipped(to=either, segments=TEN)
    log.ship(20)
    log.topic("orders").append(b"next", durability="shipped")
    assert [document.number for document in either.manifest("orders")] == [0, 1, 2, 3, 4]
    assert either.segments("orders") == [3, 4]
    key = layout.expired_key("orders", 0, 3)
    document = documents.decode(either.store.get(key), key, ExpiredDocument)
    assert (document.upto, document.first) == (3, 30)
    assert (mark(log).settled, mark(log).shipped) == (50, 52)
    assert sum(entry.count for batch in either.batches() for entry in batch.entries) == 2


def test_reopening_goes_on_where_it_stopped_and_writes_nothing_twice(open_shipped, either):
    """Objects that were there keep their bytes and their times; the next ones come behind them."""
    log = open_shipped(to=either, segments=TEN)
    fill(log, "orders", 2).append(b"tail", durability="shipped")
    log.ship(20)
    log.close()
    frontiers = set(either.keys(layout.FRONTIERS))  # each goes when there is a newer one
    before = {info.key: info for info in either.infos() if info.key not in frontiers}
    known = either.objects()
    assert log.unshipped() == ()
    either.faults.seen.clear()
    log = open_shipped(to=either, segments=TEN)
    assert (mark(log).shipped, mark(log).settled) == (21, 20)
    log.topic("orders").append(b"next", durability="shipped")
    log.close()
    after = {info.key: info for info in either.infos()}
    kept = [key for key in before if key in after]
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert set(before) <= set(after)
    # A claim is asked for twice: the second time the store must refuse it.
    written = [r.key for r in either.faults.seen if r.verb == "create" and not r.key.startswith("epochs/")]
    assert not set(written) & set(before)
    assert len(written) == len(set(written))
    assert {key: data for key, data in either.objects().items() if key in known} == known
    assert first_seqs(either)[-1] == (4, 4)


def test_what_the_store_took_before_a_crash_counts_though_no_mark_was_written(open_shipped, root, monkeypatch):
    """The marks in the database lag; the store says what it has, and nothing of that is sent again."""
    with monkeypatch.context() as patch:
        patch.setattr(ShippedMarks, "note", lambda marks: True)
        log = open_shipped()
        log.topic("orders").append(b"one", durability="shipped")
        log.close()
    log = open_shipped()
    assert mark(log).shipped == 0
    log.topic("orders").append(b"two", durability="shipped")
    assert first_seqs(root) == [(1, 1), (2, 2)]
    assert mark(log).shipped == 2


# -- subscribers --------------------------------------------------------------------------------------------


def test_every_commit_is_accepted_before_it_is_shipped_each_in_order(open_shipped):
    log = open_shipped()
    topic = log.topic("orders")
    with log.subscribe() as events:
        tickets = [topic.submit(b"%d" % i) for i in range(50)]
        tickets[-1].shipped(20)
        seen = []
        while not seen or seen[-1].kind != "shipped" or seen[-1].last_seq < tickets[-1].result().seq:
            seen.append(events.get(20))
    for kind in ("accepted", "shipped"):
        spans = [(event.first_seq, event.last_seq) for event in seen if event.kind == kind]
        assert spans[0][0] == 1
        assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))
        assert sum(event.records for event in seen if event.kind == kind) == 50
    places = {(event.kind, event.first_seq): place for place, event in enumerate(seen)}
    for kind, first_seq in list(places):
        if kind == "shipped":
            assert places["accepted", first_seq] < places[kind, first_seq]


def test_a_consumer_that_stands_still_misses_events_and_stalls_nothing(open_shipped):
    log = open_shipped(shipping={"events_max": 4})
    topic = log.topic("orders")
    with log.subscribe() as slow:
        for i in range(20):
            topic.append(b"%d" % i, durability="shipped")
        assert mark(log).shipped == 20
        seen = [slow.get(0.1) for _ in range(4)]
        assert seen[0].missed == 40 - 4
        assert seen[-1].last_seq == 20
        assert slow.get(0) is None


def test_subscribers_end_with_the_log(open_shipped):
    log = open_shipped()
    events = log.subscribe()
    ended = threading.Event()
    seen = []

    def consume() -> None:
        seen.extend(events)
        ended.set()

    thread = threading.Thread(target=consume)
    thread.start()
    log.topic("orders").append(b"x", durability="shipped")
    log.close()
    assert ended.wait(20)
    thread.join()
    assert [event.kind for event in seen] == ["accepted", "shipped"]


def test_events_can_be_iterated_by_a_coroutine(open_shipped):
    log = open_shipped()

    async def main() -> list[str]:
        events = log.subscribe()
        log.topic("orders").submit(b"x")
        return [(await anext(events)).kind, (await anext(events)).kind]

    assert asyncio.run(main()) == ["accepted", "shipped"]


# -- forks --------------------------------------------------------------------------------------------------


def test_a_forked_child_ships_nothing_and_says_so(open_shipped, faults, root):
    """Appends, waiting, shipping and subscriptions are refused there; the parent goes on."""
    log = open_shipped()
    topic = log.topic("orders")
    topic.append(b"before", durability="shipped")
    faults.hold(".arrow")
    ticket = topic.submit(b"waiting")
    ticket.result()
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: topic.append(b"child"), lambda: ticket.shipped(5), lambda: log.subscribe().get(5)):
            try:
                call()
            except Closed as error:
                refused += error.reason == "forked"
            except BaseException:
                pass
        log.close()
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    faults.heal()
    assert ticket.shipped(20).offset == 1
    topic.append(b"after", durability="shipped")
    assert root.numbers(layout.EPOCHS) == [1]
