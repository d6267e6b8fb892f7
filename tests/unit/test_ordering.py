"""Ordered acknowledgement and the stage guard: in order, once, and nothing kept or forgotten."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Invalid
from holdfast.shipping.lanes.ordering import BatchOrder, Stage

pytestmark = pytest.mark.unit


class Payload:
    """Something whose end can be seen."""


def begun(count):
    line = BatchOrder()
    assert [line.begin() for _ in range(count)] == list(range(count))
    return line


def test_a_batch_counts_only_when_all_before_it_are_complete():
    """Completion out of order is held back until the gap closes, then acknowledged at once and in order."""
    line = begun(4)
    line.complete(2)
    line.complete(1)
    assert line.acknowledge() == []
    assert len(line._complete) == 2
    line.complete(0)
    assert line.acknowledge() == [0, 1, 2]
    assert (len(line._complete), line.unacknowledged) == (0, 1)


def test_each_batch_is_acknowledged_once():
    """Asking again tells nothing twice."""
    line = begun(2)
    line.complete(0)
    assert line.acknowledge() == [0]
    assert line.acknowledge() == []
    line.complete(1)
    assert line.acknowledge() == [1]
    assert line.unacknowledged == 0


def test_a_second_completion_is_refused():
    """Before and after acknowledgement; the first one stays as it was."""
    line = begun(2)
    line.complete(1)
    with pytest.raises(Invalid, match="before place=1"):
        line.complete(1)
    line.complete(0)
    assert line.acknowledge() == [0, 1]
    for place in (0, 1):
        with pytest.raises(Invalid, match="no such batch is open"):
            line.complete(place)
    assert line.acknowledge() == []


@pytest.mark.parametrize("place", [-1, 2, 100])
def test_a_place_that_never_began_is_refused(place):
    """Neither completed nor abandoned."""
    line = begun(2)
    for verb in (line.complete, line.abandon):
        with pytest.raises(Invalid, match="no such batch is open"):
            verb(place)


def test_nothing_behind_an_abandoned_batch_counts():
    """What is before it still does."""
    line = begun(4)
    line.complete(3)
    line.abandon(1)
    line.complete(2)
    line.complete(0)
    assert line.acknowledge() == [0]
    assert line.acknowledge() == []
    assert line.unacknowledged == 3


def test_a_complete_batch_can_still_be_abandoned():
    """Stored is not acknowledged: a fenced writer gives up what it has sent."""
    line = begun(1)
    line.complete(0)
    line.abandon(0)
    assert line.acknowledge() == []


def test_an_abandoned_batch_stays_abandoned():
    """It can be neither completed nor abandoned again, and nothing begins behind it."""
    line = begun(2)
    line.abandon(0)
    with pytest.raises(Invalid, match="before place=0"):
        line.complete(0)
    with pytest.raises(Invalid, match="abandoned before place=0"):
        line.abandon(0)
    with pytest.raises(Invalid, match="nothing begins after"):
        line.begin()
    line.abandon(1)
    assert line.acknowledge() == []


def test_an_acknowledged_batch_cannot_be_abandoned():
    """What counts, counts."""
    line = begun(1)
    line.complete(0)
    line.acknowledge()
    with pytest.raises(Invalid, match="no such batch is open"):
        line.abandon(0)


verbs = st.sampled_from(["begin", "complete", "complete", "complete", "abandon", "acknowledge"])
steps = st.lists(st.tuples(verbs, st.integers(0, 12)), max_size=80)


@given(steps, st.booleans())
def test_whatever_happens_the_acknowledged_places_are_the_longest_good_prefix(steps, abandons):
    """Against the plainest model: random completions, repetitions and abandonment."""
    line, acknowledged = BatchOrder(), []
    count, complete, abandoned = 0, set(), set()
    for verb, place in steps:
        is_open = len(acknowledged) <= place < count
        if verb == "begin" and not abandoned:
            assert line.begin() == count
            count += 1
        elif verb == "complete":
            if is_open and place not in complete | abandoned:
                line.complete(place)
                complete.add(place)
            else:
                with pytest.raises(Invalid):
                    line.complete(place)
        elif verb == "abandon" and abandons:
            if is_open and place not in abandoned:
                line.abandon(place)
                abandoned.add(place)
                complete.discard(place)
            else:
                with pytest.raises(Invalid):
                    line.abandon(place)
        elif verb == "acknowledge":
            acknowledged += line.acknowledge()
            prefix = next(n for n in range(count + 1) if n not in complete)
            assert acknowledged == list(range(prefix))
        assert line.unacknowledged == count - len(acknowledged)
        assert len(line._complete) == len(complete) - len(acknowledged)


@given(st.permutations(range(12)))
def test_any_order_of_completion_acknowledges_all_in_order(order):
    """Every permutation ends with everything acknowledged, in order, once."""
    line, acknowledged = begun(12), []
    for place in order:
        line.complete(place)
        acknowledged += line.acknowledge()
    assert acknowledged == list(range(12))


def test_acknowledgement_publishes_the_mark_once():
    """One publication, at release and not before."""
    published = []
    stage = Stage(b"batch", lambda: published.append(1))
    stage.sent()
    assert published == []
    stage.release("acknowledged")
    assert published == [1]
    assert stage.outcome == "acknowledged"


def test_abandonment_publishes_nothing():
    """An abandoned batch moves no mark, sent or not."""
    published = []
    for is_sent in (False, True):
        stage = Stage(b"batch", lambda: published.append(1))
        if is_sent:
            stage.sent()
        stage.release("abandoned")
        assert stage.outcome == "abandoned"
    assert published == []


@pytest.mark.parametrize("first", ["acknowledged", "abandoned"])
@pytest.mark.parametrize("second", ["acknowledged", "abandoned"])
def test_a_second_release_is_refused(first, second):
    """The first outcome stays, and the mark is not published by the second."""
    published = []
    stage = Stage(b"batch", lambda: published.append(1), "seq=1..2")
    stage.release(first)
    before = list(published)
    with pytest.raises(Invalid, match=rf"released twice: {first}, then {second} seq=1\.\.2"):
        stage.release(second)
    assert stage.outcome == first
    assert published == before


def test_the_payload_is_there_for_every_retry():
    """Until the store has it, it can be sent again."""
    payload = Payload()
    stage = Stage(payload, lambda: None)
    assert stage.payload is stage.payload is payload
    stage.release("abandoned")


def letting_go(stage, how):
    if how == "sent":
        stage.sent()
    else:
        stage.release(how)


@pytest.mark.parametrize("how", ["sent", "acknowledged", "abandoned"])
def test_memory_is_let_go(how):
    """Once sent or released, the stage keeps neither payload nor anything that publishing held."""
    payload, held = Payload(), Payload()
    seen, seen_held = weakref.ref(payload), weakref.ref(held)
    stage = Stage(payload, lambda held=held: None)
    del payload, held
    assert seen() is not None
    letting_go(stage, how)
    assert seen() is None
    assert (seen_held() is None) == (how != "sent")
    with pytest.raises(Invalid, match="let go"):
        stage.payload  # noqa: B018
    if how == "sent":
        stage.release("abandoned")


def test_a_failing_publication_is_not_repeated():
    """The error is the caller's; the stage is released all the same."""

    def fail():
        raise ValueError("no")

    stage = Stage(b"batch", fail)
    with pytest.raises(ValueError, match="no"):
        stage.release("acknowledged")
    with pytest.raises(Invalid, match="released twice"):
        stage.release("abandoned")


