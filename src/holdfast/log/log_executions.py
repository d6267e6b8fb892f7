"""Durable executions that are kept in an open log: made when they are first asked for, closed with the log.

Everything that belongs together is in one `ExecutionRoom`: the store, the register of executions that are open here,
and the thread that looks after timers, schedules and retention. A log that nobody asks for executions has none of it,
and no topic for them.
"""

from __future__ import annotations

from _thread import RLock
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, Invalid
from holdfast.execution.execution_settings import TOPIC
from holdfast.execution.work.execution_request import ID_BYTES, ExecutionAnswer, ExecutionRequest
from holdfast.journal.commit.owner_calls import Asking
from holdfast.log.local_parts import parts_of
from holdfast.log.log_context import LogContext
from holdfast.log.topic_catalog import Catalog
from holdfast.log.transactions.hidden_keys import HiddenKeys
from holdfast.log.transactions.transaction import Put, Transaction

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom
    from holdfast.execution.journal.execution_store import ExecutionStore
    from holdfast.execution.work.background import Background
    from holdfast.execution.work.executions import Executions
    from holdfast.log.log import Log

ASK_TIMEOUT_S = 30.0


class AskExecutions(msgspec.Struct, frozen=True, array_like=True):
    """What the owner of a log is asked to do with its executions."""

    request: ExecutionRequest


class ExecutionStats(msgspec.Struct, frozen=True):
    """Executions at one moment, as far as this handle has opened them."""

    by_status: dict[str, int]
    """How many are kept, by status."""
    held: int
    """How many are open in this process."""
    workers: int
    """Workers that run in this process."""


class LogExecutions:
    """The executions of one open log."""

    def __init__(self, context: LogContext, topics: Catalog, hidden: HiddenKeys) -> None:
        self._context = context
        self._topics = topics
        self._hidden = hidden
        self._room: ExecutionRoom | None = None
        self._background: Background | None = None
        self._is_closed = False
        self._lock = RLock()
        self.reach_owner: Callable[[], Log] = _refuse
        """Of a log that is open for reading: the same log, whose changes its owner makes."""

    def room(self) -> ExecutionRoom:
        """All that executions need, made at the first call."""
        journal = self._context.journal
        if journal.news is not None:
            return parts_of(journal.news.own()).executions.room()
        with once(self._lock):
            if self._room is None:
                if self._is_closed:
                    raise Closed("the log is closed")
                self._room = self._open()
            return self._room

    def room_for(self, verb: str) -> ExecutionRoom:
        """The same for a verb of the log."""
        return self.room()

    def facade(self) -> Executions:
        """What users see of executions."""
        from holdfast.execution.work.executions import Executions
        from holdfast.execution.work.stored_executions import StoredExecutions

        source = StoredExecutions(self._stored, self.room)
        return Executions(source, self.room_for, None if self._context.journal.owned else self.ask)

    def stats(self) -> ExecutionStats | None:
        """Counts; None while nobody has asked this handle for executions."""
        room = self._room
        if room is None:
            return None
        statuses = Counter(row.status for row in room.store.rows.copy().values())
        return ExecutionStats(dict(statuses), len(room.live.all()), len(room.workers))

    def ask(self, action: str, fields: Mapping[str, Any], timeout: float = ASK_TIMEOUT_S) -> Any:
        """Of a log that is not owned here: have its owner do something; returns when that is durable."""
        if not self._context.journal.shared:
            with self.reach_owner() as log:
                return parts_of(log).executions.ask(action, fields, timeout)
        return self.bring(self.request(action, fields), timeout).result()

    def request(self, action: str, fields: Mapping[str, Any]) -> ExecutionRequest:
        """A new request, which stays one however often it is brought."""
        clock = self._context.clock
        return ExecutionRequest(clock.random_bytes(ID_BYTES), clock.now_us(), action, dict(fields))

    def bring(self, request: ExecutionRequest, timeout: float) -> ExecutionAnswer:
        """Have a request done, here or by the owner, unless that was done before; if it dies, the next one is asked."""
        if self._context.journal.owned:
            return self.apply(request)
        asking = Asking(self._context.journal.link, self._context.clock)
        return asking.ask("ask_executions", AskExecutions(request), ExecutionAnswer, timeout)

    def apply(self, request: ExecutionRequest) -> ExecutionAnswer:
        """Of a log that is owned here: do what is asked for, unless that was done before."""
        return self.room().requests.apply(request)

    def _stored(self) -> ExecutionStore:
        """Executions to be looked at: as they are here, or else as they are stored, which makes nothing."""
        from holdfast.execution.journal.execution_store import ExecutionStore

        with once(self._lock):
            if self._room is not None:
                return self._room.store
        return ExecutionStore(self._context.journal, None, self._context.settings.executions)

    def _open(self) -> ExecutionRoom:
        from holdfast.execution.execution_room import ExecutionRoom
        from holdfast.execution.work.background import Background

        journal, settings = self._context.journal, self._context.settings
        if not journal.owned:
            raise Invalid("this log is open for reading only", hint="open it without read_only=True to run executions")
        topic = self._topics.own(TOPIC)
        self._background = self._background or Background()
        return ExecutionRoom(
            journal,
            journal.topics[TOPIC][0],
            settings.executions,
            topic.read,
            self._background,
            self._begin_transaction,
        )

    def _begin_transaction(self, put: Put | None) -> Transaction:
        return Transaction(self._context.journal, self._topics, self._hidden, put=put)

    def close(self) -> None:
        """End what looks after executions; programs that still run leave off at their next step."""
        with once(self._lock):
            self._is_closed = True
            background = self._background
        if self._room is not None:
            self._room.close()
        if background is not None:
            background.stop()

    def forget(self) -> None:
        """In a forked child: threads and locks are the parent's."""
        self._lock = RLock()
        if self._background is not None:
            self._background.forget()
        if self._room is not None:
            self._room.forget()


def _refuse() -> Log:
    raise Invalid("this log is open for reading only", hint="open it without read_only=True to change executions")
