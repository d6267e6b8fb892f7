"""All sessions of one log: found by name, bounded in number, forgotten when nobody used them for long.

The table is what the database has, in memory; the writer changes it after each commit that has sessions in it. Each
session weighs as much as the keyed hash of its row; the log's own row says what all weights add up to, so that no row
can be changed, lost, added or put back alone. A weight is never stored: it cannot be made without a key.

A session that is new when there are as many as there may be takes the place of the one that was used longest ago, if
that has been idle for a while; else it is refused. One that expired leaves with the next group that has sessions in it.
Where the clock was set back, nobody knows how long those were idle whose last use is yet to come: they are taken as
used just now. How long one was idle is measured by a time that a wrong clock does not change (`trusted_time`). Guarded
by the queue's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import Corrupt, Full, HoldfastError
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.sessions.session_state import SessionState, StagedSession, restored
from holdfast.model.control_rows import LogRow, SessionRow

if TYPE_CHECKING:
    from holdfast.crypto.vault import Vault

SUM_BYTES = 32
_MODULUS = 1 << (8 * SUM_BYTES)
_GONE_PER_GROUP = 64
IDLE_MIN_US = 60_000_000
"""Nobody takes the place of a session that was used within this time: its producer may be about to ask again."""


class SessionLimits(NamedTuple):
    """How many sessions are kept, with how many answers each, and for how long after their last use."""

    sessions_max: int
    answers_max: int
    expiry_us: int

    @classmethod
    def of(cls, settings: JournalSettings) -> SessionLimits:
        """The limits in the settings."""
        return cls(settings.sessions_max, settings.session_answers_max, round(settings.session_expiry_ms * 1000))


class SessionChanges(NamedTuple):
    """What a group changes in the table; rows and names for the database."""

    rows: list[SessionRow]
    gone: list[bytes]
    count: int  # type: ignore[assignment]  # of all sessions; nobody counts values in this
    sum: bytes
    staged: list[StagedSession]
    weights: list[int]
    left: list[bytes]
    used_us: int


class SessionTable:
    """The sessions of one log."""

    def __init__(self, vault: Vault, limits: SessionLimits, trusted_us: Callable[[], int]) -> None:
        """`trusted_us` is the time by which sessions are idle; all others that are given are the latest it may be."""
        self._vault = vault
        self._trusted_us = trusted_us
        self._limits = limits
        self._sessions: dict[bytes, SessionState] = {}
        """Those that were used longest ago come first."""
        self._leaving: dict[bytes, int] = {}
        """Names and weights of those that gave up their place, and that the database still has."""
        self._sum = 0
        self._count = 0

    def restore(self, sessions: Iterable[SessionState]) -> None:
        """Begin with what is stored."""
        for session in sorted(sessions, key=lambda session: session.used_us):
            self._sessions[session.name] = session
            self._sum = (self._sum + session.weight) % _MODULUS
            self._count += 1

    @property
    def sessions(self) -> Mapping[bytes, SessionState]:
        """All of them, by their stored names; iterate over a copy."""
        return self._sessions

    @property
    def answers_max(self) -> int:
        """How many answers a session may have outstanding."""
        return self._limits.answers_max

    def find(self, name: bytes, start: int = 1) -> SessionState:
        """The session of this name, for looking; one that nobody knows where there is none."""
        return self._sessions.get(name) or SessionState(name, 0, start)

    def enter(self, name: bytes, now_us: int, start: int = 1) -> SessionState:
        """The session of this name; a new one where there is none, if there is room for it."""
        session = self._sessions.get(name)
        if session is None:
            self.require_place(now_us)
            session = self._sessions[name] = SessionState(name, now_us, start)
        return session

    def require_place(self, now_us: int) -> None:
        """Have a place for one more; raises Full."""
        if len(self._sessions) >= self._limits.sessions_max:
            self._make_room(now_us)

    def leave_if_new(self, session: SessionState) -> None:
        """Nothing came of a session that was entered: it need not be kept."""
        if not (session.is_stored or session.pending or session.refused):
            self._sessions.pop(session.name, None)

    def _make_room(self, now_us: int) -> None:
        oldest = next((one for one in self._sessions.values() if not one.pending), None)
        self._note_set_back(oldest, now_us)
        if oldest is None or oldest.used_us > min(now_us, self._trusted_us()) - IDLE_MIN_US:
            raise Full(
                f"there are {self._limits.sessions_max} sessions already, all used within the last minute;"
                " nothing was written",
                hint="raise journal.sessions_max above the number of producers and processes",
            )
        self._leave(oldest)

    def _leave(self, session: SessionState) -> None:
        del self._sessions[session.name]
        if session.is_stored:
            self._leaving[session.name] = session.weight

    def forget(self, names: Iterable[bytes]) -> list[bytes]:
        """Let these go with the next group; those that were there, and have nothing under way."""
        found = [one for name in names if (one := self._sessions.get(name)) is not None and not one.pending]
        for session in found:
            self._leave(session)
        return [session.name for session in found]

    # -- a group ------------------------------------------------------------------------------------------

    def stage(self, settled: Iterable[tuple[SessionState, int, int, Outcomes]], now_us: int) -> SessionChanges:
        """What a group stores: of each session the numbers, floors and outcomes that came with it, in order."""
        staged: dict[SessionState, StagedSession] = {}
        answers_max = self._limits.answers_max
        for session, sequence, floor, outcomes in settled:
            if (one := staged.get(session)) is None:
                one = staged[session] = StagedSession(session)
            one.take(sequence, floor, outcomes, answers_max)
        for session in self._expired(now_us):
            if session not in staged:
                self._leave(session)
        gone = dict(self._leaving)
        epoch, log_id, stamp_of = self._vault.epoch, self._vault.log_id, self._vault.stamp
        rows, weights = [], []
        total, count = self._sum - sum(gone.values()), self._count - len(gone)
        for session, one in staged.items():
            rows.append(row := one.row(now_us, epoch))
            weights.append(weight := weight_of(stamp_of, log_id, row))
            total += weight - session.weight
            count += not session.weight
        names = [name for name in gone if name not in {row.name for row in rows}] if gone else []
        added_up = encoded_sum(total) if count else b""
        return SessionChanges(rows, names, count, added_up, [*staged.values()], weights, [*gone], now_us)

    def _note_set_back(self, oldest: SessionState | None, now_us: int) -> None:
        """A session that seems to have been used in the future was used just now: the clock was set back."""
        if oldest is not None and oldest.used_us > now_us:
            for session in self._sessions.values():
                session.used_us = min(session.used_us, now_us)

    def _expired(self, now_us: int) -> list[SessionState]:
        found: list[SessionState] = []
        self._note_set_back(next(iter(self._sessions.values()), None), now_us)
        oldest_us = min(now_us, self._trusted_us()) - self._limits.expiry_us
        for session in self._sessions.values():
            if session.used_us > oldest_us or len(found) >= _GONE_PER_GROUP:
                break
            if session.is_stored and not session.pending:
                found.append(session)
        return found

    def accept(self, changes: SessionChanges) -> None:
        """It is durable."""
        for name in changes.left:
            self._leaving.pop(name, None)
        for one, weight in zip(changes.staged, changes.weights, strict=True):
            one.accept(changes.used_us, weight)
            self._sessions.pop(one.session.name, None)
            self._sessions[one.session.name] = one.session  # the newest come last
        self._count = changes.count
        self._sum = int.from_bytes(changes.sum, "little")


def weight_of(stamp_of: Callable[[bytes], bytes], log_id: bytes, row: SessionRow) -> int:
    """What one session adds to the log's sum."""
    return int.from_bytes(stamp_of(row.message(log_id)), "little")


def encoded_sum(total: int) -> bytes:
    """The sum as the log's row has it."""
    return (total % _MODULUS).to_bytes(SUM_BYTES, "little")


def proved(rows: Iterable[SessionRow], log: LogRow, vault: Vault, path: str) -> list[SessionState]:
    """The stored sessions, if they are those that the log's own row vouches for; raises Corrupt."""
    sessions = []
    try:
        for row in rows:
            if vault.keyed and not row.key_epoch:  # nobody without a key writes here
                raise Corrupt("a session is not stamped with a key")
            sessions.append(restored(row, weight_of(vault.stamp_under(row.key_epoch), vault.log_id, row)))
    except HoldfastError as error:
        raise Corrupt(error.message, path=path) from error
    total = encoded_sum(sum(session.weight for session in sessions)) if sessions else b""
    if (len(sessions), total) != (log.sessions, log.session_sum):
        raise Corrupt(
            "the sessions of producers are not those that the log's own row vouches for"
            f" sessions={len(sessions)} expected={log.sessions}",
            path=path,
        )
    return sessions
