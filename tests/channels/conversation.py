"""A scripted conversation that does everything to one channel, operation by operation, the same each time.

Time and randomness come from a clock that is set by hand, so two participants that are led through it have the same
states: one may fail, crash or be killed on the way, and be compared with one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import Log, Settings
from holdfast.channels import (
    ChannelData,
    ChannelMeta,
    Channels,
    ChannelSettings,
    Commit,
    HistoryEntry,
    HistoryUpdate,
    MemoryPersistence,
    SdsMessage,
)
from holdfast.channels.keeping.snapshot import KnownMessage
from holdfast.channels.wire.message import raw
from holdfast.channels.wire.nim import NIM
from holdfast.testing import ManualClock

ROOM = "room"
CHANNELS = {"history_max": 6, "bloom_capacity": 50, "causal_history_max": 3, "resend_attempts_max": 1}
"""Settings: a history that is short enough to be evicted from."""


def wire(
    message_id: str, *causes: str, content: bytes = b"content", requests: tuple[str, ...] = (), sender: str = "bob"
) -> bytes:
    """What somebody else sends."""
    named = tuple(HistoryEntry(cause, b"", "bob") for cause in causes)
    asked = tuple(HistoryEntry(one, b"", "alice") for one in requests)
    return NIM.encode(SdsMessage(message_id, ROOM, 1, content, sender, named, b"", asked))


Operation = Callable[[Channels, ManualClock], object]


def _send(message_id: str) -> Operation:
    return lambda channels, clock: channels.wrap_outgoing_message(b"from alice " * 20, ROOM, message_id)


def _receive(message_id: str, *causes: str, **more: Any) -> Operation:
    return lambda channels, clock: channels.unwrap_received_message(wire(message_id, *causes, **more))


def _later(seconds: float, act: Callable[[Channels], object]) -> Operation:
    def operation(channels: Channels, clock: ManualClock) -> object:
        clock.advance(seconds)
        return act(channels)

    return operation


SCRIPT: list[tuple[str, Operation]] = [
    ("send", _send("a1")),
    ("deliver", _receive("b1")),
    ("send again", _send("a2")),
    ("buffer", _receive("b4", "b3", content=b"waits" * 300)),
    ("buffer another", _receive("b3", "b2", "a1")),
    ("be acknowledged, cascade", _receive("b2", "b1")),
    ("wait for what never comes", _receive("c9", "c8")),
    ("be asked", _receive("b5", requests=("a2", "b2"))),
    ("wait for two", _receive("b7", "b5", "x1", "x2")),
    ("mark", lambda channels, clock: channels.mark_dependencies_met(["x1", "elsewhere"], ROOM)),
    ("mark and deliver", lambda channels, clock: channels.mark_dependencies_met(["x2"], ROOM)),
    ("sweep buffers", _later(61, Channels.run_buffer_sweep)),
    ("sweep repairs", _later(301, Channels.run_repair_sweep)),
    ("sync", _later(1, Channels.run_periodic_sync)),
    ("send, evicting and asking", _send("a3")),
    ("settle a repair", _receive("c8")),
    ("send once more", _send("a4")),
    ("give up", _later(3_600, Channels.run_buffer_sweep)),
    ("send under the id of one that was evicted", _send("a1")),
    ("remove", lambda channels, clock: channels.remove_channel(ROOM)),
    ("begin anew", _send("a5")),
    ("deliver to the new one", _receive("b8")),
]
"""What is done, and how."""

REMOVAL = [name for name, _ in SCRIPT].index("remove")

State = tuple[ChannelData, tuple[tuple[Any, ...], ...]]
"""What is kept of the channel, and the records of what happened."""


class Noting(MemoryPersistence):
    """Keeps in memory, and remembers what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Any, ...]] = []

    def commit(
        self, channel_id: str, meta: ChannelMeta, update: HistoryUpdate, *, reissue: bool = False
    ) -> Commit | None:
        super().commit(channel_id, meta, update, reissue=reissue)
        self.notes += [(note.kind, note.at_ms * 1000, raw(note.message_id), note.content) for note in update.notes]
        return None


def states() -> list[State]:
    """What is kept before the first operation and after each, when nothing goes wrong."""
    store, clock = Noting(), ManualClock()
    channels = Channels("alice", store, settings=ChannelSettings(**CHANNELS), clock=clock)
    found: list[State] = [(ChannelData(), ())]
    for _, operation in SCRIPT:
        take(channels, clock, operation)
        found.append((store.load_channel(ROOM), tuple(store.notes)))
    return found


def memory(channels: Channels) -> ChannelData:
    """The channel as it should be kept."""
    room = channels.channel(ROOM)
    return ChannelData(room.snapshot(), tuple(room.state.history.messages()), dict(room.state.hints))


def on_disk(log: Log) -> State:
    """The channel as it is kept."""
    data = log.kept_channel("alice", ROOM)
    return msgspec.structs.replace(data, known=once(data.known)), records(log)


def once(known: Sequence[KnownMessage]) -> tuple[KnownMessage, ...]:
    """Each id once: what a failed commit was to keep comes again."""
    found: dict[str, KnownMessage] = {}
    for one in known:
        found.setdefault(one.message_id, one)
    return tuple(found.values())


def bare(data: ChannelData) -> ChannelData:
    """What is kept but for the ids that are remembered: memory has their hashes only. History is among them."""
    assert {one.message_id for one in data.history} <= {known.message_id for known in data.known}
    return msgspec.structs.replace(data, known=())


def records(log: Log) -> tuple[tuple[Any, ...], ...]:
    """What happened, as the topic has it."""
    if "_channels" not in log.topics():
        return ()
    found = log.topic("_channels").read()
    return tuple((one.kind, one.time, one.headers["message_id"], one.payload) for one in found)


def take(channels: Channels, clock: ManualClock, operation: Operation) -> object:
    """One operation, a little later than the one before."""
    clock.advance(0.25)
    if ROOM not in channels.channels():
        channels.ensure_channel(ROOM)
    return operation(channels, clock)


def open_log(directory: Path, clock: ManualClock, checkpoint: str = "32KiB") -> Log:
    """A log whose channels have the script's settings; it folds its write-ahead log in every now and then."""
    settings = Settings.from_mapping(
        {"journal": {"checkpoint_bytes": checkpoint}, "segments": {"seal_on_close": False}, "channels": CHANNELS}
    )
    return holdfast.open(directory, settings=settings, clock=clock)
