"""What one trigger takes: something whenever there is something, no more than the limits, the same every time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.reader.admission import AdmissionLimits, admit
from holdfast.reader.offsets import Where
from holdfast.root.objects.documents import SegmentDocument
from tests.reader.manifests import end_of, manifests, segment

pytestmark = pytest.mark.unit

NO_LIMITS = AdmissionLimits()
limits = st.builds(
    AdmissionLimits,
    offsets=st.integers(0, 200),
    bytes=st.sampled_from([0, 1, 10**6, 10**9]) | st.integers(0, 10**9),
    segments=st.integers(0, 20),
)


@st.composite
def situations(draw):
    """Where each partition of a stream is, maybe inside a segment, and the segments behind that."""
    starts: dict[Where, int] = {}
    behind: dict[Where, list[SegmentDocument]] = {}
    for partition in range(draw(st.integers(1, 4))):
        where = ("orders", partition)
        segments = draw(manifests(partition=partition))
        if segments:
            starts[where] = draw(st.integers(segments[0].first, end_of(segments)))
        else:
            starts[where] = draw(st.integers(0, 50))
        behind[where] = [s for s in segments if s.first + s.rows > starts[where]]
    return starts, behind


def ends(starts: dict[Where, int], behind: dict[Where, list[SegmentDocument]]) -> dict[Where, int]:
    return {where: end_of(behind[where]) if behind[where] else starts[where] for where in starts}


@given(situations(), limits)
def test_a_trigger_gets_on_whenever_there_is_anything(situation, limit):
    starts, behind = situation
    taken = admit(starts, behind, limit)
    assert (taken != starts) == any(behind.values())


@given(situations(), limits)
def test_a_trigger_never_goes_back_and_never_beyond_what_there_is(situation, limit):
    starts, behind = situation
    taken, there = admit(starts, behind, limit), ends(starts, behind)
    assert taken.keys() == starts.keys()
    assert all(starts[where] <= taken[where] <= there[where] for where in starts)


@given(situations(), limits)
def test_every_limit_holds_or_a_single_segment_is_taken(situation, limit):
    starts, behind = situation
    taken = admit(starts, behind, limit)
    touched = [s for where in starts for s in behind[where] if starts[where] < taken[where] > s.first]
    if limit.segments:
        assert len(touched) <= limit.segments
    if limit.bytes:
        assert len(touched) <= 1 or sum(s.size for s in touched) <= limit.bytes
    if limit.offsets:
        assert sum(taken[where] - starts[where] for where in starts) <= limit.offsets


@given(situations())
def test_without_a_limit_everything_is_taken(situation):
    starts, behind = situation
    assert admit(starts, behind, NO_LIMITS) == ends(starts, behind)


@given(situations(), limits, st.integers())
def test_the_answer_depends_on_nothing_but_the_question(situation, limit, seed):
    starts, behind = situation
    order = list(starts)
    random.Random(seed).shuffle(order)
    shuffled = admit({w: starts[w] for w in order}, {w: behind[w] for w in reversed(order)}, limit)
    assert shuffled == admit(starts, behind, limit)


@given(situations(), limits)
def test_triggers_one_after_the_other_take_everything(situation, limit):
    starts, behind = situation
    there, at = ends(starts, behind), dict(starts)
    for _ in range(sum(there[where] - starts[where] for where in starts) + 1):
        left = {where: [s for s in behind[where] if s.first + s.rows > at[where]] for where in at}
        at = admit(at, left, limit)
        if at == there:
            break
    assert at == there


A, B = ("orders", 0), ("orders", 1)


def test_the_oldest_records_are_taken_first():
    behind = {
        A: [segment(0, 10, times=(50, 60))],
        B: [segment(0, 10, partition=1, times=(1, 2)), segment(10, 10, number=1, partition=1, times=(3, 4))],
    }
    assert admit({A: 0, B: 0}, behind, AdmissionLimits(segments=2)) == {A: 0, B: 20}


def test_a_segment_larger_than_the_limit_is_taken_alone():
    behind = {A: [segment(0, 10, size=10**9), segment(10, 10, number=1, size=10)]}
    assert admit({A: 0}, behind, AdmissionLimits(bytes=100)) == {A: 10}


def test_offsets_are_shared_in_proportion_to_what_is_there():
    behind = {A: [segment(0, 900)], B: [segment(0, 100, partition=1)]}
    assert admit({A: 0, B: 0}, behind, AdmissionLimits(offsets=100)) == {A: 90, B: 10}


def test_a_partition_gets_its_turn_beside_more_busy_ones_than_the_limit_has_records():
    """Three that get a record before each trigger, and a limit of three: the large segment of the fourth is old."""
    busy = [("orders", partition) for partition in range(3)]
    large = ("orders", 3)
    at, there = dict.fromkeys([*busy, large], 0), 20
    for trigger in range(60):
        behind = {
            (topic, number): [
                segment(offset, 1, number=offset, partition=number, times=(1000 + offset, 1000 + offset))
                for offset in range(at[topic, number], trigger + 1)
            ]
            for topic, number in busy
        }
        behind[large] = [segment(0, there, partition=3, times=(5, 50))] if at[large] < there else []
        at = admit(at, behind, AdmissionLimits(offsets=3))
    assert at[large] == there
    assert min(at[where] for where in busy) > 10


def test_what_a_small_partition_cannot_use_goes_to_the_others():
    behind = {A: [segment(0, 1000)], B: [segment(0, 1, partition=1)]}
    taken = admit({A: 0, B: 0}, behind, AdmissionLimits(offsets=10))
    assert taken[A] + taken[B] == 10
