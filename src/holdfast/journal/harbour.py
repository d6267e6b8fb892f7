"""What everybody needs to know who waits for the store: whether the log ships at all, and why it does not any more.

One per log, shared by all its partitions. How far each partition got stands in the partition itself (`shipment`); the
shipper replaces that row and rings here, once for all that moved together.
"""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.journal.bell import Bell


class Harbour:
    """The way from one log to its store, as waiters see it."""

    __slots__ = ("bell", "end", "ships", "timeout")

    def __init__(self) -> None:
        self.bell = Bell()
        self.ships = False
        """Whether a store is configured for this handle."""
        self.end: HoldfastError | None = None
        """Why nothing more is shipped through this handle."""
        self.timeout = 30.0
        """How long waiters wait unless they say otherwise, in seconds."""

    def finish(self, reason: HoldfastError) -> None:
        """Nothing more is shipped; the first reason stays."""
        if self.end is None:
            self.end = reason
        self.bell.ring()
