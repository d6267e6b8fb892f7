"""The loop of the tail lane, transition by transition, with the real shipper and a scripted store.

The rules by themselves are in tests/unit/test_batching.py, test_ordering.py and test_backoff.py; connections on sockets
in tests of the S3 pool. Here it is their composition: what the store sees, and when.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from holdfast import Log, Topic
from holdfast.shipping import session
from holdfast.shipping.lanes.batching import BatchRule
from holdfast.shipping.remote_store import StoreRemote
from holdfast.store import layout
from holdfast.store.pool_state import PoolState
from holdfast.store.port import Body, StoreUnavailable
from tests.segments.planting import wait_for
from tests.shipping.conftest import mark
from tests.shipping.flaky import Faults, FlakyStore

pytestmark = pytest.mark.store

NEVER_MS = 3_600_000
"""Longer than any test: whatever happens, it was not the time."""


def sent(faults: Faults) -> list[tuple[int, int]]:
    """Batches that were sent, each as often as it was tried: first and last sequence number."""
    names = [layout.parse_batch_key(request.key) for request in list(faults.seen) if request.verb == "create"]
    return [(name.first_seq, name.last_seq) for name in names if name is not None]


@pytest.fixture
def started(open_shipped: Callable[..., Log]) -> Callable[..., tuple[Log, Topic]]:
    """A log that has shipped one record (number 1) and has nothing under way."""

    def start(**shipping: object) -> tuple[Log, Topic]:
        log = open_shipped(shipping=shipping)
        topic = log.topic("orders")
        topic.append(b"first", durability="shipped")
        return log, topic

    return start


# -- 1. batch acquisition -----------------------------------------------------------------------------------


def test_nothing_in_flight_the_first_commit_goes_at_once(started, faults):
    """Neither the timeout nor the threshold is waited for."""
    _, topic = started(batch_timeout_ms=NEVER_MS, batch_size_threshold=1000)
    topic.append(b"second", durability="shipped")
    topic.append(b"third", durability="shipped")
    assert sent(faults) == [(1, 1), (2, 2), (3, 3)]


def test_something_in_flight_commits_are_collected_until_the_time_limit(started, faults):
    """Counted from the last batch that was sent; all that came meanwhile goes in one."""
    _, topic = started(batch_timeout_ms=300)
    gate = faults.hold(".arrow", times=1)
    topic.append(b"2")
    assert gate.arrived.wait(20)
    began = time.monotonic()
    for _ in range(3):
        topic.append(b"x")
    assert sent(faults) == [(1, 1), (2, 2)]
    faults.wait(lambda: len(sent(faults)) == 3)
    assert time.monotonic() - began > 0.1
    assert sent(faults)[2] == (3, 5)


def test_something_in_flight_commits_are_collected_until_the_size_limit(started, faults):
    _, topic = started(batch_timeout_ms=NEVER_MS, batch_size_threshold=3)
    gate = faults.hold(".arrow", times=1)
    topic.append(b"2")
    assert gate.arrived.wait(20)
    topic.append(b"3")
    topic.append(b"4")
    assert len(sent(faults)) == 2
    topic.append(b"5")
    faults.wait(lambda: len(sent(faults)) == 3)
    assert sent(faults)[2] == (3, 5)


def test_something_in_flight_commits_are_collected_until_they_are_many_bytes(started, faults):
    _, topic = started(batch_timeout_ms=NEVER_MS, batch_bytes_max=1000)
    gate = faults.hold(".arrow", times=1)
    topic.append(b"2")
    assert gate.arrived.wait(20)
    topic.append(b"x" * 300)
    assert len(sent(faults)) == 2
    topic.append(b"x" * 900)
    faults.wait(lambda: len(sent(faults)) >= 3)


def test_the_last_reply_sends_what_was_collected(started, faults):
    """Nothing is in flight any more: what waits is not kept waiting."""
    _, topic = started(batch_timeout_ms=NEVER_MS)
    gate = faults.hold(".arrow", times=1)
    topic.append(b"2")
    assert gate.arrived.wait(20)
    ticket = topic.submit(b"3")
    ticket.result()
    assert len(sent(faults)) == 2
    gate.open()
    ticket.shipped(20)
    assert sent(faults)[2] == (3, 3)


def test_at_the_limit_of_requests_in_flight_only_a_reply_sends(started, faults):
    """Neither time nor size helps then."""
    log, topic = started(max_in_flight_requests=2, batch_timeout_ms=1, batch_size_threshold=1)
    first, second = faults.hold(".arrow", times=1), faults.hold(".arrow", times=1)
    for number in range(2, 4):
        topic.append(b"x")
        faults.wait(lambda number=number: len(sent(faults)) == number)
    assert first.arrived.wait(20)
    assert second.arrived.wait(20)
    for _ in range(5):
        topic.append(b"x")
    assert log.stats().shipping.in_flight == 2
    assert len(sent(faults)) == 3
    second.open()
    faults.wait(lambda: len(sent(faults)) >= 4)
    first.open()
    topic.submit(b"last").shipped(20)


def test_idle_is_blocked(started, monkeypatch):
    """No commit, nothing in flight: no decision is made, by no timer."""
    decisions = []
    decide = BatchRule.decide

    def counted(self, *numbers):
        decisions.append(numbers)
        return decide(self, *numbers)

    monkeypatch.setattr(BatchRule, "decide", counted)
    log, topic = started(batch_timeout_ms=1)
    wait_for(lambda: log._store.shipper._lane._waiting is not None and not log._store.shipper._lane._waiting.done())
    before = len(decisions)
    threading.Event().wait(0.15)  # that nothing happens, nobody announces
    assert len(decisions) - before <= 1
    topic.append(b"again", durability="shipped")
    assert len(decisions) > before


def test_a_commit_is_one_batch_at_most_and_a_large_one_travels_alone(started, faults, root):
    """Whole commits, never a part of one."""
    _, topic = started(batch_bytes_max=1000, batch_timeout_ms=NEVER_MS)
    topic.append_batch([b"x" * 900] * 5, durability="shipped")
    assert sent(faults) == [(1, 1), (2, 2)]
    assert sum(entry.count for entry in root.batches()[1].entries) == 5


# -- 2. connections -----------------------------------------------------------------------------------------


class Scripted(StoreRemote):
    """A remote whose pool is what the test says."""

    state = PoolState(target=8, healthy=7, in_use=1, opening=1, replaced_total=3, heartbeats_total=9)

    def pool(self) -> PoolState:
        return self.state


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "holdfast.shipping.open_remote.remote_for",
        lambda url, store, settings, shipping, clock: lambda: Scripted(store, 4),
    )


def test_the_pool_can_be_seen(scripted, started):
    log, _ = started()
    assert log.stats().shipping.pool == Scripted.state


def test_when_no_connection_is_healthy_batches_wait_and_appends_do_not(started, faults):
    """A request that gets no connection hangs, and so do those behind it; the journal takes records all the while."""
    log, topic = started(max_in_flight_requests=2)
    gate = faults.hold()
    tickets = [topic.submit(b"x") for _ in range(10)]
    tickets[-1].result()
    assert gate.arrived.wait(20)
    for _ in range(10):
        topic.append(b"y")
    assert log.stats().shipping.in_flight <= 2
    assert mark(log).durable == 21
    gate.open()
    tickets[-1].shipped(20)


# -- 3. transmission ----------------------------------------------------------------------------------------


def test_what_was_sent_is_announced_as_accepted_before_any_reply(started, faults):
    log, topic = started()
    gate = faults.hold(".arrow")
    with log.subscribe() as events:
        topic.append(b"2")
        event = events.get(20)
        assert (event.kind, event.first_seq, event.last_seq, event.records) == ("accepted", 2, 2, 1)
        assert gate.arrived.wait(20)
        assert events.get(0) is None
        gate.open()
        event = events.get(20)
        assert (event.kind, event.first_seq, event.last_seq) == ("shipped", 2, 2)


def test_what_waits_for_something_else_than_a_reply_is_not_accepted_yet(started, faults):
    """Accepted is what was handed to a connection; a batch that waits for its topic's document was not."""
    log, _ = started()
    gate = faults.hold("topics/other/")
    topic = log.topic("other")
    with log.subscribe() as events:
        topic.append(b"waits")
        assert gate.arrived.wait(20)
        assert events.get(0.2) is None
        gate.open()
        assert [events.get(20).kind, events.get(20).kind] == ["accepted", "shipped"]


