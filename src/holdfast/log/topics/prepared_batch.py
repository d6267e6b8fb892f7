"""A batch that was checked and encoded: which records go to which partitions, and where each will be found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, EncodedRows


class PreparedBatch(NamedTuple):
    """Ready to be queued, alone or in a transaction."""

    parts: Sequence[tuple[Partition, Columns | EncodedRows]]
    size: int
    positions: Sequence[int]
    """Where each record stands when the parts stand one behind the other, in the order in which they were given …"""
    starts: Sequence[int] = (0,)
    """… and where each part begins there."""
