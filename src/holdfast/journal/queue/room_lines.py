"""Coroutines that wait for room in the queue: one line per event loop, in the order in which they came.

Nobody on an event loop blocks it: what finds no room is refused (`Full`), and tried again when there may be some.
"""

from __future__ import annotations

from asyncio import Lock, get_running_loop
from asyncio import timeout as asyncio_timeout
from asyncio.events import AbstractEventLoop
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import Full
from holdfast.journal.queue.queue import Queue

Put = TypeVar("Put")


class _Line:
    """Coroutines of one event loop that wait for room, one after the other."""

    __slots__ = ("length", "turn")

    def __init__(self) -> None:
        self.turn = Lock()
        self.length = 0


class RoomLines:
    """Those who wait for one queue. A line, and its place here, belong to the thread of its event loop."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lines: dict[AbstractEventLoop, _Line] = {}
        """Event loops whose coroutines wait for room; nobody overtakes them there."""

    async def when_room(self, put: Callable[[float], Put], timeout: float) -> Put:
        """What `put` gives as soon as there is room for it; coroutines get it in the order in which they came.

        It is called once or more often, with the seconds that are left for room and acknowledgement together. Raises
        Full after `timeout` seconds.
        """
        lines, queue = self._lines, self._queue
        if not lines:
            try:
                return put(timeout)
            except Full:
                queue.not_refused()  # yet
        loop = get_running_loop()
        deadline = loop.time() + timeout
        line = lines.setdefault(loop, _Line())
        line.length += 1
        try:
            async with asyncio_timeout(timeout), line.turn:
                return await self._first_in_line(put, loop, deadline)
        except TimeoutError:
            queue.gave_up()
            raise queue.tail.full(
                f"no room in the queue to the journal within {timeout:g} s; nothing was written"
            ) from None
        finally:
            line.length -= 1
            if not line.length:
                del lines[loop]

    async def _first_in_line(self, put: Callable[[float], Put], loop: AbstractEventLoop, deadline: float) -> Put:
        while True:
            left = max(1e-6, deadline - loop.time())
            future = self._queue.room.future(loop, left)  # first: a notification in between is not missed
            try:
                return put(left)
            except Full:
                self._queue.not_refused()
                await future
