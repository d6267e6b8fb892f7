"""Acknowledgement: an event when a message is known to be with others, only then; sent again till then, or given up."""

from __future__ import annotations

import pytest
from tests.unit.channels.network import NOW, Machine, message

from holdfast.channels.channel_events import MessageGivenUp, MessageSent, ResendDue
from holdfast.channels.protocol.steps import Receive
from holdfast.channels.wire.protobuf import delimited, varint

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
MINUTE = 60_000


def sent(machine):
    return [event.message_id for event in machine.of_kind(MessageSent)]


def given_up(machine):
    return [event.message_id for event in machine.of_kind(MessageGivenUp)]


def resent(machine):
    return [(event.message_id, event.attempt) for event in machine.of_kind(ResendDue)]


def filter_of(machine, *message_ids):
    """A filter as an honest participant would send it."""
    settings = machine.rules.settings
    filled = machine.rules.dialect.new_filter(settings.bloom_capacity, settings.bloom_error_rate)
    for message_id in message_ids:
        filled.add(message_id)
    return filled.to_bytes()


def nim_filter(words, hashes, bits):
    """A filter of nim-sds with any parameters."""
    numbers = {0x10: 10_000, 0x18: 1_000, 0x20: hashes, 0x28: bits}
    return delimited(b"\x0a", words) + b"".join(bytes((tag,)) + varint(value) for tag, value in numbers.items())


# -- acknowledging --------------------------------------------------------------------------------------------


@both
def test_a_message_that_names_ours_acknowledges_it(dialect):
    """Acknowledged once, and it waits no longer."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.send("m2")
    effects = alice.take(Receive(message("b1", "m1")))
    assert sent(alice) == ["m1"]
    assert alice.outgoing == ["m2"]
    assert effects.changed
    alice.receive(message("b2", "m1"))
    assert sent(alice) == ["m1"]


@both
def test_acknowledgements_are_reported_before_what_acknowledged_them(dialect):
    """One ready, one sent, in the order of nim-sds."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.events.clear()
    alice.receive(message("b1", "m1"))
    assert [type(event).__name__ for event in alice.events] == ["MessageSent", "MessageReady"]


def test_one_filter_acknowledges_in_nim():
    """As nim-sds takes it."""
    alice = Machine()
    alice.send("m1")
    alice.receive(message("b1", bloom=filter_of(alice, "m1")))
    assert sent(alice) == ["m1"]


def test_two_filters_acknowledge_in_rfc():
    """The first makes it possible, which is kept; the second, as `@waku/sds` has it, certain."""
    alice = Machine(dialect="rfc")
    alice.send("m1")
    known = filter_of(alice, "m1")
    assert alice.take(Receive(message("b1", bloom=known))).changed
    assert sent(alice) == []
    assert alice.state.outgoing[0].possible_acks == 1
    alice.restart()
    alice.receive(message("b2", bloom=known))
    assert sent(alice) == ["m1"]


@both
def test_a_filter_acknowledges_exactly_what_it_knows(dialect):
    """One among a hundred others."""
    alice = Machine(dialect=dialect)
    for name in ("m1", "m2"):
        alice.send(name)
    known = filter_of(alice, "m2", *(f"noise{number}" for number in range(100)))
    for name in ("b1", "b2"):
        alice.receive(message(name, bloom=known))
    assert sent(alice) == ["m2"]
    assert alice.outgoing == ["m1"]


@both
def test_three_of_six_are_acknowledged_in_the_order_of_sending(dialect):
    """Three callbacks, three that still wait."""
    alice = Machine(dialect=dialect)
    for number in range(6):
        alice.send(f"m{number}")
    alice.receive(message("b1", "m4", "m0", "m2"))
    assert sent(alice) == ["m0", "m2", "m4"]
    assert alice.outgoing == ["m1", "m3", "m5"]


@both
def test_a_message_that_waits_acknowledges_all_the_same(dialect):
    """What it depends on says nothing about what its sender had."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.receive(message("b2", "m1", "b1"))
    assert sent(alice) == ["m1"]
    assert alice.ready == []


@both
def test_a_sync_message_acknowledges(dialect):
    """A participant who never says anything still does."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    bob.receive(alice.send("m1"))
    alice.receive(bob.sync("s1"))
    assert sent(alice) == ["m1"]


