"""A partition's manifest, rebuilt from what its segment files say about themselves. Pure: values in, rows out.

Files prove themselves (footer, chain, content), so all that is left to decide is which of them follow each other. Where
two have the same number, the one that the next file names as its predecessor is right; for the newest one it is the
longest. What came before the first file has expired; a hole between two files is lost, and so is what the journal knew
beyond the last one: rows of their own say so, and no offset is given away twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.model.control_rows import EXPIRED, LIVE, LOST, SegmentRow
from holdfast.model.segment import NO_CHAIN, NO_CONTENT, NO_SCHEMA, Segment, SegmentHead
from holdfast.segments.manifest import time_tree

_EARLIEST, _LATEST = -(2**63), 2**63 - 1
_NEVER, _ANY_TIME = (_LATEST, _EARLIEST), (_EARLIEST, _LATEST)
"""Time ranges: of what has expired (no query meets it) and of what is lost (every query does)."""


class SegmentFound(NamedTuple):
    """A segment file that proved itself."""

    segment: Segment
    sealed_us: int
    columns: object = None
    """Of a typed topic: the user's columns, an Arrow schema; not looked at here."""
    codec: str = ""
    """Of a raw topic."""
    is_expired: bool = False
    """Whether only its place in the chain is left."""

    @property
    def head(self) -> SegmentHead:
        """Where it belongs."""
        return self.segment.head


class PartitionPlan(NamedTuple):
    """The rows of one partition, and what is lost of it as (first offset, records)."""

    rows: list[SegmentRow]
    lost: list[tuple[int, int]]
    unused: list[SegmentFound]
    """Files that belong nowhere: reconciliation will report them."""


def plan(partition_id: int, found: Iterable[SegmentFound], durable: int | None, first_offset: int = 0) -> PartitionPlan:
    """The manifest of a partition; `durable` is where the journal's head was, if that is known.

    `first_offset` is where a partition begins of which no file is left: what came before never was, or has expired.
    """
    chosen, unused = choose(found)
    rows: list[SegmentRow] = []
    lost: list[tuple[int, int]] = []
    at, chain = first_offset, NO_CHAIN
    if not chosen and first_offset:
        rows += _fill(partition_id, 0, 1, 0, first_offset, EXPIRED, None)
    for file in chosen:
        head = file.head
        missing = head.number - len(rows)
        if not rows:  # where segment 0 begins, the partition does
            rows += _fill(partition_id, 0, missing, 0, head.first, EXPIRED, head.previous)
        elif missing or head.first > at:
            rows += _fill(partition_id, len(rows), missing, at, head.first, LOST, head.previous)
            lost.append((at, head.first - at))
        state = EXPIRED if file.is_expired else LIVE
        row = SegmentRow.of(file.segment, partition_id=partition_id, sealed_us=file.sealed_us, state=state)
        rows.append(row)
        at, chain = row.end, row.chain
    if durable is not None and durable > at:
        rows += _fill(partition_id, len(rows), 1, at, durable, LOST, None, chain)
        lost.append((at, durable - at))
    return PartitionPlan(list(with_tree(rows)), lost, unused)


def choose(found: Iterable[SegmentFound]) -> tuple[list[SegmentFound], list[SegmentFound]]:
    """One file per number, each following the one before it where that is there; and the rest."""
    by_number: dict[int, list[SegmentFound]] = {}
    for file in found:
        by_number.setdefault(file.head.number, []).append(file)
    chosen: list[SegmentFound] = []
    unused: list[SegmentFound] = []
    wanted: bytes | None = None
    below = _LATEST
    for number in sorted(by_number, reverse=True):
        files = sorted(by_number[number], key=_longest, reverse=True)
        fitting = [file for file in files if _fits(file.segment, wanted, below)]
        if not fitting:
            unused += files
            wanted = None
            continue
        chosen.append(fitting[0])
        unused += [file for file in files if file is not fitting[0]]
        below = fitting[0].head.first
        wanted = fitting[0].head.previous if number - 1 in by_number else None
    return chosen[::-1], unused


def _longest(file: SegmentFound) -> tuple[int, bytes]:
    return file.segment.facts.rows, file.segment.facts.sha256


def _fits(segment: Segment, wanted: bytes | None, below: int) -> bool:
    return segment.end <= below and (wanted is None or segment.chain == wanted)


def _fill(
    partition_id: int,
    number: int,
    count: int,
    start: int,
    end: int,
    state: int,
    last_chain: bytes | None,
    own_chain: bytes = NO_CHAIN,
) -> list[SegmentRow]:
    """`count` rows without files that cover start..end; where one segment ended and the next began, nobody knows."""
    low, high = _NEVER if state == EXPIRED else _ANY_TIME
    rows = []
    for index in range(count):
        first = start + index
        rest = 1 if index < count - 1 else end - first
        chain = last_chain if last_chain is not None and index == count - 1 else own_chain
        filler = SegmentRow(
            partition_id=partition_id,
            number=number + index,
            first_offset=first,
            rows=rest,
            size=0,
            time_min=low,
            time_max=high,
            low=0,
            high=0,
            sha256=bytes(32),
            content=NO_CONTENT,
            footer=bytes(16),
            chain=chain,
            schema=NO_SCHEMA,
            key_id="",
            epoch=0,
            sealed_us=0,
            state=state,
            key_epoch=0,
            stamp=b"",
        )
        rows.append(filler)
    return rows


def with_tree(rows: list[SegmentRow]) -> Iterator[SegmentRow]:
    """Rows with the time ranges by which they are found."""
    ranges: list[tuple[int, int]] = []
    for row in rows:
        below = [ranges[child] for child in time_tree.children(row.number)]
        low, high = time_tree.combine((row.time_min, row.time_max), below)
        ranges.append((low, high))
        yield row._replace(low=low, high=high)
