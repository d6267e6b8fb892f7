"""What a member reads of one partition, page by page.

The iterator of a page stays open until it has given all that was durable when it was opened: a segment is not opened
and proved again for each page. Where retention was faster it raises `Expired`, or goes on with what is left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from holdfast.errors import Expired, HoldfastError
from holdfast.journal.state.partition import Partition

Item = TypeVar("Item")
Read = Callable[[Partition, int, int], Iterator[Item]]
"""The records of a partition between two offsets."""
OnExpired = Literal["fail", "first"]

logger = logging.getLogger("holdfast")


class TopicMarks(Protocol):
    """How one hears that a topic went on: here, or at a server."""

    @property
    def is_far(self) -> bool:
        """Whether looking is a question over the network, which may find nobody."""

    def refresh(self) -> None:
        """Take up how far it is now."""

    def listen(self) -> float:
        """Somebody will sleep on the topic's signal: see that it is rung, and say for how long to sleep at most."""


class PageSource(NamedTuple, Generic[Item]):
    """What all partitions of a member have in common."""

    consumer: str
    read: Read[Item]
    on_expired: OnExpired


class PartitionPages(Generic[Item]):
    """The pages of one partition; used by one thread at a time."""

    __slots__ = ("_items", "_source", "at", "part")

    def __init__(self, part: Partition, at: int, source: PageSource[Item]) -> None:
        self.part = part
        self.at = at
        """The offset behind the last record that was put into a page."""
        self._source = source
        self._items: Iterator[Item] | None = None
        """Where to go on reading; None: look for more."""

    @property
    def has_more(self) -> bool:
        """Whether it is worth looking."""
        return self._items is not None or self.part.durable > self.at

    def go_to(self, at: int) -> None:
        """Go on from here."""
        self.at, self._items = at, None

    def fill(self, page: deque[Item], limit: int) -> None:
        """Put the next records into an empty page; raises what is wrong with the first of them."""
        for _ in range(2):  # an iterator that was left open may be at its end
            if self._items is None:
                self._items = self._opened()
            try:
                page.extend(islice(self._items, limit))
            except HoldfastError as error:
                self.go_to(self.at + len(page))
                if not page:
                    self._skip_expired(error)
                return
            self.at += len(page)
            if len(page) < limit:
                self._items = None
            if page or self.part.durable <= self.at:
                return

    def _opened(self) -> Iterator[Item]:
        if self.at < self.part.sealed.first_offset:
            self._skip_expired(None)
        return self._source.read(self.part, self.at, self.part.durable)

    def _skip_expired(self, error: HoldfastError | None) -> None:
        """Retention has removed what comes next: say so, or go on with what is left, as was asked for."""
        part = self.part
        first = max(part.sealed.first_offset, error.first if isinstance(error, Expired) else 0)
        if error is not None and (not isinstance(error, Expired) or first <= self.at):
            raise error
        where = f"consumer={self._source.consumer!r} topic={part.topic!r} partition={part.number}"
        if self._source.on_expired == "fail":
            raise Expired(
                f"records that this consumer has not seen have expired {where} offset={self.at} first={first}",
                first=first,
                hint="consumer.seek('first') goes on with what is left; on_expired='first' always does; retention can"
                " wait for a consumer: log.set_retention(…, wait_for=[…], wait_limit=…)",
            )
        logger.warning(
            "%d records expired before a consumer saw them %s",
            first - self.at,
            where,
            extra={"action": "consumer_skipped", "records": first - self.at},
        )
        self.at = first


def emptied(page: deque[Item]) -> int:
    """Empty a page; how many were in it, though another thread takes some at this very moment."""
    count = 0
    try:
        while True:
            page.pop()
            count += 1
    except IndexError:
        return count
