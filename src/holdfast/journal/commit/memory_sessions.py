"""Forwarded groups in the owner's queue, each sequence of a session once; remembered in memory.

All items of a forwarded group go into one group of the queue, under one hold of its lock: so they become durable
together. Rows join the run of their partition that is open, whoever began it.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.journal.commit.forwarded import ForwardedRows, Item
from holdfast.journal.commit.group import Group, Run, Unit
from holdfast.journal.commit.queue import Queue, check_taken
from holdfast.journal.sessions.outcomes import Outcome, Refusal, Repeat, RunOutcome

_SESSIONS_MAX = 10_000


class Forwarded:
    """One forwarded group in the owner's queue."""

    __slots__ = ("_outcomes", "_places", "group")

    def __init__(self, group: Group, places: list[tuple[Run, int, int] | Unit]) -> None:
        self.group = group
        self._places = places
        self._outcomes: tuple[Outcome, ...] | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.group.done

    def outcomes(self) -> tuple[Outcome, ...]:
        """What became of each item; it is done."""
        if self._outcomes is None:
            self._outcomes = tuple(
                _of_unit(place) if isinstance(place, Unit) else _of_rows(*place) for place in self._places
            )
            self._places = []
        return self._outcomes


class MemorySessions:
    """The sessions of one owner."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: OrderedDict[bytes, OrderedDict[int, Forwarded]] = OrderedDict()
        self._lasts: dict[bytes, int] = {}
        self._lock = Lock()

    def last(self, session: bytes) -> int | None:
        """The newest sequence of a session that is known here."""
        return self._lasts.get(session)

    def put(self, session: bytes, sequence: int, floor: int, items: list[Item], timeout: float) -> Forwarded:
        """Queue a forwarded group, or find the one that was queued under this sequence before."""
        with self._lock:
            known = self._known.setdefault(session, OrderedDict())
            while known and next(iter(known)) < floor:
                known.popitem(last=False)
            if (before := known.get(sequence)) is not None:
                return before
            if sequence <= self._lasts.get(session, 0):
                raise OutcomeUnknown(f"what became of it was forgotten sequence={sequence}")
            forwarded = Forwarded(*place_items(self._queue, items, timeout))
            known[sequence] = forwarded
            self._lasts[session] = sequence
            self._known.move_to_end(session)
            while len(self._known) > _SESSIONS_MAX:
                self._lasts.pop(self._known.popitem(last=False)[0], None)
            return forwarded


def place_items(
    queue: Queue, items: list[Item], timeout: float
) -> tuple[Group, list[tuple[Run, int, int] | Unit]]:  # fmt: skip
    """Put all of these into one group of the queue."""
    for item in items:
        if isinstance(item, ForwardedRows):
            check_taken([item.partition])
        else:
            check_taken(run.partition for run in item.operations if isinstance(run, Run))
    return queue.put_forwarded(items, timeout)


def _of_rows(run: Run, start: int, count: int) -> Outcome:
    error = run.error or run.group.error
    if error is not None:
        return Outcome.refused(error)
    return Outcome(None, (_of_run(run, start, count),))


def _of_unit(unit: Unit) -> Outcome:
    error = unit.error or unit.group.error
    if error is not None:
        return Outcome.refused(error)
    return Outcome(None, tuple(_of_run(run, 0, run.count) for run in unit.runs()))


def _of_run(run: Run, start: int, count: int) -> RunOutcome:
    if run.repeated:
        return RunOutcome(run.partition.id, run.first, run.seq, count, repeated=True)
    if not run.repeats:
        return RunOutcome(run.partition.id, run.first + start, run.seq, count)
    slots = run.slots
    first = run.first + (start if slots is None else slots[start]) if run.first >= 0 else -1
    repeats: list[Repeat] = []
    refused: list[tuple[int, Refusal]] = []
    for position in range(count):
        known = run.repeats.get(start + position)
        if isinstance(known, HoldfastError):
            refused.append((position, Refusal.of(known)))
        elif known is not None:
            partition, offset, seq = known
            repeats.append(Repeat(position, partition.id, offset, seq))
    return RunOutcome(run.partition.id, first, run.seq, count, repeats=tuple(repeats), refused=tuple(refused))
