"""The owner of a log, as others ask it: the parts that its verbs work on. What each verb does stands with the verb.

What a verb raises is raised at the other end.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.arguments import patience
from holdfast.errors import Invalid
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.owner.consumer_calls import ConsumerCalls
from holdfast.owner.event_relay import EventCalls
from holdfast.owner.mark_events import MarkEvents
from holdfast.owner.peer import Peer
from holdfast.owner.verb import SECONDS_MAX


class EncryptedKeys(msgspec.Struct, frozen=True, array_like=True):
    """A keyring, encrypted; of those that the owner tells, with a number."""

    body: bytes
    number: int = 0


class TookKeys(msgspec.Struct, frozen=True, array_like=True):
    """A member has them."""

    number: int


class Sharing(Protocol):
    """What members ask of their owner as the members that they are."""

    def own(self, peer: Peer) -> None:
        """This member wants to own the log."""

    def rotate(self, peer: Peer, asked: EncryptedKeys, /) -> Nothing:
        """Write under another key."""

    def took(self, peer: Peer, asked: TookKeys, /) -> Nothing:
        """This member has the keys."""


class LogOwner:
    """One owned log, for the verbs that others ask for; any thread may use it."""

    def __init__(self, log: Log, *, wait_max: float = SECONDS_MAX, sharing: Sharing | None = None) -> None:
        """`wait_max`: no verb waits longer, whatever is asked for."""
        self.parts = parts = parts_of(log).beside()
        self.journal = parts.journal
        self.maintenance = parts.maintenance
        self.store = parts.store
        self.marks = MarkEvents(parts.journal)
        self.events = EventCalls(parts.store)
        self.consumers = ConsumerCalls(parts)
        """Its members of consumers in other processes."""
        self._wait_max = wait_max
        self._sharing = sharing

    def stop(self) -> None:
        """The owner ends: nothing is announced any more."""
        for one in (self.marks, self.consumers, self.events):
            one.stop()

    def patience(self, asked: float | None) -> float:
        """How many seconds a verb waits."""
        return min(patience(asked), self._wait_max)

    @property
    def members(self) -> Sharing:
        """The processes that share the log; Invalid where none do."""
        if self._sharing is None:
            raise Invalid("this log is not shared", hint="open it with share=True")
        return self._sharing
