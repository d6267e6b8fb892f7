"""Ids for messages whose sender does not care."""

from __future__ import annotations

import os

from holdfast.clock import Clock

_ID_BYTES = 16
_FETCHED = 64


class MessageIds:
    """Random message ids: nobody can guess the next one and send something else under it.

    Randomness is fetched for many at once, and anew in a forked child, which would give the same ones otherwise.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pool: list[str] = []
        self._pid = 0

    def new(self) -> str:
        """The next one."""
        if self._pid != os.getpid():
            self._pool, self._pid = [], os.getpid()
        while True:
            try:
                return self._pool.pop()
            except IndexError:
                fetched = self._clock.random_bytes(_ID_BYTES * _FETCHED).hex()
                size = 2 * _ID_BYTES
                self._pool = [fetched[at : at + size] for at in range(0, len(fetched), size)]
