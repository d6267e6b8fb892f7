"""The only place that asks the machine for the time or for randomness.

Everything else takes a `Clock`, so that tests drive time and seeds by hand (`holdfast.testing.ManualClock`).
Two clocks are kept apart on purpose: `now_us` is what records are stamped with and may jump; `monotonic`
is what waiting is measured with and never does. No decision about durability looks at either.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

from holdfast.arguments import having


class Clock(Protocol):
    """Time and randomness, injected."""

    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970-01-01 UTC; may jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""

    def random_bytes(self, count: int) -> bytes:
        """Bytes fit for keys, salts and ids."""


class SystemClock:
    """The machine's own clocks and random source."""

    def now_us(self) -> int:
        """The system's wall clock."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """The system's monotonic clock."""
        return time.monotonic()

    def random_bytes(self, count: int) -> bytes:
        """The system's random source, asked at this moment.

        `os.urandom` would let other threads run meanwhile, and then wait for a busy one: milliseconds, in every seal.
        It may also take bytes that the C library fetched earlier, which a clone of this process has, too.
        """
        try:
            fresh = os.getrandom(count)
        except (AttributeError, OSError):  # another system than Linux, or a sandbox without it
            return os.urandom(count)
        return fresh if len(fresh) == count else os.urandom(count)


def check_clock(clock: Clock | None) -> Clock | None:
    """A clock of the caller's own, or none."""
    if clock is not None:
        having(
            clock,
            ("now_us", "monotonic", "random_bytes"),
            "clock",
            "give an object with the methods of holdfast.clock.Clock",
        )
    return clock
