"""Durable executions that are kept in an open log: made when they are first asked for, closed with the log.

Everything that belongs together is in one `ExecutionRoom`: the store, the register of executions that are open here,
and the thread that looks after timers, messages of other processes and retention. A log that nobody asks for executions
has none of it, and no topic for them.
"""

from __future__ import annotations

from _thread import RLock
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, Invalid, OutcomeUnknown, Unavailable
from holdfast.execution.execution_settings import TOPIC
from holdfast.execution.waits.inbox_message import InboxAnswer, Message
from holdfast.log.local_parts import parts_of
from holdfast.log.log_context import LogContext
from holdfast.log.owner_asking import Asking
from holdfast.log.topic_catalog import Catalog
from holdfast.log.transactions.hidden_keys import HiddenKeys
from holdfast.log.transactions.transaction import Put, Transaction

if TYPE_CHECKING:
    from holdfast.execution.execution_room import ExecutionRoom
    from holdfast.execution.journal.execution_store import ExecutionStore
    from holdfast.execution.waits.inbox_folder import InboxFolder
    from holdfast.execution.waits.outbox import Outbox
    from holdfast.execution.work.background import Background
    from holdfast.execution.work.executions import Executions

ASK_TIMEOUT_S = 30.0
_WATCH = "watch"


class AskExecutions(msgspec.Struct, frozen=True, array_like=True):
    """What the owner of a shared log is asked to do with its executions."""

    message: Message


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

    def watch(self) -> None:
        """Of a log that has executions: take up messages for them from the start, whether anybody asks for them or not.

        All that is done before the first message comes is to look whether one lies there.
        """
        journal, settings = self._context.journal, self._context.settings.executions
        if journal.owned and TOPIC in journal.topics:
            with once(self._lock):
                self._attend().every(settings.poll_interval_ms, _WATCH, self._look)

    def _look(self) -> None:
        if self._room is None and self._folder().has_messages():
            self.room()

    def _attend(self) -> Background:
        from holdfast.execution.work.background import Background

        if self._background is None:
            self._background = Background()
        return self._background

    def _folder(self) -> InboxFolder:
        from holdfast.execution.waits.inbox_folder import InboxFolder

        most = self._context.settings.executions.payload_bytes_max
        return InboxFolder.of(self._context.directory.path, most)

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
        """Of a log that is open for reading: have its owner do something; returns when that is durable."""
        from holdfast.execution.waits.inbox_message import message

        clock, directory, journal = self._context.clock, self._context.directory, self._context.journal
        asked = message(clock.now_us(), clock.random_bytes(16), action, dict(fields))
        if journal.shared:  # the next owner is asked again if this one dies: it knows what was done under this id
            return (
                Asking(journal.link, clock).ask("ask_executions", AskExecutions(asked), InboxAnswer, timeout).result()
            )
        if directory.holder() is None:
            raise Unavailable(
                f"nobody owns this log path={directory.path}", hint="open it without read_only=True to do it yourself"
            )
        found = self.leave(asked, timeout)
        if found is None:
            raise OutcomeUnknown(
                "the owner of the log ended before it answered", hint="ask again; what was left is done by the next one"
            )
        return found.result()

    def apply(self, message: Message) -> InboxAnswer:
        """Of a log that is owned here: do what a message asks for, unless that was done before."""
        answer = self.room().inbox.apply(message)
        self._outbox().withdraw(message)  # it may have been left for an owner that is no more
        return answer

    def leave(self, message: Message, timeout: float) -> InboxAnswer | None:
        """Leave a message for the owner and wait for its answer; None if the log has no owner any more."""
        return self._outbox().ask(message, self._has_owner, timeout)

    def _outbox(self) -> Outbox:
        from holdfast.execution.waits.outbox import Outbox

        return Outbox(self._folder(), self._context.journal)

    def _has_owner(self) -> bool:
        return self._context.directory.holder() is not None

    def _stored(self) -> ExecutionStore:
        """Executions to be looked at: as they are here, or else as they are stored, which makes nothing."""
        from holdfast.execution.journal.execution_store import ExecutionStore

        with once(self._lock):
            if self._room is not None:
                return self._room.store
        return ExecutionStore(self._context.journal, None, self._context.settings.executions)

    def _open(self) -> ExecutionRoom:
        from holdfast.execution.execution_room import ExecutionRoom

        journal, settings = self._context.journal, self._context.settings
        if not journal.owned:
            raise Invalid("this log is open for reading only", hint="open it without read_only=True to run executions")
        topic = self._topics.own(TOPIC)
        return ExecutionRoom(
            journal,
            journal.topics[TOPIC][0],
            settings.executions,
            topic.read,
            self._folder(),
            self._attend(),
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
