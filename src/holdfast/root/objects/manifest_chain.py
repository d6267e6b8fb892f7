"""What the manifest objects of one partition must be, taken together: the proof that everybody who reads them asks for.

Objects fill slots 0, 1, 2 … without a hole. A segment's object names the chain value before it and its own, which
covers its place, span and content: an object that was changed, moved, left out or put back does not fit its neighbours.
The start of an ownership stands between two segments and names the next one.

Values are bounded here as well, so the numbers and hashes of a proved manifest can be used as they are. Anything wrong
is `Corrupt` with the object's key. Values only; nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.model.segment import NO_CHAIN, chain_link
from holdfast.root.objects.documents import ManifestDocument, SegmentDocument, StartDocument
from holdfast.store import layout

HASHES = {"sha256": 32, "content": 32, "footer": 16, "previous": 32, "chain": 32, "schema": 16}
"""The hashes of a segment, with their lengths in bytes; hex in the documents."""
_NUMBER_MAX = 2**62
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1
_hashes_of = attrgetter(*HASHES)
_HASH_DIGITS = tuple(2 * size for size in HASHES.values())
_DIGITS = re.compile("[0-9a-f]*")


class ChainLink(NamedTuple):
    """Where manifest objects go on: what the next segment must say of itself."""

    number: int
    first: int | None
    """None before the first segment, which may begin anywhere."""
    previous: str
    """The chain value before it."""


def prove(
    found: Sequence[ManifestDocument], log: str, topic: str, partition: int, proved: int = 0, *, values: bool = True
) -> None:
    """Check that manifest objects are one partition's, whole, and in one chain; the first `proved` are known to be.

    Without `values` only the order is checked: every object follows from the one before, whatever else it says.
    """
    prove_following(found[proved:], log, topic, partition, proved, _behind(found, proved), values=values)


def prove_following(
    found: Sequence[ManifestDocument],
    log: str,
    topic: str,
    partition: int,
    start: int,
    link: ChainLink,
    *,
    values: bool = True,
) -> None:
    """The same for objects from slot `start` on, where all that is known of those before them is how they end."""
    number, end, chain = link
    for slot, document in enumerate(found, start):
        if document.slot != slot:
            raise _corrupt("a manifest object is missing", topic, partition, slot, end)
        if (document.log, document.topic, document.partition) != (log, topic, partition):
            raise _corrupt("a manifest object belongs elsewhere", topic, partition, slot, None)
        if document.number != number or (document.first < 0 if end is None else document.first != end):
            raise _corrupt("a manifest object is out of place", topic, partition, slot, end)
        if values and not is_sound(document):
            raise _corrupt("a manifest object says what cannot be", topic, partition, slot, end)
        if isinstance(document, StartDocument):
            continue
        if document.previous != chain or document.rows < 1 or (values and not is_linked(document)):
            raise _corrupt(
                "a manifest object does not follow the one before it", topic, partition, slot, document.first
            )
        number, end, chain = number + 1, document.end, document.chain


def are_numbers(*values: int) -> bool:
    """Whether these can be offsets, sizes or counts."""
    return all(0 <= value < _NUMBER_MAX for value in values)


def _behind(found: Sequence[ManifestDocument], proved: int) -> ChainLink:
    """What must come after the proved ones."""
    for slot in range(proved - 1, -1, -1):
        last = found[slot]
        if isinstance(last, SegmentDocument):
            return ChainLink(last.number + 1, last.end, last.chain)
    return ChainLink(0, None, NO_CHAIN.hex())


def _corrupt(message: str, topic: str, partition: int, slot: int, offset: int | None) -> Corrupt:
    key = layout.manifest_key(topic, partition, slot)
    return Corrupt(message, path=key, topic=topic, partition=partition, offset=offset)


def is_sound(document: ManifestDocument) -> bool:
    """Whether every value of a manifest object is one that we would write."""
    numbers = (document.partition, document.number, document.first, document.epoch)
    if isinstance(document, StartDocument):
        return are_numbers(*numbers, document.adopted_seq)
    times = (document.time_min, document.time_max, document.sealed_us)
    return (
        are_numbers(*numbers, document.size, document.end)
        and document.rows >= 1
        and all(_TIME_MIN <= time <= _TIME_MAX for time in times)
        and _are_hashes(document)
    )


def _are_hashes(document: SegmentDocument) -> bool:
    """Check all hashes of a segment at once: there are many segments."""
    values = _hashes_of(document)
    return tuple(map(len, values)) == _HASH_DIGITS and _DIGITS.fullmatch("".join(values)) is not None


def is_linked(document: SegmentDocument) -> bool:
    """Whether a segment's chain value is that of its place, span and content; fillers have none of their own."""
    if document.is_filler:
        return True
    unhex = bytes.fromhex
    value = chain_link(
        unhex(document.previous),
        unhex(document.log),
        document.topic,
        document.partition,
        document.number,
        document.first,
        document.rows,
        unhex(document.content),
    )
    return value.hex() == document.chain
