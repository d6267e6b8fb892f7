"""A reading of a server's topic that was asked for on an event loop: planned when it is first used, in a thread.

A reading's span is fixed when it is made, by how far the topic is then. Over a network that is a question, which no
event loop may wait for.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.log.topics.reading import Reading

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")


class LaterReading(Reading[Item], Generic[Item]):
    """See `Reading`."""

    def __init__(self, refresh: Callable[[], None], plan: Callable[[], Reading[Item]]) -> None:
        self._refresh = refresh
        self._plan = plan
        self._found: Reading[Item] | None = None

    def _now(self) -> Reading[Item]:
        if self._found is None:
            self._refresh()
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
    def bounds(self) -> tuple[str, str]:
        """Where its span begins and ends, as positions: with them a later reading gives no more than this one would."""
        return self._now().bounds

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
