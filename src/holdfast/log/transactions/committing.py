"""What a consumer gives to a transaction: the change that makes its position durable, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.journal.journal import Operation


class Committing(Protocol):
    """The position of a consumer, as it was when it was asked for, on its way into a commit."""

    @property
    def operations(self) -> Sequence[Operation]:
        """Changes of spaces, and records; looked at once, when the transaction ends. Raises if it may not commit."""

    @property
    def records(self) -> int:
        """How many records there are among them."""

    @property
    def size(self) -> int:
        """Their bytes."""

    def stored(self) -> None:
        """It is durable."""

    def failed(self) -> None:
        """It was not written, or nobody knows whether it was: what is stored has to be looked at again."""


class Consuming(Protocol):
    """A consumer, as far as transactions know it."""

    def commit_operations(self) -> Committing:
        """The position of what was given out so far."""
