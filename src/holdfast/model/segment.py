"""What a segment is: its place, known before it is written, and the facts, known after.

`chain(i)` binds each segment to the one before it: log, place, span and content. Content is a digest over the
stored columns, not over Parquet's encoding of them, so it survives a rewrite; `sha256` is the file's own, for
transport. Values only; nothing here needs Arrow.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from blake3 import blake3

from holdfast.crypto import digests

NO_CHAIN = bytes(32)
"""The chain value before a partition's first segment."""

NO_SCHEMA = bytes(16)
"""The schema fingerprint of raw records."""


class SegmentHead(msgspec.Struct, frozen=True):
    """Where a segment belongs: everything that is known before its first row is written."""

    log_id: bytes
    topic: str
    partition: int
    number: int
    """0, 1, 2 … per partition."""
    first: int
    """The offset of its first record."""
    epoch: int
    """The ownership of the log under which it was sealed."""
    schema: bytes
    """Fingerprint of the typed topic's schema (16 bytes); NO_SCHEMA for raw records."""
    previous: bytes
    """The chain value of the segment before (32 bytes); NO_CHAIN for the first."""


class SegmentFacts(msgspec.Struct, frozen=True):
    """What a finished segment is: everything that the manifest says beyond its head."""

    rows: int
    size: int
    """Size of the file."""
    time_min: int
    time_max: int
    """Range of the records' times, in microseconds."""
    sha256: bytes
    """Of the file, for transport (32 bytes)."""
    content: bytes
    """Digest over the stored columns (32 bytes)."""
    footer: bytes
    """BLAKE3 of the file's footer (16 bytes), which holds the hashes of all blocks of the file."""
    key_id: str
    """The key that encrypted it; empty when it is plain."""


def chain_value(head: SegmentHead, rows: int, content: bytes) -> bytes:
    """The segment's place in the chain of its partition."""
    message = digests.canonical(
        "segment", head.previous, head.log_id, head.topic, head.partition, head.number, head.first, rows, content
    )
    return blake3(message, derive_key_context="holdfast 1 segment chain").digest()


class Listed(NamedTuple):
    """A file that is there."""

    name: str
    bytes: int
