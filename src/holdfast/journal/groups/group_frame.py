"""One group commit as bytes: what a group of plain records changes, with the bodies of its entries behind it.

    108 bytes   magic, length of the control part, number of the group, length of the bodies, salt of the file; digest;
                proof; checksum of the proof
    control     what it follows, and entries without their bodies (msgpack)
    bodies      of the entries, one behind the other
    a gap       up to the next sector, so that no durable frame shares one with a later write; whatever was there stays

The digest covers everything before it and the control part; each body is covered by its entry's own digest. So a frame
that was torn by a power cut is distinguished from a whole one, and nothing is hashed twice. The salt is random and
known to nobody who only appends: a payload cannot pass for a frame.

The proof is a keyed hash of the digest, and the control part names what the frame follows: the proof of the frame
before it, and the stamp of the database's own row where that has the group before it. So frames prove that they are
true and in their order, from a row of the database on, and no row of a group needs a stamp of its own: what the log's
row and the heads become follows from the entries (docs/formats/0013-group-file.md). In a log without keys the proof is
the digest: it finds accidents. Whether a proof is right is checked elsewhere (`proved_groups`): a reader without keys
finds whole frames all the same. The digest cannot cover the proof; its checksum distinguishes a torn one from a wrong
one.

Pure: bytes in, values out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

import msgspec
from blake3 import blake3

from holdfast.model.control_rows import SessionRow
from holdfast.model.entry import Entry, GroupFileEntry, Place, is_whole

SECTOR_BYTES = 512
HEAD_BYTES = 108
"""What a frame has before its control part."""
CONTROL_BYTES_MAX = 64 * 2**20
_MAGIC = b"hfg1"
_HEAD = struct.Struct("<4sIQQ16s")
_DIGEST_BYTES = 32
_CHECKSUM = struct.Struct("<I")
_NUMBERS_END = 2**63
_JOINED_MAX = 2**16
"""Bodies of so many bytes are copied into one buffer: cheaper than a write of many."""


class FramedEntry(NamedTuple):
    """An entry as the control part has it: its columns, where it belongs, and how long its body is."""

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
    schema: bytes
    topic: str
    number: int
    size: int

    def entry(self, body: bytes) -> Entry:
        """The entry with its body."""
        return Entry(*self[:12], body, self.schema)

    def filed(self, file: int, position: int) -> GroupFileEntry:
        """The entry with the place of its body."""
        return GroupFileEntry(*self[:13], file, position, self.size)


class Control(NamedTuple):
    """What a group changes, but for the bodies."""

    key_epoch: int
    """Under which it was proved, and its entries were encrypted."""
    before: bytes
    """The proof of the frame of the group before; empty where that group is in the database alone."""
    base: bytes
    """The stamp of the database's own row, where that had the group before when this one was written; else empty."""
    entries: list[FramedEntry]
    sessions: tuple[SessionRow, ...] = ()
    gone: tuple[bytes, ...] = ()
    """Names of sessions that are forgotten."""
    session_count: int | None = None
    """How many sessions there are then, and what they add up to; None where the group changes none."""
    session_sum: bytes = b""


class FramedSessions(Protocol):
    """What a group changes in sessions."""

    @property
    def rows(self) -> list[SessionRow]: ...  # noqa: D102
    @property
    def gone(self) -> list[bytes]: ...  # noqa: D102
    @property
    def count(self) -> int: ...  # noqa: D102
    @property
    def sum(self) -> bytes: ...  # noqa: D102


class FrameProof(NamedTuple):
    """What proves that a frame is true, and follows the one before it."""

    group: int
    key_epoch: int
    before: bytes
    base: bytes
    digest: bytes
    proof: bytes


class EncodedFrame(NamedTuple):
    """A frame as bytes."""

    buffers: Sequence[bytes | memoryview]
    start: int
    """Where its bodies begin."""
    length: int
    proof: bytes


class FrameHead(NamedTuple):
    """The first bytes of a frame."""

    control_bytes: int
    group: int
    body_bytes: int
    digest: bytes
    proof: bytes
    checksum: bytes
    covered: bytes
    """What the digest covers of them."""

    @property
    def size(self) -> int:
        """How long the frame is, with its padding."""
        return padded(HEAD_BYTES + self.control_bytes + self.body_bytes)


