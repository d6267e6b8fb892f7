"""We and the real JavaScript implementation understand each other, both ways, in everything that the protocol does.

Each conversation runs twice: with `@waku/sds` in a Node process, if there is one, and with what it answered when it
was recorded (data/javascript.json).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from random import Random

import pytest

from holdfast.channels import Bus, Channels, ChannelSettings, MemoryPersistence
from holdfast.channels.wire.rfc import RFC
from holdfast.testing.manual_clock import ManualClock
from tests.channels.javascript.peers import NodePeer, Peer, RecordedPeer, reason_against_node, record

pytestmark = pytest.mark.disk

ROOM = "talk"
NEVER_MS = 600_000
"""Longer than any wait."""


@pytest.fixture(scope="module")
def node() -> Iterator[NodePeer]:
    """One process for all: opening a channel begins a new life."""
    reason = reason_against_node()
    if reason is not None:
        pytest.skip(reason)
    node = NodePeer()
    yield node
    node.close()


@pytest.fixture(params=["node", "recorded"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    name = request.node.originalname
    if request.param == "recorded":
        recorded = RecordedPeer(name)
        yield recorded
        recorded.close()
        return
    node = request.getfixturevalue("node")
    node.exchanges.clear()
    yield node
    if os.environ.get("HOLDFAST_RECORD"):
        record(name, node.exchanges)


class Bob:
    """The participant in JavaScript."""

    def __init__(self, peer: Peer, clock: ManualClock, name: str = "bob", **options: object) -> None:
        self._peer, self._clock = peer, clock
        self.events: list[list[object]] = []
        self._ask("open", channelId=ROOM, senderId=name, options=options)

    def _ask(self, op: str, **arguments: object) -> dict[str, object]:
        answer = self._peer.ask({"op": op, "at": self._clock.now_us() // 1000, **arguments})
        self.events += answer["events"]
        return answer

    def _sent(self, op: str, **arguments: object) -> list[bytes]:
        return [bytes.fromhex(data) for data in self._ask(op, **arguments)["sent"]]

    def send(self, content: bytes) -> bytes:
        (data,) = self._sent("send", content=content.hex())
        return data

    def send_ephemeral(self, content: bytes) -> bytes:
        (data,) = self._sent("ephemeral", content=content.hex())
        return data

    def sync(self) -> list[bytes]:
        return self._sent("sync")

    def receive(self, data: bytes) -> object:
        return self._ask("receive", data=data.hex())["result"]

    def sweep(self) -> object:
        return self._ask("sweep")["result"]

    def repairs(self) -> list[bytes]:
        return self._sent("repairs")

    def unacknowledged(self) -> object:
        return self._ask("unacknowledged")["result"]

    def history(self) -> object:
        return self._ask("history")["result"]

    def heard(self, kind: str) -> list[object]:
        return [event[1] for event in self.events if event[0] == kind]


class Alice:
    """The participant in Python, with a disk, so that it can be started again."""

    def __init__(self, clock: ManualClock, name: str = "alice", **settings: object) -> None:
        self.clock, self.name = clock, name
        self.settings = ChannelSettings(dialect="rfc", **settings)
        self.disk = MemoryPersistence()
        self.ready: list[tuple[str, bytes]] = []
        self.sent: list[str] = []
        self.missing: list[str] = []
        self.out: list[bytes] = []
        self.start()

    def start(self) -> None:
        self.channels = Channels(self.name, self.disk, settings=self.settings, clock=self.clock)
        self.channels.set_callbacks(
            message_ready=lambda event: self.ready.append((event.sender_id, event.content)),
            message_sent=lambda event: self.sent.append(event.message_id),
            missing_dependencies=lambda event: self.missing.extend(one.message_id for one in event.missing),
        )
        self.channels.set_transport(self.out.append)
        self.channels.ensure_channel(ROOM)

    def send(self, message_id: str) -> bytes:
        return self.channels.wrap_outgoing_message(message_id.encode(), ROOM, message_id)

    def receive(self, data: bytes) -> None:
        self.channels.unwrap_received_message(data)

    def due(self, task: str) -> list[bytes]:
        """What a periodic task wants to be sent."""
        self.out.clear()
        getattr(self.channels, task)()
        return list(self.out)

    @property
    def outgoing(self) -> list[str]:
        return [entry.message.message_id for entry in self.channels.channel(ROOM).outgoing()]

    @property
    def history(self) -> list[str]:
        return self.channels.channel(ROOM).history()


def id_of(content: bytes) -> str:
    """A message's id, as JavaScript makes it."""
    return sha256(content).hexdigest()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(seed=1)


