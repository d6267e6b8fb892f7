"""A clock that moves only by hand, and repeatable randomness."""

from __future__ import annotations

from random import Random


class ManualClock:
    """A `Clock` for tests: wall and monotonic time are set by hand, random bytes come from a seed.

    Waiting with a time-out still takes real time; only what asks this clock sees its time.

    >>> clock = ManualClock(now_us=1_000_000)
    >>> clock.advance(2.5)
    >>> clock.now_us()
    3500000
    """

    def __init__(self, now_us: int = 1_700_000_000_000_000, *, seed: int = 0) -> None:
        self._now_us = now_us
        self._monotonic = 1000.0
        self._random = Random(seed)

    def now_us(self) -> int:
        """The wall clock, as it was set."""
        return self._now_us

    def monotonic(self) -> float:
        """The monotonic clock; only `advance` moves it."""
        return self._monotonic

    def random_bytes(self, count: int) -> bytes:
        """The seed's next bytes: repeatable, so never fit for real keys."""
        return self._random.randbytes(count)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError("time only advances; use jump() to set the wall clock back")
        self._monotonic += seconds
        self._now_us += round(seconds * 1e6)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an administrator or NTP would."""
        self._now_us += round(seconds * 1e6)
