"""How often something may begin: a bucket that fills with time. Pure: the time is handed in."""

from __future__ import annotations

from holdfast.arguments import seconds
from holdfast.errors import Invalid


class RateLimit:
    """So many beginnings per second, with the share of one second saved up at most.

    >>> limit = RateLimit(2.0)
    >>> [limit.take(10.0) for _ in range(3)], limit.wait(10.0)
    ([True, True, False], 0.5)
    """

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and (seconds(per_second, "rate") <= 0 or per_second > 1e6):
            raise Invalid("rate is a number of executions per second above 0", hint="for instance rate=10; None = any")
        self._rate = per_second
        self._most = max(1.0, per_second or 1.0)
        self._tokens = self._most
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Whether one may begin now; if so, it counts."""
        if self.wait(now) > 0:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until one may begin."""
        if self._rate is None:
            self._tokens = 1.0
            return 0.0
        if self._at is not None:
            self._tokens = min(self._most, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._tokens >= 1 - 1e-9 else (1 - self._tokens) / self._rate
