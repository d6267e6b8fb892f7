"""Nothing falls through: what one participant has is named to the others, and asked for while there is hope."""

from __future__ import annotations

import pytest
from tests.unit.channels.network import Machine, entry, message

from holdfast.channels.protocol.steps import Send
from holdfast.errors import Invalid

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])


def named(alice: Machine, number: int) -> list[str]:
    sync = alice.sync(f"s{number}")
    assert sync is not None
    return [one.message_id for one in sync.causal_history]


@both
def test_a_sync_message_names_what_no_other_message_names(dialect):
    """An old message that nobody has named, and then the newest."""
    alice = Machine(dialect=dialect, causal_history_max=3)
    alice.receive(message("alone", lamport=1))
    for number in range(6):
        alice.receive(message(f"m{number}", *([f"m{number - 1}"] if number else []), lamport=2 + number))
    assert named(alice, 1) == ["alone", "m4", "m5"]


@both
def test_many_loose_ends_are_named_in_turns(dialect):
    """All of them within as few sync messages as they need, whatever the newest are."""
    alice = Machine(dialect=dialect, causal_history_max=3)
    for number in range(10):
        alice.receive(message(f"m{number}", lamport=1 + number))
    assert {name for turn in range(4) for name in named(alice, turn)} == {f"m{number}" for number in range(10)}


@both
def test_a_message_that_all_have_acknowledged_to_each_other_is_found_by_whom_it_missed(dialect):
    """It is not among the newest of anybody: only a loose end tells of it."""
    alice, carol = Machine(dialect=dialect, causal_history_max=2), Machine("carol", dialect=dialect)
    for number in range(5):
        one = message(f"m{number}", lamport=1 + number)
        alice.receive(one)
        if number:
            carol.receive(one)
    for turn in range(3):
        carol.receive(alice.sync(f"s{turn}"))
    assert list(carol.state.requests) == ["m0"]


@both
def test_a_sync_message_that_names_what_has_left_history_asks_for_nothing(dialect):
    """It would come back and push out another one, which somebody names, and so on forever."""
    alice = Machine(dialect=dialect, history_max=1)
    alice.receive(message("old"))
    alice.receive(message("new"))
    alice.receive(message("s1", "old", "new", content=b""))
    assert not alice.state.requests


