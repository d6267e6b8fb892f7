"""The receipts of rows that one append spread over several partitions: one per row, made when they are looked at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

from holdfast.journal.commit.group import Run
from holdfast.model.record import Receipt


class Spread(Sequence[Receipt]):
    """Receipts in the order in which the rows were given. Rows of one partition have consecutive offsets."""

    __slots__ = ("_positions", "_starts", "runs")

    def __init__(self, runs: Sequence[Run], starts: Sequence[int], positions: Sequence[int]) -> None:
        self.runs = runs
        """One for each partition."""
        self._starts = starts
        """Where the rows of each run begin, when all of them stand one behind the other …"""
        self._positions = positions
        """… and where each row stands there."""

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        position = self._positions[range(len(self))[index]]
        part = bisect_right(self._starts, position) - 1
        return self.runs[part].receipt(position - self._starts[part])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Receipts({self.runs[0].partition.topic!r}, partitions={len(self.runs)}, rows={len(self)})"
