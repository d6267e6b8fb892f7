"""What a segment is: its head, known before it is written, and its facts, known after. The one shape of it.

A segment is stored as a row of the database, as a manifest object and in the footer of its file; each of those forms
says how it is made from a segment and back. Anything else that is about a segment holds one.

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

NO_CONTENT = bytes(32)
"""The content of a filler: a rebuild puts one where a segment's file had expired or was lost."""


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
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


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
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


class Segment(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A finished segment."""

    head: SegmentHead
    facts: SegmentFacts

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return self.head.first + self.facts.rows

    @property
    def chain(self) -> bytes:
        """Its chain value."""
        return chain_value(self.head, self.facts.rows, self.facts.content)


def chain_value(head: SegmentHead, rows: int, content: bytes) -> bytes:
    """The segment's place in the chain of its partition."""
    return chain_link(head.previous, head.log_id, head.topic, head.partition, head.number, head.first, rows, content)


def chain_link(
    previous: bytes, log_id: bytes, topic: str, partition: int, number: int, first: int, rows: int, content: bytes
) -> bytes:
    """The same without a head, to prove a million of them."""
    message = digests.canonical("segment", previous, log_id, topic, partition, number, first, rows, content)
    return blake3(message, derive_key_context="holdfast 1 segment chain").digest()


class StoredFile(NamedTuple):
    """A file that is there."""

    name: str
    bytes: int
