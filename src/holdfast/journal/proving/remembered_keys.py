"""Idempotency keys of one journal as they travel to the store: read in the order of commits, proved, encrypted.

A row that does not match its stamp is left out: the journal would refuse it, too, and nobody may get it a new stamp by
way of the store. Belongs to one thread, the shipper's; only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence

from holdfast.crypto.key_hashes import KEYS
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.errors import Corrupt
from holdfast.journal.backend import Backend
from holdfast.journal.proving.proofs import fetch_key_epoch
from holdfast.journal.state.partition import Partition
from holdfast.model.control_rows import KeyRow

logger = logging.getLogger("holdfast.shipping")


class RememberedKeys:
    """The idempotency keys of one journal."""

    def __init__(self, backend: Backend, vault: Vault, partitions: Container[int]) -> None:
        self._backend = backend
        self._vault = vault
        self._partitions = partitions
        self._epochs: dict[int, KeyEpoch] = {}

    @property
    def present_epoch(self) -> int:
        """The key epoch under which keys are encrypted now; 0 in a log without keys."""
        return self._vault.epoch

    def last_id_upto(self, seq: int) -> int:
        """Id of the newest key that came with this commit or before."""
        with self._backend.reading() as rows:
            return rows.last_key_upto(seq)

    def first_seq(self) -> int | None:
        """With which commit the oldest key came that is still remembered; None when there is none."""
        with self._backend.reading() as rows:
            return rows.first_key_seq()

    def newest_below(self, after: int, partition: Partition, end: int, batched: tuple[int, int]) -> int:
        """The last commit that brought a key of a partition's records below `end`, but for those in batches."""
        with self._backend.reading() as rows:
            return rows.newest_key_below(after, partition.id, end, batched)

    def rows(self, after: int, first_seq: int, last_seq: int, limit: int = -1) -> list[KeyRow]:
        """Keys behind an id that came with these commits, in order, each proved."""
        with self._backend.reading() as rows:
            found = list(rows.keys_behind(after, first_seq, last_seq, limit))
        proved = [row for row in found if not isinstance(row, Corrupt) and self._is_proved(row)]
        if len(proved) != len(found):
            logger.error(
                "%d idempotency keys do not match their stamps and are not shipped",
                len(found) - len(proved),
                extra={"action": "keys_damaged", "keys": len(found) - len(proved)},
            )
        return proved

    def encrypt(self, epoch: int, hashes: Sequence[bytes]) -> list[bytes]:
        """Hashes as they may lie on the store; under the key epoch of what they lie in."""
        content = self._vault.hash_cipher(epoch, KEYS).encrypt(b"".join(hashes))
        return [content[at : at + 16] for at in range(0, len(content), 16)]

    def digests(self, epoch: int, rows: Sequence[KeyRow]) -> list[bytes]:
        """Digests of what keys stand for as they may lie on the store, encrypted under the key epoch of that."""
        vault = self._vault
        found = []
        for row in rows:
            digest = row.digest
            if row.key_epoch != epoch:
                digest = vault.hash_cipher(epoch).encrypt(vault.hash_cipher(row.key_epoch).decrypt(digest))
            found.append(digest)
        return found

    def key_epoch(self, number: int) -> KeyEpoch:
        """What is needed to decrypt what a key epoch encrypted, besides the key."""
        if number not in self._epochs:
            epoch = fetch_key_epoch(self._backend, number)
            assert epoch is not None  # the vault has encrypted under it
            self._epochs[number] = epoch
        return self._epochs[number]

    def _is_proved(self, row: KeyRow) -> bool:
        if (
            len(row.hash) != 16
            or len(row.digest) not in (0, 16)
            or row.partition_id not in self._partitions
            or row.record < 0
        ):
            return False
        try:
            return self._vault.verify(row.key_epoch, row.message(), row.stamp)
        except Corrupt:  # of a key epoch that is none
            return False
