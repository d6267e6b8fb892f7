"""What consumers of a log that is open here and of a server's log have in common: being open, blocks, what is asked."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from holdfast.arguments import whole
from holdfast.errors import Closed, Invalid
from holdfast.log.topics.following import Ending

PAGE_RECORDS, PAGE_RECORDS_MAX = 256, 10_000


class AnyConsumer:
    """A named reader of one topic."""

    _journal: Ending
    _closed: bool

    def close(self) -> None:
        """Give its partitions back, and end its iterators; commits nothing. Closing again does nothing."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this consumer is closed", hint="make another one: topic.consumer(name)")
        if self._journal.end is not None:
            raise self._journal.end.again()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def checked_limit(limit: int) -> int:
    """How many records are wanted; Invalid unless it is at least one."""
    if whole(limit, "limit") < 1:
        raise Invalid(f"limit must be above zero, got {limit}", hint="for instance poll(100)")
    return whole(limit, "limit")


def page_records(limit: int) -> int:
    """How many records to read at once, for a caller that wants so many."""
    return min(max(PAGE_RECORDS, limit), PAGE_RECORDS_MAX)
