"""The time tree: the same segments as a look at every row, for a handful of rows."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid
from holdfast.segments.manifest.time_tree import TimeNode, children, combine, overlapping, span_of

pytestmark = pytest.mark.unit


class Manifest:
    """Rows as a writer makes them, one by one, and a count of what is fetched."""

    def __init__(self, ranges):
        self.rows: list[TimeNode] = []
        self.fetched: list[int] = []
        for number, own in enumerate(ranges):
            below = [(self.rows[child].low, self.rows[child].high) for child in children(number)]
            self.rows.append(TimeNode(number, *own, *combine(own, below)))

    def fetch(self, number: int) -> TimeNode:
        self.fetched.append(number)
        return self.rows[number]

    def brute(self, first, last, since, until):
        window = range(-30 if since is None else since, 31 if until is None else until + 1)
        return [
            row for row in self.rows[first : last + 1] if any(row.time_min <= time <= row.time_max for time in window)
        ]


@pytest.mark.parametrize("number", range(300))
def test_a_row_and_its_children_cover_the_span_exactly(number):
    covered = [number]
    for child in children(number):
        covered += range(child - span_of(child) + 1, child + 1)
    assert sorted(covered) == list(range(number - span_of(number) + 1, number + 1))


def test_spans_are_those_of_complete_trees_in_post_order():
    assert [span_of(n) for n in range(15)] == [1, 1, 3, 1, 1, 3, 7, 1, 1, 3, 1, 1, 3, 7, 15]
    assert [span_of(2**40 + n) for n in (-3, -2, -1, 0, 1)] == [2**39 - 1, 2**40 - 1, 1, 1, 3]


def test_a_row_joins_the_two_newest_trees_of_one_size_and_is_a_leaf_otherwise():
    trees: list[int] = []
    for number in range(5000):
        joins = len(trees) > 1 and span_of(trees[-1]) == span_of(trees[-2])
        below = (trees.pop(), trees.pop()) if joins else ()
        assert children(number) == below
        assert span_of(number) == 1 + sum(map(span_of, below))
        trees.append(number)


def test_children_come_newest_first():
    assert children(0) == ()
    assert children(1) == ()
    assert children(2) == (1, 0)
    assert children(6) == (5, 2)
    assert children(2**40 - 2) == (2**40 - 3, 2**39 - 2)


times = st.integers(-20, 20)
own_range = st.tuples(times, times).map(lambda pair: (min(pair), max(pair)))
point = times.map(lambda time: (time, time))
# Adversarial: mostly nothing, with a few segments that reach over everything.
spiky = st.sampled_from([(0, 0)] * 8 + [(-20, 20), (-20, -20), (20, 20)])
manifests = st.one_of(st.lists(kind, max_size=70) for kind in (own_range, point, spiky))
ends = st.none() | st.integers(-22, 22)


@given(manifests)
def test_a_row_holds_the_range_of_all_that_it_covers(ranges):
    for row in Manifest(ranges).rows:
        covered = ranges[row.number - span_of(row.number) + 1 : row.number + 1]
        assert (row.low, row.high) == (min(low for low, _ in covered), max(high for _, high in covered))


@given(manifests, ends, ends, st.booleans(), st.data())
def test_a_search_finds_what_a_look_at_every_row_finds(ranges, since, until, reverse, data):
    """Any part of the manifest, any window (also an empty one), in either direction, no row twice, none outside."""
    manifest = Manifest(ranges)
    last = data.draw(st.integers(-1, len(ranges) - 1))
    first = data.draw(st.integers(0, last + 1))
    found = list(overlapping(first, last, since, until, manifest.fetch, reverse=reverse))
    brute = manifest.brute(first, last, since, until)
    assert found == (brute[::-1] if reverse else brute)
    assert len(set(manifest.fetched)) == len(manifest.fetched)
    assert all(first <= number <= last for number in manifest.fetched)


def test_both_ends_of_the_window_belong_to_it():
    manifest = Manifest([(0, 9), (10, 19), (20, 29)])
    assert [n.number for n in overlapping(0, 2, 9, 10, manifest.fetch)] == [0, 1]
    assert [n.number for n in overlapping(0, 2, 19, 20, manifest.fetch)] == [1, 2]


def test_nothing_is_fetched_before_it_is_asked_for():
    manifest = Manifest([(0, 9)] * 100)
    search = overlapping(0, 99, None, None, manifest.fetch)
    assert manifest.fetched == []
    next(search)
    assert len(manifest.fetched) <= 8


def test_segments_before_the_first_are_never_fetched():
    manifest = Manifest([(0, 9)] * 100)
    assert len(list(overlapping(60, 70, None, None, manifest.fetch))) == 11
    assert min(manifest.fetched) >= 60


def test_a_negative_number_is_a_wrong_call():
    with pytest.raises(Invalid, match="first"):
        overlapping(-1, 5, None, None, Manifest([]).fetch)


def test_another_row_than_the_wanted_one_is_damage():
    with pytest.raises(Corrupt, match="another row"):
        list(overlapping(0, 3, None, None, lambda number: TimeNode(number + 1, 0, 0, 0, 0)))


@pytest.mark.parametrize(
    ("number", "change"),
    [(6, {"low": 5}), (6, {"high": 65}), (5, {"low": -1}), (5, {"low": 35}), (2, {"high": 999}), (4, {"time_min": 55})],
)
def test_a_range_that_contradicts_another_is_damage(number, change):
    """Rows 0 to 6, one tree, hold times 0–9, 10–19 and so on; one of them is changed."""
    manifest = Manifest([(10 * n, 10 * n + 9) for n in range(7)])
    changed = manifest.rows[number] = manifest.rows[number]._replace(**change)
    assert changed.number == number
    with pytest.raises(Corrupt, match="contradicts"):
        list(overlapping(0, 6, None, None, manifest.fetch))


# A million segments, their rows computed when they are asked for: segment n holds times 10 n to 10 n + 9.

MILLION = 1_000_000


class Endless:
    def __init__(self) -> None:
        self.count = 0

    def fetch(self, number: int) -> TimeNode:
        self.count += 1
        low = 10 * (number - span_of(number) + 1)
        return TimeNode(number, 10 * number, 10 * number + 9, low, 10 * number + 9)


@pytest.mark.parametrize("target", [0, 1, 2**19 - 2, 2**19 - 1, 2**19, 333_333, 654_321, MILLION - 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_narrow_window_in_a_million_segments_costs_under_a_hundred_rows(target, reverse):
    manifest = Endless()
    found = overlapping(0, MILLION - 1, 10 * target + 3, 10 * target + 4, manifest.fetch, reverse=reverse)
    assert [node.number for node in found] == [target]
    assert manifest.count < 100


segment_of_a_million = st.integers(0, MILLION - 1)


@given(segment_of_a_million, segment_of_a_million, segment_of_a_million, st.booleans())
def test_a_narrow_window_in_any_part_of_a_million_segments_costs_under_a_hundred_rows(one, other, target, reverse):
    """Also where the segment of the window is not in the part, but below the same rows."""
    first, last = sorted((one, other))
    manifest = Endless()
    found = overlapping(first, last, 10 * target + 3, 10 * target + 4, manifest.fetch, reverse=reverse)
    assert [node.number for node in found] == ([target] if first <= target <= last else [])
    assert manifest.count < 100


@pytest.mark.parametrize("window", [(None, -1), (10 * MILLION, None), (-3, -2), (5, 4)])
def test_a_window_without_segments_costs_only_a_logarithm(window):
    manifest = Endless()
    assert list(overlapping(0, MILLION - 1, *window, manifest.fetch)) == []
    assert manifest.count <= 20


def test_a_wide_window_costs_little_more_than_its_segments():
    manifest = Endless()
    found = list(overlapping(0, MILLION - 1, 10 * 300_000, 10 * 310_000 - 1, manifest.fetch))
    assert len(found) == 10_000
    assert manifest.count < 10_000 + 100


def test_a_caller_who_stops_early_fetches_little():
    for reverse in (False, True):
        manifest = Endless()
        found = list(islice(overlapping(0, MILLION - 1, None, None, manifest.fetch, reverse=reverse), 5))
        assert [n.number for n in found] == ([MILLION - 1 - i for i in range(5)] if reverse else list(range(5)))
        assert manifest.count < 30
