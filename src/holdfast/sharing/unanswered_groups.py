"""The groups of a member that no owner has answered yet, under the numbers of its session. No I/O.

Whatever was sent and not answered is sent again to the next owner, under the same number: what the log knows is
answered from what it knows. That is safe while the log knows the session. One that was forgotten meanwhile (it expired,
or gave its place to newer ones while this process was stopped) looks like one that never sent anything, and what is
sent again would be written again. So an owner says which number of the session is its newest; if that is older than one
that was answered as stored, nobody knows what became of the groups that were sent before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import OutcomeUnknown
from holdfast.sharing.group_frames import Buffer, PackedGroup

if TYPE_CHECKING:
    from holdfast.journal.commit.forwarded import Item
    from holdfast.journal.commit.forwarder import Answered
    from holdfast.sharing.wire import Answer


class UnansweredGroups:
    """Numbers groups, and keeps them until they are answered."""

    def __init__(self) -> None:
        self._newest = 0
        self._groups: dict[int, tuple[PackedGroup, Answered]] = {}
        self._sent: set[int] = set()
        """Those of them that an owner may have written."""
        self._stored = 0
        """The newest number that is known to be in the log."""

    def add(self, items: list[Item], answered: Answered) -> PackedGroup:
        """One more group, under the next number."""
        self._newest += 1
        group = PackedGroup(self._newest, items)
        self._groups[self._newest] = (group, answered)
        return group

    def frame(self, group: PackedGroup) -> list[Buffer]:
        """A group as it is about to be sent: from now on it may be written."""
        self._sent.add(group.sequence)
        return group.buffers(next(iter(self._groups)))

    def take(self, answer: Answer) -> None:
        """This is what became of a group."""
        waiting = self._groups.pop(answer.sequence, None)
        self._sent.discard(answer.sequence)
        if any(outcome.error is None for outcome in answer.outcomes):
            self._stored = max(self._stored, answer.sequence)
        if waiting is not None:
            waiting[1](answer.outcomes if answer.error is None else answer.error.error())

    def again(self, last: int) -> list[PackedGroup]:
        """What to send to an owner that knows this session up to the number `last`; 0: it does not know it."""
        if last < self._stored:
            self._stored = 0
            for number in sorted(self._sent):
                self._groups.pop(number)[1](_forgotten(number))
            self._sent.clear()
        return [group for group, _ in self._groups.values()]


def _forgotten(number: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the log has forgotten what this process sent, which may have been written sequence={number}",
        hint="read it back, or give idempotency_key; journal.sessions_max and session_expiry_ms say how long it knows",
    )
