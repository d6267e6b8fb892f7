"""Watching a partition's watermark: the newest value at any time, without a lock on anybody.

The value is one immutable row that the writer replaces; reading it is reading a reference. Waiting sleeps on the
topic's signal. A read-only handle gets none; it looks again a few times per second.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import AsyncIterator, Iterator

from holdfast.arguments import seconds, whole
from holdfast.errors import Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.following import has_ended, wait_seconds
from holdfast.model.record import Watermark


class Watch:
    """One partition's watermark; iterate it for every change from now on, with `for` or `async for`."""

    def __init__(self, journal: Journal, partition: Partition) -> None:
        self._journal = journal
        self._partition = partition
        self._told = self._known()

    @property
    def value(self) -> Watermark:
        """The newest value."""
        self._journal.refresh(self._partition.topic)
        return self._known()

    def wait(self, offset: int, timeout: float) -> Watermark:
        """Wait until everything below `offset` is sealed; raises Unavailable when it is not in time."""
        clock = self._journal.clock
        offset, timeout = whole(offset, "offset"), seconds(timeout)
        deadline = clock.monotonic() + timeout
        self._journal.refuse_second()
        self._journal.refresh(self._partition.topic)
        while self._known().offset < offset:
            left = deadline - clock.monotonic()
            self._raise_if_over()
            if left <= 0:
                raise Unavailable(
                    f"not sealed within {timeout:g} s offset={offset} sealed={self._known().offset}",
                    hint="log.seal(topic) seals at once; stats().segments says what holds sealing up",
                )
            self._partition.signal.sleep(
                lambda: self._has_news(offset), min(left, wait_seconds(self._journal, self._partition.topic))
            )
            self._journal.refresh(self._partition.topic)
        return self._known()

    def __iter__(self) -> Iterator[Watermark]:
        return self

    def __next__(self) -> Watermark:
        while not self._moved():
            if has_ended(self._journal):
                raise StopIteration
            self._partition.signal.sleep(
                lambda: self._moved() or has_ended(self._journal), wait_seconds(self._journal, self._partition.topic)
            )
            self._journal.refresh(self._partition.topic)
        return self._take()

    def __aiter__(self) -> AsyncIterator[Watermark]:
        return self

    async def __anext__(self) -> Watermark:
        while not self._moved():
            if has_ended(self._journal):
                raise StopAsyncIteration
            future = self._partition.signal.future(
                get_running_loop(), wait_seconds(self._journal, self._partition.topic)
            )
            if not self._moved() and not has_ended(self._journal):
                await future
            self._journal.refresh(self._partition.topic)
        return self._take()

    def _known(self) -> Watermark:
        row = self._partition.sealed
        return Watermark(row.segments - 1 if row.segments else None, row.sealed_offset)

    def _take(self) -> Watermark:
        self._told = self._known()
        return self._told

    def _moved(self) -> bool:
        return self._known() != self._told

    def _has_news(self, offset: int) -> bool:
        return self._known().offset >= offset or self._journal.end is not None

    def _raise_if_over(self) -> None:
        end = self._journal.end
        if end is not None:
            raise end.again()
