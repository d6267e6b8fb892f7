"""Schedules: executions that begin at certain times, one for each time, whatever happens.

A schedule is a row in the space `execution-schedules`: when, what with, and up to which point in time it was seen to.
The id of an execution comes from the schedule's name and its point in time, so two who find the same point due begin
the same execution. It is queued first, and the schedule moved on afterwards: a crash in between begins it a second
time, which is the first time. Workers run what is queued.

Points that passed while nobody had the log are *missed*, and so are those that are found more than a minute late:
`skip` leaves them out, `run-once` begins one execution for the latest of them unless one is due now, `run-all` begins
all, and a number begins so many of the latest. Never more than `MISSED_MAX`: what is left out is logged.

If the wall clock is set back by more than an hour the schedule follows it, and points that come again have executions
already. Schedules are kept in this log's database and nowhere else: a log that was restored has none until its program
declares them again, which is what programs do when they start.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable
from itertools import islice
from typing import Literal

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, Corrupt, Full, HoldfastError, Invalid
from holdfast.execution.journal.entries import ExecutionRow
from holdfast.execution.journal.execution_id import ExecutionId, derived_id
from holdfast.execution.waits.cron import next_slot, parse_timing, slots_back, zone_of
from holdfast.journal.journal import Journal
from holdfast.model.typed_decoding import from_msgpack

SPACE = "execution-schedules"
SCHEDULES_MAX = 1_000
MISSED_MAX = 1_000
_ON_TIME_US = 60_000_000
_SET_BACK_US = 3_600_000_000
_DOMAIN = "holdfast schedule"

Missed = Literal["skip", "run-once", "run-all"] | int
Begin = Callable[[ExecutionRow], object]
"""Queues an execution, durably, unless there is one of its id."""

logger = logging.getLogger("holdfast.executions")


class Schedule(msgspec.Struct, frozen=True):
    """One schedule as it is stored."""

    name: str
    when: str
    """Cron's five fields, or `@hourly`, `@every 15m` …."""
    kind: str
    """The kind of execution that it begins."""
    input: bytes
    """Its arguments, encoded."""
    zone: str = "UTC"
    """The time zone of `when`."""
    missed: str | int = "run-once"
    """What becomes of points that passed while nobody had the log: `skip`, `run-once`, `run-all`, or at most so many.
    """
    queue: str = "default"
    priority: int = 0
    created_us: int = 0
    seen_us: int = 0
    """Points up to this time were seen to."""

    def next_us(self) -> int | None:
        """The next point in time that was not seen to."""
        return next_slot(parse_timing(self.when), zone_of(self.zone), self.seen_us)

    def execution(self, slot_us: int) -> ExecutionId:
        """The execution of a point in time."""
        return derived_id(_DOMAIN, f"{self.name}\0{slot_us}")

    def says_the_same(self, other: Schedule) -> bool:
        """Whether only the times differ at which they were made and seen to."""
        return msgspec.structs.replace(other, created_us=self.created_us, seen_us=self.seen_us) == self


