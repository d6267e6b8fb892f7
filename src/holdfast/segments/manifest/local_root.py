"""A log's own `segments/` directory as a store: manifest objects beside the files, for readers that have no journal.

Without another store the directory *is* the store, with the same layout. So right after each seal the segment's
manifest object is written beside it, durably; a topic's document comes before the first of its segments, an `expired`
object before files are removed. The frontier follows, at most once a second, and when the log
is closed. Used by the roller's thread, also to write what a crash left unwritten. A log that
ships to another store publishes only there. What it published here before is withdrawn, so that nobody takes it for all
there is.

Documents of a log with keys are signed. Where `log.json` is damaged or another log's, everything is published again;
`log.json`, by which readers choose, comes last. Nothing is written or removed once the log's directory is elsewhere:
another log may have its place.
"""

from __future__ import annotations

import logging
import os
from math import inf
from pathlib import Path

from holdfast import disk
from holdfast.errors import Closed, Corrupt, HoldfastError, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.root.objects import documents
from holdfast.root.objects.documents import FrontierDocument, LogDocument
from holdfast.root.objects.frontiers import key_of, said_by
from holdfast.root.root_trust import RootTrust
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.manifest_documents import (
    gone_document,
    next_topic_document,
    segment_document,
    topic_state,
)
from holdfast.store import layout, object_limits
from holdfast.store.port import Body

_RETRY_S = 5.0
_SLEEP_S = 3600.0
_FRONTIER_S = 1.0
"""The least between two frontiers, and the most that one lags behind."""

logger = logging.getLogger("holdfast")


def withdraw(root: Path) -> None:
    """The directory is no longer a store: readers do not recognise one without its first document."""
    disk.discard(root / layout.LOG)


