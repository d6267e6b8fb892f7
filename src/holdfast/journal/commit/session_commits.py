"""Sessions in a group commit: what the writer stores about the numbers of a group.

What is true of them once the group is durable, or refused, stands here, too. How a number gets into the queue:
`session_sending`.
"""

from __future__ import annotations

from _thread import RLock

from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.queue.forwarded import ForwardedTicket
from holdfast.journal.queue.group import Group
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.sessions.session_state import SessionState
from holdfast.journal.sessions.session_table import SessionChanges, SessionTable
from holdfast.model.trusted_time import TrustedTime


class SessionCommits:
    """The sessions of a group, for the writer's thread."""

    def __init__(self, table: SessionTable, lock: RLock, trusted_time: TrustedTime) -> None:
        self._table = table
        self._lock = lock
        self._time = trusted_time

    def prepare(self, group: Group) -> None:
        """Before a group is staged: of a producer nothing is stored behind something that was not."""
        expected: dict[SessionState, int] = {}
        for one in group.forwarded:
            session = one.session
            if session.is_producer:
                number = expected.get(session) or (session.last + 1 if session.last else session.start)
                if one.sequence == number:
                    expected[session] = number + 1
                else:
                    one.withdraw(_not_before(number, one.sequence))

    def stage(self, group: Group) -> SessionChanges:
        """What the group stores about sessions; all of it is staged."""
        settled = [
            (one.session, one.sequence, one.floor, one.settle())
            for one in group.forwarded
            if not one.session.is_producer or one.is_whole
        ]
        with self._lock:
            return self._table.stage(settled, self._time.range_us()[1])

    def accept(self, group: Group, changes: SessionChanges) -> None:
        """The group is durable."""
        with self._lock:
            self._table.accept(changes)
            for one in group.forwarded:
                if one.session.is_producer and not one.is_whole:
                    self._fail(one, one.settle())
                elif one.session.pending.get(one.sequence) is one:
                    del one.session.pending[one.sequence]

    def reject(self, group: Group, error: HoldfastError) -> None:
        """Nothing of the group was stored."""
        with self._lock:
            for one in group.forwarded:
                self._fail(one, one.refused(error))

    def _fail(self, one: ForwardedTicket, outcomes: Outcomes) -> None:
        if one.session.pending.get(one.sequence) is one:  # else it was given up when one before it failed
            one.session.note_failed(one.sequence, outcomes)
        self._table.leave_if_new(one.session)


def _not_before(expected: int, sequence: int) -> Unavailable:
    return Unavailable(
        f"the one before it was not written, so this one is not, either sequence={sequence} expected={expected}",
        hint=f"send sequence={expected} again, then this one",
    )
