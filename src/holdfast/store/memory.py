"""A store in this process's memory, for tests and trials: the semantics of the others, and nothing survives.

Stores with a name are shared within the process: opening `memory://orders` again finds what was put there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.errors import NotFound
from holdfast.store import object_limits
from holdfast.store.byte_ranges import check_range, require_length
from holdfast.store.object_keys import check_key, check_prefix
from holdfast.store.port import AlreadyExists, Body, ObjectInfo
from holdfast.store.proven_body import proven_bytes


class _Object(NamedTuple):
    data: bytes
    modified_us: int


class MemoryStore:
    """A dictionary behind a lock."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name, self._clock = name, clock
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str, clock: Clock) -> MemoryStore:
        """The store of this name in this process; made when it is first asked for."""
        with _named_lock:
            return _named.setdefault(name, cls(name, clock))

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def url(self) -> str:
        """`memory://` and its name."""
        return f"memory://{self._name}"

    def create(self, key: str, body: Body) -> None:
        """Create an object."""
        check_key(key)
        data = proven_bytes(body)
        with self._lock:
            if key in self._objects:
                raise AlreadyExists(key)
            self._objects[key] = _Object(data, self._clock.now_us())

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        data = self._require(key).data
        object_limits.require(key, len(data), bytes_max)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object."""
        part = self._require(key).data[check_range(start, length)]
        return require_length(part, key, length)

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        found = self._objects.get(check_key(key))
        return ObjectInfo(key, len(found.data), found.modified_us) if found else None

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix, as they are at this moment."""
        check_prefix(prefix)
        with self._lock:
            found = sorted(item for item in self._objects.items() if item[0].startswith(prefix))
        return (
            ObjectInfo(key, len(stored.data), stored.modified_us)
            for key, stored in found
            if after is None or key > after
        )

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix."""
        rest = [info.key.removeprefix(prefix).partition("/") for info in self.list(prefix)]
        return sorted({name for name, slash, _ in rest if slash})

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        with self._lock:
            for key in keys:
                self._objects.pop(check_key(key), None)

    def close(self) -> None:
        """Nothing to let go of: the objects stay for as long as the process lives."""

    def _require(self, key: str) -> _Object:
        found = self._objects.get(check_key(key))
        if found is None:
            raise NotFound(f"there is no such object key={key}")
        return found


_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()
