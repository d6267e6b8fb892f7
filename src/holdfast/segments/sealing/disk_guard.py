"""The disk guard: refuses appends before the disk is full, and takes them again by itself.

A full disk is worse than a refused append: nothing can be sealed, trimmed or removed any more. So below a floor of
free space records are refused with `Unavailable`, while reading, sealing, retention and all other commits go on. What
is not sealed yet is stored once more when it is, and what waits in the queue twice: so much more must be free.

The roller looks from time to time, and the writer in between, the sooner the less room there is: a part of a second is
enough to fill what is above the floor, and a seal may take many. One lock guards all that is kept here.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from threading import Lock

from holdfast import disk
from holdfast.errors import Unavailable
from holdfast.journal.journal import Journal
from holdfast.segments.segment_settings import DiskSettings
from holdfast.segments.segment_stats import SegmentCounters

_PART = 4
"""The next look is due before this part of the room above the floor is used: a record is stored more than once."""
_STEP_BYTES = 2**20

logger = logging.getLogger("holdfast.segments")


class DiskGuard:
    """Looks at free space from time to time: a chore of the roller, and of the writer where much is stored."""

    def __init__(self, journal: Journal, path: Path, settings: DiskSettings, counters: SegmentCounters) -> None:
        self._journal = journal
        self._path = path
        self._settings = settings
        self._counters = counters
        self._low = False
        self._is_filling = False
        self._due = 0.0
        self._lock = Lock()
        self._left = 0
        """Bytes that may be stored before the writer looks."""
        self._tail = journal.keep_free(settings.free_bytes_min, self._stored)

    def check(self, now: float) -> float:
        """Look if it is time to; returns when it is again."""
        if now >= self._due:
            self._due = now + self._settings.check_interval_ms / 1000
            self.look()
        return self._due

    def look(self) -> None:
        """Compare free space with the floor."""
        with self._lock:
            self._look()

    def _stored(self, size: int) -> None:
        """By the writer: a group was stored. It waits for nobody, and nothing that a log handler raises ends it."""
        self._left -= size
        if self._left < 0 and self._lock.acquire(blocking=False):
            try:
                with suppress(Exception):
                    self._look()
            finally:
                self._lock.release()

    def _look(self) -> None:
        try:
            free = disk.free_bytes(self._path)
        except OSError as error:
            self._counters.last_error = f"cannot look at the disk: {error.strerror}"
            return
        if free < 0:  # not an answer: some file systems count beyond their quota
            self._counters.last_error = f"cannot look at the disk: it says free={free}"
            return
        self._counters.free_bytes = free
        filling = free < self._settings.free_bytes_warning
        if filling != self._is_filling:
            self._is_filling = filling
            self._warn(filling, free)
        queued = self._journal.stats().queue_bytes  # taken already: stored, and once more when it is sealed
        needed = self._settings.free_bytes_min + self._tail.size + 2 * queued
        self._left = max((free - needed) // _PART, _STEP_BYTES)
        low = free < needed
        if low != self._low:
            self._low = low
            self._tell(low, free, needed)

    def _warn(self, filling: bool, free: int) -> None:
        """Say it while there is time to do something about it; and that it has been done."""
        floor = self._settings.free_bytes_min
        if filling:
            logger.warning(
                "the disk fills up: appends are refused below free=%d, now free=%d; free space, or let retention remove"
                " more",
                floor,
                free,
                extra={"action": "disk_filling", "free": free},
            )
        else:
            logger.info("the disk has room again", extra={"action": "disk_roomy", "free": free})

    def _tell(self, low: bool, free: int, needed: int) -> None:
        if low:
            refusal = Unavailable(
                f"the disk is nearly full; nothing was written free={free} needed={needed} path={self._path}",
                hint="free space, let retention remove more (holdfast retain), or lower disk.free_bytes_min;"
                " appends then continue",
            )
            self._journal.hold("disk", refusal)
            logger.error(
                "appends refused: the disk is nearly full (%s)",
                refusal.hint,
                extra={"action": "disk_low", "free": free},
            )
        else:
            self._journal.hold("disk", None)
            logger.info("appends taken again: the disk has room", extra={"action": "disk_ok", "free": free})
