"""All that the executions of one open log need, put together; composition and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from holdfast.errors import Closed
from holdfast.execution.execution_settings import ExecutionSettings
from holdfast.execution.execution_spans import ExecutionSpans
from holdfast.execution.journal import rebuilding
from holdfast.execution.journal.execution_store import ExecutionStore
from holdfast.execution.journal.live_executions import LiveExecutions
from holdfast.execution.journal.pruning import ExecutionPruner
from holdfast.execution.waits.delivery import Delivery
from holdfast.execution.waits.schedules import Schedules
from holdfast.execution.waits.wait import Waiters
from holdfast.execution.work.administration import Administration
from holdfast.execution.work.answered_requests import AnsweredRequests
from holdfast.execution.work.background import Background
from holdfast.execution.work.executions import Executions
from holdfast.execution.work.requests import apply
from holdfast.execution.work.stored_executions import StoredExecutions
from holdfast.execution.work.work_queue import WorkQueue
from holdfast.execution.work.worker import Worker
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.model.record import Record

Read = Callable[..., Iterable[Record]]
"""A topic's `read`."""

_PRUNE_INTERVAL_MS = 3_600_000


class ExecutionRoom:
    """The executions of one open log."""

    def __init__(
        self,
        journal: Journal,
        partition: Partition,
        settings: ExecutionSettings,
        read: Read,
        background: Background,
        begin_transaction: Callable[..., Any] | None = None,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.clock = journal.clock
        self.read = read
        """Of the topic `_executions`."""
        self.begin_transaction = begin_transaction
        """Makes a transaction of the log that hands over what it has in a way of its own."""
        if rebuilding.is_needed(journal, lambda: partition.durable > 0):
            rebuilding.rebuild(journal, read())
        self.store = ExecutionStore(journal, partition, settings)
        self.live = LiveExecutions(self.store)
        self.pruning = ExecutionPruner(journal, partition, self.store, self.live.is_held)
        self.store.make_room = self.pruning.make_room
        self.spans = ExecutionSpans(self.store, self.live, self.pruning)
        self.queue = WorkQueue(self.store.rows.get)
        self.workers: set[Worker] = set()
        """Those that work now."""
        self.administration = Administration(journal, self.store, self.live, self.queue)
        for row in sorted(self.store.rows.values(), key=lambda row: (row.created_us, row.id)):
            self.queue.add(row)
        self.waiters = Waiters(settings.waiting_max)
        self.delivery = Delivery(self.live)
        timeout = settings.ack_timeout_ms / 1000
        self.schedules = Schedules(journal, self.administration.start, timeout)
        facade = Executions(StoredExecutions(lambda: self.store, lambda: self), lambda verb: self)
        self.requests = AnsweredRequests(journal, partial(apply, facade), timeout)
        self.background = background
        background.every(settings.poll_interval_ms, "timers", self.waiters.tick)
        background.every(settings.poll_interval_ms, "schedules", self.schedules.tick)
        self.pruning.again = partial(background.soon, "pruning")
        background.every(_PRUNE_INTERVAL_MS, "pruning", self.pruning.tick)

    def close(self) -> None:
        """The log is about to be closed: programs that run here are asked to leave off."""
        self.live.close()
        for worker in list(self.workers):
            worker.stop()
        for worker in list(self.workers):
            worker.wait(worker.drain_timeout)

    def forget(self) -> None:
        """In a forked child: locks may have been held by threads that are not here."""
        self.spans.forget()
        self.store.forget()
        self.live.closed = Closed("this log was opened before a fork", reason="forked")
