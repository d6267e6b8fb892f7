"""The partitions of one topic: choosing one, reading a span of them, and how far each one got.

What raw and typed topics have in common. Offsets count per partition; negative ones count from what is durable now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import count
from typing import TypeVar
from zlib import crc32

from holdfast.arguments import flag, several, whole
from holdfast.errors import Invalid, NotFound
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log.following import Follower
from holdfast.log.partition_stream import ALWAYS, Stream, Times
from holdfast.log.reading import Reading, Shape, Span, parse_position
from holdfast.log.validation import time_of
from holdfast.log.watching import Watch
from holdfast.model.record import Marks, Watermark
from holdfast.model.topic_name import check_name
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.suggestions import listed, meant

Item = TypeVar("Item")


def no_topic(name: str, known: Iterable[str]) -> NotFound:
    """The error for a topic that is not there, with the one that was probably meant."""
    names = [one for one in known if not one.startswith("_")]
    hint = f"{listed(names)}; a topic is created by whoever appends to it first"
    return NotFound(f"there is no topic {check_name(name)!r}{meant(name, known)}", hint=hint)


class Partitions:
    """The partitions of one topic of an open log."""

    def __init__(self, topic: str, parts: tuple[Partition, ...], journal: Journal, manifest: Manifest) -> None:
        self.topic = topic
        self.parts = parts
        self.only = parts[0] if len(parts) == 1 else None
        self.journal = journal
        self._manifest = manifest
        self._turn = count()

    def choose(self, partition: int | None, key: bytes | None) -> Partition:
        """Explicit, by key hash, or round robin."""
        if partition is not None:
            return self.explicit(partition)
        if self.only is not None:
            return self.only
        number = next(self._turn) if key is None else crc32(key)
        return self.parts[number % len(self.parts)]

    def explicit(self, partition: int) -> Partition:
        """The partition of this number."""
        if not isinstance(partition, int) or not 0 <= partition < len(self.parts):
            raise Invalid(
                f"topic {self.topic!r} has no partition {partition}",
                hint=f"its partitions are 0 to {len(self.parts) - 1}",
            )
        return self.parts[partition]

    def wanted(self, partition: int | Iterable[int] | None) -> tuple[Partition, ...]:
        """One partition, some, or all."""
        if partition is None:
            return self.parts
        if isinstance(partition, int):
            return (self.explicit(partition),)
        numbers = [whole(number, "partition") for number in several(partition, "partition", "partition=0, or [0, 1]")]
        if not numbers:
            raise Invalid("no partition is named", hint="leave partition out to read all of them")
        return tuple(self.explicit(number) for number in sorted(set(numbers)))

    def stream(self, part: Partition) -> Stream:
        """One partition as an ordered stream."""
        return Stream(self.journal, self._manifest, part)

    def read(
        self,
        shape: Callable[[], Shape[Item]],
        start: int | str | None,
        end: int | str | None,
        limit: int | None,
        reverse: bool,
        partition: int | Iterable[int] | None,
        since: int | datetime | None,
        until: int | datetime | None,
        bytes_max: int | None,
    ) -> Reading[Item]:
        """A reading of what is durable now."""
        for name, value in (("limit", limit), ("bytes_max", bytes_max)):
            if value is not None and whole(value, name) < 0:
                raise Invalid(f"{name} must not be negative, got {value}", hint="leave it out to read everything")
        flag(reverse, "reverse")
        self.journal.refresh()
        times = Times(None if since is None else time_of(since), None if until is None else time_of(until))
        starts, ends = _positions(start), _positions(end)
        spans = []
        for part in self.wanted(partition):
            durable = part.durable
            first = _start(starts, part, durable)
            last = durable if ends is None else min(durable, _place(ends, part, durable))
            spans.append(Span(self.stream(part), first, max(first, last)))
        # The least advanced first: whoever pages through a busy topic gets to every partition.
        spans.sort(
            key=lambda span: (span.end if reverse else span.start, span.stream.partition.number), reverse=reverse
        )
        # The shape comes last: no row of these spans can have a later version of the schema than there is now.
        return Reading(shape(), spans, times, reverse, None if limit is None else min(limit, sys.maxsize), bytes_max)

    def follow(
        self, shape: Callable[[], Shape[Item]], start: int | str | None, partition: int | Iterable[int] | None
    ) -> Follower[Item]:
        """Items from a start on, for ever; without one, from behind what is durable now."""
        self.journal.refresh()
        at = _positions(start)
        positions = {
            part: part.durable if at is None else _place(at, part, part.durable) for part in self.wanted(partition)
        }

        def read(part: Partition, first: int, end: int) -> Iterator[Item]:
            return shape().items(Span(self.stream(part), first, end), ALWAYS, False)

        return Follower(self.journal, positions, read)

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition got."""
        self.journal.refresh()
        return tuple(self._marks(part) for part in self.parts)

    def _marks(self, part: Partition) -> Marks:
        # In this order: a mark that is read later can only be further on, and the inequalities hold.
        shipment = part.shipment
        sealed = part.sealed.sealed_offset
        durable = part.durable
        # Without another store the log's own directory is what readers read: what is sealed is settled.
        shipped, settled = (None, sealed) if shipment is None else (shipment.shipped_offset, shipment.settled_offset)
        return Marks(self.journal.appended(part), durable, sealed, shipped, settled)

    def watermark(self, partition: int) -> Watermark:
        """How far a partition is sealed."""
        self.journal.refresh()
        return self.watch(partition).value

    def watch(self, partition: int) -> Watch:
        """The watermark of a partition, as it moves."""
        return Watch(self.journal, self.explicit(partition))


def _positions(at: int | str | None) -> int | Mapping[int, int] | None:
    return parse_position(at) if isinstance(at, str) else None if at is None else whole(at, "an offset")


def _start(at: int | Mapping[int, int] | None, part: Partition, durable: int) -> int:
    """Where to begin: at the first record that is left, unless somebody says otherwise."""
    if at is None or (isinstance(at, Mapping) and part.number not in at):
        return min(durable, part.sealed.first_offset)
    return _place(at, part, durable)


def _place(at: int | Mapping[int, int], part: Partition, durable: int) -> int:
    if isinstance(at, Mapping):
        return at.get(part.number, durable)
    return max(part.sealed.first_offset, durable + at) if at < 0 else at
