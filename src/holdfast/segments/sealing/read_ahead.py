"""Making the next items while the last ones are being used: the journal is read while Parquet is written.

Both sides spend most of their time outside the interpreter, so on two cores sealing takes as long as the slower one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import TypeVar

from holdfast.process_lifetime import Threads

Item = TypeVar("Item")

_END = object()


def read_ahead(items: Iterator[Item], depth: int) -> Generator[Item, None, None]:
    """The same items in the same order, up to `depth` of them made ahead by one thread; so are errors.

    Close it where it is used: it joins its thread, which the garbage collector must never do.
    """
    helper = Threads(1, "holdfast-ahead")
    try:
        pending = deque(helper.submit(next, items, _END) for _ in range(depth))
        while (item := pending.popleft().result()) is not _END:
            pending.append(helper.submit(next, items, _END))
            yield item  # type: ignore[misc]  # not the end: then it is an item
    finally:
        helper.shutdown(cancel_futures=True)
