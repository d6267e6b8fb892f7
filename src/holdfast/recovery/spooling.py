"""Commit batches and objects of keys, brought here once to be read several times.

Each is proved as it comes, beside the fetching of others. What is small stays in memory as it was decoded; the rest
goes to files and is decoded whenever it is read. The files are not synced: an interrupted run fetches them again. An
object that is larger than any of its kind can be is refused before it is fetched.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock, Semaphore

from holdfast import disk
from holdfast.errors import Corrupt
from holdfast.root.objects import commit_batch, key_object
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.objects.key_object import KeyObject
from holdfast.store.port import ObjectInfo, Store

_BYTES_KEPT, _ENTRIES_KEPT = 64 * 2**20, 50_000
"""What stays in memory, decoded."""


class Spool:
    """Objects of one root in one directory, until it is cleared."""

    def __init__(self, store: Store, path: Path, requests: Semaphore) -> None:
        self._store = store
        self._requests = requests
        self._path = path
        self._here: set[str] = set()
        self._kept: dict[str, CommitBatch] = {}
        self._heads: dict[str, KeyObject] = {}
        self._segments: dict[str, tuple[SegmentDocument, ...]] = {}
        self._bytes_left, self._entries_left = _BYTES_KEPT, _ENTRIES_KEPT
        self._lock = Lock()

    def begin(self) -> None:
        """Make the directory; what a crash left in it may be anything, and goes."""
        disk.make_directory(self._path)
        self.clear()

    def clear(self) -> None:
        """Remove what is in the directory."""
        self._kept.clear()
        if self._path.is_dir():
            disk.remove_all(self._path, os.listdir(self._path))

    def remove(self) -> None:
        """Remove the directory with what is in it."""
        self.clear()
        if self._path.is_dir():
            os.rmdir(self._path)

    def fetch_batch(self, key: str) -> None:
        """Bring a commit batch here, proved by its hash; raises Corrupt and NotFound."""
        if key in self._here:
            return
        data = self._get(key)
        batch = commit_batch.decode(data, key)
        if batch.segments:
            self._segments[key] = batch.segments
        if self._has_room(len(data), len(batch.entries)):
            self._kept[key] = batch
        else:
            self._write(key, data)
        self._here.add(key)

    def fetch_keys(self, info: ObjectInfo) -> KeyObject:
        """Bring an object of keys here, proved by its hash; returns it without its rows. Raises Corrupt, NotFound."""
        if info.size > key_object.BYTES_MAX:
            raise Corrupt(f"an object of idempotency keys is too large bytes={info.size}", path=info.key)
        if info.key not in self._heads:
            data = self._get(info.key)
            head = key_object.decode(data, info.key)._replace(rows=())
            self._write(info.key, data)
            self._heads[info.key] = head
        return self._heads[info.key]

    def batch(self, key: str) -> CommitBatch:
        """A commit batch that was fetched."""
        kept = self._kept.get(key)
        return commit_batch.decode(self._file(key).read_bytes(), key) if kept is None else kept

    def segments(self, key: str) -> tuple[SegmentDocument, ...]:
        """The segments that a commit batch names."""
        return self._segments.get(key, ())

    def keys(self, key: str) -> KeyObject:
        """An object of keys that was fetched."""
        return key_object.decode(self._file(key).read_bytes(), key)

    def _get(self, key: str) -> bytes:
        with self._requests:
            return self._store.get(key)

    def _has_room(self, size: int, entries: int) -> bool:
        with self._lock:
            if size > self._bytes_left or entries > self._entries_left:
                return False
            self._bytes_left -= size
            self._entries_left -= entries
            return True

    def _write(self, key: str, data: bytes) -> None:
        file = disk.NewFile(self._file(key))
        try:
            file.write(data)
        finally:
            file.close()

    def _file(self, key: str) -> Path:
        return self._path / key.replace("/", "_")
