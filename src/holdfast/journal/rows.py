"""What a backend stores and how it fails: the rows of each table, with what their stamps cover.

Rows are plain values in the order of their columns. Control rows (all but entries) carry a stamp over the
canonical bytes of everything before it; `holdfast.crypto.vault` makes and verifies stamps.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from holdfast.crypto import chain
from holdfast.crypto.vault import Vault


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can do, for code that must know."""

    name: str
    embedded: bool
    """The journal is a file of this machine, owned by one process."""
    reads_while_owned: bool
    """Another process may read while the owner writes."""


class DiskFailed(Exception):
    """The storage failed in a way after which nothing may be assumed; the writer must stop."""


class LogRow(NamedTuple):
    """The table `log`'s only row."""

    log_id: bytes
    created_us: int
    keyed: int
    epoch: int
    key_epochs: int
    topics: int
    partitions: int
    entries: int
    next_seq: int
    groups: int
    keys: int
    heads: bytes
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return chain.canonical("log", *self[:-1])


class EpochRow(NamedTuple):
    """One ownership of the log."""

    number: int
    opened_us: int
    pid: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return chain.canonical("epochs", *self[:-1])


class TopicRow(NamedTuple):
    """One topic."""

    id: int
    name: str
    partitions: int
    created_us: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return chain.canonical("topics", *self[:-1])


class HeadRow(NamedTuple):
    """One partition's head."""

    partition_id: int
    topic_id: int
    number: int
    next_offset: int
    link: bytes
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return chain.canonical("heads", *self[:-1])


class KeyRow(NamedTuple):
    """One remembered idempotency key."""

    id: int
    hash: bytes
    partition_id: int
    record: int
    seq: int
    key_epoch: int
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers: everything else."""
        return chain.canonical("idempotency", *self[:-1])


Row = TypeVar("Row", LogRow, EpochRow, TopicRow, HeadRow, KeyRow)


def stamped(row: Row, vault: Vault) -> Row:
    """The row with its stamp; whatever stood there before is replaced."""
    return type(row)(*row[:-1], vault.stamp(row.message()))
