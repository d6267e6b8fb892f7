"""What a table has and what it should have, in values that belong to no table format.

A *cursor* says how much of a partition a table shows: manifest objects up to a slot, without what was expired by then,
with so many rewrites applied. Manifest objects, expiries and rewrites never change, so a cursor stands for one set of
files forever: nobody has to read a table to know what is in it. A *change* leads from one cursor to the next.

Rows are added and retired in changes of one kind, rewritten in changes of another: a stream that follows the table
reads the first and skips the second, and sees every row once. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.model.segment import NO_CHAIN
from holdfast.root.objects.documents import RewriteDocument, SegmentDocument
from holdfast.root.objects.manifest_chain import ChainLink, are_numbers
from holdfast.root.rewrites import InEffect, in_effect

_CHAIN_DIGITS = 2 * len(NO_CHAIN)


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How much of a partition a table shows."""

    slot: int = -1
    """The last manifest object."""
    number: int = 0
    """Segments up to there, retired ones included."""
    settled: int = -1
    """The offset behind the last of them; -1 before the first."""
    chain: str = NO_CHAIN.hex()
    expired: int = 0
    """Segments below this number are not shown."""
    rewrites: int = 0
    """Rewrites that are applied."""

    @property
    def link(self) -> ChainLink:
        """What the next manifest object must say."""
        return ChainLink(self.number, None if self.settled < 0 else self.settled, self.chain)

    @property
    def is_sound(self) -> bool:
        """Whether these can be the values of a cursor; they come from outside."""
        numbers = (self.slot + 1, self.number, self.settled + 1, self.expired, self.rewrites)
        return are_numbers(*numbers) and self.number <= self.slot + 1 and len(self.chain) == _CHAIN_DIGITS


class PartitionChange(NamedTuple):
    """From one cursor of a partition to another."""

    partition: int
    after: Cursor
    added: tuple[InEffect, ...]
    removed: tuple[InEffect, ...]
    is_rewrite: bool
    """Whether the rows are the same before and after."""


def shown(segments: Sequence[SegmentDocument], rewrites: Sequence[RewriteDocument], cursor: Cursor) -> list[InEffect]:
    """The files that a table shows at a cursor, by offset; raises Corrupt if a rewrite does not fit.

    `segments` and `rewrites` may go on behind the cursor. A segment whose file was lost has none that could be shown.
    """
    files = in_effect(segments[: cursor.number], rewrites[: cursor.rewrites])
    return [file for file in files if file.upto > cursor.expired and not file.segment.is_filler]


def difference(
    partition: int, before: Sequence[InEffect], files: Sequence[InEffect], after: Cursor, *, is_rewrite: bool
) -> PartitionChange:
    """What leads from some files to others."""
    old, new = {file.segment.key for file in before}, {file.segment.key for file in files}
    added = tuple(file for file in files if file.segment.key not in old)
    removed = tuple(file for file in before if file.segment.key not in new)
    return PartitionChange(partition, after, added, removed, is_rewrite)
