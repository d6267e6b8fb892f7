"""Closing and opening again: what is under way is finished, what is left is said, and nothing is sent twice."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast import Closed
from holdfast.results import Unshipped
from tests.segments.planting import TEN, fill, wait_for
from tests.shipping.conftest import mark

pytestmark = pytest.mark.store


def batch_seqs(root):
    return [entry.seq for batch in root.batches() for entry in batch.entries]


def test_closing_ships_what_is_there(open_shipped, root):
    """Records that nobody waited for are on the store when close() returns."""
    log = open_shipped()
    for i in range(50):
        log.topic("orders").submit(b"%d" % i)
    log.close()
    assert sum(entry.count for batch in root.batches() for entry in batch.entries) == 50
    assert log.unshipped() == ()


def test_closing_sends_a_partial_batch_without_waiting_for_its_timeout(open_shipped, faults, root):
    log = open_shipped(shipping={"batch_timeout_ms": 60_000})
    topic = log.topic("orders")
    gate = faults.hold(".arrow", times=1)
    topic.append(b"first")
    assert gate.arrived.wait(20)
    topic.append(b"second")
    closing = threading.Thread(target=log.close)
    closing.start()
    faults.wait_seen("create", ".arrow", 2)  # though the first is still under way
    gate.open()
    closing.join(20)
    assert batch_seqs(root) == [1, 2]


def test_closing_seals_and_settles(open_shipped, root):
    log = open_shipped(segments={"seal_on_close": True})
    log.topic("orders").append(b"x")
    log.close()
    assert root.segments("orders") == [0]
    assert len(root.manifest("orders")) == 1
    log = open_shipped()
    assert (mark(log).settled, mark(log).shipped, mark(log).sealed) == (1, 1, 1)


def test_closing_waits_for_what_is_in_flight(open_shipped, faults, root):
    log = open_shipped()
    gate = faults.hold_reply(".arrow", times=1)
    log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    closing = threading.Thread(target=log.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    gate.open()
    closing.join(20)
    assert log.unshipped() == ()


def test_closing_says_what_is_left(open_shipped, faults, lines):
    """By partition, and in the log; the time to drain is a setting."""
    log = open_shipped(shipping={"drain_timeout_ms": 200})
    gate = faults.hold(".arrow")
    log.topic("orders", partitions=2).append_batch([b"a", b"b", b"c"], partition=1)
    log.topic("events").append(b"x")
    assert gate.arrived.wait(20)
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 5
    assert log.unshipped() == (Unshipped("events", 0, 0, 1), Unshipped("orders", 1, 0, 3))
    (line,) = lines("close_unshipped")
    assert "4 records" in line


def test_closing_during_an_outage_is_quick(open_shipped, faults, lines):
    """It does not wait out the drain timeout for a store that is known to be away."""
    log = open_shipped(shipping={"max_retry_attempts": 0, "drain_timeout_ms": 60_000})
    faults.away()
    log.topic("orders").append(b"x")
    wait_for(lambda: log.stats().shipping.alarm is not None)
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 3
    assert log.unshipped() == (Unshipped("orders", 0, 0, 1),)
    assert lines("close_unshipped")


def test_closing_a_log_whose_store_was_never_reached_is_quick(open_shipped, faults):
    faults.away()
    log = open_shipped(shipping={"max_retry_attempts": 0, "drain_timeout_ms": 60_000})
    log.topic("orders").append(b"x")
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 3


def test_a_log_with_nothing_left_says_nothing(open_shipped, lines):
    log = open_shipped()
    log.topic("orders").append(b"x")
    log.close()
    assert lines("close_unshipped") == []


def test_the_next_open_ships_what_was_left(open_shipped, faults, root):
    """By itself, without a new append; in order, each commit once."""
    log = open_shipped(shipping={"max_retry_attempts": 0})
    topic = log.topic("orders")
    topic.append(b"there", durability="shipped")
    faults.away()
    for i in range(5):
        topic.append(b"%d" % i)
    log.close()
    faults.heal()
    log = open_shipped()
    wait_for(lambda: mark(log).shipped == 6)
    assert batch_seqs(root) == [1, 2, 3, 4, 5, 6]
    assert log.unshipped() == ()


def test_segments_that_were_left_are_settled_after_the_next_open(open_shipped, faults, root):
    log = open_shipped(segments=TEN, shipping={"max_retry_attempts": 0})
    faults.away()
    fill(log, "orders", 3)
    log.close()
    faults.heal()
    log = open_shipped(segments=TEN)
    log.ship(20)
    assert mark(log).settled == 30
    assert root.segments("orders") == [0, 1, 2]


def test_a_batch_whose_fate_was_unknown_at_closing_is_not_doubled(open_shipped, faults, root):
    """It was written, the reply never came: the next open finds it on the store and lets it count."""
    log = open_shipped(shipping={"drain_timeout_ms": 200})
    gate = faults.hold_reply(".arrow")
    log.topic("orders").append(b"x")
    assert gate.arrived.wait(20)
    log.close()
    assert log.unshipped() == (Unshipped("orders", 0, 0, 1),)
    faults.heal()
    log = open_shipped()
    log.topic("orders").append(b"y", durability="shipped")
    assert batch_seqs(root) == [1, 2]
    assert mark(log).shipped == 2


def test_a_waiter_for_the_store_hears_when_the_log_is_closed(open_shipped, faults):
    log = open_shipped(shipping={"drain_timeout_ms": 100})
    gate = faults.hold(".arrow")
    ticket = log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    caught = []

    def wait() -> None:
        try:
            ticket.shipped(30)
        except Closed as error:
            caught.append(error.reason)

    waiting = threading.Thread(target=wait)
    waiting.start()
    log.close()
    waiting.join(20)
    assert caught == ["clean"]


def test_the_shippers_thread_ends_with_the_log(open_shipped, faults):
    log = open_shipped(shipping={"drain_timeout_ms": 100})
    gate = faults.hold(".arrow")
    log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    thread = log._store.shipper._thread
    log.close()
    assert not thread.is_alive()