class LocalRootPublisher:
    """Keeps the manifest objects of one log's own directory."""

    def __init__(self, journal: Journal, manifest: Manifest) -> None:
        self._journal = journal
        self._manifest = manifest
        self._root = manifest.root
        self._folders: set[Path] = set()
        self._known: dict[str, tuple[int, bytes]] = {}
        """What the newest document of each topic says: how many schemas, and which policy."""
        self._trust, self._is_renewed = self._standing()
        """Renewed means that what `log.json` says is not this log's word yet."""
        self._has_log = False
        self._frontier: dict[str, dict[str, int]] | None = None
        """What the newest frontier says that this process wrote."""
        self._frontier_due = 0.0
        self._published: dict[Partition, int] = {}
        """How many segments of each partition have their manifest objects."""

    def reached(self, partition: Partition) -> int:
        """Everything below is in segments with manifest objects."""
        sealed = partition.sealed
        return sealed.sealed_offset if self._published.get(partition) == sealed.segments else -1

    def check(self, now: float) -> float:
        """Write what is missing; returns when to look again. A chore of the roller."""
        partitions = list(self._journal.partitions.values())
        late = [p for p in partitions if self.reached(p) < p.sealed.sealed_offset or self._is_withdrawn(p)]
        for partition in late:
            try:
                self.publish(partition)
            except (Unavailable, Closed):
                return now + _RETRY_S
        try:
            self._finish_renewal()
            return now + (_SLEEP_S if self.say_settled(now) else _FRONTIER_S)
        except (OSError, Closed):
            return now + _RETRY_S

    def finish(self) -> None:
        """At the end: the frontier is exact, if the disk works."""
        try:
            self.say_settled()
        except Closed:
            pass  # it is elsewhere, and closing the log reports it
        except OSError as error:
            logger.warning("the frontier cannot be written: %s", error, extra={"action": "frontier_late"})

    def say_settled(self, now: float = inf) -> bool:
        """Write the frontier, if there is news and it was not just written; False where it is to be done later."""
        partitions = self._sealed()
        if not all(self.reached(partition) == partition.sealed.sealed_offset for partition in partitions):
            return False
        settled = said_by((p.topic, p.number, p.sealed.sealed_offset) for p in partitions)
        if settled == self._frontier or not self._has_log:
            return True
        if now < self._frontier_due:
            return False
        self._write_frontier(settled)
        self._frontier_due = now + _FRONTIER_S
        return True

    def _sealed(self) -> list[Partition]:
        return [partition for partition in self._journal.partitions.values() if partition.sealed.segments]

    def _write_frontier(self, settled: dict[str, dict[str, int]]) -> None:
        """The next one, and then the others go: a reader that meets neither looks again."""
        folder = self._root / layout.FRONTIERS / f"{0:020d}"
        older = (
            [name for name in os.listdir(folder) if layout.parse_number(name) is not None] if folder.is_dir() else []
        )
        number = max((layout.parse_number(name) or 0 for name in older), default=-1) + 1
        document = FrontierDocument(log=self._journal.log_id.hex(), epoch=0, number=number, seq=0, settled=settled)
        self._write(key_of(document), documents.encode(document))
        self._frontier = settled
        for name in older:
            disk.discard(folder / name)

    def publish(self, partition: Partition) -> None:
        """Write the manifest objects of all sealed segments of a partition; raises Unavailable."""
        try:
            start, end = self._found(partition), partition.sealed.segments
            if start < end or self._is_withdrawn(partition):
                self._describe(partition)
            for row in self._manifest.rows(partition, start, end):
                document = segment_document(self._manifest, partition, row, row.number)
                key = layout.manifest_key(partition.topic, partition.number, row.number)
                self._write(key, documents.encode(document))
                self._published[partition] = row.number + 1
        except OSError as error:
            raise Unavailable(
                f"cannot write a manifest object path={error.filename}: {error.strerror}",
                hint=disk.remedy(error, "the records are sealed and can be read; it is tried again"),
            ) from error

    def expire(self, partition: Partition) -> None:
        """Publish where the partition begins now, before files are removed."""
        document = gone_document(self._journal, partition)
        key = layout.expired_key(partition.topic, partition.number, document.upto)
        self._write(key, documents.encode(document))

    def _is_withdrawn(self, partition: Partition) -> bool:
        """Whether there is something to read that nobody can read: the log had a store for a while."""
        return not self._has_log and partition.sealed.segments > 0 and not (self._root / layout.LOG).exists()

    def _found(self, partition: Partition) -> int:
        """How many manifest objects there are: they are written in order, so the newest one tells."""
        if partition not in self._published:
            number = partition.sealed.segments
            while number and not self._path(partition, number - 1).exists():
                number -= 1
            self._published[partition] = number
        return self._published[partition]

    def _path(self, partition: Partition, number: int) -> Path:
        return self._place(layout.manifest_key(partition.topic, partition.number, number))

    def _describe(self, partition: Partition) -> None:
        """The log's document and the topic's newest one, before anything that needs them."""
        journal, topic = self._journal, partition.topic
        if not self._has_log and not self._is_renewed:
            self._write(layout.LOG, self._log_document())
            if not (self._root / layout.FRONTIERS).is_dir():  # one is there before the first manifest object
                self._write_frontier({})
            self._has_log = True
        state = topic_state(journal, topic)
        if self._known.get(topic) != state:
            self._write_topic(topic)
            self._known[topic] = state

    def _write_topic(self, topic: str) -> None:
        folder = self._place(layout.topic_folder(topic))
        numbers = [layout.parse_number(path.name) for path in folder.iterdir()] if folder.is_dir() else []
        newest = max((number for number in numbers if number is not None), default=0)
        current = self._read(layout.topic_key(topic, newest)) if newest else None
        document = next_topic_document(self._journal, self._manifest, topic, newest, current)
        if document is not None:
            self._write(layout.topic_key(topic, document.version), documents.encode(document))

    # -- who vouches for it -------------------------------------------------------------------------------

    def _standing(self) -> tuple[RootTrust, bool]:
        """Who vouches for this directory, and whether there is a `log.json` that is not this log's."""
        signer, log = self._journal.signer, self._journal.log_id.hex()
        try:
            RootTrust(signer, log=log).proved(layout.LOG, _content(self._root / layout.LOG, layout.LOG))
            is_renewed = False
        except FileNotFoundError:
            is_renewed = False
        except (OSError, HoldfastError):  # damaged, or another log's: all of it can be made again
            is_renewed = True
        return RootTrust.of_owner(signer, log), is_renewed

    def _log_document(self) -> bytes:
        journal = self._journal
        return documents.encode(LogDocument(log=journal.log_id.hex(), created_us=journal.created_us))

    def _finish_renewal(self) -> None:
        """Everything is published again: from now on readers may use it."""
        if self._is_renewed:
            for partition in self._journal.partitions.values():
                if partition.sealed.first_segment:
                    self.expire(partition)
            self._write_frontier(said_by((p.topic, p.number, p.sealed.sealed_offset) for p in self._sealed()))
            self._write(layout.LOG, self._log_document())
            self._is_renewed = False
            logger.warning(
                "republished the manifest of this directory: its log.json was not this log's",
                extra={"action": "root_renewed"},
            )

    def _place(self, key: str) -> Path:
        return self._root / key

    def _read(self, key: str) -> bytes | None:
        """A document that stands here; None if it is not ours, and will be written again."""
        try:
            return self._trust.proved(key, _content(self._place(key), key))
        except HoldfastError:
            return None

    def _write(self, key: str, data: bytes) -> None:
        self._journal.require_place()
        path, data = self._place(key), self._trust.signed(key, Body.of(data)).read()
        if path.parent not in self._folders:
            disk.make_directory(path.parent, root=self._root)
            self._folders.add(path.parent)
        disk.write_file(path, data)


def _content(path: Path, key: str) -> bytes:
    """A document's file; Corrupt for what is none: a link leads elsewhere, a pipe would hang, a device never ends."""
    try:
        return disk.read_file(path, object_limits.largest(key))
    except (disk.NotRegular, disk.TooLong):
        raise Corrupt("this is no document's file", path=str(path), hint="it is rewritten") from None
