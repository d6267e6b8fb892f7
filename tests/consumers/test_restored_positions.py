"""Positions come back from what was shipped, and after a rebuild from what was sealed."""

from __future__ import annotations

import shutil
from datetime import timedelta

import pytest

import holdfast
from holdfast import Settings
from holdfast.log.consumers import position_store
from holdfast.log.topics.topic import Topic
from holdfast.log.upkeep import maintenance
from holdfast.testing import ManualClock

pytestmark = pytest.mark.store

OPEN = Settings.from_mapping({"shipping": {"retry_base_delay_ms": 1}, "segments": {"seal_on_close": False}})


def committed(log):
    return {(one.consumer, one.topic): [line.committed for line in one.partitions] for one in log.consumers()}


def consume(consumer, count):
    seen = [next(consumer).offset for _ in range(count)]
    consumer.commit()
    return seen


@pytest.mark.parametrize("keyed", [False, True])
def test_a_restored_log_goes_on_where_its_consumers_were(tmp_path, keyring, keyed):
    """Positions, members' beginnings and for whom retention waits; several times over."""
    keys = {"keyring": keyring} if keyed else {}
    lost_and_restored(tmp_path, (tmp_path / "store").as_uri(), OPEN, keys)


def lost_and_restored(tmp_path, url, settings, keys):
    """A log is used, lost, restored, used, lost and restored."""
    with holdfast.open(tmp_path / "log", store=url, settings=settings, **keys) as log:
        orders = log.topic("orders", partitions=2)
        for number in (0, 1):
            orders.append_batch([b"%d" % n for n in range(6)], partition=number)
        consume(orders.consumer("billing"), 9)
        orders.consumer("idle", start=2).close()
        gone = orders.consumer("gone")
        gone.close()
        log.forget_consumer("gone", "orders")
        log.set_retention("orders", records_max=4, wait_for=["billing"], wait_limit=timedelta(days=3))
        known = committed(log)
        log.topic("orders").append(b"last", durability="shipped")
    for turn in range(2):
        place = tmp_path / f"back{turn}"
        holdfast.restore(url, place, settings=settings, **keys)
        with holdfast.open(place, read_only=True, settings=settings, **keys) as looked:
            assert committed(looked) == known
        with holdfast.open(place, store=url, settings=settings, **keys) as log:
            assert committed(log) == known
            assert [one.retention_waits for one in log.consumers()] == [True, False]
            consumer = log.topic("orders").consumer("billing")
            consume(consumer, 2)
            known = committed(log)
            assert sum(known["billing", "orders"]) == 11 + 2 * turn
            log.topic("orders").append_batch([b"more"] * 2, durability="shipped")


def test_a_transaction_comes_back_whole_with_its_position(tmp_path):
    """Whatever moment the machine is lost at: what was written and how far it was read agree."""
    url = (tmp_path / "store").as_uri()
    with holdfast.open(tmp_path / "log", store=url, settings=OPEN) as log:
        orders = log.topic("orders")
        orders.append_batch([b"%d" % n for n in range(40)])
        consumer = orders.consumer("billing")
        for turn in range(10):
            with log.transaction() as tx:
                for record in consumer.poll(4):
                    last = tx.append("invoices", record.payload)
                tx.consumed(consumer)
            if turn % 3 == 0:
                log.seal("orders" if turn % 2 else "_consumers")
            take_copy(tmp_path / "store", tmp_path / f"lost{turn}")
        assert last.receipt.offset == 39
    for turn in range(10):
        place = tmp_path / f"back{turn}"
        try:
            holdfast.restore((tmp_path / f"lost{turn}").as_uri(), place)
        except holdfast.NotFound:  # nothing was there yet
            continue
        with holdfast.open(place, read_only=True) as log:
            if "invoices" in log.topics():
                written = [record.payload for record in log.topic("invoices").read()]
                assert committed(log).get(("billing", "orders"), [0]) == [len(written)]
                assert written == [b"%d" % n for n in range(len(written))]


def take_copy(store, place):
    """The store as it may be found at one moment: objects are copied oldest first, so that none is there too early."""
    for path in sorted(listed(store), key=changed):
        target = place / path.relative_to(store)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(path, target)
        except FileNotFoundError:  # written under another name first, or no longer needed
            pass


def listed(store):
    """All objects of one moment: while somebody lists one folder, others are written to."""
    before, found = None, {path for path in store.rglob("*") if path.is_file()}
    while found != before:  # whatever is not in either of two equal lists came after all that is
        before, found = found, {path for path in store.rglob("*") if path.is_file()}
    return found


