"""Tickets: the promise of an append, as a place in a group.

A ticket is two words of memory and no Future: in Python the waiting costs more than the disk. It serves threads
(`ticket.result()`) and coroutines (`await ticket`) alike. Cancelling a waiter never cancels the append. A wait that
runs out of time is `OutcomeUnknown`, not failure: the ticket can be awaited again.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.journal.queue.group import Group, Run, Unit
from holdfast.journal.queue.receipts import Receipts
from holdfast.journal.state.partition import Partition
from holdfast.journal.state.shipping_state import ShippingState
from holdfast.model.record import Receipt

monotonic = SystemClock().monotonic
"""Waiting for the store is measured by the machine's own clock: a waiter here is a thread of this machine."""

Outcome = TypeVar("Outcome")
Gives_co = TypeVar("Gives_co", covariant=True)


class AnyTicket(Protocol[Gives_co]):
    """Any ticket."""

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""

    def result(self, timeout: float | None = None) -> Gives_co:
        """Wait for the outcome."""

    def __await__(self) -> Generator[Any, None, Gives_co]: ...


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
            seconds = self._timeout if timeout is None else timeout
            if not group.wait(seconds):
                raise self._unknown(seconds)
        return self._run.receipt(self._index)

    def __await__(self) -> Generator[Any, None, Receipt]:
        run = self._run
        group = run.group
        if not group.done:
            try:
                parked = group.signal.park(self._timeout)
                if not group.done:  # look again: it may have been done before we parked
                    yield parked
            except RuntimeError:  # refused: another loop ran in this thread before
                parked = group.signal.park(self._timeout, get_running_loop())
                if not group.done:
                    yield parked
            if not group.done:
                raise self._unknown(self._timeout)
        return run.receipt(self._index)

    @property
    def when_shipped(self) -> ShippedTicket[Receipt]:
        """The promise that this append is on the store; `await ticket.when_shipped`."""
        return ShippedTicket(self, self._ends)

    def shipped(self, timeout: float | None = None) -> Receipt:
        """Wait until the append survives the loss of this machine: acknowledged by the store, with all before it.

        Raises Unavailable after `timeout` seconds (default: `shipping.shipped_timeout_ms`).
        """
        return self.when_shipped.result(timeout)

    def _ends(self, _: Receipt) -> Sequence[tuple[Partition, int]]:
        partition, offset, _seq = self._run.place(self._index)
        return [(partition, offset + 1)]

    def __repr__(self) -> str:
        return f"Ticket({self._run.partition.topic!r}, partition={self._run.partition.number}, done={self.done})"

    def _unknown(self, seconds: float) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no acknowledgement within {seconds:g} s topic={self._run.partition.topic}",
            idempotency_key=self._idempotency_key,
            ticket=self,
        )


