"""Retention's plan: only prefixes, never beyond the floor, never more than the limits ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.segment_data import head

from holdfast import Invalid
from holdfast.model.control_rows import SegmentRow
from holdfast.model.segment import Segment, SegmentFacts
from holdfast.segments.retention import retention_plan
from holdfast.segments.retention.retention_plan import Budget, LiveTotals, Policy, Removal, RetentionPlan, budget

pytestmark = pytest.mark.unit

EVERYTHING = 2**62


def expire(candidates: list[SegmentRow], policy: Policy, now_us: int, floor_offset: int) -> RetentionPlan:
    return retention_plan.expire(candidates, LiveTotals.of(candidates), policy, now_us, floor_offset)


def segment(number: int, first: int, rows: int, size: int, *, time_max: int = 0, sealed_us: int = 0) -> SegmentRow:
    facts = SegmentFacts(
        rows=rows,
        size=size,
        time_min=time_max,
        time_max=time_max,
        sha256=bytes(32),
        content=bytes(32),
        footer=bytes(16),
        key_id="",
    )
    made = Segment(head=head(first, number=number), facts=facts)
    return SegmentRow.of(made, partition_id=1, sealed_us=sealed_us)


def segments(*shapes: tuple[int, int, int]) -> list[SegmentRow]:
    """Segments of (rows, bytes, sealed)."""
    made, first = [], 0
    for number, (rows, size, sealed) in enumerate(shapes):
        made.append(segment(number, first, rows, size, sealed_us=sealed))
        first += rows
    return made


def numbers(planned: RetentionPlan) -> list[int]:
    return [removal.segment.number for removal in planned.removals]


def reasons(planned: RetentionPlan) -> list[str]:
    return [removal.why for removal in planned.removals]


FOUR = segments((10, 100, 1_000), (10, 100, 2_000), (10, 100, 3_000), (10, 100, 4_000))


def test_without_limits_nothing_goes():
    assert expire(FOUR, Policy(), now_us=EVERYTHING, floor_offset=EVERYTHING) == RetentionPlan()


def test_no_segments_no_plan():
    assert expire([], Policy(1, 1, 1), now_us=EVERYTHING, floor_offset=EVERYTHING) == RetentionPlan()


@pytest.mark.parametrize(("limit", "gone"), [(400, 0), (301, 0), (300, 1), (299, 1), (200, 2), (100, 3), (1, 3)])
def test_by_bytes_the_oldest_go_while_the_rest_holds_the_limit(limit, gone):
    planned = expire(FOUR, Policy(bytes_max=limit), 0, EVERYTHING)
    assert numbers(planned) == list(range(gone))
    assert set(reasons(planned)) <= {"bytes"}
    assert planned.bytes_freed == 100 * gone


@pytest.mark.parametrize(("limit", "gone"), [(40, 0), (31, 0), (30, 1), (11, 2), (10, 3), (1, 3)])
def test_by_count_never_fewer_records_than_the_limit_are_left(limit, gone):
    planned = expire(FOUR, Policy(records_max=limit), 0, EVERYTHING)
    assert numbers(planned) == list(range(gone))
    assert set(reasons(planned)) <= {"count"}


def test_records_are_counted_by_rows_and_not_by_numbers_or_offsets():
    """A hole in the numbering or in the offsets is no record."""
    sparse = [segment(0, 0, 1, 1), segment(500, 900_000, 1, 1)]
    assert numbers(expire(sparse, Policy(records_max=2), 0, EVERYTHING)) == []
    assert numbers(expire(sparse, Policy(records_max=1), 0, EVERYTHING)) == [0]


def test_by_age_a_segment_goes_when_its_seal_is_older_than_the_limit():
    policy = Policy(age_max_us=500)
    assert numbers(expire(FOUR, policy, 1_500, EVERYTHING)) == []
    assert numbers(expire(FOUR, policy, 1_501, EVERYTHING)) == [0]
    assert reasons(expire(FOUR, policy, 2_501, EVERYTHING)) == ["age", "age"]


@pytest.mark.parametrize("time_max", [-(2**63), 2**63 - 1])
def test_the_times_that_users_give_neither_keep_nor_remove_a_segment(time_max):
    candidate = segment(0, 0, 10, 100, time_max=time_max, sealed_us=1_000)
    assert numbers(expire([candidate], Policy(age_max_us=500), 1_400, EVERYTHING)) == []
    assert numbers(expire([candidate], Policy(age_max_us=500), 1_600, EVERYTHING)) == [0]


def test_the_newest_segment_may_go_too():
    assert numbers(expire(FOUR, Policy(age_max_us=1), EVERYTHING, EVERYTHING)) == [0, 1, 2, 3]


def test_an_old_segment_behind_a_young_one_stays():
    back = segments((10, 100, 9_000), (10, 100, 1_000))
    assert numbers(expire(back, Policy(age_max_us=500), 5_000, EVERYTHING)) == []


@pytest.mark.parametrize(("floor", "gone"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (40, 4)])
def test_nothing_that_is_not_settled_goes(floor, gone):
    assert numbers(expire(FOUR, Policy(age_max_us=1), EVERYTHING, floor)) == list(range(gone))
    freed = budget({("t", 0): FOUR}, EVERYTHING, {("t", 0): floor})
    assert len(freed.removals) == gone


def test_what_follows_an_unsettled_segment_stays_even_if_its_offsets_are_low():
    """A damaged manifest may overlap; a prefix is a prefix all the same."""
    crossed = [segment(0, 100, 10, 1), segment(1, 0, 10, 1)]
    assert expire(crossed, Policy(age_max_us=1), EVERYTHING, 50) == RetentionPlan()
    assert budget({("t", 0): crossed}, 1, {("t", 0): 50}).removals == ()


def test_each_removal_says_why():
    planned = expire(FOUR, Policy(bytes_max=300, age_max_us=500, records_max=10), 2_600, EVERYTHING)
    assert reasons(planned) == ["bytes", "age", "count"]
    assert planned.removals[0] == Removal(FOUR[0], "bytes")


@pytest.mark.parametrize("name", Policy.__struct_fields__)
def test_limits_must_be_above_zero(name):
    for value in (0, -1):
        with pytest.raises(Invalid, match=name) as caught:
            Policy(**{name: value})
        assert caught.value.hint


def test_all_wrong_limits_are_reported_at_once():
    with pytest.raises(Invalid, match=r"bytes_max.*age_max_us.*records_max"):
        Policy(0, 0, 0)


def test_segments_out_of_order_are_a_wrong_call():
    for wrong in (FOUR[::-1], [FOUR[0], FOUR[0]]):
        with pytest.raises(Invalid, match="order"):
            expire(wrong, Policy(age_max_us=1), EVERYTHING, EVERYTHING)
        with pytest.raises(Invalid, match="order"):
            budget({("t", 0): wrong}, EVERYTHING, {("t", 0): EVERYTHING})


# The budget.


def test_a_log_is_over_its_budget_by_what_it_uses_beyond_the_limit_less_the_headroom():
    assert Budget.over(1000, 1000) == 0
    assert Budget.over(1001, 1000) == 1
    assert Budget.over(900, 1000, 100) == 0
    assert Budget.over(901, 1000, 100) == 1
    assert Budget.over(10**18, None, 100) == 0


@pytest.mark.parametrize("headroom", [-1, 1000, 1001])
def test_a_headroom_that_would_remove_everything_is_refused(headroom):
    with pytest.raises(Invalid, match="headroom"):
        Budget.over(0, 1000, headroom)


def test_the_budget_takes_the_oldest_segments_of_all_partitions():
    partitions = {
        ("a", 0): segments((1, 10, 5), (1, 10, 30)),
        ("a", 1): segments((1, 10, 1), (1, 10, 20)),
        ("b", 0): segments((1, 10, 10)),
    }
    plan = budget(partitions, 35, dict.fromkeys(partitions, EVERYTHING))
    taken = [(key, removal.segment.number) for key, removal in plan.removals]
    assert taken == [(("a", 1), 0), (("a", 0), 0), (("b", 0), 0), (("a", 1), 1)]
    assert {removal.why for _, removal in plan.removals} == {"budget"}
    assert (plan.bytes_freed, plan.bytes_short) == (40, 0)


def test_equal_ages_go_by_key():
    same = segments((1, 10, 5))
    plan = budget({("b", 0): same, ("a", 1): same, ("a", 0): same}, 15, dict.fromkeys([("a", 0), ("a", 1)], 1))
    assert [key for key, _ in plan.removals] == [("a", 0), ("a", 1)]


def test_a_budget_that_cannot_be_met_says_by_how_much():
    plan = budget({("t", 0): FOUR}, 500, {("t", 0): 20})
    assert (plan.bytes_freed, plan.bytes_short) == (200, 300)


def test_a_partition_without_a_floor_loses_nothing():
    assert budget({("t", 0): FOUR}, 100, {}) == Budget(bytes_short=100)


@pytest.mark.parametrize("over", [0, -5])
def test_a_log_within_its_budget_loses_nothing(over):
    assert budget({("t", 0): FOUR}, over, {("t", 0): EVERYTHING}) == Budget()


# Any segments, any limits.

shapes = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50), st.integers(0, 100)), max_size=12).map(
    lambda found: segments(*found)
)
limit = st.none() | st.integers(1, 300)
policies = st.builds(Policy, limit, limit, limit)
moments = st.integers(0, 300)
floors = st.integers(0, 260)


def looser(policy: Policy, extra: tuple[int | None, int | None, int | None]) -> Policy:
    def raised(value, by):
        return None if value is None or by is None else value + by

    return Policy(*(raised(getattr(policy, n), by) for n, by in zip(Policy.__struct_fields__, extra, strict=True)))


@given(shapes, policies, moments, floors)
def test_what_goes_is_a_settled_prefix(candidates, policy, now, floor):
    planned = expire(candidates, policy, now, floor)
    gone = [removal.segment for removal in planned.removals]
    assert gone == candidates[: len(gone)]
    assert all(segment.end <= floor for segment in gone)


@given(shapes, policies, moments, floors)
def test_every_removal_is_asked_for_and_nothing_more_may_go(candidates, policy, now, floor):
    """Checked against the limits anew, from sums over what is left."""
    planned = expire(candidates, policy, now, floor)

    def asked(place: int) -> set[str]:
        segment, rest = candidates[place], candidates[place + 1 :]
        return {
            why
            for why, holds in {
                "bytes": policy.bytes_max is not None and sum(s.size for s in rest) >= policy.bytes_max,
                "age": policy.age_max_us is not None and now - segment.sealed_us > policy.age_max_us,
                "count": policy.records_max is not None and sum(s.rows for s in rest) >= policy.records_max,
            }.items()
            if holds
        }

    assert all(removal.why in asked(place) for place, removal in enumerate(planned.removals))
    stop = len(planned.removals)
    if stop < len(candidates) and candidates[stop].end <= floor:
        assert not asked(stop)


@given(shapes, policies, st.tuples(limit, limit, limit), moments, floors, st.integers(0, 50))
def test_looser_limits_a_lower_floor_or_an_earlier_moment_never_remove_more(
    candidates, policy, extra, now, floor, less
):
    strict = numbers(expire(candidates, policy, now, floor))
    for milder in (
        expire(candidates, looser(policy, extra), now, floor),
        expire(candidates, policy, now - less, floor),
        expire(candidates, policy, now, floor - less),
    ):
        assert numbers(milder) == strict[: len(milder.removals)]


keys = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))
logs = st.dictionaries(keys, st.tuples(shapes, floors), max_size=5)


@given(logs, st.integers(0, 1_000))
def test_the_budget_frees_what_is_asked_or_everything_allowed(log, over):
    partitions = {key: candidates for key, (candidates, _) in log.items()}
    floors = {key: floor for key, (_, floor) in log.items()}
    plan = budget(partitions, over, floors)
    allowed = sum(s.size for key, found in partitions.items() for s in found if s.end <= floors[key])
    freed = [removal.segment.size for _, removal in plan.removals]
    assert plan.bytes_freed == sum(freed)
    assert plan.bytes_freed >= over or plan.bytes_freed == allowed
    assert sum(freed[:-1]) < over or not freed
    assert plan.bytes_short == max(0, over - plan.bytes_freed)


@given(logs, st.integers(0, 1_000), st.randoms())
def test_the_budget_takes_settled_prefixes_oldest_first_in_one_order(log, over, random):
    partitions = {key: candidates for key, (candidates, _) in log.items()}
    floors = {key: floor for key, (_, floor) in log.items()}
    plan = budget(partitions, over, floors)
    shuffled = list(partitions)
    random.shuffle(shuffled)
    assert budget({key: partitions[key] for key in shuffled}, over, floors) == plan
    left = {key: list(found) for key, found in partitions.items()}
    for key, removal in plan.removals:
        heads = [
            (found[0].sealed_us, other) for other, found in left.items() if found and found[0].end <= floors[other]
        ]
        assert (removal.segment.sealed_us, key) == min(heads)
        assert left[key].pop(0) == removal.segment
