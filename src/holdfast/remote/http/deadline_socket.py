"""A socket whose every step ends before one deadline, however slowly the other side sends.

Python's time-outs count for each receive: a server that sends a byte now and then would keep a caller forever.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
from typing import Any

from holdfast.clock import SystemClock

_monotonic = SystemClock().monotonic
_LEAST_S = 1e-3


class DeadlineSocket:
    """What `http.client` needs of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.has_leftover = False
        """Whether more has come than the answers that were read: nobody knows what that answers."""
        self.deadline = _monotonic()

    def arm(self) -> None:
        """Raise TimeoutError if the time is over; else let the next step take what is left."""
        left = self.deadline - _monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self._socket.settimeout(max(left, _LEAST_S))

    def sendall(self, data: Any) -> None:
        """Send all of it before the deadline."""
        self.arm()
        self._socket.sendall(data)

    def makefile(self, mode: str, *_: Any, **__: Any) -> io.BufferedReader:
        """The incoming bytes."""
        assert mode == "rb"
        return _Reader(self, _Incoming(self, self._socket))

    def has_news(self) -> bool:
        """Whether something came, or it was ended."""
        if self.has_leftover or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def shutdown(self) -> None:
        """End it from another thread: its reader gets the end."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


class _Incoming(io.RawIOBase):
    """Bytes as they come, each receive within what is left of the time."""

    def __init__(self, owner: DeadlineSocket, sock: socket.socket) -> None:
        self._owner = owner
        self._socket = sock
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if self.is_over:
            return 0
        self._owner.arm()
        return self._socket.recv_into(buffer)


class _Reader(io.BufferedReader):
    """The bytes of one answer; it looks, when that was read, whether there are more."""

    def __init__(self, owner: DeadlineSocket, incoming: _Incoming) -> None:
        super().__init__(incoming, 64 * 1024)
        self._owner = owner
        self._incoming = incoming

    def close(self) -> None:
        if not self.closed:
            self._incoming.is_over = True  # what is buffered, and no more
            self._owner.has_leftover = self._owner.has_leftover or bool(self.peek(1))
        super().close()
