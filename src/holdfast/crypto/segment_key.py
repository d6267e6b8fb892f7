"""The key of one segment file: it encrypts once, and decrypts for as long as the file lives.

Each *attempt* to write a segment draws a fresh 32-byte salt, so it has keys that no other attempt has: a segment that
is written again after a crash, with the same offsets and the same number, shares none with the first attempt. Within
a file every block has a key of its own (see `cipher`), so that clones of a process in the middle of a segment share
none either. The salt and a commitment to the keys stand in the file's footer (`SegmentKeyFacts`). With them and the
keyring a file is readable without a database, which is what Spark's executors and a rebuild from files do.

Segment keys come from the same master keys as key epochs and never meet them: another derivation context and
another nonce prefix. Nothing is stored here. Messages between processes (`MESSAGE`) have keys that are made in the
same way, one for each message, in a context of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.crypto import digests
from holdfast.crypto.cipher import (
    SALT_BYTES,
    SYSTEM_RANDOM,
    AnyCipher,
    KeySource,
    NotAuthentic,
    PayloadCipher,
    Random,
    check_scheme,
    decrypting_cipher,
    encrypting_cipher,
)
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Corrupt, Invalid


class Use(NamedTuple):
    """What a key is for: keys of different uses never meet."""

    context: bytes
    domain: bytes
    """The nonce's prefix."""
    what: str


SEGMENT = Use(b"segment|", b"hfs1", "segment")
MESSAGE = Use(b"message|", b"hfm1", "message")


class SegmentKeyFacts(msgspec.Struct, frozen=True):
    """Everything about a segment's key but the key; stored in the file's footer."""

    key_id: str
    """Which master key; empty for the user's own cipher."""
    scheme: str
    salt: bytes
    commitment: bytes
    """What the right key reproduces; empty for the user's own cipher."""


class SegmentKey:
    """Encrypts, decrypts and stamps for one segment file."""

    def __init__(self, encrypted_with: SegmentKeyFacts, cipher: AnyCipher) -> None:
        self.encrypted_with = encrypted_with
        self._cipher = cipher

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes | memoryview:
        """Encrypt, binding `associated`."""
        return self._cipher.encrypt(plaintext, associated)

    def decrypt(self, encrypted: bytes, associated: bytes) -> bytes:
        """Decrypt, or raise NotAuthentic."""
        try:
            return self._cipher.decrypt(encrypted, associated)
        except NotAuthentic:
            raise
        except Exception as error:  # an injected cipher may say no in any way it likes
            raise NotAuthentic from error

    def mac(self, message: bytes) -> bytes:
        """A 32-byte keyed hash."""
        return self._cipher.mac(message)


def encrypting_key(
    keyring: Keyring | None,
    cipher: PayloadCipher | None,
    log_id: bytes,
    salt: bytes,
    random: Random = SYSTEM_RANDOM,
    use: Use = SEGMENT,
) -> SegmentKey | None:
    """The key for one attempt to write a segment, under a salt that was never used; None when the log is plain."""
    if cipher is not None:
        return SegmentKey(SegmentKeyFacts("", cipher.name, salt, b""), cipher)
    if keyring is None:
        return None
    if len(salt) != SALT_BYTES:
        raise Invalid(f"a {use.what}'s salt has the wrong length bytes={len(salt)}", hint=f"draw {SALT_BYTES} bytes")
    own = encrypting_cipher(_source(keyring, keyring.current, log_id, salt, use), random)
    return SegmentKey(SegmentKeyFacts(keyring.current, own.name, salt, own.commitment), own)


def decrypting_key(
    keyring: Keyring | None,
    cipher: PayloadCipher | None,
    log_id: bytes,
    encrypted_with: SegmentKeyFacts,
    use: Use = SEGMENT,
) -> SegmentKey:
    """The key of a finished segment, proved by its commitment; it never encrypts again."""
    if cipher is not None:
        if cipher.name != encrypted_with.scheme:
            raise Invalid(
                f"this {use.what} was encrypted with another cipher scheme={encrypted_with.scheme}",
                hint="open it with the keyring or cipher it was written with",
            )
        return SegmentKey(encrypted_with, cipher)
    if keyring is None:
        raise Invalid(f"this {use.what} is encrypted", hint="open it with keyring=Keyring.from_env(…) or from_file(…)")
    check_scheme(encrypted_with.scheme)
    if len(encrypted_with.salt) != SALT_BYTES:
        raise Corrupt(f"a {use.what}'s salt has the wrong length")
    source = _source(keyring, encrypted_with.key_id, log_id, encrypted_with.salt, use)
    own = decrypting_cipher(encrypted_with.scheme, source)
    # GCM does not commit to its key: a key that does not reproduce the commitment must decrypt nothing. A scheme that
    # was switched in the footer ends here, too: schemes derive their commitments apart.
    if not digests.same(own.commitment, encrypted_with.commitment):
        raise Invalid(
            f"key {encrypted_with.key_id!r} is not the key that this {use.what} was encrypted with",
            hint="the keyring holds another key under this id; give the original one",
        )
    return SegmentKey(encrypted_with, own)


class MessageKeys(NamedTuple):
    """The keys of messages between processes, as long as the keyring does not change."""

    keyring: Keyring | None
    cipher: PayloadCipher | None
    log_id: bytes
    random: Random

    @property
    def keyed(self) -> bool:
        """Whether there is a key: then nothing unencrypted is a message."""
        return self.keyring is not None or self.cipher is not None

    def fresh(self) -> SegmentKey | None:
        """The key for one message; None without keys."""
        return encrypting_key(self.keyring, self.cipher, self.log_id, self.random(SALT_BYTES), self.random, MESSAGE)

    def of(self, encrypted_with: SegmentKeyFacts) -> SegmentKey:
        """The key of a received message, proved by its commitment."""
        return decrypting_key(self.keyring, self.cipher, self.log_id, encrypted_with, MESSAGE)


def _source(keyring: Keyring, key_id: str, log_id: bytes, salt: bytes, use: Use) -> KeySource:
    return KeySource(keyring.key(key_id), salt, use.context + log_id, use.domain)