class Schedules:
    """The schedules of one log."""

    def __init__(self, journal: Journal, begin: Begin, timeout: float) -> None:
        self._journal = journal
        self._clock = journal.clock
        self._begin = begin
        self._timeout = timeout
        self._lock = RLock()
        self._known: dict[str, Schedule] | None = None
        self._next: dict[Schedule, int | None] = {}
        """When each has its next point: most of the time there is nothing to see to."""

    def all(self) -> list[Schedule]:
        """All of them, by name."""
        with once(self._lock):
            return sorted(self._load().values(), key=lambda schedule: schedule.name)

    def declare(self, asked: Schedule) -> Schedule:
        """Make a schedule, durably. One that says the same goes on; one that says something else begins now."""
        parse_timing(asked.when)
        zone_of(asked.zone)
        check_missed(asked.missed)
        with once(self._lock):
            known = self._load()
            before = known.get(asked.name)
            if before is not None and before.says_the_same(asked):
                return before
            if before is None and len(known) >= SCHEDULES_MAX:
                raise Full(f"there are {SCHEDULES_MAX} schedules already", hint="remove some with unschedule(name)")
            now = self._clock.now_us()
            created = now if before is None else before.created_us
            return self._put(known, msgspec.structs.replace(asked, created_us=created, seen_us=now))

    def remove(self, name: str) -> bool:
        """Take a schedule away, durably; what it has begun goes on. False if there is none."""
        with once(self._lock):
            known = self._load()
            if name not in known:
                return False
            self._journal.spaces.change(SPACE, (), [name.encode()], timeout=self._timeout).result()
            del known[name]
            return True

    def tick(self) -> None:
        """Begin what is due."""
        with once(self._lock):
            known = self._load()
            for schedule in list(known.values()):
                try:
                    self._see_to(known, schedule)
                except Closed:
                    raise
                except HoldfastError as error:  # one that cannot be seen to must not keep others from their time
                    logger.error(
                        "a schedule's execution could not be begun and is tried again schedule=%s: %s",
                        schedule.name,
                        error.message,
                        extra={"action": "execution_schedule_failed", "schedule": schedule.name},
                    )

    def _see_to(self, known: dict[str, Schedule], schedule: Schedule) -> None:
        now = self._clock.now_us()
        following = self._following(schedule)
        if schedule.seen_us - _SET_BACK_US <= now and (following is None or now < following):
            return
        if now < schedule.seen_us - _SET_BACK_US:
            logger.warning(
                "the clock was set back: a schedule follows it schedule=%s",
                schedule.name,
                extra={"action": "execution_clock_set_back", "schedule": schedule.name},
            )
            schedule = self._put(known, msgspec.structs.replace(schedule, seen_us=now))
        back = slots_back(parse_timing(schedule.when), zone_of(schedule.zone), schedule.seen_us, now)
        found = list(islice(back, MISSED_MAX + _ON_TIME_US // 1_000_000 + 2))  # one more than can be chosen
        if not found:
            return
        for slot in due_slots(schedule, found, now):
            row = ExecutionRow(
                schedule.execution(slot).bytes,
                schedule.kind,
                "queued",
                now,
                now,
                queue=schedule.queue,
                priority=schedule.priority,
                due_us=slot,
                input=schedule.input,
            )
            self._begin(row)
        self._put(known, msgspec.structs.replace(schedule, seen_us=found[0]))

    def _following(self, schedule: Schedule) -> int | None:
        if schedule not in self._next:
            if len(self._next) > 2 * SCHEDULES_MAX:
                self._next.clear()
            self._next[schedule] = schedule.next_us()
        return self._next[schedule]

    def _put(self, known: dict[str, Schedule], schedule: Schedule) -> Schedule:
        item = (schedule.name.encode(), schedule.created_us, msgspec.msgpack.encode(schedule))
        self._journal.spaces.change(SPACE, [item], timeout=self._timeout).result()
        known[schedule.name] = schedule
        return schedule

    def _load(self) -> dict[str, Schedule]:
        if self._known is None:
            items = self._journal.spaces.load(SPACE)
            self._known = {found.name: found for found in map(_decoded, (body for _, _, body in items))}
        return self._known


def check_missed(missed: object) -> None:
    """What may be said about points that were missed."""
    is_number = isinstance(missed, int) and not isinstance(missed, bool) and 1 <= missed <= MISSED_MAX
    if not is_number and missed not in ("skip", "run-once", "run-all"):
        raise Invalid(
            f"missed is 'skip', 'run-once', 'run-all' or a number up to {MISSED_MAX}", hint="for instance missed=3"
        )


def due_slots(schedule: Schedule, found: list[int], now_us: int) -> list[int]:
    """Which of the points that passed get an execution, the earliest first. `found`: the latest first."""
    on_time = [slot for slot in found if slot >= now_us - _ON_TIME_US]
    late = found[len(on_time) : len(on_time) + MISSED_MAX]
    chosen = late[: _catching_up(schedule.missed, bool(on_time))]
    if len(found) > len(on_time) + len(chosen):
        logger.warning(
            "points in time of a schedule were missed and are left out schedule=%s missed=%s",
            schedule.name,
            schedule.missed,
            extra={"action": "execution_schedule_missed", "schedule": schedule.name},
        )
    return [*chosen[::-1], *on_time[::-1]]


def _catching_up(missed: str | int, has_one_on_time: bool) -> int:
    if isinstance(missed, int):
        return missed
    return {"skip": 0, "run-once": 0 if has_one_on_time else 1}.get(missed, MISSED_MAX)


def _decoded(body: bytes) -> Schedule:
    try:
        return from_msgpack(body, Schedule)
    except msgspec.DecodeError:
        raise Corrupt("a schedule does not decode") from None
