"""Following a topic from another process: what has become durable since, page after page, forever.

The owner cannot notify another process, so we look again a few times per second. Positions carry over from one
look to the next, so every record comes once, whether it is sealed meanwhile or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from holdfast import Topic
from holdfast.cli.output import flush
from holdfast.cli.printing import Write, items
from holdfast.log.topics.reading import Reading
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.signals import Flag

_LOOK_AGAIN_S = 0.1
_PAGE_RECORDS = 10_000


def end_of(topic: Topic | TypedTopic, partitions: Collection[int] | None) -> str:
    """The position behind everything that is durable now."""
    return topic.read(reverse=True, limit=0, partition=partitions).position


def follow(
    topic: Topic | TypedTopic,
    start: int | str,
    partitions: Collection[int] | None,
    columns: Collection[str] | None,
    limit: int | None,
    write: Write,
) -> None:
    """Print what comes from `start` on; ends after `limit` records."""
    left = limit
    for reading in _readings(topic, start, partitions, columns):
        written = 0
        for item in islice(items(topic, reading), left):
            write(item)
            written += 1
        flush()
        if left is not None:
            left -= written
            if not left:
                return


def _readings(
    topic: Topic | TypedTopic, start: int | str, partitions: Collection[int] | None, columns: Collection[str] | None
) -> Iterator[Reading[Any]]:
    pause = Flag()
    while True:
        reading = read(topic, start, limit=_PAGE_RECORDS, partition=partitions, columns=columns)
        yield reading
        start = reading.position
        if reading.exhausted:
            pause.wait(_LOOK_AGAIN_S)


def read(topic: Topic | TypedTopic, *span: Any, columns: Collection[str] | None = None, **options: Any) -> Reading[Any]:
    """Read either kind of topic; columns are for typed ones."""
    if isinstance(topic, TypedTopic):
        return topic.read(*span, columns=columns, **options)
    return topic.read(*span, **options)
