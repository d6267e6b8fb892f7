"""Hashes that locate damage: digests of entries, stamps of control rows.

Unkeyed, they find accidents: a flipped bit, a lost row, a truncated tail. Keyed (see `vault`), the same
stamps cannot be made by anyone without the key. All digests are BLAKE3; each use has its own context, so
that bytes of one use never pass for another.
"""

from __future__ import annotations

import hmac

import msgspec
from blake3 import blake3

DIGEST_BYTES = 16
NO_LINK = bytes(DIGEST_BYTES)
"""The link of a partition's first entry: there is nothing before it."""

Value = int | str | bytes | None

_encode = msgspec.msgpack.Encoder().encode


def digest(header: bytes, body: bytes | memoryview) -> bytes:
    """The digest of a stored entry: over its header (which names its place and predecessor) and its body's hash.

    The body is hashed on its own because BLAKE3 is fastest on whole buffers.
    """
    return blake3(header + blake3(body).digest()).digest(length=DIGEST_BYTES)


def canonical(table: str, *values: Value) -> bytes:
    """A control row as bytes, injectively: every value carries its type and length."""
    return _encode((table, *values))


def plain_stamp(message: bytes) -> bytes:
    """The stamp of a control row in a log without keys: finds accidents, not attackers."""
    return blake3(message, derive_key_context="holdfast 1 control row").digest()


def keyed_stamp(key: bytes, message: bytes) -> bytes:
    """The stamp of a control row in a log with keys."""
    return blake3(message, key=key).digest()


def same(one: bytes, other: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one, other)
