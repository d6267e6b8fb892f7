"""A store that fails: appends go on or do not, as the policy says, and everybody can see why."""

from __future__ import annotations

import os
import time

import pytest

from holdfast import Unavailable
from holdfast.log.upkeep import store_binding
from tests.segments.planting import wait_for
from tests.shipping.conftest import FIRST_CONTACT_S, mark
from tests.shipping.flaky import VERBS

pytestmark = pytest.mark.store


def test_a_log_opens_and_appends_while_its_store_is_away(open_shipped, faults, root):
    """Quickly, with all marks as they were; everything arrives when the store is back."""
    faults.away()
    started = time.monotonic()
    log = open_shipped()
    assert time.monotonic() - started < 2
    topic = log.topic("orders")
    receipts = [topic.append(b"%d" % i) for i in range(20)]
    assert (mark(log).durable, mark(log).shipped) == (20, 0)
    assert root.keys() == []
    faults.heal()
    topic.submit(b"last").shipped(20)
    assert mark(log).shipped == 21
    assert receipts[-1].offset == 19


def test_a_log_opens_while_its_store_hangs(open_shipped, faults, monkeypatch):
    """With the patience that it really has."""
    monkeypatch.setattr(store_binding, "_FIRST_CONTACT_S", FIRST_CONTACT_S)
    gate = faults.hold(verbs=VERBS)
    started = time.monotonic()
    log = open_shipped()
    assert time.monotonic() - started < 3
    log.topic("orders").append(b"x")
    gate.open()
    log.topic("orders").append(b"y", durability="shipped")


def test_keep_trying_raises_an_alarm_that_grows_and_is_cleared(open_shipped, faults, lines):
    """Visible in stats with its cause and its attempts; it is logged once, and so is the recovery."""
    log = open_shipped(shipping={"max_retry_attempts": 1})
    topic = log.topic("orders")
    topic.append(b"x", durability="shipped")
    assert log.stats().shipping.alarm is None
    faults.fail(".arrow", cause="slow_down")
    ticket = topic.submit(b"y")
    wait_for(lambda: (alarm := log.stats().shipping.alarm) is not None and alarm.attempts >= 3)
    stats = log.stats().shipping
    assert stats.alarm is not None
    assert (stats.alarm.cause, stats.alarm.level) == ("slow_down", 1)
    assert stats.retries["slow_down"] >= 4
    assert ".arrow" in stats.alarm.message
    assert stats.last_error is not None
    assert (stats.lag_records, stats.ended) == (1, None)
    assert len(lines("shipping_alarm")) == 1
    faults.heal()
    ticket.shipped(20)
    wait_for(lambda: log.stats().shipping.alarm is None)
    assert len(lines("shipping_recovered")) == 1


def test_failures_within_the_attempts_raise_no_alarm(open_shipped, faults, lines):
    log = open_shipped(shipping={"max_retry_attempts": 3})
    faults.fail(".arrow", times=3)
    log.topic("orders").append(b"x", durability="shipped")
    assert log.stats().shipping.retries == {"server_error": 3}
    assert not lines("shipping_alarm")


def test_one_failure_more_than_the_attempts_raises_the_alarm(open_shipped, faults, lines):
    log = open_shipped(shipping={"max_retry_attempts": 3})
    faults.fail(".arrow", times=4)
    log.topic("orders").append(b"x", durability="shipped")
    assert len(lines("shipping_alarm")) == 1


def test_without_retries_the_first_failure_escalates(open_shipped, faults, lines):
    log = open_shipped(shipping={"max_retry_attempts": 0})
    faults.fail(".arrow", times=1)
    log.topic("orders").append(b"x", durability="shipped")
    assert len(lines("shipping_alarm")) == 1


def test_a_refusal_escalates_at_once(open_shipped, faults, lines):
    """Nobody expects `forbidden` to pass by itself; it is tried again all the same."""
    log = open_shipped(shipping={"max_retry_attempts": 100})
    faults.refuse(".arrow", times=1)
    log.topic("orders").append(b"x", durability="shipped")
    assert len(lines("shipping_alarm")) == 1
    assert log.stats().shipping.retries == {"forbidden": 1}


