"""How long a failed request waits before it is sent again: exponential, with full jitter, capped.

Full jitter: anything between nothing and the ceiling, so that many who failed together do not come back together. The
store's `Retry-After` is the least that is waited, up to five minutes: a header must not be able to stop shipping for a
day.
"""

from __future__ import annotations

RETRY_AFTER_MAX_S = 300.0
"""The longest request of a store to be left alone that is honoured."""

_DOUBLINGS_MAX = 1000  # 2.0 ** 1024 overflows; the cap is reached long before


def delay(attempt: int, base: float, cap: float, random: float, retry_after: float) -> float:
    """Seconds to wait after failure number `attempt`, counted from 0; `random` is uniform in [0, 1).

    >>> delay(3, base=0.1, cap=30.0, random=0.5, retry_after=0.0)
    0.4
    """
    ceiling = min(cap, base * 2.0 ** min(attempt, _DOUBLINGS_MAX))
    # The order of arguments matters: a retry_after that is not a number loses both comparisons.
    return max(ceiling * random, min(retry_after, RETRY_AFTER_MAX_S))
