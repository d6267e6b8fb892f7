"""How long the unsealed tail is, and whether it leaves room: slow sealing becomes back-pressure, not a full disk."""

from __future__ import annotations

from holdfast.errors import Full


class UnsealedTail:
    """Bytes of all partitions that are durable and not sealed. Only the writer moves it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_since = 0
        """What the writer counted since the log was opened …"""
        self.bytes_found = 0
        """… and what was there before, measured by the roller."""

    @property
    def size(self) -> int:
        """Bytes that are durable and not sealed."""
        return self.bytes_since + self.bytes_found

    @property
    def is_long(self) -> bool:
        """Whether it is on its way to its limit, so that something should be sealed."""
        return 2 * self.size >= self._bytes_max

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken."""
        return self.size >= self._bytes_max

    def full(self, message: str) -> Full:
        """Why there is no room; the message is for when it is not the tail."""
        if not self.is_full:
            return Full(message)
        return Full(
            "sealing does not keep up: the unsealed tail is at its limit; nothing was written",
            hint="see stats().segments for why; raise journal.tail_bytes_max to allow a longer tail",
        )
