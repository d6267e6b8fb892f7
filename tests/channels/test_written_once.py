"""Bytes that are kept as they came are those of the message they are kept for, also where an id is used twice."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast import Log, Settings
from holdfast.channels import Channels
from holdfast.channels.wire.protobuf import fields
from holdfast.channels.wire.wire_fields import read_entry
from tests.channels.conversation import CHANNELS, ROOM, bare, memory, wire
from tests.channels.test_failing_persistence import Refusing
from tests.stalled import stalled

pytestmark = pytest.mark.disk


@pytest.fixture
def log(tmp_path):
    settings = Settings.from_mapping({"segments": {"seal_on_close": False}, "channels": CHANNELS})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        yield log


def written(log: Log) -> list[tuple[bytes, bytes, list[str]]]:
    """Id, content and causes of what was sent and delivered."""
    found = []
    for record in log.topic("_channels").read():
        if record.kind in ("sent", "delivered"):
            causes = record.headers["causes"]
            named = [read_entry(causes, start, stop).message_id for _, start, stop in fields(causes, 0, len(causes))]
            found.append((record.headers["message_id"], record.payload, named))
    return found


def kept(log: Log, channels: Channels) -> None:
    """What is kept is what is in memory."""
    assert bare(log.kept_channel("alice", ROOM)) == memory(channels)


def test_an_id_that_is_used_twice_in_one_unit_has_two_records_of_its_own(log):
    """And history has the second message."""
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"zero", ROOM, "a0")

    async def main() -> None:
        with stalled(log.topic("_channels")):
            tasks = [
                asyncio.ensure_future(alice.wrap_outgoing_message_async(content, ROOM, message_id))
                for content, message_id in [(b"one", "a1"), (b"two", "a2"), (b"other", "a1")]
            ]
            while len(alice.channel(ROOM).outgoing()) < 4:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert written(log) == [
        (b"a0", b"zero", []),
        (b"a1", b"one", ["a0"]),
        (b"a2", b"two", ["a0", "a1"]),
        (b"a1", b"other", ["a0", "a1", "a2"]),
    ]
    kept(log, alice)


def test_what_is_said_again_after_a_failure_is_said_as_it_was(log):
    """Although its id was used again meanwhile."""
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    alice.wrap_outgoing_message(b"zero", ROOM, "a0")
    disk = Refusing(log)
    disk.refusals = 1
    alice.wrap_outgoing_message(b"one", ROOM, "a1")
    assert not alice.channel(ROOM).persistence.ok
    alice.wrap_outgoing_message(b"other", ROOM, "a1")
    assert alice.channel(ROOM).persistence.ok
    assert written(log) == [(b"a0", b"zero", []), (b"a1", b"one", ["a0"]), (b"a1", b"other", ["a0", "a1"])]
    kept(log, alice)


def test_bytes_that_nobody_would_write_are_kept_as_the_message_that_they_are(log):
    """With padding and repeats, in another order: the message is, and no more."""
    alice = log.channels("alice")
    alice.ensure_channel(ROOM)
    data = wire("b1")
    alice.unwrap_received_message(data + b"\x7a\x04pads" + b"\x0a\x02b1")
    alice.unwrap_received_message(wire("b2", "b1"))
    assert written(log) == [
        (b"b1", memory(alice).history[0].content, []),
        (b"b2", memory(alice).history[1].content, ["b1"]),
    ]
    kept(log, alice)
    space = log._journal.spaces.load(f"channel/alice/{ROOM}")
    assert not any(b"pads" in body for _, _, body in space)
