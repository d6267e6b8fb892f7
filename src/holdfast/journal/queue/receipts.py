"""The receipts of a batch: one per record, in the order in which they were given, made on access."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

from holdfast.journal.queue.group import Run
from holdfast.model.record import Receipt


class Receipts(Sequence[Receipt]):
    """Receipts of records in one partition or in several; those of one partition have consecutive offsets."""

    __slots__ = ("_positions", "_starts", "runs")

    def __init__(self, runs: Sequence[Run], positions: Sequence[int], starts: Sequence[int] = (0,)) -> None:
        self.runs = runs
        """One for each partition."""
        self._positions = positions
        """Where each record stands, when the runs stand one behind the other …"""
        self._starts = starts
        """… and where each run begins there."""

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._receipt(position) for position in self._positions[index]]
        return self._receipt(self._positions[index])

    def _receipt(self, position: int) -> Receipt:
        part = bisect_right(self._starts, position) - 1
        return self.runs[part].receipt(position - self._starts[part])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Receipts({self.runs[0].partition.topic!r}, partitions={len(self.runs)}, records={len(self)})"