def changed(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def test_a_rebuilt_log_never_skips_a_record(tmp_path):
    """The journal was lost, with the end of the topic; positions were sealed. New records are not passed over."""
    with holdfast.open(tmp_path / "log", settings=OPEN) as log:
        orders = log.topic("orders")
        orders.append_batch([b"%d" % n for n in range(5)])
        log.seal("orders")
        orders.append_batch([b"%d" % n for n in range(5, 10)])
        consume(orders.consumer("billing"), 8)
        log.seal("_consumers")
    (tmp_path / "log" / "durable.db").unlink()
    holdfast.rebuild(tmp_path / "log")
    for turn in range(2):  # the second time the topic is longer than where the first position was
        with holdfast.open(tmp_path / "log", settings=OPEN) as log:
            orders = log.topic("orders")
            if not turn:
                assert committed(log) == {("billing", "orders"): [5]}
                orders.consumer("other").close()
            orders.append_batch([b"new"] * 10)
            log.seal()
        (tmp_path / "log" / "durable.db").unlink()
        holdfast.rebuild(tmp_path / "log")
    with holdfast.open(tmp_path / "log", settings=OPEN) as log:
        assert committed(log) == {("billing", "orders"): [5], ("other", "orders"): [0]}


def test_an_idle_consumer_outlives_the_retention_of_what_is_recorded(tmp_path, monkeypatch):
    """All positions are said again now and then, so the topic may lose its oldest records."""
    monkeypatch.setattr(position_store, "_SAY_AGAIN_COMMITS", 10)
    monkeypatch.setattr(maintenance, "_POSITIONS_BYTES_MAX", 1)
    settings = {"segments": {"seal_on_close": False}}
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        orders = log.topic("orders")
        orders.append_batch([b"x"] * 100)
        idle = orders.consumer("idle", start=7)
        idle.close()
        busy = orders.consumer("busy")
        for _ in range(5):
            for _ in range(11):
                consume(busy, 1)
            log.seal()
            log.retain()
        assert log._journal.topics["_consumers"][0].sealed.first_offset > 3
        known = committed(log)
    (tmp_path / "log" / "durable.db").unlink()
    holdfast.rebuild(tmp_path / "log")
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        assert committed(log)["idle", "orders"] == known["idle", "orders"] == [7]


def test_all_positions_are_said_again_once_a_day_and_at_the_end(tmp_path):
    clock = ManualClock()
    with holdfast.open(tmp_path / "log", settings=OPEN, clock=clock) as log:
        orders = log.topic("orders")
        orders.append_batch([b"x"] * 10)
        orders.consumer("idle").close()
        busy = orders.consumer("busy")
        consume(busy, 1)
        assert kinds(log) == {"committed"}
        clock.advance(25 * 3600)
        consume(busy, 1)
        assert busy.committed == '{"0":2}'
        log.flush()
        assert kinds(log) == {"committed", "kept"}
        before = log.marks("_consumers")[0].durable
        consume(busy, 1)
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert log.marks("_consumers")[0].durable == before + 3


def kinds(log):
    return {record.kind for record in log.topic("_consumers").read()}


def test_what_strangers_append_to_the_topic_is_passed_over(tmp_path):
    """It is a topic like any other: nothing in it breaks a restore."""
    with holdfast.open(tmp_path / "log", settings=OPEN) as log:
        orders = log.topic("orders")
        orders.append_batch([b"x"] * 10)
        consume(orders.consumer("billing"), 3)
        topic = log.topic("_consumers")
        for payload in (
            b"",
            b"null",
            b"{}",
            b'{"topic":"../x","consumer":"a","positions":{"0":{"next":1,"at":99999999999999999}}}',
            b'{"topic":"orders","consumer":"billing","positions":{"-1":{"next":1,"at":5}}}',
            b'{"topic":"orders","consumer":"billing","positions":{"0":{"next":-1,"at":9223372036854775807}}}',
            b'{"topic":"orders","consumer":"billing","positions":{"7":{"next":1,"at":9223372036854775807}}}',
            b'{"topic":"orders","wait":{"consumers":["/"],"age_max_us":0,"bytes_max":0,"at":1}}',
            b"\xff" * 100,
        ):
            Topic.submit(topic, payload).result()
        log.seal()
    (tmp_path / "log" / "durable.db").unlink()
    holdfast.rebuild(tmp_path / "log")
    with holdfast.open(tmp_path / "log", settings=OPEN) as log:
        assert [line.committed for line in log.consumers()[0].partitions] == [3]
        assert next(log.topic("orders").consumer("billing")).offset == 3
