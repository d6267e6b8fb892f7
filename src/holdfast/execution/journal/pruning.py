"""Retention of executions: those that ended long ago go, with their journals, in commits of bounded size.

How long is a matter of status (`keep_completed_ms`, `keep_failed_ms`); how many there are and how large their journals
are together is bounded (`executions_max`, `journal_bytes_max`): at a bound the oldest that have ended go first, and
where none has, whatever is new is refused. An execution goes whole, in one commit with its row, so that an id that is
used again begins a fresh execution. One that is being run, opened or changed is never touched. Nobody who runs a
program waits for any of this, but for a small piece of it at a bound. Whether something is over is no matter of the
wall clock alone (`trusted_time`): what is gone would run again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from holdfast.caller import in_coroutine
from holdfast.errors import Full
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.journal.commit_parts import DATA_PREFIX, INDEX, PREFIX
from holdfast.execution.journal.entries import ENDED, ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.journal.journal import Journal, Operation, Run
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, Extra

_BATCH = 500
"""Executions that are removed in one commit."""
_ENTRIES_MAX = 20_000
"""Entries that are removed in one commit, about, however few executions they belong to."""
_AT_A_BOUND = 20
"""Executions that are removed when a bound is reached."""

logger = logging.getLogger("holdfast.executions")


class ExecutionPruner:
    """Removes executions of one log."""

    def __init__(
        self, journal: Journal, partition: Partition, store: ExecutionStore, is_held: Callable[[ExecutionId], bool]
    ) -> None:
        self._journal = journal
        self._partition = partition
        self._store = store
        self._is_held = is_held
        self.again: Callable[[], None] = lambda: None
        """Called when there may be more to do at once."""

    def prunable(self) -> list[ExecutionRow]:
        """The executions whose time is over, those that ended first first."""
        settings, now = self._store.settings, self._store.trusted_time.now_us()
        return [row for row in self._ended() if is_over(row, settings, now)]

    def prune(self) -> int:
        """Remove all of them, batch after batch; durable when this returns. How many there were."""
        removed = 0
        for batch in _batches(self.prunable(), _BATCH):
            gone, ticket = self._store.with_room(lambda batch=batch: self._remove(batch))  # type: ignore[misc]
            if ticket is not None:
                ticket.result()
            removed += gone
        return removed

    def tick(self) -> None:
        """What is due now and then, one batch at a time: called by the thread that looks after executions."""
        batch = next(_batches(self.prunable(), _BATCH), None)
        if batch is None:
            return
        removed, ticket = self._store.with_room(lambda: self._remove(batch))
        if ticket is not None:
            ticket.result()
            logger.info("%d executions were pruned", removed, extra={"action": "executions_pruned", "count": removed})
            self.again()

    def make_room(self) -> None:
        """At a bound: remove some that have ended, the oldest first; raises Full where there is none."""
        rows, settings = self._store.rows, self._store.settings
        while len(rows) >= settings.executions_max or rows.bytes_total >= settings.journal_bytes_max:
            oldest = list(islice(self._ended(), _AT_A_BOUND))
            if not oldest or not self._remove(oldest)[0]:
                raise Full(
                    "the log keeps as many executions, or bytes of them, as it may, and none of them has ended"
                    f" executions={len(rows)} bytes={rows.bytes_total}",
                    hint="end or cancel some, or see executions.executions_max and executions.journal_bytes_max",
                )

    def _ended(self) -> Sequence[ExecutionRow]:
        """Those that have ended and that nobody holds, the oldest end first."""
        rows = [row for row in self._store.rows.copy().values() if row.status in ENDED]
        return sorted((row for row in rows if not self._is_held(row.execution)), key=lambda row: row.ended_us)

    def _remove(self, rows: Sequence[ExecutionRow]) -> tuple[int, UnitTicket | None]:
        """Hand over the removal of these, in one commit, but for those that were opened meanwhile."""
        store = self._store
        with store.lock:
            gone = [row for row in rows if store.rows.get(row.execution) == row and not self._is_held(row.execution)]
            if not gone:
                return 0, None
            operations = self._operations(gone)
            wait = store.timeout if in_coroutine() else 0  # nobody waits while holding the lock
            ticket = self._journal.transact(operations, records=len(gone), size=64 * len(gone), timeout=wait)
            ticket = UnitTicket(ticket.unit, store.timeout)
            store.rows.remove((row.execution for row in gone), ticket)
        return len(gone), ticket

    def _operations(self, rows: Sequence[ExecutionRow]) -> list[Operation]:
        spaces, now = self._journal.spaces, self._store.clock.now_us()
        operations = spaces.operations(INDEX, [], [row.id for row in rows])[0]
        gone = {str(row.execution) for row in rows}
        large = [name for name in spaces.known(DATA_PREFIX) if name[len(DATA_PREFIX) :].partition("/")[0] in gone]
        for name in (*(PREFIX + execution for execution in sorted(gone)), *large):
            operations += spaces.operations(name, [], [], drop=True)[0]
        extras: dict[int, Extra] = {at: (str(row.execution).encode(), b"pruned", None) for at, row in enumerate(rows)}
        payloads = [msgspec.msgpack.encode((row.id, now)) for row in rows]
        return [*operations, Run.unplaced(self._partition, Columns(payloads, [now] * len(rows), extras))]


def is_over(row: ExecutionRow, settings: ExecutionSettings, now_us: int) -> bool:
    """Whether an execution ended long enough ago."""
    kept_ms = settings.keep_completed_ms if row.status == "completed" else settings.keep_failed_ms
    return row.status in ENDED and row.ended_us <= now_us - kept_ms * 1000


def _batches(rows: Sequence[ExecutionRow], most: int) -> Iterator[list[ExecutionRow]]:
    batch: list[ExecutionRow] = []
    entries = 0
    for row in rows:
        if batch and (len(batch) >= most or entries + row.entries > _ENTRIES_MAX):
            yield batch
            batch, entries = [], 0
        batch.append(row)
        entries += row.entries
    if batch:
        yield batch
