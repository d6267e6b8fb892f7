"""Creating an object for a caller that can wait a little: several attempts, and a comparison with an existing object.

`create` itself is never repeated by a store, because the outcome of a failed one is unknown. A caller that repeats it
must be able to recognize its own object, under a key that was tried before: by what stands there (`there`), or because
name or content are the caller's alone, so that finding it there is as good as having created it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from holdfast.store.port import AlreadyExists, Body, Store, StoreUnavailable

Result = TypeVar("Result")

PAUSES_S = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Before each new attempt of a call that nobody else can make."""
_CREATE_PAUSES_S = (0.2, 0.4, 0.8, 1.6)
_ASKED_S_MAX = 30.0


def until_known(
    call: Callable[[], Result], pauses_s: Sequence[float] | None = None, asked_s_max: float = _ASKED_S_MAX
) -> Result:
    """What the call returns; raises StoreUnavailable where the store is away for long.

    If the store asks for a longer pause, it is kept, up to `asked_s_max`.
    """
    for pause in PAUSES_S if pauses_s is None else pauses_s:
        try:
            return call()
        except StoreUnavailable as failure:
            time.sleep(max(pause, min(failure.retry_after, asked_s_max)))
    return call()


def create_repeatedly(store: Store, key: str, body: Body, there: Callable[[str], None] | None = None) -> None:
    """Create an object, several times if need be; `there` judges what stands under the key already."""

    def is_created() -> bool:
        try:
            store.create(key, body)
        except AlreadyExists:
            return False
        return True

    if not until_known(is_created, _CREATE_PAUSES_S, inf) and there is not None:
        there(key)
