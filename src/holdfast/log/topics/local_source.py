"""What is stored of a topic where its log is open: segment files and the journal's tail, read by this process.

An owner is woken by its writer. Where another process owns the log, it tells those who share the log; a handle that
only reads gets no signals, and looks again a few times per second.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.partition_stream import LocalStream
from holdfast.model.record import Marks
from holdfast.segments.manifest.local_manifest import Manifest

_LOOK_AGAIN_S = 0.1
_NEWS_S = 1.0
_SLEEP_S = 3600.0


class LocalSource:
    """One topic of a log that is open in this process."""

    is_far = False
    failure = None

    def __init__(self, topic: str, journal: Journal, manifest: Manifest) -> None:
        self._topic = topic
        self._journal = journal
        self._manifest = manifest

    def stream(self, part: Partition) -> LocalStream:
        """One partition as an ordered stream."""
        return LocalStream(self._journal, self._manifest, part)

    def marks(self) -> tuple[Marks, ...]:
        """How far each partition is now."""
        self.refresh()
        if self._journal.news is not None:
            self._journal.news.ask_marks(self._topic)
        return tuple(self._marks(part) for part in self._journal.topics[self._topic])

    def _marks(self, part: Partition) -> Marks:
        # In this order: a mark that is read later can only be further on, and the inequalities hold.
        shipment = part.shipment
        sealed = part.sealed.sealed_offset
        durable = part.durable
        # Without another store the log's own directory is what readers read: what is sealed is settled.
        shipped, settled = (None, sealed) if shipment is None else (shipment.shipped_offset, shipment.settled_offset)
        return Marks(self._journal.appended(part), durable, sealed, shipped, settled)

    def refresh(self) -> None:
        """Take up how far the topic is now."""
        self._journal.refresh(self._topic)

    catch_up = refresh

    def listen(self) -> float:
        """Somebody will sleep on the topic's signal: see that it is rung, and say for how long to sleep at most."""
        return wait_seconds(self._journal, self._topic)

    def pauses(self) -> Iterator[float]:
        """It is never away."""
        return iter(())


def wait_seconds(journal: Journal, topic: str) -> float:
    """How long to sleep before looking again.

    An owner is woken by a signal. So is a member, once the owner was asked to report on the
    topic; but an owner that is killed tells nothing.
    """
    if journal.news is not None:
        journal.news.watch(topic)
        return _NEWS_S
    return _SLEEP_S if journal.owned else _LOOK_AGAIN_S
