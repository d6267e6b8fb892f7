"""One number of a session on its way into the queue: is it known, may it come, where does it go.

All of it with the queue's lock held. What the writer makes of the numbers of a group stands in `session_commits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import Full, HoldfastError, Invalid
from holdfast.journal.queue.forwarded import ForwardedProduced, ForwardedRows, ForwardedTicket, ForwardedUnit, Item
from holdfast.journal.queue.group import Group
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.sessions.session_state import PRODUCER, SessionState, refused_all

if TYPE_CHECKING:
    from holdfast.journal.sessions.session_table import SessionTable
    from holdfast.model.trusted_time import TrustedTime


class SessionSend:
    """One number of a session on its way into the queue."""

    def __init__(
        self,
        table: SessionTable,
        trusted_time: TrustedTime,
        name: bytes,
        sequence: int,
        floor: int,
        items: Sequence[Item],
        start: int = 1,
    ) -> None:
        self._table = table
        self._time = trusted_time
        self._name = name
        self._start = start
        self._sequence = sequence
        self._floor = floor
        self._items = items
        self.records = self.size = 0
        for item in items:
            self.records += _records(item)
            self.size += _size(item)

    def known(self) -> ForwardedTicket | None:
        """What is known about the number; None: it may be written. Raises if it never may."""
        session = self._table.find(self._name, self._start)
        session.note_floor(self._floor)
        found = _known(session, self._sequence, self._floor)
        if found is None and not session.is_producer:
            self._check_answers(session)
            found = self._without_place(session)
        return found

    def _without_place(self, session: SessionState) -> ForwardedTicket | None:
        """There are too many sessions: that is the answer to a new one, and nothing to wait for, as room is."""
        try:
            if self._name not in self._table.sessions:
                self._table.require_place(self._time.range_us()[1])
        except Full as error:
            return ForwardedTicket.known(session, self._sequence, refused_all(len(self._items), error))
        return None

    def _check_answers(self, session: SessionState) -> None:
        if len(session.answers) + len(session.pending) < self._table.answers_max:
            return
        kept = sum(number >= self._floor for numbers in (session.answers, session.pending) for number in numbers)
        if kept >= self._table.answers_max:
            raise Invalid(
                f"a session has not taken its answers; nothing was written sequence={self._sequence}"
                f" floor={self._floor}",
                hint="at most journal.session_answers_max of them may be outstanding",
            )

    def place(self, group: Group) -> ForwardedTicket:
        """Put all items into a group."""
        now_us = self._time.range_us()[1]
        session = self._table.enter(self._name, now_us, self._start)
        forwarded = ForwardedTicket(session, self._sequence, self._floor, len(self._items))
        session.note_put(self._sequence, forwarded)
        forwarded.begin(group)
        for item in self._items:
            if isinstance(item, ForwardedProduced):
                forwarded.alias(self._produced(group, item, now_us))
            else:
                forwarded.add(group, item)
        return forwarded

    def refused(self, error: HoldfastError) -> ForwardedTicket:
        """Nothing of it is taken, for a reason that is none of this number's own; of a member the number is used up.

        A member sends on before it has its answers: what comes behind this one must find no gap.
        """
        session = self._table.find(self._name, self._start)
        if session.is_producer:
            raise error
        session = self._table.enter(self._name, self._time.range_us()[1], self._start)
        outcomes = refused_all(len(self._items), error)
        session.put = max(session.put, self._sequence)
        session.note_failed(self._sequence, outcomes)
        return ForwardedTicket.known(session, self._sequence, outcomes)

    def _produced(self, group: Group, item: ForwardedProduced, now_us: int) -> ForwardedTicket | HoldfastError:
        """Put what a producer sends through this session; or what is known about it."""
        name = PRODUCER + item.producer
        try:
            if (known := _known(self._table.find(name, item.start), item.sequence, 0)) is not None:
                return known
            session = self._table.enter(name, now_us, item.start)
        except HoldfastError as error:
            return error
        produced = ForwardedTicket(session, item.sequence, 0, 1)
        session.note_put(item.sequence, produced)
        produced.begin(group)
        produced.add(group, item.item)
        return produced


def _known(session: SessionState, sequence: int, floor: int) -> ForwardedTicket | None:
    found = session.ask(sequence, floor)
    if found is None:
        return None
    if isinstance(found, ForwardedTicket):
        return found.again() if session.is_producer else found
    assert isinstance(found, tuple)
    outcomes: Outcomes = found
    if session.is_producer:
        outcomes = tuple(outcome.again() for outcome in outcomes)
    return ForwardedTicket.known(session, sequence, outcomes)


def _records(item: Item) -> int:
    if isinstance(item, ForwardedRows):
        return len(item.rows)
    return max(1, item.records) if isinstance(item, ForwardedUnit) else _records(item.item)


def _size(item: Item) -> int:
    return item.item.size if isinstance(item, ForwardedProduced) else item.size