def padded(size: int) -> int:
    """A length rounded up to whole sectors."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Control).decode


def encoded(
    salt: bytes,
    group: int,
    follows: tuple[int, bytes, bytes],
    entries: Sequence[Sequence[object]],
    bodies: Sequence[bytes],
    prove: Callable[[bytes], bytes],
    sessions: FramedSessions | None = None,
) -> EncodedFrame:
    """A frame as it is written.

    `follows` is the key epoch, the proof of the frame before and the stamp of the database's row, as `Control` has
    them; entries have the columns of `FramedEntry`.
    """
    body_bytes = sum(map(len, bodies))
    if sessions is None:
        control = _encode((*follows, entries))
    else:
        control = _encode((*follows, entries, sessions.rows, sessions.gone, sessions.count, sessions.sum))
    head = _HEAD.pack(_MAGIC, len(control), group, body_bytes, salt)
    digest = blake3(head + control).digest()
    proof = prove(digest)
    parts = (head, digest, proof, _CHECKSUM.pack(crc32(proof)), control)
    start = HEAD_BYTES + len(control)
    if body_bytes > _JOINED_MAX:
        return EncodedFrame([b"".join(parts), *bodies], start, start + body_bytes, proof)
    return EncodedFrame([b"".join((*parts, *bodies))], start, start + body_bytes, proof)


def head_of(data: bytes, salt: bytes) -> FrameHead | None:
    """The head of a frame of a file with this salt; None where there is none."""
    if len(data) < HEAD_BYTES:
        return None
    magic, control_bytes, group, body_bytes, found = _HEAD.unpack_from(data)
    if magic != _MAGIC or found != salt or not 0 < control_bytes <= CONTROL_BYTES_MAX:
        return None
    proof_at, checksum_at = _HEAD.size + _DIGEST_BYTES, HEAD_BYTES - _CHECKSUM.size
    digest, proof, checksum = data[_HEAD.size : proof_at], data[proof_at:checksum_at], data[checksum_at:HEAD_BYTES]
    return FrameHead(control_bytes, group, body_bytes, digest, proof, checksum, data[: _HEAD.size])


def control_of(head: FrameHead, control: bytes) -> Control | None:
    """The control part behind a head; None where it is not whole."""
    if blake3(head.covered + control).digest() != head.digest:
        return None
    if _CHECKSUM.pack(crc32(head.proof)) != head.checksum:
        return None
    try:
        found = _decode(control)
    except msgspec.MsgspecError:
        return None
    return found if _is_of_group(found, head.group) and _is_sane(found) else None


def _is_of_group(control: Control, group: int) -> bool:
    """Whether all of it says that it belongs to this group; its entries are one behind the other."""
    seq = control.entries[0].seq if control.entries else 0
    epoch = control.key_epoch
    return bool(control.entries) and all(
        (framed.seq, framed.group_number, framed.key_epoch) == (seq + at, group, epoch)
        for at, framed in enumerate(control.entries)
    )


def _is_sane(control: Control) -> bool:
    """Whether the database could hold these numbers, and no body begins before the one in front of it."""
    rows: list[tuple[object, ...]] = [control[:3], (control.session_count,), *control.entries, *control.sessions]
    return all(framed.size >= 0 for framed in control.entries) and all(
        abs(value) < _NUMBERS_END for row in rows for value in row if isinstance(value, int)
    )


def proof_of(head: FrameHead, control: Control) -> FrameProof:
    """What proves this frame."""
    return FrameProof(head.group, control.key_epoch, control.before, control.base, head.digest, head.proof)


def are_whole(control: Control, log_id: bytes, body_of: Callable[[int, int], bytes]) -> bool:
    """Whether the bodies behind a control part are those that it names; `body_of` takes place and length."""
    at = 0
    for framed in control.entries:
        try:
            place = Place(log_id, framed.topic, framed.number)
        except struct.error:
            return False
        if not is_whole(place, framed.entry(body_of(at, framed.size))):
            return False
        at += framed.size
    return True


def starts(data: bytes, salt: bytes) -> list[int]:
    """Where in these bytes, which begin at a sector's edge, frames of a file with this salt may begin."""
    found, at = [], data.find(_MAGIC)
    while at >= 0:
        if at % SECTOR_BYTES == 0 and head_of(data[at : at + HEAD_BYTES], salt) is not None:
            found.append(at)
        at = data.find(_MAGIC, at + 1)
    return found
