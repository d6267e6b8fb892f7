"""What goes into a step of the protocol, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.channels.channel_events import Event
from holdfast.channels.keeping.snapshot import KnownMessage, Note
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.wire.message import HistoryEntry, SdsMessage


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send content to everybody."""

    content: bytes
    message_id: str
    hints: Mapping[str, bytes] = {}
    """Retrieval hints for messages that this one will name."""
    bytes_max: int | None = None
    """The largest message that the transport can carry."""


class SendEphemeral(msgspec.Struct, frozen=True, gc=False):
    """Send content that nobody has to have."""

    content: bytes
    message_id: str


class SendSync(msgspec.Struct, frozen=True, gc=False):
    """Tell others what we know and what we miss, if there is anything to tell."""

    message_id: str
    bytes_max: int | None = None
    """The largest message that the transport can carry."""


class Receive(msgspec.Struct, frozen=True, gc=False):
    """A message came in."""

    message: SdsMessage
    written: StoredMessage | None = None


class MarkMet(msgspec.Struct, frozen=True, gc=False):
    """The application has these messages from elsewhere, or can do without them."""

    message_ids: Sequence[str]


class SweepBuffers(msgspec.Struct, frozen=True, gc=False):
    """Look at what waits: for acknowledgement, and for others."""


class SweepRepairs(msgspec.Struct, frozen=True, gc=False):
    """Look at requests and responses."""


class Resume(msgspec.Struct, frozen=True, gc=False):
    """After a restart: deliver what waits for nothing any more."""


Input = Send | SendEphemeral | SendSync | Receive | MarkMet | SweepBuffers | SweepRepairs | Resume


class Received(msgspec.Struct, frozen=True, gc=False):
    """What became of a received message."""

    channel_id: str
    message_id: str
    sender_id: str
    content: bytes
    missing: tuple[HistoryEntry, ...] = ()
    """What it waits for; empty when it was delivered."""
    duplicate: bool = False
    """It was here before, delivered or waiting."""
    own: bool = False
    """It is one of ours."""
    refused: bool = False
    """There is no room for messages that wait; it is as if it had been lost."""


NOT_WRITTEN: Mapping[str, StoredMessage] = {}


class StepEffects:
    """The effects of one step."""

    __slots__ = (
        "appended", "changed", "data", "events", "evicted", "known", "message_id", "notes", "received", "sync_due",
        "wanted", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.appended: list[str] = []
        """Ids that came into history, in order; an id may leave it again in the same step."""
        self.evicted: list[str] = []
        self.changed = False
        """There is something new to keep, besides history."""
        self.known: list[KnownMessage] = []
        """Ids to remember for good."""
        self.notes: list[Note] = []
        self.data: bytes | None = None
        """What to broadcast."""
        self.message_id = ""
        """Of what was sent."""
        self.received: Received | None = None
        self.written: Mapping[str, StoredMessage] = NOT_WRITTEN
        """Of the message that this step sent or delivered itself, by its id: not of those that waited for it."""
        self.sync_due = False
        """There is something to ask for, or to tell, that should not wait for the next sync message."""
        self.wanted: list[KnownMessage] = []
        """Messages beyond history that a participant asked for: to be found in the log and sent again."""

    def release(self) -> None:
        """Let go of what was handed over to be kept: many steps may wait for their commits, and the collector looks
        at every list that they hold.
        """
        del self.appended, self.evicted, self.known, self.notes, self.written
