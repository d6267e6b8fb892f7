"""Creating an object by somebody who can wait a little: several attempts, and a look at what is there already.

`create` itself is never repeated by a store, because the outcome of a failed one is unknown. Whoever repeats it must be
able to tell his own object from another's, under a key that was tried before; `there` does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.store.port import AlreadyExists, Body, Store, StoreUnavailable

_ATTEMPTS, _PAUSE_S = 5, 0.2


def create_repeatedly(store: Store, key: str, body: Body, there: Callable[[str], None] | None = None) -> None:
    """Create an object, several times if need be; `there` judges what stands under the key already."""
    for attempt in range(_ATTEMPTS):
        try:
            return store.create(key, body)
        except AlreadyExists:
            return None if there is None else there(key)
        except StoreUnavailable as failure:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(max(failure.retry_after, _PAUSE_S * 2**attempt))
    raise AssertionError("the last attempt returns or raises")
