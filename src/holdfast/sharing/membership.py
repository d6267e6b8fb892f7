"""Membership: one process among those that share a log. The one with the directory's lock owns it and hosts the rest.

Becoming the owner is opening the log, as an owner always does: recovery first, then listening. The others connect; when
their connection ends they try the lock and the socket in turn, a few milliseconds apart, until one of the two lets them
in. The kernel lets go of a lock when its process ends, however it ends; a process that is only stopped keeps it, and
then everybody waits.

An owner that leaves while others are there hands over: the host drains, the log is closed without sealing or shipping
(the next owner goes on with that), and the lock is free. The last one closes the log as any owner would: when several
leave at once, each may believe that another one stays, so the one that hands over looks whether another takes it.
"""

from __future__ import annotations

import logging
import os
import socket
from _thread import RLock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Protocol

import msgspec
from blake3 import blake3

import holdfast
from holdfast.caller import once
from holdfast.clock import Clock
from holdfast.crypto.segment_key import MessageKeys
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.journal.journal import Journal
from holdfast.log_directory import Directory, moved_away
from holdfast.owner.link_port import HAND_OVER_S
from holdfast.owner.wire import NONCE_BYTES, PROTOCOL, Challenge, Hello, Proof, Welcome
from holdfast.settings import Settings
from holdfast.sharing import key_proof, socket_place
from holdfast.sharing.hosting.greeting import Greeting, check_protocol
from holdfast.sharing.hosting.host import Host
from holdfast.sharing.hosting.listening import Listening
from holdfast.sharing.key_proof import check_proof, make_proof
from holdfast.sharing.shared_keys import SharedKeys
from holdfast.signals import Flag

_CONNECT_S = 5.0
_NEXT_TRY_S = 0.004
_LATER_S = 0.5
"""Between two attempts to own a log that cannot be owned now."""
_TAKEN_S = 0.3
"""How long an owner that has left looks whether another one owns the log: those who want it try all the time."""
_DIGEST_BYTES = 8

logger = logging.getLogger("holdfast.sharing")


class Owner(Protocol):
    """The log that a member owns for all of them."""

    @property
    def journal(self) -> Journal:
        """Its journal."""

    def settle(self, timeout: float) -> None:
        """The process ends: make durable, seal and ship what is there, and go on."""

    def close(self, timeout: float, *, hand_over: bool) -> None:
        """Close it; with `hand_over` another member goes on with sealing and shipping."""


class MemberOptions(NamedTuple):
    """How a log is to be opened."""

    path: Path
    settings: Settings
    clock: Clock
    keys: SharedKeys


OpenOwner = Callable[[Directory], Owner]
"""Open the log in a directory that is locked, and release it where that fails."""

SetCalls = Callable[[Host, Owner], None]


