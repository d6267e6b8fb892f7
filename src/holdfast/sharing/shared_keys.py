"""The keys of one member of a shared log: those that it was opened with, and those that it has learned since.

A key that is to become the log's current one is known everywhere before anything is written under it, behind the
present one; it comes in front when the owner has rotated. A process that takes the log over, or opens it again after a
fork, takes the keys from here.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable

from holdfast.caller import once
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring


class SharedKeys:
    """What one process has to encrypt and decrypt with."""

    def __init__(self, keyring: Keyring | None, cipher: PayloadCipher | None) -> None:
        self.keyring = keyring
        self.cipher = cipher
        self.on_change: Callable[[Keyring], None] = lambda keyring: None
        """Called with the keys that there are now."""
        self._lock = RLock()

    def learn(self, new_keys: Keyring) -> None:
        """Know these keys, too; Invalid where one of them is another than the one that is known by its name."""
        with once(self._lock):
            if self.keyring is not None:
                self._become(self.keyring.joined(new_keys))

    def use(self, key_id: str) -> None:
        """The log is encrypted under this key now; nothing if it is not known here."""
        with once(self._lock):
            if self.keyring is not None and key_id in self.keyring and key_id != self.keyring.current:
                self._become(self.keyring.led_by(key_id))

    def _become(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.on_change(keyring)
