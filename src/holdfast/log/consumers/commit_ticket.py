"""The ticket of a consumer's commit: waits until the position is durable, and lets the members know."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from holdfast.journal.queue.ticket import UnitTicket
from holdfast.log.consumers.members import Members


class CommitTicket:
    """The promise of a consumer's commit; `result()` or `await` returns once it is durable."""

    __slots__ = ("_members", "_ticket")

    def __init__(self, members: Members, ticket: UnitTicket | None) -> None:
        self._members = members
        self._ticket = ticket
        """None: nothing had changed, and nothing is on its way."""

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._ticket is None or self._ticket.done

    def result(self, timeout: float | None = None) -> None:
        """Wait until the position survives power loss; raises what became of it if it does not."""
        if self._ticket is not None:
            try:
                self._ticket.result(timeout)
            finally:
                self._members.balance()

    def __await__(self) -> Generator[Any, None, None]:
        if self._ticket is not None:
            try:
                yield from self._ticket.__await__()
            finally:
                self._members.balance()

    def __repr__(self) -> str:
        return f"CommitTicket(done={self.done})"
