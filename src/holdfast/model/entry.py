"""An entry: one journal row, its header byte by byte, and the proof that it is where and what it was.

The header names the entry's place: log, topic, partition, offsets, commit, key epoch, kind, times, and the
digest of the partition's entry before it. It is not stored as such; reader and writer rebuild it from the
row's columns. It is what an encrypted body is bound to (associated data) and what the digest covers, so a row
cannot be moved, swapped, relabelled, reordered or replayed without being found (docs/formats/0002-entry.md).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from holdfast.crypto import digests

FORMAT_VERSION = 1
RAW, TYPED, PLAIN_CODEC = 1, 2, 0
"""Entry kinds: raw records, rows of a typed topic; codec of a frame that is not compressed."""

KINDS = frozenset({RAW, TYPED})
CODECS = frozenset({PLAIN_CODEC})
NO_SCHEMA = bytes(16)

_PREFIX = struct.Struct("<3sB16sIH")
_HEADER = struct.Struct("<IQQQIBB16sqq16s")


class Entry(NamedTuple):
    """A row of the table `entries`, in the order of its columns."""

    seq: int
    partition_id: int
    first: int
    count: int  # type: ignore[assignment]  # the column's name; nobody counts values in a row
    group_number: int
    kind: int
    codec: int
    key_epoch: int
    time_min: int
    time_max: int
    link: bytes
    digest: bytes
    body: bytes
    schema: bytes = b""
    """Fingerprint of the schema of a typed entry; empty for raw records."""


class GroupFileEntry(NamedTuple):
    """An entry whose body lies in a file of groups: its columns, and the place of the body."""

    seq: int
    partition_id: int
    first: int
    count: int  # type: ignore[assignment]  # as in `Entry`
    group_number: int
    kind: int
    codec: int
    key_epoch: int
    time_min: int
    time_max: int
    link: bytes
    digest: bytes
    schema: bytes
    file: int
    """The file's number."""
    position: int
    size: int

    def entry(self, body: bytes) -> Entry:
        """The entry with its body."""
        return Entry(*self[:12], body, self.schema)


class Place:
    """Where all entries of one partition belong: what their headers have in common."""

    __slots__ = ("prefix",)

    def __init__(self, log_id: bytes, topic: str, partition: int) -> None:
        name = topic.encode()
        self.prefix = _PREFIX.pack(b"hfe", FORMAT_VERSION, log_id, partition, len(name)) + name


def header(
    place: Place,
    seq: int,
    first: int,
    count: int,
    group_number: int,
    kind: int,
    codec: int,
    key_epoch: int,
    time_min: int,
    time_max: int,
    link: bytes,
    schema: bytes = b"",
) -> bytes:
    """The bytes that say where an entry belongs; body and digest are not part of them."""
    return place.prefix + _HEADER.pack(
        key_epoch, seq, group_number, first, count, kind, codec, schema or NO_SCHEMA, time_min, time_max, link
    )


def header_of(place: Place, entry: Entry) -> bytes:
    """The header of a stored entry."""
    return header(place, entry.seq, *entry[2:11], entry.schema)


def is_whole(place: Place, entry: Entry) -> bool:
    """Whether the stored bytes are those that were written, here."""
    if len(entry.link) != digests.DIGEST_BYTES or len(entry.schema) not in (0, len(NO_SCHEMA)):
        return False  # struct would cut or pad it in silence
    try:
        return digests.same(digests.digest(header_of(place, entry), entry.body), entry.digest)
    except struct.error:  # a column beyond its range: never written by us
        return False
