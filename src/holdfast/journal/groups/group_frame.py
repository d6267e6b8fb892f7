"""One group commit as bytes: what a group of plain records changes, with the bodies of its entries behind it.

    56 bytes    magic, length of the control part, number of the group, length of the bodies, salt of the file, digest
    control     the log's own row, heads, entries without their bodies (msgpack)
    bodies      of the entries, one behind the other
    a gap       up to the next sector, so that no durable frame shares one with a later write; whatever was there stays

The digest covers everything before it and the control part; each body is covered by its entry's own digest. So a frame
that was torn by a power cut is told from a whole one, and nothing is hashed twice. The salt is random and known to
nobody who only appends: a payload cannot pass for a frame. A frame proves that it is whole, not that it is true: its
rows carry the stamps that every row has, and whoever opens the log examines them (docs/formats/0013-group-file.md).

Pure: bytes in, values out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
from blake3 import blake3

from holdfast.model.control_rows import HeadRow, LogRow, SessionRow
from holdfast.model.entry import Entry, FiledEntry, Place, is_whole

SECTOR_BYTES = 512
HEAD_BYTES = 56
CONTROL_BYTES_MAX = 64 * 2**20
_MAGIC = b"hfg2"
_VERSIONS = {b"hfg1": 1, _MAGIC: 2}
_MAGIC_STEM = b"hfg"
_HEAD = struct.Struct("<4sIQQ16s")
_DIGEST_BYTES = 16
_NUMBERS_END = 2**63


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

    def filed(self, file: int, position: int) -> FiledEntry:
        """The entry with the place of its body."""
        return FiledEntry(*self[:13], file, position, self.size)


class Control(NamedTuple):
    """What a group changes, but for the bodies."""

    row: LogRow
    heads: list[HeadRow]
    entries: list[FramedEntry]
    sessions: tuple[SessionRow, ...] = ()
    gone: tuple[bytes, ...] = ()
    """Names of sessions that are forgotten."""


class FramedSessions(Protocol):
    """What a group changes in sessions."""

    @property
    def rows(self) -> list[SessionRow]: ...  # noqa: D102
    @property
    def gone(self) -> list[bytes]: ...  # noqa: D102


class _Control1(NamedTuple):
    """The same as version 1 had it: there were no sessions."""

    row: tuple[bytes, int, int, int, int, int, int, int, int, int, int, bytes, int, int, int, int, int, int, int, bytes]
    heads: list[HeadRow]
    entries: list[FramedEntry]


class Frame(NamedTuple):
    """A group ready to be written."""

    row: LogRow
    heads: Sequence[HeadRow]
    entries: Sequence[FramedEntry]
    buffers: Sequence[bytes | memoryview]
    """The first is all that comes before the bodies."""
    size: int
    body_bytes: int
    sessions: FramedSessions | None = None


class FrameHead(NamedTuple):
    """The first bytes of a frame."""

    version: int
    control_bytes: int
    group: int
    body_bytes: int
    digest: bytes
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
_decode_1 = msgspec.msgpack.Decoder(_Control1).decode


def encoded(
    salt: bytes,
    row: LogRow,
    heads: Sequence[HeadRow],
    entries: Sequence[FramedEntry],
    body_bytes: int,
    sessions: FramedSessions | None = None,
) -> bytes:
    """A frame up to its bodies, which have so many bytes."""
    if sessions is None:
        control = _encode((row, heads, entries))
    else:
        control = _encode((row, heads, entries, sessions.rows, sessions.gone))
    head = _HEAD.pack(_MAGIC, len(control), row.groups, body_bytes, salt)
    return head + blake3(head + control).digest(length=_DIGEST_BYTES) + control


def head_of(data: bytes, salt: bytes) -> FrameHead | None:
    """The head of a frame of a file with this salt; None where there is none."""
    if len(data) < HEAD_BYTES:
        return None
    magic, control_bytes, group, body_bytes, found = _HEAD.unpack_from(data)
    version = _VERSIONS.get(magic)
    if version is None or found != salt or not 0 < control_bytes <= CONTROL_BYTES_MAX:
        return None
    return FrameHead(version, control_bytes, group, body_bytes, data[_HEAD.size : HEAD_BYTES], data[: _HEAD.size])


def control_of(head: FrameHead, control: bytes) -> Control | None:
    """The control part behind a head; None where it is not whole."""
    if blake3(head.covered + control).digest(length=_DIGEST_BYTES) != head.digest:
        return None
    try:
        found = _decode(control) if head.version > 1 else _of_version_1(control)
    except msgspec.MsgspecError:
        return None
    return found if found.row.groups == head.group and _is_sane(found) else None


def _of_version_1(control: bytes) -> Control:
    row, heads, entries = _decode_1(control)
    return Control(LogRow(*row[:18], 0, b"", *row[18:]), heads, entries)


def _is_sane(control: Control) -> bool:
    """Whether the database could hold these numbers, and no body begins before the one in front of it."""
    rows: list[tuple[object, ...]] = [control.row, *control.heads, *control.entries, *control.sessions]
    return all(framed.size >= 0 for framed in control.entries) and all(
        abs(value) < _NUMBERS_END for row in rows for value in row if isinstance(value, int)
    )


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
    found, at = [], data.find(_MAGIC_STEM)
    while at >= 0:
        if at % SECTOR_BYTES == 0 and head_of(data[at : at + HEAD_BYTES], salt) is not None:
            found.append(at)
        at = data.find(_MAGIC_STEM, at + 1)
    return found
