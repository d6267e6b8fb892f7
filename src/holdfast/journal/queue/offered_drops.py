"""Offered records that were refused: counted, and logged once per burst, when it begins and when there is room
again.
"""

from __future__ import annotations

import logging
from _thread import RLock

logger = logging.getLogger("holdfast.journal")


class OfferedDrops:
    """The drops of one queue; any thread may note one."""

    __slots__ = ("_lock", "burst", "total")

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may offer in the middle of this
        self.total = 0
        self.burst = 0
        """How many since there was room."""

    def note(self) -> None:
        """One more was dropped."""
        with self._lock:
            self.total += 1
            self.burst += 1
            first = self.burst == 1
        if first:
            logger.warning(
                "journal takes no more: dropping offered records until there is room",
                extra={"action": "offer_dropped", "dropped_total": self.total},
            )

    def end_burst(self) -> None:
        """One was taken again."""
        with self._lock:
            burst, self.burst = self.burst, 0
        if burst:
            logger.info(
                "journal queue has room again after dropping %d offered records",
                burst,
                extra={"action": "offer_recovered", "dropped": burst},
            )
