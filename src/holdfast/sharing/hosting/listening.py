"""Where clients come in: the socket in the log's directory, as the host's thread listens there.

A socket's name can be removed under its owner, by a cleaner of files or by hand. Who is connected notices nothing, and
nobody can join any more: so the owner looks every second whether its own socket is still there, and else listens anew.
It does so only in a directory whose lock it has: where that was moved away and another log is in its place, the socket
there is another owner's.

A process that has no descriptor left cannot accept a client, and the kernel says all the time that one waits. Then
nobody listens for a moment, instead of all the time in vain; those who wait in line stay there.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.errors import HoldfastError, Unavailable
from holdfast.owner.wire import REFUSED, frame, refusal
from holdfast.sharing import socket_place

_ACCEPTED_AT_ONCE = 64
_LOOK_AGAIN_S = 1.0
_REST_S = 0.1
"""How long nobody is accepted after that has failed."""
_NOBODY_LEFT = (errno.EAGAIN, errno.EWOULDBLOCK)
_HUNG_UP = (errno.ECONNABORTED, errno.EINTR, errno.EPROTO)

logger = logging.getLogger("holdfast.sharing")


class Listening:
    """The socket of one owner, watched by the host's selector."""

    def __init__(self, directory: Path, is_ours: Callable[[], bool], begun: socket.socket | None = None) -> None:
        """`is_ours` says whether the directory at this path is the one that we have locked; `begun` listens already."""
        self._directory = directory
        self._is_ours = is_ours
        self._begun = begun
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._name: tuple[int, int] | None = None
        """Which file our socket is."""
        self._looked_at = 0.0
        self._rests_until: float | None = None
        self._has_warned = False

    @property
    def is_open(self) -> bool:
        """Whether anybody can come."""
        return self._socket is not None

    @property
    def is_resting(self) -> bool:
        """Whether nobody is accepted for a moment."""
        return self._rests_until is not None

    @property
    def patience(self) -> float:
        """After so many seconds it is time to look again."""
        return _REST_S if self.is_resting else _LOOK_AGAIN_S

    def open(self, selector: selectors.BaseSelector, now: float) -> None:
        """Listen, and have this selector say when a client comes."""
        self._selector, self._looked_at = selector, now
        self._listen()

    def _listen(self) -> None:
        assert self._selector is not None
        self._socket, self._begun = self._begun or socket_place.listen(self._directory), None
        self._name = socket_place.name(self._directory)
        self._selector.register(self._socket, selectors.EVENT_READ, self)

    def accepted(self, now: float) -> Iterator[socket.socket]:
        """Who has come, and is of our user."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._socket is None or self.is_resting:
                return
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if error.errno in _HUNG_UP:
                    continue
                if error.errno not in _NOBODY_LEFT:
                    self._rest(error, now)
                return
            self._has_warned = False
            try:
                socket_place.check_peer(sock)
            except OSError as error:
                logger.warning("a client was refused: %s", error, extra={"action": "client_refused"})
                sock.close()
                continue
            yield sock

    def _rest(self, error: OSError, now: float) -> None:
        assert self._selector is not None
        assert self._socket is not None
        self._warn(f"nobody can join the shared log at the moment: {error.strerror}")
        self._selector.unregister(self._socket)
        self._rests_until = now + _REST_S

    def look(self, now: float) -> None:
        """Accept again after a rest; listen anew where our socket is gone."""
        if self._socket is None or self._selector is None:
            return
        if self._rests_until is not None and now >= self._rests_until:
            self._rests_until = None
            self._selector.register(self._socket, selectors.EVENT_READ, self)
        if now - self._looked_at < _LOOK_AGAIN_S or self.is_resting:
            return
        self._looked_at = now
        if socket_place.name(self._directory) != self._name and self._is_ours():
            self._listen_anew()

    def _listen_anew(self) -> None:
        before, selector = self._socket, self._selector
        assert before is not None
        assert selector is not None
        try:
            self._listen()
        except Unavailable as error:  # the disk is full, or no descriptor is left: the next look tries again
            self._warn(f"nobody can join the shared log at the moment: {error.message}")
            return
        selector.unregister(before)
        before.close()  # those in line there find the new one
        self._has_warned = False
        logger.warning("the shared log's socket was removed, and made anew", extra={"action": "socket_removed"})

    def _warn(self, text: str) -> None:
        """Once, until a client could come."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", text, extra={"action": "cannot_accept"})

    def forget(self) -> None:
        """In a forked child: close our copy."""
        if self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        """Nobody can come any more."""
        if self._socket is None:
            return
        if socket_place.name(self._directory) == self._name:
            socket_place.withdraw(self._directory)
        if self._selector is not None and not self.is_resting:
            self._selector.unregister(self._socket)
        self._socket.close()
        self._socket = None


def turn_away(sock: socket.socket, error: HoldfastError) -> None:
    """Say why a client that has come is not let in, and hang up."""
    with suppress(OSError):
        sock.setblocking(False)
        sock.sendmsg(frame(REFUSED, refusal(error)))
    sock.close()
