"""The forwarder: in a process that does not own the log, the thread that has groups committed by the one that does.

It takes groups off the same queue as a writer does, and hands each to a `Link`, which brings it to the owner, as often
as it takes, and says what became of it: once. Then the group learns its offsets, failures and repeats and is finished;
so tickets, back-pressure, flush and close are the same here and there. While some groups are on their way, what callers
bring gathers in the next one: that is what makes groups large when many append.

One thread does all of it, because waking another one costs more than the work: while it sleeps on the queue, it takes
what comes from the owner. Groups are finished in the order in which they were taken. A link that has ended for good
refuses all that is left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Protocol, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.journal.commit.forwarded import ForwardedRows, Item, fill, forwarded_unit
from holdfast.journal.commit.group import Group, Run, Unit
from holdfast.journal.commit.queue import Queue
from holdfast.journal.journal_stats import Counters
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns
from holdfast.shared_number import SharedNumber
from holdfast.signals import Wake

Told = TypeVar("Told")
Answered = Callable[[Outcomes | HoldfastError], None]

ON_THE_WAY_MAX = 2
"""Groups that may be with the owner at once. More would be smaller ones; fewer would leave it waiting for the next."""

logger = logging.getLogger("holdfast.journal")


class Link(Protocol):
    """The way from a process that shares a log to the one that owns it; the forwarder's thread drives it."""

    @property
    def wake(self) -> Wake:
        """What the forwarder sleeps on; while it sleeps, what comes from the owner is taken."""

    @property
    def durable(self) -> SharedNumber | None:
        """How many groups of the log are durable, as the owner tells it that was met last; None: it does not."""

    def forward(self, items: list[Item], answered: Answered) -> None:
        """Have these committed together, once; `answered` is called when that is known, by this same thread.

        Returns at once, also while there is no owner: then it is sent when there is one.
        """

    def take(self) -> None:
        """Wait for something from the owner, and take it; finds another owner if this one is lost."""

    def call(self, name: str, request: msgspec.Struct, answer: type[Told], timeout: float) -> Told:
        """Ask the owner for something else, and wait for its answer; from any other thread."""

    def close(self, timeout: float) -> None:
        """Let go of the owner; the forwarder has ended."""


class _OnTheWay:
    """A group that is with the owner, or a barrier behind such."""

    __slots__ = ("answer", "group", "is_answered", "started", "taken")

    def __init__(self, group: Group, taken: list[Run | Unit], started: float) -> None:
        self.group = group
        self.taken = taken
        """Those of its items that were forwarded, in order."""
        self.started = started
        self.answer: Outcomes | HoldfastError = ()
        self.is_answered = not taken


