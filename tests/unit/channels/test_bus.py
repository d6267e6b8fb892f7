"""The network in one process: it repeats for a seed, and does to packets what its settings say; and links over it."""

from __future__ import annotations

import pytest

from holdfast.channels import Channels, ChannelSettings
from holdfast.channels.transport.bus import Bus
from holdfast.channels.transport.link import Link
from holdfast.errors import Invalid, Unavailable
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.unit


def heard_by(bus: Bus, *names: str) -> dict[str, list[bytes]]:
    heard: dict[str, list[bytes]] = {name: [] for name in names}
    for name in names:
        bus.join(name, heard[name].append)
    return heard


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def send_all(bus: Bus, sender: str, messages: list[bytes]) -> None:
    for message in messages:
        bus.send(sender, message)


def test_a_perfect_bus_gives_everything_to_all_others_once_and_in_order():
    bus = Bus()
    heard = heard_by(bus, "a", "b", "c")
    send_all(bus, "a", numbered(50))
    assert bus.drain() == 100
    assert heard == {"a": [], "b": numbered(50), "c": numbered(50)}


def test_a_seed_gives_the_same_deliveries_again_and_another_one_others():
    def run(seed: int) -> dict[str, list[bytes]]:
        bus = Bus(seed, loss=0.3, duplication=0.2, reordering=0.5)
        heard = heard_by(bus, "a", "b", "c")
        send_all(bus, "a", numbered(100))
        bus.drain()
        return heard

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_shares_are_what_they_were_asked_to_be_and_every_packet_is_accounted_for():
    bus = Bus(3, loss=0.3, duplication=0.2, reordering=0.4)
    heard = heard_by(bus, "a", "b")
    send_all(bus, "a", numbered(2_000))
    bus.drain()
    stats = bus.stats()
    assert 0.25 < stats.lost_total / 2_000 < 0.35
    assert 0.15 < stats.duplicated_total / (2_000 - stats.lost_total) < 0.25
    assert stats.delivered_total == len(heard["b"]) == 2_000 - stats.lost_total + stats.duplicated_total
    firsts = [int(message) for message in dict.fromkeys(heard["b"])]
    assert firsts != sorted(firsts)
    assert stats.under_way == 0


def test_time_passes_only_when_it_is_asked_to():
    bus = Bus(delay=10)
    heard = heard_by(bus, "a", "b")
    bus.send("a", b"x")
    assert bus.deliver(until=9) == 0
    assert heard["b"] == []
    assert bus.deliver(until=10) == 1
    assert heard["b"] == [b"x"]
    assert bus.now == 10
    assert not bus.step()


def test_what_is_sent_while_delivering_arrives_within_the_same_time():
    bus = Bus(delay=1)
    heard = heard_by(bus, "a")
    bus.join("b", lambda data: bus.send("b", data + b"!"))
    bus.send("a", b"x")
    bus.deliver(until=5)
    assert heard["a"] == [b"x!"]


def test_groups_do_not_hear_each_other_until_they_are_healed():
    bus = Bus(delay=10)
    heard = heard_by(bus, "a", "b", "c", "d")
    bus.split([["a", "b"], ["c"]])
    bus.send("a", b"1")
    bus.send("d", b"2")
    bus.drain()
    assert heard == {"a": [], "b": [b"1"], "c": [], "d": []}
    bus.heal()
    bus.send("a", b"3")
    bus.split([["b"]])  # what is under way is cut, too
    bus.drain()
    assert heard == {"a": [], "b": [b"1"], "c": [b"3"], "d": [b"3"]}
    assert bus.stats().cut_total == 6


def test_members_who_left_hear_nothing_and_those_who_come_back_hear_what_is_under_way():
    bus = Bus(delay=10)
    heard = heard_by(bus, "a", "b")
    bus.send("a", b"1")
    bus.leave("b")
    bus.drain()
    bus.send("a", b"2")  # nobody is there to send it to
    bus.join("b", heard["b"].append)
    bus.send("a", b"3")
    bus.leave("b")
    bus.join("b", heard["b"].append)
    bus.drain()
    assert heard["b"] == [b"3"]
    assert bus.stats().absent_total == 1
    with pytest.raises(Invalid, match="already"):
        bus.join("b", heard["b"].append)


def test_a_bus_that_is_full_loses_newcomers():
    bus = Bus(packets_max=3)
    heard = heard_by(bus, "a", "b")
    send_all(bus, "a", numbered(5))
    bus.drain()
    assert heard["b"] == numbered(3)
    assert bus.stats().overflowed_total == 2


@pytest.mark.parametrize("wrong", [{"loss": 1.5}, {"duplication": -0.1}, {"reordering": 2}, {"delay": -1}])
def test_a_network_that_cannot_be_is_refused(wrong):
    with pytest.raises(Invalid, match=next(iter(wrong))):
        Bus(**wrong)


# -- links ------------------------------------------------------------------------------------------------------------


def pair(bus: Bus, **settings: object) -> tuple[Channels, Channels, Link, Link, ManualClock]:
    clock = ManualClock(seed=1)
    given = ChannelSettings(bloom_capacity=100, history_max=100, **settings)
    alice, bob = (Channels(name, settings=given, clock=clock) for name in ("alice", "bob"))
    for one in (alice, bob):
        one.ensure_channel("room")
    return alice, bob, bus.connect(alice), bus.connect(bob), clock


