"""The commits of one consumer, on their way to the journal: a quick consumer commits often, and they become few.

One that the writer has not come to takes up the next position; those that find the journal busy become one unit.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.caller import once
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.log.consumers.commit_ticket import CommitTicket
from holdfast.log.consumers.members import Members, PositionCommit, Positions
from holdfast.log.consumers.stored_positions import StoredPosition, merge

if TYPE_CHECKING:
    from holdfast.journal.journal_port import JournalPort, Operation, Unit


class QuickCommits:
    """Hands commits over, by one thread at a time; `_making` guards what the writer takes of them (`_made`)."""

    def __init__(self, journal: JournalPort, kept: Positions, members: Members) -> None:
        self._journal = journal
        self._kept = kept
        self._members = members
        self._newest: UnitTicket | None = None
        """The last commit, which the next one may join."""
        self._unmade: dict[int, StoredPosition] | None = None
        """The positions of the last commit, as long as the writer has not come to it."""
        self._making = RLock()

    def amend(self, given: Callable[[], Mapping[int, int]]) -> CommitTicket | None:
        """Put the positions into the commit before, if the writer has not come to it; None if it has.

        `given` says what they are; it is called with the members' lock held.
        """
        if self._unmade is None or self._newest is None or self._newest.done:
            return None
        with self._members.lock, once(self._making):
            positions, offsets = self._unmade, given()
            if positions is None or not self._members.is_even or len(positions) != len(offsets):
                return None
            self._members.amend(positions, offsets)
            return CommitTicket(self._members, self._newest)

    def submit(self, committing: PositionCommit, timeout: float) -> CommitTicket:
        """Queue a commit; waits for room at most `timeout` seconds."""
        self._unmade = committing.positions
        try:
            self._newest = self._journal.spaces.gather(
                committing.positions,
                self._made,
                append=(self._kept.partition(), 1),
                size=64 + 256 * len(committing.positions),
                scope=committing.scope,
                reissue=committing.scope is not None,
                join=self._newest,
                timeout=timeout,
            )
        except BaseException:
            self._unmade = None
            committing.failed()
            raise
        committing.queued(self._newest)
        return CommitTicket(self._members, self._newest)

    def _made(self, unit: Unit) -> list[Operation]:
        """By the writer: what commits that were gathered come to."""
        positions: dict[int, StoredPosition] = {}
        with once(self._making):
            for part in unit.parts:
                merge(positions, part)
                if part is self._unmade:
                    self._unmade = None
        return self._members.operations(positions)[0]

    def forget_newest(self) -> None:
        """Something else was handed over: a later commit must not join one that comes before it."""
        self._newest = self._unmade = None
