"""Topics of a server's log: appending is that of any topic, up to the queue; reading is planned here and fetched there.

A reading's span is fixed when it is made, as it is for a log of this process: the topic's marks are asked for then. On
an event loop nothing is asked then; the span is fixed when the reading is first used, in a thread.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.caller import in_coroutine
from holdfast.log.topics.any_topic import AnyTopic
from holdfast.log.topics.reading import Reading, Shape
from holdfast.log.topics.topic import Topic, Unwritten
from holdfast.log.topics.typed_topic import Row, TypedTopic
from holdfast.log.topics.validation import SentKeys
from holdfast.log.topics.wanted_key import Key
from holdfast.model.record import Marks, Record
from holdfast.remote.reading.marks_feed import FeedMarks, MarksFeed
from holdfast.remote.reading.remote_following import RemoteFollower, RemoteWatch
from holdfast.remote.reading.remote_pages import RemotePartitions, RemoteRaw, RemoteTyped

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.journal.state.partition import Partition

Item = TypeVar("Item")


def _once(partition: int | Iterable[int] | None) -> int | Iterable[int] | None:
    """Partitions that may be an iterator, which gives them once; what is none of them is for the topic to refuse."""
    return tuple(partition) if isinstance(partition, Iterable) and not isinstance(partition, str | bytes) else partition


class RemoteTopicVerbs(AnyTopic[Item]):
    """What raw and typed topics of a server have in common."""

    feed: MarksFeed

    def _read(
        self,
        shape: Callable[[], Shape[Item]],
        start: int | str | None,
        end: int | str | None,
        limit: int | None,
        reverse: bool,
        partition: int | Iterable[int] | None,
        since: int | datetime | None,
        until: int | datetime | None,
        bytes_max: int | None,
        key: Key | None = None,
    ) -> Reading[Item]:
        partition = _once(partition)

        def plan() -> Reading[Item]:
            return super(RemoteTopicVerbs, self)._read(
                shape, start, end, limit, reverse, partition, since, until, bytes_max, key
            )

        if in_coroutine():
            plan()  # by what is known already: what is wrong with the question is said at once
            return LaterReading(lambda: self._planned(plan))
        return self._planned(plan)

    def _planned(self, plan: Callable[[], Reading[Item]]) -> Reading[Item]:
        self.feed.refresh()
        return plan()

    def follow(
        self, start: int | str | None = None, *, partition: int | Iterable[int] | None = None
    ) -> RemoteFollower[Item]:
        """Records as they become durable, for ever: `for record in topic.follow()` or `async for`.

        Begins at offset `start` of every partition, or at the `position` of a reading (default: with the next
        record). Order holds within each partition. Goes on by itself when the server was away, without losing or
        repeating anything. Ends when this client is closed.
        """
        partition = _once(partition)
        partitions = self._partitions

        def begin() -> dict[Partition, int]:
            return partitions.positions(partition, start)

        follower = RemoteFollower(self._remote_journal, self.feed, begin, self._items)
        if not in_coroutine():
            follower.begin()
        return follower

    def _how_it_goes_on(self) -> FeedMarks:
        return FeedMarks(self.feed)

    @property
    def _remote_journal(self) -> Any:
        return self._journal

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition got."""
        self.feed.refresh()
        told = self.feed.marks
        waiting = [self._remote_journal.waiting(part) for part in self._partitions.parts]
        return tuple(
            Marks(max(row.appended, row.durable) + queued, row.durable, row.sealed, row.shipped, row.settled)
            for row, queued in zip(told, waiting, strict=True)
        )

    def watch(self, partition: int = 0) -> RemoteWatch:
        """The watermark as it moves: `.value` at any time, `for` or `async for` each change."""
        part = self._partitions.explicit(partition)
        if not in_coroutine():
            self.feed.refresh()
        return RemoteWatch(self._remote_journal, self.feed, part)


class RemoteTopic(RemoteTopicVerbs[Record], Topic):
    """One raw topic of a server's log; get it with `log.topic(name)`."""

    def __init__(self, name: str, partitions: RemotePartitions, clock: Any, feed: MarksFeed) -> None:
        Topic.__init__(self, name, partitions, clock)
        self._shape = RemoteRaw
        self._checks = SentKeys(name, self._journal.settings)
        self.feed = feed

    def __repr__(self) -> str:
        return f"RemoteTopic({self.name!r}, partitions={self.partitions})"


class RemoteOwnTopic(Unwritten, RemoteTopic):
    """A topic of a server's log that holdfast alone writes."""


class RemoteTypedTopic(RemoteTopicVerbs[Row], TypedTopic):
    """One typed topic of a server's log; get it with `log.topic(name, schema=…)`."""

    def __init__(self, name: str, partitions: RemotePartitions, clock: Any, feed: MarksFeed) -> None:
        TypedTopic.__init__(self, name, partitions, clock)
        self._checks = SentKeys(name, self._journal.settings)
        self.feed = feed

    def _typed(self, columns: Collection[str] | None = None) -> RemoteTyped:
        return RemoteTyped(self._journal, self.name, self._schema(), columns)

    def __repr__(self) -> str:
        return f"RemoteTypedTopic({self.name!r}, partitions={self.partitions}, columns={self.schema.names})"


class LaterReading(Reading[Item], Generic[Item]):
    """A reading that was asked for on an event loop: it is planned when it is first used, in a thread."""

    def __init__(self, plan: Callable[[], Reading[Item]]) -> None:
        self._plan = plan
        self._found: Reading[Item] | None = None

    def _now(self) -> Reading[Item]:
        if self._found is None:
            self._found = self._plan()
        return self._found

    async def __aiter__(self) -> AsyncIterator[Item]:
        """The records, read in threads a page at a time; the loop is never blocked."""
        found = await to_thread(self._now)
        async for item in found:
            yield item

    def __iter__(self) -> Iterator[Item]:
        return iter(self._now())

    def __next__(self) -> Item:
        return next(self._now())

    @property
    def position(self) -> str:
        """How far this reading got, to go on from later: `read(start=position)`, backwards `read(end=position)`."""
        return self._now().position

    @property
    def exhausted(self) -> bool:
        """Whether it has given everything that was there when it began."""
        return self._now().exhausted

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the results."""
        return self._now().schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, one after the other."""
        return self._now().batches()

    def __repr__(self) -> str:
        return "Reading(not planned yet)" if self._found is None else repr(self._found)
