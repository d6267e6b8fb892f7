"""What is kept of a channel: its snapshot, its history, and the change from one commit to the next.

These are the values that go through the persistence port. They are immutable, and an entry is replaced, never
changed, so that a snapshot is as cheap as copying a few lists. How they are encoded is `storage`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.message import HistoryEntry, SdsMessage


class UnacknowledgedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of ours that nobody is known to have."""

    message: SdsMessage
    sent_ms: int
    attempts: int = 0
    """How often it was due to be sent again."""
    possible_acks: int = 0
    """Filters of others that seemed to know it."""


class BufferedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that waits for others."""

    message: SdsMessage
    missing: tuple[str, ...]
    received_ms: int = 0


class RepairRequest(msgspec.Struct, frozen=True, gc=False):
    """A missing message that we shall ask for."""

    entry: HistoryEntry
    due_ms: int


class RepairResponse(msgspec.Struct, frozen=True, gc=False):
    """A message that a participant misses and we shall send again, unless another participant does."""

    entry: HistoryEntry
    due_ms: int
    data: bytes = b""
    """What to send, where it was kept by another participant; ours is made when it is due, of what history has."""


class ChannelMeta(msgspec.Struct, frozen=True, gc=False):
    """The whole state of a channel but its history."""

    lamport: int = 0
    """The Lamport time."""
    outgoing: tuple[UnacknowledgedMessage, ...] = ()
    """What is not acknowledged."""
    incoming: tuple[BufferedMessage, ...] = ()
    """What waits for others."""
    requests: tuple[RepairRequest, ...] = ()
    """What will be requested."""
    responses: tuple[RepairResponse, ...] = ()
    """What will be sent for others."""
    met: tuple[str, ...] = ()
    """Ids that count as delivered although they are not in history: marked so, or lost."""
    dialect: DialectName | Literal[""] = ""
    """Empty where another implementation wrote the snapshot, which does not say."""
    encrypted: bool = False
    """Its messages travel under a key: without one it must not be opened again."""
    lost: tuple[str, ...] = ()
    """Those of `met` that nobody has: our filter must not say that we do."""
    filter_ids: int = 0
    """How many ids the filter holds; the newest ones."""
    filter_rolled: bool = False
    """Whether the filter has forgotten some already: its size may be another one since."""


class KnownMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that was sent or delivered here, as it is remembered for good."""

    message_id: str
    at_ms: int = 0
    """The time of its note, and so of its record in the log; 0 = not known."""
    sender_id: str = ""


class ChannelData(msgspec.Struct, frozen=True, gc=False):
    """What a channel starts from."""

    meta: ChannelMeta = ChannelMeta()
    """The newest snapshot."""
    history: tuple[SdsMessage, ...] = ()
    """In the order in which it was appended."""
    hints: Mapping[str, bytes] = {}
    """Retrieval hints of messages in history."""
    known: tuple[KnownMessage, ...] = ()
    """Ids that are remembered, also those that have left history, oldest first; an id that comes again counts once."""


NoteKind = Literal["sent", "delivered", "missing", "acknowledged", "given_up", "lost"]


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something that happened in a channel, for those who look at it from outside."""

    kind: NoteKind
    message_id: str
    sender_id: str
    lamport: int
    at_ms: int
    content: bytes = b""
    waited_ms: int = 0
    """Of a delivered message: how long it waited for others."""
    missing: tuple[str, ...] = ()
    causes: tuple[HistoryEntry, ...] = ()
    """Of a message that was sent or delivered: what it names, so that it can be sent again from its record."""


class HistoryUpdate(msgspec.Struct, frozen=True, gc=False):
    """How history changes; no id is in both lists."""

    append: tuple[SdsMessage, ...] = ()
    """In order of delivery; an id that is there already is replaced in its place."""
    evict: tuple[str, ...] = ()
    """Ids that leave history."""
    notes: tuple[Note, ...] = ()
    """What happened."""
    displaced: tuple[str, ...] = ()
    """Ids to append that go to the end even if they are there: one was evicted, and came back, before it was kept."""
    known: tuple[KnownMessage, ...] = ()
    """Ids to remember behind those that are; a backend that does not keep them knows history's own after a restart."""
    remembered: int = 0
    """How many ids are to be remembered in all, once `known` is added: of more the oldest may go; 0 = all of them."""

    written: Mapping[str, StoredMessage] = {}
    """Of messages to append, and of what was noted of them, the bytes that they came in or went out as, by id."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do: then no call is made."""
        return not (self.append or self.evict or self.notes or self.known)