class Membership:
    """One member's part in a shared log.

    Any thread may use it. `_change` is held while it becomes the owner or stops being it, however long opening or
    closing the log takes; `_lock`, for a moment, while what is known of that is read or changed. What is known of the
    owner that was met belongs to the link's thread, until that has ended.
    """

    def __init__(self, asked: MemberOptions, open_owner: OpenOwner, set_calls: SetCalls) -> None:
        self._asked = asked
        self._path, self._clock = asked.path, asked.clock
        self._open_owner = open_owner
        self._set_calls = set_calls
        self._digests = settings_digests(asked.settings)
        self._change = RLock()
        self._lock = RLock()  # a signal handler may look who owns the log
        self._owner: Owner | None = None
        self._host: Host | None = None
        self._is_over = False
        self._keeps = False
        self._wanted = 0
        """How many threads wait for this member to be the owner, and will keep the log then."""
        self._leaving: Owner | None = None
        """What was asked for first, and is about to be handed over: the second to ask asks the next owner."""
        self._held_off_until = -inf
        self._is_paused = False
        """Nobody becomes the owner here at the moment: the process is about to fork."""
        self._was_welcome = False
        """An owner has taken us for a member. A process that never was one (other settings, no keys) closes nothing."""
        self._has_warned = False
        self.log_id = b""
        """Known once a process has opened the log."""

    @property
    def owner(self) -> Owner | None:
        """The log that this member owns for all; None where another one does."""
        with self._lock:
            return self._owner

    def keep(self) -> Owner | None:
        """The log that this member owns for all, which it does not hand over on request any more; None: another one's.

        Something is to run here that needs the owner's own log. Asked for and kept in one step: what was handed over in
        between would be closed under its user.
        """
        with self._lock:
            self._keeps = self._keeps or self._owner is not None
            return self._owner

    def hold_off(self, seconds: float) -> None:
        """Leave the log to other members for so long, if it becomes free."""
        with self._lock:
            self._held_off_until = self._clock.monotonic() + seconds

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Meanwhile a thread here is about to keep the log: once it is owned here, it is not handed over again."""
        with self._lock:
            self._wanted += 1
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1

    def hand_over(self, announce: Callable[[], None]) -> None:
        """Stop being the owner on request, soon, and go on as a client; Invalid where that cannot be.

        `announce` says to the others whose turn it is; it is called for the first one that asks, and for nobody else:
        two that leave the log to each other would leave it to nobody.
        """
        with self._lock:
            owner, keeps = self._owner, self._keeps_now
            is_first = not keeps and self._leaving is not owner
            if is_first:
                self._leaving = owner
        if keeps:
            raise Invalid(
                "the process that owns this log keeps it: it serves it, or runs executions or channels"
                f" pid={os.getpid()}",
                hint="one process does all of that for a log: do it there, or try again when that one has ended",
            )
        if is_first:
            announce()
            Thread(target=self._hand_over, args=(owner,), name="holdfast-hand-over", daemon=True).start()

    @property
    def _keeps_now(self) -> bool:
        return self._keeps or self._wanted > 0

    def _hand_over(self, owner: Owner) -> None:
        """Let go of what was asked for; not if it is kept by now, or gone already."""
        with once(self._change):
            with self._lock:
                if self._owner is not owner or self._keeps_now:
                    self._leaving = None
                    return
                self.hold_off(HAND_OVER_S)
                taken = self._taken_away()  # in one step with looking: nobody keeps it in between, and has it closed
            self._close_taken(*taken, _CONNECT_S, lambda host: True)

    # -- finding the owner --------------------------------------------------------------------------------

    def connect(self, closing: Flag, deadline: float) -> socket.socket | None:
        """A connection to the owner, or to ourselves once we are it; None when the link is closing.

        Raises Unavailable at the deadline, and where the holder of the lock does not share the log.
        """
        foreign = 0
        while not closing.is_set():
            if self._clock.monotonic() > deadline:
                holder = Directory(self._path).holder()
                raise Unavailable(
                    f"the log's owner does not answer path={self._path} pid={holder}",
                    hint="it may be stopped, or opening a long log; try again",
                )
            try:
                if not Directory(self._path).is_shared():
                    raise ConnectionRefusedError  # by an owner that does not share the log
                sock = socket_place.connect(self._path, _CONNECT_S)
            except PermissionError as error:
                raise Unavailable(
                    f"the log belongs to another user path={self._path}: {error}", hint="open it as that user"
                ) from error
            except OSError:
                if not self._own_or_wait(closing):
                    foreign = self._check_shared(foreign)
                    closing.wait(self._jitter())
            else:
                self.log_id = self.log_id or Directory(self._path).require_log()
                return sock
        return None

    def _jitter(self) -> float:
        return _NEXT_TRY_S * (1 + self._clock.random_bytes(1)[0] / 128)

    def _check_shared(self, foreign: int) -> int:
        """The holder of the lock shares the log, or has a moment to say so; raises Unavailable.

        A process that has shared it already is not ended by a tool that came in between two owners: it waits.
        """
        directory = Directory(self._path)
        if self.log_id or directory.is_shared() or directory.holder() is None:
            return 0
        if foreign < _LOOKS:
            return foreign + 1
        raise Unavailable(
            f"the log is open in process {directory.holder()}, which does not share it path={self._path}",
            hint="open it with share=True there, too, or close it there first",
        )

    def _own_or_wait(self, closing: Flag) -> bool:
        """Become the owner, if nobody is; whether we are.

        Where that is not possible now (the disk is full, no descriptor is left), the opener of the log learns why. A
        member goes on trying: another one may own the log meanwhile, or there be room. Callers have their time-outs.
        """
        try:
            return self._try_to_own()
        except (Unavailable, OSError) as error:
            if not self._was_welcome:
                raise
            if not self._has_warned:
                why = error.message if isinstance(error, Unavailable) else error
                logger.warning("the log cannot be owned here now: %s", why, extra={"action": "owner_failed"})
            self._has_warned = True
            closing.wait(_LATER_S)
            return False

    def _try_to_own(self) -> bool:
        """Become the owner, if nobody is; whether we are."""
        directory = Directory(self._path)
        with once(self._change):
            host = self._host  # only the holder of `_change` sets it
            if host is not None and not host.is_alive:
                self._give_up()
            if not self._may_own() or not self._lock_directory(directory):
                return False
            owner = self._open_owner(directory)
            try:
                listening = Listening(self._path, directory.is_ours)
                greeting = Greeting(owner.journal, self._clock, self._digests)
                host = Host(owner.journal, listening, greeting.greet, self._clock)
                self._set_calls(host, owner)
                host.start()
            except BaseException:
                _close_failed(owner)
                raise
            self.log_id = owner.journal.log_id
            self._has_warned = False
            with self._lock:
                self._owner, self._host = owner, host
        logger.info("this process owns the shared log now", extra={"action": "owner", "path": str(self._path)})
        return True

    def _may_own(self) -> bool:
        with self._lock:
            is_held_off = self._clock.monotonic() < self._held_off_until
            return not (self._is_over or self._is_paused or is_held_off or self._host is not None)

    def _lock_directory(self, directory: Directory) -> bool:
        """Take the directory's lock, if nobody has it; raises Closed where our log is not there any more.

        It was moved away, or removed. To own what is there now would begin another log, or write into one.
        """
        self._require_same_log(directory)
        if not directory.try_to_own(shared=True):
            return False
        try:
            self._require_same_log(directory)
        except BaseException:
            directory.release()
            raise
        return True

    def _require_same_log(self, directory: Directory) -> None:
        if self.log_id and directory.log_id() != self.log_id:
            raise moved_away(self._path)

    def _give_up(self) -> None:
        """Our log has failed, or our host has died of a defect: let go of it, so that another process can own it."""
        _, owner = self._taken_away()
        if owner is not None:
            _close_failed(owner)

    def _taken_away(self) -> tuple[Host | None, Owner | None]:
        """What this member owned, and does not from now on; with `_change` held."""
        with self._lock:
            host, owner = self._host, self._owner
            self._host = self._owner = self._leaving = None
        return host, owner

    # -- saying hello -------------------------------------------------------------------------------------

    def hello(self, session: bytes) -> Hello:
        """Who we are."""
        nonce, keyed = self._clock.random_bytes(NONCE_BYTES), self._keys.keyed
        return Hello(PROTOCOL, holdfast.__version__, self.log_id, session, os.getpid(), self._digests, nonce, keyed)

    def prove(self, hello: Hello, challenge: Challenge) -> Proof:
        """That we have the log's keys."""
        return Proof(make_proof(self._keys, key_proof.HELLO, hello, challenge.nonce))

    @property
    def _keys(self) -> MessageKeys:
        keys = self._asked.keys
        return MessageKeys(keys.keyring, keys.cipher, self.log_id, self._clock.random_bytes)

    def check(self, hello: Hello, challenge: bytes, welcome: Welcome) -> None:
        """Whether we were welcomed by an owner that speaks our protocol."""
        check_protocol(hello, welcome)
        # Another key of ours than the current one: it was rotated to while we were between two owners.
        self._asked.keys.use(check_proof(self._keys, key_proof.WELCOME, hello, challenge, welcome.proof))
        self._was_welcome = True

    # -- leaving ------------------------------------------------------------------------------------------

    def leave(self, session: bytes, timeout: float) -> None:
        """Stop being the owner, if we are: others take over, and the last one closes the log as any owner would."""
        with self._lock:
            self._is_over = True
        with once(self._change):
            is_handed_over = self._let_go(timeout, lambda host: host.others(session) > 0)
        if is_handed_over:
            self._wait_for_an_owner()
        if is_handed_over is not False and self._was_welcome:
            self._close_if_unowned(timeout)

    def _wait_for_an_owner(self) -> None:
        directory, until = Directory(self._path), self._clock.monotonic() + _TAKEN_S
        while directory.holder() is None and self._clock.monotonic() < until:
            Flag().wait(_NEXT_TRY_S)

    def pause(self, timeout: float) -> None:
        """Own nothing until `resume`; others that share the log may take it over, and we go on as its client."""
        with self._lock:
            self._is_paused = True
        with once(self._change):
            self._let_go(timeout, lambda host: True)

    def resume(self) -> None:
        """This member may own the log again."""
        with self._lock:
            self._is_paused = False

    def settle(self, timeout: float) -> None:
        """The process ends: seal and ship what is there, if we are the owner, and go on."""
        owner = self.owner
        if owner is not None:
            owner.settle(timeout)

    def _let_go(self, timeout: float, hand_over: Callable[[Host], bool]) -> bool | None:
        """Stop being the owner; None if we are not. With `hand_over` the next one goes on where we stop, and that is
        what is returned. `_change` is held.
        """
        return self._close_taken(*self._taken_away(), timeout, hand_over)

    def _close_taken(
        self, host: Host | None, owner: Owner | None, timeout: float, hand_over: Callable[[Host], bool]
    ) -> bool | None:
        if host is None or owner is None:
            return None
        is_handed_over = hand_over(host)
        if not host.drain(timeout):
            host.stop(timeout)
        if is_handed_over and owner.journal.end is not None:
            _close_failed(owner)
        else:
            owner.close(timeout, hand_over=is_handed_over)
        return is_handed_over

    def _close_if_unowned(self, timeout: float) -> None:
        """The owner may have handed over to one that was leaving, too: then the log is closed by us."""
        directory = Directory(self._path)
        if directory.holder() is None and self._lock_directory(directory):
            self._open_owner(directory).close(timeout, hand_over=False)