def test_a_batch_that_is_sent_again_is_accepted_once(started, faults):
    log, topic = started()
    faults.fail(".arrow", times=3)
    with log.subscribe() as events:
        topic.append(b"x", durability="shipped")
        assert [events.get(20).kind, events.get(20).kind, events.get(0)] == ["accepted", "shipped", None]


def test_what_is_in_flight_is_counted(started, faults):
    log, topic = started(batch_size_threshold=1)
    gate = faults.hold(".arrow")
    for number in range(2, 5):
        topic.append(b"x")
        faults.wait(lambda number=number: len(sent(faults)) == number)
    assert log.stats().shipping.in_flight == 3
    gate.open()
    topic.submit(b"last").shipped(20)
    assert log.stats().shipping.in_flight == 0


# -- 4. and 5. replies --------------------------------------------------------------------------------------


def test_replies_may_come_in_any_order_and_count_in_one(started, faults):
    """The last batch is durable first; each counts when all before it are."""
    log, topic = started(batch_size_threshold=1)
    gates = [faults.hold_reply(".arrow", times=1) for _ in range(3)]
    with log.subscribe() as events:
        for gate in gates:
            topic.append(b"x")
            assert gate.arrived.wait(20)
        assert [events.get(20).kind for _ in range(3)] == ["accepted"] * 3
        gates[2].open()
        gates[1].open()
        wait_for(lambda: log.stats().shipping.in_flight == 1)
        assert mark(log).shipped == 1
        assert events.get(0) is None
        gates[0].open()
        assert [events.get(20).first_seq for _ in range(3)] == [2, 3, 4]
    assert mark(log).shipped == 4