class ShippedTicket(Generic[Outcome]):
    """The promise that an append survives the loss of this machine; `result()` or `await` gives what the append gave.

    Made of a ticket whose append may still be on its way to the local disk.
    """

    __slots__ = ("_ends", "_ticket", "_timeout")

    def __init__(
        self,
        ticket: AnyTicket[Outcome],
        ends: Callable[[Outcome], Sequence[tuple[Partition, int]]],
        timeout: float | None = None,
    ) -> None:
        self._ticket = ticket
        self._ends = ends
        """Up to which offset of which partitions the store must be."""
        self._timeout = timeout

    def within(self, seconds: float | None) -> ShippedTicket[Outcome]:
        """The same promise; waiting for it takes at most so many seconds (None: as the setting says)."""
        return ShippedTicket(self._ticket, self._ends, seconds)

    @property
    def done(self) -> bool:
        """Whether it is on the store, or never will be through this handle."""
        if not self._ticket.done:
            return False
        try:
            ends = self._ends(self._ticket.result(0))
        except HoldfastError:
            return True
        return _are_shipped(ends) or (bool(ends) and _is_over(ends))

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the ordered acknowledgement of the store.

        Raises what became of the append if it failed, Unavailable after `timeout` seconds (default:
        `shipping.shipped_timeout_ms`; the record is durable here all the same), and what ended shipping.
        """
        began = monotonic()
        timeout = self._timeout if timeout is None else timeout
        outcome = self._ticket.result(timeout)
        ends = self._ends(outcome)
        shipping_state = _shipping_state(ends) if ends else None
        if shipping_state is not None and not _are_shipped(ends):
            seconds = shipping_state.timeout if timeout is None else timeout
            deadline = (monotonic() if timeout is None else began) + seconds
            while not _are_shipped(ends):
                left = deadline - monotonic()
                if (refusal := _refusal(ends)) is not None:
                    raise refusal.again()
                if left <= 0:
                    raise _not_shipped(ends, seconds)
                shipping_state.signal.sleep(lambda: _are_shipped(ends) or _refusal(ends) is not None, left)
        return outcome

    def __await__(self) -> Generator[Any, None, Outcome]:
        began = monotonic()
        outcome = yield from self._ticket.__await__()
        ends = self._ends(outcome)
        shipping_state = _shipping_state(ends) if ends else None
        if shipping_state is not None and not _are_shipped(ends):
            loop = get_running_loop()
            seconds = shipping_state.timeout if self._timeout is None else self._timeout
            deadline = loop.time() + seconds - (0.0 if self._timeout is None else monotonic() - began)
            while not _are_shipped(ends):
                if (refusal := _refusal(ends)) is not None:
                    raise refusal.again()
                if loop.time() >= deadline:
                    raise _not_shipped(ends, seconds)
                future = shipping_state.signal.future(loop, deadline - loop.time())
                if not _are_shipped(ends) and _refusal(ends) is None:
                    yield from future
        return outcome

    def __repr__(self) -> str:
        return f"ShippedTicket(done={self.done})"


def _are_shipped(ends: Sequence[tuple[Partition, int]]) -> bool:
    return all(partition.shipment is not None and partition.shipped >= end for partition, end in ends)


def _is_over(ends: Sequence[tuple[Partition, int]]) -> bool:
    return ends[0][0].shipping_state.end is not None or any(partition.refusal is not None for partition, _ in ends)


def _refusal(ends: Sequence[tuple[Partition, int]]) -> HoldfastError | None:
    """Why nobody should wait for the store to have these."""
    refused = (partition.refusal for partition, _ in ends)
    return next((reason for reason in refused if reason is not None), None) or ends[0][0].shipping_state.refusal


def _shipping_state(ends: Sequence[tuple[Partition, int]]) -> ShippingState:
    shipping_state = ends[0][0].shipping_state
    if not shipping_state.ships:
        raise Invalid("this log ships to no store", hint="open it with store='s3://bucket/prefix' or 'file:///…'")
    shipping_state.expect()
    return shipping_state


def _not_shipped(ends: Sequence[tuple[Partition, int]], seconds: float) -> Unavailable:
    partition, end = next((item for item in ends if item[0].shipped < item[1]), ends[0])
    cause, remedy = partition.shipping_state.why()
    return Unavailable(
        f"durable here, but not on the store within {seconds:.3g} s{': ' * bool(cause)}{cause} topic={partition.topic}"
        f" partition={partition.number} offset={end - 1} shipped={partition.shipped}",
        hint=f"{remedy or 'log.stats().shipping says what holds it up'}; it is shipped as soon as the store takes it",
    )


class UnitTicket(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The promise of a unit; `result()` or `await` returns once all of it is durable."""

    unit: Unit
    _timeout: float
    _what: str = "a change"

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.unit.group.done

    @property
    def is_stored(self) -> bool:
        """Whether all of it is known to be durable."""
        return self.unit.is_stored

    def wait(self, timeout: float) -> bool:
        """Wait for the outcome, whatever it is; whether it is known."""
        group = self.unit.group
        return group.done or group.wait(timeout)

    async def wait_async(self, timeout: float) -> bool:
        """What `wait` does, for coroutines."""
        group = self.unit.group
        future = group.signal.future(get_running_loop(), timeout)
        if not group.done:  # look again: it may have been done before we registered
            await future
        return group.done

    def result(self, timeout: float | None = None) -> None:
        """Wait until the whole unit survives power loss.

        Raises what became of it if it failed, and OutcomeUnknown after `timeout` seconds: then ask again.
        """
        seconds = self._timeout if timeout is None else timeout
        if not self.wait(seconds):
            raise _unknown(seconds, self._what, self)
        self.unit.check_stored()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.unit.group.done:
            yield from _parked(self.unit.group, self._timeout, self._what, self)
        self.unit.check_stored()

    def __repr__(self) -> str:
        return f"UnitTicket(done={self.done})"


def _parked(group: Group, timeout: float, what: str, ticket: UnitTicket | BatchTicket) -> Generator[Any, None, None]:
    """Wait for a group, as a coroutine does."""
    parked = group.signal.park(timeout, get_running_loop())
    if not group.done:
        yield parked
    if not group.done:
        raise _unknown(timeout, what, ticket)


def _unknown(seconds: float, what: str, ticket: UnitTicket | BatchTicket) -> OutcomeUnknown:
    return OutcomeUnknown(f"no acknowledgement within {seconds:g} s for {what}", ticket=ticket)


class BatchTicket(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The promise of a batch; `result()` or `await` gives the receipts of its records, in order."""

    _unit: Unit | Run
    """A single row stands in a run, with those of others."""
    _receipts: Receipts
    _timeout: float

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._unit.group.done

    def result(self, timeout: float | None = None) -> Sequence[Receipt]:
        """Wait until the whole batch survives power loss, and return one receipt per record."""
        group = self._unit.group
        seconds = self._timeout if timeout is None else timeout
        if not group.done and not group.wait(seconds):
            raise _unknown(seconds, "a batch", self)
        self._unit.check_stored()
        return self._receipts

    def __await__(self) -> Generator[Any, None, Sequence[Receipt]]:
        if not self._unit.group.done:
            yield from _parked(self._unit.group, self._timeout, "a batch", self)
        self._unit.check_stored()
        return self._receipts

    @property
    def when_shipped(self) -> ShippedTicket[Sequence[Receipt]]:
        """The promise that the batch is on the store; `await ticket.when_shipped`."""
        return ShippedTicket(self, self._ends)

    def shipped(self, timeout: float | None = None) -> Sequence[Receipt]:
        """Wait until the whole batch survives the loss of this machine."""
        return self.when_shipped.result(timeout)

    def _ends(self, _: Sequence[Receipt]) -> Sequence[tuple[Partition, int]]:
        return [(run.partition, run.first + run.count) for run in self._receipts.runs if run.count]

    def __repr__(self) -> str:
        return f"BatchTicket(done={self.done})"
