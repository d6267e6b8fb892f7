"""The partitions of one topic: which one a record goes to, what goes to which, and which offsets of them are meant.

Offsets count per partition; negative ones count from what is durable now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from holdfast.arguments import several, whole
from holdfast.errors import Invalid, NotFound
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.reading import Span, parse_position
from holdfast.model.record_columns import Columns, EncodedRows
from holdfast.model.topic_name import check_name, is_own
from holdfast.suggestions import listed, meant

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.log.ports import Names, TopicSource


class PreparedBatch(NamedTuple):
    """A batch that was checked and encoded: ready to be queued, alone or in a transaction."""

    parts: Sequence[tuple[Partition, Columns | EncodedRows]]
    size: int
    positions: Sequence[int]
    """Where each record stands when the parts stand one behind the other, in the order in which they were given …"""
    starts: Sequence[int] = (0,)
    """… and where each part begins there."""


class NoTopic(NotFound):
    """There is no such topic: it says which one was probably meant, and which there are."""

    def __init__(self, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        self._asked = check_name(name)
        self._known = names = [one for one in known if not is_own(one)]
        self._remedy = hint
        listing = f"{listed(names)}; a topic is created by the first append"
        super().__init__(f"there is no topic {name!r}{meant(name, names)}", hint=hint or listing)

    def shown_to(self, sees: Callable[[str], bool]) -> NoTopic:
        """The same for a caller that may not know of all topics."""
        return NoTopic(self._asked, filter(sees, self._known), hint=self._remedy)


def no_topic(name: str, known: Iterable[str]) -> NoTopic:
    """The error for a topic that is not there."""
    return NoTopic(name, known)


def partitions_of(journal: Journal, topics: Names) -> list[Partition]:
    """The partitions of these topics, or of all; NotFound where there is no such topic."""
    journal.find_topics()
    known = journal.topics
    for name in topics or ():
        if check_name(name) not in known:
            raise no_topic(name, known)
    return [part for name in (known if topics is None else topics) for part in known[name]]


class Partitions:
    """The partitions of one topic, and where they are read."""

    def __init__(self, topic: str, parts: tuple[Partition, ...], source: TopicSource) -> None:
        self.topic = topic
        self.parts = parts
        self.only = parts[0] if len(parts) == 1 else None
        self.source = source
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

    def spans(
        self, partition: int | Iterable[int] | None, start: int | str | None, end: int | str | None
    ) -> list[Span]:
        """What is durable now between a start and an end, by partition."""
        starts, ends = _positions(start), _positions(end)
        spans = []
        for part in self.wanted(partition):
            durable = part.durable
            first = _start(starts, part, durable)
            last = durable if ends is None else min(durable, _place(ends, part, durable))
            spans.append(Span(self.source.stream(part), first, max(first, last)))
        return spans

    def positions(self, partition: int | Iterable[int] | None, start: int | str | None) -> dict[Partition, int]:
        """Where to begin, by partition; without a start, behind what is durable now."""
        at = _positions(start)
        return {part: part.durable if at is None else _place(at, part, part.durable) for part in self.wanted(partition)}


def _positions(at: int | str | None) -> int | Mapping[int, int] | None:
    return parse_position(at) if isinstance(at, str) else None if at is None else whole(at, "an offset")


def _start(at: int | Mapping[int, int] | None, part: Partition, durable: int) -> int:
    """Where to begin: at the first record that is left, unless the caller says otherwise."""
    if at is None or (isinstance(at, Mapping) and part.number not in at):
        return min(durable, part.sealed.first_offset)
    return _place(at, part, durable)


def _place(at: int | Mapping[int, int], part: Partition, durable: int) -> int:
    if isinstance(at, Mapping):
        return at.get(part.number, durable)
    return max(part.sealed.first_offset, durable + at) if at < 0 else at
