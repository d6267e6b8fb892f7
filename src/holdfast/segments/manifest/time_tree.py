"""Which segments hold records of a time range, without looking at all of them.

Times are given by users and need not grow, so no search by halves finds them. Instead the manifest is its own tree:
beside its own range, row n holds the range (`low`, `high`) over itself and all rows below it. The rows are complete
binary trees in post-order: a row joins the two newest trees when they are of one size, and is a leaf otherwise.

                6
            ┌───┴───┐
            2       5                   n        0   1   2   3   4   5   6   7
          ┌─┴─┐   ┌─┴─┐                 covers   0   1  0–2  3   4  3–5 0–6  7
          0   1   3   4   7

A row has two children or none, so sealing reads at most two rows, and each step of a search at most two more. Where
times grow, a match that stands alone costs O(log n) rows: at 1 000 000 rows 44 at most, measured. (A Fenwick tree, with
up to log n children to a row, takes 197 there.) Where old and new times are mixed, ranges are wide and exclude less: a
window that falls between the times of neighbours can cost every row.

A row is made from rows before it and never changes, so the tree is as durable as the manifest and needs no repair.
Removing a segment's file leaves its row; the ranges above it are then wider than needed, never too narrow.

Nothing here reads: rows come from the caller's `fetch`. A range that contradicts the one above it would hide
segments, so where two rows meet they are compared, and damage is Corrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from holdfast.errors import Corrupt, Invalid


class TimeNode(NamedTuple):
    """What a manifest row says about time: its segment's range, and the range of all that it covers."""

    number: int
    time_min: int
    time_max: int
    low: int
    high: int


def span_of(number: int) -> int:
    """How many segments row `number` covers, itself the last.

    >>> [span_of(number) for number in range(15)]
    [1, 1, 3, 1, 1, 3, 7, 1, 1, 3, 1, 1, 3, 7, 15]
    """
    place = number + 1
    while True:
        size = (1 << place.bit_length()) - 1
        if size == place:
            return size
        place -= size >> 1  # it is in the right one of two equal trees: look at the same place in the left one


def children(number: int) -> tuple[int, ...]:
    """The rows whose ranges, with the segment's own, make up the range of row `number`; newest first.

    >>> children(6), children(7)
    ((5, 2), ())
    """
    half = span_of(number) // 2
    return (number - 1, number - 1 - half) if half else ()


def combine(own: tuple[int, int], children: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The (low, high) of a row, from its segment's range and those of its children.

    >>> combine((5, 6), [(1, 2), (4, 9)])
    (1, 9)
    """
    low, high = own
    for child_low, child_high in children:
        low, high = min(low, child_low), max(high, child_high)
    return low, high


def overlapping(
    first: int,
    last: int,
    since: int | None,
    until: int | None,
    fetch: Callable[[int], TimeNode],
    *,
    reverse: bool = False,
) -> Iterator[TimeNode]:
    """The segments `first` to `last` whose times meet [since, until], both ends included, None an open end.

    Ascending, or descending with `reverse`. Rows are fetched when they are needed and none twice. Where times
    grow, n segments cost about log n to begin with and 2 log n for a match that stands alone; neighbours share the way.
    """
    if first < 0:
        raise Invalid(f"there is no such segment first={first}", hint="segments are numbered from 0")
    return _Search(first, last, since, until, fetch, reverse).run()


class _Search(NamedTuple):
    first: int
    last: int
    since: int | None
    until: int | None
    fetch: Callable[[int], TimeNode]
    reverse: bool

    def run(self) -> Iterator[TimeNode]:
        if self.since is not None and self.until is not None and self.since > self.until:
            return
        for number in self._ordered(self._roots()):
            yield from self._below(number, None)

    def _roots(self) -> list[int]:
        """The rows that cover all numbers up to the last, newest first, without those that end before the first."""
        roots = []
        number = self.last
        while number >= self.first:
            roots.append(number)
            number -= span_of(number)
        return roots

    def _below(self, number: int, above: TimeNode | None) -> Iterator[TimeNode]:
        node = self._checked(self.fetch(number), number, above)
        if not self._meets(node.low, node.high):
            return
        matches = self._meets(node.time_min, node.time_max)
        if matches and self.reverse:
            yield node
        for child in self._ordered([child for child in children(number) if child >= self.first]):
            yield from self._below(child, node)
        if matches and not self.reverse:
            yield node

    def _ordered(self, newest_first: list[int]) -> list[int]:
        return newest_first if self.reverse else newest_first[::-1]

    def _meets(self, low: int, high: int) -> bool:
        return (self.until is None or low <= self.until) and (self.since is None or high >= self.since)

    def _checked(self, node: TimeNode, number: int, above: TimeNode | None) -> TimeNode:
        if node.number != number:
            raise Corrupt(f"the manifest returned another row number={node.number} wanted={number}")
        within = node.low <= node.time_min <= node.time_max <= node.high
        if not within or (above is not None and not above.low <= node.low <= node.high <= above.high):
            raise Corrupt(f"the time range of a manifest row contradicts the rows it covers number={number}")
        return node
