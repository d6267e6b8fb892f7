"""The bytes of a message that was just sent or received, so that nothing is encoded a second time to be kept.

What is stored of a message, and what its record says about its causes, are slices of its wire form. That is possible
where this is nim's and has every field once, in order, and nothing besides; else there is no such value, and the
message is encoded. It belongs to one step and goes with its commit: a message that is kept later is encoded then.
"""

from __future__ import annotations

import msgspec

NO_FILTER = b"\x32\x00"


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it is stored, and where in that its causes are.

    The filter is cut out at once: it is most of a message, and commits that wait would hold far more than they say.
    """

    stored: bytes
    causes_at: int
    causes_end: int

    @property
    def causes_size(self) -> int:
        """How many bytes the causes have."""
        return self.causes_end - self.causes_at

    def causes(self) -> bytes:
        """What the message names: repeated field 3, as there."""
        return self.stored[self.causes_at : self.causes_end]