def test_a_stage_dropped_without_release_is_noticed(caplog):
    """It is logged as an error with its label, never with its payload."""
    with caplog.at_level(logging.DEBUG, "holdfast.shipping"):
        stage = Stage(b"secret bytes", lambda: None, "seq=7..9")
        stage.sent()
        del stage
        gc.collect()
    (record,) = caplog.records
    assert (record.name, record.levelno, record.action) == ("holdfast.shipping", logging.ERROR, "stage_leaked")
    assert "seq=7..9" in record.getMessage()
    assert "secret" not in record.getMessage()


def test_a_released_stage_goes_quietly(caplog):
    """No log line where everything was done right, nor where a stage was never made."""
    with caplog.at_level(logging.DEBUG, "holdfast.shipping"):
        for outcome in ("acknowledged", "abandoned"):
            stage = Stage(b"batch", lambda: None)
            stage.release(outcome)
            del stage
        with pytest.raises(TypeError):
            Stage()
        gc.collect()
    assert caplog.records == []


def test_a_stage_does_not_show_its_payload():
    """Its repr has the label and the outcome."""
    stage = Stage(b"secret bytes", lambda: None, "seq=1..2")
    stage.release("abandoned")
    assert repr(stage) == "Stage('seq=1..2', outcome='abandoned')"