def test_a_batch_before_the_gap_counts_without_those_behind_it(started, faults):
    log, topic = started(batch_size_threshold=1)
    gates = [faults.hold(".arrow", times=1) for _ in range(2)]
    tickets = []
    for gate in gates:
        tickets.append(topic.submit(b"x"))
        assert gate.arrived.wait(20)
    gates[0].open()
    tickets[0].shipped(20)
    assert mark(log).shipped == 2
    assert not tickets[1].when_shipped.done
    gates[1].open()
    tickets[1].shipped(20)


def test_a_batchs_memory_is_let_go_when_the_store_has_it(started, faults):
    """Though it does not count yet: one before it is still under way."""
    log, topic = started(batch_size_threshold=1)
    gate = faults.hold(".arrow", times=1)
    topic.append(b"x")
    assert gate.arrived.wait(20)
    topic.append(b"y" * 1000)
    lane = log._store.shipper._lane
    wait_for(lambda: len(lane._stages) == 2 and len(lane._ordering._complete) == 1)
    stages = [stage for stage, _ in lane._stages.values()]
    assert [stage._payload is None for stage in stages] == [False, True]
    gate.open()
    topic.submit(b"z").shipped(20)
    wait_for(lambda: lane._stages == {})
    assert [stage.outcome for stage in stages] == ["acknowledged", "acknowledged"]


def test_each_mark_is_published_once(started, faults):
    """Whatever was retried, lost or resolved on the way."""
    log, topic = started(batch_size_threshold=1)
    faults.lose(".arrow", times=2)
    faults.fail(".arrow", times=2)
    with log.subscribe() as events:
        for _ in range(6):
            topic.submit(b"x")
        topic.submit(b"last").shipped(20)
        last = topic.marks()[0].shipped
        seen = []
        while sum(event.records for event in seen) < last - 1:
            event = events.get(20)
            seen += [event] if event.kind == "shipped" else []
    spans = [(event.first_seq, event.last_seq) for event in seen]
    assert len(spans) == len(set(spans))
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))


# -- 6. failures --------------------------------------------------------------------------------------------


def test_a_failed_batch_is_sent_again_with_the_same_bytes_under_the_same_name(started, faults, monkeypatch):
    """Whether it arrived and the reply was lost, or it never did."""
    _, topic = started()
    tried: list[tuple[str, bytes]] = []
    create = FlakyStore.create

    def remember(self: FlakyStore, key: str, body: Body) -> None:
        tried.append((key, body.sha256))
        create(self, key, body)

    monkeypatch.setattr(FlakyStore, "create", remember)
    lost = faults.lose(".arrow", times=1)
    topic.append(b"2", durability="shipped")
    faults.fail(".arrow", times=2)
    topic.append(b"3", durability="shipped")
    assert lost.times == 0
    assert sent(faults) == [(1, 1), (2, 2), (2, 2), (3, 3), (3, 3), (3, 3)]
    assert len(set(tried)) == len({key for key, _ in tried}) == 2


