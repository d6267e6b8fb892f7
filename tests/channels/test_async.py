"""Channels on an event loop: packets in, messages out, nothing lost, nothing without bound."""

from __future__ import annotations

import asyncio
import gc
from threading import Thread

import pytest

import holdfast
from holdfast.channels import Channels, ChannelSettings, Link, MemoryPersistence
from holdfast.channels.keeping.snapshot import ChannelMeta
from holdfast.channels.keeping.storage import encode_meta
from holdfast.errors import Corrupt, Full, NotFound
from holdfast.testing import ManualClock

pytestmark = pytest.mark.disk

ROOM = "room"


def pair(**settings):
    clock = ManualClock()
    found = [Channels(name, settings=ChannelSettings(**settings), clock=clock) for name in ("alice", "bob")]
    for one in found:
        one.ensure_channel(ROOM)
    return clock, *found


def test_receive_async_takes_packets_and_raises_for_none(tmp_path):
    async def talk():
        with holdfast.open(tmp_path / "log") as log:
            alice, bob = Channels("alice"), log.channels("bob")
            await bob.ensure_channel_async(ROOM)
            link = Link(bob, lambda data: None)
            received = await link.receive_async(alice.wrap_outgoing_message(b"hello", ROOM))
            assert received is not None
            assert received.content == b"hello"
            assert await link.receive_async(b"what is this") is None
            assert (link.stats().received_total, link.stats().refused_total) == (1, 1)
            assert [record.payload for record in log.topic("_channels").read()] == [b"hello"]
            await bob.close_async()

    asyncio.run(talk())


def test_every_delivered_message_is_in_the_iterator_once_and_in_order():
    """From another thread, as from a transport, while others iterate; it ends when the channels close."""
    _, alice, bob = pair()
    packets = [alice.wrap_outgoing_message(b"%d" % number, ROOM) for number in range(300)]

    async def listen():
        first, second = bob.delivered(ROOM), bob.delivered(ROOM)
        feeder = Thread(target=lambda: ([bob.unwrap_received_message(one) for one in packets[::-1]], bob.close()))
        feeder.start()
        heard = await asyncio.gather(*(collect(one) for one in (first, second)))
        await asyncio.to_thread(feeder.join)
        return heard

    async def collect(messages):
        return [message.content async for message in messages]

    assert asyncio.run(listen()) == [[b"%d" % number for number in range(300)]] * 2


def test_a_reader_that_is_cancelled_has_taken_nothing():
    """However often, and whenever: what it waited for is there for the next one."""
    _, alice, bob = pair()

    async def listen():
        messages = bob.delivered(ROOM)
        heard = []
        for number in range(50):
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(0)
            bob.unwrap_received_message(alice.wrap_outgoing_message(b"%d" % number, ROOM))
            if number % 2:
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            if not waiting.cancelled():
                heard.append(waiting.result().content)
        bob.close()
        return heard + [message.content async for message in messages]

    assert asyncio.run(listen()) == [b"%d" % number for number in range(50)]


def test_a_reader_that_is_too_slow_loses_nothing_and_bounds_what_waits():
    """What finds no room is refused, as if it had been lost, and sent again until it is here."""
    clock, alice, bob = pair(resend_interval_ms=1_000, resend_attempts_max=1_000, bloom_capacity=300, history_max=200)
    back = Link(alice, lambda data: None)

    async def listen():
        link = Link(bob, back.receive)
        Link(alice, link.receive)
        messages = bob.delivered(ROOM, waiting_max=10)
        refused = 0
        for number in range(100):
            refused += await link.receive_async(alice.wrap_outgoing_message(b"%d" % number, ROOM)) is None
            assert messages.waiting <= 10
        assert refused == 90
        with pytest.raises(Full):
            bob.unwrap_received_message(alice.wrap_outgoing_message(b"last", ROOM))
        heard = []
        while len(heard) < 101:
            assert messages.waiting <= 110
            while messages.waiting:
                heard.append((await anext(messages)).content)
            clock.advance(2)
            await alice.run_buffer_sweep_async()
            await bob.run_periodic_sync_async()
        await messages.aclose()
        assert [one async for one in messages] == []
        return heard

    assert asyncio.run(listen()) == [b"%d" % number for number in range(100)] + [b"last"]


def test_an_iterator_that_nobody_holds_holds_nobody_up():
    _, alice, bob = pair()

    async def listen():
        messages = bob.delivered(ROOM, waiting_max=1)
        bob.unwrap_received_message(alice.wrap_outgoing_message(b"1", ROOM))
        async for message in messages:
            assert message.content == b"1"
            break
        del messages
        gc.collect()
        for number in range(5):
            bob.unwrap_received_message(alice.wrap_outgoing_message(b"%d" % number, ROOM))

    asyncio.run(listen())


def test_an_iterator_ends_with_its_channel_and_needs_one():
    _, alice, bob = pair()

    async def listen():
        messages = bob.delivered(ROOM)
        bob.unwrap_received_message(alice.wrap_outgoing_message(b"1", ROOM))
        waiting = asyncio.ensure_future(collect(messages))
        await asyncio.sleep(0)
        await bob.remove_channel_async(ROOM)
        assert await waiting == [b"1"]
        with pytest.raises(NotFound):
            bob.delivered("elsewhere")

    async def collect(messages):
        return [message.content async for message in messages]

    asyncio.run(listen())


def test_a_migration_reaches_the_channels_of_a_log(tmp_path):
    """A snapshot of a version that is not known, and the user's own way to read it."""
    future = b"\x08\x63" + encode_meta(ChannelMeta(lamport=77, dialect="nim"))[2:]
    store = MemoryPersistence()
    assert store.load_channel(ROOM).meta.lamport == 0
    with holdfast.open(tmp_path / "log") as log:
        with log.channels("alice") as alice:
            alice.ensure_channel(ROOM)
            alice.wrap_outgoing_message(b"content", ROOM)
        log._journal.spaces.change("channel/alice/room", [(b"m", 0, future)], [], timeout=5).result(5)
        with log.channels("alice") as alice, pytest.raises(Corrupt, match="version=99"):
            alice.ensure_channel(ROOM)
        with pytest.raises(Corrupt, match="version=99"):
            log.kept_channel("alice", ROOM)
        migrations = {99: lambda data: b"\x08\x01" + data[2:]}
        assert log.kept_channel("alice", ROOM, migrations=migrations).meta.lamport == 77
        with log.channels("alice", migrations=migrations) as alice:
            alice.ensure_channel(ROOM)
            assert alice.channel(ROOM).stats().lamport == 77
            assert len(alice.channel(ROOM).history()) == 1
