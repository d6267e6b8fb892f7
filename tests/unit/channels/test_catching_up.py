"""Catching up: who is far behind asks at once and for many, and others name what it lacks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.network import Machine, entry, message

from holdfast.channels.channel_events import PeriodicSync, RepairReady
from holdfast.channels.protocol.catching_up import BULK, HELP_PAUSE_MS, _lacked
from holdfast.channels.protocol.steps import SendSync

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])


def hurry(machine: Machine, ms: int = 3_000) -> list:
    """Let time pass as the timers do; tells which messages went out."""
    sent = []
    for number in range(ms // 500):
        machine.pass_ms(500)
        if machine.state.hurried and machine.sweep_repairs().sync_due:
            sent.append(machine.sync(f"{machine.rules.participant_id} {machine.now} {number}"))
    return sent


def talked(participant: str, dialect: str, count: int, **settings) -> Machine:
    """Somebody who has heard a conversation of bob's."""
    machine = Machine(participant, dialect, **settings)
    for number in range(count):
        machine.receive(
            message(f"b{number}", *(f"b{one}" for one in range(max(0, number - 10), number)), lamport=number)
        )
    return machine


@both
def test_who_lacks_everything_that_a_message_names_asks_for_all_of_it_at_once(dialect):
    """Within a second or two, and again some seconds later, then less often."""
    carol = Machine("carol", dialect)
    carol.receive(message("b99", *(f"b{number}" for number in range(89, 99))))
    (asked,) = hurry(carol)
    assert {one.message_id for one in asked.repair_request} == {f"b{number}" for number in range(89, 99)}
    assert len(hurry(carol, 60_000)) in (2, 3, 4), "after 5, 10, 20 s"


@both
def test_one_missing_message_is_no_reason_to_hurry(dialect):
    """Everybody may have missed it: then all would ask at once."""
    carol = talked("carol", dialect, 20)
    carol.receive(message("b21", "b20", "b19", lamport=21))
    assert not carol.state.hurried
    assert hurry(carol, 20_000) == []


@both
def test_an_answer_that_lacks_something_itself_is_a_sign_of_more(dialect):
    """Where messages name few, too."""
    carol = Machine("carol", dialect, repair_t_min_ms=1_000, repair_t_max_ms=1_000)
    carol.receive(message("b3", "b2"))
    carol.pass_ms(1_000)
    assert carol.sync("s1").repair_request
    carol.receive(message("b2", "b1"))
    assert carol.state.behind


@both
def test_who_is_behind_is_answered_soon_and_gets_what_it_lacks_oldest_first(dialect):
    """By its filter; and help comes once."""
    alice, carol = talked("alice", dialect, 200), talked("carol", dialect, 50)
    carol.receive(message("b250", *(f"b{number}" for number in range(190, 200)), lamport=250))
    (asked,) = hurry(carol)
    alice.receive(asked)
    (helped, *more) = hurry(alice)
    assert more == []
    assert [one.message_id for one in helped.causal_history] == [f"b{number}" for number in range(50, 200)]
    assert {event.message_id for event in alice.of_kind(RepairReady)} == {f"b{number}" for number in range(190, 200)}
    carol.receive(helped)
    (asked,) = hurry(carol)
    assert {one.message_id for one in asked.repair_request} >= {f"b{number}" for number in range(50, 190)}


@both
def test_who_hears_another_one_help_keeps_silent(dialect):
    alice, dave, carol = talked("alice", dialect, 100), talked("dave", dialect, 100), talked("carol", dialect, 20)
    carol.receive(message("b100", *(f"b{number}" for number in range(90, 100)), lamport=100))
    (asked,) = hurry(carol)
    for one in (alice, dave):
        one.receive(asked)
        assert one.state.help is not None
    (helped,) = hurry(alice)
    dave.receive(helped)
    assert dave.state.help is None


@both
def test_help_is_given_no_more_often_than_once_in_a_while(dialect):
    """One that asks all the time does not make us work all the time."""
    alice, carol = talked("alice", dialect, 100), talked("carol", dialect, 20)
    wanted = [entry(f"b{number}", "bob") for number in range(90, 100)]
    bloom = carol.state.filter.to_bytes()
    given = 0
    for number in range(100):
        alice.pass_ms(100)
        alice.receive(message(f"q{number}", content=b"", bloom=bloom, requests=wanted, sender="carol"))
        if alice.sweep_repairs().sync_due:
            alice.sync(f"s{number}")
            given += 1
    assert given <= 100 * 100 // HELP_PAUSE_MS


@both
@pytest.mark.parametrize("most", [24_000, 40_000])
def test_a_sync_message_in_bulk_fits_its_transport(dialect, most):
    """Both what it names and what it asks for."""
    carol = Machine("carol", dialect)
    carol.receive(message("s", *(entry(f"{number:064}", "b" * 60) for number in range(300)), content=b""))
    carol.receive(message("t", *(entry(f"{number:064}", "b" * 60) for number in range(300, 400)), content=b""))
    carol.pass_ms(5_000)
    data = carol.take(SendSync("sync", most)).data
    assert data is not None
    assert len(data) <= most
    (event,) = carol.of_kind(PeriodicSync)
    assert len(carol.rules.dialect.decode(event.data).repair_request) > 3


@both
def test_content_asks_for_a_few_only_however_far_behind_we_are(dialect):
    """Else it might become larger than its transport carries."""
    carol = Machine("carol", dialect)
    carol.receive(message("b99", *(f"b{number}" for number in range(89, 99))))
    carol.pass_ms(5_000)
    assert len(carol.send("c1").repair_request) == 3


@given(st.integers(0, 600), st.integers(0, 600), st.integers(1, 600), st.sets(st.integers(0, 1_300), max_size=5))
def test_a_gap_is_named_from_its_beginning(before, gap, after, holes):
    """Wherever it is, whatever else is missing here and there, and however much came after it."""
    gap += 4
    ids = [str(number) for number in range(before + gap + after)]
    theirs = {*ids[:before], *ids[before + gap :]} - {str(hole) for hole in holes}
    lacked = _lacked(ids, before + gap - 1, theirs)
    assert len(lacked) <= BULK
    assert not set(lacked) & theirs
    assert lacked, "there is something to name"
    if not holes and before > 4:
        assert lacked == ids[before : before + gap][:BULK]
