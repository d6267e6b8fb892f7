"""An index of keys as its segment's file holds it: as it is in a plain file, encrypted in an encrypted one.

Of an encrypted segment nothing about its keys may be seen: neither fingerprints nor the smallest and the largest key.
So the index is encrypted like a block, under a key of its own and bound to its segment, and decrypts nowhere else. Its
size would reveal how many keys there are; it is filled up to a power of two, which reveals less than the sizes of the
blocks do.
"""

from __future__ import annotations

from struct import Struct

from holdfast.crypto import digests
from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.segment_key import SegmentKey
from holdfast.model.segment import SegmentHead
from holdfast.segments.keys.key_index import BadIndex, KeyIndex

_LENGTH = Struct("<I")
_LEAST_BYTES = 256


def encrypted(index: bytes, head: SegmentHead, rows: int, key: SegmentKey) -> bytes:
    """An index, encrypted for its segment."""
    size = max(_LEAST_BYTES, 1 << (_LENGTH.size + len(index) - 1).bit_length())
    padded = (_LENGTH.pack(len(index)) + index).ljust(size, b"\0")
    return bytes(key.encrypt(padded, _associated(head, rows)))


def opened(blob: bytes | memoryview, head: SegmentHead, rows: int, key: SegmentKey | None) -> KeyIndex:
    """The index in a file's bytes; raises BadIndex, also where they are another segment's."""
    if key is None:
        return KeyIndex.parse(blob, rows)
    try:
        padded = memoryview(key.decrypt(bytes(blob), _associated(head, rows)))
    except NotAuthentic:
        raise BadIndex("has an index of keys that does not decrypt") from None
    if len(padded) < _LENGTH.size:
        raise BadIndex("has an index of keys that is too short")
    (length,) = _LENGTH.unpack(padded[: _LENGTH.size])
    return KeyIndex.parse(padded[_LENGTH.size : _LENGTH.size + length], rows)


def _associated(head: SegmentHead, rows: int) -> bytes:
    return digests.canonical(
        "keys", 1, head.log_id, head.topic, head.partition, head.number, head.first, rows, head.schema
    )