def test_two_participants_talk_over_a_bus_and_keep_their_callbacks():
    bus = Bus()
    alice, bob, here, there, _ = pair(bus)
    ready, sent = [], []
    bob.set_callbacks(message_ready=ready.append)
    alice.set_callbacks(message_sent=sent.append)
    message_id = here.send(b"hello", "room")
    bus.drain()
    there.send(b"hello yourself", "room")
    bus.drain()
    assert [(event.message_id, event.content, event.sender_id) for event in ready] == [(message_id, b"hello", "alice")]
    assert [event.message_id for event in sent] == [message_id]
    assert here.stats().sent_total == here.stats().received_total == 1


def test_resends_syncs_and_repairs_go_out_by_themselves_and_are_announced_to_the_application_as_well():
    bus = Bus()
    alice, bob, here, _, clock = pair(bus, resend_interval_ms=1_000, repair_t_min_ms=0, repair_t_max_ms=1)
    of_kind = []
    alice.set_callbacks(resend_due=of_kind.append, periodic_sync=of_kind.append, repair_ready=of_kind.append)
    bus.split([["alice"]])
    first = here.send(b"first", "room")
    bus.heal()
    here.send(b"second", "room")
    bus.drain()
    assert len(bob.channel("room").incoming()) == 1
    clock.advance(0.01)
    bob.run_periodic_sync()  # asks for the first one
    bus.drain()
    alice.run_repair_sweep()
    bus.drain()
    assert bob.channel("room").history()[0] == first
    assert [type(event).__name__ for event in of_kind] == ["RepairReady"]
    clock.advance(2)
    alice.run_buffer_sweep()
    alice.run_periodic_sync()
    assert [type(event).__name__ for event in of_kind] == ["RepairReady", "ResendDue", "PeriodicSync"]
    assert bus.drain() == 2


def test_packets_that_are_no_messages_of_ours_are_counted_and_stop_nobody():
    bus = Bus()
    _, bob, here, there, _ = pair(bus)
    stranger = Channels("stranger")
    for packet in (b"", b"\xff" * 100, stranger.wrap_outgoing_message(b"x", "elsewhere"), bytes(2**17)):
        bus.send("nobody", packet)
    here.send(b"hello", "room")
    bus.drain()
    assert there.stats().refused_total == bob.refused_total == 4
    assert there.stats().received_total == 1
    bob.close()
    assert there.receive(b"x") is None


def test_a_transport_that_fails_is_a_network_that_loses(caplog):
    def refuse(data: bytes) -> None:
        raise OSError("no route")

    clock = ManualClock()
    alice = Channels("alice", clock=clock)
    link = Link(alice, refuse)
    message_id = link.send(b"hello", "room")
    clock.advance(100)
    alice.run_buffer_sweep()
    assert link.stats().failed_total == 2
    assert [entry.message.message_id for entry in alice.channel("room").outgoing()] == [message_id]
    assert "no route" in caplog.text


def test_content_beyond_what_the_transport_carries_is_refused_with_nothing_changed():
    carried: list[bytes] = []
    alice = Channels("alice", clock=ManualClock())
    link = Link(alice, carried.append, bytes_max=30_000)
    link.send(b"x", "room")
    before = alice.channel("room").snapshot(), alice.channel("room").history()
    with pytest.raises(Invalid, match="carries 30000") as refusal:
        link.send(bytes(10_000), "room")
    assert "bloom_capacity" in refusal.value.hint
    assert (alice.channel("room").snapshot(), alice.channel("room").history()) == before
    link.send(bytes(7_000), "room")
    assert len(carried) == 2
    assert all(len(data) <= 30_000 for data in carried)


def test_an_ephemeral_message_is_heard_by_whom_it_reaches_and_bounded_like_others():
    bus = Bus()
    clock = ManualClock()
    alice, bob = (Channels(name, settings=ChannelSettings(dialect="rfc"), clock=clock) for name in ("alice", "bob"))
    ready = []
    bob.ensure_channel("room")
    bob.set_callbacks(message_ready=ready.append)
    bus.connect(bob)
    Link(alice, lambda data: bus.send("alice", data), bytes_max=100).send_ephemeral(b"typing", "room")
    bus.drain()
    assert [(event.content, event.lamport) for event in ready] == [(b"typing", None)]
    with pytest.raises(Invalid, match="carries 100"):
        Link(alice, ready.append, bytes_max=100).send_ephemeral(bytes(100), "room")


def test_a_closed_link_broadcasts_nothing_more_and_leaves_the_channels_open():
    carried: list[bytes] = []
    alice = Channels("alice", clock=ManualClock())
    link = Link(alice, carried.append)
    link.send(b"x", "room")
    link.close()
    alice.run_periodic_sync()
    assert len(carried) == 1
    assert not alice.closed


async def send_from_a_loop(link: Link) -> str:
    return await link.send_async(b"hello", "room")


def test_a_coroutine_sends_over_the_same_link():
    import asyncio

    carried: list[bytes] = []
    bob = Channels("bob")
    bob.ensure_channel("room")
    message_id = asyncio.run(send_from_a_loop(Link(Channels("alice"), carried.append)))
    assert bob.unwrap_received_message(carried[0]).message_id == message_id


def test_a_failing_backend_makes_a_packet_of_a_new_channel_a_lost_one():
    from holdfast.channels import MemoryPersistence

    store = MemoryPersistence(failing_ops={"load_channel"})
    bob = Channels("bob", store, settings=ChannelSettings(accept_unknown_channels=True))
    data = Channels("alice").wrap_outgoing_message(b"hello", "room")
    link = Link(bob, lambda data: None)
    assert link.receive(data) is None
    with pytest.raises(Unavailable):
        bob.unwrap_received_message(data)
    store.failing_ops.clear()
    assert link.receive(data) is not None
