"""Channels with a key: strangers can neither read nor forge, whatever they do with what they hear."""

from __future__ import annotations

import logging
import pickle

import pytest
from tests.unit.channels.network import NOW, ROOM, entry, message

from holdfast import Keyring
from holdfast.channels import Bus, Channels, ChannelSettings, Link, MemoryPersistence, UdpTransport
from holdfast.channels.keeping.snapshot import ChannelMeta, RepairResponse
from holdfast.channels.wire.detect import detect
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.channels.wire.encrypted_messages import ChannelCipher
from holdfast.errors import Invalid, NotFound
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
KEYS = Keyring({"k1": b"1" * 32})
SECRET = b"the secret that nobody else may read"


def member(name, dialect="nim", keys=KEYS, persistence=None, clock=None, **settings):
    channels = Channels(
        name,
        persistence,
        settings=ChannelSettings(dialect=dialect, **settings),
        clock=clock or ManualClock(NOW * 1000, seed=len(name)),
        keys=keys,
    )
    channels.ensure_channel(ROOM)
    return channels


def wire(dialect, *args, **fields):
    return dialect_named(dialect).encode(message(*args, **fields))


@both
def test_who_has_the_key_talks_as_before(dialect):
    alice, bob = member("alice", dialect), member("bob", dialect)
    first = bob.unwrap_received_message(alice.wrap_outgoing_message(SECRET, ROOM))
    assert first.content == SECRET
    alice.unwrap_received_message(bob.wrap_outgoing_message(b"and back", ROOM))
    assert alice.channel(ROOM).outgoing() == []


