"""What comes to executions from outside: promises are settled, signals are sent. Durable when a call returns.

It does not matter whether the execution runs at the moment, was left by its program, or was never begun. Waiters there
are woken. The same call twice does what one does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from holdfast.caller import once
from holdfast.errors import ExecutionCanceled, Full, HoldfastError, Invalid, NotFound, PromiseRejected
from holdfast.execution.journal.entries import Entry, PromiseResolved, SignalSent
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.journal.live_executions import LiveExecutions
from holdfast.execution.waits.promise_token import parse_token
from holdfast.journal.queue.ticket import UnitTicket

SIGNALS_MAX = 10_000
"""Signals of one execution that nobody has taken."""

Bring = Callable[[LiveExecution], Entry | None]
"""What there is to write; None if that was done before."""


class Delivery:
    """Brings things to the executions of one log."""

    def __init__(self, live: LiveExecutions) -> None:
        self._live = live
        self._clock = live.store.clock

    def settle(self, token: object, payload: bytes, *, is_error: bool = False) -> bool:
        """Settle a promise; False if it was settled before, which changes nothing.

        Raises NotFound for a promise that is not there, and PromiseRejected for a token that is not its own.
        """
        given = parse_token(token)

        def bring(live: LiveExecution) -> Entry | None:
            live.recorded.all()
            created = live.recorded.created.get(given.promise)
            if not created:
                raise NotFound(f"there is no such promise execution={live.id}", hint="its execution may be a new one")
            if not given.is_one_of(entry.token_hash for entry in created):
                raise PromiseRejected(f"this token is not the promise's execution={live.id}")
            if given.promise in live.recorded.promises:
                return None
            _check_goes_on(live)
            return PromiseResolved(given.promise, payload, self._clock.now_us(), is_error)

        return self._bring(given.execution, given.promise, bring)

    def send(self, execution: ExecutionId, name: str, payload: bytes, signal: bytes | None = None) -> bool:
        """Send a signal; one that has the id of an earlier one is that one, and changes nothing: False."""
        own = signal or self._clock.random_bytes(16)

        def bring(live: LiveExecution) -> Entry | None:
            recorded = live.recorded
            recorded.all()
            if own in recorded.signals:
                return None
            _check_goes_on(live)
            if sum(map(len, recorded.untaken.values())) >= SIGNALS_MAX:
                raise Full(f"{SIGNALS_MAX} signals wait to be taken execution={live.id}", hint="its program takes none")
            return SignalSent(name, own, payload, self._clock.now_us())

        return self._bring(execution, own, bring)

    def _bring(self, execution: ExecutionId, key: bytes, bring: Bring) -> bool:
        """Do it where the execution is, and once more if it was let go just then."""
        for is_last in (False, False, True):
            with self._live.visit(execution) as live:
                was_here = self._live.get(execution) is live
                try:
                    is_new, ticket, refusal = self._live.store.with_room(partial(_written, live, key, bring))
                    if refusal is not None:
                        raise refusal
                    if ticket is not None:
                        ticket.result()
                        live.brought.pop(key, None)
                    break
                except HoldfastError:
                    if is_last or not was_here or self._live.get(execution) is live:
                        raise
        live.arrived.notify()
        return is_new


class _Written(NamedTuple):
    is_new: bool
    ticket: UnitTicket | None = None
    """Of what was written: one of another writer may not be durable yet."""
    refusal: Full | None = None
    """No room in the execution: waiting for room in the journal would not help."""


def _written(live: LiveExecution, key: bytes, bring: Bring) -> _Written:
    """Write what there is to write, if nobody did so before."""
    with once(live.exchange):
        try:
            entry = bring(live)
        except Full as refusal:
            return _Written(False, refusal=refusal)
        if entry is not None:
            live.brought[key] = live.write(entry)
        return _Written(entry is not None, live.brought.get(key))


def _check_goes_on(live: LiveExecution) -> None:
    """Refuse what nobody will ever ask for."""
    status = live.row.status
    if status == "canceled":
        raise ExecutionCanceled(f"this execution was canceled execution={live.id}")
    if status == "completed":
        raise Invalid(f"this execution has ended execution={live.id}", hint="begin another one")
