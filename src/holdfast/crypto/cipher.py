"""Encryption: AES-256-GCM, every body under a key of its own.

Hazard: GCM breaks completely when one (key, nonce) pair encrypts two messages. A log makes that easy to do. After a
crash the torn tail is cut and the *same offsets are written again with other bytes*; and a process can be cloned
while it runs (a VM's memory snapshot that is resumed twice, CRIU, fork), and then both go on with every counter
and every key that it had. So nothing that a process remembers makes a nonce. Every key epoch has a random salt, which
is durable before its first use and gives the epoch's keys (HKDF-SHA-256 of the master key); and every
*encryption* makes a salt of 24 bytes of its own, which gives the key of that one body. The nonce is a constant.

A body's salt is keyed BLAKE3 of 24 bytes from the system's random source, drawn at that moment and never before, of a
GMAC of the body and of what it is bound to. One of them is enough. Where the random source is fresh, salts differ,
whatever is encrypted (2⁴⁸ bodies of one epoch, those of its clones included, share a salt with a chance below 2⁻⁹⁶).
Where even the random source was cloned, as by a hypervisor that does not notify its guest, other bodies and other
places have other salts, and the same body in the same place gives the same blob, which shows that it is the same and
nothing else. Readers need not know how a salt was made.

GCM does not commit to its key: a crafted blob may decrypt under two. Each epoch therefore stores a commitment
derived beside its keys, and a key that does not reproduce it is refused before anything is decrypted. With the
commitment proved the epoch's key is the only possible one, and it gives each salt, which is part of the blob, one key:
so a blob, too, decrypts under one key at most.

Encrypted blob: 24-byte salt ‖ ciphertext ‖ 16-byte tag. Overhead: 40 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.arguments import having
from holdfast.clock import SystemClock
from holdfast.crypto import digests
from holdfast.errors import Invalid, Unavailable

SALT_BYTES = 32
"""Of a key epoch or a segment."""
OVERHEAD_BYTES = 40
JOURNAL = b"hfj1"
_BODY_SALT_BYTES = 24
_NO_NONCE = bytes(12)
_LARGE_BYTES = 8 * 1024

Random = Callable[[int], bytes]
"""Where fresh bytes come from; never a pool, which a clone would have, too."""
SYSTEM_RANDOM: Random = SystemClock().random_bytes


class NotAuthentic(Exception):
    """A blob does not decrypt: another key, another place, or changed bytes. Callers say which and where."""


class PayloadCipher(Protocol):
    """What encrypts entries, when it is not holdfast's own: an HSM, a KMS client, a test double.

    All three verbs are called from several threads, also at the same time: entries and segments are encrypted side by
    side. The cipher itself must never use a key and nonce twice, not even in clones of a running process.
    """

    name: str
    """Names scheme and key, without secrets; stored with the log and compared when it is opened again."""

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        """Encrypt, binding `associated`; never twice under one nonce. An exception fails only this plaintext."""

    def decrypt(self, encrypted: bytes, associated: bytes) -> bytes:
        """Decrypt, or raise: whatever is raised means that the blob is not authentic."""

    def mac(self, message: bytes) -> bytes:
        """A 32-byte keyed hash for control rows."""


class KeySource(NamedTuple):
    """What the keys of an epoch or a segment are derived from."""

    master: bytes
    salt: bytes
    context: bytes
    domain: bytes = JOURNAL
    """The nonce's prefix (4 bytes), so that uses of a cipher are apart even if their keys were not."""

    def derive(self, use: str) -> bytes:
        """The key for one use."""
        info = f"holdfast {use}|".encode() + self.context
        return HKDF(algorithm=SHA256(), length=32, salt=self.salt, info=info).derive(self.master)


