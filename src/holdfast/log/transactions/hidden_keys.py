"""Keys of users' items, hidden: in a log with keys nobody who has only its files learns what they are.

The journal stores an item under a key that it does not hide. So the keys of users' items are stored as hashes, under a
salt of 32 random bytes, and stand in the items' bodies, which are encrypted. Without the salt nobody can try names
until one fits. It lies in a space of its own, encrypted like any body, one for all spaces of a log, and goes with the
first unit that puts an item: `change` is part of every such unit until it is durable. Where several processes share a
log, each would draw another one: so the owner does it, in a commit of its own, before the first of them needs it. A log
without keys does the same; there the salt can be read.
"""

from __future__ import annotations

from _thread import RLock

from blake3 import blake3

from holdfast.caller import once
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.journal_port import JournalPort
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.ports import Item
from holdfast.model.control_rows import ITEM_KEY_BYTES_MAX

_SPACE = "space-keys"
_SALT = b"salt"
_SALT_BYTES = 32
_HASH_BYTES = 16
_LENGTH_BYTES = 2


class HiddenKeys:
    """How the items of one log's users are stored."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal
        self._salt: bytes | None = None
        self._is_durable = False
        self._lock = RLock()
        self._making = RLock()

    def item(self, space: str, key: bytes, body: bytes) -> Item:
        """An item to put, in one unit with `change`."""
        if len(key) > ITEM_KEY_BYTES_MAX:
            raise Invalid(f"a key is up to {ITEM_KEY_BYTES_MAX} bytes", hint="shorten it")
        return self.stored_key(space, key), 0, len(key).to_bytes(_LENGTH_BYTES, "big") + key + body

    def change(self) -> tuple[ChangeSpace, int] | None:
        """What must be in a unit that puts items, and its bytes; None once the salt is durable."""
        if self._is_durable or self._is_found():
            return None
        return self._journal.spaces.checked(_SPACE, [(_SALT, 0, self._salt_now())], [])

    def stored_key(self, space: str, key: bytes) -> bytes:
        """Under which key an item is stored."""
        if not self._is_durable and not self._is_found() and self._journal.news is not None:
            self._journal.news.make_salt()
            self._is_found()
        name = space.encode()
        framed = len(name).to_bytes(_LENGTH_BYTES, "big") + name + key
        return blake3(self._salt_now() + framed).digest()[:_HASH_BYTES]

    def opened(self, space: str, stored: bytes) -> tuple[bytes, bytes]:
        """Key and body of an item that was stored."""
        length = int.from_bytes(stored[:_LENGTH_BYTES], "big")
        if len(stored) < _LENGTH_BYTES + length:  # it is proved: only another version could have written it
            raise Corrupt(f"an item of a space cannot be understood space={space!r}")
        return stored[_LENGTH_BYTES : _LENGTH_BYTES + length], stored[_LENGTH_BYTES + length :]

    def make(self) -> None:
        """By the owner, for all who share the log: have a salt, durably."""
        with once(self._making):
            change = self.change()
            if change is not None:
                timeout = self._journal.settings.ack_timeout_ms / 1000
                self._journal.transact([change[0]], records=0, size=change[1], timeout=timeout).result()

    def _is_found(self) -> bool:
        """Whether the salt is durable; then it is the one that counts."""
        salt = self._journal.spaces.get(_SPACE, _SALT)
        if salt is not None:
            self._salt, self._is_durable = salt, True
        return salt is not None

    def _salt_now(self) -> bytes:
        with once(self._lock):  # not two of them
            if self._salt is None:
                self._salt = self._journal.clock.random_bytes(_SALT_BYTES)
            return self._salt
