"""Places that are few: so many in all, and of these so many for one token, so that none shuts the others out.

Used by the event loop alone, but for `TokenSessions`, which has a lock: groups are looked through in threads, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import Full
from holdfast.server.request_caller import Caller

if TYPE_CHECKING:
    from holdfast.journal.journal import Journal

_IDLE_S = 60.0
"""A session that was used within this time keeps its place, as in the log (`journal/sessions/session_table.py`)."""


def share_of(most: int, share: float) -> int:
    """How many of so many places one token may take."""
    return max(1, int(most * share))


class Places:
    """So many at a time; the next one is refused."""

    def __init__(self, most: int, what: str, share: float, own_least: int = 1) -> None:
        """`own_least`: what one token may take, however small its share."""
        self._most = most
        self._what = what
        self._own_most = max(own_least, share_of(most, share))
        self._own: dict[str, int] = {}
        self.taken = 0

    def take(self, caller: Caller, count: int = 1) -> None:
        """Take so many more; Full where they do not fit, or not into what this token may take."""
        if self.taken + count > self._most:
            raise Full(f"too many {self._what} max={self._most}", hint="try again later")
        own = self._own.get(caller.id, 0) + count
        if not caller.is_anyone and own > self._own_most:
            raise Full(f"too many {self._what} of this token max={self._own_most}", hint="see server.token_share")
        self.taken += count
        self._own[caller.id] = own

    def give_back(self, caller: Caller, count: int = 1) -> None:
        """They are free again."""
        self.taken -= count
        own = self._own[caller.id] = self._own[caller.id] - count
        if not own:
            del self._own[caller.id]

    @contextmanager
    def held(self, caller: Caller, count: int = 1) -> Iterator[None]:
        """So many of them, for as long as the block runs."""
        self.take(caller, count)
        try:
            yield
        finally:
            self.give_back(caller, count)


class TokenSessions:
    """The sessions and producers of each token: a new one that finds no room takes the place of one of its own.

    The log itself would let go of the one that was idle longest, of any token. What was used before the server
    was started is not counted.
    """

    def __init__(self, journal: Journal, clock: Clock, share: float) -> None:
        self._journal = journal
        self._clock = clock
        self._most = share_of(journal.settings.sessions_max, share)
        self._used: dict[str, OrderedDict[tuple[bool, bytes], float]] = {}
        self._lock = Lock()

    def enter(self, caller: Caller, name: bytes, *, is_producer: bool = False) -> None:
        """A session is about to be used; Full where its token has too many, all of them used a moment ago."""
        if caller.is_anyone:
            return
        now = self._clock.monotonic()
        with self._lock:
            used = self._used.setdefault(caller.name, OrderedDict())
            if (is_producer, name) not in used and len(used) >= self._most:
                self._make_room(used, now)
            used[is_producer, name] = now
            used.move_to_end((is_producer, name))

    def _make_room(self, used: OrderedDict[tuple[bool, bytes], float], now: float) -> None:
        (is_producer, name), at = next(iter(used.items()))
        if now - at < _IDLE_S:
            raise Full(
                f"too many sessions and producers of this token max={self._most}; nothing was written",
                hint="use the sessions that there are, or raise journal.sessions_max or server.token_share",
            )
        self._journal.sessions.let_go(name, is_producer=is_producer)
        del used[is_producer, name]
