"""The bytes of a segment on a store, in few requests: small ones in one, of large ones the end first, then ranges.

A directory's files are read in place. An object that is not there is FileNotFoundError, as with files. A store that
cannot be reached stays `StoreUnavailable`: nothing is damaged then. What a reading will need soon may be requested
ahead of time (`prefetch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import NotFound
from holdfast.segments.file.proven_file import Bytes, DamagedFile, FileBytes, Range
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Store

if TYPE_CHECKING:
    from holdfast.reader.prefetch import Prefetch

_WHOLE_BYTES = 4 * 2**20
"""Up to this size an object is fetched in one request: a second one would cost more than the bytes."""
_TAIL_BYTES = 256 * 2**10
"""What is fetched of a large object's end: nearly every footer fits."""


class ByteRange(NamedTuple):
    """A part of an object, from a byte up to another."""

    key: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.start


def opening(key: str, size: int) -> ByteRange:
    """What is fetched first of an object of this size: all of it, or its end."""
    return ByteRange(key, 0 if size <= _WHOLE_BYTES else size - _TAIL_BYTES, size)


def fetch(store: Store, part: ByteRange) -> memoryview:
    """A part of an object, in one request; raises FileNotFoundError, or Damaged if it is too short."""
    try:
        found = memoryview(store.get_range(part.key, part.start, part.size))
    except NotFound:
        raise FileNotFoundError(part.key) from None
    if len(found) != part.size:
        raise DamagedFile("ends too early", part.start + len(found))
    return found


def is_in_place(store: Store) -> bool:
    """Whether objects are files that are read where they are."""
    return isinstance(store, DirectoryStore)


def open_bytes(store: Store, key: str, size: int, prefetch: Prefetch | None = None) -> Bytes:
    """The bytes of an object that should have this size; raises FileNotFoundError."""
    if isinstance(store, DirectoryStore):
        return FileBytes(Path(store.path(key)))
    return ObjectBytes(store, key, size, prefetch)


class ObjectBytes:
    """An object, read in ranges; its end, or all of it, is kept."""

    def __init__(self, store: Store, key: str, size: int, prefetch: Prefetch | None = None) -> None:
        self._store, self._key = store, key
        self._prefetch = prefetch
        self.size = size
        self.reads_ahead = prefetch is not None
        self._announced: list[ByteRange] = []
        first = opening(key, size)
        self._kept_from = first.start
        self._kept = self._fetch(first)

    def read(self, start: int, end: int) -> memoryview:
        """From what is kept, or with one request."""
        if start >= self._kept_from:
            return self._kept[start - self._kept_from : end - self._kept_from]
        return self._fetch(ByteRange(self._key, start, end))

    def announce(self, ranges: Sequence[Range]) -> None:
        """These will be read next, in this order: as much of it as there is room for is asked for now."""
        if self._prefetch is not None:
            self._announced = [ByteRange(self._key, start, end) for start, end in ranges if start < self._kept_from]
            self._prefetch.announce(self._announced)

    def close(self) -> None:
        """Forget what is kept, and what was announced and never read."""
        if self._prefetch is not None:
            self._prefetch.forget(self._announced)
        self._kept = memoryview(b"")
        self._kept_from = self.size

    def _fetch(self, part: ByteRange) -> memoryview:
        return fetch(self._store, part) if self._prefetch is None else self._prefetch.read(part)