_LOOKS = 50


def _close_failed(owner: Owner) -> None:
    """Close a log that has failed: what it did not answer is sent again to the next owner."""
    try:
        owner.close(_CONNECT_S, hand_over=True)
    except HoldfastError as error:  # it was logged when it failed
        logger.warning("the owner has failed, and lets go: %s", error.message, extra={"action": "owner_failed"})


_OWN_AFFAIRS = {
    "server",
    "telemetry",
    "journal.ack_timeout_ms",
    "journal.close_timeout_ms",
    "segments.seal_on_close",
    "shipping.shipped_timeout_ms",
}
"""What each process does for itself: how it serves, what it tells, how long its callers wait, how it leaves."""


def settings_digests(settings: Settings) -> dict[str, bytes]:
    """A short digest of each setting: a process that may become the owner must do the same as the present one."""
    digests = {}
    for section in settings.__struct_fields__:
        for setting, value in msgspec.to_builtins(getattr(settings, section)).items():
            name = f"{section}.{setting}"
            if not {section, name} & _OWN_AFFAIRS:
                digests[name] = blake3(msgspec.msgpack.encode(_plain(value), order="sorted")).digest(_DIGEST_BYTES)
    return digests


def _plain(value: object) -> object:
    """A value of a setting, however it was written: 5 and 5.0 are the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
