"""The ids of all messages that were ever here, exactly, far beyond history: so that nothing is delivered twice.

An id is remembered as 16 bytes of its hash, however long it is, with the time of the record that `_channels` has of its
message, and its sender: enough to answer for it from the log when history has let it go. The bound is in ids
(`channels.remembered_max`); each takes about 200 bytes of memory. Beyond it the oldest go, a sixteenth at a time.

The hash is BLAKE2b: whoever could find two ids with one hash could keep a message from being delivered.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import islice

import msgspec

from holdfast.channels.message import raw
from holdfast.channels.snapshot import Known

_DIGEST_BYTES = 16
_AT_ONCE = 16
"""One of so many goes when there are too many: one by one, each would cost a walk over those that went before."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where to look for a message."""

    at_ms: int
    """The time of its record; 0 = there is none that could be found."""
    sender_id: str


class KnownIds:
    """Ids in the order in which they came; nothing is kept here."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[bytes, Place] = {}
        self._senders: dict[str, str] = {}
        """Each sender's id once, however many messages it sent."""

    def add(self, known: Known) -> bool:
        """Remember an id, and tell whether it was not known: the first one counts."""
        digest = _digest(known.message_id)
        if digest in self._places:
            return False
        sender_id = self._senders.get(known.sender_id)
        if sender_id is None:
            if len(self._senders) >= self._limit:
                self._senders.clear()
            sender_id = self._senders[known.sender_id] = known.sender_id
        self._places[digest] = Place(known.at_ms, sender_id)
        if len(self._places) > self._limit:
            for oldest in list(islice(self._places, max(1, self._limit // _AT_ONCE))):
                del self._places[oldest]
        return True

    def get(self, message_id: str) -> Place | None:
        """Where a message that was here can be found."""
        return self._places.get(_digest(message_id))

    def __contains__(self, message_id: str) -> bool:
        return _digest(message_id) in self._places

    def __len__(self) -> int:
        return len(self._places)


@lru_cache(32)
def _digest(message_id: str) -> bytes:
    return blake2b(raw(message_id), digest_size=_DIGEST_BYTES).digest()
