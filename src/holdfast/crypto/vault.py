"""The keys of one log: which key epoch encrypts now, and how to decrypt what any epoch encrypted.

A log is keyed or it is not, from its first day. The vault hides the difference: without keys, encrypting keeps
the bytes as they are and stamps are plain digests, under the epoch number 0. So no other module asks whether
the log is encrypted, and none can forget to.

The vault stores nothing. The owner of the database stores the `KeyEpoch` that `begin` returns, durably, *before*
`enter` makes it the current one, and hands stored epochs back through `fetch`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.crypto import digests
from holdfast.crypto.cipher import (
    SALT_BYTES,
    SYSTEM_RANDOM,
    AesGcmCipher,
    AnyCipher,
    KeySource,
    NotAuthentic,
    PayloadCipher,
    Random,
    decrypting_cipher,
    encrypting_cipher,
)
from holdfast.crypto.key_hashes import DIGESTS, HashCipher, Purpose
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.segment_key import MessageKeys, SegmentKey, SegmentKeyFacts, decrypting_key, encrypting_key
from holdfast.crypto.signatures import Signer
from holdfast.errors import Corrupt, Invalid

PLAIN = 0
"""The key epoch of a log without keys."""
_PROOF = b"holdfast 1 group|"
"""No row begins like this: a stamp never passes for a proof."""


class KeyEpoch(msgspec.Struct, frozen=True):
    """One stored key epoch: everything about a subkey but the key."""

    number: int
    scheme: str
    key_id: str
    salt: bytes
    commitment: bytes
    stamp: bytes

    def message(self) -> bytes:
        """What the stamp covers."""
        return digests.canonical("key_epochs", self.number, self.scheme, self.key_id, self.salt, self.commitment)


class Vault:
    """Encrypts, decrypts and stamps for one log."""

    def __init__(
        self,
        log_id: bytes,
        keyring: Keyring | None = None,
        cipher: PayloadCipher | None = None,
        random: Random = SYSTEM_RANDOM,
    ) -> None:
        if keyring is not None and cipher is not None:
            raise Invalid("both a keyring and a cipher were passed", hint="give one of them")
        self.log_id = log_id
        self._keyring = keyring
        self._injected = cipher
        self._random = random
        self._fetch: Callable[[int], KeyEpoch | None] = lambda number: None
        self._ciphers: dict[int, AnyCipher] = {}
        self._hash_ciphers: dict[tuple[int, Purpose], HashCipher] = {}
        self._proved: set[str] = set()
        """Ids of keys that reproduced a stored epoch's commitment: they are the keys that they should be."""
        self.epoch = PLAIN

    @property
    def keyed(self) -> bool:
        """Whether this vault has a key."""
        return self._keyring is not None or self._injected is not None

    def sources(self) -> tuple[Keyring | None, PayloadCipher | None]:
        """What this vault was made of."""
        return self._keyring, self._injected

    @property
    def signer(self) -> Signer | None:
        """Who signs this log's objects on a store, under whatever key is current; None in a log without keys."""
        return Signer(self.sources) if self.keyed else None

    def attach(self, fetch: Callable[[int], KeyEpoch | None]) -> None:
        """Say where stored key epochs are found."""
        self._fetch = fetch

    def begin(self, number: int, salt: bytes, keyring: Keyring | None = None) -> KeyEpoch:
        """A new key epoch, to be stored durably before `enter`; with another keyring, a rotation."""
        if keyring is not None:
            keyring.check_follows(self._keyring)
        ring = keyring or self._keyring
        key_id = ring.current if ring is not None else ""
        cipher: AnyCipher | None = self._injected
        if cipher is None:
            cipher = encrypting_cipher(self._source(number, key_id, salt, ring), self._random)
        commitment = cipher.commitment if isinstance(cipher, AesGcmCipher) else b""
        draft = KeyEpoch(number, cipher.name, key_id, salt, commitment, b"")
        self._ciphers[number] = cipher
        return msgspec.structs.replace(draft, stamp=cipher.mac(draft.message()))

    def enter(self, epoch: KeyEpoch, keyring: Keyring | None = None) -> None:
        """Encrypt and stamp under this epoch from now on; it was stored."""
        self._keyring = keyring or self._keyring
        self.epoch = epoch.number

    def learn(self, keyring: Keyring) -> None:
        """Of a log that another process owns: decrypt with these keys from now on."""
        self._keyring = keyring

    def encrypt(self, body: bytes | memoryview, associated: bytes) -> bytes | memoryview:
        """Encrypt a body under the present epoch; without keys, the body as it is."""
        if self.epoch == PLAIN:
            return body
        cipher = self._ciphers[self.epoch]
        if not isinstance(cipher, AesGcmCipher):
            return cipher.encrypt(bytes(body), associated)  # an injected cipher is promised bytes
        return cipher.encrypt(body, associated)

    def decrypt(self, number: int, body: bytes, associated: bytes) -> bytes:
        """Decrypt a body that epoch `number` encrypted; raises NotAuthentic."""
        if number == PLAIN:
            return self._plain(body)
        cipher = self.cipher(number)
        try:
            return cipher.decrypt(body, associated)
        except NotAuthentic:
            raise
        except Exception as error:  # an injected cipher may say no in any way it likes
            raise NotAuthentic from error

    def stamp(self, message: bytes) -> bytes:
        """Stamp a control row under the present epoch."""
        return digests.plain_stamp(message) if self.epoch == PLAIN else self._ciphers[self.epoch].mac(message)

    def prove(self, digest: bytes) -> bytes:
        """Vouch for what has this digest, under the present epoch; without keys the digest says all that can be."""
        return digest if self.epoch == PLAIN else self._ciphers[self.epoch].mac(_PROOF + digest)

    def is_proof(self, number: int, digest: bytes, proof: bytes) -> bool:
        """Whether epoch `number` vouched for this digest."""
        if number == PLAIN:
            return not self.keyed and digests.same(digest, proof)
        return digests.same(self.cipher(number).mac(_PROOF + digest), proof)

    def stamp_under(self, number: int) -> Callable[[bytes], bytes]:
        """How epoch `number` stamps."""
        return digests.plain_stamp if number == PLAIN else self.cipher(number).mac

    def hash_cipher(self, number: int, purpose: Purpose = DIGESTS) -> HashCipher:
        """What encrypts digests, or hashes of keys, under epoch `number`."""
        found = self._hash_ciphers.get((number, purpose))
        if found is None:
            mac = None if number == PLAIN else self.stamp_under(number)
            found = self._hash_ciphers[number, purpose] = HashCipher(self.log_id, mac, purpose)
        return found

    def verify(self, number: int, message: bytes, stamp: bytes) -> bool:
        """Whether epoch `number` made this stamp over this message."""
        if number == PLAIN:
            return not self.keyed and digests.same(digests.plain_stamp(message), stamp)
        return digests.same(self.cipher(number).mac(message), stamp)

    def cipher(self, number: int) -> AnyCipher:
        """The cipher of a stored epoch, its key proved; for decrypting and verifying only."""
        cipher = self._ciphers.get(number)
        if cipher is None:
            cipher = self._ciphers[number] = self._admit(number)
        return cipher

    def segment_key(self, salt: bytes) -> SegmentKey | None:
        """The key for one attempt to write a segment, under a fresh salt and the current key; None without keys."""
        return encrypting_key(self._keyring, self._injected, self.log_id, salt, self._random)

    @property
    def segment_keys(self) -> Callable[[SegmentKeyFacts], SegmentKey] | None:
        """How readers of this log's segments find their keys; None in a log without keys, which has none to find."""
        return self.stored_segment_key if self.keyed else None

    def stored_segment_key(self, encrypted_with: SegmentKeyFacts) -> SegmentKey:
        """The key of a finished segment, proved by its commitment; for decrypting and verifying only."""
        return decrypting_key(self._keyring, self._injected, self.log_id, encrypted_with)

    @property
    def message_keys(self) -> MessageKeys:
        """What encrypts and decrypts messages between processes; a rotation changes it."""
        return MessageKeys(self._keyring, self._injected, self.log_id, self._random)

    def _plain(self, body: bytes) -> bytes:
        # A keyed log holds no plain entry: one that claims to be plain was put there.
        if self.keyed:
            raise NotAuthentic
        return body

    def _admit(self, number: int) -> AnyCipher:
        epoch = self._fetch(number)
        if epoch is None or epoch.number != number or number < 0:
            raise Corrupt(f"a key epoch is missing key_epoch={number}")
        cipher = self._cipher_of(epoch)
        # A scheme that was switched in the row ends here, too: schemes derive their commitments apart.
        if isinstance(cipher, AesGcmCipher) and not digests.same(cipher.commitment, epoch.commitment):
            if epoch.key_id in self._proved:  # the key is right: then the row is not
                raise Corrupt(f"a key epoch does not match its key key_epoch={number}")
            raise Invalid(
                f"key {epoch.key_id!r} is not the key that this log was encrypted with",
                hint="the keyring holds another key under this id; give the original one",
            )
        if not digests.same(cipher.mac(epoch.message()), epoch.stamp):
            raise Corrupt(f"a key epoch's stamp does not match key_epoch={number}")
        self._proved.add(epoch.key_id)
        return cipher

    def _cipher_of(self, epoch: KeyEpoch) -> AnyCipher:
        """The cipher that a stored epoch names; it can decrypt and verify."""
        if self._injected is None:
            source = self._source(epoch.number, epoch.key_id, epoch.salt, self._keyring)
            return decrypting_cipher(epoch.scheme, source)
        if self._injected.name != epoch.scheme:
            raise Invalid(
                f"this log was encrypted with another cipher scheme={epoch.scheme}",
                hint="open it with the keyring or cipher it was written with",
            )
        return self._injected

    def _source(self, number: int, key_id: str, salt: bytes, keyring: Keyring | None) -> KeySource:
        if keyring is None:
            raise Invalid("this log is encrypted", hint="open it with keyring=Keyring.from_env(…) or from_file(…)")
        if len(salt) != SALT_BYTES:
            raise Corrupt(f"a key epoch's salt has the wrong length key_epoch={number}")
        return KeySource(keyring.key(key_id), salt, self.log_id + number.to_bytes(8, "big"))
