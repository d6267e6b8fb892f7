"""When a batch is sent: every transition of the loop, and no state in which the loop spins or sleeps too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.shipping.lanes.batching import NEVER_SENT, BatchRule, SendBatch, WaitForCommits, WaitForReply
from holdfast.shipping.shipping_settings import ShippingSettings

pytestmark = pytest.mark.unit

SETTINGS = ShippingSettings(batch_timeout_ms=5, batch_size_threshold=10, batch_bytes_max=1000, max_in_flight_requests=3)
BATCHING = BatchRule(SETTINGS)
SENT = 100.0
DUE = SENT + 0.005


def decide(*, now=SENT, commits=0, size=0, in_flight=0, last_sent=SENT):
    return BATCHING.decide(now, commits, size, in_flight, last_sent)


def test_nothing_in_flight_and_something_pending_is_sent_at_once():
    """The first commit goes without waiting for company, however recent the last send."""
    assert decide(now=SENT, commits=1, size=1, in_flight=0) == SendBatch()
    assert isinstance(decide(now=SENT, commits=1, size=1, in_flight=0), SendBatch)


def test_the_very_first_commit_is_sent_at_once():
    """Before anything was sent there is no timeout to wait for."""
    assert isinstance(decide(commits=1, size=1, last_sent=NEVER_SENT), SendBatch)
    assert isinstance(decide(commits=1, size=1, in_flight=1, last_sent=NEVER_SENT), SendBatch)


def test_commits_are_collected_while_requests_are_in_flight():
    """With a request under way, commits wait for the timeout or a threshold."""
    assert decide(commits=1, size=1, in_flight=1) == WaitForCommits(until=DUE, commits=10, bytes=1000)


def test_the_timeout_since_the_last_send_sends():
    """The timeout counts from the last send, to the moment."""
    assert isinstance(decide(now=DUE - 1e-6, commits=1, size=1, in_flight=1), WaitForCommits)
    assert isinstance(decide(now=DUE, commits=1, size=1, in_flight=1), SendBatch)
    assert isinstance(decide(now=DUE + 3600, commits=1, size=1, in_flight=1), SendBatch)


def test_a_commit_long_after_the_last_send_does_not_wait():
    """The timeout does not begin anew with the commit."""
    assert isinstance(decide(now=SENT + 1, commits=1, size=1, in_flight=2), SendBatch)


def test_the_threshold_of_commits_sends():
    """So many commits are enough, before the timeout."""
    assert isinstance(decide(commits=9, size=9, in_flight=1), WaitForCommits)
    assert isinstance(decide(commits=10, size=10, in_flight=1), SendBatch)


def test_the_threshold_of_bytes_sends():
    """So many bytes are enough, before the timeout."""
    assert isinstance(decide(commits=1, size=999, in_flight=1), WaitForCommits)
    assert isinstance(decide(commits=1, size=1000, in_flight=1), SendBatch)


@pytest.mark.parametrize("commits", [0, 1, 10_000])
@pytest.mark.parametrize("now", [SENT, DUE, SENT + 3600])
def test_at_max_in_flight_only_a_reply_helps(commits, now):
    """Flow control comes before every other reason to send."""
    assert isinstance(decide(now=now, commits=commits, size=commits * 1000, in_flight=2), SendBatch | WaitForCommits)
    assert isinstance(decide(now=now, commits=commits, size=commits * 1000, in_flight=3), WaitForReply)
    assert isinstance(decide(now=now, commits=commits, size=commits * 1000, in_flight=4), WaitForReply)


def test_a_reply_at_max_in_flight_lets_the_next_batch_go():
    """What waited behind flow control beyond the timeout is sent as soon as one reply is there."""
    assert isinstance(decide(now=DUE, commits=5, size=5, in_flight=3), WaitForReply)
    assert isinstance(decide(now=DUE, commits=5, size=5, in_flight=2), SendBatch)


def test_idle_is_blocked_without_a_timer():
    """Nothing pending and nothing in flight: sleep until a commit comes."""
    assert decide(now=SENT + 3600) == WaitForCommits(until=None, commits=1, bytes=1)


def test_nothing_pending_but_in_flight_waits_without_a_timer():
    """There is nothing to send when the timeout ends, so no timer runs; any commit wakes."""
    assert decide(now=SENT, in_flight=1) == WaitForCommits(until=None, commits=1, bytes=1)


def test_the_last_reply_ends_collecting():
    """When nothing is in flight any more, what was collected goes at once."""
    assert isinstance(decide(commits=1, size=1, in_flight=1), WaitForCommits)
    assert isinstance(decide(commits=1, size=1, in_flight=0), SendBatch)


numbers = st.integers(0, 40)
times = st.floats(0, 1e7, allow_nan=False)
states = st.tuples(times, numbers, st.integers(0, 4000), st.integers(0, 5), times | st.just(NEVER_SENT))


@given(states)
def test_it_sends_only_what_is_there_and_only_where_there_is_room(state):
    """Never a send without a commit or beyond the limit of requests."""
    _, commits, _, in_flight, _ = state
    if isinstance(BATCHING.decide(*state), SendBatch):
        assert commits > 0
        assert in_flight < SETTINGS.max_in_flight_requests


@given(states)
def test_a_wait_is_never_over_before_it_began(state):
    """The loop cannot spin: whatever it waits for has not happened yet."""
    now, commits, size, _, _ = state
    decision = BATCHING.decide(*state)
    if isinstance(decision, WaitForCommits) and commits:
        assert not decision.is_over(now, commits, size)


@given(states, st.floats(0, 10), numbers, st.integers(0, 4000))
def test_a_wait_ends_exactly_when_the_decision_changes(state, later, more, more_bytes):
    """While the wait is not over the answer stays; once it is, the batch goes."""
    now, commits, size, in_flight, last_sent = state
    waiting = BATCHING.decide(*state)
    if not isinstance(waiting, WaitForCommits) or not commits:
        return
    then = (now + later, commits + more, size + more_bytes)
    decision = BATCHING.decide(*then, in_flight, last_sent)
    assert isinstance(decision, SendBatch) == waiting.is_over(*then)


@given(states)
def test_the_timer_is_exact(state):
    """Waking at `until` itself sends; rounding never costs another turn."""
    _, commits, size, in_flight, last_sent = state
    waiting = BATCHING.decide(*state)
    if isinstance(waiting, WaitForCommits) and waiting.until is not None:
        assert isinstance(BATCHING.decide(waiting.until, commits, size, in_flight, last_sent), SendBatch)


def test_where_idle_does_not_send_the_timeout_alone_sets_the_rate():
    """With `send_when_idle` off nothing in flight is no reason to send: what a store's bill depends on."""
    rule = BatchRule(ShippingSettings(send_when_idle=False, batch_timeout_ms=250))
    assert rule.decide(10.1, 1, 1, 0, 10.0) == WaitForCommits(10.25, 1000, 8 * 2**20)
    assert rule.decide(10.25, 1, 1, 0, 10.0) == SendBatch()
    assert rule.decide(10.1, 1000, 1, 0, 10.0) == SendBatch()
    assert rule.decide(10.0, 1, 1, 0, NEVER_SENT) == SendBatch()
