"""What the writer says when commits do not go as they should: once per burst, and again when it is over.

A full disk fails every group, and a tail that is too long is so after every commit: it must be reported, without a line
for each. Nothing that an application's handler raises may end the writer, so nothing is raised here.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.telemetry.burst import Burst

_NEARLY = 0.8
"""Of its limit: where the tail should be reported."""

logger = logging.getLogger("holdfast.journal")


class CommitAlarms:
    """The alarms of one writer."""

    def __init__(self, clock: Clock, tail_bytes_max: int) -> None:
        self._clock = clock
        self._tail_bytes_max = tail_bytes_max
        self._refused = Burst()
        self.is_refusing = False
        """Whether the last group was refused …"""
        self.is_tail_long = False
        """… and whether it was said that the tail is near its limit."""

    def refused(self, records: int, error: HoldfastError) -> None:
        """Nothing of a group was stored."""
        self.is_refusing = True
        if self._refused.again(self._clock.monotonic()):
            with suppress(Exception):
                logger.error(
                    "appends fail, nothing of them was written: %s (%s)",
                    error.message,
                    error.hint,
                    extra={"action": "group_refused", "records": records, "groups": self._refused.count},
                )

    def stored(self) -> None:
        """A group was stored, after some that were refused."""
        self.is_refusing = False
        groups = self._refused.over()
        with suppress(Exception):
            logger.info("appends are stored again after %d refused groups", groups, extra={"action": "group_stored"})

    def stay_in_files(self, error: HoldfastError) -> None:
        """Groups could not be brought into the database; they are durable where they are."""
        with suppress(Exception):
            logger.warning("groups stay in files: %s", error.message, extra={"action": "groups_stay_in_files"})

    def tail(self, size: int) -> None:
        """The tail is long, or was said to be; it has so many bytes."""
        if self.is_tail_long:
            self.is_tail_long = 2 * size >= self._tail_bytes_max
        elif size >= _NEARLY * self._tail_bytes_max:
            self.is_tail_long = True
            with suppress(Exception):
                logger.warning(
                    "sealing does not keep up: the unsealed tail is at %d %% of its limit, at which appends are"
                    " refused; log.stats().segments says why, log.seal() seals at once (journal.tail_bytes_max)",
                    100 * size // self._tail_bytes_max,
                    extra={"action": "tail_long", "bytes": size, "bytes_max": self._tail_bytes_max},
                )
