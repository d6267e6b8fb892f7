"""An entry: one journal row, its header byte by byte, and the proof that it is where and what it was.

The header names the entry's place: log, topic, partition, offsets, commit, key epoch, kind, times, and the
digest of the partition's entry before it. It is not stored as such; reader and writer rebuild it from the
row's columns. It is what a sealed body is bound to (associated data) and what the digest covers, so a row
cannot be moved, swapped, relabelled, reordered or replayed without being found (docs/formats/0002-entry.md).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from holdfast.crypto import chain

FORMAT_VERSION = 1
RAW, PLAIN_CODEC = 1, 0
"""Entry kind of raw records; codec of a frame that is not compressed."""

KINDS = frozenset({RAW})
CODECS = frozenset({PLAIN_CODEC})
NO_SCHEMA = bytes(16)

_HEADER = struct.Struct("<3sB16sIQQIQIBB16sqq16sH")


class Entry(NamedTuple):
    """A row of the table `entries`, in the order of its columns."""

    seq: int
    partition_id: int
    first: int
    count: int
    group_number: int
    kind: int
    codec: int
    key_epoch: int
    time_min: int
    time_max: int
    link: bytes
    digest: bytes
    body: bytes


class Place(NamedTuple):
    """What all entries of one partition share in their headers."""

    log_id: bytes
    topic: bytes
    partition: int


def header(place: Place, entry: Entry) -> bytes:
    """The bytes that say where an entry belongs; body and digest are not part of them."""
    return (
        _HEADER.pack(
            b"hfe",
            FORMAT_VERSION,
            place.log_id,
            entry.key_epoch,
            entry.seq,
            entry.group_number,
            place.partition,
            entry.first,
            entry.count,
            entry.kind,
            entry.codec,
            NO_SCHEMA,
            entry.time_min,
            entry.time_max,
            entry.link,
            len(place.topic),
        )
        + place.topic
    )


def is_whole(place: Place, entry: Entry) -> bool:
    """Whether the stored bytes are those that were written, here."""
    if len(entry.link) != chain.DIGEST_BYTES:  # struct would cut or pad it in silence
        return False
    try:
        return chain.same(chain.digest(header(place, entry), entry.body), entry.digest)
    except struct.error:  # a column beyond its range: never written by us
        return False