class Forwarder:
    """The thread that forwards."""

    def __init__(self, queue: Queue, link: Link, partitions: Mapping[int, Partition], clock: Clock) -> None:
        self._queue = queue
        self._link = link
        self._partitions = partitions
        self._clock = clock
        self._on_the_way: deque[_OnTheWay] = deque()
        self.counters = Counters()
        self.poison: Closed | None = None
        self.failure: HoldfastError | None = None
        """Why offered records were not stored: nobody holds a ticket for them, so flush() or close() tells, once."""
        self._thread = Thread(target=self._work, name="holdfast-forwarder", daemon=True)

    def start(self) -> None:
        """Begin to forward."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; False if it goes on."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        group: Group | None = None
        try:
            while (group := self._queue.take()) is not None:
                self._forward(group)
                while len(self._on_the_way) >= ON_THE_WAY_MAX:
                    self._link.take()
            while self._on_the_way:
                self._link.take()
        except BaseException as error:
            self._die(error, group)

    # -- to the owner -------------------------------------------------------------------------------------

    def _forward(self, group: Group) -> None:
        items: list[Item] = []
        taken: list[Run | Unit] = []
        for one in group.items:
            item = self._item(one)
            if item is not None:
                items.append(item)
                taken.append(one)
        way = _OnTheWay(group, taken, self._clock.monotonic())
        self._on_the_way.append(way)
        if taken:
            self._link.forward(items, lambda answer: self._answered(way, answer))
        else:
            self._finish_answered()

    def _item(self, one: Run | Unit) -> Item | None:
        """What is forwarded of an item; None where it has failed here already, or there is nothing to it."""
        if isinstance(one, Run):
            return ForwardedRows(one.partition, one.rows, 0) if one.rows else None
        try:
            if one.make is not None:
                one.operations = one.make(one)
            _refuse_own(one)
        except HoldfastError as error:
            one.fail(error)
            return None
        except Exception as error:  # somebody else's code: its failure is that of what it was to make
            failure = Unavailable("a change could not be made; nothing of it was written", hint="see the cause")
            failure.__cause__ = error
            one.fail(failure)
            return None
        for run in one.runs():
            run.group = one.group
        return _forwarded(one)

    # -- and back -----------------------------------------------------------------------------------------

    def _answered(self, way: _OnTheWay, answer: Outcomes | HoldfastError) -> None:
        """By the link: this is what became of a group."""
        way.answer, way.is_answered = answer, True
        self._finish_answered()

    def _finish_answered(self) -> None:
        """Finish the groups that are answered, in order; what is behind one that is not waits."""
        while self._on_the_way and self._on_the_way[0].is_answered:
            self._finish(self._on_the_way.popleft())

    def _finish(self, way: _OnTheWay) -> None:
        group, answer = way.group, way.answer
        error = answer if isinstance(answer, HoldfastError) else self._fill_in(way, answer)
        if error is not None:
            self.counters.failed_groups += 1
            if group.offered:
                self.failure = error
        elif way.taken:
            now = self._clock.monotonic()
            queued = now - group.since if group.records else None
            self.counters.committed(group.records, group.bytes, len(way.taken), 0, now - way.started, queued)
        group.finish(error)
        self._queue.complete(group)

    def _fill_in(self, way: _OnTheWay, outcomes: Outcomes) -> HoldfastError | None:
        """Give each run its place, each unit its failure; an answer that does not fit is the failure of all."""
        if len(outcomes) != len(way.taken):
            return Unavailable("the owner's answer is not one to what it was asked", hint="see the owner's log")
        for one, outcome in zip(way.taken, outcomes, strict=True):
            if outcome.error is not None:
                error = outcome.error.error()
                if isinstance(one, Unit):
                    one.fail(error)
                else:
                    one.error = error
                if way.group.offered:
                    self.failure = error
                continue
            runs = one.runs() if isinstance(one, Unit) else [one]
            for run, found in zip(runs, outcome.runs, strict=False):
                fill(run, found, self._partitions)
        return None

    def _die(self, error: BaseException, group: Group | None) -> None:
        """This thread cannot go on, by its own defect or because the link has ended: nobody is left waiting."""
        reason = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        poison = (
            error
            if isinstance(error, Closed)
            else Closed(f"this process can no longer share the log: {reason}", reason="poisoned")
        )
        poison.__cause__ = error if poison is not error else error.__cause__
        self.poison = self.failure = poison
        logger.critical("forwarding ended: %s", reason, extra={"action": "poisoned"}, exc_info=error)
        for way in self._on_the_way:
            way.group.finish(_unknown(poison))
        if group is not None and not group.done:
            group.finish(poison)
        for waiting in self._queue.abandon(poison):
            waiting.finish(poison)


def _unknown(poison: Closed) -> OutcomeUnknown:
    unknown = OutcomeUnknown("the owner was lost before it answered, and may have written it", hint=poison.hint)
    unknown.__cause__ = poison
    return unknown


def _forwarded(unit: Unit) -> Item:
    records = size = 0
    for operation in unit.operations:
        if isinstance(operation, Run):
            records += len(operation)
            size += _size(operation)
        elif isinstance(operation, ChangeSpace):
            size += sum(len(key) + len(body) for key, _, body in operation.puts) + sum(map(len, operation.deletes))
    return forwarded_unit(unit, records, size)


def _size(run: Run) -> int:
    columns = run.columns
    if columns is None:
        return sum(len(row[0]) for row in run.rows)
    return columns.size() if isinstance(columns, Columns) else len(columns.body)


def _refuse_own(unit: Unit) -> None:
    """Operations that only an owner may ask for are not forwarded."""
    for operation in unit.operations:
        if not isinstance(operation, (Run, ChangeSpace)):
            raise Invalid(
                f"only the owner of a shared log does this: {type(operation).__name__}", hint="ask it, by a call"
            )
