"""The bytes of a message that was just sent or received, so that nothing is encoded a second time to be kept.

What is stored of a message, and what its record tells of its causes, are cut out of its wire form. That is possible
where this is nim's and has every field once, in order, and nothing besides; else there is no such value, and the
message is encoded. It belongs to one step and goes with its commit: a message that is kept later is encoded then.
"""

from __future__ import annotations

import msgspec

_NO_FILTER = b"\x32\x00"


class Written(msgspec.Struct, frozen=True, gc=False):
    """A message in nim's wire format, and where in it its causes and its filter are."""

    data: bytes
    causes_at: int
    causes_end: int
    filter_at: int
    filter_end: int

    @property
    def size(self) -> int:
        """How many bytes are stored, or two fewer."""
        return len(self.data) - self.filter_end + self.filter_at

    @property
    def causes_size(self) -> int:
        """How many bytes the causes have."""
        return self.causes_end - self.causes_at

    def causes(self) -> bytes:
        """What the message names: repeated field 3, as there."""
        return self.data[self.causes_at : self.causes_end]

    def stored(self) -> bytes:
        """As it is stored: with an empty filter."""
        return b"".join((self.data[: self.filter_at], _NO_FILTER, self.data[self.filter_end :]))
