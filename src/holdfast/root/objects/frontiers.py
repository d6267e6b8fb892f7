"""How far a log was settled, in its own words: one object for all partitions, compared with what exists.

Manifest objects say what is settled. Where the newest of them are lost, what is left looks like a root that never got
further. So their writer also records how far they have come, after the store has acknowledged them. A frontier is read
before the manifests: it never claims more than they had then, and they are never removed. So whatever is missing behind
it is lost.

The frontier of the highest epoch counts, and of that the highest number. A takeover writes one of its own, which may
say less: then a loss was accepted. The topics of sinks are in none. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.errors import Corrupt, NotFound, Unavailable
from holdfast.root.objects import documents
from holdfast.root.objects.documents import FrontierDocument
from holdfast.store import layout
from holdfast.store.port import Store

_LOOKS = 8

Where = tuple[str, int]


class Behind(NamedTuple):
    """A partition that ends before what was settled."""

    topic: str
    partition: int
    there: int
    """Where it ends."""
    settled: int
    """Where it ended once."""

    def __str__(self) -> str:
        return f"topic={self.topic} partition={self.partition} there={self.there} settled={self.settled}"


def newest_frontier(
    store: Store, log: str, known: FrontierDocument | None = None, *, without: int = 0
) -> FrontierDocument | None:
    """The newest frontier, proved; None where there is none.

    `known` is the newest that was seen before; those of the epoch `without` do not count.
    """
    after = None if known is None else key_of(known)
    for _ in range(_LOOKS):
        keys = [key for key in frontier_keys(store, after) if not without or _epoch(key) != without]
        if not keys:
            return known
        try:
            return proved_frontier(store, log, keys[-1])
        except NotFound:
            continue  # a newer one has taken its place
    raise Unavailable(f"the store changes faster than it can be read store={store.url}", hint="read it again")


def proved_frontier(store: Store, log: str, key: str) -> FrontierDocument:
    """What stands under this key, proved."""
    return _proved(store.get(key), key, log)


def frontier_keys(store: Store, after: str | None = None) -> list[str]:
    """The keys of all frontiers, the newest last."""
    return [info.key for info in store.list(layout.FRONTIERS, after) if layout.parse_frontier_key(info.key)]


def _epoch(key: str) -> int:
    found = layout.parse_frontier_key(key)
    return found[0] if found else 0


def key_of(frontier: FrontierDocument) -> str:
    """Where a frontier stands."""
    return layout.frontier_key(frontier.epoch, frontier.number)


def settled_of(frontier: FrontierDocument | None) -> dict[Where, int]:
    """What it says, by partition."""
    topics = {} if frontier is None else frontier.settled
    return {(topic, int(number)): end for topic, ends in topics.items() for number, end in ends.items()}


def said_by(settled: Iterable[tuple[str, int, int]]) -> dict[str, dict[str, int]]:
    """How a frontier says topics, partitions and ends; equal ends are equal text."""
    said: dict[str, dict[str, int]] = {}
    for topic, partition, end in sorted(settled):
        said.setdefault(topic, {})[str(partition)] = end
    return said


def behind(frontier: FrontierDocument | None, there: Mapping[Where, int]) -> tuple[Behind, ...]:
    """The partitions that end before what was settled; `there` says where they end, and lacks those that are gone."""
    said = sorted(settled_of(frontier).items())
    return tuple(Behind(*where, there.get(where, 0), end) for where, end in said if there.get(where, 0) < end)


def missing(found: Behind, store: Store, hint: str) -> Corrupt:
    """What to say about a partition that is behind."""
    return Corrupt(
        f"records that were settled are missing {found} store={store.url}",
        path=layout.manifest_folder(found.topic, found.partition),
        topic=found.topic,
        partition=found.partition,
        offset=found.there,
        hint=hint,
    )


def absent(hint: str) -> Corrupt:
    """What to say where a log has topics and no frontier: it wrote one before them, and it was removed."""
    return Corrupt("there is no frontier: missing objects cannot be detected", path=layout.FRONTIERS, hint=hint)


def _proved(data: bytes, key: str, log: str) -> FrontierDocument:
    frontier = documents.decode(data, key, FrontierDocument)
    if (frontier.log, key_of(frontier)) != (log, key):
        raise Corrupt("a frontier belongs elsewhere", path=key)
    for ends in frontier.settled.values():
        if not all(_is_number(number) and 0 < end < 2**62 for number, end in ends.items()):
            raise Corrupt("a frontier says what cannot be", path=key)
    first, last = frontier.key_span or (1, 1)
    if not 0 < first <= last < 2**62:
        raise Corrupt("a frontier says what cannot be", path=key)
    return frontier


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text
