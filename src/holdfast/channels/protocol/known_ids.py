"""The ids of all messages that were ever here, exactly, far beyond history: so that nothing is delivered twice.

An id is remembered with the time of the record that `_channels` has of its message, and its sender: enough to answer
for it from the log when history has let it go, and to name it to those who lack it. The bound is in ids
(`channels.remembered_max`); each takes about 300 bytes of memory. Beyond it the oldest go, a sixteenth at a time.

Of an id that is longer than those of honest members only a hash is remembered. It is BLAKE2b: an attacker who finds two
ids with one hash could keep a message from being delivered.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice

import msgspec

from holdfast.channels.keeping.snapshot import KnownMessage
from holdfast.channels.wire.message import raw

_DIGEST_BYTES = 16
_ID_MAX = 128
"""Longer ids are remembered by their hash."""
_AT_ONCE = 16
"""One of so many goes when there are too many: one by one, each would cost a walk over those that went before."""


class MessagePlace(msgspec.Struct, frozen=True, gc=False):
    """Where to look for a message."""

    at_ms: int
    """The time of its record; 0 = there is none that could be found."""
    sender_id: str


class KnownIds:
    """Ids in the order in which they came; nothing is kept here."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[str | bytes, MessagePlace] = {}
        self._senders: dict[str, str] = {}
        """Each sender's id once, however many messages it sent."""

    def add(self, known: KnownMessage) -> bool:
        """Remember an id, and tell whether it was not known: the first one counts."""
        key = _key(known.message_id)
        if key in self._places:
            return False
        sender_id = self._senders.get(known.sender_id)
        if sender_id is None:
            if len(self._senders) >= self._limit:
                self._senders.clear()
            sender_id = self._senders[known.sender_id] = known.sender_id
        self._places[key] = MessagePlace(known.at_ms, sender_id)
        if len(self._places) > self._limit:
            for oldest in list(islice(self._places, max(1, self._limit // _AT_ONCE))):
                del self._places[oldest]
        return True

    def get(self, message_id: str) -> MessagePlace | None:
        """Where a message that was here can be found."""
        return self._places.get(_key(message_id))

    def __contains__(self, message_id: str) -> bool:
        return _key(message_id) in self._places

    def __len__(self) -> int:
        return len(self._places)

    def ids(self) -> list[str]:
        """Those that can be named, oldest first; a walk over all of them."""
        return [key for key in self._places if isinstance(key, str)]


def _key(message_id: str) -> str | bytes:
    if len(message_id) <= _ID_MAX:
        return message_id
    return blake2b(raw(message_id), digest_size=_DIGEST_BYTES).digest()
