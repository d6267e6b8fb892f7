"""A reader's lease: it says which segments a stream still needs, so that retention on the store waits for it.

A lease is a small object with an end time; renewing writes the next one and removes the one before. Writing it needs
the right to create objects below `leases/`. A reader without that right reads without a lease, and gets `NotFound` if
retention is faster. Times are this machine's: reader and owner should agree within minutes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter

from holdfast.clock import Clock
from holdfast.reader.offsets import Where, nested
from holdfast.root.numbered_objects import numbered
from holdfast.root.objects import documents
from holdfast.root.objects.documents import LeaseDocument, SegmentDocument
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, Store

_first = attrgetter("first")


def segment_number(segments: Sequence[SegmentDocument], offset: int) -> int:
    """The number of the segment of a partition that holds an offset, or will hold it."""
    at = bisect_right(segments, offset, key=_first) - 1
    if at < 0:
        return 0
    return segments[at].number + (offset >= segments[at].first + segments[at].rows)


class Lease:
    """What one reader of a log needs, renewed now and then."""

    def __init__(self, store: Store, log: str, reader: str, seconds: int, clock: Clock) -> None:
        self._store, self._log, self._reader = store, log, reader
        self._seconds, self._clock = seconds, clock
        self._number: int | None = None
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether it is time to renew."""
        return self._number is None or self._clock.monotonic() >= self._due

    def renew(self, needs: Mapping[Where, int]) -> None:
        """Say that segments from these numbers on are needed for some time."""
        folder = f"{layout.LEASES}{self._reader}/"
        older = numbered(self._store, folder)
        number = 1 + max((layout.parse_number(key) or 0 for key in older), default=-1)
        until_us = self._clock.now_us() + self._seconds * 1_000_000
        document = LeaseDocument(log=self._log, reader=self._reader, until_us=until_us, needs=nested(needs))
        try:
            self._store.create(layout.lease_key(self._reader, number), Body.of(documents.encode(document)))
        except AlreadyExists:
            return  # our own, whose answer was lost, or another reader's of the same name: the next trigger looks again
        self._number, self._due = number, self._clock.monotonic() + self._seconds / 3
        self._store.delete(older)

    def end(self) -> None:
        """Give it up: nothing is needed any more."""
        self._store.delete(numbered(self._store, f"{layout.LEASES}{self._reader}/"))
        self._number = None
