"""A socket whose every step ends before one deadline, however slowly the other side sends.

Python's time-outs count for each receive: a server that sends a byte now and then would keep a caller for ever.
"""

from __future__ import annotations

import io
import socket
from typing import Any

from holdfast.clock import SystemClock

_monotonic = SystemClock().monotonic
_LEAST_S = 1e-3


class DeadlineSocket:
    """What `http.client` needs of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
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
        return io.BufferedReader(_Incoming(self, self._socket), 64 * 1024)

    def fileno(self) -> int:
        """The descriptor, to look whether something came."""
        return self._socket.fileno()

    def shutdown(self) -> None:
        """End it from another thread: whoever reads gets the end."""
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

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._owner.arm()
        return self._socket.recv_into(buffer)
