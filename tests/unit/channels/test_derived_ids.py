"""Ids that are derived from what they name: a forgery under an id that was heard changes nothing."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.channels.network import NOW, ROOM, entry, message

from holdfast.channels import Bus, Channels, ChannelSettings, Link, MemoryPersistence
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.errors import Invalid
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])


def member(name, dialect, *, derived=True, clock=None, persistence=None, **settings):
    channels = Channels(
        name,
        persistence,
        settings=ChannelSettings(dialect=dialect, derived_ids=derived, **settings),
        clock=clock or ManualClock(NOW * 1000, seed=len(name)),
    )
    channels.ensure_channel(ROOM)
    return channels


FORGERIES = {
    "content": {"content": b"forged"},
    "sender": {"sender_id": "mallory"},
    "time": {"lamport": NOW // 1000 + 100},
    "causes": {"causal_history": (entry("what nobody has"),)},
    "sync": {"content": b""},
    "channel": {"channel_id": "other"},
}


@both
@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_is_forged_under_a_known_id_does_not_suppress_the_true_message(dialect, forgery):
    """The forger is faster than the network. Without the option the true message is not heard in most of the cases."""
    wire = dialect_named(dialect)
    alice, bob = member("alice", dialect), member("bob", dialect)
    bob.ensure_channel("other")
    true = alice.wrap_outgoing_message(b"true", ROOM)
    forged = wire.encode(msgspec.structs.replace(wire.decode(true), **FORGERIES[forgery]))
    before = bob.channel(ROOM).snapshot(), bob.channel("other").snapshot()
    with pytest.raises(Invalid, match="not derived"):
        bob.unwrap_received_message(forged)
    assert (bob.channel(ROOM).snapshot(), bob.channel("other").snapshot()) == before
    assert bob.refused_total == 1
    received = bob.unwrap_received_message(true)
    assert (received.content, received.duplicate, received.missing) == (b"true", False, ())


@both
@pytest.mark.parametrize("forgery", ["content", "causes"])
def test_without_the_option_the_first_one_counts_as_ever(dialect, forgery):
    """Which is why it is there."""
    wire = dialect_named(dialect)
    alice, bob = member("alice", dialect, derived=False), member("bob", dialect, derived=False)
    true = alice.wrap_outgoing_message(b"true", ROOM)
    bob.unwrap_received_message(wire.encode(msgspec.structs.replace(wire.decode(true), **FORGERIES[forgery])))
    assert bob.unwrap_received_message(true).duplicate


@both
def test_resends_repairs_and_syncs_pass_the_check(dialect):
    """Also after a restart, and with retrieval hints in what they name."""
    clock, store = ManualClock(NOW * 1000), MemoryPersistence()
    quick = {"repair_t_min_ms": 100, "repair_t_max_ms": 500, "resend_interval_ms": 1_000}
    alice = member("alice", dialect, clock=clock, persistence=store, **quick)
    for number in range(5):
        sent_id, _ = alice.wrap_with_id(b"%d" % number, ROOM)
        alice.set_retrieval_hint(ROOM, sent_id, b"hint")
    alice = member("alice", dialect, clock=clock, persistence=store, **quick)
    bob = member("bob", dialect, clock=clock, **quick)
    bus = Bus(seed=5, loss=0.4)
    heard: list[bytes] = []
    bob.set_callbacks(message_ready=lambda event: heard.append(event.content))
    links = [bus.connect(alice), bus.connect(bob)]
    links[0].send(b"5", ROOM)
    for _ in range(60):
        clock.advance(1)
        for one in (alice, bob):
            one.run_repair_sweep()
            one.run_buffer_sweep()
            one.run_periodic_sync()
        bus.drain()
    assert heard == [b"%d" % number for number in range(6)]
    assert [link.stats().refused_total for link in links] == [0, 0]


@both
def test_equal_contents_are_different_messages(dialect):
    alice, bob = member("alice", dialect), member("bob", dialect)
    ids = {Link(alice, bob.unwrap_received_message).send(b"again", ROOM) for _ in range(50)}
    assert len(ids) == 50
    assert all(len(one) == 56 for one in ids)
    assert bob.channel(ROOM).stats().delivered_total == 50
    assert set(bob.channel(ROOM).history()) == ids


def test_ephemeral_messages_are_checked_too():
    alice, bob = member("alice", "rfc"), member("bob", "rfc")
    wire = dialect_named("rfc")
    data = alice.wrap_ephemeral_message(b"hi", ROOM)
    with pytest.raises(Invalid, match="not derived"):
        bob.unwrap_received_message(wire.encode(msgspec.structs.replace(wire.decode(data), content=b"ho")))
    assert bob.unwrap_received_message(data).content == b"hi"


@both
def test_ids_of_ones_own_are_refused_and_those_of_others_are_taken_by_those_who_do_not_check(dialect):
    alice, plain = member("alice", dialect), member("plain", dialect, derived=False)
    with pytest.raises(Invalid, match="derived"):
        alice.wrap_outgoing_message(b"content", ROOM, "my own")
    assert plain.unwrap_received_message(alice.wrap_outgoing_message(b"content", ROOM)).content == b"content"
    with pytest.raises(Invalid, match="not derived"):
        alice.unwrap_received_message(dialect_named(dialect).encode(message("b1")))