def test_messages_go_both_ways(peer, clock):
    alice, bob = Alice(clock), Bob(peer, clock)
    assert bob.receive(alice.send("a1")) == "content"
    assert bob.heard("delivered") == ["a1"]
    clock.advance(1)
    alice.receive(bob.send(b"hello from JavaScript"))
    assert alice.ready == [("bob", b"hello from JavaScript")]
    assert alice.history == bob.history() == ["a1", id_of(b"hello from JavaScript")]


def test_causal_history_acknowledges_both_ways(peer, clock):
    alice, bob = Alice(clock), Bob(peer, clock)
    bob.receive(alice.send("a1"))
    clock.advance(1)
    alice.receive(bob.send(b"b1"))
    assert alice.sent == ["a1"]
    assert alice.outgoing == []
    assert bob.unacknowledged() == [id_of(b"b1")]
    clock.advance(1)
    bob.receive(alice.send("a2"))
    assert bob.heard("acknowledged") == [id_of(b"b1")]
    assert bob.unacknowledged() == []


def test_two_filters_acknowledge_what_is_not_named_both_ways(peer, clock):
    """The filters' bytes mean the same to both: one is a hint, the second an acknowledgement."""
    alice, bob = Alice(clock, causal_history_max=1), Bob(peer, clock, causalHistorySize=1)
    bob.receive(alice.send("a1"))
    clock.advance(1)
    bob.receive(alice.send("a2"))
    for number, (sent, outgoing) in enumerate(((["a2"], ["a1"]), (["a2", "a1"], []))):
        clock.advance(1)
        alice.receive(bob.send(b"b%d" % number))
        assert (alice.sent, alice.outgoing) == (sent, outgoing)
    first, second = id_of(b"b0"), id_of(b"b1")
    for number in range(2):
        clock.advance(1)
        bob.receive(alice.send(f"a{3 + number}"))
    assert [event for event in bob.events if event[0] in ("acknowledged", "possible")] == [
        ["acknowledged", second],
        ["possible", first, 1],
        ["acknowledged", first],
    ]


def test_what_javascript_misses_it_asks_for_and_we_answer(peer, clock):
    alice, bob = Alice(clock), Bob(peer, clock)
    alice.send("a1")  # lost
    clock.advance(1)
    bob.receive(alice.send("a2"))
    assert bob.heard("missing") == ["a1"]
    assert bob.heard("delivered") == []
    assert alice.due("run_repair_sweep") == []
    clock.advance(NEVER_MS / 1000)
    (sync,) = bob.sync()
    assert [entry.message_id for entry in RFC.decode(sync).repair_request] == ["a1"]
    alice.receive(sync)
    (repair,) = alice.due("run_repair_sweep")
    bob.receive(repair)
    assert bob.sweep() == []
    assert bob.heard("delivered") == ["a1", "a2"]


