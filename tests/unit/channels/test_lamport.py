"""Lamport times against the wall clock: nothing ratchets, nobody is shut out, and busy channels stay whole."""

from __future__ import annotations

import logging

import pytest
from tests.unit.channels.network import NOW, ROOM, Machine, message

from holdfast.channels import (
    Bus,
    ChannelData,
    ChannelMeta,
    Channels,
    ChannelSettings,
    HistoryEntry,
    Link,
    MemoryPersistence,
)
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
HOUR = 3600 * 1000
DAY = 24 * HOUR


def member(name, dialect, persistence=None, clock=None):
    channels = Channels(
        name, persistence, settings=ChannelSettings(dialect=dialect), clock=clock or ManualClock(NOW * 1000)
    )
    channels.ensure_channel(ROOM)
    return channels


@both
def test_no_number_of_hostile_packets_moves_a_member_out_of_reach(dialect):
    """Each a day ahead of where she is now, or as far as she takes: thirty of them used to put her a month ahead."""
    unit = dialect_named(dialect).clock_unit_ms
    alice, bob = member("alice", dialect), member("bob", dialect)
    wire = dialect_named(dialect)
    door = Link(alice, lambda data: None)
    alice.wrap_outgoing_message(b"first", ROOM, "first")
    for number in range(200):
        ratchet = alice.channel(ROOM).stats().lamport + DAY // unit
        for lead in (ratchet, (NOW + DAY) // unit, (NOW + DAY) // unit + 1):
            door.receive(wire.encode(message(f"evil{number}", lamport=lead, sender="mallory")))
            door.receive(wire.encode(message(f"sync{number}", lamport=lead, sender="mallory", content=b"")))
    assert door.stats().refused_total > 200
    assert alice.channel(ROOM).stats().lamport <= (NOW + DAY // 2) // unit
    bob.set_callbacks(message_ready=lambda event: heard.append(event.content))
    heard: list[bytes] = []
    bob.mark_dependencies_met(["first", *(f"evil{number}" for number in range(200))], ROOM)
    for number in range(50):
        bob.unwrap_received_message(alice.wrap_outgoing_message(b"%d" % number, ROOM))
    assert heard == [b"%d" % number for number in range(50)]


@both
def test_members_whose_clocks_disagree_by_hours_hear_each_other_whatever_was_sent_to_one_of_them(dialect):
    """Hers is held well below what others take."""
    unit = dialect_named(dialect).clock_unit_ms
    alice, late = Machine(dialect=dialect), Machine("late", dialect, now=NOW - 5 * HOUR)
    for number in range(50):
        alice.receive(message(f"evil{number}", lamport=(NOW + DAY) // unit, sender="mallory"))
    late.mark(*(f"evil{number}" for number in range(50)))
    for number in range(50):
        assert not late.receive(alice.send(f"m{number}")).missing


def test_a_busy_channel_of_seconds_never_runs_out_of_times():
    """Ten messages a second for a day and a half: far more than the allowance has seconds, and each one is taken."""
    alice, bob = Machine(history_max=20, bloom_capacity=20), Machine("bob", history_max=20, bloom_capacity=20)
    alice.state.lamport = bob.state.lamport = NOW // 1000 + 43_150  # as after an hour and a half of that
    for number in range(1_500):
        for machine, other in ((alice, bob), (bob, alice)):
            assert not other.receive(machine.send(f"{machine.rules.participant_id}{number}")).missing
            machine.state.outgoing.clear()
        if number % 10 == 0:
            alice.pass_ms(1_000)
            bob.pass_ms(1_000)
    assert len(alice.ready) == len(bob.ready) == 1_500
    assert alice.state.lamport <= alice.now // 1000 + 64_800


@both
def test_who_sends_faster_than_the_clock_goes_is_heard_all_the_same(dialect):
    """Each message moves her clock: it is held, and the others take what she sends."""
    unit = dialect_named(dialect).clock_unit_ms
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect)
    alice.state.lamport = (NOW + 18 * HOUR) // unit - 10
    for number in range(30):
        sent = alice.send(f"m{number}")
        assert sent.lamport <= (NOW + 18 * HOUR) // unit
        assert not bob.receive(sent).missing


@both
def test_times_from_the_future_do_not_become_the_only_ones_that_are_named(dialect):
    """Where history is sorted they would be the newest until then, and causal order would be lost meanwhile."""
    unit = dialect_named(dialect).clock_unit_ms
    alice = Machine(dialect=dialect, causal_history_max=3)
    for number in range(10):
        alice.receive(message(f"evil{number}", lamport=(NOW + DAY) // unit, sender="mallory"))
    alice.pass_ms(1)
    for number in range(5):
        alice.send(f"m{number}")
        alice.pass_ms(1)
    assert [one.message_id for one in alice.send("m5").causal_history] == ["m2", "m3", "m4"]
    alice.restart()
    alice.pass_ms(1)
    assert alice.send("m6").causal_history[-1].message_id == "m5"


@both
def test_a_state_that_was_ratcheted_long_ago_heals_when_it_is_loaded(dialect):
    """Its clock, its unacknowledged messages and its history are as others take them."""
    unit = dialect_named(dialect).clock_unit_ms
    store = MemoryPersistence()
    ahead = (NOW + 30 * DAY) // unit
    store.save_channel_meta(ROOM, ChannelMeta(lamport=ahead, dialect=dialect))
    assert isinstance(store.load_channel(ROOM), ChannelData)
    alice, bob = member("alice", dialect, store), member("bob", dialect)
    assert alice.channel(ROOM).stats().lamport <= (NOW + DAY) // unit
    received = bob.unwrap_received_message(alice.wrap_outgoing_message(b"hello", ROOM))
    assert received.content == b"hello"
    assert alice.channel(ROOM).stats().lamport <= (NOW + DAY) // unit


@both
def test_what_history_has_from_a_wrong_clock_is_repaired_with_a_time_that_others_take(dialect):
    """Its sender's was a month ahead, and so was ours."""
    unit = dialect_named(dialect).clock_unit_ms
    alice = Machine(dialect=dialect, now=NOW + 30 * DAY)
    alice.receive(message("b1", lamport=(NOW + 30 * DAY) // unit, sender="bob"))
    alice.now = NOW
    alice.receive(message("c1", lamport=NOW // unit, sender="carol", requests=[HistoryEntry("b1", b"", "bob")]))
    alice.pass_ms(400_000)
    alice.sweep_repairs()
    repaired = alice.rules.dialect.decode(alice.events[-1].data)
    assert repaired.message_id == "b1"
    assert not Machine("carol", dialect).receive(repaired).missing


@both
def test_a_member_whose_clock_is_in_the_past_says_so_and_goes_on_when_it_is_set(dialect, caplog):
    """She refuses everybody: that is counted, and logged once with the remedy; nothing is lost by it."""
    clock = ManualClock((NOW - 40 * DAY) * 1000)
    late, bob = member("late", dialect, clock=clock), member("bob", dialect)
    bus = Bus()
    heard: list[bytes] = []
    late.set_callbacks(message_ready=lambda event: heard.append(event.content))
    link, _ = bus.connect(bob), bus.connect(late)
    with caplog.at_level(logging.WARNING, "holdfast.channels"):
        for number in range(20):
            link.send(b"%d" % number, ROOM)
        bus.drain()
    warnings = [one for one in caplog.records if getattr(one, "action", "") == "channel_clock_behind"]
    assert len(warnings) == 1
    assert "set the clock" in warnings[0].getMessage()
    assert late.channel(ROOM).stats().clock_refused_total == late.channel(ROOM).stats().refused_total == 20
    assert heard == []
    clock.advance(40 * DAY / 1000)
    bob._clock.advance(61)  # type: ignore[attr-defined]
    bob.run_buffer_sweep()
    bus.drain()
    assert heard == [b"%d" % number for number in range(20)]


def test_a_larger_allowance_takes_more_and_does_not_send_from_further_ahead():
    """Else a participant that raises it is refused by those who did not."""
    alice = Machine(lamport_jump_max_ms=400 * DAY)
    alice.receive(message("n1", lamport=NOW // 1000 + 300 * 86_400, sender="busy"))
    sent = alice.send("m1")
    usual = Machine("bob")
    usual.mark("n1")
    assert not usual.receive(sent).missing
