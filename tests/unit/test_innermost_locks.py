"""Locks whose holders wait for no other: known to the whole process, which opens and forgets logs meanwhile."""

from __future__ import annotations

from _thread import RLock

import pytest

from holdfast import Unavailable, caller

pytestmark = pytest.mark.unit


def test_a_lock_made_in_the_middle_of_making_another_is_refused() -> None:
    """A signal handler opens a log: else one of the two would be forgotten."""
    with caller._registering, pytest.raises(Unavailable, match="interrupted"):
        caller.innermost(RLock())


def test_locks_that_are_gone_are_forgotten_and_others_are_not() -> None:
    """What is looked at never changes under the one that looks: it is replaced as a whole."""
    kept = caller.innermost(RLock())
    before = caller._innermost
    caller.innermost(RLock())  # and gone
    last = caller.innermost(RLock())
    assert [one() for one in before if one() is not None][-1] is kept
    assert [one() for one in caller._innermost][-2:] == [kept, last]
    with last, pytest.raises(Unavailable, match="interrupted"):
        caller.refuse_inside()
