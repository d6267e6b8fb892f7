"""Following a topic: records as they become durable, without polling.

A follower keeps a position per partition and sleeps on the partitions' signals, so it costs nothing while nothing
happens. Where another process owns the log, it tells those who share the log; a handle that only reads gets no signals
and looks again a few times per second.
"""

from __future__ import annotations

from asyncio import get_running_loop, to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition

Item = TypeVar("Item")

_PAGE_RECORDS = 1000
_LOOK_AGAIN_S = 0.1
_NEWS_S = 1.0
_SLEEP_S = 3600.0


def has_ended(journal: Journal) -> bool:
    """Whether nothing more will come; raises if that is because something broke."""
    end = journal.end
    if end is not None and end.reason != "clean":
        raise end.again()
    return end is not None


def wait_seconds(journal: Journal, topic: str) -> float:
    """How long to sleep before looking again.

    An owner is woken by a signal. So is whoever shares the log with it, once the owner was asked to tell about the
    topic; but an owner that is killed tells nothing.
    """
    if journal.news is not None:
        journal.news.watch(topic)
        return _NEWS_S
    return _SLEEP_S if journal.owned else _LOOK_AGAIN_S


class Follower(Generic[Item]):
    """An endless iterator of records, for `for` and `async for`; made by `topic.follow()`."""

    def __init__(
        self, journal: Journal, positions: dict[Partition, int], read: Callable[[Partition, int, int], Iterator[Item]]
    ) -> None:
        self._journal = journal
        self._positions = positions
        self._read = read
        part = next(iter(positions))
        self._signal, self._topic = part.signal, part.topic
        self._page: deque[Item] = deque()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while not self._page:
            if not self._fill():
                if has_ended(self._journal):
                    raise StopIteration
                self._signal.sleep(self._news, wait_seconds(self._journal, self._topic))
        return self._page.popleft()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._page:
            if not await to_thread(self._fill):
                if has_ended(self._journal):
                    raise StopAsyncIteration
                future = self._signal.future(get_running_loop(), wait_seconds(self._journal, self._topic))
                if not self._news():
                    await future
        return self._page.popleft()

    def _news(self) -> bool:
        return self._journal.end is not None or any(part.durable > at for part, at in self._positions.items())

    def _fill(self) -> bool:
        """Read the next page of every partition that has news; False when none has."""
        if self._journal.end is not None:
            return False
        self._journal.refresh(self._topic)
        try:
            for part, at in self._positions.items():
                end = min(part.durable, at + _PAGE_RECORDS)
                for item in self._read(part, at, end) if end > at else ():
                    self._page.append(item)
                    self._positions[part] += 1
        except HoldfastError:
            if not self._page:  # first give what comes before it; the next call finds it again
                raise
        return bool(self._page)
