"""What the names in a store's tail say: floors, holes, overlaps, adoptions; in any order, by anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.root.tail_listing import TailListing, inherit
from holdfast.store import layout
from holdfast.store.port import ObjectInfo

pytestmark = pytest.mark.unit

Name = tuple[int, int, int]


def listing(batches: list[Name] = [], floors: list[tuple[int, int]] = [], adopted: list[tuple[int, int]] = []):  # noqa: B006
    keys = [layout.batch_key(*name) for name in batches]
    keys += [layout.floor_key(*name) for name in floors]
    keys += [layout.adopted_key(*name) for name in adopted]
    return [ObjectInfo(key, 1, 0) for key in sorted(keys)]


def names(found: TailListing) -> list[Name]:
    return [tuple(name) for _, name in found.batches]


def test_an_empty_tail_begins_at_the_beginning():
    assert inherit([]) == TailListing(0, 0, (), (), (), ())


def test_batches_count_as_far_as_they_are_connected():
    found = inherit(listing([(1, 1, 3), (1, 4, 4), (1, 6, 9), (1, 10, 10)]))
    assert (found.frontier, names(found)) == (4, [(1, 1, 3), (1, 4, 4)])
    assert found.beyond == (layout.batch_key(1, 6, 9), layout.batch_key(1, 10, 10))


def test_a_first_batch_that_is_missing_hides_all_others():
    found = inherit(listing([(1, 2, 3)]))
    assert (found.frontier, found.batches, len(found.beyond)) == (0, (), 1)


def test_a_floor_stands_for_all_that_was_removed_below_it():
    found = inherit(listing([(1, 8, 9), (2, 10, 12)], floors=[(1, 3), (2, 7)]))
    assert (found.floor, found.frontier) == (7, 12)
    assert found.floors == (layout.floor_key(1, 3), layout.floor_key(2, 7))


def test_a_floor_alone_is_a_frontier():
    assert inherit(listing(floors=[(1, 7)])).frontier == 7


def test_epochs_may_overlap_and_fill_each_others_holes():
    found = inherit(listing([(1, 1, 3), (1, 7, 9), (2, 4, 8), (2, 9, 12)]))
    assert (found.frontier, names(found)) == (12, [(1, 1, 3), (2, 4, 8), (1, 7, 9), (2, 9, 12)])


def test_a_takeover_cuts_older_batches_where_it_says():
    """One of them in the middle; what is beyond is written anew by the new owner, under the same numbers."""
    found = inherit(listing([(1, 1, 3), (1, 4, 8), (1, 9, 9), (3, 6, 7)], adopted=[(2, 5)]))
    assert (found.frontier, names(found)) == (7, [(1, 1, 3), (1, 4, 5), (3, 6, 7)])
    assert found.beyond == (layout.batch_key(1, 9, 9),)
    assert found.adopted == ((2, 5),)


def test_a_takeover_does_not_cut_batches_of_its_own_epoch_or_later_ones():
    found = inherit(listing([(2, 1, 3), (3, 4, 8)], adopted=[(2, 0)]))
    assert found.frontier == 8


def test_of_several_takeovers_the_lowest_later_one_is_the_limit():
    found = inherit(listing([(1, 1, 20), (4, 11, 30), (6, 26, 40)], adopted=[(3, 10), (5, 25)]))
    assert names(found) == [(1, 1, 10), (4, 11, 25), (6, 26, 40)]
    assert found.frontier == 40


def test_a_takeover_that_was_overtaken_and_speaks_late_takes_nothing_from_its_successor():
    """2 claimed and looked early, 3 looked later and spoke first, in both names; then 2 says less."""
    batches = [(1, 1, 10), (4, 11, 12)]
    spoken = inherit(listing(batches, adopted=[(2, 10), (3, 10)]))
    late = inherit(listing(batches, adopted=[(2, 4), (2, 10), (3, 10)]))
    assert (spoken.frontier, spoken.batches) == (late.frontier, late.batches)
    assert late.frontier == 12


def test_a_takeover_that_was_overtaken_and_speaks_late_adds_nothing_either():
    """It looked later than its successor, and saw more of what the old owner still sent."""
    found = inherit(listing([(1, 1, 10), (1, 11, 15), (4, 11, 12)], adopted=[(2, 10), (2, 15), (3, 10)]))
    assert (found.frontier, names(found)) == (12, [(1, 1, 10), (4, 11, 12)])


def test_a_floor_of_a_writer_that_was_overtaken_says_nothing_beyond_what_was_adopted():
    found = inherit(listing([(3, 6, 9)], floors=[(1, 50)], adopted=[(2, 5)]))
    assert (found.floor, found.frontier) == (5, 9)


def test_strange_names_are_not_ours():
    strange = [ObjectInfo(f"tail/{name}", 1, 0) for name in ("x", "1/1-2.arrow", "00000000000000000001/7.floor")]
    assert inherit(strange) == TailListing(0, 0, (), (), (), ())


batch_names = st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(0, 4)).map(
    lambda n: (n[0], n[1], n[1] + n[2])
)
marks = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 14)), max_size=3, unique=True)


@given(st.lists(batch_names, max_size=8, unique=True), marks, marks)
def test_the_walk_is_what_a_list_of_numbers_says(batches, floors, adopted):
    """Against a set of numbers: the frontier is the last one up to which none is missing."""

    def limit(epoch: int, seq: int) -> int:
        best: dict[int, int] = {}
        for taker, upto in adopted:
            best[taker] = max(best.get(taker, 0), upto)
        return min([seq, *(upto for taker, upto in best.items() if taker > epoch)])

    there = {seq for epoch, first, last in batches for seq in range(first, limit(epoch, last) + 1)}
    floor = frontier = max((limit(*mark) for mark in floors), default=0)
    while frontier + 1 in there:
        frontier += 1
    found = inherit(listing(batches, floors, adopted))
    assert (found.floor, found.frontier) == (floor, frontier)
    assert sorted([*(key for key, _ in found.batches), *found.beyond]) == sorted(layout.batch_key(*b) for b in batches)
    assert all(first <= frontier and last <= max(frontier, limit(epoch, last)) for epoch, first, last in names(found))


@given(st.lists(batch_names, max_size=8, unique=True), marks, marks, st.randoms())
def test_the_order_of_a_listing_does_not_matter(batches, floors, adopted, random):
    found = listing(batches, floors, adopted)
    shuffled = list(found)
    random.shuffle(shuffled)
    one, other = inherit(found), inherit(shuffled)
    assert one._replace(floors=()) == other._replace(floors=())
