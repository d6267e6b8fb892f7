"""A compaction that kills itself with SIGKILL before or after its n-th change of the store.

python -m tests.crash.compact_victim ROOT STEP

Steps are counted in halves: 2n is before the n-th change, 2n + 1 after it. It prints "done" if it was not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from threading import Lock

import holdfast
from holdfast.clock import SystemClock
from holdfast.root import shared_stores
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body
from holdfast.store.store_settings import StoreSettings

NEVER = -1


class Counted(DirectoryStore):
    """A directory whose changes are counted, and may be the last thing that this process does."""

    def __init__(self, root: str, step: int) -> None:
        super().__init__(Path(root), SystemClock())
        self._steps, self._step, self._lock = count(), step, Lock()
        self.changes: list[str] = []

    def create(self, key: str, body: Body) -> None:
        with self._lock:
            self._strike(f"create {key}")
            super().create(key, body)
            self._strike()

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            self._strike(f"delete {len(keys)}")
            super().delete(keys)
            self._strike()

    def _strike(self, change: str = "") -> None:
        if change:
            self.changes.append(change)
        if next(self._steps) == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def work(root: str, step: int) -> list[str]:
    """Compact and clean; returns the changes."""
    store = Counted(root, step)
    shared_stores._opened[shared_stores.root_url(root), StoreSettings()] = store
    try:
        holdfast.compact(root, delete_after_ms=0, workers=1)
    finally:
        del shared_stores._opened[shared_stores.root_url(root), StoreSettings()]
    return store.changes


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
    os.write(1, b"done\n")
