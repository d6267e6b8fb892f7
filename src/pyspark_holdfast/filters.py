"""Filters that Spark pushes down, as bounds on topics, partitions, offsets and times. Pure.

A comparison of one of these four columns with a constant is taken over exactly: rows are left out here, and Spark does
not look again. Everything else goes back to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from holdfast.settled.plan import Bounds

_OFFSETS, _TIMES = ("offset", "_offset"), ("timestamp", "_time")
_TOPICS, _PARTITIONS = ("topic", "_topic"), ("partition", "_partition")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def taken(filters: Iterable[Filter], names: Iterable[str]) -> tuple[Bounds, list[Filter]]:
    """What these filters ask for, as bounds; and those that Spark must apply itself.

    `names` are the columns of ours that mean what they say: a user's own column `offset` does not.
    """
    ours, bounds, back = set(names), Bounds(), []
    for each in filters:
        found = _bounds(each, ours)
        if found is None:
            back.append(each)
        else:
            bounds = bounds.tighter(found)
    return bounds, back


def _bounds(each: Filter, ours: set[str]) -> Bounds | None:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in ours:
        return None
    if isinstance(each, IsNotNull):
        return Bounds()  # none of them is ever null
    values = list(_values(each))
    if not values and not isinstance(each, In):
        return None
    return _choice(each, attribute[0], values) or _comparison(each, attribute[0], values)


def _choice(each: Filter, name: str, values: list[Any]) -> Bounds | None:
    """One of several topics or partitions."""
    if not isinstance(each, EqualTo | EqualNullSafe | In):
        return None
    if name in _TOPICS and all(isinstance(value, str) for value in values):
        return Bounds(topics=frozenset(values))
    if name in _PARTITIONS and all(_is_whole(value) for value in values):
        return Bounds(partitions=frozenset(values))
    return None


def _comparison(each: Filter, name: str, values: list[Any]) -> Bounds | None:
    """A range of offsets or of times."""
    value = values[0] if len(values) == 1 else None
    if name in _OFFSETS and isinstance(value, int) and _is_whole(value):
        low, high = _range(each, value)
        return Bounds(offset_min=low, offset_before=None if high is None else high + 1)
    if name in _TIMES and isinstance(value, datetime) and value.tzinfo is not None:
        low, high = _range(each, (value - _EPOCH) // _US)
        return Bounds(since=low, until=high)
    return None


def _values(each: Filter) -> Iterator[Any]:
    value = getattr(each, "value", None)
    if isinstance(each, In):
        yield from value or ()
    elif isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        yield value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _range(each: Filter, value: int) -> tuple[int | None, int | None]:
    """The whole numbers that a comparison allows, both ends included."""
    if isinstance(each, GreaterThan):
        return value + 1, None
    if isinstance(each, GreaterThanOrEqual):
        return value, None
    if isinstance(each, LessThan):
        return None, value - 1
    if isinstance(each, LessThanOrEqual):
        return None, value
    return value, value
