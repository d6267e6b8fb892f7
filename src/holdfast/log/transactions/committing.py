"""What a consumer gives to a transaction: the change that makes its position durable, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.journal.journal_port import JournalPort, Operation
from holdfast.journal.queue.ticket import UnitTicket


class Committing(Protocol):
    """The position of a consumer, as it was when it was asked for, on its way into a commit."""

    @property
    def operations(self) -> Sequence[Operation]:
        """Changes of spaces, and records."""

    @property
    def records(self) -> int:
        """How many records there are among them."""

    @property
    def size(self) -> int:
        """Their bytes."""

    @property
    def scope(self) -> str | None:
        """The member that commits, where that is in another process than the owner's; None elsewhere."""

    def is_of(self, journal: JournalPort) -> bool:
        """Whether its consumer reads the log of this journal."""

    def queued(self, ticket: UnitTicket) -> None:
        """It is in the journal's queue; the ticket tells what becomes of it."""

    def stored(self) -> None:
        """It is durable."""

    def failed(self) -> None:
        """It was not queued, and never will be."""


class Consuming(Protocol):
    """A consumer, as far as transactions know it."""

    def commit_operations(self) -> Committing | None:
        """The position of what was given out so far; None where it is committed, or about to be."""
