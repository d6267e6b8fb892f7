"""Following a topic: records as they become durable, without polling.

A follower keeps a position per partition and sleeps on the partitions' signals, so it costs nothing while nothing
happens. Where another process owns the log, it tells those who share the log; a handle that only reads gets no signals
and looks again a few times per second.
"""

from __future__ import annotations

from asyncio import get_running_loop, to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, Protocol, TypeVar

from holdfast.errors import Closed, HoldfastError, Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.reading import parse_position, position_text

Item = TypeVar("Item")

_PAGE_RECORDS = 1000
_LOOK_AGAIN_S = 0.1
_NEWS_S = 1.0
_SLEEP_S = 3600.0


class Ending(Protocol):
    """A journal, here or at a server."""

    @property
    def end(self) -> Closed | None:
        """Why nothing more will come; None as long as it may."""

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted in the middle of another one."""


def has_ended(journal: Ending) -> bool:
    """Whether nothing more will come; raises if something broke, or this thread keeps it from coming."""
    journal.refuse_second()
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


class JournalMarks:
    """How consumers hear that a topic went on, whose log is open in this process."""

    is_far = False

    def __init__(self, journal: Journal, topic: str) -> None:
        self._journal = journal
        self._topic = topic

    def refresh(self) -> None:
        """Take up how far it is now."""
        self._journal.refresh(self._topic)

    def listen(self) -> float:
        """For how long to sleep on the topic's signal at most."""
        return wait_seconds(self._journal, self._topic)


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

    @property
    def position(self) -> str:
        """How far it has given records, as text: for `topic.read(position)`, or another follower."""
        if self._page:
            raise Invalid("this follower is being iterated", hint="each record has its own place")
        return position_text({part.number: at for part, at in self._positions.items()})

    def go_to(self, position: str) -> None:
        """Go on from a position that a reading got to."""
        found = parse_position(position)
        for part in self._positions:
            self._positions[part] = found.get(part.number, self._positions[part])

    async def wait(self, timeout: float) -> bool:
        """Wait until there is something to read behind its position, for those who read it page by page.

        False when the time is over, or the log is closed.
        """
        loop = get_running_loop()
        deadline = loop.time() + timeout
        while not self._is_behind():
            left = min(deadline - loop.time(), wait_seconds(self._journal, self._topic))
            if left <= 0 or has_ended(self._journal):
                return False
            future = self._signal.future(loop, left)
            if not self._news():
                await future
            if not self._journal.owned:
                await to_thread(self._journal.refresh, self._topic)
        return True

    def _is_behind(self) -> bool:
        return any(part.durable > at for part, at in self._positions.items())

    def _news(self) -> bool:
        return self._journal.end is not None or self._is_behind()

    def _fill(self) -> bool:
        """Read the next page of every partition that has news; False when none has."""
        if self._journal.end is not None:
            return False
        self._journal.refresh(self._topic)
        return self._read_page()

    def _read_page(self) -> bool:
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
