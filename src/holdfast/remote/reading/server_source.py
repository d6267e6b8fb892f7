"""What is stored of a topic of a server's log: fetched in pages, and heard of by the topic's feed of marks."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import HoldfastError
from holdfast.journal.state.partition import Partition
from holdfast.model.record import Marks
from holdfast.remote.http.exchange import Exchange, Pauses
from holdfast.remote.reading.marks_feed import MarksFeed
from holdfast.remote.reading.page_stream import PageStream
from holdfast.remote.writing.client_journal import ClientJournal

_SLEEP_S = 5.0


class ServerSource:
    """One topic of a server's log."""

    is_far = True

    def __init__(self, exchange: Exchange, journal: ClientJournal, feed: MarksFeed) -> None:
        self._exchange = exchange
        self._journal = journal
        self._feed = feed

    @property
    def failure(self) -> HoldfastError | None:
        """Why no news come any more: the topic, or the right to see it, is gone."""
        return self._feed.failure

    def stream(self, part: Partition) -> PageStream:
        """One partition as an ordered stream."""
        return PageStream(self._exchange, part)

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition is now."""
        self._feed.refresh()
        waiting = [self._journal.waiting(part) for part in self._feed.parts]
        return tuple(
            Marks(max(row.appended, row.durable) + queued, row.durable, row.sealed, row.shipped, row.settled)
            for row, queued in zip(self._feed.marks, waiting, strict=True)
        )

    def refresh(self) -> None:
        """Take up how far the topic is now."""
        self._feed.refresh()

    def catch_up(self) -> None:
        """The feed does, in its own thread."""
        self._feed.listen()

    def listen(self) -> float:
        """A reader will sleep on the topic's signal: see that it is rung, and say for how long to sleep at most."""
        self._feed.listen()
        return _SLEEP_S

    def pauses(self) -> Iterator[float]:
        """The server may come back at any time."""
        pauses = Pauses()
        while True:
            yield pauses.next()