def test_fail_appends_refuses_and_takes_again(open_shipped, faults):
    """From the moment when attempts are used up until the object is there; what was taken before is kept."""
    log = open_shipped(shipping={"max_retry_attempts": 1, "escalation": "fail-appends"})
    topic = log.topic("orders")
    faults.fail(".arrow")
    kept = topic.submit(b"kept")
    kept.result()
    wait_for(lambda: log.stats().shipping.alarm is not None)
    for call in (lambda: topic.append(b"no"), lambda: topic.append_batch([b"no"])):
        with pytest.raises(Unavailable, match="appends are refused while the store cannot be reached"):
            call()
    assert mark(log).durable == 1
    assert [record.payload for record in topic.read()] == [b"kept"]
    faults.heal()
    kept.shipped(20)
    wait_for(lambda: log.stats().shipping.alarm is None)
    assert topic.append(b"again", durability="shipped").offset == 1


def test_fail_appends_goes_on_only_when_nothing_is_stuck_any_more(open_shipped, faults):
    """A batch and a segment ran out of attempts; the recovery of one of them is not enough."""
    log = open_shipped(shipping={"max_retry_attempts": 0, "escalation": "fail-appends"})
    topic = log.topic("orders")
    batch, segment = faults.fail(".arrow"), faults.fail("/segments/")
    ticket = topic.submit(b"x")
    stuck = log._store.shipper._escalation._stuck
    for part in (".arrow", "/segments/"):  # one after the other: what is in a segment first needs no batch
        wait_for(lambda part=part: any(part in key for key in list(stuck)))
        log.seal()
    batch.end()
    ticket.shipped(20)
    wait_for(lambda: not any(".arrow" in key for key in list(stuck)))
    with pytest.raises(Unavailable, match="appends are refused"):
        topic.append(b"no")
    segment.end()
    log.ship(20)
    wait_for(lambda: log.stats().shipping.alarm is None)
    topic.append(b"again", durability="shipped")


def test_abort_calls_abort(open_shipped, faults, monkeypatch, lines):
    """Once attempts are used up, not before; what is durable is there after the next open."""
    calls = []
    monkeypatch.setattr(os, "abort", lambda: calls.append("abort"))
    log = open_shipped(shipping={"max_retry_attempts": 2, "escalation": "abort"})
    topic = log.topic("orders")
    faults.fail(".arrow", times=2)
    topic.append(b"x", durability="shipped")
    assert not calls
    faults.fail(".arrow", times=3)
    topic.append(b"y", durability="shipped")
    assert calls == ["abort"]
    assert len(lines("shipping_abort")) == 1


def test_no_mark_moves_while_the_fence_cannot_be_asked(open_shipped, faults, root):
    """Batches arrive; whether they count is another question, and it has no answer yet."""
    log = open_shipped()
    topic = log.topic("orders")
    topic.append(b"x", durability="shipped")
    faults.fail("epochs/", verbs=["head"])
    ticket = topic.submit(b"y")
    with pytest.raises(Unavailable):
        ticket.shipped(0.1)
    assert len(root.batches()) == 2
    assert mark(log).shipped == 1
    faults.heal()
    assert ticket.shipped(20).offset == 1


def test_one_question_covers_all_that_was_finished_before_it(open_shipped, faults):
    """While the fence is asked, many batches finish: the next answer lets all of them count."""
    log = open_shipped(shipping={"batch_size_threshold": 1})
    topic = log.topic("orders")
    topic.append(b"x", durability="shipped")
    before = faults.count("head", "epochs/")
    gate = faults.hold("epochs/", verbs=["head"], times=1)
    tickets = [topic.submit(b"y")]
    assert gate.arrived.wait(20)
    for _ in range(6):
        tickets.append(topic.submit(b"z"))
        tickets[-1].result()
    faults.wait(lambda: sum(r.verb == "create" and ".arrow" in r.key for r in faults.done) == 8)
    assert mark(log).shipped == 1
    gate.open()
    tickets[-1].shipped(20)
    assert faults.count("head", "epochs/") - before == 2


def test_nothing_that_is_durable_is_dropped_however_long_the_store_is_away(open_shipped, faults, root):
    """More than may be in flight waits in the journal and not in memory; all of it arrives, each commit once."""
    log = open_shipped(shipping={"max_in_flight_requests": 2, "batch_size_threshold": 5})
    topic = log.topic("orders")
    topic.append(b"x", durability="shipped")
    faults.away()
    for i in range(100):
        topic.append(b"%d" % i)
    lane = log._store.shipper._lane
    assert len(lane._stages) <= 2
    faults.heal()
    topic.submit(b"last").shipped(20)
    seqs = [entry.seq for batch in root.batches() for entry in batch.entries]
    assert seqs == list(range(1, 103))
    assert root.batches()[-1].last_seq == 102
