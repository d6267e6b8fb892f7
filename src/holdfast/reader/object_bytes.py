"""The bytes of a segment on a store, in few requests: small ones in one, of large ones the end first, then ranges.

A directory's files are read in place. An object that is not there is FileNotFoundError, as with files. A store that
cannot be reached stays `StoreUnavailable`: nothing is damaged then.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import NotFound
from holdfast.segments.file.proven_file import Bytes, Damaged, FileBytes
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Store

_WHOLE_BYTES = 4 * 2**20
"""Up to this size an object is fetched in one request: a second one would cost more than the bytes."""
_TAIL_BYTES = 256 * 2**10
"""What is fetched of a large object's end: nearly every footer fits."""


def open_bytes(store: Store, key: str, size: int) -> Bytes:
    """The bytes of an object that should have this size; raises FileNotFoundError."""
    if isinstance(store, DirectoryStore):
        return FileBytes(Path(store.path(key)))
    return ObjectBytes(store, key, size)


class ObjectBytes:
    """An object, read in ranges; its end, or all of it, is kept."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store, self._key = store, key
        self.size = size
        self._kept_from = 0 if self.size <= _WHOLE_BYTES else self.size - _TAIL_BYTES
        self._kept = self._fetch(self._kept_from, self.size)

    def read(self, start: int, end: int) -> memoryview:
        """From what is kept, or with one request."""
        if start >= self._kept_from:
            return self._kept[start - self._kept_from : end - self._kept_from]
        return self._fetch(start, end)

    def close(self) -> None:
        """Forget what is kept."""
        self._kept = memoryview(b"")
        self._kept_from = self.size

    def _fetch(self, start: int, end: int) -> memoryview:
        try:
            part = memoryview(self._store.get_range(self._key, start, end - start))
        except NotFound:
            raise FileNotFoundError(self._key) from None
        if len(part) != end - start:
            raise Damaged("ends too early", start + len(part))
        return part
