"""An entry that must be durable before a program goes on: handed over once, to the first caller."""

from __future__ import annotations

from _thread import RLock

from holdfast.caller import once
from holdfast.errors import Full
from holdfast.execution.journal.entries import Entry
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.journal.queue.ticket import UnitTicket


class Handover:
    """One entry of an execution, to be written when it is needed."""

    def __init__(self, live: LiveExecution, entry: Entry) -> None:
        self._live = live
        self._entry = entry
        self._handed_over: UnitTicket | None = None
        self._lock = RLock()

    def settle(self) -> None:
        """Block until it is durable."""
        self._live.store.with_room(self._ticket).result()

    async def settle_async(self) -> None:
        """What `settle` does, for coroutines."""
        try:
            ticket = self._ticket()
        except Full:
            ticket = await self._live.store.when_room(self._ticket)
        await ticket

    def _ticket(self) -> UnitTicket:
        with once(self._lock):
            if self._handed_over is None:
                self._handed_over = self._live.write(self._entry)
            return self._handed_over