def test_what_we_miss_we_ask_for_and_javascript_answers(peer, clock):
    alice, bob = Alice(clock), Bob(peer, clock)
    bob.send(b"b1")  # lost
    clock.advance(1)
    alice.receive(bob.send(b"b2"))
    assert alice.missing == [id_of(b"b1")]
    assert alice.ready == []
    assert bob.repairs() == []
    clock.advance(NEVER_MS / 1000)
    (sync,) = alice.due("run_periodic_sync")
    assert bob.receive(sync) == "sync"
    (repair,) = bob.repairs()
    alice.receive(repair)
    assert alice.ready == [("bob", b"b1"), ("bob", b"b2")]


def test_others_answer_for_the_sender_after_the_same_wait(peer, clock):
    """Carol is away: a participant that has her message waits as the formula says, before it answers."""
    carol = Alice(clock, "carol")
    alice, bob = Alice(clock), Bob(peer, clock)
    lost, found = carol.send("c1"), None
    clock.advance(1)
    found = carol.send("c2")
    bob.receive(lost)
    bob.receive(found)
    alice.receive(found)
    clock.advance(NEVER_MS / 1000)
    (sync,) = alice.due("run_periodic_sync")
    bob.receive(sync)
    wait = RFC.response_delay_ms("bob", "carol", "c1", 120_000)
    clock.advance((wait - 1) / 1000)
    assert bob.repairs() == []
    clock.advance(1 / 1000)
    (repair,) = bob.repairs()
    alice.receive(repair)
    assert alice.ready == [("carol", b"c1"), ("carol", b"c2")]


def test_syncs_tell_what_the_other_lacks_both_ways(peer, clock):
    """And nobody sends one who has nothing to tell."""
    alice, bob = Alice(clock), Bob(peer, clock)
    assert alice.due("run_periodic_sync") == bob.sync() == []
    alice.send("a1")
    bob.send(b"b1")  # both lost
    clock.advance(1)
    (sync,) = alice.due("run_periodic_sync")
    assert bob.receive(sync) == "sync"
    assert bob.heard("missing") == ["a1"]
    (sync,) = bob.sync()
    alice.receive(sync)
    assert alice.missing == [id_of(b"b1")]
    assert (alice.history, bob.history()) == (["a1"], [id_of(b"b1")])
    clock.advance(NEVER_MS / 1000)
    for data in alice.due("run_periodic_sync"):
        bob.receive(data)
    for data in bob.sync():
        alice.receive(data)
    for data in bob.repairs():
        alice.receive(data)
    for data in alice.due("run_repair_sweep"):
        bob.receive(data)
    assert set(alice.history) == set(bob.history()) == {"a1", id_of(b"b1")}


def test_ephemeral_messages_are_understood_both_ways(peer, clock):
    """JavaScript reads ours, and tells nobody: it has no event for them."""
    alice, bob = Alice(clock), Bob(peer, clock)
    alice.receive(bob.send_ephemeral(b"typing"))
    assert alice.ready == [("bob", b"typing")]
    assert bob.receive(alice.channels.wrap_ephemeral_message(b"typing, too", ROOM)) == "ephemeral"
    assert bob.events == []
    assert alice.history == bob.history() == []


def test_a_restart_of_ours_in_between_loses_nothing(peer, clock):
    """What waits for an acknowledgement and what waits for others is there again, and is dealt with."""
    alice, bob = Alice(clock), Bob(peer, clock)
    bob.send(b"b1")  # lost
    bob.receive(alice.send("a1"))
    clock.advance(1)
    alice.receive(bob.send(b"b2"))
    alice.send("a2")  # lost
    alice.start()
    assert alice.outgoing == ["a2"]
    assert alice.sent == ["a1"]
    clock.advance(NEVER_MS / 1000)
    for data in alice.due("run_buffer_sweep"):
        bob.receive(data)
    for data in alice.due("run_periodic_sync"):
        bob.receive(data)
    alice.start()
    for data in (*bob.repairs(), bob.send(b"b3")):
        alice.receive(data)
    assert alice.ready == [("bob", b"b1"), ("bob", b"b2"), ("bob", b"b3")]
    assert alice.sent == ["a1", "a2"]
    assert bob.heard("delivered") == ["a1", "a2"]


