"""Tickets: the promise of an append, as a place in a group.

A ticket is two words of memory and no Future: in Python the waiting costs more than the disk. It serves
threads (`ticket.result()`) and coroutines (`await ticket`) alike. Cancelling whoever waits never cancels the
append. A wait that runs out of time is `OutcomeUnknown`, not failure: the ticket can be asked again.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Generator, Sequence
from typing import Any, overload

import msgspec

from holdfast.errors import OutcomeUnknown
from holdfast.journal.group import Run, Unit
from holdfast.record import Receipt


class Ticket(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The promise of one append; `result()` or `await` gives its receipt once it is durable."""

    _run: Run
    _index: int
    _timeout: float
    _idempotency_key: bytes | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, repeated or refused."""
        return self._run.group.done

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait until the append survives power loss, and return its receipt.

        Raises what became of the append if it failed, and OutcomeUnknown after `timeout` seconds
        (default: `journal.ack_timeout_ms`).
        """
        group = self._run.group
        if not group.done:
            patience = self._timeout if timeout is None else timeout
            if not group.bell.sleep(group.is_done, patience):
                raise self._unknown(patience)
        return self._run.receipt(self._index)

    def __await__(self) -> Generator[Any, None, Receipt]:
        group = self._run.group
        if not group.done:
            future = group.bell.future(get_running_loop(), self._timeout)
            if not group.done:  # look again: it may have rung before we registered
                yield from future
            if not group.done:
                raise self._unknown(self._timeout)
        return self._run.receipt(self._index)

    def __repr__(self) -> str:
        return f"Ticket({self._run.partition.topic!r}, partition={self._run.partition.number}, done={self.done})"

    def _unknown(self, patience: float) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no acknowledgement within {patience:g} s topic={self._run.partition.topic}",
            idempotency_key=self._idempotency_key,
            ticket=self,
        )


class BatchTicket(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The promise of a batch; `result()` or `await` gives the receipts of its records, in order."""

    _unit: Unit
    _places: Sequence[tuple[Run, int]] | Run
    _timeout: float

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._unit.group.done

    def result(self, timeout: float | None = None) -> Sequence[Receipt]:
        """Wait until the whole batch survives power loss, and return one receipt per record."""
        group = self._unit.group
        if not group.done:
            patience = self._timeout if timeout is None else timeout
            if not group.bell.sleep(group.is_done, patience):
                raise OutcomeUnknown(f"no acknowledgement within {patience:g} s for a batch")
        return self._receipts()

    def __await__(self) -> Generator[Any, None, Sequence[Receipt]]:
        group = self._unit.group
        if not group.done:
            future = group.bell.future(get_running_loop(), self._timeout)
            if not group.done:
                yield from future
            if not group.done:
                raise OutcomeUnknown(f"no acknowledgement within {self._timeout:g} s for a batch")
        return self._receipts()

    def __repr__(self) -> str:
        return f"BatchTicket(done={self.done})"

    def _receipts(self) -> Sequence[Receipt]:
        self._unit.check_stored()
        if isinstance(self._places, Run):
            return Receipts(self._places)
        return [run.receipt(index) for run, index in self._places]


class Receipts(Sequence[Receipt]):
    """The receipts of a batch in one partition, made when they are looked at."""

    __slots__ = ("_count", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._count = run.count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._run.receipt(i) for i in range(*index.indices(self._count))]
        return self._run.receipt(range(self._count)[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        first, last = self[0], self[-1]
        return f"Receipts({first.topic!r}, partition={first.partition}, offsets={first.offset}..{last.offset})"
