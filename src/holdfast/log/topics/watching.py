"""Watching a partition's watermark: the newest value at any time, without a lock on anybody.

The value is one immutable row that the writer replaces; reading it is reading a reference. Waiting sleeps on the
topic's signal, for as long as the topic's source says.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from holdfast.arguments import seconds, whole
from holdfast.caller import in_coroutine
from holdfast.errors import Unavailable
from holdfast.log.topics.following import has_ended
from holdfast.model.record import Watermark

if TYPE_CHECKING:
    from holdfast.journal.journal_port import JournalPort
    from holdfast.journal.state.partition import Partition
    from holdfast.log.ports import TopicSource


class Watch:
    """One partition's watermark; iterate it for every change from now on, with `for` or `async for`."""

    def __init__(self, journal: JournalPort, source: TopicSource, partition: Partition) -> None:
        self._journal = journal
        self._source = source
        self._partition = partition
        if not (source.is_far and in_coroutine()):
            source.refresh()
        self._last = self._known()

    @property
    def value(self) -> Watermark:
        """The newest value."""
        self._source.refresh()
        return self._known()

    def wait(self, offset: int, timeout: float) -> Watermark:
        """Wait until everything below `offset` is sealed; raises Unavailable when it is not in time."""
        clock = self._journal.clock
        offset, timeout = whole(offset, "offset"), seconds(timeout)
        deadline = clock.monotonic() + timeout
        self._journal.refuse_second()
        self._source.refresh()
        while self._known().offset < offset:
            left = deadline - clock.monotonic()
            self._raise_if_over()
            if left <= 0:
                raise Unavailable(
                    f"not sealed within {timeout:g} s offset={offset} sealed={self._known().offset}",
                    hint="log.seal(topic) seals at once; stats().segments says what holds sealing up",
                )
            self._partition.signal.sleep(lambda: self._has_news(offset), min(left, self._source.listen()))
            self._source.catch_up()
        return self._known()

    def __iter__(self) -> Iterator[Watermark]:
        return self

    def __next__(self) -> Watermark:
        while not self._moved():
            if has_ended(self._journal):
                raise StopIteration
            self._raise_failure()
            self._partition.signal.sleep(self._has_moved, self._source.listen())
            self._source.catch_up()
        return self._take()

    def __aiter__(self) -> AsyncIterator[Watermark]:
        return self

    async def __anext__(self) -> Watermark:
        while not self._moved():
            if has_ended(self._journal):
                raise StopAsyncIteration
            self._raise_failure()
            future = self._partition.signal.future(get_running_loop(), self._source.listen())
            if not self._has_moved():
                await future
            self._source.catch_up()
        return self._take()

    def _known(self) -> Watermark:
        row = self._partition.sealed
        return Watermark(row.segments - 1 if row.segments else None, row.sealed_offset)

    def _take(self) -> Watermark:
        self._last = self._known()
        return self._last

    def _moved(self) -> bool:
        return self._known() != self._last

    def _is_over(self) -> bool:
        return self._journal.end is not None or self._source.failure is not None

    def _has_moved(self) -> bool:
        return self._moved() or self._is_over()

    def _has_news(self, offset: int) -> bool:
        return self._known().offset >= offset or self._is_over()

    def _raise_if_over(self) -> None:
        end = self._journal.end
        if end is not None:
            raise end.again()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._source.failure is not None:
            raise self._source.failure.again()
