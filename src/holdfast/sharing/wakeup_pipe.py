"""What wakes a thread that waits for a socket; rung by any other."""

from __future__ import annotations

import select
from contextlib import suppress
from socket import socket, socketpair


class WakeupPipe:
    """Wakes the one thread that sleeps here.

    No lock: a signal handler may ring. `_is_asleep` is raised by the sleeper before it looks, and lowered by it alone:
    a thread that lowers it and is interrupted before it rings would leave a handler unheard.
    Rung after it was closed, it does nothing: sockets, unlike bare descriptors, know that they are closed, and never
    write into another file.
    """

    def __init__(self) -> None:
        self._out, self._in = socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._watched = (-1, 0)
        self._is_asleep = False

    def arm(self) -> None:
        """From now on a ring is heard; then look whether there is anything to do, then wait."""
        self._is_asleep = True

    def ring(self) -> None:
        """Wake it, if it sleeps."""
        if self._is_asleep:
            with suppress(OSError):  # full: it is awake; closed: it has ended
                self._in.send(b"\0")

    def wait(self, sock: socket | None, timeout: float | None, *, to_send: bool = False) -> tuple[bool, bool]:
        """Sleep until the socket has something, it rings or the time is up: whether it rang, whether it has."""
        descriptor = -1 if sock is None else sock.fileno()
        self._watch(descriptor, select.POLLIN | select.POLLOUT if to_send else select.POLLIN)
        ready = [one for one, _ in self._poll.poll(None if timeout is None else max(0, timeout * 1000))]
        rang = self._out.fileno() in ready
        self.disarm(rang=rang)
        return rang, len(ready) > rang

    def fileno(self) -> int:
        """What has something to read when it rings, for sleepers that wait for many sockets."""
        return self._out.fileno()

    def disarm(self, *, rang: bool) -> None:
        """It is awake; what rang (if it did) is taken."""
        self._is_asleep = False
        if rang:
            with suppress(BlockingIOError):
                self._out.recv(4096)

    def _watch(self, descriptor: int, events: int) -> None:
        if (descriptor, events) != self._watched:
            if self._watched[0] >= 0:
                with suppress(KeyError, OSError):
                    self._poll.unregister(self._watched[0])
            if descriptor >= 0:
                self._poll.register(descriptor, events)
            self._watched = (descriptor, events)

    def close(self) -> None:
        """Let go of its descriptors."""
        self._in.close()
        self._out.close()
