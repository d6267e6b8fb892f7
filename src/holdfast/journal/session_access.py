"""Sessions as the journal's users see them: what is sent under a number is written once, however often it is sent.

A sender that repeats what was not answered, in order and under the same numbers, gets the original answer: while this
process lives, after it was killed, and from the next owner. What a session is stands in `session_state`.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.journal_port import NUMBER_MAX, SessionInfo, check_producer
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.forwarded import (
    ForwardedProduced,
    ForwardedRows,
    ForwardedTicket,
    ForwardedUnit,
    Item,
    Sent,
    fill,
)
from holdfast.journal.queue.group import ProducerNumber
from holdfast.journal.queue.queue import Queue
from holdfast.journal.queue.session_sending import SessionSend
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.sessions import session_table
from holdfast.journal.sessions.outcomes import Outcome, Outcomes, Refusal, Repeat, RunOutcome
from holdfast.journal.sessions.session_state import MEMBER, PRODUCER, SessionState
from holdfast.journal.sessions.session_table import SessionLimits, proved
from holdfast.journal.state.journal_state import JournalState
from holdfast.journal.state.operations import ForgetSessions
from holdfast.model.trusted_time import TrustedTime

__all__ = [
    "ForwardedProduced", "ForwardedRows", "ForwardedTicket", "ForwardedUnit", "Outcome", "Outcomes",
    "ProducerNumber", "Refusal", "Repeat", "RunOutcome", "Sent", "SessionAccess", "SessionInfo", "check_producer",
    "fill", "remembered_us",
]  # fmt: skip

SESSION_BYTES = 16


def remembered_us(settings: JournalSettings) -> int:
    """For so long after its last use no session is forgotten, however many there are."""
    return min(session_table.IDLE_MIN_US, SessionLimits.of(settings).expiry_us)


class SessionAccess:
    """The sessions of one journal."""

    def __init__(
        self, backend: Backend, state: JournalState, queue: Queue, trusted_time: TrustedTime, *, owned: bool
    ) -> None:
        self._backend = backend
        self._state = state
        self._queue = queue
        self._time = trusted_time
        self._owned = owned

    def put(self, session: bytes, sequence: int, floor: int, items: Sequence[Item], timeout: float) -> ForwardedTicket:
        """Have what a session sends under one number committed together: all of it in one group.

        A number that is known gives what the earlier one was given: under way, or from what is stored. All answers
        below `floor` were received. Waits for room at most `timeout` seconds, and never on an event loop. Raises
        Invalid for a gap, OutcomeUnknown for a number whose answer is forgotten, Full; then nothing was written. That
        there is no place for one more session is an answer.
        """
        if not self._owned:  # it would be put here, and answered before the owner has it
            raise Invalid("only the owner of a log puts what sessions send", hint="send it to the owner")
        if len(session) != SESSION_BYTES:
            raise Invalid(f"a session has {SESSION_BYTES} bytes, not {len(session)}", hint="give 16 random bytes")
        if not (items and 1 <= floor <= sequence <= NUMBER_MAX):
            raise Invalid(f"a session sends something, under a number from its floor on sequence={sequence}")
        return self._queue.put_forwarded(
            SessionSend(self._state.sessions, self._time, MEMBER + session, sequence, floor, items), timeout
        )

    def is_known(self, session: bytes, sequence: int, floor: int) -> bool:
        """Whether `put` would write nothing: the number is under way, answered, or can never be written."""
        with self._queue.lock:
            try:
                return self._state.sessions.find(MEMBER + session).ask(sequence, floor) is not None
            except HoldfastError:
                return True

    def produce(
        self, producer: bytes, sequence: int, item: ForwardedRows | ForwardedUnit, timeout: float, *, start: int = 1
    ) -> Sent:
        """The same for a producer with numbers of its own, from `start` on; a repeat says that it is one."""
        check_producer(producer, sequence, start)
        if not self._owned:
            # The log's owner knows what was written.
            return self._queue.put_produced(ProducerNumber(producer, sequence, start), item, timeout)
        sending = SessionSend(self._state.sessions, self._time, PRODUCER + producer, sequence, 0, [item], start)
        return self._queue.put_forwarded(sending, timeout)

    def forget(self, producers: Sequence[bytes], timeout: float) -> list[bytes]:
        """Let go of producers, durably: those that are known, and have nothing under way."""
        with self._queue.lock:
            found = self._state.sessions.forget([PRODUCER + name for name in producers])
        if found:
            unit = self._queue.put_control([ForgetSessions()])
            UnitTicket(unit, timeout, "a producer to be forgotten").result()
        return [name[1:] for name in found]

    def let_go(self, name: bytes, *, is_producer: bool) -> None:
        """Give up the place of a session with nothing under way; it leaves with the next group that has sessions."""
        with self._queue.lock:
            self._state.sessions.forget([(PRODUCER if is_producer else MEMBER) + name])

    def last(self, session: bytes) -> int | None:
        """The highest number of a member that was stored; None where nothing is known about it."""
        return self._last(MEMBER + session)

    def last_produced(self, producer: bytes) -> int | None:
        """The same of a producer."""
        return self._last(PRODUCER + producer)

    def partitions_of(self, producer: bytes) -> set[int]:
        """The ids of the partitions that a producer appended to last; by the owner."""
        with self._queue.lock:
            found = self._state.sessions.sessions.get(PRODUCER + producer)
            outcomes = () if found is None else found.newest()
        return {run.partition_id for outcome in outcomes for run in outcome.runs}

    def _last(self, name: bytes) -> int | None:
        if self._owned:
            found = self._state.sessions.sessions.get(name)
        else:
            found = next((one for one in self._stored() if one.name == name), None)
        return None if found is None or not found.is_stored else found.last

    @property
    def count(self) -> int:
        """How many sessions the owner remembers."""
        return len(self._state.sessions.sessions)

    def all(self) -> list[SessionInfo]:
        """All sessions that are stored, those that were used longest ago first."""
        found = list(self._state.sessions.sessions.values()) if self._owned else self._stored()
        infos = [
            SessionInfo(one.name[1:], one.is_producer, one.last, one.floor, one.used_us)
            for one in found
            if one.is_stored
        ]
        return sorted(infos, key=lambda info: info.used_us)

    def _stored(self) -> list[SessionState]:
        """For readers: sessions as they are now, proved."""
        with self._backend.tables() as tables:
            row = tables.control_rows(newest=1).log
            if row is None:
                raise Corrupt("the database has lost the log's own row", path=str(self._backend.path))
            return proved(tables.sessions(), row, self._state.vault, str(self._backend.path))
