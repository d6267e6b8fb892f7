"""The keys of a log: which of its key epochs can be trusted to prove anything.

A key that opens none of the newest key epochs is a wrong key and is refused. Once one opens, an epoch that does not is
damage, unless the keyring simply lacks its key. Opening the log is then refused; an inspection continues, and what that
epoch stamped stays unchecked. The log's id, which all keys depend on, is stored twice, in FORMAT and in the log's own
row; the copy that proves itself is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.crypto.cipher import SYSTEM_RANDOM, PayloadCipher, Random
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import PLAIN, KeyEpoch, Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend, ControlRows

LOG_ID_BYTES = 16
OK, BAD, UNCHECKED = "ok", "BAD", "unchecked"
"""The outcome of a check. Unchecked is not the same as good: there is no key, or other damage is in the way."""


class StampedRow(Protocol):
    """A control row: what its stamp covers, and under which key epoch it was made."""

    @property
    def key_epoch(self) -> int: ...  # noqa: D102
    @property
    def stamp(self) -> bytes: ...  # noqa: D102
    def message(self) -> bytes: ...  # noqa: D102


def fetch_key_epoch(backend: Backend, number: int) -> KeyEpoch | None:
    """A stored key epoch."""
    with backend.reading() as rows:
        return rows.key_epoch(number)


class Proofs:
    """What can be opened and verified of one log; `vault` is None for an encrypted log without a key."""

    def __init__(
        self,
        backend: Backend,
        control: ControlRows,
        log_id: bytes | None,
        keyring: Keyring | None,
        cipher: PayloadCipher | None = None,
        random: Random = SYSTEM_RANDOM,
        *,
        tolerant: bool = False,
    ) -> None:
        self._backend = backend
        self._control = control
        self._source = (keyring, cipher, random)
        self._tolerant = tolerant
        self._checks: dict[int, tuple[str, str]] = {}
        self._blamed: set[int] = set()
        row = control.log
        is_keyed, has_key = bool(control.key_epochs or (row and row.keyed)), keyring is not None or cipher is not None
        if tolerant and has_key and not is_keyed:
            raise Invalid("this log is not encrypted, but a key was passed", hint="leave the keyring out")
        ids = [one for one in (row and row.log_id, log_id) if one] or [bytes(LOG_ID_BYTES)]
        self.log_id = ids[0]
        self.vault = None if tolerant and is_keyed and not has_key else self._choose(list(dict.fromkeys(ids)))

    def stamp(self, row: StampedRow) -> str:
        """Whether a control row is what was stamped; unchecked where its key epoch cannot be used."""
        if self.vault is None or self.key_epoch(row.key_epoch)[0] is not OK:
            return UNCHECKED
        return OK if self.vault.verify(row.key_epoch, row.message(), row.stamp) else BAD

    def key_epoch(self, number: int) -> tuple[str, str]:
        """Whether a key epoch is what it was: its key, its commitment, its stamp; and if not, why."""
        found = self._checks.get(number)
        if found is None:
            found = self._checks[number] = self._admit(number)
        return found

    def blame(self, number: int) -> str | None:
        """What is wrong with a key epoch, said once: it is to blame, and not the many rows under it."""
        check, reason = self.key_epoch(number)
        if check is not BAD or number in self._blamed:
            return None
        self._blamed.add(number)
        return f"a key epoch cannot be used key_epoch={number}: {reason}"

    def _choose(self, ids: list[bytes]) -> Vault:
        """The vault under the id that proves itself; if none does, under the one in FORMAT."""
        vaults = [self._vault(log_id) for log_id in ids]
        refusals: list[Invalid | Corrupt] = []
        for vault in vaults:
            try:
                self._prove(vault)
            except (Invalid, Corrupt) as error:
                refusals.append(error)
            else:
                self.log_id = vault.log_id
                return vault
        if vaults[0].keyed and all(isinstance(refusal, Invalid) for refusal in refusals):
            raise refusals[0]
        self.log_id = ids[-1]
        return vaults[-1]

    def _vault(self, log_id: bytes) -> Vault:
        vault = Vault(log_id, *self._source)
        vault.attach(lambda number: fetch_key_epoch(self._backend, number))
        return vault

    def _prove(self, vault: Vault) -> None:
        """Verify the log's own row; for an inspection it is enough to open one of the newest key epochs."""
        row = self._control.stored  # what follows from groups in files has no stamp yet
        refusal: Invalid | Corrupt = Corrupt("nothing proves the log's id")
        proofs: list[Callable[[], object]] = []
        if row is not None:
            proofs.append(partial(vault.verify, row.key_epoch, row.message(), row.stamp))
        if self._tolerant:
            proofs += [partial(vault.cipher, epoch.number) for epoch in reversed(self._control.key_epochs)]
        for prove in proofs:
            try:
                if prove():
                    return
            except (Invalid, Corrupt) as error:
                refusal = error if isinstance(error, Invalid) else refusal
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
            if not self._tolerant:
                raise
            return (UNCHECKED, "") if self._lacks(number) else (BAD, error.message)
        return OK, ""

    def _lacks(self, number: int) -> bool:
        """Whether the keyring has no key of the name that this epoch is under."""
        keyring, found = self._source[0], fetch_key_epoch(self._backend, number)
        return keyring is not None and found is not None and found.key_id not in keyring
