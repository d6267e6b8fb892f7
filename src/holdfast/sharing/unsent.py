"""What waits to be sent over one socket; never blocks."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable

_BUFFERS_AT_ONCE = 64


class Unsent:
    """Buffers in order, the first of which may be sent in part; its user sees to it that one thread at a time does."""

    __slots__ = ("_buffers", "size")

    def __init__(self) -> None:
        self._buffers: deque[bytes | memoryview] = deque()
        self.size = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def add(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Have these sent behind all others."""
        for buffer in buffers:
            self._buffers.append(buffer)
            self.size += len(buffer)

    def flush(self, sock: socket.socket) -> bool:
        """Send what can be sent now; whether that is all. Raises OSError where the connection has ended."""
        buffers = self._buffers
        try:
            while buffers:
                some = [buffers[at] for at in range(min(_BUFFERS_AT_ONCE, len(buffers)))]
                self.sent(sock.sendmsg(some, (), socket.MSG_DONTWAIT))
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def sent(self, count: int) -> None:
        """So many bytes of it were sent."""
        self.size -= count
        while count:
            first = self._buffers.popleft()
            if len(first) > count:
                self._buffers.appendleft(memoryview(first)[count:])
                return
            count -= len(first)