@both
def test_what_is_in_our_own_name_acknowledges_nothing(dialect):
    """A message of ours that comes back, or pretends to be ours, tells nothing about others."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    known = filter_of(alice, "m1")
    for name in ("old1", "old2"):
        alice.receive(message(name, "m1", sender="alice", bloom=known))
    assert sent(alice) == []
    assert alice.outgoing == ["m1"]


@both
def test_a_reused_id_is_acknowledged_as_often_as_it_was_sent(dialect):
    """Two wait under one id; who has one has both, for all that can be known."""
    alice = Machine(dialect=dialect)
    alice.send("m1", b"one")
    alice.send("m1", b"two")
    alice.receive(message("b1", "m1"))
    assert sent(alice) == ["m1", "m1"]
    assert alice.outgoing == []


# -- filters that mean harm -----------------------------------------------------------------------------------

FLOODS = {
    "three bytes of junk": b"\x01\x02\x03",
    "all ones": nim_filter(b"\xff" * 18_752, 10, 150_000),
    "no hashes": nim_filter(bytes(18_752), 0, 150_000),
    "no bits": nim_filter(bytes(18_752), 10, 0),
    "no words": nim_filter(b"", 10, 150_000),
    "more bits than words": nim_filter(bytes(8), 10, 2**40),
    "2^63 hashes": nim_filter(bytes(18_752), 2**63, 150_000),
    "one word of ones": nim_filter(b"\xff" * 8, 1, 64),
    "seven eighths": nim_filter(b"\xfe" * 18_752, 10, 150_000),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_hostile_filter_acknowledges_nothing_in_nim(name):
    """Each ends nim-sds, or acknowledges everything there; the message itself is as good as any."""
    alice = Machine()
    alice.send("m1")
    alice.send("m2")
    alice.receive(message("b1", "m2", bloom=FLOODS[name]))
    assert sent(alice) == ["m2"], "by name, not by the filter"
    assert alice.outgoing == ["m1"]
    assert alice.ready == ["b1"]


@pytest.mark.parametrize("data", [b"\xff" * 18_752, b"\xff" * 8, b"\xfe" * 18_752, b"junk", b"\xff" * 100_000])
def test_a_hostile_filter_acknowledges_nothing_in_rfc(data):
    """However often it comes."""
    alice = Machine(dialect="rfc")
    alice.send("m1")
    for number in range(5):
        alice.receive(message(f"b{number}", bloom=data))
    assert alice.outgoing == ["m1"]
    assert alice.state.outgoing[0].possible_acks == 0
    assert len(alice.ready) == 5


# -- sending again --------------------------------------------------------------------------------------------


@both
def test_what_is_not_acknowledged_is_handed_out_to_be_sent_again(dialect):
    """The same message, with what we know today; nim-sds only counts."""
    alice, bob = Machine(dialect=dialect), Machine("bob", dialect=dialect)
    first = alice.send("m1", b"hello")
    alice.receive(message("c1", sender="carol"))
    alice.pass_ms(MINUTE + 1)
    alice.sweep_buffers()
    (due,) = alice.of_kind(ResendDue)
    assert (due.message_id, due.attempt) == ("m1", 1)
    again = alice.rules.dialect.decode(due.data)
    assert again.without_bloom() == first.without_bloom()
    settings = alice.rules.settings
    known = alice.rules.dialect.read_filter(again.bloom_filter, settings.bloom_capacity, settings.bloom_error_rate)
    assert "c1" in known
    assert bob.receive(again).content == b"hello"


@both
def test_it_is_due_after_the_interval_and_not_at_its_end(dialect):
    """Strictly later, as in nim-sds."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.pass_ms(MINUTE)
    assert not alice.sweep_buffers().changed
    alice.pass_ms(1)
    assert alice.sweep_buffers().changed
    assert resent(alice) == [("m1", 1)]
    assert not alice.sweep_buffers().changed, "once per interval"


@both
def test_after_the_last_attempt_it_is_given_up_and_not_called_sent(dialect):
    """The reference implementation tells both in the same words."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    for _ in range(7):
        alice.pass_ms(MINUTE + 1)
        alice.sweep_buffers()
    assert resent(alice) == [("m1", attempt) for attempt in range(1, 6)]
    assert given_up(alice) == ["m1"]
    assert sent(alice) == []
    assert alice.outgoing == []
    assert alice.state.history.ids() == ["m1"], "it can still be repaired"


def test_without_attempts_it_is_given_up_at_once():
    alice = Machine(resend_attempts_max=0)
    alice.send("m1")
    alice.pass_ms(MINUTE + 1)
    alice.sweep_buffers()
    assert (resent(alice), given_up(alice)) == ([], ["m1"])


def test_a_sweep_gives_up_and_cleans_the_filter():
    """A message that nobody acknowledged leaves, and a filter for two ids forgets it."""
    alice = Machine(
        bloom_capacity=2, history_max=2, resend_interval_ms=100, resend_attempts_max=3, bloom_error_rate=0.01
    )
    alice.send("m1")
    for number in range(4):
        alice.pass_ms(101)
        alice.sweep_buffers()
        alice.receive(message(f"b{number}"))
    assert given_up(alice) == ["m1"]
    assert "m1" not in alice.state.filter.ids
    assert len(alice.state.filter.ids) <= 2


@both
def test_attempts_survive_a_restart(dialect):
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.pass_ms(MINUTE + 1)
    alice.sweep_buffers()
    alice.restart()
    alice.pass_ms(MINUTE + 1)
    alice.sweep_buffers()
    assert resent(alice) == [("m1", 1), ("m1", 2)]


@both
def test_the_clock_going_back_starts_the_interval_anew(dialect):
    """Else nothing would be sent again until the clock has caught up."""
    alice = Machine(dialect=dialect)
    alice.pass_ms(1_000 * MINUTE)
    alice.send("m1")
    alice.now = NOW
    assert alice.sweep_buffers().changed
    alice.pass_ms(MINUTE + 1)
    alice.sweep_buffers()
    assert resent(alice) == [("m1", 1)]


@both
def test_the_clock_going_forward_costs_one_attempt(dialect):
    """However far it went."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.pass_ms(1_000_000 * MINUTE)
    for _ in range(3):
        alice.sweep_buffers()
    assert resent(alice) == [("m1", 1)]
    assert alice.outgoing == ["m1"]
