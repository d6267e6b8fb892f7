"""Messages of a channel, as values: what both wire formats carry.

Ids are text. On the wire they are bytes that nobody has checked: what is not UTF-8 is kept as surrogate escapes, so
that every id that can be received can be stored, compared and sent again unchanged.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import Invalid

Kind = Literal["content", "sync", "ephemeral"]

# What a message may hold: the same for those sent and those received, so that nobody here sends what is refused there.
ID_BYTES_MAX = 1024
HINT_BYTES_MAX = 4096
ENTRIES_MAX = 1000
"""In its causal history, and again in its repair requests."""
ENTRIES_BYTES_MAX = 2**18
"""All of them together."""
CONTENT_BYTES_MAX = 2**20
BLOOM_BYTES_MAX = 2**22


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    """A message named by another one: as its cause, or as what a participant asks for again."""

    message_id: str
    retrieval_hint: bytes = b""
    """How to fetch it from elsewhere; the application's own business."""
    sender_id: str = ""


class SdsMessage(msgspec.Struct, frozen=True, gc=False):
    """One message on the wire."""

    message_id: str
    channel_id: str
    lamport: int | None
    """None in an ephemeral message, which has no place in any order."""
    content: bytes = b""
    sender_id: str = ""
    causal_history: tuple[HistoryEntry, ...] = ()
    """Messages that it names as its causes."""
    bloom_filter: bytes = b""
    """What the sender has."""
    repair_request: tuple[HistoryEntry, ...] = ()
    """Messages that the sender lacks."""

    @property
    def kind(self) -> Kind:
        """Content is delivered in causal order, sync carries what the sender knows, ephemeral is delivered at once."""
        if self.lamport is None:
            return "ephemeral"
        return "content" if self.content else "sync"

    @property
    def size(self) -> int:
        """About as many bytes as it takes to keep it: all but its filter."""
        entries = (*self.causal_history, *self.repair_request)
        named = sum(len(entry.message_id) + len(entry.retrieval_hint) + len(entry.sender_id) for entry in entries)
        return len(self.content) + len(self.message_id) + len(self.sender_id) + named

    def without_bloom(self) -> SdsMessage:
        """The message as it is kept: a filter says what its sender knew then, and is worth nothing later."""
        return msgspec.structs.replace(self, bloom_filter=b"") if self.bloom_filter else self


def text(raw: bytes) -> str:
    """An id from the wire."""
    return raw.decode("utf-8", "surrogateescape")


def raw(text: str) -> bytes:
    """An id for the wire."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Invalid("an id holds half of a surrogate pair", hint="give ids that can be written as UTF-8") from None