def test_what_javascript_says_again_is_not_delivered_again(peer, clock):
    """It sends the same message for the same payload, as long as that is not acknowledged."""
    alice, bob = Alice(clock), Bob(peer, clock)
    first = bob.send(b"b1")
    clock.advance(1)
    assert bob.send(b"b1") == first
    alice.receive(first)
    alice.receive(first)
    assert alice.ready == [("bob", b"b1")]


def test_messages_of_the_other_dialect_are_refused_by_both(peer, clock):
    nim = Channels("nina", clock=clock)
    alice, bob = Alice(clock), Bob(peer, clock)
    data = nim.wrap_outgoing_message(b"n1", ROOM, "n1")
    assert bob.receive(data) == "undecodable"
    with pytest.raises(Exception, match="wire format"):
        alice.receive(data)


# -- a group, with the real one only ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_mixed_group_on_a_bad_network_has_everything_in_the_end(node, seed):
    """Two of ours and one in JavaScript, a quarter lost: every message is everywhere, with us exactly once.

    JavaScript asks for a message once in its life: what it asked for in vain its application has to fetch.
    """
    clock, random = ManualClock(seed=seed), Random(seed)
    bus = Bus(seed, loss=0.25, duplication=0.1, reordering=0.2, delay=20, reordering_delay=2_000)
    patience = {"repair_t_min_ms": 500, "repair_t_max_ms": 4_000, "resend_interval_ms": 4_000}
    ours = [Alice(clock, name, **patience) for name in ("alice", "carol")]
    bob = Bob(node, clock, repairConfig={"tMin": 500, "tMax": 4_000})
    for one in ours:
        bus.join(one.name, one.receive)
    bus.join("bob", bob.receive)
    contents = {b"%d of %s" % (number, name) for number in range(6) for name in (b"alice", b"bob", b"carol")}
    unsent, unheard = sorted(contents), []
    for now in range(0, 300_000, 500):
        clock.advance(0.5)
        if unsent and random.random() < 0.5:
            unheard += speak(bus, ours, bob, unsent.pop(random.randrange(len(unsent))))
        if now % 4_000 == 0:
            for one in ours:
                for data in (*one.due("run_buffer_sweep"), *one.due("run_periodic_sync")):
                    bus.send(one.name, data)
            waiting = bob.unacknowledged()
            for data in [*(bob.send(content) for content in unheard if id_of(content) in waiting), *bob.sync()]:
                bus.send("bob", data)
            missing = bob.sweep()
            for message_id in missing if now > 60_000 else ():
                kept = ours[0].channels.channel(ROOM).state.history.get(message_id)
                bob.receive(RFC.encode(kept))
        for one in ours:
            for data in one.due("run_repair_sweep"):
                bus.send(one.name, data)
        for data in bob.repairs():
            bus.send("bob", data)
        bus.deliver(until=now)
        everywhere = not unsent and all(len(one.history) == len(contents) and not one.outgoing for one in ours)
        if everywhere and not bob.unacknowledged() and len(bob.history()) == len(contents):
            break
    assert len(set(bob.history())) == len(contents)
    for one in ours:
        mine = {content for content in contents if content.endswith(one.name.encode())}
        assert sorted(content for _, content in one.ready) == sorted(contents - mine)
        assert one.outgoing == []
        assert one.channels.channel(ROOM).incoming() == []


def speak(bus: Bus, ours: list[Alice], bob: Bob, content: bytes) -> list[bytes]:
    """Let whom it belongs to say it; returns it if Bob has to look after it."""
    if content.endswith(b"bob"):
        bus.send("bob", bob.send(content))
        return [content]
    one = next(one for one in ours if content.endswith(one.name.encode()))
    bus.send(one.name, one.channels.wrap_outgoing_message(content, ROOM))
    return []
