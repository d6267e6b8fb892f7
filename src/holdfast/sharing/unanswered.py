"""What a member has for its owner, and no owner has answered yet: groups, under the numbers of its session, and calls.

A group that was sent and not answered is sent again to the next owner, under the same number: what the log knows is
answered from what it knows. That is safe while the log knows the session. One that was forgotten meanwhile (it expired,
or gave its place to newer ones while this process was stopped) looks like one that never sent anything, and what is
sent again would be written again. So an owner says which number of the session is its newest; if that is older than one
that was answered as stored, nobody knows what became of the groups that were sent before. Before any was, only time
tells: a session is remembered for a while, so what was sent just now and is not known has not arrived.

What became of a call that was sent, nobody knows: its caller decides whether to ask again.

A signal may strike between any two lines (see `journal.commit.forwarder`): what is half done is done again. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.owner.group_frames import Buffer, PackedGroup
from holdfast.owner.wire import CALL, BadFrame, Call, GroupAnswer, Result, frame
from holdfast.signals import Flag

if TYPE_CHECKING:
    from holdfast.journal.commit.forwarder import Waiting
    from holdfast.journal.queue.forwarded import Item
    from holdfast.journal.sessions.outcomes import Outcomes


class UnansweredGroups:
    """Numbers groups, and keeps them until they are answered; used with the link's lock of turns held."""

    def __init__(self, clock: Clock, remembered_us: int) -> None:
        """`remembered_us`: for so long after its last use no log forgets a session."""
        self._clock = clock
        self._remembered_us = remembered_us
        self._newest = 0
        self._groups: dict[int, tuple[PackedGroup, Waiting]] = {}
        self._sent: dict[int, tuple[float, int]] = {}
        """Those of them that an owner may have written, and when they were sent first, by both clocks."""
        self._stored = 0
        """The newest number that is known to be in the log."""

    @property
    def first(self) -> int:
        """The oldest number that is not answered; 0: all are."""
        return next(iter(self._groups), 0)

    def has(self, waiting: Waiting) -> bool:
        """Whether a group of this one is here."""
        return any(one is waiting for _, one in self._groups.values())

    def add(self, items: list[Item], waiting: Waiting) -> PackedGroup:
        """One more group, under the next number."""
        number = max(self._newest, next(reversed(self._groups), 0)) + 1
        group = PackedGroup(number, items)
        self._groups[number] = (group, waiting)
        self._newest = number
        return group

    def frame(self, group: PackedGroup) -> list[Buffer]:
        """A group as it is about to be sent: from now on it may be written."""
        if group.sequence not in self._sent:
            self._sent[group.sequence] = self._clock.monotonic(), self._clock.now_us()
        return group.buffers(self.first)

    def take(self, answer: GroupAnswer) -> None:
        """This is what became of a group; raises BadFrame where the owner was not sent such a one."""
        if answer.sequence not in self._sent:  # to believe it would make what is on its way seem to be forgotten
            raise BadFrame(f"the owner answers what it was not sent sequence={answer.sequence}")
        if any(outcome.error is None for outcome in answer.outcomes):
            self._stored = max(self._stored, answer.sequence)
        self._answer(answer.sequence, answer.outcomes if answer.error is None else answer.error.error())

    def _answer(self, number: int, answer: Outcomes | HoldfastError) -> None:
        found = self._groups.get(number)
        if found is not None:  # in this order: after a signal in between it is asked for again
            found[1].answered(answer)
            self._groups.pop(number, None)
        self._sent.pop(number, None)

    def again(self, last: int) -> list[PackedGroup]:
        """What to send to an owner that knows this session up to the number `last`; 0: it does not know it."""
        for number in sorted(self._sent):
            if last < self._stored or (not last and self._may_be_forgotten(*self._sent[number])):
                self._answer(number, _forgotten(number))
        self._stored = last
        return [group for group, _ in self._groups.values()]

    def _may_be_forgotten(self, sent: float, sent_us: int) -> bool:
        """Whether what was stored then may be unknown now. Half the time is left for sending it again."""
        passed_us = max(1e6 * (self._clock.monotonic() - sent), self._clock.now_us() - sent_us)
        return passed_us > self._remembered_us / 2


def _forgotten(number: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the log has forgotten what this process sent, which may have been written sequence={number}",
        hint="read it back, or give idempotency_key; journal.sessions_max and session_expiry_ms say how long it knows",
    )


class UnansweredCall:
    """A call that is not answered yet."""

    __slots__ = ("body", "error", "is_done", "is_sent")

    def __init__(self) -> None:
        self.is_done = Flag()
        self.is_sent = False
        self.body = b""
        self.error: HoldfastError | None = None

    def end(self, body: bytes, error: HoldfastError | None) -> None:
        """This came of it; by the thread that took it out of the calls."""
        self.body, self.error = body, error
        self.is_done.set()


class UnansweredCalls:
    """Numbers calls, and keeps them until they are answered; used with the link's lock of turns held."""

    def __init__(self) -> None:
        self._calls: dict[int, UnansweredCall] = {}
        self._newest = 0
        self._unsent: deque[tuple[int, list[Buffer]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def has_unsent(self) -> bool:
        """Whether there are some to send."""
        return bool(self._unsent)

    def add(self, name: str, body: bytes) -> tuple[int, UnansweredCall]:
        """One more call, to be sent; its number."""
        self._newest += 1
        number, call = self._newest, UnansweredCall()
        self._calls[number] = call
        self._unsent.append((number, frame(CALL, Call(number, name), body)))
        return number, call

    def to_send(self) -> Iterator[list[Buffer]]:
        """Those that are about to be sent: from now on they may be done. One that nobody waits for is left out."""
        while self._unsent:
            number, buffers = self._unsent.popleft()
            if number in self._calls:
                self._calls[number].is_sent = True
                yield buffers

    def give_up(self, number: int) -> None:
        """Nobody waits for this one any more."""
        self._calls.pop(number, None)

    def take(self, result: Result, body: bytes) -> None:
        """This is what became of a call."""
        call = self._calls.pop(result.number, None)
        if call is not None:
            call.end(body, None if result.error is None else result.error.error())

    def lose(self) -> None:
        """The owner is gone; those that were sent may have been done."""
        unknown = OutcomeUnknown("the log's owner ended before it answered", hint="look, then ask again")
        for number in [number for number, call in self._calls.items() if call.is_sent]:
            self._calls.pop(number).end(b"", unknown)

    def all(self) -> list[UnansweredCall]:
        """All of them; they are to be ended, and are here no more."""
        calls, self._calls = self._calls, {}
        return list(calls.values())
