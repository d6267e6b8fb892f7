"""How far consumers are, as values: for `log.consumers()`, `log.stats()` and the command line."""

from __future__ import annotations

import msgspec

from holdfast.journal.state.partition import Partition


class ConsumerPartition(msgspec.Struct, frozen=True):
    """One partition of a consumer."""

    partition: int
    first: int
    """The first offset that is left."""
    committed: int
    """The offset behind the last record that is consumed."""
    durable: int
    """The offset behind the last record that is durable."""
    lag: int
    """Records that are there and not consumed."""
    expired: int
    """Records that retention removed before they were consumed."""
    committed_us: int
    """When the position was committed."""


class ConsumerStatus(msgspec.Struct, frozen=True):
    """A consumer of one topic."""

    consumer: str
    """Its name."""
    topic: str
    """The topic that it reads."""
    lag: int
    """Records that are there and not consumed, in all partitions."""
    members: int | None
    """How many members it has in the process that owns the log; None where another one does."""
    retention_waits: bool
    """Whether the topic's retention waits for it."""
    partitions: tuple[ConsumerPartition, ...]
    """How far it is in each."""


class ConsumerStats(msgspec.Struct, frozen=True):
    """All consumers of a log."""

    consumers: int = 0
    """How many there are, counted per topic."""
    members: int = 0
    """How many members they have in this process."""
    lag_records: dict[str, int] = {}
    """By `consumer/topic`: records that are there and not consumed."""


def lag_of(part: Partition, committed: int) -> int:
    """How many records of a partition are there and not consumed; what has expired is not there."""
    return max(0, part.durable - max(committed, part.sealed.first_offset))
