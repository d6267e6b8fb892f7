"""What happens when an execution's journal cannot be written: `fail`, or `continue-undurable`.

`fail` is the default: the caller that hands an entry over, or waits for it, gets the error, and the program ends where
it is; what is durable is resumed later. Who chose `continue-undurable` goes on without a journal: from the first loss
on nothing more is recorded of this run, a warning says so, and it is counted. A later run begins behind what is
durable, and repeats the rest, guarded effects as well.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, Literal

from holdfast.errors import Closed, ExecutionHeld, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.journal.journal import Group, Unit
from holdfast.journal.queue.ticket import UnitTicket

OnJournalLoss = Literal["fail", "continue-undurable"]

LOSSES = (Unavailable, Closed, OutcomeUnknown, ExecutionHeld)
"""What counts as loss: the disk, the queue or the log will not take it, or nobody knows whether it did."""

logger = logging.getLogger("holdfast.executions")


def checked_policy(given: object) -> OnJournalLoss:
    """One of the two."""
    if given == "fail":
        return "fail"
    if given == "continue-undurable":
        return "continue-undurable"
    raise Invalid(f"unknown on_journal_loss={given!r}"[:200], hint="'fail' or 'continue-undurable'")


class JournalLoss:
    """Whether one run of an execution has lost its journal."""

    def __init__(self, execution: ExecutionId) -> None:
        self._execution = execution
        self.cause: HoldfastError | None = None
        """Why nothing is recorded any more; None while it is."""
        self.lost = 0
        """How many times something was handed over, or waited for, that is not durable."""

    def note(self, cause: HoldfastError) -> None:
        """Something could not be stored."""
        self.lost += 1
        if self.cause is None:
            self.cause = cause
            logger.warning(
                "the journal of an execution is lost: it continues, and the rest of this run is not recorded"
                " execution=%s: %s",
                self._execution,
                cause.message,
                extra={"action": "execution_undurable", "execution": str(self._execution)},
            )


class ForgivingTicket(UnitTicket, frozen=True, gc=False, eq=False):
    """The ticket of an entry whose loss is noted, and raised to nobody."""

    loss: JournalLoss | None = None

    @classmethod
    def of(cls, ticket: UnitTicket, loss: JournalLoss, timeout: float) -> ForgivingTicket:
        """The same, forgiving."""
        return cls(ticket.unit, timeout, "an entry", loss)

    @classmethod
    def lost(cls, loss: JournalLoss) -> ForgivingTicket:
        """Of an entry that could not even be handed over."""
        group = Group(0, 0)
        unit = Unit(group, [])
        unit.fail(loss.cause or Unavailable("the journal is lost"))
        group.finish()
        return cls(unit, 0.0, "an entry", loss)

    def result(self, timeout: float | None = None) -> None:
        """Wait until it is durable, or known to be lost."""
        try:
            super().result(timeout)
        except LOSSES as error:
            self._note(error)

    def __await__(self) -> Generator[Any, None, None]:
        try:
            yield from super().__await__()
        except LOSSES as error:
            self._note(error)

    def _note(self, error: HoldfastError) -> None:
        assert self.loss is not None
        self.loss.note(error)
