"""A store that counts what is asked of it, and dies by kill -9 at a step on request.

`python -m tests.publish.counting_store ROOT TOPIC STEP` publishes a topic and is killed at that step.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.clock import SystemClock
from holdfast.publish.delta import delta_log
from holdfast.publish.publication import Publisher
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body, ObjectInfo, Store

CLOCK = SystemClock()


def publisher_of(store: Store) -> Publisher:
    return Publisher(RootStore(store, RootTrust(None)), CLOCK, delete_after_ms=7 * 86_400_000)


class CountingStore:
    """A store that counts what is asked of it, and dies by kill -9 at a step on request."""

    def __init__(self, store: Store, die_at: int = 0) -> None:
        self._store = store
        self._die_at = die_at
        self.steps = 0
        self.requests: list[tuple[str, str]] = []
        self.bytes_read = 0
        self.before_create: list[Any] = []

    @property
    def url(self) -> str:
        return self._store.url

    def _step(self, verb: str, key: str) -> None:
        self.requests.append((verb, key))
        self.tick()

    def tick(self) -> None:
        self.steps += 1
        if self.steps == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def create(self, key: str, body: Body) -> None:
        self._step("create", key)
        if self.before_create:
            self.before_create.pop(0)()
        self._store.create(key, body)
        self.tick()

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        self._step("get", key)
        data = self._store.get(key, bytes_max)
        self.bytes_read += len(data)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._step("get_range", key)
        self.bytes_read += length
        return self._store.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo | None:
        self._step("head", key)
        return self._store.head(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        self._step("list", prefix)
        for info in self._store.list(prefix, after):
            self.bytes_read += 100
            yield info

    def folders(self, prefix: str) -> Sequence[str]:
        self._step("folders", prefix)
        return self._store.folders(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._step("delete", ",".join(keys))
        self._store.delete(keys)
        self.tick()

    def close(self) -> None:
        self._store.close()


if __name__ == "__main__":
    delta_log._CHECKPOINT_LEAST = 1
    publisher_of(CountingStore(DirectoryStore(Path(sys.argv[1]), CLOCK), int(sys.argv[3]))).publish(sys.argv[2])
