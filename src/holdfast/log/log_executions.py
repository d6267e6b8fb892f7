"""Durable executions that are kept in an open log: made when they are first asked for, closed with the log.

Everything that belongs together is in one `ExecutionRoom`: the store, the register of executions that are open here,
and the thread that looks after timers, messages of other processes and retention. A log that nobody asks for executions
has none of it, and no topic for them.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.execution.execution_settings import TOPIC
from holdfast.log.log_context import LogContext
from holdfast.log.topic_catalog import Catalog
from holdfast.log.topics.topic import Topic
from holdfast.log.transactions.transaction import Put, Transaction

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom
    from holdfast.execution.journal.execution_store import ExecutionStore
    from holdfast.execution.work.executions import Executions


class LogExecutions:
    """The executions of one open log."""

    def __init__(self, context: LogContext, topics: Catalog) -> None:
        self._context = context
        self._topics = topics
        self._room: ExecutionRoom | None = None
        self._lock = Lock()

    def room(self) -> ExecutionRoom:
        """All that executions need, made at the first call."""
        with self._lock:
            if self._room is None:
                self._room = self._open()
            return self._room

    def facade(self) -> Executions:
        """What users see of executions."""
        from holdfast.execution.work.executions import Executions

        return Executions(self._stored, self.room)

    def _stored(self) -> ExecutionStore:
        """Executions to be looked at: as they are here, or else as they are stored, which makes nothing."""
        from holdfast.execution.journal.execution_store import ExecutionStore

        with self._lock:
            if self._room is not None:
                return self._room.store
        return ExecutionStore(self._context.journal, None, self._context.settings.executions)

    def _open(self) -> ExecutionRoom:
        from holdfast.execution.execution_room import ExecutionRoom

        journal, settings = self._context.journal, self._context.settings
        if journal.read_only:
            raise Invalid("this log is open for reading only", hint="open it without read_only=True to run executions")
        topic = self._topics.topic(TOPIC, None, 1, None, 0)
        assert isinstance(topic, Topic)
        return ExecutionRoom(
            journal, journal.topics[TOPIC][0], settings.executions, topic.read, self._begin_transaction
        )

    def _begin_transaction(self, put: Put | None) -> Transaction:
        return Transaction(self._context.journal, self._topics, put=put)

    def close(self) -> None:
        """End what looks after executions; programs that still run fail at their next step."""
        if self._room is not None:
            self._room.close()

    def forget(self) -> None:
        """In a forked child: threads and locks are the parent's."""
        self._lock = Lock()
        if self._room is not None:
            self._room.forget()
