"""Strangers who mean harm: nothing they send ends us, fills us, moves our clock far, or speaks for others."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.network import NOW, ROOM, Machine, entry, message
from tests.unit.channels.test_acknowledgement import FLOODS

from holdfast.channels import Channels, ChannelSettings, MemoryPersistence, ResendDue, SdsMessage
from holdfast.channels.keeping.storage import decode_data, encode_data
from holdfast.channels.protocol import receiving
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.channels.wire.nim import NimDialect
from holdfast.channels.wire.protobuf import delimited, varint
from holdfast.errors import Full, Invalid, NotFound
from holdfast.testing import ManualClock

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", ["nim", "rfc"])
DAY = 24 * 3600 * 1000


def opened(dialect="nim", persistence=None, **settings):
    channels = Channels(
        "alice", persistence, settings=ChannelSettings(dialect=dialect, **settings), clock=ManualClock()
    )
    channels.ensure_channel(ROOM)
    return channels


def encoded(dialect, *args, **fields):
    return dialect_named(dialect).encode(message(*args, **fields))


def alive(channels, dialect):
    """It still takes an honest message."""
    number = channels.channel(ROOM).stats().delivered_total
    channels.unwrap_received_message(encoded(dialect, f"honest{number}", lamport=2, sender="honest"))
    return channels.channel(ROOM).stats().delivered_total == number + 1


# -- what ends other implementations --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOODS)
def test_filters_that_crash_the_reference_implementation_do_not_crash_ours(name):
    """With something to acknowledge, so that the filter is looked at; the message is delivered."""
    channels = opened()
    channels.wrap_outgoing_message(b"content", ROOM, "m1")
    channels.unwrap_received_message(encoded("nim", "b1", bloom=FLOODS[name]))
    assert channels.channel(ROOM).stats().delivered_total == 1
    assert len(channels.channel(ROOM).outgoing()) == 1
    assert alive(channels, "nim")


@both
@pytest.mark.parametrize("lamport", [2**63 - 1, 2**63, 2**64 - 1, 2**62])
def test_lamport_times_that_break_the_reference_implementation_are_refused(dialect, lamport):
    """One message of 2^62 would move a channel's clock there forever."""
    channels = opened(dialect)
    tag = {"nim": b"\x10", "rfc": b"\x50"}[dialect]
    data = encoded(dialect, "b1", lamport=0).replace(tag + b"\0", tag + varint(lamport))
    before = channels.channel(ROOM).snapshot()
    with pytest.raises(Invalid, match="Lamport"):
        channels.unwrap_received_message(data)
    assert channels.refused_total == 1
    assert channels.channel(ROOM).snapshot() == before
    assert alive(channels, dialect)


