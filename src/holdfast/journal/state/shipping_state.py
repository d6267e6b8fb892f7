"""What anyone who waits for the store needs to know: whether the log ships at all, and why it has stopped.

One per log, shared by all its partitions. How far each partition got stands in the partition itself (`shipment`); the
shipper replaces that row and notifies here, once for all that moved together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, Invalid
from holdfast.signals import Signal

if TYPE_CHECKING:
    from holdfast.journal.state.partition import Partition


class ShippingState:
    """The way from one log to its store, as waiters see it."""

    __slots__ = ("end", "expect", "frontier", "is_known", "ships", "signal", "timeout", "trouble", "why")

    def __init__(self) -> None:
        self.signal = Signal()
        self.ships = False
        """Whether a store is configured for this handle."""
        self.end: HoldfastError | None = None
        """Why nothing more is shipped through this handle."""
        self.trouble: HoldfastError | None = None
        """Why nothing is acknowledged at the moment, if waiting would be in vain: the store has lost what it had."""
        self.is_known = False
        """Whether the store has been found intact since this handle was opened."""
        self.frontier: Mapping[Partition, int] = {}
        """How far each partition is settled by the store's own word; the shipper's thread replaces it as a whole."""
        self.timeout = 30.0
        """How long waiters wait unless they say otherwise, in seconds."""
        self.expect: Callable[[], None] = lambda: None
        """Called before a wait; where another process ships, its marks have to be asked for."""
        self.why: Callable[[], tuple[str, str]] = lambda: ("", "")
        """What holds shipping up at the moment, and the remedy, as far as that is known."""

    @property
    def refusal(self) -> HoldfastError | None:
        """Why nobody should wait for the store."""
        return self.end or self.trouble

    @property
    def is_doubtful(self) -> bool:
        """Whether the marks cannot be relied on at the moment."""
        return self.trouble is not None or (self.ships and not self.is_known)

    def check_durability(self, durability: str) -> None:
        """Before anything is written: what a caller wants to wait for must be something that can come."""
        if durability not in ("durable", "shipped"):
            raise Invalid(f"unknown durability={durability!r}", hint="use 'durable' or 'shipped'")
        if durability == "shipped" and not self.ships:
            hint = "open it with store='s3://bucket/prefix' or 'file:///…'; a server's log: serve it with one"
            raise Invalid("this log ships to no store", hint=hint)

    def trouble_by(self, reason: HoldfastError | None) -> None:
        """Nothing is acknowledged for this reason, or (None) acknowledgements resume."""
        self.trouble = reason
        self.signal.notify()

    def finish(self, reason: HoldfastError) -> None:
        """Nothing more is shipped; the first reason stays."""
        if self.end is None:
            self.end = reason
        self.signal.notify()
