"""Sealing: AES-256-GCM under a subkey that nobody else ever uses.

Hazard: GCM breaks completely when one (key, nonce) pair seals two messages. A log makes that easy to do,
because after a crash the torn tail is cut and the *same offsets are written again with other bytes*. So a
nonce never comes from an offset. Instead every key epoch draws a random 32-byte salt, which is durable
before its first use; the salt gives the subkey (HKDF-SHA-256 of the master key), and under that subkey the
nonce is a counter that starts at zero and counts *attempts*, committed or not. A cipher for an older epoch
can only open.

GCM does not commit to its key: a crafted blob may open under two. Each epoch therefore stores a commitment
derived beside the subkey, and a key that does not reproduce it is refused before anything is opened.

Sealed blob: 8-byte counter (big endian) ‖ ciphertext ‖ 16-byte tag. Overhead: 24 bytes.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.crypto import chain
from holdfast.errors import Invalid, Unavailable

SALT_BYTES = 32
OVERHEAD_BYTES = 24
_COUNTER_BYTES = 8
_SEALS_MAX = 2**48
_JOURNAL = b"hfj1"


class NotAuthentic(Exception):
    """A blob does not open: another key, another place, or changed bytes. Callers say which and where."""


class PayloadCipher(Protocol):
    """What seals entries, when it is not holdfast's own: an HSM, a KMS client, a test double.

    All three verbs are called from several threads, also at the same time: entries and segments are sealed beside
    each other.
    """

    name: str
    """Names scheme and key, without secrets; stored with the log and compared when it is opened again."""

    def seal(self, plaintext: bytes, associated: bytes) -> bytes:
        """Seal, binding `associated`; never twice under one nonce. An exception fails only what was being sealed."""

    def open(self, sealed: bytes, associated: bytes) -> bytes:
        """Open, or raise: whatever is raised means that the blob is not authentic."""

    def mac(self, message: bytes) -> bytes:
        """A 32-byte keyed hash for control rows."""


class AesGcmCipher:
    """The cipher of one salt: of a key epoch, or of a segment.

    `domain` is the nonce's prefix (4 bytes), so that uses of the cipher are apart even if their keys were not.
    """

    name = "aes-256-gcm"

    def __init__(self, master: bytes, salt: bytes, context: bytes, *, sealing: bool, domain: bytes = _JOURNAL) -> None:
        if len(domain) != len(_JOURNAL):  # the nonce has 12 bytes
            raise Invalid(f"a nonce prefix has the wrong length bytes={len(domain)}", hint="give 4 bytes")
        self._domain = domain
        self._aead = AESGCM(_derive(master, salt, b"holdfast 1 aead|" + context))
        self._mac_key = _derive(master, salt, b"holdfast 1 mac|" + context)
        self.commitment = _derive(master, salt, b"holdfast 1 commitment|" + context)
        self._next = 0 if sealing else _SEALS_MAX

    def seal(self, plaintext: bytes | memoryview, associated: bytes) -> bytes:
        """Seal under the next nonce."""
        counter = self._next
        if counter >= _SEALS_MAX:
            raise Unavailable("this key epoch seals no more", hint="reopen the log: it starts a new key epoch")
        self._next = counter + 1
        count = counter.to_bytes(_COUNTER_BYTES, "big")
        return count + self._aead.encrypt(self._domain + count, plaintext, associated)

    def open(self, sealed: bytes, associated: bytes) -> bytes:
        """Open, or raise NotAuthentic."""
        if len(sealed) < OVERHEAD_BYTES:
            raise NotAuthentic
        try:
            return self._aead.decrypt(self._domain + sealed[:_COUNTER_BYTES], sealed[_COUNTER_BYTES:], associated)
        except InvalidTag:
            raise NotAuthentic from None

    def mac(self, message: bytes) -> bytes:
        """Keyed BLAKE3."""
        return chain.keyed_stamp(self._mac_key, message)


def _derive(master: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(master)
