"""The forwarder: in a process that does not own the log, what has groups committed by the one that does.

It takes groups off the same queue as a writer does, and hands each to a `GroupLink`, which brings it to the owner, as
often as it takes, and says what became of it: once. Then the group learns its offsets, failures and repeats and is
finished; so tickets, back-pressure, flush and close are the same here and there. While some groups are on their way,
what callers bring gathers in the next one: that is what makes groups large when many append.

All of it is done in *turns*, one at a time and never waiting: take what came from the owner, forward what is due. A
thread takes them, and sleeps in between; where coroutines append, the link lets their event loop take turns, because
waking a thread costs more than the work. Groups are finished in the order in which they were taken. A link that has
ended for good refuses all that is left.

A signal (Ctrl-C) may strike a turn of the main thread's loop anywhere. The next turn notices, gives up the connection
and starts over with what is on its way: the owner knows each group by its number, so none is written twice.
"""

from __future__ import annotations

import logging
from _thread import RLock
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from threading import Thread
from typing import Protocol, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown
from holdfast.journal.commit.forwarded_groups import fill_in, forwarded
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.journal_stats import JournalCounters
from holdfast.journal.queue.forwarded import Item
from holdfast.journal.queue.group import Group, Run, Unit
from holdfast.journal.queue.offered_failure import OfferedFailure
from holdfast.journal.queue.queue import Queue
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.shared_number import SharedNumber
from holdfast.journal.state.partition import Partition
from holdfast.signals import Wake

Reply = TypeVar("Reply")

ON_THE_WAY_MAX = 2
"""Groups that may be with the owner at once. More would be smaller ones; fewer would leave it waiting for the next."""

logger = logging.getLogger("holdfast.journal")


class Turn(Protocol):
    """Moves groups on."""

    def __call__(self, has_news: bool, loop: AbstractEventLoop | None = None) -> bool:
        """`has_news`: the owner may have sent something; `loop`: whose turn it is, if an event loop's.

        Whether groups were finished, so that those who waited for them may bring more soon.
        """


class Waiting(Protocol):
    """A caller that waits for the outcome of a group."""

    def answered(self, answer: Outcomes | HoldfastError) -> None:
        """This is what became of it."""


