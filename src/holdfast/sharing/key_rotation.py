"""Another key for a log that many processes use: known by all of them, then written under.

    a member asks → the owner sends the keys to everybody, and waits until all have them → rotates → says so

Keys travel encrypted under the log's present key, which both ends of every connection proved to have when they met. A
process that comes while this goes on waits for its end; one that does not take the keys in time keeps the old key in
use, and the caller learns which process that was. Nothing is ever written under a key that a member does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Lock
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import Clock
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Unavailable
from holdfast.journal.commit.owner_calls import Asking, Nothing
from holdfast.owner.log_owner import EncryptedKeys, TookKeys
from holdfast.owner.peer import Peer
from holdfast.sharing.key_proof import KEYS, ROTATE, decrypted, encrypted

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal
    from holdfast.sharing.hosting.host import Host
    from holdfast.sharing.owner_link import SocketLink
    from holdfast.sharing.shared_keys import SharedKeys

TAKE_KEYS, ROTATED = "keys", "rotated"
_GRACE_S = 2.0
"""How much longer than the owner itself one waits for its answer."""
_TAKE_S = 10.0
"""How long members have to take keys."""
_LOOK_AGAIN_S = 0.05


class KeyRotated(msgspec.Struct, frozen=True, array_like=True):
    """The event `rotated`: the log is encrypted under this key now."""

    key_id: str


_encode = msgspec.msgpack.encode
_given = msgspec.msgpack.Decoder(EncryptedKeys).decode
_rotated = msgspec.msgpack.Decoder(KeyRotated).decode


class RotationCalls:
    """Rotates for the clients of one owner, one at a time; `_news` guards who took the keys of which rotation."""

    def __init__(self, host: Host, journal: Journal, clock: Clock) -> None:
        self._host = host
        self._journal = journal
        self._clock = clock
        self._one_at_a_time = Lock()
        self._number = 0
        self._took: set[Peer] = set()
        self._news = Condition()

    def rotate(self, caller: Peer, asked: EncryptedKeys) -> Nothing:
        """Write under another key, once all members have it."""
        present = self._journal.message_keys
        keyring = _keyring(decrypted(present, ROTATE, caller.session, asked.body))
        keyring.check_follows(present.keyring)
        if not self._one_at_a_time.acquire(blocking=False):
            raise Unavailable("the key of this log is being changed already", hint="wait a moment, then try again")
        try:
            self._host.is_welcoming = False  # a process that comes now would not get the keys
            self._give(keyring)
            self._journal.rotate(keyring)
            self._host.publish(ROTATED, _encode(KeyRotated(keyring.current)))
        finally:
            self._host.is_welcoming = True
            self._one_at_a_time.release()
        return Nothing()

    def _give(self, keyring: Keyring) -> None:
        """Have all clients know a keyring."""
        with self._news:
            self._number += 1
            number = self._number
            self._took.clear()
        callers, keys = self._host.callers(), self._journal.message_keys
        for caller in callers:
            body = encrypted(keys, KEYS, caller.session, keyring.encode())
            caller.tell(TAKE_KEYS, _encode(EncryptedKeys(body, number)))
        deadline = self._clock.monotonic() + _TAKE_S
        with self._news:
            while late := [one for one in callers if one not in self._took and not one.is_gone]:
                if self._clock.monotonic() > deadline:
                    raise Unavailable(
                        f"a process that shares the log did not take the key; nothing was changed pid={late[0].pid}",
                        hint="it may be stopped: let it go on, or end it, then rotate again",
                    )
                self._news.wait(_LOOK_AGAIN_S)

    def took(self, caller: Peer, taken: TookKeys) -> Nothing:
        """A member has the keys of this number."""
        with self._news:
            if taken.number == self._number:
                self._took.add(caller)
            self._news.notify_all()
        return Nothing()


class KeyNews:
    """Asks for a rotation, and takes keys, for one member."""

    def __init__(
        self,
        link: SocketLink,
        asking: Asking,
        keys: SharedKeys,
        journal: Journal,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """`soon` does something in a thread that may wait for the owner."""
        self._link = link
        self._asking = asking
        self._keys = keys
        self._journal = journal
        keys.on_change = journal.rotate
        link.on_event(TAKE_KEYS, lambda body: soon(lambda: self._take(body)))
        link.on_event(ROTATED, self._use)

    def rotate(self, keyring: Keyring) -> None:
        """Have the log encrypted under this keyring's current key from now on, and all that share it know that."""
        keyring.check_follows(self._keys.keyring)
        body = encrypted(self._journal.message_keys, ROTATE, self._link.session, keyring.encode())
        timeout = _TAKE_S + self._journal.settings.ack_timeout_ms / 1000
        self._link.call("rotate_key", EncryptedKeys(body), Nothing, timeout + _GRACE_S)
        self._keys.use(keyring.current)

    def _take(self, body: bytes) -> None:
        given = _given(body)
        self._keys.learn(_keyring(decrypted(self._journal.message_keys, KEYS, self._link.session, given.body)))
        self._asking.ask("took_keys", TookKeys(given.number), Nothing, _TAKE_S)

    def _use(self, body: bytes) -> None:
        self._keys.use(_rotated(body).key_id)


def _keyring(text: bytes) -> Keyring:
    return Keyring.from_callable(text.decode)