@both
def test_what_only_a_sync_message_named_is_asked_for_a_few_times(dialect):
    """Who had it may have it no more; a message that another one waits for is asked for always."""
    alice = Machine(dialect=dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    alice.receive(message("s1", "gone", content=b""))
    alice.receive(message("b2", "b1"))
    asked = []
    for number in range(8):
        alice.pass_ms(1_000)
        alice.sweep_repairs()
        asked.append({one.message_id for one in alice.sync(f"t{number}").repair_request})
    assert asked == [{"gone", "b1"}] * 5 + [{"b1"}] * 3
    alice.receive(message("s2", "gone", content=b""))
    assert "gone" in alice.state.requests


@both
def test_a_request_is_not_given_up_before_there_was_a_message_to_ask_with(dialect):
    """Sync messages may be rarer than requests are patient."""
    alice = Machine(dialect=dialect, repair_t_min_ms=100, repair_t_max_ms=100, sync_interval_ms=1_000)
    alice.receive(message("s1", "b1", content=b""))
    alice.pass_ms(1_000)
    alice.sweep_repairs()
    assert alice.sync("s2").repair_request == (entry("b1"),)


@both
def test_of_many_requests_each_has_its_turn_before_it_is_given_up(dialect):
    """A message asks for three; nine take three messages, however long that is."""
    alice = Machine(dialect=dialect, repair_t_min_ms=100, repair_t_max_ms=100, sync_interval_ms=1_000)
    alice.receive(message("s1", *(f"b{number}" for number in range(9)), content=b""))
    asked = set()
    for turn in range(3):
        alice.pass_ms(1_000)
        alice.sweep_repairs()
        asked |= {one.message_id for one in alice.sync(f"t{turn}").repair_request}
    assert len(asked) == 9


@both
def test_while_there_is_no_room_nothing_is_asked_for_that_would_need_some(dialect):
    """What a sync message names would be refused; what the waiting ones need makes room."""
    alice = Machine(dialect=dialect, incoming_max=1)
    alice.receive(message("b2", "b1"))
    alice.receive(message("s1", "x1", content=b""))
    assert list(alice.state.requests) == ["b1"]
    alice.receive(message("b1"))
    alice.receive(message("s2", "x1", content=b""))
    assert list(alice.state.requests) == ["x1"]


@both
def test_a_message_for_which_there_was_no_room_is_asked_for_again(dialect):
    """After what it lacks itself: that makes room."""
    alice = Machine(dialect=dialect, incoming_max=1)
    alice.receive(message("b1", "x1"))
    assert alice.receive(message("b3", "b2")).refused
    assert list(alice.state.requests) == ["x1", "b2", "b3"]


@both
def test_of_what_is_waited_for_the_oldest_is_asked_for_first_when_there_is_room(dialect):
    """It is the next that can be delivered."""
    alice = Machine(dialect=dialect, repairs_max=1)
    for number in (3, 1, 2):
        alice.receive(message(f"b{number}", f"x{number}", lamport=number))
    (asked,) = alice.state.requests
    alice.receive(message(asked))
    alice.sweep_repairs()
    rest = sorted({"x1", "x2", "x3"} - {asked})
    assert list(alice.state.requests) == rest[:1]


@both
def test_a_message_that_its_transport_cannot_carry_is_refused_with_the_state_as_it_was(dialect):
    """No tick of the clock, no request postponed, no hint remembered."""
    alice = Machine(dialect=dialect, repair_t_min_ms=0, repair_t_max_ms=0)
    alice.receive(message("b2", "b1"))
    alice.receive(message("b3"))
    before = alice.state.snapshot(), alice.state.history.ids(), alice.state.filter.to_bytes(), dict(alice.state.hints)
    with pytest.raises(Invalid, match="carries 100"):
        alice.take(Send(b"content", "m1", {"b3": b"hint"}, bytes_max=100))
    after = alice.state.snapshot(), alice.state.history.ids(), alice.state.filter.to_bytes(), dict(alice.state.hints)
    assert after == before


# -- content messages -----------------------------------------------------------------------------------------


def causes(alice: Machine, message_id: str) -> list[str]:
    return [one.message_id for one in alice.send(message_id).causal_history]


@both
def test_content_names_loose_ends_in_place_of_what_others_name(dialect):
    """No more than the causal size; and once named, a loose end is none."""
    alice = Machine(dialect=dialect, causal_history_max=3, history_max=20)
    alice.receive(message("alone", lamport=1))
    for number in range(6):
        alice.receive(message(f"m{number}", *([f"m{number - 1}"] if number else []), lamport=2 + number))
    assert causes(alice, "a1") == ["alone", "m4", "m5"]
    assert causes(alice, "a2") == ["m4", "m5", "a1"]


@both
def test_after_many_at_once_all_are_named_by_the_next_few(dialect):
    """Each message names as many as it can, and none is left out for good."""
    alice = Machine(dialect=dialect, causal_history_max=5, history_max=100)
    many = [f"m{number}" for number in range(20)]
    for number, name in enumerate(many):
        alice.receive(message(name, lamport=1 + number))
    said = [name for number in range(6) for name in causes(alice, f"a{number}")]
    assert set(many) <= set(said)
    assert all(len(one.causal_history) <= 5 for one in alice.state.history.messages())


@both
def test_a_loose_end_of_long_ago_is_left_to_sync_messages(dialect):
    """Peers may have let it go, and would take it for missing."""
    alice = Machine(dialect=dialect, causal_history_max=3, history_max=10)
    alice.receive(message("alone", lamport=1))
    for number in range(7):
        alice.receive(message(f"m{number}", *([f"m{number - 1}"] if number else []), lamport=2 + number))
    assert "alone" not in causes(alice, "a1")
    assert "alone" in named(alice, 1)
