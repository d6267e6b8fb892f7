"""When a schedule runs: cron's five fields, or an interval, turned into points in time. Pure.

    minute hour day-of-month month day-of-week      "0 3 * * *"  every night at three
                                                    "*/15 8-18 * * mon-fri"
    @hourly @daily @weekly @monthly @yearly
    @every 90s | 15m | 6h | 1d                      counted from 1970, so that every process finds the same points

Days of the month and of the week are combined as cron does it: if both are restricted, either will do. Sunday is 0
or 7.

Times are those of a time zone. Where its clocks are set forward, what would have run in the hour that is left out runs
just as long after its beginning as it would have, once; where they are set back, what has an hour of its own runs the
first time round, and what runs in every hour runs in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from holdfast.errors import Invalid

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EVERY = re.compile(r"@every\s+(\d{1,9})\s*([smhd])\Z")
_ITEM = re.compile(r"(\*|\w{1,9}(?:-\w{1,9})?)(?:/(\d{1,4}))?\Z")
_HINT = "five fields, for instance '0 3 * * *' for three o'clock every night; or '@hourly', '@every 15m'"
_TEXT_MAX = 200
_DAYS_BACK_MAX = 366 * 8 + 3
"""29 February comes again after eight years at the latest."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: list[str]


_FIELDS = (
    _Field("minute", 0, 59, []),
    _Field("hour", 0, 23, []),
    _Field("day of the month", 1, 31, []),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


class Every(NamedTuple):
    """All multiples of an interval."""

    us: int


class Cron(NamedTuple):
    """What the five fields allow."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    by_either: bool
    """Days of the month and of the week are both restricted: one of them is enough."""

    def has_day(self, day: date) -> bool:
        """Whether it runs on a day."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.by_either else in_month and in_week


Timing = Cron | Every


@lru_cache(maxsize=1_000)
def parse_timing(text: str) -> Timing:
    """What a schedule's text says; raises Invalid with what is wrong with it."""
    if not isinstance(text, str) or len(text) > _TEXT_MAX:
        raise Invalid("a schedule's time is a short text", hint=_HINT)
    lowered = text.strip().lower()
    if lowered.startswith("@every"):
        found = _EVERY.match(lowered)
        if found is None or not int(found[1]):
            raise Invalid(f"this interval is not understood: {text!r}", hint="for instance '@every 15m'; s, m, h or d")
        return Every(int(found[1]) * _UNITS[found[2]] * 1_000_000)
    fields = _SHORT.get(lowered, lowered).split()
    if len(fields) != len(_FIELDS):
        raise Invalid(f"a schedule's time has five fields, not {len(fields)}: {text!r}", hint=_HINT)
    minutes, hours, days, months, weekdays = (
        _values(given, field, text) for given, field in zip(fields, _FIELDS, strict=True)
    )
    cron = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        not fields[2].startswith("*") and not fields[4].startswith("*"),
    )
    if not cron.by_either and not any(_exists(month, day) for month in months for day in days):
        raise Invalid(f"there is no such day: {text!r}", hint="for instance 31 in a month that has 30")
    return cron


def zone_of(name: str) -> tzinfo:
    """A time zone by its name."""
    if name == "UTC":  # is known where no others are
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise Invalid(f"there is no such time zone: {name!r}"[:200], hint="for instance 'Europe/Berlin'") from None


def slots_back(timing: Timing, zone: tzinfo, after_us: int, upto_us: int) -> Iterator[int]:
    """Its points in time after one and up to another, the latest first, in microseconds since 1970."""
    if isinstance(timing, Every):
        at = upto_us - upto_us % timing.us
        while at > after_us:
            yield at
            at -= timing.us
        return
    # A day's points may lie on its neighbours by UTC: days are those of the zone.
    day = _local_day(upto_us, zone) + timedelta(days=1)
    for _ in range(_DAYS_BACK_MAX):
        points = _day_points(timing, zone, day)
        yield from (at for at in reversed(points) if after_us < at <= upto_us)
        if _midnight_us(day, zone) <= after_us or day.year <= 1970:
            return
        day -= timedelta(days=1)


def next_slot(timing: Timing, zone: tzinfo, after_us: int) -> int | None:
    """Its next point in time; None if there is none in many years."""
    if isinstance(timing, Every):
        return after_us - after_us % timing.us + timing.us
    day = _local_day(after_us, zone) - timedelta(days=1)
    for _ in range(_DAYS_BACK_MAX):
        found = next((at for at in _day_points(timing, zone, day) if at > after_us), None)
        if found is not None:
            return found
        day += timedelta(days=1)
    return None


@lru_cache(maxsize=512)
def _day_points(cron: Cron, zone: tzinfo, day: date) -> tuple[int, ...]:
    """When it runs on a day of the zone, in order."""
    if not cron.has_day(day):
        return ()
    found: set[int] = set()
    every_hour = len(cron.hours) == 24
    for hour in cron.hours:
        for minute in cron.minutes:
            found.update(_points(datetime.combine(day, time(hour, minute), zone), every_hour=every_hour))
    return tuple(sorted(found))


def _points(local: datetime, *, every_hour: bool) -> Iterator[int]:
    first, second = _us(local), _us(local.replace(fold=1))
    if first < second:  # the clocks are set back: this time comes twice
        yield first
        if every_hour:
            yield second
    elif first > second:  # they are set forward: this time is left out
        if not every_hour:
            yield first
    else:
        yield first


def _us(local: datetime) -> int:
    return round((local - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000


def _local_day(us: int, zone: tzinfo) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).astimezone(zone).date()


def _midnight_us(day: date, zone: tzinfo) -> int:
    return _us(datetime.combine(day, time(), zone))


def _values(given: str, field: _Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for item in given.split(","):
        values.update(_item(item, field, text))
    return frozenset(values)


def _item(item: str, field: _Field, text: str) -> range:
    found = _ITEM.match(item)
    if found is None:
        raise Invalid(f"the {field.name} {item!r} is not understood: {text!r}", hint=_HINT)
    step = int(found[2]) if found[2] else 1
    if found[1] == "*":
        low, high = field.low, field.high
    else:
        start, _, end = found[1].partition("-")
        low = _number(start, field, text)
        high = _number(end, field, text) if end else (field.high if found[2] else low)
    if not step or low > high:
        raise Invalid(f"the {field.name} {item!r} is empty: {text!r}", hint=_HINT)
    return range(low, high + 1, step)


def _number(given: str, field: _Field, text: str) -> int:
    number = field.names.index(given) + field.low if given in field.names else -1
    if given.isascii() and given.isdecimal():
        number = int(given)
    if not field.low <= number <= field.high:
        raise Invalid(f"the {field.name} is {field.low} to {field.high}, not {given!r}: {text!r}", hint=_HINT)
    return number


def _exists(month: int, day: int) -> bool:
    return day <= (29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31)
