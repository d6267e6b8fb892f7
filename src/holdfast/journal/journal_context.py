"""What a journal works with: settings, time and keys; and, where its log is shared, who hears from the owner."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.clock import Clock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.journal.journal_settings import JournalSettings


class JournalContext(NamedTuple):
    """What a journal works with, whichever file it is in."""

    settings: JournalSettings
    clock: Clock
    keyring: Keyring | None = None
    cipher: PayloadCipher | None = None


class News(Protocol):
    """What the owner of a shared log tells the others."""

    def watch(self, topic: str) -> None:
        """Have everybody who waits for a topic's partitions be woken when they move."""

    def ask_marks(self, topic: str) -> None:
        """Take up how far a topic is on the store, as the owner knows it."""

    def stop(self) -> None:
        """The log is closed."""

    def owned_here(self) -> object | None:
        """The owner's own log, if that is in this process; None where it is in another one."""

    def own(self) -> object:
        """The owner's own log, in this process from now on; Invalid where another one keeps it."""

    def rotate_key(self, keyring: Keyring) -> None:
        """Have the owner encrypt under this keyring's current key from now on."""

    def make_salt(self) -> None:
        """Have the owner draw the salt that hides keys of items, if there is none yet."""
