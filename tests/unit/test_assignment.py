"""Partitions are shared out evenly, each to one member, and move no more than they must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.log.consumers.assignment import assign

pytestmark = pytest.mark.unit

sizes = st.integers(1, 12)
members = st.lists(st.integers(0, 9), unique=True, max_size=6)


@given(sizes, members, st.data())
def test_shares_are_even_and_everything_belongs_to_somebody(count, ids, data):
    held = data.draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 12)))
    wanted = assign(range(count), [(one, None) for one in ids], held)
    assert set(wanted) == (set(range(count)) if ids else set())
    shares = [list(wanted.values()).count(one) for one in ids]
    assert not ids or max(shares) - min(shares) <= 1


@given(sizes, members, st.integers(20, 29))
def test_one_who_comes_takes_only_its_own_share(count, ids, newcomer):
    before = assign(range(count), [(one, None) for one in ids], {})
    after = assign(range(count), [(one, None) for one in (*ids, newcomer)], before)
    moved = [number for number in before if after[number] != before[number]]
    assert all(after[number] == newcomer for number in moved)
    assert assign(range(count), [(one, None) for one in (*ids, newcomer)], after) == after


@given(sizes, members.filter(bool), st.data())
def test_one_who_goes_leaves_the_others_what_they_have(count, ids, data):
    gone = data.draw(st.sampled_from(ids))
    before = assign(range(count), [(one, None) for one in ids], {})
    held = {number: member for number, member in before.items() if member != gone}
    after = assign(range(count), [(one, None) for one in ids if one != gone], held)
    assert held.items() <= after.items()


def test_those_who_named_partitions_have_them_and_others_share_the_rest():
    wanted = assign(range(4), [(1, (2,)), (2, None), (3, None)], {2: 2, 0: 2})
    assert wanted[2] == 1
    assert sorted(wanted[number] for number in (0, 1, 3)) in ([2, 2, 3], [2, 3, 3])
    assert assign(range(3), [(1, (0,))], {}) == {0: 1}
