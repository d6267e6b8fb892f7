"""Channels over real sockets on loopback: they talk, refuse what does not fit, close, and survive kill -9."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

import holdfast
from holdfast import Closed, Invalid, Unavailable
from holdfast.channels import Channels, ChannelSettings, MessageReady, MessageSent, UdpTransport
from holdfast.channels.transport.udp import DATAGRAM_BYTES_MAX

pytestmark = pytest.mark.disk

SOON = 20.0
"""Much longer than it takes, on any machine."""
QUICK = ChannelSettings(
    resend_interval_ms=200,
    resend_attempts_max=1_000,
    sync_interval_ms=100,
    buffer_sweep_interval_ms=50,
    repair_sweep_interval_ms=20,
    repair_t_min_ms=20,
    repair_t_max_ms=200,
)


@pytest.fixture
def join() -> Iterator[Callable[..., tuple[Channels, UdpTransport, Queue[object]]]]:
    """Participants of a room, each with its transport and a queue of what it hears."""
    opened: list[tuple[Channels, UdpTransport]] = []

    def join_one(name: str, *, settings: ChannelSettings = QUICK, **options: object):
        channels = Channels(name, settings=settings)
        channels.ensure_channel("room")
        heard: Queue[object] = Queue()
        channels.set_callbacks(message_ready=heard.put, message_sent=heard.put)
        transport = UdpTransport(channels, **options)
        for _, other in opened:
            other.add_peer(transport.address)
            transport.add_peer(other.address)
        opened.append((channels, transport))
        return channels, transport, heard

    yield join_one
    for channels, transport in opened:
        transport.close()
        channels.close()


def test_two_participants_talk_and_acknowledge(join):
    _, here, told_here = join("alice")
    _, there, told_there = join("bob")
    first = here.send(b"hello", "room")
    ready = told_there.get(timeout=SOON)
    assert isinstance(ready, MessageReady)
    assert (ready.message_id, ready.sender_id, ready.content) == (first, "alice", b"hello")
    there.send(b"hello yourself", "room")
    assert told_here.get(timeout=SOON) == MessageSent("room", first)
    assert told_here.get(timeout=SOON).content == b"hello yourself"
    assert here.stats().sent_total == here.stats().received_total == 1


def test_timers_send_what_was_lost_while_the_peer_was_away(join):
    """Its port is closed at first; resends and repairs bring everything, in order."""
    alice, here, told_here = join("alice")
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("127.0.0.1", 0))
    later = taken.getsockname()
    here.add_peer(later)
    sent = [here.send(b"%d" % number, "room") for number in range(5)]
    alice.start_periodic_tasks()
    taken.close()
    bob, _, told_there = join("bob", bind=later, peers=[here.address])
    bob.start_periodic_tasks()
    assert [told_there.get(timeout=SOON).message_id for _ in sent] == sent
    assert {told_here.get(timeout=SOON).message_id for _ in sent} == set(sent)
    assert alice.channel("room").outgoing() == []


def test_rubbish_and_strangers_stop_nobody(join):
    _, here, _ = join("alice")
    bob, there, heard = join("bob")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(Channels("mallory").wrap_outgoing_message(b"x", "room"), there.address)
    for rubbish in (b"", b"\xff" * 1_000, bytes(DATAGRAM_BYTES_MAX)):
        here.link.broadcast(rubbish)
    here.send(b"hello", "room")
    assert heard.get(timeout=SOON).content == b"hello"
    there.close()  # waits until the last datagram is counted
    assert (there.stats().strangers_total, there.stats().received_total, there.stats().refused_total) == (1, 4, 3)
    assert bob.refused_total == 3


def test_a_callback_that_raises_and_one_that_breaks_the_receiver_stop_nobody(join, monkeypatch, caplog):
    _, here, _ = join("alice")
    bob, there, _ = join("bob")
    heard: Queue[bytes] = Queue()

    def ready(event: MessageReady) -> None:
        heard.put(event.content)
        raise RuntimeError("the application is broken")

    bob.set_callbacks(message_ready=ready)
    here.send(b"1", "room")
    assert heard.get(timeout=SOON) == b"1"
    with monkeypatch.context() as patch:
        broken = threading.Event()
        patch.setattr(there.link, "receive", lambda data: broken.set() or 1 / 0)
        here.send(b"2", "room")
        assert broken.wait(SOON)
    here.send(b"3", "room")
    bob.start_periodic_tasks()
    here.link.channels.start_periodic_tasks()
    assert {heard.get(timeout=SOON), heard.get(timeout=SOON)} == {b"2", b"3"}
    assert "division by zero" in caplog.text


def test_content_that_does_not_fit_into_a_datagram_is_refused_with_nothing_changed(join):
    alice, here, _ = join("alice", settings=ChannelSettings())
    _, _, heard = join("bob", settings=ChannelSettings())
    with pytest.raises(Invalid, match="65507") as refusal:
        here.send(bytes(45_000), "room")
    assert refusal.value.hint
    assert alice.channel("room").history() == []
    here.send(bytes(42_000), "room")
    assert len(heard.get(timeout=SOON).content) == 42_000


def test_a_closed_transport_is_quiet_and_says_so_and_leaves_the_channels_open(join):
    alice, here, _ = join("alice")
    thread = here._thread
    here.close()
    here.close()
    assert not thread.is_alive()
    for call in (lambda: here.send(b"x", "room"), lambda: here.add_peer(("127.0.0.1", 9))):
        with pytest.raises(Closed):
            call()
    assert "closed" in repr(here)
    alice.wrap_outgoing_message(b"x", "room")
    alice.run_periodic_sync()


def test_a_callback_may_close_the_transport(join):
    _, here, _ = join("alice")
    bob, there, _ = join("bob")
    closed = threading.Event()
    bob.set_callbacks(message_ready=lambda event: (there.close(), closed.set()))
    here.send(b"goodbye", "room")
    assert closed.wait(SOON)


def test_addresses_that_cannot_be_are_refused():
    with Channels("alice") as alice, UdpTransport(alice) as first:
        with pytest.raises(Unavailable, match="cannot receive") as refusal:
            UdpTransport(alice, bind=first.address)
        assert isinstance(refusal.value.__cause__, OSError)
        for wrong in (("127.0.0.1", 70_000), ("no such host.invalid", 1), ("::1", 1)):
            with pytest.raises(Invalid, match="no such"):
                UdpTransport(alice, peers=[wrong])


def test_a_coroutine_sends_over_the_same_transport(join):
    import asyncio

    _, here, _ = join("alice")
    _, _, heard = join("bob")

    async def send() -> str:
        return await here.send_async(b"hello", "room")

    message_id = asyncio.run(send())
    assert heard.get(timeout=SOON).message_id == message_id


def test_ephemeral_messages_reach_those_who_listen(join):
    settings = ChannelSettings(dialect="rfc")
    _, here, _ = join("alice", settings=settings)
    _, _, heard = join("bob", settings=settings)
    here.send_ephemeral(b"typing", "room")
    assert heard.get(timeout=SOON).lamport is None


def test_six_participants_hear_each_other_over_ipv6_where_there_is_any(join):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("::1", 9)):
            pytest.skip("there is no IPv6 on this machine's loopback")
    here, *others = [join(f"p{number}", bind=("::1", 0)) for number in range(6)]
    here[1].send(b"hello", "room")
    assert all(heard.get(timeout=SOON).content == b"hello" for _, _, heard in others)


# -- kill -9 ----------------------------------------------------------------------------------------------------------


class Talker:
    """A process that talks (tests.channels.talker) and is killed and started again."""

    def __init__(self, name: str, directory: Path, port: int, peer: int) -> None:
        self.directory = directory
        self.command = [sys.executable, "-m", "tests.channels.talker", name, str(directory), str(port), str(peer)]
        self.acknowledged: set[str] = set()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: Queue[str] = Queue()
        self.reader = threading.Thread(target=self._read, args=[self.process, self.lines])
        self.reader.start()
        assert self.lines.get(timeout=SOON) == "ready"

    def _read(self, process: subprocess.Popen[str], lines: Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):  # the last one may be cut
                word, _, message_id = line.strip().partition(" ")
                if word == "acknowledged":
                    self.acknowledged.add(message_id)
                else:
                    lines.put(word)

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait()
        self.reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass

    def noted(self, kind: str) -> list[str]:
        with holdfast.open(self.directory) as log:
            return [r.headers["message_id"].decode() for r in log.topic("_channels").read() if r.kind == kind]


def free_ports(count: int) -> list[int]:
    taken = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


@pytest.mark.crash
def test_two_processes_that_are_killed_again_and_again_lose_nothing_and_repeat_nothing(tmp_path):
    """Whatever was sent is recorded as delivered at the other end, once; whatever was acknowledged had been kept."""
    chance = random.Random(int(os.environ.get("HOLDFAST_SEED", "1")))
    ports = free_ports(2)
    alice = Talker("alice", tmp_path / "alice", ports[0], ports[1])
    bob = Talker("bob", tmp_path / "bob", ports[1], ports[0])
    both = [alice, bob]
    for _ in range(4):
        for one in both:
            one.tell("talk")
        for one in both:  # both are in the middle of it
            for _ in range(chance.randint(1, 20)):
                one.lines.get(timeout=SOON)
        victims = chance.choice(([alice], [bob], both))
        for one in victims:
            one.end(signal.SIGKILL)
        for one in victims:
            one.start()
    for one in both:
        one.tell("rest")  # say no more, and tell when nothing waits any more
    for one in both:
        while one.lines.get(timeout=3 * SOON) != "resting":
            pass
    for one in both:
        one.end(signal.SIGKILL)
    for here, there in ((alice, bob), (bob, alice)):
        sent, delivered = here.noted("sent"), there.noted("delivered")
        assert len(sent) >= 4
        assert Counter(delivered) == Counter(set(sent))
        assert here.acknowledged <= set(delivered)
        assert here.acknowledged
