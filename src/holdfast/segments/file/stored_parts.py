"""The parts of a bundle as its footer stores them: one text (docs/formats/0004-segment.md).

Only what cannot be worked out is stored. Number, first offset and predecessor of a part follow from the parts before
it, its rows and times from its row groups; so parts that were swapped, dropped or repeated are parts that say something
else, and their macs do not match any more.

Values only. What is read here is hostile: sizes are bounded before anything is made of them, and every value has one
form.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec

PARTS_MAX = 10_000
"""Parts of one bundle."""
PART_GROUPS_MAX = 100_000
"""Row groups that its parts had in files of their own, all together."""

_GROUP = struct.Struct("<qqq")
_Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class BadParts(Exception):
    """This is not a list of parts."""


class StoredPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is stored of a part."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    content: _Hash
    groups: bytes
    """Of each row group that it had: records, earliest and latest time, 8 bytes each, little endian."""
    blocks: bytes
    """The hashes of the blocks of the file that it had: nothing but the mac needs them."""
    key_id: str
    scheme: str
    salt: bytes
    commitment: bytes
    schema: bytes
    """Its Arrow schema, serialized; empty if that is the bundle's, byte for byte."""
    mac: _Hash
    keys: str
    """The pair that says where the index of its keys was; empty if it had none."""


_DECODER = msgspec.msgpack.Decoder(
    Annotated[list[StoredPart], msgspec.Meta(min_length=1, max_length=PARTS_MAX)], strict=True
)
_ENCODER = msgspec.msgpack.Encoder()


def encode(parts: Sequence[StoredPart]) -> str:
    """Parts as one text: base64 of MessagePack."""
    return base64.b64encode(_ENCODER.encode(parts)).decode("ascii")


def decode(text: str) -> Sequence[StoredPart]:
    """The parts of such a text; raises BadParts."""
    try:
        packed = base64.b64decode(text, validate=True)
        parts: Sequence[StoredPart] = _DECODER.decode(packed)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        raise BadParts from None
    if _ENCODER.encode(parts) != packed or sum(len(part.groups) for part in parts) > PART_GROUPS_MAX * _GROUP.size:
        raise BadParts
    return parts


def pack_groups(groups: Sequence[tuple[int, int, int]]) -> bytes:
    """Row groups as bytes."""
    return b"".join(_GROUP.pack(*group) for group in groups)


def unpack_groups(packed: bytes) -> list[tuple[int, int, int]]:
    """Row groups of such bytes, at least one of them; raises BadParts."""
    if not packed or len(packed) % _GROUP.size:
        raise BadParts
    return list(_GROUP.iter_unpack(packed))
