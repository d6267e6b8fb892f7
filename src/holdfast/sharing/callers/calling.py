"""Opening a log as a caller: its owner, another process, does what is asked for. For tools, and for readers that ask.

A caller has the same link to the owner as a member, and never becomes the owner. When the owner ends it waits a moment
for the next one, which a service that is started again is; then the link ends, and what was not answered has an unknown
outcome.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import holdfast
from holdfast.clock import Clock
from holdfast.crypto.segment_key import MessageKeys
from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.session_access import remembered_us
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.open_log import OpenArguments
from holdfast.log_directory import Directory
from holdfast.owner.wire import NONCE_BYTES, PROTOCOL, Challenge, Hello, Proof, Welcome
from holdfast.sharing import key_proof, socket_place
from holdfast.sharing.hosting.greeting import check_protocol
from holdfast.sharing.key_proof import check_proof, make_proof
from holdfast.sharing.owner_link import SocketLink
from holdfast.sharing.shared_keys import SharedKeys
from holdfast.sharing.shared_log import compose_member, join_owner
from holdfast.signals import Flag

JOIN_S = 5.0
_CONNECT_S = 5.0
_NO_OWNER_S = 2.0
"""How long a caller waits for the next owner while nobody owns the log, once it had one."""
_NEXT_TRY_S = 0.004


class NoOwner(Unavailable):
    """Nobody owns the log."""


def open_caller(asked: OpenArguments) -> Log:
    """Open a log whose owner is another process, and is asked for what only an owner can do; raises NoOwner."""
    keys = SharedKeys(asked.keyring, asked.cipher)
    meeting = _Meeting(asked.directory, asked.clock, keys)
    link = SocketLink(meeting, asked.clock, remembered_us(asked.settings.journal))
    journal = join_owner(asked, meeting, link, JOIN_S)
    log = compose_member(asked, journal, link, _NeverOwner(), keys)
    parts_of(log).lifetime.shared = _ForkAndExit(link, journal)
    return log


class _Meeting:
    """How a caller's link comes to the owner. By one thread at a time."""

    def __init__(self, directory: Directory, clock: Clock, keys: SharedKeys) -> None:
        self._directory = directory
        self._clock = clock
        self._keys = keys
        self._was_welcome = False
        self.log_id = directory.require_log()

    def connect(self, closing: Flag, deadline: float) -> socket.socket | None:
        """A connection to the owner; None when the link is closing. Raises Unavailable where none comes in time."""
        began = self._clock.monotonic()
        while not closing.is_set():
            try:
                return socket_place.connect(self._directory.path, _CONNECT_S)
            except PermissionError as error:
                raise Unavailable(
                    f"the log belongs to another user path={self._directory.path}: {error}", hint="do this as that user"
                ) from error
            except OSError:
                self._check_waits(self._clock.monotonic(), began, deadline)
            closing.wait(_NEXT_TRY_S)
        return None

    def _check_waits(self, now: float, began: float, deadline: float) -> None:
        """Raise where it is in vain to go on."""
        path, holder = self._directory.path, self._directory.holder()
        if holder is None and now - began >= (_NO_OWNER_S if self._was_welcome else 0.0):
            hint = "open it without read_only=True to do it yourself"
            raise NoOwner(f"nobody owns this log path={path}", hint=hint)
        if now >= min(deadline, began + JOIN_S):
            raise Unavailable(
                f"the log is open in process {holder}, which cannot be asked path={path} pid={holder}",
                hint="it may be opening a long log, be stopped, or be unable to listen in this directory, as it says in"
                " its log output; do this in that process, or when it has ended",
            )

    def hello(self, session: bytes) -> Hello:
        """Who we are: none that would own the log."""
        nonce, keyed = self._clock.random_bytes(NONCE_BYTES), self._message_keys.keyed
        version = holdfast.__version__
        return Hello(PROTOCOL, version, self.log_id, session, os.getpid(), {}, nonce, keyed, shares=False)

    def prove(self, hello: Hello, challenge: Challenge) -> Proof:
        """That we have the log's keys."""
        return Proof(make_proof(self._message_keys, key_proof.HELLO, hello, challenge.nonce))

    def check(self, hello: Hello, challenge: bytes, welcome: Welcome) -> None:
        """Whether the other end is the owner of this log."""
        check_protocol(hello, welcome)
        self._keys.use(check_proof(self._message_keys, key_proof.WELCOME, hello, challenge, welcome.proof))
        self._was_welcome = True

    def leave(self, session: bytes, timeout: float) -> None:
        """Nothing: it owns nothing."""

    @property
    def _message_keys(self) -> MessageKeys:
        return MessageKeys(self._keys.keyring, self._keys.cipher, self.log_id, self._clock.random_bytes)


class _NeverOwner:
    """What a caller knows of who owns its log: another process."""

    def log(self) -> Log | None:
        """None."""
        return None

    def keep(self) -> Log | None:
        """None."""
        return None

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Nothing: the owner refuses to hand over to a caller."""
        yield

    def hold_off(self, seconds: float) -> None:
        """Nothing: it leaves the log to others anyway."""


class _ForkAndExit:
    """A caller's process forks or ends: a child has no owner to ask, and opens the log anew."""

    def __init__(self, link: SocketLink, journal: Journal) -> None:
        self._link = link
        self._journal = journal

    def before_fork(self) -> None:
        """Nothing: what a reader has open may be inherited."""

    def after_fork(self) -> None:
        """Nothing."""

    def in_child(self) -> None:
        """Let go of the connection, which is the parent's."""
        self._link.forget()

    def settle(self, timeout: float) -> None:
        """Have what is queued here written."""
        try:
            self._journal.flush(timeout)
        except HoldfastError:  # closing the log reports it
            pass

    def close(self, timeout: float) -> None:
        """Nothing: the journal ends its link."""
