"""The keys of a log under examination: which of its key epochs can be trusted to check anything.

A key that opens none of the newest key epochs is a wrong key and is refused. Once one opens, an epoch that
does not is damage, unless the keyring simply lacks its key; then what it encrypted stays unchecked. The log's
id, which all keys depend on, is stored twice; the copy that proves itself is used.
"""

from __future__ import annotations

from holdfast import Keyring
from holdfast.cli.inspection.control_tables import Glance
from holdfast.cli.output import BAD, OK, UNCHECKED
from holdfast.crypto.vault import PLAIN, Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.recovery import LOG_ID_BYTES, fetch_key_epoch
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend


class Keys:
    """What can be opened and verified of one log; `vault` is None for an encrypted log without a key."""

    def __init__(self, backend: SqliteBackend, seen: Glance, format_id: bytes | None, keyring: Keyring | None) -> None:
        self._backend = backend
        self._seen = seen
        self._keyring = keyring
        self._checks: dict[int, tuple[str, str]] = {}
        encrypted = bool(seen.key_epochs) or (seen.log is not None and bool(seen.log.keyed))
        if keyring is not None and not encrypted:
            raise Invalid("this log is not encrypted, but a key was given", hint="leave the keyring out")
        ids = [log_id for log_id in (seen.log and seen.log.log_id, format_id) if log_id] or [bytes(LOG_ID_BYTES)]
        self.log_id = ids[0]
        self.vault = None if encrypted and keyring is None else self._choose(ids)

    def check(self, number: int) -> tuple[str, str]:
        """Whether a key epoch is what it was, and if not, why."""
        if number not in self._checks:
            self._checks[number] = self._admit(number)
        return self._checks[number]

    def _choose(self, ids: list[bytes]) -> Vault:
        """The vault under the id that proves itself."""
        refusals = []
        for log_id in ids:
            vault = self._vault(log_id)
            try:
                self._prove(vault)
            except (Invalid, Corrupt) as error:
                refusals.append(error)
            else:
                self.log_id = log_id
                return vault
        if self._keyring is not None and isinstance(refusals[0], Invalid):
            raise refusals[0]
        self.log_id = ids[-1]
        return self._vault(ids[-1])

    def _vault(self, log_id: bytes) -> Vault:
        vault = Vault(log_id, self._keyring)
        vault.attach(lambda number: fetch_key_epoch(self._backend, number))
        return vault

    def _prove(self, vault: Vault) -> None:
        """Open one of the newest key epochs; of a log without keys, verify its own row."""
        row = self._seen.log
        refusal: Invalid | Corrupt = Corrupt("nothing proves the log's id")
        if self._keyring is None and row is not None and vault.verify(row.key_epoch, row.message(), row.stamp):
            return
        for epoch in reversed(self._seen.key_epochs):
            try:
                vault.cipher(epoch.number)
            except (Invalid, Corrupt) as error:
                refusal = error if isinstance(error, Invalid) else refusal
            else:
                return
        raise refusal

    def _admit(self, number: int) -> tuple[str, str]:
        if self.vault is None:
            return UNCHECKED, ""
        if number == PLAIN:
            return OK, ""
        try:
            self.vault.cipher(number)
        except Corrupt as error:
            return BAD, error.message
        except Invalid as error:
            return (UNCHECKED, "") if self._lacks(number) else (BAD, error.message)
        return OK, ""

    def _lacks(self, number: int) -> bool:
        """Whether the keyring has no key of the name that this epoch was encrypted under."""
        stored = fetch_key_epoch(self._backend, number)
        return self._keyring is not None and stored is not None and stored.key_id not in self._keyring
