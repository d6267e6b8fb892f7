"""Turns of an event loop: where coroutines append, their loop itself sends what they bring and takes what comes back.

A thread in between costs two changes of threads for each group, more than everything else together. So a loop that
brings groups is given turns: it watches the socket as it watches all others, and what its coroutines have brought is
sent once all of them had their say. Nothing depends on it. The forwarder's thread stands by, and whatever a loop leaves
undone (it is blocked, it has stopped, it was closed) that thread does a moment later; a loop that has brought nothing
for a while gets no more turns.
"""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import Closed

Turn = Callable[[bool], object]
"""Move groups on; whether the socket may have something."""


class LoopTurns:
    """One loop that has turns on one connection."""

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket, turn: Turn) -> None:
        """On the loop's thread. Raises NotImplementedError where the loop cannot watch a socket."""
        self.loop = loop
        self._turn = turn
        self._sock = sock.dup()  # it is the loop's: whoever ends the connection must not close what is watched
        self._is_scheduled = False
        self.count = 0
        """Turns so far."""
        self.is_over = False
        try:
            loop.add_reader(self._sock, self._run, True)
        except BaseException:
            self._sock.close()
            raise

    def schedule(self) -> None:
        """Have a turn soon; on the loop's thread."""
        if not self._is_scheduled:
            self.loop.call_soon(self._run, False)
            self._is_scheduled = True  # in this order: a signal in between makes two turns, not none

    def _run(self, has_news: bool) -> None:
        self._is_scheduled = self._is_scheduled and has_news
        if not self.is_over:
            self.count += 1
            with suppress(Closed):  # the link has ended: the forwarder's thread tells everybody
                self._turn(has_news)

    def end(self) -> None:
        """Have no more turns; from any thread."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop was closed, and watches nothing any more
            self._sock.close()

    def _let_go(self) -> None:
        self.loop.remove_reader(self._sock)
        self._sock.close()

    def forget(self) -> None:
        """In a forked child: the loop is the parent's, and goes on to watch."""
        self.is_over = True
        self._sock.close()
