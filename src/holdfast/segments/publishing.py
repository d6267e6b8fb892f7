"""A log's own `segments/` directory as a store: manifest objects beside the files, for readers that have no journal.

Without another store the directory *is* the store, with the same layout. So right after each seal the segment's
manifest object is written beside it, durably; a topic's document comes before the first of its segments, an `expired`
object before files are removed. Used by the roller's thread, also to write what a crash left unwritten. A log that
ships to another store publishes there and nothing here: what it published before is withdrawn, so that nobody reads it
and takes it for all there is.
"""

from __future__ import annotations

from pathlib import Path

from holdfast import disk
from holdfast.errors import Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.partition import Partition
from holdfast.segments.manifest import Manifest
from holdfast.segments.manifest_documents import (
    gone_document,
    next_topic_document,
    segment_document,
    topic_state,
)
from holdfast.store import documents, layout
from holdfast.store.documents import LogDocument

_RETRY_S = 5.0
_SLEEP_S = 3600.0


def withdraw(root: Path) -> None:
    """The directory is no store any more: without its first document it is none to any reader."""
    disk.discard(root / layout.LOG)


class Publishing:
    """Keeps the manifest objects of one log's own directory."""

    def __init__(self, journal: Journal, manifest: Manifest) -> None:
        self._journal = journal
        self._manifest = manifest
        self._root = manifest.root
        self._folders: set[Path] = set()
        self._known: dict[str, tuple[int, bytes]] = {}
        """What the newest document of each topic says: how many schemas, and which policy."""
        self._has_log = False
        self._published: dict[Partition, int] = {}
        """How many segments of each partition have their manifest objects."""

    def reached(self, partition: Partition) -> int:
        """Everything below is in segments with manifest objects."""
        sealed = partition.sealed
        return sealed.sealed_offset if self._published.get(partition) == sealed.segments else -1

    def check(self, now: float) -> float:
        """A chore: write what is missing; returns when to look again."""
        partitions = list(self._journal.topics.by_id.values())
        late = [p for p in partitions if self.reached(p) < p.sealed.sealed_offset or self._is_withdrawn(p)]
        for partition in late:
            try:
                self.publish(partition)
            except Unavailable:
                return now + _RETRY_S
        return now + _SLEEP_S

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
                hint="the records are sealed and can be read; it is tried again",
            ) from error

    def expire(self, partition: Partition) -> None:
        """Say where the partition begins now, before files are removed."""
        document = gone_document(self._journal, partition)
        key = layout.expired_key(partition.topic, partition.number, document.upto)
        self._write(key, documents.encode(document))

    def _is_withdrawn(self, partition: Partition) -> bool:
        """Whether there is something to read and nobody can: the log had a store for a while."""
        return not self._has_log and partition.sealed.segments > 0 and not (self._root / layout.LOG).exists()

    def _found(self, partition: Partition) -> int:
        """How many manifest objects there are: they are written in order, so the newest one tells all."""
        if partition not in self._published:
            number = partition.sealed.segments
            while number and not self._path(partition, number - 1).exists():
                number -= 1
            self._published[partition] = number
        return self._published[partition]

    def _path(self, partition: Partition, number: int) -> Path:
        return self._root / layout.manifest_key(partition.topic, partition.number, number)

    def _describe(self, partition: Partition) -> None:
        """The log's document and the topic's newest one, before anything that needs them."""
        journal, topic = self._journal, partition.topic
        if not self._has_log:
            document = LogDocument(log=journal.vault.log_id.hex(), created_us=journal.row.created_us)
            self._write(layout.LOG, documents.encode(document))
            self._has_log = True
        state = topic_state(journal, topic)
        if self._known.get(topic) != state:
            self._write_topic(topic)
            self._known[topic] = state

    def _write_topic(self, topic: str) -> None:
        folder = self._root / layout.topic_folder(topic)
        numbers = [layout.parse_number(path.name) for path in folder.iterdir()] if folder.is_dir() else []
        newest = max((number for number in numbers if number is not None), default=0)
        standing = (self._root / layout.topic_key(topic, newest)).read_bytes() if newest else None
        document = next_topic_document(self._journal, self._manifest, topic, newest, standing)
        if document is not None:
            self._write(layout.topic_key(topic, document.version), documents.encode(document))

    def _write(self, key: str, data: bytes) -> None:
        path = self._root / key
        if path.parent not in self._folders:
            disk.make_directory(path.parent, root=self._root)
            self._folders.add(path.parent)
        disk.write_file(path, data)
