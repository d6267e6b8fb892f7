"""Tokens of promises: who has one may settle that promise, once. Pure.

A token is text: execution, promise and 32 random bytes. The journal has only its hash, which binds all three, so a
reader of the log cannot settle anything, and a token of one promise does not fit another. Ids are no secret and give no
right. Hashes are compared in constant time.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from blake3 import blake3

from holdfast.crypto import digests
from holdfast.errors import Invalid

SECRET_BYTES = 32
_PREFIX = "hfp1_"
_BYTES = 16 + 16 + SECRET_BYTES
_HASH = "holdfast 2026-11 promise token"


class Token(NamedTuple):
    """What a token's text says; the secret is never shown."""

    execution: UUID
    promise: bytes
    secret: bytes

    def text(self) -> str:
        """What is given out; letters, digits, '-' and '_', so it may stand in a URL."""
        return _PREFIX + urlsafe_b64encode(self.execution.bytes + self.promise + self.secret).rstrip(b"=").decode()

    def hash(self) -> bytes:
        """What is stored."""
        return blake3(self.promise + self.execution.bytes + self.secret, derive_key_context=_HASH).digest()

    def is_one_of(self, hashes: Iterable[bytes]) -> bool:
        """Whether its hash is among these; it takes as long whether it is or not."""
        own, found = self.hash(), False
        for stored in hashes:
            found |= digests.same(own, stored)
        return found

    def __repr__(self) -> str:
        return f"Token(execution={self.execution}, promise={self.promise.hex()})"


def parse_token(text: object) -> Token:
    """What is passed as a token; the error does not repeat it."""
    if isinstance(text, str) and text.startswith(_PREFIX) and len(text) < 200:
        encoded = text[len(_PREFIX) :]
        try:
            body = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except (NotBase64, ValueError):
            body = b""
        if len(body) == _BYTES:
            return Token(UUID(bytes=body[:16]), body[16:32], body[32:])
    raise Invalid("this is no promise's token", hint="it begins with 'hfp1_' and has 91 characters: give all of it")
