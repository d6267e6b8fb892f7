"""Signatures of a log's objects: who wrote this, and for which place.

A log with keys signs every object that it puts on a store but segments, which prove themselves, and readers with the
keyring believe nothing else. A signature is a keyed BLAKE3 over the log's id, the object's own key and the hash of its
bytes: so an object that was changed, forged, moved to another place or brought from another log does not verify. The
signing key comes from the master key and the log's id, and is used for nothing else.

A signature cannot show that an object was removed, nor that a whole root was put back to an earlier day. With the
user's own cipher the signature is that cipher's `mac`, under the name "".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from blake3 import blake3
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.crypto import digests
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring

MAC_BYTES = 32

Sources = Callable[[], tuple[Keyring | None, PayloadCipher | None]]
"""Where keys come from, at each moment: a rotation changes them."""


class UnknownKey(Exception):
    """A signature names a key that is not in the keyring. Callers say where."""


class Signature(NamedTuple):
    """Who signed an object; "" for the user's own cipher."""

    key_id: str
    mac: bytes


class Signer:
    """Signs and proves objects with the keys; one for all logs of a keyring."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._keys: dict[tuple[str, str], bytes] = {}

    @classmethod
    def of(cls, keyring: Keyring | None, cipher: PayloadCipher | None = None) -> Signer | None:
        """A signer with these keys; None without any."""
        return None if keyring is None and cipher is None else cls(lambda: (keyring, cipher))

    def sign(self, log: str, place: str, data: bytes | memoryview) -> Signature:
        """Sign an object's bytes for its place in a log's root, under the current key."""
        keyring, cipher = self._sources()
        key_id = "" if cipher is not None or keyring is None else keyring.current
        return Signature(key_id, self._mac(key_id, log, place, data))

    def proves(self, log: str, place: str, data: bytes | memoryview, signature: Signature) -> bool:
        """Whether these bytes were signed for this place; raises UnknownKey."""
        return digests.same(self._mac(signature.key_id, log, place, data), signature.mac)

    def _mac(self, key_id: str, log: str, place: str, data: bytes | memoryview) -> bytes:
        message = digests.canonical("object", log, place, blake3(data).digest())
        keyring, cipher = self._sources()
        if not key_id and cipher is not None:
            return cipher.mac(message)
        if keyring is None or key_id not in keyring:
            raise UnknownKey(key_id)
        key = self._keys.get((log, key_id))
        if key is None:
            key = self._keys[log, key_id] = _derive(keyring.key(key_id), log)
        return digests.keyed_stamp(key, message)


def _derive(master: bytes, log: str) -> bytes:
    return HKDF(SHA256(), 32, salt=bytes.fromhex(log), info=b"holdfast 1 objects").derive(master)