class GroupLink(Protocol):
    """The way from a process that shares a log to the one that owns it; used in turns."""

    @property
    def turns(self) -> RLock:
        """The lock that is held during a turn."""

    @property
    def wake(self) -> Wake:
        """What says that there may be a group to forward."""

    @property
    def durable(self) -> SharedNumber | None:
        """How many groups of the log are durable, as the owner tells it that was met last; None: it does not."""

    def begin(self, turn: Turn, refuse_second: Callable[[], None]) -> None:
        """Let turns be taken by this, from now on, also by others than this thread; it holds the lock meanwhile.

        `refuse_second` raises in a thread that was interrupted with what a turn needs, and must not wait for one.
        """

    def sleep(self, timeout: float | None) -> bool:
        """Wait for the owner, or until there may be something to forward; whether the owner may have sent something.

        Between turns, by the thread that began. Finds another owner if this one is lost.
        """

    def forward(self, items: list[Item], waiting: Waiting) -> None:
        """Have these committed together, once; `waiting` learns what became of them, in a turn.

        Returns at once, also while there is no owner: then it is sent when there is one.
        """

    def has(self, waiting: Waiting) -> bool:
        """Whether it forwards something for this one."""

    def take(self, *, has_news: bool) -> None:
        """Take what came from the owner."""

    def lose(self) -> None:
        """Begin anew: connect again, and send again what was not answered."""

    def call(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply:
        """Ask the owner for something else, and wait for its answer; from any other thread."""

    def close(self, timeout: float) -> HoldfastError | None:
        """Let go of the owner; the forwarder has ended."""


class _OnTheWay:
    """A group that is with the owner, or a barrier behind such."""

    __slots__ = ("answer", "group", "is_answered", "items", "started", "taken")

    def __init__(self, group: Group, started: float) -> None:
        self.group = group
        self.items: list[Item] | None = None
        """What is forwarded of it; None: that was not made yet."""
        self.taken: list[Run | Unit] = []
        """The group's own items that this stands for, in order."""
        self.started = started
        self.answer: Outcomes | HoldfastError = ()
        self.is_answered = False

    def answered(self, answer: Outcomes | HoldfastError) -> None:
        """By the link: this is what became of it."""
        self.answer, self.is_answered = answer, True


class Forwarder:
    """Forwards for one process.

    The link's lock, held by the thread that has the turn, guards all of it but for `counters` and `poison`, which
    others read. It knows which thread has it, for a signal handler may come in between.
    """

    def __init__(
        self,
        queue: Queue,
        link: GroupLink,
        partitions: Mapping[int, Partition],
        settings: JournalSettings,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._linger_s = settings.flush_interval_ms / 1000
        self._link = link
        self._partitions = partitions
        self._clock = clock
        self._on_the_way: deque[_OnTheWay] = deque()
        self._turns = link.turns
        queue.refuse_within(self._turns._is_owned)  # type: ignore[attr-defined]
        self._is_turning = False
        """Within a turn; else true only if a signal ended one."""
        self._loop: AbstractEventLoop | None = None
        """Whose turn it is, where that is an event loop's."""
        self._linger_until = inf
        """When what is in no hurry is due."""
        self.counters = JournalCounters()
        self.poison: Closed | None = None
        self.lost_nothing = False
        """Whether it ended because there is no owner any more, with nothing left to forward."""
        self.offered_failure = OfferedFailure()
        self._thread = Thread(target=self._work, name="holdfast-forwarder", daemon=True)

    def start(self) -> None:
        """Begin to forward."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; False if it goes on."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._link.begin(self.turn, self._queue.refuse_second)
            self.turn(False)
            while not self._is_finished():
                self.turn(self._link.sleep(self._patience()))
        except BaseException as error:
            self._die(error)

    def _is_finished(self) -> bool:
        with self._turns:  # between the queue and the way to the owner a group is in nobody's hands but those of a turn
            return self._queue.is_finished and not self._on_the_way

    def _patience(self) -> float | None:
        until = self._linger_until  # a loop's turn may change it meanwhile
        return None if until == inf else max(0.0, until - self._clock.monotonic())

    def turn(self, has_news: bool, loop: AbstractEventLoop | None = None) -> bool:
        """Take what came from the owner, if there may be something, and forward what is due; by any thread (`Turn`)."""
        with self._turns:
            self._loop = loop
            if self._is_turning:
                self._mend()
            self._is_turning = True
            self._link.take(has_news=has_news)
            has_finished = self._finish_answered()
            while len(self._on_the_way) < ON_THE_WAY_MAX and (group := self._next()) is not None:
                self._forward(group)
            self._is_turning = False
        return has_finished

    def _next(self) -> Group | None:
        """The next group that is due."""
        if self._linger_until == inf:
            group = self._queue.poll()
        else:
            group = self._queue.poll(lingered=self._clock.monotonic() >= self._linger_until)
        if group is not None or not self._queue.is_lingering:
            self._linger_until = inf
        elif self._linger_until == inf:
            self._linger_until = self._clock.monotonic() + self._linger_s
        return group

    def _mend(self) -> None:
        """A signal ended the turn before this one: begin anew with what is on its way."""
        self._link.lose()
        self._queue.put_back([way.group for way in self._on_the_way])
        for way in self._on_the_way:
            if not way.is_answered and not self._link.has(way):
                self._hand_over(way)

    # -- to the owner -------------------------------------------------------------------------------------

    def _forward(self, group: Group) -> None:
        way = _OnTheWay(group, self._clock.monotonic())
        self._on_the_way.append(way)
        self._hand_over(way)

    def _hand_over(self, way: _OnTheWay) -> None:
        """Let the link have what is forwarded of a group; once."""
        if way.items is None:
            items, way.taken = forwarded(way.group.items)
            way.items = items  # last: a signal in between makes it again
        if way.items:
            self._link.forward(way.items, way)
        else:
            way.answered(())
            self._finish_answered()

    # -- and back -----------------------------------------------------------------------------------------

    def _finish_answered(self) -> bool:
        """Finish the groups that are answered, in order, up to the first that is not; whether there were any."""
        has_finished = False
        while self._on_the_way and self._on_the_way[0].is_answered:
            self._finish(self._on_the_way[0])
            self._on_the_way.popleft()
            has_finished = True
        return has_finished

    def _finish(self, way: _OnTheWay) -> None:
        group, answer = way.group, way.answer
        error = (
            answer
            if isinstance(answer, HoldfastError)
            else fill_in(way.taken, answer, self._partitions, self.offered_failure, offered=bool(group.offered))
        )
        if error is not None:
            self.counters.failed_groups += 1
            if group.offered:
                self.offered_failure.note(error)
        elif way.taken:
            now = self._clock.monotonic()
            queued = now - group.since if group.records else None
            self.counters.committed(group.records, group.bytes, len(way.taken), 0, now - way.started, queued)
        group.finish(error, self._loop)
        self._queue.complete(group)

    def _die(self, error: BaseException) -> None:
        """This thread cannot go on, by its own defect or because the link has ended: nobody is left waiting."""
        reason = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        poison = (
            error
            if isinstance(error, Closed)
            else Closed(f"this process can no longer share the log: {reason}", reason="poisoned")
        )
        poison.__cause__ = error if poison is not error else error.__cause__
        self.poison = poison
        with self._turns:
            is_idle = not any(way.group.items for way in self._on_the_way)
            self._queue.put_back([way.group for way in self._on_the_way])
            for way in self._on_the_way:
                way.group.finish(_unknown(poison))
                self._queue.complete(way.group)
            self._on_the_way.clear()
            abandoned = self._queue.abandon(poison)  # a loop's turn takes nothing any more that nobody would answer
        self.lost_nothing = isinstance(error, HoldfastError) and is_idle and not any(group.items for group in abandoned)
        defect = None if isinstance(error, HoldfastError) else error
        if self.lost_nothing:
            logger.info("the owner has gone: %s", reason, extra={"action": "owner_lost"})
        else:
            logger.critical("forwarding ended: %s", reason, extra={"action": "poisoned"}, exc_info=defect)
        for waiting in abandoned:
            waiting.finish(poison)


def _unknown(poison: Closed) -> OutcomeUnknown:
    unknown = OutcomeUnknown("the owner was lost before it answered, and may have written it", hint=poison.hint)
    unknown.__cause__ = poison
    return unknown