def test_backoff_delays_only_the_batch_that_failed(started, faults):
    """Those behind it arrive meanwhile; they count when it has."""
    log, topic = started(batch_size_threshold=1, retry_base_delay_ms=2000, retry_delay_max_ms=2000)
    failing = faults.fail(".arrow", times=1)
    late = topic.submit(b"late")
    faults.wait(lambda: failing.times == 0)
    for _ in range(3):
        topic.append(b"x")
    faults.wait(lambda: sum(r.verb == "create" and ".arrow" in r.key for r in faults.done) == 4)
    assert mark(log).shipped == 1
    assert late.shipped(20).offset == 1


def test_after_the_last_attempt_the_failure_is_escalated_and_tried_on(started, faults, lines):
    _, topic = started(max_retry_attempts=2)
    faults.fail(".arrow", times=5)
    topic.append(b"2", durability="shipped")
    assert len(lines("shipping_alarm")) == 1
    assert sent(faults).count((2, 2)) == 6


def test_a_store_that_asks_to_be_left_alone_is(started, faults):
    """`Retry-After` is the least that is waited."""
    _, topic = started()
    rule = faults.fail(".arrow", times=1)
    rule.error = lambda key: StoreUnavailable("slow down", cause="slow_down", retry_after=0.3)
    began = time.monotonic()
    topic.append(b"2", durability="shipped")
    assert time.monotonic() - began >= 0.3


# -- backpressure -------------------------------------------------------------------------------------------


def test_delays_of_one_batch_become_backpressure_at_the_limit(started, faults, root):
    """Commits wait in the journal, not in memory, and go in few batches when the store is back."""
    log, topic = started(max_in_flight_requests=1)
    failing = faults.fail(".arrow")
    topic.append(b"2")
    wait_for(lambda: sent(faults).count((2, 2)) > 2)
    for _ in range(50):
        topic.append(b"x")
    assert set(sent(faults)) == {(1, 1), (2, 2)}
    assert len(log._store.shipper._lane._stages) == 1
    failing.end()
    topic.submit(b"last").shipped(20)
    assert len(root.batches()) <= 4
    assert sum(entry.count for batch in root.batches() for entry in batch.entries) == 53


# -- shutdown -----------------------------------------------------------------------------------------------


def test_shutdown_finishes_all_that_is_in_flight(started, faults, root):
    """Including what fails on the way; then the thread ends, and its connections are closed."""
    log, topic = started(batch_size_threshold=1)
    gates = [faults.hold(".arrow", times=1) for _ in range(2)]
    for gate in gates:
        topic.append(b"x")
        assert gate.arrived.wait(20)
    faults.fail(".arrow", times=2)
    closing = threading.Thread(target=log.close)
    closing.start()
    for gate in reversed(gates):
        gate.open()
    closing.join(20)
    assert not closing.is_alive()
    assert not log._store.shipper._thread.is_alive()
    assert sum(entry.count for batch in root.batches() for entry in batch.entries) == 3
    assert log.unshipped() == ()


def test_shutdown_releases_every_batch(started, faults, lines, monkeypatch):
    """Also those that did not arrive in time: abandoned, not forgotten, and not counted."""
    monkeypatch.setattr(session, "_SWEEP_AT_END_S", 0.1)
    log, topic = started(batch_size_threshold=1, drain_timeout_ms=100)
    gate = faults.hold(".arrow")
    topic.append(b"x")
    assert gate.arrived.wait(20)
    stages = [stage for stage, _ in log._store.shipper._lane._stages.values()]
    log.close()
    assert [stage.outcome for stage in stages] == ["abandoned"]
    assert mark_of(log) == 1
    gc.collect()
    assert lines("stage_leaked") == []


def mark_of(log: Log) -> int:
    """The mark of a closed log."""
    return log._journal.topics["orders"][0].shipped
