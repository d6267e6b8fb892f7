"""Turns of an event loop: where coroutines append, their loop itself sends what they bring and takes what comes back.

A thread in between costs two changes of threads for each group, more than everything else together. So a loop that
brings groups gets turns: it watches the socket as it watches all others, and what its coroutines have brought is
sent once all of them had their say. Nothing depends on it. The forwarder's thread stands by, and whatever a loop leaves
undone (it is blocked, it has stopped, it was closed) that thread does a moment later; a loop that has brought nothing
for a while gets no more turns.
"""

from __future__ import annotations

import os
import socket
from asyncio import AbstractEventLoop
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import Closed

if TYPE_CHECKING:
    from holdfast.journal.commit.forwarder import Turn


class LoopDriver:
    """One loop that has turns on one connection.

    Made and ended with the link's lock of turns held. Its descriptor is watched, and closed, on the loop's thread; by
    the thread that ends it where the loop is closed. `count` is the loop's; `is_scheduled` may be lowered by the thread
    that stands by, which makes one turn too many, never one too few.
    """

    def __init__(self, loop: AbstractEventLoop, sock: socket.socket, turn: Turn) -> None:
        """On the loop's thread. Raises NotImplementedError where the loop cannot watch a socket."""
        self.loop = loop
        self._turn = turn
        self._descriptor = os.dup(sock.fileno())
        """The loop's own: the thread that ends the connection must not close what is watched."""
        self.is_scheduled = False
        """A turn will come; a signal may have ended it before it began, so nobody relies on that for long."""
        self.count = 0
        """Turns so far."""
        self._seen, self._since = -1, 0.0
        self.is_over = False
        loop.add_reader(self._descriptor, self._run, True)

    def schedule(self) -> None:
        """Have a turn soon; on the loop's thread."""
        if not self.is_scheduled:
            self.loop.call_soon(self._run, False)
            self.is_scheduled = True  # in this order: a signal in between makes two turns, not none

    def _run(self, has_news: bool) -> None:
        self.is_scheduled = self.is_scheduled and has_news
        if not self.is_over:
            self.count += 1
            with suppress(Closed):  # the link has ended: the forwarder's thread tells everybody
                if self._turn(has_news, self.loop):
                    self.schedule()  # right behind those who are resumed now: what they bring is sent at once

    def idle_seconds(self, now: float) -> float:
        """How long it had no turn, as far as the caller has seen."""
        if self.count != self._seen:
            self._seen, self._since = self.count, now
        return now - self._since

    def end(self) -> None:
        """Have no more turns; from any thread."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop was closed, and watches nothing any more
            self._close()

    def _let_go(self) -> None:
        self.loop.remove_reader(self._descriptor)
        self._close()

    def forget(self) -> None:
        """In a forked child: the loop is the parent's, and goes on to watch."""
        self.is_over = True
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """A loop that is closed before it ran again lets go of this without a word."""
        if hasattr(self, "_descriptor"):
            self._close()