class AesGcmCipher:
    """The cipher of one salt: of a key epoch, or of a segment."""

    name = "aes-256-gcm-salted"

    def __init__(self, source: KeySource, *, encrypts: bool, random: Random = SYSTEM_RANDOM) -> None:
        _check_domain(source)
        self._key = source.derive("1 aead")
        self._mac_key = source.derive("1 mac")
        self.commitment = source.derive("1 commitment")
        self._domain = source.domain
        self._nonce = source.domain + bytes(8)
        self._encrypts = encrypts
        self._random = random
        if encrypts:
            self._salt_key, self._body_key = source.derive("1 salt"), source.derive("1 body")
            # Nobody sees its tags, so one nonce is enough: it serves as a universal hash, three times as fast as
            # BLAKE3, which then makes a random function of it.
            self._tag = AESGCM(self._body_key).encrypt

    def encrypt(self, plaintext: bytes | memoryview, associated: bytes) -> bytes | memoryview:
        """Encrypt under a key that nothing else has."""
        if not self._encrypts:
            raise Unavailable("this key epoch no longer encrypts", hint="reopen the log: it starts a new key epoch")
        # One function, few steps: after each fsync all of this runs cold, and single appends wait for it.
        seed = self._random(_BODY_SALT_BYTES) + self._tag(_NO_NONCE, b"", plaintext) + associated
        salt = blake3(seed, key=self._salt_key).digest(length=_BODY_SALT_BYTES)
        aead = AESGCM(blake3(self._domain + salt, key=self._key).digest())
        if len(plaintext) < _LARGE_BYTES:
            return salt + aead.encrypt(self._nonce, plaintext, associated)
        # In place: a second large buffer would cost more than the cipher.
        blob = memoryview(bytearray(len(plaintext) + OVERHEAD_BYTES))
        blob[:_BODY_SALT_BYTES] = salt
        aead.encrypt_into(self._nonce, plaintext, associated, blob[_BODY_SALT_BYTES:])
        return blob

    def decrypt(self, encrypted: bytes | memoryview, associated: bytes) -> bytes:
        """Decrypt, or raise NotAuthentic."""
        if len(encrypted) < OVERHEAD_BYTES:
            raise NotAuthentic
        blob = memoryview(encrypted)
        try:
            key = blake3(self._domain + blob[:_BODY_SALT_BYTES], key=self._key).digest()
            return AESGCM(key).decrypt(self._nonce, blob[_BODY_SALT_BYTES:], associated)
        except InvalidTag:
            raise NotAuthentic from None

    def mac(self, message: bytes) -> bytes:
        """Keyed BLAKE3."""
        return digests.keyed_stamp(self._mac_key, message)


AnyCipher = AesGcmCipher | PayloadCipher


def encrypting_cipher(source: KeySource, random: Random) -> AesGcmCipher:
    """A cipher for a salt that was never used."""
    return AesGcmCipher(source, encrypts=True, random=random)


def decrypting_cipher(scheme: str, source: KeySource) -> AesGcmCipher:
    """The cipher of something that was stored under this scheme; it never encrypts again."""
    check_scheme(scheme)
    return AesGcmCipher(source, encrypts=False)


def check_scheme(scheme: str) -> None:
    """Refuse what our own cipher did not encrypt."""
    if scheme != AesGcmCipher.name:
        raise Invalid(
            f"this was encrypted with another cipher scheme={scheme}",
            hint="open it with the keyring or cipher it was written with, and that version of holdfast",
        )


def _check_domain(source: KeySource) -> None:
    if len(source.domain) != len(JOURNAL):  # a nonce has 12 bytes
        raise Invalid(f"a nonce prefix has the wrong length bytes={len(source.domain)}", hint="give 4 bytes")


def check_cipher(cipher: PayloadCipher | None) -> PayloadCipher | None:
    """A cipher of the caller's own, or none."""
    if cipher is not None:
        hint = "give an object with what holdfast.PayloadCipher has: name, encrypt, decrypt, mac"
        having(cipher, ("name", "encrypt", "decrypt", "mac"), "cipher", hint)
    return cipher