@both
def test_a_lamport_time_may_be_a_day_ahead_and_no_more(dialect):
    """Of our own clock; what is refused is counted, here and in the channel, and changes nothing."""
    unit = dialect_named(dialect).clock_unit_ms
    channels = opened(dialect)
    with pytest.raises(Invalid, match="absurd") as refusal:
        channels.unwrap_received_message(encoded(dialect, "b1", lamport=(NOW + DAY) // unit + 1))
    assert "lamport_jump_max_ms" in refusal.value.hint
    assert channels.refused_total == 1
    assert channels.channel(ROOM).stats().refused_total == 1
    assert channels.channel(ROOM).stats().lamport == 0
    channels.unwrap_received_message(encoded(dialect, "b1", lamport=(NOW + DAY) // unit))
    assert channels.channel(ROOM).stats().delivered_total == 1


@both
def test_a_refused_time_settles_nothing(dialect):
    """Neither requests nor acknowledgements: a refusal changes nothing at all."""
    alice = Machine(dialect=dialect)
    alice.send("m1")
    alice.receive(message("b2", "b1"))
    before = alice.state.snapshot()
    with pytest.raises(Invalid):
        alice.receive(message("b1", "m1", lamport=2**60))
    assert alice.state.snapshot() == before


@both
def test_our_own_clock_being_wrong_does_not_shut_us_out(dialect):
    """A channel that lived in the future comes back with its clock: what it sent then and sends now is taken."""
    alice, bob = Machine(dialect=dialect, now=NOW + 100 * DAY), Machine("bob", dialect)
    sent = alice.send("m1")
    with pytest.raises(Invalid, match="absurd"):
        bob.receive(sent)
    alice.now = bob.now = NOW + 60_001
    alice.sweep_buffers()  # the clock went back: it begins to wait again
    alice.pass_ms(60_001)
    alice.sweep_buffers()
    again = alice.rules.dialect.decode(alice.of_kind(ResendDue)[0].data)
    assert not bob.receive(again).missing
    assert not bob.receive(alice.send("m2")).missing
    assert bob.ready == ["m1", "m2"]


@both
@pytest.mark.parametrize(
    "changes",
    [
        {"message_id": "a" * 1025},
        {"sender_id": "a" * 1025},
        {"channel_id": "a" * 1025},
        {"content": bytes(2**20 + 1)},
        {"bloom_filter": bytes(2**22 + 1)},
        {"causal_history": 1001},
        {"repair_request": 1001},
        {"hint": 4097},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fields_that_are_too_large_are_refused_and_counted(dialect, changes):
    """Before they are copied, kept, or passed on to others who would refuse them."""
    channels = opened(dialect)
    with pytest.raises(Invalid, match="limit"):
        channels.unwrap_received_message(oversized(dialect, changes))
    assert channels.refused_total == 1
    assert channels.channel(ROOM).stats().history == 0
    assert alive(channels, dialect)


def oversized(dialect, changes):
    """Written by hand: our encoder refuses, too."""
    number = {
        "nim": {"message_id": 1, "causal_history": 3, "channel_id": 4, "content": 5, "bloom_filter": 6, "sender_id": 7},
        "rfc": {
            "sender_id": 1,
            "message_id": 2,
            "channel_id": 3,
            "causal_history": 11,
            "bloom_filter": 12,
            "content": 20,
        },
    }[dialect] | {"repair_request": 13}
    data = encoded(dialect, "b1")
    for name, value in changes.items():
        if name == "hint":
            body = delimited(b"\x0a", b"x") + delimited(b"\x12", bytes(value))
            data += delimited(varint(number["causal_history"] << 3 | 2), body)
        elif isinstance(value, int):
            data += delimited(varint(number[name] << 3 | 2), delimited(b"\x0a", b"x")) * value
        else:
            data += delimited(varint(number[name] << 3 | 2), value if isinstance(value, bytes) else value.encode())
    return data


@both
@given(noise=st.binary(max_size=200), cut=st.integers(0, 60), at=st.integers(0, 60), flip=st.integers(0, 255))
def test_noise_and_damage_are_refused_or_taken_and_never_more(dialect, noise, cut, at, flip):
    """Invalid or NotFound, nothing else."""
    channels = opened(dialect)
    damaged = bytearray(encoded(dialect, "b1", "b0", requests=[entry("x")])[: max(1, cut)])
    damaged[at % len(damaged)] ^= flip
    for data in (noise, bytes(damaged)):
        try:
            channels.unwrap_received_message(data)
        except (Invalid, NotFound):
            pass
    assert alive(channels, dialect)


# -- strangers ------------------------------------------------------------------------------------------------


@both
def test_a_stranger_creates_no_channels(dialect):
    """In nim-sds any peer does; here the message is refused, counted, and nothing is loaded or kept."""
    store = MemoryPersistence()
    channels = opened(dialect, store)
    calls = list(store.calls)
    with pytest.raises(NotFound) as refusal:
        channels.unwrap_received_message(encoded(dialect, "b1", channel="other"))
    assert "accept_unknown_channels" in refusal.value.hint
    assert channels.channels() == [ROOM]
    assert channels.refused_total == 1
    assert store.calls == calls


@both
def test_a_message_for_no_channel_at_all_is_refused_and_counted(dialect):
    """Even where channels of strangers are welcome."""
    channels = opened(dialect, accept_unknown_channels=True)
    with pytest.raises(Invalid):
        channels.unwrap_received_message(encoded(dialect, "b1", channel=""))
    assert channels.refused_total == 1
    assert channels.channels() == [ROOM]


@both
def test_a_message_in_our_name_is_not_delivered_and_speaks_for_nobody(dialect):
    """It acknowledges nothing, and says that it is ours."""
    channels = opened(dialect)
    channels.wrap_outgoing_message(b"content", ROOM, "m1")
    received = channels.unwrap_received_message(encoded(dialect, "forged", "m1", sender="alice"))
    assert received.own
    assert channels.channel(ROOM).stats().delivered_total == 0
    assert channels.channel(ROOM).stats().outgoing == 1


@both
def test_without_a_participant_id_everything_works_but_repair(dialect):
    """The empty id is nobody's: a message without a sender is not taken for our own."""
    channels = Channels("", settings=ChannelSettings(dialect=dialect), clock=ManualClock())
    channels.ensure_channel(ROOM)
    channels.wrap_outgoing_message(b"content", ROOM, "m1")
    received = channels.unwrap_received_message(encoded(dialect, "b1", "m1", "x", sender=""))
    assert not received.own
    stats = channels.channel(ROOM).stats()
    assert (stats.outgoing, stats.incoming, stats.requests) == (0, 1, 0)
    channels.mark_dependencies_met(["x"], ROOM)
    assert channels.channel(ROOM).stats().delivered_total == 1


# -- storms ---------------------------------------------------------------------------------------------------


@both
def test_a_storm_of_duplicates_keeps_nothing_and_grows_nothing(dialect):
    """Of delivered, of waiting and of our own messages: no commit, no state."""
    store = MemoryPersistence()
    channels = opened(dialect, store)
    own = channels.wrap_outgoing_message(b"content", ROOM, "m1")
    storm = [encoded(dialect, "b1"), encoded(dialect, "b3", "b2"), own]
    for data in storm:
        channels.unwrap_received_message(data)
    channel = channels.channel(ROOM)
    before, commits, known = channel.snapshot(), len(store.calls), channel.state.filter.ids
    for _ in range(200):
        for data in storm:
            channels.unwrap_received_message(data)
    assert len(store.calls) == commits
    assert (channel.snapshot(), channel.state.filter.ids) == (before, known)
    assert channel.stats().duplicates_total == 601
    assert channel.stats().commits_total == 3


@both
def test_a_storm_of_messages_that_wait_fills_its_buffers_and_no_more(dialect):
    """Every buffer has a bound; what is refused is counted and leaves no trace where we are kept."""
    store = MemoryPersistence()
    channels = opened(dialect, store, incoming_max=20, repairs_max=10, history_max=15, bloom_capacity=40)
    for number in range(300):
        data = encoded(dialect, f"b{number}", f"x{number}", lamport=number, requests=[entry("m1", "alice")])
        channels.unwrap_received_message(data)
    for number in range(300):
        channels.unwrap_received_message(encoded(dialect, f"c{number}", lamport=number))
        channels.unwrap_received_message(
            encoded(dialect, f"q{number}", lamport=number, requests=[entry(f"c{number}", "bob")])
        )
    stats = channels.channel(ROOM).stats()
    assert (stats.incoming, stats.requests, stats.responses, stats.history) == (20, 10, 10, 15)
    assert stats.refused_total == 280
    assert len(channels.channel(ROOM).state.filter.ids) <= 48
    kept = store.load_channel(ROOM)
    assert (len(kept.meta.incoming), len(kept.history)) == (20, 15)


@both
def test_a_storm_of_sync_messages_leaves_no_more_than_its_marks(dialect):
    """They are no conversation: nothing of them is in history or in the filter."""
    alice = Machine(dialect=dialect, repairs_max=10)
    for number in range(1_200):
        alice.receive(message(f"s{number}", f"x{number}", content=b"", lamport=number))
    assert len(alice.state.synced) == 1_000
    assert len(alice.state.requests) == 10
    assert alice.state.filter.ids == []
    assert alice.state.incoming == {}
    alice.check()


@both
def test_a_message_of_a_thousand_causes_is_taken(dialect):
    """The most that may be named; asked for within bounds, delivered when all are here."""
    alice = Machine(dialect=dialect, repairs_max=50)
    causes = [f"x{number}" for number in range(1_000)]
    alice.receive(message("b1", *causes))
    assert len(alice.state.requests) == 50
    alice.mark(*causes)
    assert alice.ready == ["b1"]
    alice.check()


@both
def test_our_own_sending_is_bounded(dialect):
    """Full, not memory without end, when nobody acknowledges."""
    channels = opened(dialect, outgoing_max=5)
    for _ in range(5):
        channels.wrap_outgoing_message(b"content", ROOM)
    with pytest.raises(Full):
        channels.wrap_outgoing_message(b"content", ROOM)
    assert channels.channel(ROOM).stats().outgoing == 5


@both
def test_a_reused_id_is_a_duplicate_and_does_not_change_what_was_said(dialect):
    """The second message with an id is not heard."""
    channels = opened(dialect)
    channels.unwrap_received_message(encoded(dialect, "b1", content=b"first"))
    assert channels.unwrap_received_message(encoded(dialect, "b1", content=b"second")).duplicate
    assert channels.channel(ROOM).state.history.get("b1").content == b"first"


@both
def test_long_ids_of_strangers_do_not_silence_us(dialect):
    """What a message names is bounded in bytes, too: as many as fit are named, the newest, and the rest is not."""
    alice = Machine(dialect=dialect, causal_history_max=500, repair_requests_max=500, repair_t_min_ms=0)
    for number in range(500):
        one = message(f"b{number:03}" + "x" * 1_000, sender="y" * 1_024, lamport=number)
        assert alice.receive(one).missing == ()
    alice.receive(message("b", *(entry(f"m{number:03}" + "x" * 1_000, "y" * 1_024) for number in range(120))))
    alice.pass_ms(10**7)
    for number in range(300):
        alice.receive(message(f"c{number}", entry(f"n{number:03}" + "x" * 1_000, "y" * 1_024)))
    alice.pass_ms(10**7)
    for name in ("first", "second"):
        sent = alice.send(name)
        assert 50 < len(sent.causal_history) < 100
        assert 50 < len(sent.repair_request) < 100
        assert alice.sync(f"sync {name}") is not None
    assert sent.causal_history[-1].message_id == "first"


@both
def test_waiting_messages_are_bounded_in_bytes(dialect, monkeypatch):
    """As many large ones as there is room for; small ones still find some, and what is delivered makes more."""
    monkeypatch.setattr(receiving, "INCOMING_BYTES_MAX", 10_000)
    alice = Machine(dialect=dialect)
    assert not alice.receive(message("b1", "x", content=bytes(6_000))).refused
    assert alice.receive(message("b2", "x", content=bytes(6_000))).refused
    assert not alice.receive(message("b3", "x", content=bytes(3_000))).refused
    alice.check()
    alice.receive(message("x"))
    assert alice.ready == ["x", "b1", "b3"]
    assert alice.state.incoming_bytes == 0
    assert not alice.receive(message("b2", "y", content=bytes(6_000))).refused


@both
def test_content_beyond_our_own_bound_is_refused_on_receipt(dialect):
    channels = opened(dialect, content_bytes_max=100)
    with pytest.raises(Invalid, match="content_bytes_max"):
        channels.unwrap_received_message(encoded(dialect, "b1", content=bytes(101)))
    assert channels.refused_total == 1
    assert not channels.unwrap_received_message(encoded(dialect, "b1", content=bytes(100))).duplicate


# -- ids that are no text -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("raw_id", [b"\xff\xfe", b"\x80", b"ok\xc3", b"\xed\xa0\x80", b"\0"])
def test_ids_of_any_bytes_survive_the_wire_and_storage(dialect, raw_id):
    """As id, cause, sender and channel; what is sent again has the same bytes."""
    odd = raw_id.decode("utf-8", "surrogateescape")
    store = MemoryPersistence()
    channels = Channels("alice", store, settings=ChannelSettings(dialect=dialect), clock=ManualClock())
    channels.ensure_channel(odd)
    wire = dialect_named(dialect)
    sent = SdsMessage(odd, odd, 1, b"content", odd, (entry(odd + "x", odd),), b"", (entry(odd + "y", odd),))
    data = wire.encode(sent)
    assert data.count(raw_id) >= 7
    assert wire.encode(wire.decode(data)) == data
    received = channels.unwrap_received_message(data)
    assert received.missing == (entry(odd + "x", odd),)
    channels.mark_dependencies_met([odd + "x"], odd)
    assert channels.channel(odd).history() == [odd]
    kept = store.load_channel(odd)
    assert decode_data(encode_data(kept)) == kept
    restarted = Channels("alice", store, settings=ChannelSettings(dialect=dialect), clock=ManualClock())
    restarted.ensure_channel(odd)
    assert restarted.channel(odd).history() == [odd]
    assert restarted.channel(odd).snapshot() == channels.channel(odd).snapshot()
    named = wire.decode(restarted.wrap_outgoing_message(b"content", odd)).causal_history
    assert [one.message_id for one in named] == [odd]


# -- wrong calls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["\ud800", 7, None, "a" * 1025])
def test_marking_what_is_no_id_is_refused_before_anything_is_marked(bad):
    """It would be in every snapshot from then on, and none could be kept."""
    channels = opened()
    with pytest.raises(Invalid):
        channels.mark_dependencies_met(["good", bad], ROOM)
    assert channels.channel(ROOM).snapshot().met == ()


def test_one_id_is_not_taken_for_the_ids_of_its_letters():
    with pytest.raises(Invalid, match="must be a list of ids"):
        opened().mark_dependencies_met("b1", ROOM)


@pytest.mark.parametrize("bad", ["", "\ud800", 7, "a" * 1025])
def test_sending_under_what_is_no_id_is_refused(bad):
    channels = opened()
    with pytest.raises(Invalid):
        channels.wrap_outgoing_message(b"content", ROOM, bad)
    assert channels.channel(ROOM).history() == []


def test_content_that_is_no_bytes_is_refused():
    with pytest.raises(Invalid, match="bytes"):
        opened().wrap_outgoing_message("text", ROOM)


def test_a_hint_that_nobody_would_read_does_not_keep_us_from_sending():
    """A provider that returns the thing instead of a reference would else end the channel for good."""
    channels = Channels("alice", clock=ManualClock(), retrieval_hint=lambda *_: bytes(5_000))
    for _ in range(3):
        data = channels.wrap_outgoing_message(b"content", ROOM)
    assert [one.retrieval_hint for one in dialect_named("nim").decode(data).causal_history] == [b"", b""]
    with pytest.raises(Invalid, match="hint"):
        channels.set_retrieval_hint(ROOM, "m1", bytes(5_000))


@pytest.mark.parametrize("name", ["causal_history_max", "repair_requests_max", "content_bytes_max"])
def test_settings_that_would_make_messages_nobody_takes_are_refused(name):
    """They would be noticed by the first message that is too large."""
    with pytest.raises(Invalid, match=name):
        ChannelSettings(**{name: 2**21})


# -- work -----------------------------------------------------------------------------------------------------


def seconds_of(work):
    """On the processor, whatever else runs."""
    begun = process_time()
    work()
    return process_time() - begun


def test_the_filter_of_a_duplicate_is_not_read(monkeypatch):
    """Four megabytes that say nothing new."""
    alice = Machine()
    alice.send("m1")
    alice.receive(message("b1", bloom=bytes(2**22)))
    monkeypatch.setattr(NimDialect, "read_filter", None)
    assert alice.receive(message("b1", "m1", bloom=bytes(2**22))).duplicate


@both
def test_a_message_of_a_thousand_new_causes_is_little_work(dialect):
    """Also when all buffers are full: it was half a second each, once."""
    alice = Machine(dialect=dialect)

    def storm():
        for number in range(20):
            alice.receive(message(f"b{number}", *(f"x{number}/{cause}" for cause in range(1_000))))

    assert seconds_of(storm) < 3
    alice.check()


@both
def test_many_messages_that_wait_for_the_same_thousand_are_little_work(dialect):
    """It was fifteen seconds, once."""
    alice = Machine(dialect=dialect)
    causes = [f"x{cause}" for cause in range(1_000)]
    for number in range(300):
        alice.receive(message(f"b{number}", *causes, lamport=number))
    assert seconds_of(lambda: alice.mark(*causes)) < 3
    assert len(alice.ready) == 300


@both
def test_thousands_of_cycles_are_little_work(dialect):
    alice = Machine(dialect=dialect, lost_after_ms=1, incoming_max=10_000)
    for number in range(2_000):
        alice.receive(message(f"a{number}", f"b{number}"))
        alice.receive(message(f"b{number}", f"a{number}"))
    alice.pass_ms(2)
    assert seconds_of(alice.sweep_buffers) < 3
    assert len(alice.ready) == 4_000
