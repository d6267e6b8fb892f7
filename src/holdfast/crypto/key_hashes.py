"""Hashes of idempotency keys as they lie on a store, and digests of what they stand for: encrypted in a log with keys.

An idempotency key may be an order number, and an attacker who can guess it can hash it: the bare hash would reveal that
it was used. So each 16-byte hash goes through AES-256, one block, under a key that only the log's key epoch gives. That
is a permutation: equal hashes stay equal, which reveals nothing where each occurs once; the same hash gives the same
bytes again, so objects stay a function of what is durable; and a holder of the keyring gets the hash back. It hides and
proves nothing: the object that holds it is authenticated as a whole.

What was appended under a key may be one of a few values: its digest would reveal which. So that is encrypted the same
way, under a key of its own, on the store and in the journal. The key's hash is in it: equal records under other keys
look different.

A log without keys keeps its hashes as they are, as it keeps its records.
"""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

Purpose = tuple[str, bytes]
KEYS: Purpose = ("holdfast 1 idempotency keys on a store", b"holdfast 1 idempotency keys|")
DIGESTS: Purpose = ("holdfast 1 idempotency digests", b"holdfast 1 idempotency digests|")
"""What is encrypted: how its key is derived, and from what."""


class HashCipher:
    """Encrypts and decrypts hashes of one log; in a log with keys, under one key epoch."""

    def __init__(self, log_id: bytes, mac: Callable[[bytes], bytes] | None, purpose: Purpose = KEYS) -> None:
        self._cipher: Cipher[ECB] | None = None
        if mac is not None:
            context, message = purpose
            key = blake3(mac(message + log_id), derive_key_context=context).digest()
            # Each block is a hash that occurs once: no pattern is there to be seen.
            self._cipher = Cipher(AES(key), ECB())  # noqa: S305

    def encrypt(self, hashes: bytes) -> bytes:
        """Hashes, one behind the other, as they may lie on a store."""
        return hashes if self._cipher is None else self._cipher.encryptor().update(hashes)

    def decrypt(self, hashes: bytes) -> bytes:
        """The hashes that were encrypted."""
        return hashes if self._cipher is None else self._cipher.decryptor().update(hashes)
