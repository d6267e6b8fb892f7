"""Says that the unsealed tail is near its limit, while there is still time to do something about it: once, until it was
short again.
"""

from __future__ import annotations

import logging

_NEARLY = 0.8
"""Of its limit: where somebody should hear of the tail."""

logger = logging.getLogger("holdfast.journal")


class TailAlarm:
    """The alarm of one log's tail; used by the writer."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.is_told = False
        """Whether it stands."""

    def look(self, size: int) -> None:
        """The tail has so many bytes."""
        if self.is_told:
            self.is_told = 2 * size >= self._bytes_max
        elif size >= _NEARLY * self._bytes_max:
            self.is_told = True
            logger.warning(
                "sealing does not keep up: the unsealed tail is at %d %% of its limit, at which appends are refused;"
                " log.stats().segments says why, log.seal() seals at once (journal.tail_bytes_max)",
                100 * size // self._bytes_max,
                extra={"action": "tail_long", "bytes": size, "bytes_max": self._bytes_max},
            )  # fmt: skip
