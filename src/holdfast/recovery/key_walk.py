"""Idempotency keys as a restore reads them: those of records that come back, and no others.

They lie in objects of keys and in the commit batches that count. A key counts when its record does: its commit was
adopted by every takeover since, or its record was in a segment by then; and its offset is below the partition's end. A
key whose record is lost must be forgotten, or its repeat would be answered with a receipt for nothing; a key whose
record has expired is still known.

Keys come in the order of their commits. Those of records that are in segments, but whose commits were not adopted, have
no number any more: they come last, with the last number that counts. The same hash may come twice; the later one is
right. Reads nothing itself, and holds one object at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.key_hashes import DIGESTS, KEYS, HashCipher, Purpose
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.root.objects.commit_batch import CommitBatch, TailKey, idempotent
from holdfast.root.objects.documents import StartDocument
from holdfast.root.objects.key_object import KeyObject, StoredKey
from holdfast.root.store_manifest import StoreManifest

Where = tuple[str, int]
_HASH_BYTES = 16


class KeyLocation(NamedTuple):
    """An idempotency key, and where its record is."""

    where: Where
    record: int
    seq: int
    hash: bytes
    digest: bytes
    """Of what was appended under it; empty where that is not known."""


class KeyWalk:
    """Finds the keys that count in one log."""

    def __init__(
        self,
        log_id: bytes,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        manifests: Mapping[Where, StoreManifest],
        ends: Mapping[Where, int],
        last_seq: int,
    ) -> None:
        self._log_id = log_id
        self._keyring, self._cipher = keyring, cipher
        self._ends = ends
        self._last_seq = max(1, last_seq)
        self._starts = {where: _starts(manifest) for where, manifest in manifests.items()}
        self._hash_ciphers: dict[tuple[TailKey | None, Purpose], HashCipher] = {}

    def keys(self, objects: Callable[[], Iterable[KeyObject]], batches: Iterable[CommitBatch]) -> Iterator[KeyLocation]:
        """All keys that count; objects in the order of their commits, and batches after them."""
        is_left = False
        for keys in objects():
            for key in self._in_object(keys):
                is_left = is_left or key.seq > self._last_seq
                if key.seq <= self._last_seq:
                    yield key
        yield from self._in_batches(batches)
        for keys in objects() if is_left else ():
            late = (key for key in self._in_object(keys) if key.seq > self._last_seq)
            yield from (key._replace(seq=self._last_seq) for key in late)

    def _in_object(self, keys: KeyObject) -> Iterator[KeyLocation]:
        hashes = self._revealed(keys.key, KEYS, [row.hash for row in keys.rows])
        digests = self._revealed(keys.key, DIGESTS, [row.digest for row in keys.rows])
        for row, key_hash, digest in zip(keys.rows, hashes, digests, strict=True):
            if self._counts(keys.epoch, row):
                yield KeyLocation((row.topic, row.partition), row.record, row.seq, key_hash, digest)

    def _in_batches(self, batches: Iterable[CommitBatch]) -> Iterator[KeyLocation]:
        last = 0
        for batch in batches:
            epochs = {key.number: key for key in batch.keys}
            for entry in batch.entries:
                if not last < entry.seq <= self._last_seq:
                    continue
                last = entry.seq
                found = idempotent(entry) if entry.idempotency else ()
                epoch, where = epochs.get(entry.key_epoch), (entry.topic, entry.partition)
                hashes = self._revealed(epoch, KEYS, [key_hash for _, key_hash, _ in found])
                digests = self._revealed(epoch, DIGESTS, [digest for _, _, digest in found])
                for (place, _, _), key_hash, digest in zip(found, hashes, digests, strict=True):
                    yield KeyLocation(where, entry.first + place, entry.seq, key_hash, digest)

    def _counts(self, epoch: int, row: StoredKey) -> bool:
        where = (row.topic, row.partition)
        if row.record >= self._ends.get(where, 0):
            return False
        starts = (start for start in self._starts[where] if start.epoch > epoch)
        return all(row.seq <= start.adopted_seq or row.record < start.first for start in starts)

    def _revealed(self, key: TailKey | None, purpose: Purpose, hashes: list[bytes]) -> list[bytes]:
        """What was encrypted."""
        if not hashes:
            return []
        by = (key, purpose)
        if by not in self._hash_ciphers:
            self._hash_ciphers[by] = hash_cipher_of(self._log_id, self._keyring, self._cipher, key, purpose)
        content = self._hash_ciphers[by].decrypt(b"".join(hashes))
        return [content[at : at + _HASH_BYTES] for at in range(0, len(content), _HASH_BYTES)]


def hash_cipher_of(
    log_id: bytes, keyring: Keyring | None, cipher: PayloadCipher | None, key: TailKey | None, purpose: Purpose = KEYS
) -> HashCipher:
    """What decrypts hashes that a key epoch encrypted; raises Invalid where its key is missing, and Corrupt."""
    if key is None:
        return HashCipher(log_id, None)
    vault = Vault(log_id, keyring, cipher)  # one for each: numbers of key epochs may come again in later lives
    vault.attach(lambda number: KeyEpoch(*key) if number == key.number else None)
    return HashCipher(log_id, vault.stamp_under(key.number), purpose)


def _starts(manifest: StoreManifest) -> list[StartDocument]:
    return [document for document in manifest.documents if isinstance(document, StartDocument)]