@both
def test_everything_that_goes_out_is_encrypted(dialect):
    """Content, ephemeral content, resends, repairs and syncs: no packet shows what is in it, or whose it is."""
    clock = ManualClock(NOW * 1000)
    quick = {"repair_t_min_ms": 0, "repair_t_max_ms": 100, "resend_interval_ms": 1}
    alice, bob = member("alice", dialect, clock=clock, **quick), member("bob", dialect, clock=clock, **quick)
    packets: list[bytes] = []
    door = Link(alice, packets.append)
    kinds = []
    alice.set_callbacks(
        resend_due=lambda event: kinds.append("resend"),
        repair_ready=lambda event: kinds.append("repair"),
        periodic_sync=lambda event: kinds.append("sync"),
    )
    message_id = door.send(SECRET, ROOM)
    if dialect == "rfc":
        door.send_ephemeral(SECRET, ROOM)
    bob.unwrap_received_message(packets[0])
    lacks = dialect_named(dialect).encode(
        message("ask", lamport=NOW // 1000, sender="carol", requests=[entry(message_id, "alice")])
    )
    door.receive(ChannelCipher(ROOM, KEYS).encrypt(lacks))
    clock.advance(10)
    alice.run_buffer_sweep()
    alice.run_repair_sweep()
    alice.run_periodic_sync()
    assert set(kinds) == {"resend", "repair", "sync"}
    assert len(packets) >= 4
    for packet in packets:
        assert packet[:2] == b"\0\1"
        assert detect(packet) is None
        for of_kind in (SECRET, b"alice", ROOM.encode(), message_id.encode()):
            assert of_kind not in packet
        assert bob.unwrap_received_message(packet).sender_id == "alice"
    assert len(set(packets)) == len(packets)


@both
def test_a_channel_with_a_key_takes_nothing_that_is_not_encrypted(dialect, caplog):
    """Nor one without what is: both say why, count it, and warn once."""
    keyed, plain = member("alice", dialect), member("bob", dialect, keys=None)
    with caplog.at_level(logging.WARNING, "holdfast.channels"):
        for number in range(3):
            with pytest.raises(Invalid, match="has a key, and the message is not encrypted"):
                keyed.unwrap_received_message(wire(dialect, f"b{number}", lamport=1))
            with pytest.raises(Invalid, match="no key of an open channel decrypts it"):
                plain.unwrap_received_message(keyed.wrap_outgoing_message(SECRET, ROOM))
    assert [one.action for one in caplog.records] == ["channel_key_mismatch"] * 2
    assert keyed.refused_total == plain.refused_total == 3
    assert keyed.channel(ROOM).stats().delivered_total == plain.channel(ROOM).stats().delivered_total == 0


@both
def test_a_stranger_does_not_create_a_plain_channel_where_there_is_a_key(dialect):
    channels = Channels(
        "alice", settings=ChannelSettings(dialect=dialect, accept_unknown_channels=True), keys={"secret": KEYS}
    )
    with pytest.raises(Invalid, match="not encrypted"):
        channels.unwrap_received_message(wire(dialect, "b1", channel="secret"))
    assert channels.channels() == []
    channels.unwrap_received_message(wire(dialect, "b1", channel="open"))
    assert channels.channels() == ["open"]


@both
def test_no_changed_packet_opens(dialect):
    """Every bit counts, and so does every length."""
    alice, bob = member("alice", dialect, bloom_capacity=1, history_max=1), member("bob", dialect)
    packet = alice.wrap_outgoing_message(b"x", ROOM)
    for at in range(len(packet)):
        changed = bytearray(packet)
        changed[at] ^= 1 << at % 8
        with pytest.raises((Invalid, NotFound)):
            bob.unwrap_received_message(bytes(changed))
    for size in range(len(packet)):
        with pytest.raises((Invalid, NotFound)):
            bob.unwrap_received_message(packet[:size])
    with pytest.raises(Invalid):
        bob.unwrap_received_message(packet + b"\0")
    assert bob.channel(ROOM).stats().delivered_total == 0
    assert not bob.unwrap_received_message(packet).duplicate


@both
def test_a_packet_opens_in_its_own_channel_alone(dialect):
    """Also where all channels share one key: neither as it is, nor under another channel's route."""
    alice, bob = member("alice", dialect), member("bob", dialect)
    for one in (alice, bob):
        one.ensure_channel("other")
    packet = alice.wrap_outgoing_message(b"for the room", ROOM)
    route = alice.wrap_outgoing_message(b"x", "other")[:10]
    with pytest.raises(Invalid, match="not authentic"):
        bob.unwrap_received_message(route + packet[10:])
    encrypted_here = ChannelCipher("other", KEYS).encrypt(wire(dialect, "b1", channel=ROOM))
    with pytest.raises(Invalid, match="names another channel"):
        bob.unwrap_received_message(encrypted_here)
    assert bob.channel("other").stats().delivered_total == bob.channel(ROOM).stats().delivered_total == 0


@both
def test_a_packet_that_is_sent_again_is_a_duplicate(dialect):
    alice, bob = member("alice", dialect), member("bob", dialect)
    packet = alice.wrap_outgoing_message(SECRET, ROOM)
    assert not bob.unwrap_received_message(packet).duplicate
    assert all(bob.unwrap_received_message(packet).duplicate for _ in range(10))
    assert bob.channel(ROOM).stats().delivered_total == 1


@both
def test_keys_are_rotated_member_by_member_and_nothing_is_lost(dialect):
    """First everybody decrypts with the new key, then everybody encrypts with it, then the old one goes."""
    old = Keyring({"old": b"1" * 32})
    behind = Keyring({"old": b"1" * 32, "new": b"2" * 32})
    front = Keyring({"another-name": b"2" * 32, "old": b"1" * 32})
    for mine, theirs in ((old, behind), (behind, front), (front, behind), (front, Keyring({"n": b"2" * 32}))):
        alice, bob = member("alice", dialect, mine), member("bob", dialect, theirs)
        assert bob.unwrap_received_message(alice.wrap_outgoing_message(SECRET, ROOM)).content == SECRET
    gone = member("carol", dialect, Keyring({"new": b"2" * 32}))
    with pytest.raises(Invalid, match="no key"):
        gone.unwrap_received_message(member("alice", dialect, old).wrap_outgoing_message(SECRET, ROOM))


def test_clones_of_a_process_never_use_a_key_twice(monkeypatch):
    """The same bytes, encrypted a thousand times: each has a salt of its own, and so a key."""
    cipher = ChannelCipher(ROOM, KEYS)
    packets = [cipher.encrypt(b"the same") for _ in range(1_000)]
    assert len({packet[10:34] for packet in packets}) == 1_000
    twin = [ChannelCipher(ROOM, KEYS, random=lambda size: b"x" * size) for _ in range(2)]
    assert twin[0].encrypt(b"one")[10:34] != twin[1].encrypt(b"two")[10:34]


@both
def test_a_channel_that_had_a_key_does_not_open_without(dialect):
    """It would go on in the clear; the other way round is how a key is introduced."""
    store = MemoryPersistence()
    member("alice", dialect, persistence=store).wrap_outgoing_message(SECRET, ROOM)
    with pytest.raises(Invalid, match="was used with a key") as refusal:
        member("alice", dialect, keys=None, persistence=store)
    assert "remove_channel" in refusal.value.hint
    again = member("alice", dialect, persistence=store)
    assert len(again.channel(ROOM).outgoing()) == 1
    plain = MemoryPersistence()
    member("bob", dialect, keys=None, persistence=plain).wrap_outgoing_message(b"open", ROOM)
    assert member("bob", dialect, persistence=plain).channel(ROOM).snapshot().encrypted


@both
def test_answers_that_were_kept_in_the_clear_are_not_sent(dialect):
    """nim-sds keeps bytes with its answers, as they would go out."""
    store = MemoryPersistence()
    kept = RepairResponse(entry("b1"), NOW, b"plain bytes")
    store.save_channel_meta(ROOM, ChannelMeta(lamport=1, responses=(kept,), dialect=dialect))
    clock = ManualClock(NOW * 1000)
    alice = member("alice", dialect, persistence=store, clock=clock)
    sent: list[bytes] = []
    Link(alice, sent.append)
    clock.advance(1_000)
    alice.run_repair_sweep()
    assert sent == []


@pytest.mark.parametrize("bad", [7, b"1" * 32, "no reference", "c2VjcmV0LXNlY3JldC1zZWNyZXQ=", "env:", {"room": 7}])
def test_keys_come_by_reference_and_are_never_shown(bad):
    with pytest.raises(Invalid) as refusal:
        Channels("alice", keys=bad)
    assert "c2VjcmV0" not in str(refusal.value)
    assert "1111" not in str(refusal.value)


def test_a_key_pasted_into_the_settings_is_refused_and_not_shown():
    with pytest.raises(Invalid, match="reference") as refusal:
        ChannelSettings(keyring="c2VjcmV0LXNlY3JldC1zZWNyZXQ=")
    assert "c2VjcmV0" not in str(refusal.value)


def test_keys_by_environment_file_function_and_setting(monkeypatch, tmp_path):
    KEYS.save(tmp_path / "room.keys")
    monkeypatch.setenv("ROOM_KEYS", (tmp_path / "room.keys").read_text())
    given = [
        "env:ROOM_KEYS",
        f"file:{tmp_path / 'room.keys'}",
        {ROOM: "env:ROOM_KEYS"},
        lambda channel_id: KEYS if channel_id == ROOM else None,
    ]
    talkers = [member("alice", keys=keys) for keys in given]
    talkers.append(member("alice", keys=None, keyring="env:ROOM_KEYS"))
    for alice in talkers:
        bob = member("bob")
        assert bob.unwrap_received_message(alice.wrap_outgoing_message(SECRET, ROOM)).content == SECRET
        shown = f"{alice!r} {alice.channel(ROOM)!r} {alice.channel(ROOM).state.rules.dialect.cipher!r} {vars(alice)!r}"
        assert "11111111" not in shown
        assert "MTEx" not in shown
    with pytest.raises(NotFound):
        Channels("alice", keys="env:NO_SUCH_VARIABLE")
    with pytest.raises(Invalid, match="pickled"):
        pickle.dumps(KEYS)


@both
def test_a_stranger_on_the_network_changes_nothing_for_those_who_have_the_key(dialect):
    """He hears everything, sends it again, changes it, and sends what he likes in anybody's name."""
    clock = ManualClock(NOW * 1000)
    bus = Bus(seed=3, loss=0.1, duplication=0.1)
    quick = {"repair_t_min_ms": 100, "repair_t_max_ms": 500, "resend_interval_ms": 1_000}
    members = {name: member(name, dialect, clock=clock, **quick) for name in ("alice", "bob", "carol")}
    links = {name: bus.connect(one) for name, one in members.items()}
    heard: dict[str, list[bytes]] = {name: [] for name in members}
    for name, one in members.items():
        one.set_callbacks(message_ready=lambda event, name=name: heard[name].append(event.content))
    captured: list[bytes] = []
    bus.join("mallory", captured.append)
    for number in range(20):
        links["alice" if number % 2 else "bob"].send(b"%d" % number, ROOM)
        bus.send("mallory", wire(dialect, f"evil{number}", lamport=NOW // 1000, sender="alice", content=b"evil"))
        for packet in captured[-5:]:
            bus.send("mallory", packet)
            bus.send("mallory", packet[:40] + bytes(8) + packet[48:])
        bus.drain()
    for _ in range(40):
        clock.advance(1)
        for one in members.values():
            one.run_repair_sweep()
            one.run_buffer_sweep()
            one.run_periodic_sync()
        bus.drain()
    said = {b"%d" % number for number in range(20)}
    assert sorted(heard["carol"]) == sorted(said)
    assert sorted(heard["alice"] + heard["bob"]) == sorted(said)
    assert all(SECRET not in packet for packet in captured)


def test_over_udp_the_largest_content_fits_when_it_is_encrypted():
    """What is refused is refused before anything is kept."""
    with member("alice") as alice, UdpTransport(alice, peers=[("127.0.0.1", 9)]) as here:
        with pytest.raises(Invalid, match="carries"):
            here.send(bytes(50_000), ROOM)
        assert alice.channel(ROOM).history() == []
        assert here.send(bytes(42_000), ROOM)
        assert here.stats().sent_total == 1


@both
def test_the_largest_message_fits_and_nothing_larger_is_opened(dialect):
    alice, bob = member("alice", dialect), member("bob", dialect)
    content = bytes(2**20)
    assert bob.unwrap_received_message(alice.wrap_outgoing_message(content, ROOM)).content == content
    route = alice.wrap_outgoing_message(b"x", ROOM)[:10]
    with pytest.raises(Invalid, match="not an encrypted message"):
        bob.unwrap_received_message(route + bytes(6 * 2**20))
