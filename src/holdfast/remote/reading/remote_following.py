"""Following a topic of a server, and watching its watermark: for threads and event loops alike.

Both sleep on the topic's signal, which the topic's feed of marks rings. Where one is on an event loop, questions are
asked in a thread. A follower outlives the server: what cannot be read now is tried again, from the same offset, until
it can be; it ends when this client is closed, and raises what will not pass by itself.
"""

from __future__ import annotations

from asyncio import get_running_loop, sleep, to_thread
from collections.abc import Callable, Iterator
from typing import TypeVar

from holdfast.errors import Unavailable
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.following import Follower, has_ended
from holdfast.log.topics.watching import Watch
from holdfast.model.record import Watermark
from holdfast.remote.http.exchange import Pauses
from holdfast.remote.reading.marks_feed import MarksFeed
from holdfast.remote.writing.remote_journal import RemoteJournal

Item = TypeVar("Item")

_SLEEP_S = 5.0


class RemoteFollower(Follower[Item]):
    """An endless iterator of records, for `for` and `async for`; made by `topic.follow()`."""

    def __init__(
        self,
        journal: RemoteJournal,
        feed: MarksFeed,
        begin: Callable[[], dict[Partition, int]],
        read: Callable[[Partition, int, int], Iterator[Item]],
    ) -> None:
        """`begin` says where to begin by what is known: what is wrong with the question is said at once.

        It is asked again when the first record is, by what the server says then.
        """
        super().__init__(journal, begin(), read)  # type: ignore[arg-type]  # it has all that is asked of a journal
        self._feed = feed
        self._begin = begin
        self._begun = False
        self._pauses = Pauses()

    def begin(self) -> None:
        """Take the place where it begins now, rather than with the first record."""
        if not self._begun:
            self._feed.refresh()
            self._positions = self._begin()
            self._begun = True

    def __next__(self) -> Item:
        while not self._page:
            wait = self._try_fill()
            if not self._page:
                if has_ended(self._journal):
                    raise StopIteration
                self._signal.sleep(self._news if wait is None else self._is_over, _SLEEP_S if wait is None else wait)
        return self._page.popleft()

    async def __anext__(self) -> Item:
        while not self._page:
            wait = await to_thread(self._try_fill)
            if not self._page:
                if has_ended(self._journal):
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
        self.begin()
        return super().position

    def go_to(self, position: str) -> None:
        """Go on from a position that a reading got to."""
        self.begin()
        super().go_to(position)

    async def wait(self, timeout: float) -> bool:
        """Wait until there is something to read behind its position; False when the time is over, or it is closed."""
        await to_thread(self.begin)
        deadline = get_running_loop().time() + timeout
        while not self._is_behind():
            left = min(_SLEEP_S, deadline - get_running_loop().time())
            if left <= 0 or has_ended(self._journal):
                return False
            self._feed.listen()
            future = self._signal.future(get_running_loop(), left)
            if not self._news():
                await future
        return True

    def _news(self) -> bool:
        return self._is_over() or self._is_behind()

    def _is_over(self) -> bool:
        return self._journal.end is not None or self._feed.failure is not None

    def _try_fill(self) -> float | None:
        """Read a page if there is one; where the server is away, how long to wait before the next try."""
        if self._journal.end is not None:
            return None
        try:
            self._fill()
        except Unavailable:
            return self._pauses.next() if self._journal.end is None else None
        self._pauses = Pauses()
        return None

    def _fill(self) -> bool:
        self.begin()
        self._feed.listen()
        if not self._read_page() and self._feed.failure is not None:
            raise self._feed.failure.again()
        return bool(self._page)


class RemoteWatch(Watch):
    """One partition's watermark; iterate it for every change from now on, with `for` or `async for`."""

    def __init__(self, journal: RemoteJournal, feed: MarksFeed, partition: Partition) -> None:
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
        return self._moved() or self._journal.end is not None or self._feed.failure is not None
