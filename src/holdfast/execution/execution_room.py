"""All that the executions of one open log need, put together; composition and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.errors import Closed
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.live_execution import LiveExecutions
from holdfast.execution.work.administration import Administration
from holdfast.execution.work.work_queue import WorkQueue
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.record import Record

Read = Callable[..., Iterable[Record]]
"""A topic's `read`."""


class ExecutionRoom:
    """The executions of one open log."""

    def __init__(
        self,
        journal: Journal,
        partition: Partition,
        settings: ExecutionSettings,
        read: Read,
        begin_transaction: Callable[..., Any] | None = None,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.clock = journal.clock
        self.read = read
        """Of the topic `_executions`."""
        self.begin_transaction = begin_transaction
        """Makes a transaction of the log that hands over what it has in a way of its own."""
        self.store = ExecutionStore(journal, partition, settings)
        self.live = LiveExecutions(self.store)
        self.queue = WorkQueue(self.store.rows.get)
        self.administration = Administration(self.store, self.live, self.queue)
        for row in self.store.rows.values():
            self.queue.add(row)

    def close(self) -> None:
        """The log is about to be closed: programs that run here are asked to leave off."""
        self.live.close()

    def forget(self) -> None:
        """In a forked child: locks may have been held by threads that are not here."""
        self.store.forget()
        self.live.closed = Closed("this log was opened before a fork", reason="forked")
