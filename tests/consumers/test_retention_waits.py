"""Retention waits for named consumers, within a limit; then it goes on, and says so."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Expired, Invalid, NotFound
from holdfast.segments.retention.retention_plan import ConsumerHold, Policy, Removal, RetentionPlan, waited
from holdfast.testing import ManualClock
from tests.segments.planting import wait_for
from tests.unit.test_retention_plan import segment

pytestmark = pytest.mark.disk


def sealed(log, segments=5, partitions=1):
    """A topic whose segments have ten records each."""
    topic = log.topic("orders", partitions=partitions)
    for _ in range(segments):
        for number in range(partitions):
            topic.append_batch([b"x" * 50] * 10, partition=number)
        log.seal("orders")
    retention = log._maintenance._retention
    wait_for(lambda: retention._seals == retention._counters.seals)  # the owner's own round does not come in between
    return topic


def firsts(topic):
    return [part.sealed.first_offset for part in topic._partitions.parts]


def consume(consumer, count):
    for _ in range(count):
        next(consumer)
    consumer.commit()


def test_a_segment_stays_until_the_consumers_have_committed_past_it(open_log):
    """Of several the slowest counts; what was given out and not committed is not consumed."""
    log = open_log()
    orders = sealed(log)
    fast, slow = orders.consumer("billing"), orders.consumer("audit")
    log.set_retention("orders", records_max=10, wait_for=["billing", "audit"], wait_limit=timedelta(days=9))
    report = log.retain()
    assert report.removed == ()
    assert report.bytes_waiting > 0
    consume(fast, 50)
    consume(slow, 25)
    next(slow)
    assert [item.first for item in log.retain().removed] == [0, 10]
    consume(slow, 24)
    assert [item.why for item in log.retain().removed] == ["count", "count"]
    assert firsts(orders) == [40]
    assert log.retain().bytes_waiting == 0


def test_each_partition_waits_for_itself(open_log):
    log = open_log()
    orders = sealed(log, partitions=2)
    consumer = orders.consumer("billing", partitions=1)
    log.set_retention("orders", records_max=10, wait_for=["billing"], wait_limit=timedelta(days=9))
    consume(consumer, 50)
    log.retain()
    assert firsts(orders) == [0, 40]


def test_a_consumer_that_is_not_there_yet_is_waited_for(open_log):
    log = open_log()
    orders = sealed(log)
    log.set_retention("orders", records_max=10, wait_for=["later"], wait_limit=timedelta(days=9))
    log.retain()
    assert firsts(orders) == [0]
    orders.consumer("later", start="next")
    log.retain()
    assert firsts(orders) == [40]


def test_it_waits_no_longer_than_it_is_asked_to(open_log, caplog):
    """Then it goes on, warns, and the consumer learns what it has missed."""
    clock = ManualClock()
    log = open_log(clock=clock, retention={"interval_ms": 3_600_000})
    orders = sealed(log)
    consumer = orders.consumer("billing")
    consume(consumer, 15)
    consumer.close()
    log.set_retention("orders", records_max=10, wait_for=["billing"], wait_limit=timedelta(days=2))
    clock.advance(47 * 3600)
    assert [item.first for item in log.retain().removed] == [0]
    clock.advance(2 * 3600)
    with caplog.at_level(logging.WARNING):
        report = log.retain()
    assert [(item.first, item.why) for item in report.removed] == [(n, "wait_limit") for n in (10, 20, 30)]
    assert firsts(orders) == [40]
    logged = [record for record in caplog.records if getattr(record, "action", "") == "retention_unread"]
    assert [record.records for record in logged] == [25]
    with pytest.raises(Expired) as caught:
        next(orders.consumer("billing"))
    assert caught.value.first == 40


def test_it_keeps_no_more_bytes_than_it_is_asked_to(open_log):
    log = open_log()
    orders = sealed(log, segments=8)
    orders.consumer("billing").close()
    size = log.retain(dry_run=True).bytes_freed or log._maintenance._retention._size(orders._partitions.parts[0])
    log.set_retention("orders", records_max=10, wait_for=["billing"], wait_limit=size // 2)
    log.retain()
    assert firsts(orders) == [40]


def test_the_limit_of_waiting_removes_nothing_that_the_policy_keeps(open_log):
    log = open_log()
    orders = sealed(log)
    orders.consumer("billing").close()
    log.set_retention("orders", records_max=40, wait_for=["billing"], wait_limit=1)
    log.retain()
    assert firsts(orders) == [10]


def test_what_waits_is_durable_until_another_policy_comes(open_log):
    log = open_log()
    sealed(log).consumer("billing").close()
    log.set_retention("orders", records_max=10, wait_for=["billing"], wait_limit=timedelta(days=9))
    log.close()
    log = open_log()
    orders = log.topic("orders")
    log.retain()
    assert firsts(orders) == [0]
    assert log.consumers()[0].retention_waits
    reader = open_log(read_only=True)
    assert reader.retain(dry_run=True).bytes_waiting > 0
    log.set_retention("orders", records_max=10)
    log.retain()
    assert firsts(orders) == [40]
    assert not log.consumers()[0].retention_waits


def test_nobody_waits_for_a_consumer_that_was_forgotten(open_log):
    log = open_log()
    orders = sealed(log)
    orders.consumer("billing").close()
    log.set_retention("orders", records_max=10, wait_for=["billing"], wait_limit=timedelta(days=9))
    log.forget_consumer("billing", "orders")
    log.close()
    log = open_log()
    log.retain()
    assert firsts(log.topic("orders")) == [40]


def test_the_disk_budget_waits_for_nobody(open_log, caplog):
    """It is the hard bound; that a consumer misses something is logged."""
    log = open_log(retention={"disk_bytes_max": 400_000, "headroom_bytes": 0, "interval_ms": 3_600_000})
    topic = log.topic("orders")
    topic.consumer("billing").close()
    for _ in range(5):
        topic.append_batch([bytes([n]) * 100 for n in range(200)])
        log.seal("orders")
    log.set_retention("orders", records_max=10_000, wait_for=["billing"], wait_limit=timedelta(days=9))
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            topic.append_batch([incompressible(n) for n in range(200)])
            log.seal("orders")
            log.retain()
    assert firsts(topic)[0] > 0
    assert "retention_unread" in {getattr(record, "action", "") for record in caplog.records}


def incompressible(number):
    return bytes((number * 31 + at * 17 + at * at) % 251 for at in range(300))


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait_for": ["billing"]},
        {"wait_limit": 5},
        {"wait_for": "billing", "wait_limit": 5},
        {"wait_for": ["a/b"], "wait_limit": 5},
        {"wait_for": ["billing"], "wait_limit": 0},
        {"wait_for": ["billing"], "wait_limit": timedelta(0)},
        {"wait_for": ["billing"], "wait_limit": "9d"},
        {"wait_for": [f"c{n}" for n in range(101)], "wait_limit": 5},
        {"wait_for": ["billing"], "wait_limit": 5, "records_max": None},
    ],
)
def test_careless_policies_are_refused(open_log, wrong):
    log = open_log()
    sealed(log, segments=1)
    with pytest.raises(Invalid):
        log.set_retention("orders", **{"records_max": 10, **wrong})
    assert log.retain(dry_run=True).removed == ()
    with pytest.raises(NotFound):
        log.set_retention("none", records_max=10, wait_for=["billing"], wait_limit=5)


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(0, 40), st.integers(0, 8), st.integers(0, 8))
def test_the_plan_keeps_what_is_unread_up_to_the_limit(rows, floor, due, over):
    """What goes is a prefix of what is due: all that was read, and what exceeds the limit."""
    segments, first = [], 0
    for number, count in enumerate(rows):
        segments.append(segment(number, first, count, 10 * count))
        first += count
    plan = waited(
        RetentionPlan(tuple(Removal(one, "count") for one in segments[:due])),
        RetentionPlan(tuple(Removal(one, "age") for one in segments[:over])),
        ConsumerHold(floor, Policy(records_max=1)),
    )
    going = [removal.segment for removal in plan.removals]
    read = [one for one in segments[:due] if one.end <= floor]
    assert going == segments[: max(len(read), min(due, over, len(segments)))]
    assert plan.bytes_freed + plan.bytes_waiting == sum(one.size for one in segments[:due])
    assert all((removal.why == "wait_limit") == (removal.segment.end > floor) for removal in plan.removals)
