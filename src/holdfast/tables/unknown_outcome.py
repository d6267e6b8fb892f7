"""Calls of the store whose outcome may be unknown, repeated until it is known.

Only for calls that may be repeated: those that create an object whose name or content belongs to the caller alone, so
that finding it there is as good as having created it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.store.port import StoreUnavailable

Result = TypeVar("Result")

PAUSES_S = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Before each new attempt."""
_ASKED_S_MAX = 30.0


def until_known(call: Callable[[], Result]) -> Result:
    """What the call returns; raises StoreUnavailable where the store is away for long."""
    for pause in PAUSES_S:
        try:
            return call()
        except StoreUnavailable as failure:
            time.sleep(max(pause, min(failure.retry_after, _ASKED_S_MAX)))
    return call()
