"""Opening entries of a tail, so that nothing is taken over that cannot be read later.

An encrypted entry is decrypted with the log's keys: it cannot have been made without one. The frame of its records must
hold as many as the entry says. Of a log without keys only the latter is proved, and that is consistency, not origin.
"""

from __future__ import annotations

from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.model import frame
from holdfast.model.entry import CODECS, RAW, TYPED
from holdfast.model.record_columns import BadRecords
from holdfast.recovery.fetching import KeyDemand
from holdfast.root.objects.commit_batch import CommitBatch, TailEntry
from holdfast.store.layout import TAIL


class EntryProof:
    """Opens the entries of one tail."""

    def __init__(self, log_id: bytes, keyring: Keyring | None, cipher: PayloadCipher | None, demand: KeyDemand) -> None:
        self._demand = demand
        self._known: dict[int, KeyEpoch] = {}
        self._vault = Vault(log_id, keyring, cipher)
        self._vault.attach(self._known.get)

    def __call__(self, batch: CommitBatch, entry: TailEntry, header: bytes) -> None:
        """Open one entry; raises NotAuthentic, BadFrame, or Invalid where a key is missing."""
        self._demand.require(is_encrypted=bool(entry.key_epoch), path=TAIL)
        if entry.key_epoch and entry.key_epoch not in self._known:
            key = next(key for key in batch.keys if key.number == entry.key_epoch)
            self._known[key.number] = KeyEpoch(*key)
        _require_frame(entry, self._vault.decrypt(entry.key_epoch, bytes(entry.body), header))


def _require_frame(entry: TailEntry, body: bytes) -> None:
    if entry.codec not in CODECS or entry.kind not in (RAW, TYPED) or (entry.kind == TYPED) != bool(entry.schema):
        raise BadRecords(f"it is of no known kind kind={entry.kind} codec={entry.codec}")
    records = frame.sections(body).records if entry.kind == RAW else frame.decode_typed(body)[0]
    if records != entry.count:
        raise BadRecords(f"it has others records={records} said={entry.count}")
