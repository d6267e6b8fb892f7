"""Following a topic of a server, and watching its watermark: for threads and event loops alike.

Both sleep on the topic's signal, which the topic's feed of marks rings. Where one is on an event loop, questions are
asked in a thread. A follower outlives the server: what cannot be read now is tried again, from the same offset, until
it can be; it ends when this client is closed, and raises what will not pass by itself.
"""

from __future__ import annotations

from asyncio import get_running_loop, sleep, to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.following import Follower, has_ended
from holdfast.log.topics.reading import parse_position, position_text
from holdfast.log.topics.watching import Watch
from holdfast.model.record import Watermark
from holdfast.remote.http.exchange import Pauses
from holdfast.remote.reading.marks_feed import MarksFeed
from holdfast.remote.writing.remote_journal import RemoteJournal

Item = TypeVar("Item")

_PAGE_RECORDS = 1000
_SLEEP_S = 5.0


class RemoteFollower(Follower[Item]):
    """An endless iterator of records, for `for` and `async for`; made by `topic.follow()`."""

    def __init__(
        self, journal: RemoteJournal, feed: MarksFeed, begin: Callable[[], dict[Partition, int]],
        read: Callable[[Partition, int, int], Iterator[Item]], signal_of: Partition,
    ) -> None:  # fmt: skip
        """`begin` says where to begin; it is asked when the first record is, for that may be a question."""
        self._remote = journal
        self._feed = feed
        self._begin = begin
        self._places: dict[Partition, int] | None = None
        self._read = read
        self._signal = signal_of.signal
        self._page: deque[Item] = deque()
        self._pauses = Pauses()

    def begin(self) -> None:
        """Take the place where it begins now, rather than with the first record."""
        if self._places is None:
            self._feed.refresh()
            self._places = self._begin()

    def __next__(self) -> Item:
        while not self._page:
            wait = self._try_fill()
            if not self._page:
                if has_ended(self._remote):  # type: ignore[arg-type]  # it has all that is asked of a journal
                    raise StopIteration
                self._signal.sleep(self._news if wait is None else self._is_over, _SLEEP_S if wait is None else wait)
        return self._page.popleft()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._page:
            wait = await to_thread(self._try_fill)
            if not self._page:
                if has_ended(self._remote):  # type: ignore[arg-type]
                    raise StopAsyncIteration
                if wait is not None:
                    await sleep(wait)
                    continue
                future = self._signal.future(get_running_loop(), _SLEEP_S)
                if not self._news():
                    await future
        return self._page.popleft()

    @property
    def position(self) -> str:
        """How far it has given records, as text: for `topic.read(position)`, or another follower."""
        if self._page:
            raise Invalid("this follower is being iterated", hint="each record has its own place")
        self.begin()
        return position_text({part.number: at for part, at in (self._places or {}).items()})

    def go_to(self, position: str) -> None:
        """Go on from a position that a reading got to."""
        self.begin()
        found, places = parse_position(position), self._places or {}
        for part in places:
            places[part] = found.get(part.number, places[part])

    async def wait(self, timeout: float) -> bool:
        """Wait until there is something to read behind its position; False when the time is over, or it is closed."""
        await to_thread(self.begin)
        deadline = get_running_loop().time() + timeout
        while not self._is_behind():
            left = min(_SLEEP_S, deadline - get_running_loop().time())
            if left <= 0 or has_ended(self._remote):  # type: ignore[arg-type]
                return False
            self._feed.listen()
            future = self._signal.future(get_running_loop(), left)
            if not self._news():
                await future
        return True

    def _is_behind(self) -> bool:
        return any(part.durable > at for part, at in (self._places or {}).items())

    def _news(self) -> bool:
        return self._is_over() or any(part.durable > at for part, at in (self._places or {}).items())

    def _is_over(self) -> bool:
        return self._remote.end is not None or self._feed.failure is not None

    def _try_fill(self) -> float | None:
        """Read a page if there is one; where the server is away, how long to wait before the next try."""
        if self._remote.end is not None:
            return None
        try:
            self._fill_page()
        except Unavailable:
            return self._pauses.next() if self._remote.end is None else None
        self._pauses = Pauses()
        return None

    def _fill_page(self) -> None:
        self.begin()
        assert self._places is not None
        self._feed.listen()
        try:
            for part, at in self._places.items():
                end = min(part.durable, at + _PAGE_RECORDS)
                for item in self._read(part, at, end) if end > at else ():
                    self._page.append(item)
                    self._places[part] += 1
        except HoldfastError:
            if not self._page:  # first give what comes before it; the next call finds it again
                raise
        if not self._page and self._feed.failure is not None:
            raise self._feed.failure.again()


class RemoteWatch(Watch):
    """One partition's watermark; iterate it for every change from now on, with `for` or `async for`."""

    def __init__(self, journal: RemoteJournal, feed: MarksFeed, partition: Partition) -> None:
        self._remote = journal
        self._feed = feed
        super().__init__(journal, partition)  # type: ignore[arg-type]

    @property
    def value(self) -> Watermark:
        """The newest value."""
        self._feed.refresh()
        return self._known()

    def wait(self, offset: int, timeout: float) -> Watermark:
        """Wait until everything below `offset` is sealed; raises Unavailable when it is not in time."""
        self._feed.refresh()
        self._feed.listen()
        return super().wait(offset, timeout)

    def __next__(self) -> Watermark:
        while not self._moved():
            if has_ended(self._journal):
                raise StopIteration
            self._require_news()
            self._partition.signal.sleep(self._has_moved, _SLEEP_S)
        return self._take()

    async def __anext__(self) -> Watermark:
        while not self._moved():
            if has_ended(self._journal):
                raise StopAsyncIteration
            self._require_news()
            future = self._partition.signal.future(get_running_loop(), _SLEEP_S)
            if not self._has_moved():
                await future
        return self._take()

    def _require_news(self) -> None:
        if self._feed.failure is not None:
            raise self._feed.failure.again()
        self._feed.listen()

    def _has_moved(self) -> bool:
        return self._moved() or self._remote.end is not None or self._feed.failure is not None
