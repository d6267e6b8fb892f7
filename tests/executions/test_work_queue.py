"""Which execution is next: priority, then age; not before its time; only what the worker can run."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Invalid
from holdfast.execution.journal.entries import ExecutionRow
from holdfast.execution.work.rate_limit import RateLimit
from holdfast.execution.work.work_queue import WorkQueue

pytestmark = pytest.mark.unit

rows_st = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(-2, 2), st.integers(0, 5)),
    max_size=20,
)


def row(number: int, queue: str, kind: str, priority: int, due: int) -> ExecutionRow:
    return ExecutionRow(
        number.to_bytes(16, "big"), kind, "queued", number, 0, queue=queue, priority=priority, due_us=due
    )


@given(rows_st, st.sets(st.sampled_from(["a", "b"])), st.sets(st.sampled_from(["x", "y"])))
def test_the_queue_is_a_sorted_list(found, queues, kinds):
    """At every time what is taken is what sorting all due rows by priority and age would give first."""
    rows = {UUID(int=n): row(n, *one) for n, one in enumerate(found)}
    queue = WorkQueue(rows.get)
    for one in rows.values():
        queue.add(one)
        queue.add(one)  # twice is no harm: the worker that takes it changes its row
    left = [one for one in rows.values() if one.queue in queues and one.kind in kinds]
    for now in range(7):
        due = sorted((one for one in left if one.due_us <= now), key=lambda one: (-one.priority, one.created_us))
        for expected in due:
            taken = queue.take(queues, kinds, now)
            assert taken == expected
            rows.pop(taken.execution)
        assert queue.take(queues, kinds, now) is None
        left = [one for one in left if one not in due]
        later = min((one.due_us for one in left), default=None)
        assert queue.due_us(queues, kinds) == later


def test_what_was_put_off_waits_for_its_new_time():
    """A row that changed since it was added is taken as it is now."""
    rows = {UUID(int=1): row(1, "a", "x", 0, 5)}
    queue = WorkQueue(rows.get)
    queue.add(row(1, "a", "x", 0, 0))
    assert queue.take("a", "x", 1) is None
    assert queue.due_us("a", "x") == 5
    assert queue.take("a", "x", 5) is not None


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 2), max_size=50))
def test_a_rate_holds_over_any_stretch(rate, pauses):
    """Never more beginnings than one burst and the rate allow; waiting as long as it says is always enough."""
    limit, now, begun = RateLimit(rate), 0.0, 0
    for pause in pauses:
        now += pause
        while limit.take(now):
            begun += 1
        assert begun <= max(1.0, rate) + rate * now + 1e-6
        now += limit.wait(now) + 1e-9
        assert limit.take(now)
        begun += 1


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast", 1e9])
def test_rates_that_mean_nothing_are_refused(rate):
    """With a remedy."""
    with pytest.raises(Invalid):
        RateLimit(rate)
