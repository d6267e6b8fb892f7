"""The time that is known to have come, kept in the journal for the next time it is opened (`trusted_time`).

One item of a space of its own, which is proved like all others. It is written now and then, and when the log is closed;
what is lost with a crash is an hour at most, and makes nothing look older than it is.
"""

from __future__ import annotations

import logging
import struct

from holdfast.errors import Corrupt, HoldfastError
from holdfast.journal.journal import Journal
from holdfast.model.trusted_time import TimeCheckpoint

_SPACE = "time"
_KEY = b"known"
_JUMP = struct.Struct(">QQ")
_INTERVAL_S = 3600.0

logger = logging.getLogger("holdfast")


class TimeKeeper:
    """A chore of the log's owner; of one thread at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._written = journal.trusted_time.recalled
        # A jump that is written down, and is over, goes soon: another one would be believed for it.
        self._due = journal.clock.monotonic() + (0 if self._written.jumped_us else _INTERVAL_S)

    def check(self, now: float) -> float:
        """Write it down if it is time to; returns when it is time again."""
        if now >= self._due:
            self._due = now + _INTERVAL_S
            self.write()
        return self._due

    def write(self) -> None:
        """Write it down, without waiting, unless little has changed."""
        known = self._journal.trusted_time.known
        has_moved = abs(known.time_us - self._written.time_us) >= _INTERVAL_S * 1e6
        if not has_moved and known.jumped_us == self._written.jumped_us:
            return
        item = _KEY, known.time_us, _JUMP.pack(known.jumped_us, known.waited_us)
        try:
            self._journal.spaces.change(_SPACE, [item], timeout=0)
        except HoldfastError:  # the queue is full, or the log ends: the next time will do
            return
        self._written = known


def recall(journal: Journal) -> None:
    """Have a journal that was just opened go on from what is written down."""
    try:
        items = journal.spaces.load(_SPACE)
    except Corrupt as damage:
        logger.warning("the time kept is damaged: %s", damage.message, extra={"action": "damage"})
        return
    for key, time_us, body in items:
        if key == _KEY and len(body) == _JUMP.size:
            journal.trusted_time.recall(TimeCheckpoint(time_us, *_JUMP.unpack(body)))
