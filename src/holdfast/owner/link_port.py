"""The way to the owner of a log, as its callers need it: over a socket, or over HTTP."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

Reply = TypeVar("Reply")

MET = "met"
"""The event that no owner tells: there is one, perhaps another one than before."""
HAND_OVER_S = 2.0
"""How long everybody else leaves the log to the one that asked for it."""


class OwnerLink(Protocol):
    """Calls, and events."""

    session: bytes
    turns: RLock
    """Guards what is known of the owner; held while listeners are called."""

    def call(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        """Ask the owner for something, and wait for its answer; OutcomeUnknown where it ended meanwhile."""

    def on_event(self, name: str, call: Callable[[bytes], None]) -> None:
        """Have something called when the owner tells this: it must be short."""
