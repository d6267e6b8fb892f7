"""What a transaction's appends give at once: places whose receipts are there once the block has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from holdfast.journal.journal_port import Run
from holdfast.journal.queue.receipts import Receipts
from holdfast.model.record import Receipt

Check: TypeAlias = Callable[[], None]
"""Raises unless the transaction is known to be durable."""


class Pending:
    """One record of a transaction; `receipt` tells where it is, after the block."""

    __slots__ = ("_check", "_index", "_run")

    def __init__(self, check: Check, run: Run, index: int) -> None:
        self._check = check
        self._run = run
        self._index = index

    @property
    def receipt(self) -> Receipt:
        """The record's receipt. Invalid before the transaction has ended, and what became of it if it failed."""
        self._check()
        return self._run.receipt(self._index)

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The same, as the only one of a sequence."""
        return (self.receipt,)

    def __repr__(self) -> str:
        return f"Pending({self._run.partition.topic!r})"


class PendingBatch:
    """Several records of a transaction; `receipts` tells where they are, after the block."""

    __slots__ = ("_check", "_receipts")

    def __init__(self, check: Check, runs: Sequence[Run], positions: Sequence[int], starts: Sequence[int]) -> None:
        self._check = check
        self._receipts = Receipts(runs, positions, starts)

    @property
    def receipts(self) -> Sequence[Receipt]:
        """One receipt per record, in the order in which they were given; for the rest see `Pending`."""
        self._check()
        return self._receipts

    def __repr__(self) -> str:
        return f"PendingBatch({self._receipts.runs[0].partition.topic!r}, records={len(self._receipts)})"
