"""Following a topic: records as they become durable, without polling.

A follower keeps a position per partition and sleeps on the topic's signal, so it costs nothing while nothing happens;
who rings it is the source's affair. A follower over a network outlives its server; it ends when its log is closed, and
raises what will not pass by itself.
"""

from __future__ import annotations

from asyncio import get_running_loop, sleep, to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from holdfast.caller import in_coroutine
from holdfast.errors import Closed, HoldfastError, Invalid, Unavailable
from holdfast.log.topics.reading import parse_position, position_text

if TYPE_CHECKING:
    from holdfast.journal.journal_port import JournalPort
    from holdfast.journal.state.partition import Partition
    from holdfast.log.ports import TopicSource

Item = TypeVar("Item")

_PAGE_RECORDS = 1000


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


class Follower(Generic[Item]):
    """An endless iterator of records, for `for` and `async for`; made by `topic.follow()`."""

    def __init__(
        self,
        journal: JournalPort,
        source: TopicSource,
        place: Callable[[], dict[Partition, int]],
        read: Callable[[Partition, int, int], Iterator[Item]],
    ) -> None:
        """`place` says where to begin, by what is known then: what is wrong with the question is said at once."""
        self._journal = journal
        self._source = source
        self._place = place
        self._read = read
        self._begun = not (source.is_far and in_coroutine())
        if self._begun:
            source.refresh()
        self._positions = place()
        self._signal = next(iter(self._positions)).signal
        self._pauses = source.pauses()
        self._page: deque[Item] = deque()

    def begin(self) -> None:
        """Take the place where it begins, as it is now. On an event loop that is left to the first record."""
        if not self._begun:
            self._source.refresh()
            self._positions = self._place()
            self._begun = True

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while not self._page:
            pause = self._fill()
            if not self._page:
                if has_ended(self._journal):
                    raise StopIteration
                if pause is None:
                    self._signal.sleep(self._news, self._source.listen())
                else:
                    self._signal.sleep(self._is_over, pause)
        return self._page.popleft()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._page:
            pause = await to_thread(self._fill)
            if not self._page:
                if has_ended(self._journal):
                    raise StopAsyncIteration
                if pause is not None:
                    await sleep(pause)
                    continue
                future = self._signal.future(get_running_loop(), self._source.listen())
                if not self._news():
                    await future
        return self._page.popleft()

    @property
    def position(self) -> str:
        """How far it has given records, as text: for `topic.read(position)`, or another follower."""
        if self._page:
            raise Invalid("this follower is being iterated", hint="each record has its own place")
        self.begin()
        return position_text({part.number: at for part, at in self._positions.items()})

    def go_to(self, position: str) -> None:
        """Go on from a position that a reading got to."""
        self.begin()
        found = parse_position(position)
        for part in self._positions:
            self._positions[part] = found.get(part.number, self._positions[part])

    async def wait(self, timeout: float) -> bool:
        """Wait until there is something to read behind its position, for those who read it page by page.

        False when the time is over, or the log is closed.
        """
        loop = get_running_loop()
        deadline = loop.time() + timeout
        if not self._begun:
            await to_thread(self.begin)
        while not self._is_behind():
            left = min(deadline - loop.time(), self._source.listen())
            if left <= 0 or has_ended(self._journal):
                return False
            future = self._signal.future(loop, left)
            if not self._news():
                await future
            if not self._journal.owned:
                await to_thread(self._source.catch_up)
        return True

    def _is_behind(self) -> bool:
        return any(part.durable > at for part, at in self._positions.items())

    def _is_over(self) -> bool:
        return self._journal.end is not None or self._source.failure is not None

    def _news(self) -> bool:
        return self._is_over() or self._is_behind()

    def _fill(self) -> float | None:
        """Read the next page of every partition that has news; where the log is away, how long to wait before that.

        It may be away over a network alone: then the same is read again, from the same offset, until it can be.
        """
        if self._journal.end is not None:
            return None
        try:
            self.begin()
            self._source.catch_up()
            self._read_page()
        except Unavailable:
            pause = next(self._pauses, None)
            if pause is None:
                raise
            return pause if self._journal.end is None else None
        if not self._page and self._source.failure is not None:
            raise self._source.failure.again()
        self._pauses = self._source.pauses()
        return None

    def _read_page(self) -> None:
        try:
            for part, at in self._positions.items():
                end = min(part.durable, at + _PAGE_RECORDS)
                for item in self._read(part, at, end) if end > at else ():
                    self._page.append(item)
                    self._positions[part] += 1
        except HoldfastError:
            if not self._page:  # first give what comes before it; the next call finds it again
                raise
