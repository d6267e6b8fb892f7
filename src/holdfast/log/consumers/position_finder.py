"""Where in a topic a consumer begins, or goes on: what callers say, as offsets of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.arguments import whole
from holdfast.errors import Invalid
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.partition_pages import Read
from holdfast.log.consumers.stored_positions import TOPIC
from holdfast.log.ports import TopicSource
from holdfast.log.topics.reading import Reading, parse_position

Start = int | str | datetime
"""Where a consumer begins: an offset, 'first', 'next', a position, or a time."""


class Reader(NamedTuple):
    """What a topic gives to its consumers: its partitions, and how they are read."""

    topic: str
    parts: tuple[Partition, ...]
    items: Read[Any]
    since: Callable[[int, datetime], Reading[Any]]
    """The records of a partition from a time on."""
    source: TopicSource
    """How one hears that it went on."""


def check_consumer(topic: str, on_expired: str) -> None:
    """Raise Invalid for a topic that has no consumers, or a policy that there is not."""
    if topic == TOPIC:
        raise Invalid(f"positions are kept in {TOPIC}: every commit adds to it", hint="read it with topic.read()")
    if on_expired not in ("fail", "first"):
        raise Invalid(f"unknown on_expired={on_expired!r}", hint="use 'fail' or 'first'")


class PositionFinder:
    """Where in a topic something is."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def find(self, number: int, to: Start) -> int:
        """The offset that is meant."""
        part = self._reader.parts[number]
        if isinstance(to, datetime):
            return self._since(part, to)
        if to == "first":
            return min(part.durable, part.sealed.first_offset)
        if to == "next":
            return part.durable
        if isinstance(to, str):
            at = parse_position(to).get(number, part.durable)
        else:
            at = whole(to, "an offset")
            at = max(part.sealed.first_offset, part.durable + at) if at < 0 else at
        if at > part.durable:
            raise Invalid(
                f"there is no offset {at} yet topic={part.topic!r} partition={number} durable={part.durable}",
                hint="'next' is behind the last record; 'first', offsets, positions and times stand for others",
            )
        return at

    def _since(self, part: Partition, time: datetime) -> int:
        reading = self._reader.since(part.number, time)
        found = next(iter(reading), None)
        return part.durable if found is None else parse_position(reading.position)[part.number] - 1
